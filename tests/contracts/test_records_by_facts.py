"""Every promise of the queries by facts: in memory, with the writer, and from another process."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.llm.errors import ConditionError, FailureKind, FailureReason
from agentic_trading.llm.facts import ANY, EVERYTHING, Fact, FactSums, RecordQuery
from agentic_trading.llm.log_line import read_line
from agentic_trading.llm.store import Record, Records
from tests.build import NOW, envelope, event, interaction
from tests.contracts.records_opening import OPENINGS, Opens, live, memory

Source = Callable[[list[Record]], AbstractAsyncContextManager[Records]]


@pytest.fixture(params=OPENINGS, ids=lambda opening: opening.__name__)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    """Return what opens the answers about a log that holds the given records."""
    opening: Opens = request.param
    return lambda records: opening(records, tmp_path)


TIMEOUT = FailureReason(category=FailureKind.TIMEOUT, description="Too slow.", recoverable=True)


def failed(**changes: Any) -> Record:
    """Return an attempt that was sent and failed."""
    return interaction(success=False, failure=TIMEOUT, dispatched_at=NOW, **changes)


def a_log() -> list[Record]:
    """Return a log of two tenants, with attempts and events on two days."""
    day, later = timedelta(days=1), timedelta(microseconds=1)
    return [
        event("bar.closed", trace_id="t-1", time=NOW, body={"symbol": "BTCUSDT"}),
        interaction(trace_id="t-1", agent_id="a", model="m", stored_at=NOW + later, subject="BTCUSDT"),
        failed(trace_id="t-1", agent_id="b", model="m", latency_ms=8000.25, stored_at=NOW + day),
        event("order.denied", trace_id="t-2", tenant_id="acme", time=NOW + day, body={"verdict": "denied"}),
        interaction(
            trace_id="t-2",
            tenant_id="acme",
            agent_id="a",
            model="n",
            provider="p",
            workflow="planning",
            stored_at=NOW + day + later,
        ),
        event("step.failed", trace_id="t-2", time=NOW + 2 * day, body={"reason": {"category": "halted"}}),
    ]


async def seqs(facts: AsyncGenerator[Fact]) -> list[int]:
    return [fact.seq async for fact in facts]


async def test_facts_of_an_attempt_are_those_of_its_record(source: Source) -> None:
    attempt = failed(
        tenant_id="acme",
        agent_id="a",
        model="m",
        provider="p",
        workflow="planning",
        subject="ETHUSDT",
        stored_at=NOW + timedelta(microseconds=7),
        latency_ms=12.345678,
        in_doubt=True,
        input_tokens=3,
        cache_read_tokens=4,
        output_tokens=5,
        cost_nusd=6,
        attempt_number=2,
    )

    async with source([attempt]) as records:
        facts = [fact async for fact in records.select()]

    assert facts == [
        Fact(
            seq=1,
            time=NOW + timedelta(microseconds=7),
            kind="interaction",
            tenant="acme",
            agent="a",
            workflow="planning",
            provider="p",
            model="m",
            subject="ETHUSDT",
            verdict="",
            failure="timeout",
            attempt=2,
            success=False,
            sent=True,
            recorded=False,
            in_doubt=True,
            input_tokens=7,
            output_tokens=5,
            cost_nusd=6,
            latency_ms=12.345678,
        )
    ]


async def test_facts_of_an_event_have_no_attempt(source: Source) -> None:
    told = event("order.denied", time=NOW, body={"verdict": "denied", "reason": {"category": "halted"}})

    async with source([told]) as records:
        facts = [fact async for fact in records.select()]

    assert facts == [
        Fact(
            seq=1,
            time=NOW,
            kind="order.denied",
            tenant="default",
            agent="",
            workflow="",
            provider="",
            model="",
            subject="",
            verdict="denied",
            failure="halted",
            attempt=0,
            success=False,
            sent=False,
            recorded=False,
            in_doubt=False,
            input_tokens=0,
            output_tokens=0,
            cost_nusd=0,
            latency_ms=0.0,
        )
    ]


SELECTED = [
    (EVERYTHING, [1, 2, 3, 4, 5, 6]),
    (RecordQuery(kind=("interaction",)), [2, 3, 5]),
    (RecordQuery(kind=("bar.closed", "step.failed", "no.such")), [1, 6]),
    (RecordQuery(kind=("interaction", "bar.closed")), [1, 2, 3, 5]),
    (RecordQuery(tenant=("acme",)), [4, 5]),
    (RecordQuery(agent=("a",)), [2, 5]),
    (RecordQuery(agent=(ANY,)), [2, 3, 5]),
    (RecordQuery(agent=("",)), [1, 4, 6]),
    (RecordQuery(agent=("", ANY)), [1, 2, 3, 4, 5, 6]),
    (RecordQuery(agent=("nobody",)), []),
    (RecordQuery(workflow=("planning",)), [5]),
    (RecordQuery(provider=("p",)), [5]),
    (RecordQuery(model=("m", "n")), [2, 3, 5]),
    (RecordQuery(subject=("BTCUSDT",)), [1, 2]),
    (RecordQuery(verdict=(ANY,)), [4]),
    (RecordQuery(failure=("timeout",)), [3]),
    (RecordQuery(failure=(ANY,)), [3, 6]),
    (RecordQuery(since=NOW + timedelta(microseconds=1)), [2, 3, 4, 5, 6]),
    (RecordQuery(until=NOW + timedelta(microseconds=1)), [1]),
    (RecordQuery(since=NOW + timedelta(days=1), until=NOW + timedelta(days=2)), [3, 4, 5]),
    (RecordQuery(since=NOW + timedelta(days=2), agent=(ANY,)), []),
    (RecordQuery(trace_id="t-1"), [1, 2, 3]),
    (RecordQuery(trace_id="t-1", kind=("interaction",)), [2, 3]),
    (RecordQuery(trace_id="none"), []),
    (RecordQuery(after=4), [5, 6]),
    (RecordQuery(before=3), [1, 2]),
    (RecordQuery(after=2, before=4), [3]),
    (RecordQuery(where="latency_ms > 8000"), [3]),
    (RecordQuery(where="NOT success"), [3]),
    (RecordQuery(where="success"), [2, 5]),
    (RecordQuery(where="success IS NULL"), [1, 4, 6]),
    (RecordQuery(where="time > '2026-01-03T00:00:00.000000Z'"), [5, 6]),
    (RecordQuery(where="time < '2026-01-03'"), [1, 2]),
    (RecordQuery(where="agent = 'a' OR failure = 'halted' -- or"), [2, 5, 6]),
    (RecordQuery(where="seq = (SELECT max(seq) FROM facts)", kind=("interaction",)), [5]),
    (RecordQuery(where="seq > 2", trace_id="t-1"), [3]),
    (RecordQuery(where="seq > 3", tenant=("default",)), [6]),
]
"""Queries, each with the numbers of the records that it selects from `a_log`."""


@pytest.mark.timeout(60)
async def test_query_selects_records(source: Source) -> None:
    # Without a test for each query, because to write and open the log takes most of the time.
    async with source(a_log()) as records:
        for query, expected in SELECTED:
            await assert_selects(records, query, expected)


async def assert_selects(records: Records, query: RecordQuery, expected: list[int]) -> None:
    """Compare the answers to a query with the numbers of its records."""
    assert await seqs(records.select(query)) == expected, query
    assert await seqs(records.select(query, newest_first=True)) == expected[::-1], query
    assert await seqs(records.select(query, limit=1)) == expected[:1], query
    assert await seqs(records.select(query, newest_first=True, limit=2)) == expected[::-1][:2], query
    assert await seqs(records.select(query, limit=0)) == [], query
    assert await records.count(query) == len(expected), query
    days = await records.sums("day", "agent", query=query)
    assert sum(group.records for group in days) == len(expected), query
    own = [seq for seq in expected if seq in {4, 5}]
    allowed = ([], own) if query.where else [own]
    assert await seqs(records.select(query, tenant="acme")) in allowed, query


async def test_tenant_sees_its_facts_only(source: Source) -> None:
    async with source(a_log()) as records:
        assert await seqs(records.select(tenant="acme")) == [4, 5]
        assert await seqs(records.select(RecordQuery(tenant=("default",)), tenant="acme")) == []
        assert await seqs(records.select(RecordQuery(where="seq > 0 OR 1"), tenant="acme")) == [4, 5]
        assert await seqs(
            records.select(RecordQuery(where="(SELECT count(*) FROM facts) = 2"), tenant="acme")
        ) == [4, 5]
        assert await records.count(tenant="nobody") == 0
        assert [line.seq for line in await records.lines([3, 4], tenant="acme")] == [4]


@pytest.mark.timeout(60)  # a log with a segment for each record is written and read, among others
async def test_facts_of_many_records_come_in_order(source: Source) -> None:
    async with source([event() for _ in range(1_003)]) as records:
        assert await seqs(records.select()) == [*range(1, 1_004)]
        assert await seqs(records.select(newest_first=True)) == [*range(1_003, 0, -1)]


async def test_sums_are_grouped_and_sorted(source: Source) -> None:
    async with source(a_log()) as records:
        assert await records.sums("model", "failure", query=RecordQuery(kind=("interaction",))) == [
            FactSums(("m", ""), records=1, failed=0, input_tokens=100, output_tokens=20, cost_nusd=600_000),
            FactSums(
                ("m", "timeout"), records=1, failed=1, input_tokens=100, output_tokens=20, cost_nusd=600_000
            ),
            FactSums(("n", ""), records=1, failed=0, input_tokens=100, output_tokens=20, cost_nusd=600_000),
        ]
        assert await records.sums() == [
            FactSums((), records=6, failed=2, input_tokens=300, output_tokens=60, cost_nusd=1_800_000)
        ]
        assert [group.key for group in await records.sums("subject")] == [("",), ("BTCUSDT",)]
        assert await records.sums(query=RecordQuery(agent=("nobody",))) == []


@pytest.mark.parametrize(
    "key",
    ["day", "kind", "tenant", "agent", "workflow", "provider", "model", "subject", "verdict", "failure"],
)
async def test_sums_support_every_key(source: Source, key: Any) -> None:
    async with source(a_log()) as records:
        whole = await records.sums(key)
        by_rows = await records.sums(key, query=RecordQuery(where="1"))
        facts = [fact async for fact in records.select()]

    assert whole == by_rows
    found = {group.key[0]: group.records for group in whole}
    values = [fact.time.date().isoformat() if key == "day" else getattr(fact, key) for fact in facts]
    assert found == {value: values.count(value) for value in values}


async def test_unknown_sums_key_is_refused(source: Source) -> None:
    key: Any = "latency_ms"

    async with source([event()]) as records:
        with pytest.raises(ValueError, match=r"cannot sum by latency_ms\. Allowed keys: day, kind, tenant"):
            await records.sums(key)


@pytest.mark.parametrize(
    "query",
    [
        EVERYTHING,
        RecordQuery(since=NOW, until=NOW + timedelta(days=7)),
        RecordQuery(since=NOW - timedelta(seconds=1)),
        RecordQuery(where="1"),
        RecordQuery(subject=("", "BTCUSDT", "ETHUSDT")),
    ],
    ids=str,
)
async def test_spend_of_selected_records_has_the_same_sums(source: Source, query: RecordQuery) -> None:
    log = [
        failed(in_doubt=True, cost_nusd=7, bill_nusd=5),
        interaction(served_from="recorded", cost_nusd=0),
        interaction(cost_nusd=0),
        interaction(cost_nusd=11, agent_id="b", unmetered="no usage"),
        event(),
    ]

    async with source(log) as records:
        (total,) = await records.spend(query=query)
        by_agent = await records.spend("agent", query=query)

    assert (total.attempts, total.failed, total.cost_nusd, total.billed_nusd) == (2, 1, 18, 5)
    assert (total.recorded, total.refused, total.in_doubt, total.in_doubt_nusd) == (1, 1, 1, 7)
    assert (total.unmetered, total.unmetered_nusd) == (1, 11)
    assert (total.input_tokens, total.output_tokens) == (200, 40)
    assert [(spend.key, spend.cost_nusd) for spend in by_agent] == [(("analyst-1",), 7), (("b",), 11)]


async def test_spend_is_limited_to_selected_records(source: Source) -> None:
    async with source(a_log()) as records:
        (spend,) = await records.spend("agent", query=RecordQuery(failure=("timeout",)))
        assert (spend.key, spend.attempts, spend.failed) == (("b",), 1, 1)
        assert await records.spend(query=RecordQuery(kind=("bar.closed",))) == []


async def test_traces_of_selected_records_are_whole(source: Source) -> None:
    async with source(a_log()) as records:
        first, second = await records.traces()
        assert [first.trace_id, second.trace_id] == ["t-2", "t-1"]
        assert await records.traces(query=RecordQuery(failure=("timeout",))) == [second]
        assert await records.traces(query=RecordQuery(trace_id="t-2")) == [first]
        assert await records.traces(query=RecordQuery(where="agent = 'a'")) == [first, second]
        assert await records.traces(1, query=RecordQuery(agent=("a",))) == [first]
        assert await records.traces(query=RecordQuery(agent=("nobody",))) == []
        assert (second.attempts, second.events, second.cost_nusd) == (2, 1, 1_200_000)


@pytest.mark.parametrize(
    "query",
    [EVERYTHING, RecordQuery(after=0, where="1"), RecordQuery(since=NOW), RecordQuery(kind=("interaction",))],
    ids=str,
)
async def test_latencies_are_within_bounds(source: Source, query: RecordQuery) -> None:
    slow = [interaction(model="slow", latency_ms=float(number)) for number in range(5, 201, 5)]
    quick = [interaction(model="quick", latency_ms=0.0) for _ in range(3)]
    unsent = [interaction(model="slow", latency_ms=9e9, cost_nusd=0)]

    async with source([*slow, *quick, *unsent]) as records:
        first, second = await records.latencies(query)

    assert (first.model, first.attempts, first.p50_ms, first.p99_ms) == ("quick", 3, 0.0, 0.0)
    assert (second.model, second.attempts) == ("slow", 40)
    assert second.p50_ms == pytest.approx(100, rel=0.045)
    assert second.p95_ms == pytest.approx(190, rel=0.045)
    assert second.p99_ms == pytest.approx(200, rel=0.045)


async def test_latencies_of_selected_records_only(source: Source) -> None:
    async with source(a_log()) as records:
        (of_m,) = await records.latencies(RecordQuery(agent=("b",)))
        assert of_m.p50_ms == pytest.approx(8000.25, rel=0.045)
        assert [one.model for one in await records.latencies(RecordQuery(model=("n",)))] == ["n"]
        assert await records.latencies(RecordQuery(model=("none",))) == []
        assert [one.model for one in await records.latencies(tenant="acme")] == ["n"]


async def test_effects_follow_from_a_cause_within_its_chain(source: Source) -> None:
    asked = envelope(trace_id="t", model="m", causation_id="bar")
    answered = interaction(envelope=asked)
    log: list[Record] = [
        event(id="bar", trace_id="t"),
        answered,
        event("intent.made", id="intent", trace_id="t", causation_id=asked.envelope_id),
        event("order.submitted", id="order", trace_id="t", causation_id="intent"),
        event("order.submitted", id="other", trace_id="t", causation_id="bar"),
        event("order.submitted", id="far", trace_id="u", causation_id="intent"),
        event("note.made", id="note", trace_id="t", causation_id=answered.interaction_id),
        event("loop.made", id="loop", trace_id="t", causation_id="loop"),
    ]
    orders = RecordQuery(kind=("order.submitted",))

    async with source(log) as records:
        assert await seqs(records.caused_by(RecordQuery(model=("m",)))) == [3, 4, 7]
        assert await seqs(records.caused_by(RecordQuery(model=("m",)), orders)) == [4]
        assert await seqs(records.caused_by(RecordQuery(kind=("bar.closed",)), orders)) == [4, 5]
        assert await seqs(
            records.caused_by(RecordQuery(where="model = 'm'"), RecordQuery(where="seq > 4"))
        ) == [7]
        assert await seqs(records.caused_by(RecordQuery(kind=("loop.made",)))) == [8]
        assert await seqs(records.caused_by(RecordQuery(kind=("note.made",)))) == []
        assert await seqs(records.caused_by(RecordQuery(model=("m",)), tenant="acme")) == []


async def test_lines_are_those_of_the_log(source: Source) -> None:
    told = event()

    async with source([event(), told]) as records:
        [line] = await records.lines([2])
        assert (line.seq, line.record, read_line(line.line)) == (2, told.wire, line)
        assert [line.seq for line in await records.lines([3, 2, -1, 0, 1, 2])] == [1, 2]
        assert await records.lines([]) == []


UUIDS = ("12345678-1234-7234-8000-000000000001", "12345678-1234-7234-8000-000000000002")


async def test_ids_with_equal_beginnings_are_kept_apart(source: Source) -> None:
    one, two = UUIDS
    calls = [interaction(envelope=envelope(envelope_id=each, trace_id=each), cost_nusd=7) for each in UUIDS]
    log: list[Record] = [
        event("a", id=one, trace_id=one),
        event("a", id=two, trace_id=two, causation_id=one),
        *calls,
        event("b", trace_id=two, causation_id=two),
    ]

    async with source(log) as records:
        assert [await records.find(each) for each in UUIDS] == log[:2]
        assert await records.trace(one) == [log[0], log[2]]
        assert await records.by_envelope(two) == [log[3]]
        assert await records.count(RecordQuery(trace_id=one)) == 2
        assert [(chain.trace_id, chain.attempts, chain.events) for chain in await records.traces()] == [
            (two, 1, 2), (one, 1, 1),
        ]  # fmt: skip
        assert [chain.trace_id for chain in await records.traces(query=RecordQuery(kind=("b",)))] == [two]
        assert await records.ids_starting("12345678-1234") == [one, two]
        assert await records.ids_starting("12345678-1234", of="trace", limit=1) == [one]
        assert await records.ids_starting(two[:-1], of="trace") == [one, two]
        assert await records.ids_starting(two) == [two]
        assert await seqs(records.caused_by(RecordQuery(kind=("a",)))) == [5]


async def test_uuids_are_found_by_any_prefix(source: Source) -> None:
    ids = sorted([*UUIDS, "fffffff0-0000-4000-8000-000000000000", "0000000a-0000-5000-8000-000000000000"])
    others = ["ffff", "12345678-1234-7234-8000-00000000000A", "123"]

    async with source([event(id=each) for each in [*ids, *others]]) as records:
        known = sorted([*ids, *others])
        for prefix in (
            "",
            "f",
            "ffff",
            "1234",
            "12345678-",
            "12345678-1234-7",
            "12345678-1234-7234-8000-00000000000",
            *ids,
        ):
            assert await records.ids_starting(prefix) == [each for each in known if each.startswith(prefix)]
        assert await records.ids_starting("", limit=2) == known[:2]
        assert await records.ids_starting(f"{ids[0]}0") == []


REFUSED = [
    "1) UNION SELECT seq FROM records WHERE (1",
    "1) UNION SELECT seq FROM facts WHERE (1",
    "1) UNION SELECT seq FROM facts /*",
    "seq IN (SELECT seq FROM records)",
    "seq IN (SELECT seq FROM main.records)",
    "seq IN (WITH facts AS (SELECT seq FROM main.records) SELECT seq FROM facts)",
    "seq IN (SELECT number FROM names)",
    "seq IN (SELECT rowid FROM sqlite_schema)",
    "seq IN (SELECT rowid FROM sqlite_temp_schema)",
    "seq IN (SELECT seq FROM pragma_table_list)",
    "1); DROP TABLE records; --",
    "1; SELECT 1",
    "load_extension('x')",
    "length(randomblob(1000000000))",
    "length(hex(agent) || printf('%.*c', 1000000000, 'x'))",
    "seq = (WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c)",
    f"(SELECT count(*) FROM {', '.join(f'facts a{number}' for number in range(40))}) > 0",  # noqa: S608 - refused
    "(SELECT count(*) FROM records) > 0",
    "(SELECT count(*) FROM main.records) > 0",
    "seq IN (WITH facts AS (SELECT 6 AS seq FROM main.records) SELECT seq FROM facts)",
    "no_such_field = 1",
    "trace_id = 't-1'",
    "agent =",
    " ",
    "seq = ?",
    "seq = :tenant",
    "agent = '\ud800'",
    "agent = '\0'",
]


@pytest.mark.timeout(60)
async def test_condition_over_anything_else_is_refused(source: Source) -> None:
    assert issubclass(ConditionError, ValueError)
    # Without a test for each condition, because to write and open the log takes most of the time.
    async with source(a_log()) as records:
        for where in REFUSED:
            query = replace(EVERYTHING, where=where)
            for asked in (
                records.count(query, tenant="acme"),
                seqs(records.select(query)),
                seqs(records.caused_by(EVERYTHING, query)),
            ):
                assert "Write one SQL condition over seq, time, kind" in await refusal(asked), where
            assert await records.count() == 6


async def refusal(asked: Awaitable[object]) -> str:
    """Return the message with which a condition is refused, or an empty text."""
    try:
        await asked
    except ConditionError as e:
        return str(e)
    return ""


async def test_condition_is_checked_on_an_empty_log(source: Source) -> None:
    async with source([]) as records:
        with pytest.raises(ConditionError, match="no such column: absent"):
            await records.sums("agent", query=RecordQuery(where="absent"))


@pytest.mark.parametrize("opens", [memory, live], ids=lambda opening: opening.__name__)
async def test_empty_log_has_no_facts(opens: Opens, tmp_path: Path) -> None:
    async with opens([], tmp_path) as records:
        assert await seqs(records.select()) == []
        assert await seqs(records.caused_by(EVERYTHING)) == []
        assert await records.count(RecordQuery(where="cost_nusd > 0")) == 0
        assert await records.sums("agent") == await records.latencies() == []
        assert await records.lines([1]) == []


async def test_half_a_character_is_in_no_id(source: Source) -> None:
    async with source(a_log()) as records:
        assert await records.ids_starting("\ud800") == []
        assert await records.trace("\ud800") == []
        assert await records.count(RecordQuery(agent=("\ud800",), trace_id="\ud800")) == 0


async def test_times_before_1970_are_selected(source: Source) -> None:
    early = datetime(1969, 12, 31, 23, 59, 59, 5, tzinfo=UTC)

    async with source([event(time=early), event(time=NOW)]) as records:
        (first,) = [fact async for fact in records.select(RecordQuery(until=NOW))]
        assert first.time == early
        assert [group.key for group in await records.sums("day")] == [("1969-12-31",), ("2026-01-02",)]
        assert [group.key for group in await records.sums("day", "subject")] == [
            ("1969-12-31", "BTCUSDT"), ("2026-01-02", "BTCUSDT"),
        ]  # fmt: skip
        assert await seqs(records.select(RecordQuery(where="time = '1969-12-31T23:59:59.000005Z'"))) == [1]
