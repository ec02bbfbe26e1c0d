"""A selection of a log is read without its other lines, and a scan begins in the segment of its first line."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from agentic_trading.llm import Durability, JsonFileInteractionStore, MemoryInteractionStore
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.facts import EVERYTHING, RecordQuery
from agentic_trading.llm.store import LogEntry
from agentic_trading.llm.stores.jsonl.reader import START, LogReader
from agentic_trading.llm.stores.jsonl.segments import LogFiles
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.llm.stores.memory import MemoryRecords
from tests.build import event, interaction
from tests.llm.stores.jsonl_logs import blank_lines, written

SELECTIONS = {
    "everything": EVERYTHING,
    "a kind": RecordQuery(kind=("order.denied",)),
    "later lines": RecordQuery(after=200),
    "a kind in later lines": RecordQuery(kind=("interaction",), after=3),
    "nothing": RecordQuery(kind=("no.such_kind",)),
}


async def filled(store: JsonFileInteractionStore | MemoryInteractionStore) -> list[LogEntry]:
    """Write records of two tenants and three kinds, and return their entries."""
    for number in range(90):
        tenant = ("default", "acme")[number % 2]
        await store.record(event("bar.closed", id=f"bar-{number}", tenant_id=tenant))
        await store.store(interaction(interaction_id=f"call-{number}", tenant_id=tenant))
        await store.record(event("order.denied", id=f"order-{number}", tenant_id=tenant))
    return [entry async for entry in store.scan()]


async def entries(
    records: JsonlRecords | MemoryRecords, query: RecordQuery, tenant: str | None = None
) -> list[LogEntry]:
    """Return the entries of a selection."""
    async with aclosing(records.entries(query, tenant=tenant)) as found:
        return [entry async for entry in found]


@pytest.mark.parametrize("tenant", [None, "acme"])
@pytest.mark.parametrize("query", SELECTIONS.values(), ids=SELECTIONS)
async def test_entries_are_those_of_the_selected_facts(
    query: RecordQuery, tenant: str | None, tmp_path: Path
) -> None:
    in_memory = MemoryInteractionStore()
    in_file = JsonFileInteractionStore(
        tmp_path / "log.jsonl", segment_bytes=1 << 16, durability=Durability.RELAXED
    )
    async with aclosing(in_file):
        for store in (in_memory, in_file):
            whole = await filled(store)
            wanted = {fact.seq async for fact in store.records.select(query, tenant=tenant)}

            found = await entries(store.records, query, tenant)

            assert found == [entry for entry in whole if entry.seq in wanted]


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_newest_lines_are_read_in_reverse_order(tenant: str | None, tmp_path: Path) -> None:
    store = JsonFileInteractionStore(
        tmp_path / "log.jsonl", segment_bytes=1 << 16, durability=Durability.RELAXED
    )
    async with aclosing(store):
        whole = [line.seq for line in await filled(store)]
        own = [fact.seq async for fact in store.records.select(tenant=tenant)]

        for limit in (None, 260, 2, 1, 0):
            lines = store.records.read(lambda one: one.seq, newest_first=True, limit=limit, tenant=tenant)
            async with aclosing(lines):
                assert [seq async for seq in lines] == own[::-1][:limit]

        assert [seq async for seq in store.records.read(lambda one: one.seq)] == whole


async def test_log_without_lines_has_no_entries(tmp_path: Path) -> None:
    async with aclosing(JsonFileInteractionStore(tmp_path / "log.jsonl")) as store:
        assert await entries(store.records, EVERYTHING) == []


async def test_lines_outside_a_selection_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    events = await asyncio.to_thread(written, path, 6)
    async with aclosing(JsonlRecords(path)) as records:
        assert await records.count() == 6
        await asyncio.to_thread(blank_lines, path, but=[5, 6])

        found = await entries(records, RecordQuery(after=4))

        assert [entry.record for entry in found] == events[4:]
        with pytest.raises(StoreError, match=r"log\.jsonl:4: it is not the line that was indexed"):
            await entries(records, RecordQuery(after=3))


async def of_segments(path: Path, *, count: int = 4) -> list[LogEntry]:
    """Write a log with a segment for each line but the last, and return its entries."""
    async with aclosing(JsonFileInteractionStore(path, segment_bytes=1)) as store:
        for number in range(count):
            await store.record(event(id=str(number)))
        return [entry async for entry in store.scan()]


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4, 9])
async def test_scan_yields_the_lines_after_a_line(after: int, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    whole = await of_segments(path)

    async with aclosing(JsonlRecords(path)) as records:
        assert [entry async for entry in records.scan(after)] == whole[after:]


async def test_scan_does_not_read_segments_before_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    whole = await of_segments(path)
    LogFiles(path).sealed(1).unlink()

    async with aclosing(JsonlRecords(path)) as records:
        assert [entry async for entry in records.scan(2)] == whole[2:]
        with pytest.raises(StoreError, match="log"):
            assert [entry async for entry in records.scan()]


async def test_sealed_segment_without_its_name_yet_is_read_as_the_active_one(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    async with aclosing(JsonFileInteractionStore(path, segment_bytes=1)) as store:
        await store.record(event(id="a"))
    sealed = LogFiles(path).sealed(1)
    if sealed.exists():
        sealed.rename(path)

    assert LogReader(path).segment_start(1) == START
    async with aclosing(JsonlRecords(path)) as records:
        assert [entry async for entry in records.scan(1)] == []
