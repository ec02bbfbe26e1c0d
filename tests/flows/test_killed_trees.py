"""A tree of questions is killed in each of its calls, and goes on in a new process without paying a finished part twice."""

import asyncio
import json
import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.bus.brokers.redis.redis import redis_settings_of
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, EVENTS, REPLIES
from agentic_trading.client.frames import KINDS, FrameClosed, FrameOpened
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.operate.budget_log import rebuild_ledger
from tests.flows.growing_tree import SPLIT, TRACE, ask_once, grow, log_in, sent_in
from tests.forked import Ended, ended
from tests.redis_bus import make_topics
from tests.redis_server import RealServer

pytestmark = [pytest.mark.timeout(60), pytest.mark.soak]  # processes are started, killed and started again

CALLS = 10
ALL = ["root", "a", "a1", "a2", "join a", "b", "b1", "b2", "join b", "join root"]


def grown(
    folder: Path,
    *,
    ledger: str | None = None,
    bus: str | None = None,
    most_calls: int = 20,
    dies_in: int = 0,
) -> Ended:
    folder.mkdir(exist_ok=True)
    return ended(grow, str(folder), ledger, bus, most_calls, dies_in, folder=folder)


async def on_record(folder: Path) -> tuple[Counter[type], list[LLMInteraction]]:
    """Return how many frames are opened and closed, and the attempts."""
    async with aclosing(JsonlRecords(log_in(folder))) as records:
        found = await records.trace(TRACE)
    bodies = Counter(type(KINDS.of(one)) for one in found if isinstance(one, Event))
    return bodies, [one for one in found if isinstance(one, LLMInteraction)]


def killed_and_gone_on(folder: Path, call: int, *, most_calls: int = 20) -> dict[str, Any]:
    """Kill a tree in one of its calls, go on with it in a new process, and return what that says."""
    killed = grown(folder, most_calls=most_calls, dies_in=call)
    assert killed.code == -signal.SIGKILL, killed.err
    went_on = grown(folder, most_calls=most_calls)
    assert went_on.code == 0, went_on.err
    page: dict[str, Any] = json.loads(went_on.out)
    return page


@pytest.mark.parametrize("call", range(1, CALLS + 1))
async def test_killed_tree_repeats_only_running_call(call: int, tmp_path: Path) -> None:
    page = await asyncio.to_thread(killed_and_gone_on, tmp_path / "one", call)

    assert page["conclusion"] == "joined root"
    assert set(page["states"].values()) == {"concluded"}
    assert len(page["states"]) == 1 + sum(map(len, SPLIT.values()))
    sent = sent_in(tmp_path / "one")
    assert sent == [*ALL[:call], *ALL[call - 1 :]]
    frames, attempts = await on_record(tmp_path / "one")
    assert (frames[FrameOpened], frames[FrameClosed]) == (7, 7)
    assert sum(one.result.success for one in attempts) == CALLS
    assert sum(one.result.in_doubt for one in attempts) == 1


def at_once(folder: Path, processes: int) -> list[Ended]:
    """Go on with a tree in several processes that are started together."""

    def one(number: int) -> Ended:
        own = folder / f"process-{number}"
        own.mkdir()
        return ended(grow, str(folder), None, None, 20, 0, folder=own)

    with ThreadPoolExecutor(processes) as threads:
        return list(threads.map(one, range(processes)))


@pytest.mark.parametrize("call", [1, 4, CALLS])
async def test_concurrent_resumes_of_tree_run_once(call: int, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    killed = await asyncio.to_thread(grown, folder, dies_in=call)
    assert killed.code == -signal.SIGKILL, killed.err

    processes = await asyncio.to_thread(at_once, folder, 3)

    went_on = [one for one in processes if one.code == 0]
    told = [one for one in processes if one.code != 0]
    assert went_on  # one that came after the end of another has the answer from the record
    assert {json.loads(one.out)["conclusion"] for one in went_on} == {"joined root"}
    assert all("another platform is open in it. Close it" in one.err for one in told)
    assert sent_in(folder) == [*ALL[:call], *ALL[call - 1 :]]
    frames, attempts = await on_record(folder)
    assert (frames[FrameOpened], frames[FrameClosed]) == (7, 7)
    assert sum(one.result.success for one in attempts) == CALLS


async def test_tree_open_elsewhere_is_refused(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "one"
    (folder / "second").mkdir(parents=True)
    os.mkfifo(gate := folder / "gate")
    async with asyncio.TaskGroup() as group:
        first = group.create_task(asyncio.to_thread(grown, folder))
        await asyncio.to_thread(gate.write_text, "the first call is under way")  # waits until it is
        given = (str(folder), None, None, 20, 0)
        second = await asyncio.to_thread(ended, grow, *given, folder=folder / "second")
        await asyncio.to_thread(gate.write_text, "go on")

    assert second.code != 0
    assert "another platform is open in it. Close it" in second.err
    assert json.loads(first.result().out)["conclusion"] == "joined root"
    assert sent_in(folder) == ALL


async def test_finished_tree_is_not_paid_again(tmp_path: Path) -> None:
    first = await asyncio.to_thread(grown, tmp_path / "one")
    lines = log_in(tmp_path / "one").read_bytes().count(b"recursion.")

    again = await asyncio.to_thread(grown, tmp_path / "one")

    assert again.out == first.out
    assert sent_in(tmp_path / "one") == ALL
    assert log_in(tmp_path / "one").read_bytes().count(b"recursion.") == lines


@pytest.mark.parametrize("call", [1, 4, 7])
async def test_calls_before_kill_count_toward_ceilings(call: int, tmp_path: Path) -> None:
    page = await asyncio.to_thread(killed_and_gone_on, tmp_path / "one", call, most_calls=CALLS)

    assert len(sent_in(tmp_path / "one")) <= CALLS
    assert "open" not in page["states"].values()


async def test_ceilings_survive_kill_and_ledger_rebuild(tmp_path: Path, own_redis: RealServer) -> None:
    """It takes its time: a new process waits for the lease of the killed one."""
    folder, url, call = tmp_path / "one", own_redis.url, 4
    namespace = redis_settings_of(url).namespace
    await make_topics(url, namespace, [*ENVELOPES.values(), EVENTS, REPLIES, DEAD_LETTERS])
    killed = await asyncio.to_thread(grown, folder, ledger=url, bus=url, most_calls=CALLS, dies_in=call)
    assert killed.code == -signal.SIGKILL, killed.err

    report = await rebuild_ledger([log_in(folder)], url, "default", discard_server=True)
    went_on = await asyncio.to_thread(grown, folder, ledger=url, bus=url, most_calls=CALLS)

    assert (report.calls, report.in_doubt) == (call, 1)
    assert went_on.code == 0, went_on.err
    sent = sent_in(folder)
    assert sent[: call + 1] == [*ALL[:call], ALL[call - 1]]
    assert len(sent) <= CALLS
    assert "open" not in json.loads(went_on.out)["states"].values()


async def test_exhausted_trace_stays_exhausted_after_rebuild(tmp_path: Path, own_redis: RealServer) -> None:
    folder, url = tmp_path / "one", own_redis.url
    await asyncio.to_thread(grown, folder, ledger=url, most_calls=CALLS)
    await rebuild_ledger([log_in(folder)], url, "default", discard_server=True)

    _, attempts = await on_record(folder)
    more = attempts[0].envelope.model_copy(update={"envelope_id": "one-more", "idempotency_key": "one-more"})
    refused = await asyncio.to_thread(ended, ask_once, str(folder), url, more.wire, folder=folder)

    assert sent_in(folder) == ALL
    assert refused.out == "budget_exhausted"
