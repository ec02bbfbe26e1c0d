"""Two servers that refuse calls, each for a reason of its own: a field, a budget, a halt, a model, a replay without the record."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import openai
from prometheus_client.parser import text_string_to_metric_families

from agentic_trading.clock import SystemClock
from agentic_trading.server.api_keys import ApiKeyFile, new_api_key
from tests.server.conftest import ALIASES, CONFIG, started
from tests.stubs.running import page_of

STATUSES: Final[Mapping[str, int]] = {"field": 400, "budget": 402, "halt": 403, "model": 404, "replay": 422}
"""The status of a call by the reason of its refusal. Each reason has a key of this name."""

FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "chat_completions": {"web_search_options": {"search_context_size": "low"}},
    "responses": {"previous_response_id": "resp_1"},
    "messages": {"container": "container_1"},
}
"""A field of each API that is refused."""

_BUDGETS: Final = """
[tenants.poor]
budget_usd = "0.001"

[tenants.halted]
budget_usd = "1"
"""
_TENANTS: Final = {"budget": "poor", "halt": "halted"}


@dataclass(frozen=True)
class Refusing:
    """The servers, the secret of each reason, and the stub behind both."""

    urls: Mapping[str, str]
    secrets: Mapping[str, str]
    vendor: str

    def arguments(self, reason: str, api: str) -> dict[str, Any]:
        """Return URL, secret, model and extra fields of a call that is refused."""
        alias = "claude" if api == "messages" else "gpt"
        return {
            "url": self.urls[reason],
            "secret": self.secrets[reason],
            "model": "unknown" if reason == "model" else alias,
            "more": dict(FIELDS[api]) if reason == "field" else {},
        }

    def counted(self, reason: str) -> Counter[str]:
        """Return the server's own counts of requests by status, for the key of a reason, and those of the stub."""
        sent = len(page_of(self.vendor, "/requests")["requests"])
        return counted(self.urls[reason], reason) + Counter({"vendor": sent})


def counted(url: str, key: str) -> Counter[str]:
    """Return a server's counts of requests by status, for a key."""
    with urlopen(f"{url}/metrics", timeout=30) as page:  # noqa: S310 - a loopback address
        families = text_string_to_metric_families(page.read().decode())
    counts: Counter[str] = Counter()
    for sample in (sample for family in families for sample in family.samples):
        if sample.name == "agentic_http_requests_total" and sample.labels["key"] == key:
            counts[sample.labels["status"]] += int(sample.value)
    return counts


@contextmanager
def refusing(place: Path, vendor: str) -> Iterator[Refusing]:
    """Run both servers in processes of their own, in the folder `place`."""
    (place / "secrets").mkdir()
    for name in ("openai", "anthropic"):
        (place / "secrets" / f"{name}_api_key").write_text("sk-upstream")
    config = CONFIG.format(vendor=vendor) + _BUDGETS
    (place / "agentic-trading.toml").write_text(f'secrets_folder = "secrets"\n{config}')
    secrets = {reason: _key(place, reason) for reason in STATUSES}
    with started(place, "--store", "live") as (live, _):
        with openai.OpenAI(base_url=f"{live}/v1", api_key=secrets["replay"]) as client:
            client.responses.create(model="gpt", input="The only recorded call.")
        halt = ["halt", "--tenant", "halted", "--store", "live", "--force"]
        program = Path(sys.executable).with_name("agentic-trading")
        subprocess.run([program, *halt], cwd=place, check=True, capture_output=True)
        with started(place, "--provider", "recorded", "--from", "live", "--store", "replay") as (replay, _):
            urls = {reason: replay if reason == "replay" else live for reason in STATUSES}
            yield Refusing(urls, secrets, vendor)


def _key(place: Path, reason: str) -> str:
    rights = {"tenant": _TENANTS.get(reason, "acme"), "agent": reason, "models": ALIASES}
    key, secret = new_api_key(reason, SystemClock().now(), rights)
    ApiKeyFile(place / "api-keys.toml").add(key)
    return secret
