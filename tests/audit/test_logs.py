"""The chains of several logs are read as if they were one log."""

from pathlib import Path

import pytest

from agentic_trading.audit.logs import MergedRecords, logs_at
from agentic_trading.llm import LLMInteraction, MemoryInteractionStore
from agentic_trading.llm.facts import RecordQuery
from agentic_trading.llm.store import Record
from tests.audit.reading import call, desk, step, write
from tests.contracts.records_opening import put

COPY = call(1, envelope_id="copied", trace_id="shared", subject="S")
FIRST: list[Record] = [
    step("bar.closed", 0, id="bar-1", trace_id="shared", body={}),
    COPY,
    step("order.filled", 4, id="fill-1", trace_id="shared", body={}),
    step("bar.closed", 9, id="bar-2", trace_id="of the first"),
]
SECOND: list[Record] = [
    COPY,
    call(3, envelope_id="second", trace_id="shared", cost_nusd=7),
    step("bar.closed", 8, id="bar-3", trace_id="of the second"),
    step("order.closed", 12, id="close-1", trace_id="shared", body={}),
]


@pytest.fixture
async def merged() -> MergedRecords:
    stores = MemoryInteractionStore(), MemoryInteractionStore()
    for store, records in zip(stores, (FIRST, SECOND), strict=True):
        await put(store, records)
    return MergedRecords([store.records for store in stores])


def id_of(record: Record | None) -> str:
    return record.envelope.envelope_id if isinstance(record, LLMInteraction) else record.id if record else ""


async def test_chain_has_each_record_once_by_time(merged: MergedRecords) -> None:
    chain = await merged.trace("shared")

    assert [id_of(record) for record in chain] == ["bar-1", "copied", "second", "fill-1", "close-1"]
    assert len(await merged.by_envelope("copied")) == 1


async def test_ids_of_all_logs_are_found(merged: MergedRecords) -> None:
    assert [id_of(await merged.find(name)) for name in ("bar-1", "bar-3", "bar-9")] == ["bar-1", "bar-3", ""]
    assert await merged.ids_starting("bar-") == ["bar-1", "bar-2", "bar-3"]
    assert await merged.ids_starting("bar-", limit=2) == ["bar-1", "bar-2"]
    assert await merged.ids_starting("of the", of="trace") == ["of the first", "of the second"]


async def test_summary_of_a_chain_covers_all_logs(merged: MergedRecords) -> None:
    chains = await merged.traces()
    filled = await merged.traces(query=RecordQuery(kind=("order.filled",)))

    assert [chain.trace_id for chain in chains] == ["shared", "of the first", "of the second"]
    assert filled == chains[:1]
    assert (chains[0].attempts, chains[0].events, chains[0].subject) == (2, 3, "S")
    assert chains[0].cost_nusd == COPY.result.cost_nusd + 7 if isinstance(COPY, LLMInteraction) else False
    assert await merged.traces(1, with_calls=True) == chains[:1]
    assert await merged.traces(2) == chains[:2]


async def test_one_log_answers_as_it_does_alone() -> None:
    store = MemoryInteractionStore()
    await put(store, [*FIRST, *desk()])
    alone = MergedRecords([store.records])

    assert await alone.traces(3, with_calls=True) == await store.records.traces(3, with_calls=True)
    assert await alone.trace("shared") == await store.records.trace("shared")
    assert await alone.unmatched() == await store.records.unmatched()


def test_folder_has_the_logs_of_its_sessions(tmp_path: Path) -> None:
    logs = [write(tmp_path / name / "interactions.jsonl", step("bar.closed")) for name in ("b", "a")]
    named = write(tmp_path / "own.jsonl", step("bar.closed"))
    (tmp_path / "c").mkdir()

    assert logs_at(tmp_path) == sorted(logs)
    assert logs_at(tmp_path / "a") == logs_at(logs[1]) == [logs[1]]
    assert logs_at(named) == [named]
    assert [logs_at(tmp_path / name) for name in ("c", "nowhere", "n" * 300)] == [[], [], []]


def test_log_between_the_names_of_a_rotation_is_found(tmp_path: Path) -> None:
    log = write(tmp_path / "interactions.jsonl", *desk(), segment_bytes=1)
    log.unlink()

    assert logs_at(tmp_path) == [log]
