"""`agentic-trading serve` as a user starts it: recorded, killed, and replayed byte for byte; and what it refuses at its start."""

import json
import signal
import socket
from pathlib import Path
from urllib.request import Request, urlopen

import openai
import pytest

from agentic_trading.cli.exits import ExitCode
from tests.cli.conftest import Command
from tests.server.conftest import CONFIG, started
from tests.stubs.running import page_of

CALLS = [
    ("/v1/chat/completions", {"model": "gpt", "messages": [{"role": "user", "content": "Judge."}]}),
    ("/v1/chat/completions", {"model": "gpt", "messages": [{"role": "user", "content": "Judge."}]}),
    ("/t/run-1/v1/responses", {"model": "gpt", "input": "@think Judge."}),
    ("/v1/messages", {"model": "claude", "max_tokens": 99, "messages": [{"role": "user", "content": "x"}]}),
    ("/v1/responses", {"model": "gpt", "input": "Judge.", "stream": True}),
]


def bodies(url: str, secret: str) -> list[bytes]:
    """Return the bodies of all calls."""
    found = []
    for path, fields in CALLS:
        request = Request(f"{url}{path}", json.dumps(fields).encode(), {"authorization": f"Bearer {secret}"})  # noqa: S310 - a loopback address
        with urlopen(request, timeout=30) as answer:  # noqa: S310 - the same
            found.append(answer.read())
    return found


@pytest.mark.timeout(120)
def test_recorded_calls_are_replayed_byte_for_byte_after_a_kill(place: Path, command: Command) -> None:
    secret = (place / "secret.txt").read_text()
    with started(place, "--store", "log") as (url, process):
        live = bodies(url, secret)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    log = place / "log" / "interactions.jsonl"
    assert log.stat().st_mode & 0o077 == 0
    assert secret not in log.read_text()
    assert "sk-upstream" not in log.read_text()

    with started(place, "--provider", "recorded", "--from", "log") as (url, process):
        again = bodies(url, secret)
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key=secret) as client,
            pytest.raises(openai.UnprocessableEntityError) as missed,
        ):
            client.responses.create(model="gpt", input="Never asked.")
        rest = process.ends()

    assert again == live
    assert missed.value.code == "replay_miss"
    assert "replay: 1 attempts without a record, 0 records unused" in rest
    assert process.returncode == ExitCode.FOUND_WRONG
    shown = command("trace", "show", "run-1", "--store", "log")
    assert "passed_on" in shown.out


@pytest.mark.timeout(120)
def test_signal_ends_the_server_and_its_log_is_whole(place: Path, command: Command) -> None:
    with started(place) as (url, process):
        bodies(url, (place / "secret.txt").read_text())
        rest = process.ends()

    assert (process.returncode, rest) == (ExitCode.DONE, "stopping\n")
    checked = command("audit", "verify", "runs/server")
    assert checked.code == ExitCode.DONE, checked.out + checked.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--provider", "recorded"], "--provider is given without --from PATH"),
        (["--from", "log"], "--from is given without --provider recorded"),
        (["--provider", "recorded", "--from", "nowhere"], "--from is nowhere, where there is no log"),
        (["--http", "0.0.0.0:0"], "--http is 0.0.0.0, which other machines reach without TLS"),
        (["--tls-cert", "a.pem"], "--tls-cert is given without --tls-key"),
        (["--tls-key", "a.key"], "--tls-key is given without --tls-cert"),
        (["--tls-cert", "a.pem", "--tls-key", "a.key"], "--tls-cert is a.pem, an unreadable file"),
        (["--http", "here"], "--http is here, which is not HOST:PORT"),
        (["--config", "none.toml"], "none.toml"),
    ],
)
def test_wrong_options_are_refused_at_the_start(
    place: Path, command: Command, words: list[str], said: str
) -> None:
    ended = command("serve", *words)

    assert ended.code == ExitCode.BAD_INPUT
    assert said in ended.err


def test_key_of_an_agent_is_never_that_of_a_provider(
    place: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK of an agent reads the variable that also has the provider's key."""
    config = place / "agentic-trading.toml"
    config.write_text(config.read_text().replace('secrets_folder = "secrets"\n', ""))
    monkeypatch.setenv("OPENAI_API_KEY", (place / "secret.txt").read_text())
    ended = command("serve", "--http", "127.0.0.1:0")

    assert ended.code == ExitCode.BAD_INPUT
    assert "OPENAI_API_KEY is an API key of `api-keys create`" in ended.err
    assert "agt_" not in ended.err


def test_missing_file_of_keys_and_missing_providers_are_named(place: Path, command: Command) -> None:
    (place / "api-keys.toml").unlink()
    without_keys = command("serve", "--http", "127.0.0.1:0")
    (place / "agentic-trading.toml").write_text("")
    without_provider = command("serve", "--http", "127.0.0.1:0")

    assert (without_keys.code, without_provider.code) == (ExitCode.BAD_INPUT, ExitCode.BAD_INPUT)
    assert "api-keys.toml" in without_keys.err
    assert "a configuration without a provider" in without_provider.err


@pytest.mark.timeout(120)
def test_configured_fallback_does_not_leave_the_models_of_a_key(place: Path, vendor: str) -> None:
    config = place / "agentic-trading.toml"
    other = CONFIG.partition("[[providers.openai.models]]")[2].partition("[providers.anthropic]")[0]
    row = "[[providers.openai.models]]" + other.replace("stub-large", "not-of-the-key").format()
    fallback = '[fallback.general]\nto = ["openai/not-of-the-key"]\n'
    config.write_text(f"{config.read_text()}\n{row}\n{fallback}")

    with (
        started(place) as (url, _),
        openai.OpenAI(base_url=f"{url}/v1", api_key=(place / "secret.txt").read_text()) as client,
        pytest.raises(openai.InternalServerError),
    ):
        client.responses.create(model="gpt", input="@500 without fallback")

    asked = [one for one in page_of(vendor, "/requests")["requests"] if "without fallback" in json.dumps(one)]
    assert {one["body"]["model"] for one in asked} == {"stub-large"}


def test_key_whose_principal_cannot_sign_is_refused_until_it_is_revoked(
    place: Path, command: Command
) -> None:
    file = place / "api-keys.toml"
    file.write_text(file.read_text().replace("agent =", 'principal = "desk-a"\nagent ='))
    refused = command("serve", "--http", "127.0.0.1:0")
    command("api-keys", "revoke", "desk")
    with started(place) as (url, _):
        assert url.startswith("http://127.0.0.1:")

    assert refused.code == ExitCode.BAD_INPUT
    assert "keys.desk.principal is 'desk-a', but messages are not signed" in refused.err


def test_port_in_use_is_named_and_the_platform_closes(place: Path, command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = command("serve", "--http", address)

    assert ended.code == ExitCode.BAD_INPUT
    assert f"{address}, which cannot be used" in ended.err
    assert "Traceback" not in ended.err
