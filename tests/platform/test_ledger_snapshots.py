"""A start reads the newest snapshot of the ledger and the lines after it, with the result of reading the whole log."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from agentic_trading.governance.commands import SetLimit, execute_command
from agentic_trading.governance.control_stores.file import FileControlStore
from agentic_trading.governance.events import LedgerCheckpointed
from agentic_trading.governance.ledger import LedgerEntry
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.rebuild import LedgerRebuild
from agentic_trading.governance.rules import ClockMode
from agentic_trading.llm import Event, FailureKind, JsonFileInteractionStore
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import StoreError, UnknownKindError
from agentic_trading.llm.interaction import LLMInteraction, reservation_id
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.llm.store import InteractionStore
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.platform import local_gateway
from agentic_trading.platform.ledger_snapshots import LedgerRebuilds, snapshots_on_record
from tests.build import envelope, event, interaction
from tests.event_bodies import dispatched_body
from tests.gateway import START
from tests.platform.calls import BUDGET_USD, SMALL_USD, asked, scripted
from tests.platform.calls import envelope as call

SMALL_SEGMENT = 4096


def sent(key: str, *, nusd: int = 50, tenant: str = "default") -> Event:
    """Return the record of a dispatch."""
    body = dispatched_body(key, tenant=tenant, nusd=nusd)
    return event("attempt.dispatched", id=f"sent-{key}", body=body, tenant_id=tenant, time=START)


def ended(key: str, nusd: int, *, tenant: str = "default") -> LLMInteraction:
    """Return the record of the end of a call."""
    asked_for = envelope(envelope_id=key, tenant_id=tenant, trace_id="t1")
    return interaction(
        envelope=asked_for, dispatched_at=START, finished_at=START, stored_at=START, cost_nusd=nusd,
        reservation_id=reservation_id(tenant, key, 1),
    )  # fmt: skip


@asynccontextmanager
async def opened(folder: Path, *, segment_bytes: int = 1 << 20) -> AsyncIterator[JsonFileInteractionStore]:
    """Open a log."""
    async with aclosing(JsonFileInteractionStore(folder / "log.jsonl", segment_bytes=segment_bytes)) as store:
        yield store


async def rebuilds(
    store: JsonFileInteractionStore,
    tenants: Sequence[str] = ("default",),
    *,
    mode: ClockMode = "paper",
    zone: str = "UTC",
) -> LedgerRebuilds:
    """Return the ledgers of a start."""
    return await LedgerRebuilds(store.path, store.records, tenants, mode, zone).open()


async def whole(store: InteractionStore, tenant: str = "default") -> list[LedgerEntry]:
    """Return the entries of the whole log."""
    reading = LedgerRebuild(tenant, "paper")
    async for entry in store.scan():
        reading.read(entry.record)
    return reading.entries()


async def spend(store: InteractionStore, *keys: str, tenant: str = "default") -> None:
    """Record calls."""
    for key in keys:
        await store.record(sent(key, tenant=tenant))
        await store.store(ended(key, 7, tenant=tenant))


async def snapshot_lines(store: InteractionStore) -> list[int]:
    """Return the lines with snapshots."""
    return [
        entry.seq
        async for entry in store.scan()
        if isinstance(entry.record, Event) and entry.record.kind == LedgerCheckpointed.KIND
    ]


async def test_closed_platform_leaves_snapshot(tmp_path: Path) -> None:
    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        assert await asked(platform, call(1)) == [None]

    async with aclosing(JsonlRecords(tmp_path / "interactions.jsonl")) as records:
        kinds = [entry.record.kind async for entry in records.scan() if isinstance(entry.record, Event)]
    assert kinds[-2:] == ["ledger.checkpointed", "run.ended"]


async def test_idle_platform_skips_snapshot(tmp_path: Path) -> None:
    for _ in range(2):
        async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD):
            pass

    async with aclosing(JsonlRecords(tmp_path / "interactions.jsonl")) as records:
        kinds = {entry.record.kind async for entry in records.scan() if isinstance(entry.record, Event)}
    assert "ledger.checkpointed" not in kinds


async def test_spending_before_snapshot_counts(tmp_path: Path) -> None:
    outcomes = []
    for start in range(4):
        async with local_gateway(scripted(), folder=tmp_path, budget_usd=SMALL_USD) as platform:
            outcomes += await asked(platform, call(start))

    assert outcomes == [None, None, None, FailureKind.BUDGET_EXHAUSTED]


async def test_start_reads_lines_after_snapshot(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await spend(store, "a", "b")
        await store.record(sent("open"))
        await (await rebuilds(store)).record_in(store)
        await spend(store, "c")
        await store.store(ended("open", 30))

        found = await rebuilds(store)

        assert found.read_from == 5
        assert found.by_tenant["default"].entries() == await whole(store)


async def test_line_is_read_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await spend(store, "a")
        found = await rebuilds(store)
        await spend(store, "b")
        await found.record_in(store)
        await found.record_in(store)

        assert await snapshot_lines(store) == [5]
        assert found.by_tenant["default"].entries() == await whole(store)


async def test_sealed_segment_asks_for_snapshot(tmp_path: Path) -> None:
    async with opened(tmp_path, segment_bytes=SMALL_SEGMENT) as store:
        found, news = await rebuilds(store), []
        for number in range(12):
            await spend(store, str(number))
            await found.read_on()
            if found.is_due:
                await found.record_in(store)
                news.append((await rebuilds(store)).read_from)

        assert len(news) > 2
        assert (await rebuilds(store)).read_from == news[-1]
        assert (await rebuilds(store)).by_tenant["default"].lost() == {}


async def test_start_reads_two_segments_of_any_log(tmp_path: Path) -> None:
    async with opened(tmp_path, segment_bytes=SMALL_SEGMENT) as store:
        found = await rebuilds(store)
        for number in range(30):
            await spend(store, str(number))
            await found.read_on()
            if found.is_due:
                await found.record_in(store)

        start = await rebuilds(store)

        assert (await store.head())[0] - start.read_from < 12


async def test_snapshot_of_another_log_is_not_used(tmp_path: Path) -> None:
    async with opened(tmp_path / "one") as one, opened(tmp_path / "other") as other:
        await spend(one, "a", "b")
        await (await rebuilds(one)).record_in(one)
        await spend(other, "c", "d")
        async with aclosing(one.follow(4)) as batches:
            for line in await anext(batches):
                await other.copy(line)

        found = await rebuilds(other)

        assert (await rebuilds(one)).read_from == 4
        assert found.read_from == 0
        assert found.by_tenant["default"].entries() == await whole(other)


async def test_snapshot_of_other_terms_is_not_used(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await spend(store, "a", "b")
        await (await rebuilds(store)).record_in(store)

        assert (await rebuilds(store)).read_from == 4
        assert (await rebuilds(store, mode="backtest")).read_from == 0
        assert (await rebuilds(store, zone="America/New_York")).read_from == 0


async def test_snapshot_in_newer_format_is_not_used(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await spend(store, "a")
        body = {"generation": 0, "mark": "", "sequence": 0, "snapshot": {"version": 2, "sums": "all"}}
        await store.record(event("ledger.checkpointed", body=body, time=START))

        found = await rebuilds(store)

        assert found.read_from == 0
        assert found.by_tenant["default"].entries() == await whole(store)


async def test_incomplete_snapshot_is_not_used(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await spend(store, "a", "b")
        await (await rebuilds(store)).record_in(store)
        _, head = await store.head()
        fields = {
            "version": 1,
            "line": 5,
            "head": head,
            "mode": "paper",
            "zone": "UTC",
            "part": 2,
            "parts": 3,
        }
        body = {"generation": 0, "mark": "", "sequence": 0, "snapshot": fields}
        await store.record(event("ledger.checkpointed", body=body, time=START))

        found = await rebuilds(store)

        assert found.read_from == 4
        assert found.by_tenant["default"].entries() == await whole(store)


async def test_tenant_without_records_skips_snapshot(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await spend(store, "a")
        await (await rebuilds(store)).record_in(store)

        assert (await rebuilds(store, ("default", "new"))).read_from == 2
        await spend(store, "b", tenant="new")
        found = await rebuilds(store, ("default", "new"))
        assert found.read_from == 0
        assert found.by_tenant["new"].entries() == await whole(store, "new")
        assert found.by_tenant["default"].entries() == await whole(store)


async def test_snapshot_has_only_charges_of_its_tenant(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await spend(store, "a", tenant="one")
        await spend(store, "b", tenant="two")
        await (await rebuilds(store, ("one", "two"))).record_in(store)

        records = [entry.record async for entry in store.scan(4)]

        assert [one.tenant_id for one in records if isinstance(one, Event)] == ["one", "two"]
        found = await rebuilds(store, ("one", "two"))
        assert [len(found.by_tenant[name].entries()) for name in ("one", "two")] == [1, 1]


async def test_unknown_kind_after_snapshot_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await spend(store, "a")
        await (await rebuilds(store)).record_in(store)
        await store.record(event("attempt.moved", time=START))

        with pytest.raises(UnknownKindError):
            await rebuilds(store)


async def test_torn_end_after_snapshot_is_set_aside(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await spend(store, "a", "b")
        await (await rebuilds(store)).record_in(store)
        await spend(store, "c")
    path = tmp_path / "log.jsonl"
    raw = await asyncio.to_thread(path.read_bytes)
    await asyncio.to_thread(path.write_bytes, raw[:-40])

    async with opened(tmp_path) as store:
        await store.open()
        found = await rebuilds(store)

        assert found.read_from == 4
        assert found.by_tenant["default"].lost().keys() == {reservation_id("default", "c", 1)}
        assert found.by_tenant["default"].entries() == await whole(store)


async def test_changed_snapshot_refuses_log(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await spend(store, "a", "b")
        await (await rebuilds(store)).record_in(store)
    path = tmp_path / "log.jsonl"
    raw = await asyncio.to_thread(path.read_bytes)
    await asyncio.to_thread(
        path.write_bytes, raw.replace(b'"parts":1', b'"parts":2').replace(b'"mode"', b'"mute"')
    )

    async with opened(tmp_path) as store:
        with pytest.raises(StoreError):
            await store.open()


@pytest.mark.parametrize("is_set_by", ["call", "operator"])
async def test_limit_on_trace_counts_calls_before_start(tmp_path: Path, is_set_by: str) -> None:
    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        assert await asked(platform, *[in_trace(number) for number in range(3)]) == [None] * 3
        # So many others follow that no call of the trace is recent.
        assert await asked(platform, *[call(1000 + number) for number in range(150)]) == [None] * 150
    if is_set_by == "operator":
        of_traces = SetLimit(Limit(ScopeKind.TRACE, ANY, Window.NONE, calls=3))
        await execute_command(FileControlStore(tmp_path), "default", of_traces, by="ann", why="", at=START)

    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        budget = LLMBudget(max_trace_calls=3) if is_set_by == "call" else LLMBudget()
        last = in_trace(3).model_copy(update={"budget": budget})
        assert await asked(platform, last) == [FailureKind.BUDGET_EXHAUSTED]


def in_trace(number: int) -> LLMEnvelope:
    """Return a call of one trace."""
    return call(number).model_copy(update={"trace_id": "T-1"})


async def test_snapshot_above_segment_asks_for_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path, segment_bytes=SMALL_SEGMENT) as store:
        found = await rebuilds(store)
        for number in range(80):
            await store.record(sent(f"open-{number}"))  # without an end, so that the snapshot has each
        await found.read_on()
        assert found.is_due
        await found.record_in(store)

        due = []
        for number in range(40):
            await spend(store, str(number))
            await found.read_on()
            due.append(found.is_due)
            if found.is_due:
                await found.record_in(store)

        assert due[:6] == [False] * 6
        assert 0 < sum(due) < 4


async def test_start_counts_bytes_since_snapshot(tmp_path: Path) -> None:
    async with opened(tmp_path, segment_bytes=SMALL_SEGMENT) as store:
        for number in range(30):
            await store.record(sent(f"open-{number}"))
        await (await rebuilds(store)).record_in(store)

        found = await rebuilds(store)
        await spend(store, "a")
        await found.read_on()
        assert not found.is_due


async def test_followed_log_gets_snapshot_at_end(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        found = await rebuilds(store)
        async with snapshots_on_record(found, store):
            await spend(store, "a")

        assert await snapshot_lines(store) == [3]


async def test_log_that_failed_ends_following(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        found = await rebuilds(store)
        await spend(store, "a")
        async with snapshots_on_record(found, store):
            await store.aclose()

        assert store.on_kept is None
        assert found.read_from == 0


async def test_records_are_kept_only_while_the_log_is_followed(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        found = await rebuilds(store)
        async with snapshots_on_record(found, store):
            assert store.on_kept == found.keep
        assert store.on_kept is None


async def test_kept_record_counts_only_with_the_bytes_of_its_line(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        found = await rebuilds(store)
        await spend(store, "a", "b")
        lines = [line.record for batch in [await anext(store.follow())] for line in batch]
        found.keep(2, ended("a", 9), lines[1])  # its own charge shows that the line is not parsed
        found.keep(4, ended("b", 9), b"of another answer")
        await found.read_on()

        charges = {entry.request.key: entry.charged.nusd for entry in found.by_tenant["default"].entries()}
        assert charges == {"a": 9, "b": 7}


async def test_snapshot_with_kept_records_equals_the_whole_log(tmp_path: Path) -> None:
    async with opened(tmp_path, segment_bytes=SMALL_SEGMENT) as store:
        found = await rebuilds(store)
        async with snapshots_on_record(found, store), asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(spend(store, f"call-{number}"))

        restored = await rebuilds(store)
        assert restored.read_from == 40
        assert sum(entry.charged.nusd for entry in restored.by_tenant["default"].entries()) == 20 * 7
        assert sum(entry.charged.nusd for entry in await whole(store)) == 20 * 7


async def test_closing_after_one_call_does_not_repeat_a_large_snapshot(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        found = await rebuilds(store)
        async with snapshots_on_record(found, store):
            for number in range(100):
                await store.record(sent(f"open-{number}"))  # without an end, so that each is kept singly
        first = await snapshot_lines(store)

        again = await rebuilds(store)
        async with snapshots_on_record(again, store):
            await spend(store, "a")

        assert len(first) == 1
        assert await snapshot_lines(store) == first
        assert (await rebuilds(store)).by_tenant["default"].entries() == await whole(store)
