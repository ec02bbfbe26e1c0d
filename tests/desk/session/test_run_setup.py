"""How a run begins: what it goes on with, what that has cost, and which lines of a log are its own."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from agentic_trading.desk.session import trading
from agentic_trading.desk.session.kept_bars import BarFiles
from agentic_trading.desk.session.run_resume import read_interrupted_run
from agentic_trading.desk.session.run_setup import recorded_attempts
from agentic_trading.desk.session.session_run import SessionObserver, SessionResult, play_session
from agentic_trading.desk.session.trading_session import TradingSession
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.governance.ledger import Ledger
from agentic_trading.governance.rebuild import LostAttempt
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, UnknownKindError
from agentic_trading.llm.event import Event
from agentic_trading.llm.provider import Provider, Providers
from agentic_trading.llm.result import AttemptTrace, Stage
from agentic_trading.llm.store import InteractionStore, Record
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.operate.session_folder import SessionFolder
from agentic_trading.platform import port_adapters
from tests.build import NOW, envelope, event, interaction
from tests.desk.market.bars import bar
from tests.event_bodies import dispatched_body
from tests.flows.sessions import LOADED, PRICED, Priced, calls_in, events_in, stage
from tests.llm.stores.jsonl_logs import blank_lines
from tests.operate.test_session_folder import manifest

BTC = {"btcusdt-5m": LOADED["btcusdt-5m"][:450]}


def dispatched(asked: LLMEnvelope, reserved_nusd: int, attempt: int = 1) -> Event:
    """Return the record that an execution call has left."""
    body = dispatched_body(asked.idempotency_key, attempt=attempt, nusd=reserved_nusd)
    return event("attempt.dispatched", causation_id=asked.envelope_id, body=body)


async def test_lost_call_counts_at_full_reservation(
    tmp_path: Path,
) -> None:
    answered, lost, other = (envelope(instructions=name) for name in ("answered", "lost", "other"))
    store = MemoryInteractionStore()
    await store.record(dispatched(answered, 500))
    await store.store(interaction(envelope=answered, cost_nusd=70))
    await store.store(interaction(envelope=other, cost_nusd=3))
    await store.record(dispatched(lost, 900))
    await store.record(event("intent.approved"))

    earlier = await read_interrupted_run(SessionFolder(tmp_path), manifest(), store.records)

    assert earlier.spent_nusd == 70 + 3 + 900
    assert [kept.count for kept in earlier.bars.values()] == [0]
    assert await earlier.answers.find(answered, 1) is not None
    assert await earlier.answers.find(lost, 1) is None


async def test_lost_second_attempt_is_charged(tmp_path: Path) -> None:
    asked = envelope()
    store = MemoryInteractionStore()
    await store.record(dispatched(asked, 500, attempt=1))
    await store.store(interaction(envelope=asked, attempt_number=1, cost_nusd=0, dispatched_at=NOW))
    await store.record(dispatched(asked, 600, attempt=2))

    earlier = await read_interrupted_run(SessionFolder(tmp_path), manifest(), store.records)

    assert earlier.spent_nusd == 600


async def test_earlier_run_cost_is_excluded(tmp_path: Path) -> None:
    store = MemoryInteractionStore()
    await store.store(interaction(cost_nusd=1000))
    await store.store(interaction(cost_nusd=7))

    earlier = await read_interrupted_run(SessionFolder(tmp_path), manifest(2, first_seq=1), store.records)

    assert earlier.spent_nusd == 7


async def test_resume_reads_only_calls_and_money_of_its_run(tmp_path: Path) -> None:
    folder, lost = SessionFolder(tmp_path), envelope()
    store = port_adapters.log_for("backtest", folder.log)
    for number in range(3):
        await store.store(interaction(cost_nusd=1000))
        await store.record(event("intent.approved", id=f"earlier-{number}"))
    for number in range(3):
        await store.record(event("intent.approved", id=f"own-{number}"))
        await store.store(interaction(cost_nusd=7))
    await store.record(dispatched(lost, 900))
    await store.aclose()
    async with aclosing(port_adapters.records_of(folder.log)) as records:
        assert await records.count() == 13
    await asyncio.to_thread(blank_lines, folder.log, but=[8, 10, 12, 13])

    async with aclosing(port_adapters.records_of(folder.log)) as records:
        earlier = await read_interrupted_run(folder, manifest(2, first_seq=6), records)

    assert earlier.spent_nusd == 3 * 7 + 900
    assert len(earlier.lost) == 1


async def test_resume_refuses_unknown_record_of_money(tmp_path: Path) -> None:
    store = MemoryInteractionStore()
    await store.record(event("ledger.merged"))

    with pytest.raises(UnknownKindError, match=r"ledger\.merged"):
        await read_interrupted_run(SessionFolder(tmp_path), manifest(), store.records)


async def test_possibly_answered_calls_are_counted(tmp_path: Path) -> None:
    trace = AttemptTrace(parser="p", transport="prompted", verdict=Stage.DONE)
    store = MemoryInteractionStore()
    lost = envelope()
    await store.store(interaction(dispatched_at=NOW, reading=trace))
    await store.store(interaction(dispatched_at=NOW, in_doubt=True))
    nothing = {"cost_nusd": 0, "input_tokens": 0, "output_tokens": 0}
    await store.store(interaction(dispatched_at=NOW, **nothing))
    await store.store(interaction(dispatched_at=NOW, reading=trace, served_from="recorded"))
    await store.store(interaction(**nothing))
    await store.record(dispatched(lost, 900))

    earlier = await read_interrupted_run(SessionFolder(tmp_path), manifest(), store.records)

    assert earlier.calls == 3


async def test_resume_starts_with_fed_bars(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    files = BarFiles(folder, manifest())
    await files.open()
    await files.append([bar(0), bar(1)])
    await files.write()

    earlier = await read_interrupted_run(folder, manifest(), MemoryInteractionStore().records)

    assert [item async for item in earlier.bars["BTCUSDT"].feed()] == [bar(0), bar(1)]


async def test_run_reads_own_log_lines_only(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    first, second = manifest(), manifest(2, first_seq=2)
    for each in (first, second):
        await asyncio.to_thread(folder.write_manifest, each)
    store = port_adapters.log_for("backtest", folder.log)
    kept = [interaction(), interaction(), interaction()]
    for one in kept:
        await store.store(one)
    await store.aclose()

    assert [each async for each in recorded_attempts(folder, first)] == kept[:2]
    assert [each async for each in recorded_attempts(folder, second)] == kept[2:]


def stopping_at(bars: int, played: SessionResult) -> SessionObserver:
    """Return a watch that stops the session after so many bars."""
    held: list[TradingSession] = []

    async def after_moment(_moment: TimeSlice, _lines: Sequence[bytes]) -> None:
        if played.bars_done >= bars:
            held[0].stop()

    return SessionObserver(after_moment, on_start=held.append)


async def part(
    store: InteractionStore,
    budget: int | Ledger,
    bars: int,
    recorded: port_adapters.Recording | None,
    lost: Mapping[str, LostAttempt] | None = None,
) -> None:
    """Play the beginning of a session whose calls cost money, up to so many bars."""
    played = SessionResult()
    provider: Provider = Priced()
    set_up = stage(
        bars=BTC,
        store=store,
        most_bars=None,
        answers=trading.AnswerSource(Providers.every(provider), *PRICED, recorded, lost=lost or {}),
        ledger=port_adapters.budget_ledger(budget) if isinstance(budget, int) else budget,
    )
    await play_session(set_up, played, stopping_at(bars, played))


async def budget_for(percent: int) -> int:
    """Return what lets so much of the session's cost be spent: what the dearest call sets aside must fit on top."""
    store = MemoryInteractionStore()
    await part(store, 10**10, 450, None)
    results = [one.result for one in calls_in([entry.record async for entry in store.scan()])]
    spent = sum(result.cost_nusd for result in results)
    return max(result.reserved_nusd for result in results) + spent * percent // 100


@pytest.mark.parametrize("percent", [20, 50, 1000])
async def test_resumed_run_keeps_total_budget(percent: int, tmp_path: Path) -> None:
    budget_nusd = await budget_for(percent)
    store = MemoryInteractionStore()
    await part(store, budget_nusd, 370, None)
    earlier = await read_interrupted_run(SessionFolder(tmp_path), manifest(), store.records)

    await part(store, budget_nusd - earlier.spent_nusd, 450, earlier.answers)

    results = [one.result for one in calls_in([entry.record async for entry in store.scan()])]
    spent = sum(result.cost_nusd for result in results)
    assert 0 < earlier.spent_nusd <= spent <= budget_nusd
    refused = [r for r in results if r.failure and r.failure.category is FailureKind.BUDGET_EXHAUSTED]
    assert bool(refused) is (percent < 100)
    assert len({result.result_id for result in results}) == len(results)


async def all_of(store: InteractionStore) -> list[Record]:
    """Return the records of a log."""
    return [entry.record async for entry in store.scan()]


async def beginning_with(records: Sequence[Record]) -> MemoryInteractionStore:
    """Return the log that a process has left which was killed after these."""
    store = MemoryInteractionStore()
    for record in records:
        await (store.record(record) if isinstance(record, Event) else store.store(record))
    return store


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 1.0])
async def test_killed_dispatch_keeps_budget_and_invoice(share: float, tmp_path: Path) -> None:
    budget_nusd = await budget_for(50)
    whole = MemoryInteractionStore()
    await part(whole, budget_nusd, 450, None)
    records = await all_of(whole)
    dispatches = [
        place for place, one in enumerate(records) if getattr(one, "kind", "") == "attempt.dispatched"
    ]
    left = records[: dispatches[int(share * (len(dispatches) - 1))] + 1]
    sent = {one.body["reservation_id"] for one in events_in(left, "attempt.dispatched")}
    billed = sum(one.result.cost_nusd for one in calls_in(records) if one.result.reservation_id in sent)
    store = await beginning_with(left)
    earlier = await read_interrupted_run(SessionFolder(tmp_path), manifest(), store.records)

    ledger = port_adapters.budget_ledger(budget_nusd)
    await ledger.restore("default", earlier.bookings)
    await part(store, ledger, 450, earlier.answers, earlier.lost)

    kept = await all_of(store)
    own = [one.result for one in calls_in(kept[len(left) :]) if one.result.served_from == "live"]
    billed += sum(result.cost_nusd for result in own if result.reservation_id not in sent)
    books = (await read_interrupted_run(SessionFolder(tmp_path), manifest(), store.records)).spent_nusd
    assert earlier.lost
    assert 0 < billed <= books <= budget_nusd
    assert books == sum(one.result.cost_nusd for one in calls_in(kept))
