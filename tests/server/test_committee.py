"""An agent with the fields of TradingAgents: recorded, replayed byte for byte without the vendor, and stopped by a budget."""

from pathlib import Path
from urllib.request import urlopen

import anthropic
import openai
import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.llm.verbatim import Api
from tests.cli.conftest import Command
from tests.server.committee import CALLS, ROLES, decide
from tests.server.conftest import CONFIG, started
from tests.stubs.running import page_of, serving

pytestmark = pytest.mark.timeout(120)


def write_config(place: Path, vendor: str, *, usd: str) -> None:
    """Write a configuration with a budget."""
    text = CONFIG.format(vendor=vendor).replace('budget_usd = "1"', f'budget_usd = "{usd}"')
    (place / "agentic-trading.toml").write_text(f'secrets_folder = "secrets"\n{text}')


@pytest.mark.parametrize("api", list(ROLES))
def test_agent_of_several_roles_is_replayed_byte_for_byte(api: Api, place: Path, command: Command) -> None:
    secret = (place / "secret.txt").read_text()
    with serving("tests.stubs.vendor_api") as vendor:
        write_config(place, vendor, usd="9")
        with started(place, "--store", "log") as (url, process):
            live = ROLES[api](url, secret, "NVDA-2024-05-10")
            decision = decide(live, "NVDA")
            process.ends()

    with started(place, "--provider", "recorded", "--from", "log") as (url, process):
        again = ROLES[api](url, secret, "NVDA-2024-05-10")
        assert decide(again, "NVDA") == decision
        process.ends()

    assert process.returncode == ExitCode.DONE
    assert again.bodies == live.bodies
    assert len(live.bodies) == CALLS
    shown = command("trace", "list", "--store", "log")
    assert "NVDA-2024-05-10" in shown.out


@pytest.mark.parametrize("api", list(ROLES))
def test_budget_stops_agent_with_one_request_for_each_refusal(api: Api, place: Path) -> None:
    secret = (place / "secret.txt").read_text()
    with serving("tests.stubs.vendor_api") as vendor:
        # The output of a call may cost 0.164 USD, and costs far less.
        write_config(place, vendor, usd="0.169")
        with started(place) as (url, _):
            role = ROLES[api](url, secret, "NVDA-2024-05-10")
            with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as refused:
                decide(role, "NVDA")
            with urlopen(f"{url}/metrics", timeout=30) as page:  # noqa: S310 - a loopback address
                metrics = page.read().decode()
        sent = len(page_of(vendor, "/requests")["requests"])

    assert "Error code: 402" in str(refused.value)
    assert 0 < sent == len(role.bodies) < CALLS
    assert f'agentic_http_requests_total{{api="{api}",key="desk",status="402"}} 1.0' in metrics
