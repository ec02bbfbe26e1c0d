"""A server that bills more than was reserved: the bill is charged, and its model is halted until an operator resumes it."""

import asyncio
import json
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.governance.commands import RemoveHalt, execute_command
from agentic_trading.governance.control_stores.file import MemoryControlStore
from agentic_trading.governance.controls_document import AppliedCommand, ControlStore, HaltScope
from agentic_trading.governance.events import KINDS
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.governance.status_feed import MemoryStatusFeed
from agentic_trading.llm import Event, FailureKind, LLMInteraction
from agentic_trading.llm.store import InteractionStore
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform import Platform, Ports
from agentic_trading.platform.port_adapters import boards_of, memory_ledger
from tests.build import NOW
from tests.cases.answering import MODEL, PUBLIC, answering, config, order
from tests.redis_server import RealServer

ROUTED = json.loads((PUBLIC / "o06_cost_of_the_router.json").read_bytes())
BILL_NUSD = 50_000_000
"""More than is reserved for a call: the server bills 0.05 dollars."""


def answer(usd: float = 0.05, **changes: Any) -> bytes:
    usage = {**ROUTED["usage"], "cost": usd, **changes.pop("usage", {})}
    return json.dumps({**ROUTED, "usage": usage, **changes}).encode()


async def result_of(platform: Platform, number: int) -> tuple[int, FailureKind | None]:
    """Return the cost of a call, and why it failed."""
    answered = await platform.ask(order(number))
    assert isinstance(answered, LLMInteraction)
    failure = answered.result.failure
    return answered.result.cost_nusd, None if failure is None else failure.category


def log_in(folder: Path) -> Path:
    (log,) = folder.rglob("*.jsonl")
    return log


async def resume(controls: ControlStore) -> None:
    """Resume the model, and return once the platform may have seen it."""
    command = RemoveHalt(HaltScope.MODEL, MODEL)
    await execute_command(controls, "default", command, by="ann", why="price fixed", at=NOW)


async def halts_on_record(store: InteractionStore | JsonlRecords) -> list[str]:
    async with aclosing(store.scan()) as entries:
        bodies = [KINDS.must(entry.record) async for entry in entries if isinstance(entry.record, Event)]
    return [
        f"{one.kind} {one.subject} by {one.by}" for one in bodies if isinstance(one, AppliedCommand)
        if one.kind in {"halt", "resume"}
    ]  # fmt: skip


async def resumed(platform: Platform, number: int) -> tuple[int, FailureKind | None]:
    """Ask until the model is not halted any more: workers read controls four times a second."""
    async with asyncio.timeout(30):
        while (found := await result_of(platform, number))[1] is FailureKind.HALTED:
            number += 1
            await asyncio.sleep(0.01)
    return found


async def halts_and_resumes(platform: Platform, controls: ControlStore) -> None:
    assert await result_of(platform, 0) == (BILL_NUSD, None)
    (halt,) = (await controls.read("default")).halts
    assert (halt.scope, halt.id, halt.by) == (HaltScope.MODEL, MODEL, "gateway")
    assert "billed 0.050000 USD" in halt.why
    assert await result_of(platform, 1) == (0, FailureKind.HALTED)
    await resume(controls)
    assert await resumed(platform, 100) == (BILL_NUSD, None)


ON_RECORD = [
    f"halt model {MODEL} by gateway",
    f"resume model {MODEL} by ann",
    f"halt model {MODEL} by gateway",
]


async def test_overbilled_model_is_halted_in_memory() -> None:
    controls, store, ledger = MemoryControlStore(), MemoryInteractionStore(), memory_ledger()
    ports = Ports(controls=controls, statuses=MemoryStatusFeed(), store=store, ledger=ledger)
    with answering(answer()) as url:
        async with Platform(config(url, None), ports) as platform:
            await halts_and_resumes(platform, controls)

    assert await halts_on_record(store) == ON_RECORD
    assert ledger.statistics().overruns == 2
    balances = await ledger.balances("default")
    assert [
        one.spent.nusd for one in balances if (one.scope, one.window) == (ScopeKind.TENANT, Window.NONE)
    ] == [2 * BILL_NUSD]


async def test_overbilled_model_is_halted_without_control_store() -> None:
    store = MemoryInteractionStore()
    with answering(answer()) as url:
        async with Platform(config(url, None), Ports(store=store)) as platform:
            assert await result_of(platform, 0) == (BILL_NUSD, None)
            assert await result_of(platform, 1) == (0, FailureKind.HALTED)

    assert await halts_on_record(store) == ON_RECORD[:1]


async def test_overbilled_model_is_halted_in_folder(tmp_path: Path) -> None:
    controls, _ = boards_of(None, tmp_path)
    with answering(answer()) as url:
        async with Platform(config(url, tmp_path)) as platform:
            await halts_and_resumes(platform, controls)
        async with Platform(config(url, tmp_path)) as platform:
            assert await result_of(platform, 300) == (0, FailureKind.HALTED)

    async with aclosing(JsonlRecords(log_in(tmp_path))) as records:
        assert await halts_on_record(records) == ON_RECORD


async def test_overbilled_model_is_halted_across_redis_processes(
    tmp_path: Path, own_redis: RealServer
) -> None:
    controls, statuses = await asyncio.to_thread(boards_of, own_redis.url, None)
    with answering(answer()) as url:
        here, there = (config(url, tmp_path / name, ledger_url=own_redis.url) for name in ("a", "b"))
        async with (
            aclosing(controls),
            aclosing(statuses),
            Platform(here) as platform,
            Platform(there) as other,
        ):
            assert await result_of(platform, 0) == (BILL_NUSD, None)
            async with asyncio.timeout(30):
                number = 10
                while (await result_of(other, number))[1] is not FailureKind.HALTED:
                    number += 1
            await execute_command(
                controls, "default", RemoveHalt(HaltScope.MODEL, MODEL), by="ann", why="", at=NOW
            )
            assert await resumed(platform, 1000) == (BILL_NUSD, None)


async def test_in_flight_call_is_charged_the_bill(tmp_path: Path) -> None:
    both_sent, first_is_over = threading.Barrier(2), threading.Event()

    def before(number: int) -> None:
        both_sent.wait(timeout=30)
        if number:
            first_is_over.wait(timeout=30)

    with answering(answer(), before=before) as url:
        async with Platform(config(url, tmp_path)) as platform, asyncio.TaskGroup() as group:
            calls = [group.create_task(result_of(platform, number)) for number in range(2)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            assert await result_of(platform, 2) == (0, FailureKind.HALTED)
            first_is_over.set()

    assert [call.result() for call in calls] == [(BILL_NUSD, None)] * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"usage": {"prompt_tokens": None}},
        {"choices": [{"message": {"content": ""}, "finish_reason": "error"}]},
        {"choices": []},
    ],
    ids=["unmetered", "broken off", "no choices"],
)
async def test_bill_of_unusable_answer_is_charged(tmp_path: Path, changes: dict[str, Any]) -> None:
    with answering(answer(**changes)) as url:
        async with Platform(config(url, tmp_path)) as platform:
            await platform.ask(order())

    async with (
        aclosing(JsonlRecords(log_in(tmp_path))) as records,
        aclosing(records.scan()) as entries,
    ):
        results = [entry.record.result async for entry in entries if isinstance(entry.record, LLMInteraction)]
    assert [(one.cost_nusd, one.bill_nusd, one.in_doubt) for one in results if one.cost_nusd] == [
        (BILL_NUSD, BILL_NUSD, False)
    ]


async def test_bill_within_reservation_halts_no_model(tmp_path: Path) -> None:
    with answering(answer(0.0031)) as url:
        async with Platform(config(url, tmp_path)) as platform:
            assert [await result_of(platform, number) for number in range(2)] == [(3_100_000, None)] * 2
