"""What every answer about a log promises: in memory, beside the writer, and from another process."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.llm import JsonFileInteractionStore, MemoryInteractionStore
from agentic_trading.llm.store import Record, Records, Spend, TraceSummary
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from tests.build import NOW, envelope, event, interaction
from tests.contracts.records_opening import OPENINGS, Opens

Source = Callable[[list[Record]], AbstractAsyncContextManager[Records]]


@pytest.fixture(params=OPENINGS, ids=lambda opening: opening.__name__)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    """Return what opens the answers about a log that holds the given records."""
    opening: Opens = request.param
    return lambda records: opening(records, tmp_path)


def at(hour: int) -> dict[str, Any]:
    """Return when an interaction was stored: so many hours into 2 January 2026, UTC."""
    return {"stored_at": datetime(2026, 1, 2 + hour // 24, hour % 24, tzinfo=UTC)}


async def test_record_is_found_by_id(source: Source) -> None:
    answered, told = interaction(), event()

    async with source([event(), answered, told, interaction()]) as records:
        assert await records.find(answered.interaction_id) == answered
        assert await records.find(told.id) == told
        assert await records.find(answered.envelope.envelope_id) is None
        assert await records.find("") is None


async def test_trace_is_complete_and_ordered(source: Source) -> None:
    chain: list[Record] = [
        event(trace_id="a"),
        interaction(trace_id="a"),
        event(trace_id="a"),
        interaction(trace_id="a"),
    ]
    others: list[Record] = [event(trace_id="b"), interaction(trace_id="b")]

    async with source([chain[0], others[0], chain[1], chain[2], others[1], chain[3]]) as records:
        assert await records.trace("a") == chain
        assert await records.trace("b") == others
        assert await records.trace("c") == []


async def test_envelope_attempts_come_oldest_first(source: Source) -> None:
    asked = interaction().envelope
    attempts = [interaction(envelope=asked, attempt_number=number) for number in (1, 2)]

    async with source([attempts[0], interaction(), attempts[1]]) as records:
        assert await records.by_envelope(asked.envelope_id) == attempts
        assert await records.by_envelope("") == []


async def test_request_attempts_are_separated_by_occurrence(source: Source) -> None:
    first = interaction(occurrence=0)
    again = interaction(occurrence=1)
    retried = interaction(envelope=first.envelope, attempt_number=2)
    other = interaction(instructions="Something else.")
    key = first.envelope.request_hash

    async with source([first, again, retried, other, event()]) as records:
        assert again.envelope.request_hash == key
        assert [one async for one in records.by_request(key, 0)] == [first, retried]
        assert [one async for one in records.by_request(key, 1)] == [again]
        assert [one async for one in records.by_request(key, 2)] == []


async def test_only_sent_attempts_at_a_request_are_found(source: Source) -> None:
    attempts: list[Record] = [
        interaction(success=False, dispatched_at=None, cost_nusd=0),
        interaction(dispatched_at=NOW),
        interaction(served_from="recorded", dispatched_at=NOW, cost_nusd=0, first_cost_nusd=5),
        interaction(dispatched_at=NOW),
    ]

    async with source(attempts) as records:
        found = [one async for one in records.by_request(interaction().envelope.request_hash, 0)]

    assert found == [attempts[1], attempts[3]]


async def test_all_attempts_at_a_request_are_found_in_order(source: Source) -> None:
    attempts: list[Record] = [interaction() for _ in range(50)]

    async with source(attempts) as records:
        assert [one async for one in records.by_request(interaction().envelope.request_hash, 0)] == attempts


async def test_spend_is_summed_by_requested_keys(source: Source) -> None:
    log: list[Record] = [
        interaction(agent_id="b", cost_nusd=5, input_tokens=1, output_tokens=2, **at(0)),
        interaction(agent_id="a", cost_nusd=7, input_tokens=10, output_tokens=20, success=False, **at(23)),
        interaction(agent_id="a", cost_nusd=11, input_tokens=100, output_tokens=200, **at(24)),
        interaction(agent_id="a", cost_nusd=13, input_tokens=1000, output_tokens=2000, **at(25)),
        event(),
    ]

    async with source(log) as records:
        assert await records.spend("agent") == [
            Spend(("a",), attempts=3, failed=1, input_tokens=1110, output_tokens=2220, cost_nusd=31),
            Spend(("b",), attempts=1, failed=0, input_tokens=1, output_tokens=2, cost_nusd=5),
        ]
        assert [spend.key for spend in await records.spend("day", "agent")] == [
            ("2026-01-02", "a"),
            ("2026-01-02", "b"),
            ("2026-01-03", "a"),
        ]
        assert await records.spend() == [
            Spend((), attempts=4, failed=1, input_tokens=1111, output_tokens=2222, cost_nusd=36)
        ]


async def test_spend_counts_cached_tokens_as_input(source: Source) -> None:
    attempt = interaction(
        input_tokens=1,
        cache_read_tokens=10,
        cache_write_5m_tokens=100,
        cache_write_1h_tokens=1000,
        output_tokens=5,
    )

    async with source([attempt]) as records:
        (total,) = await records.spend()

    assert (total.input_tokens, total.output_tokens) == (1111, 5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("agent", "analyst-1"),
        ("model", "served"),
        ("workflow", "execution"),
        ("day", "2026-01-02"),
        ("tenant", "fund"),
        ("provider", "rules"),
    ],
)
async def test_spend_supports_every_key(source: Source, key: Any, value: str) -> None:
    attempt = interaction(
        workflow="execution",
        tenant_id="fund",
        provider="rules",
        envelope_id="e",
        agent_id="analyst-1",
        model="served",
    )

    async with source([attempt]) as records:
        assert [spend.key for spend in await records.spend(key)] == [(value,)]


async def test_unknown_spend_key_is_refused(source: Source) -> None:
    key: Any = "agent; DROP TABLE records"

    async with source([interaction()]) as records:
        with pytest.raises(
            ValueError, match=r"cannot sum by agent; DROP TABLE records\. Allowed keys: agent, model"
        ):
            await records.spend(key)


async def test_recently_active_traces_come_first(source: Source) -> None:
    log: list[Record] = [
        event(trace_id="a", time=at(1)["stored_at"]),
        interaction(trace_id="b", subject="ETHUSDT", cost_nusd=3, **at(2)),
        interaction(trace_id="a", subject="BTCUSDT", cost_nusd=5, **at(3)),
        interaction(trace_id="a", subject="BTCUSDT", cost_nusd=7, **at(4)),
        event(trace_id="c", time=at(5)["stored_at"], body={"subject": "SOLUSDT"}),
        event(trace_id="b", time=at(6)["stored_at"]),
    ]

    async with source(log) as records:
        b, c, a = await records.traces()
        assert b == TraceSummary("b", "2026-01-02T02:00:00Z", "2026-01-02T06:00:00Z", 1, 1, 3, "ETHUSDT")
        assert c == TraceSummary("c", "2026-01-02T05:00:00Z", "2026-01-02T05:00:00Z", 0, 1, 0, "SOLUSDT")
        assert a == TraceSummary("a", "2026-01-02T01:00:00Z", "2026-01-02T04:00:00Z", 2, 1, 12, "BTCUSDT")
        assert await records.traces(limit=2) == [b, c]
        assert await records.traces(limit=0) == []
        assert await records.traces(with_calls=True) == [b, a]
        assert await records.traces(limit=1, with_calls=True) == [b]


async def test_file_records_follow_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    first, second = interaction(trace_id="a"), interaction(trace_id="a")

    async with aclosing(JsonFileInteractionStore(path)) as store, aclosing(JsonlRecords(path)) as reader:
        await store.store(first)
        assert await reader.trace("a") == await store.records.trace("a") == [first]
        await store.store(second)
        assert await reader.trace("a") == await store.records.trace("a") == [first, second]


async def test_memory_records_follow_the_log() -> None:
    store = MemoryInteractionStore()
    await store.store(interaction(cost_nusd=1))
    assert [spend.cost_nusd for spend in await store.records.spend()] == [1]

    await store.store(interaction(cost_nusd=2))

    assert [spend.cost_nusd for spend in await store.records.spend()] == [3]


async def test_log_of_events_has_no_spend(source: Source) -> None:
    async with source([event()]) as records:
        assert await records.spend() == []
        assert await records.spend("agent") == []


async def test_ids_are_found_by_prefix(source: Source) -> None:
    asked = interaction(envelope=envelope(envelope_id="prefix-b", trace_id="trace-1"))
    told = event(id="prefix-a", trace_id="trace-2")

    async with source([asked, told, event(id="prefiy", trace_id="trace-2"), event(id="PREFIX-a")]) as records:
        assert await records.ids_starting("prefix") == ["prefix-a", "prefix-b"]
        assert await records.ids_starting("prefix", limit=1) == ["prefix-a"]
        assert await records.ids_starting(asked.interaction_id[:8]) == [asked.interaction_id]
        assert await records.ids_starting("trace-", of="trace") == ["trace-1", "trace-2"]
        assert await records.ids_starting("prefi%") == []
