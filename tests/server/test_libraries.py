"""LangChain, pydantic-ai and instructor, unmodified, with `serve` in a process of its own: answers, tools, refusals."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform.platform import Ports
from agentic_trading.server import errors
from tests.governance.asking import ask as ask_for
from tests.governance.asking import reserved
from tests.pages import BLOCKS
from tests.server.conftest import Serving, started
from tests.server.libraries import EXPECTED, api_of, library, plain_ways, python_of
from tests.server.refusals import STATUSES, counted, refusing
from tests.server.test_agent_page import PAGE, ended_example
from tests.server.test_busy import BUDGET, RIGHTS, TENANTS, Counts
from tests.stubs.running import page_of
from tests.stubs.vendor_api import TEXT

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


def short(value: Any) -> Any:
    """Return a result with `text` for each answer of the stub."""
    if isinstance(value, list):
        return [short(each) for each in value]
    return "text" if isinstance(value, str) and value.startswith(TEXT) else value


@pytest.mark.parametrize("name", EXPECTED)
def test_library_gets_each_answer_by_url_and_key_alone(name: str, place: Path, vendor: str) -> None:
    secret = (place / "secret.txt").read_text()
    with library(name) as program, started(place) as (url, _):
        before = len(page_of(vendor, "/requests")["requests"])
        found = {
            way: program.take(
                way, url=url, secret=secret, model="claude" if api_of(way) == "messages" else "gpt"
            )
            for way in program.take("ways")["result"]
        }
        sent = len(page_of(vendor, "/requests")["requests"]) - before
        requests = counted(url, "desk")

    assert {way: short(each.get("result", each)) for way, each in found.items()} == EXPECTED[name]
    assert requests == {"200": sent}


@pytest.mark.parametrize("name", EXPECTED)
def test_library_sends_one_request_for_a_refused_call(name: str, tmp_path: Path, vendor: str) -> None:
    found, expected = {}, {}
    with library(name) as program, refusing(tmp_path, vendor) as servers:
        for reason, status in STATUSES.items():
            for way in plain_ways(name):
                before = servers.counted(reason)
                said = program.take(way, **servers.arguments(reason, api_of(way)))
                requests = dict(servers.counted(reason) - before)
                found[reason, way] = (said.get("status", said), requests)
                expected[reason, way] = (status, {str(status): 1})

    assert found == expected


@pytest.mark.parametrize("name", EXPECTED)
async def test_library_repeats_a_busy_call_and_pays_once(
    name: str, serve: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(python_of, name)
    monkeypatch.setattr(errors, "RETRY_AFTER_S", 1)
    found, expected = {}, {}
    with library(name) as program:
        for way in plain_ways(name):
            ledger, counts = MemoryLedger(), Counts()
            ports = Ports(store=MemoryInteractionStore(), ledger=ledger)
            async with serve(
                rights=RIGHTS, ports=ports, tenants=TENANTS, timing={"_counts": counts}
            ) as served:
                held = await reserved(ledger, ask_for(BUDGET, at=None))
                before = len(await served.asked())
                model = "claude" if api_of(way) == "messages" else "gpt"
                call = asyncio.to_thread(program.take, way, url=served.url, secret=served.secret, model=model)
                async with asyncio.timeout(120), asyncio.TaskGroup() as group:
                    said = group.create_task(call)
                    await counts.changed.wait()
                    await ledger.release(held)
                sent = len(await served.asked()) - before
            statuses: Counter[str] = Counter()
            for (_, _, status), count in counts.items():
                statuses[status] += count
            found[way] = (short(said.result().get("result", said.result())), sent, statuses)
            expected[way] = (EXPECTED[name][way], 1, {"429": 1, "200": 1})

    assert found == expected


def test_example_of_the_page_about_langchain_gets_its_answers(place: Path) -> None:
    [block] = [each for each in BLOCKS if each.page == PAGE and "langchain" in each.text]

    ended = ended_example(python_of("langchain_client"), block, place)

    assert ended.returncode == 0, ended.stderr
    assert "direction='up'" in ended.stdout
    assert "Trend up" in ended.stdout
