"""`agentic-trading serve` with a certificate, for other machines."""

import json
import ssl
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.certificates import make_certificates
from tests.server.conftest import started


@pytest.mark.timeout(120)
def test_server_with_a_certificate_answers_other_machines_under_any_name(place: Path) -> None:
    folder = place / "certificates"
    folder.mkdir()
    make_certificates(folder)
    trusting = ssl.create_default_context(cafile=folder / "ca.pem")
    words = ["--tls-cert", str(folder / "server.pem"), "--tls-key", str(folder / "server.key")]
    named = {"authorization": f"Bearer {(place / 'secret.txt').read_text()}", "host": "gateway.example"}
    body = json.dumps({"model": "gpt", "input": "Judge."}).encode()
    with started(place, *words, "--http", "0.0.0.0:0") as (url, _):
        here = url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - the address that the server shows
        with urlopen(Request(f"{here}/v1/responses", body, named), timeout=30, context=trusting) as answer:  # noqa: S310 - a loopback address
            status = answer.status

    assert (url.partition(":")[0], status) == ("https", 200)
