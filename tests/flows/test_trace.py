"""Everything of a trace is on record: each fill leads back to its bar, and nothing stands without its cause."""

import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from agentic_trading.audit.trace import CallNode, EventNode, TraceTree, why
from agentic_trading.desk.session.report import RunReport
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import Record
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.platform import port_adapters
from tests.flows.sessions import OF_THE_PLATFORM, calls_in, evening, events_in, lines_of, rules, with_faults

CHAIN = [
    "analysis.triggered",
    "call.analysis",
    "analysis.assessed",
    "intent.approved",
    "call.execution",
    "intent.strategy_chosen",
    "order.submitted",
]


@pytest.fixture
async def records(recorded: RunReport) -> AsyncIterator[JsonlRecords]:
    async with aclosing(port_adapters.records_of(recorded.log)) as opened:
        yield opened


async def kept(records: JsonlRecords) -> list[Record]:
    return [entry.record async for entry in records.scan()]


async def test_fills_lead_back_to_triggering_bar(records: JsonlRecords, recorded: RunReport) -> None:
    fills = events_in(await kept(records), "order.filled")

    chains = {fill.id: (await why(records, fill.id)).path for fill in fills}

    assert len(fills) == recorded.fills > 3
    assert all([node.kind for node in path] == [*CHAIN, "order.filled"] for path in chains.values())
    for fill in fills:
        trigger = chains[fill.id][0]
        assert isinstance(trigger, EventNode)
        assert trigger.event.body["bar"]["symbol"] == fill.body["symbol"]
        assert trigger.event.body["bar"]["close_time"] <= fill.body["time"]


async def test_every_record_has_a_cause(records: JsonlRecords) -> None:
    traces = await records.traces(limit=10_000)

    trees = [TraceTree(await records.trace(each.trace_id)) for each in traces]

    assert sum(len(tree.nodes) for tree in trees) > 100
    assert [tree.orphans for tree in trees if tree.orphans] == []
    assert [tree.cycles for tree in trees if tree.cycles] == []
    roots = [[row.node for row in tree.rows() if row.depth == 0] for tree in trees]
    assert all(len(each) == 1 for each in roots)
    assert {root.kind for [root] in roots} <= {"analysis.triggered", "analysis.skipped", *OF_THE_PLATFORM}


async def test_decisions_never_precede_the_cause(records: JsonlRecords) -> None:
    for each in await records.traces(limit=10_000):
        tree = TraceTree(await records.trace(each.trace_id))
        for node in tree.nodes:
            cause = tree.parent(node.id)
            assert cause is None or node.as_of is None or cause.as_of is None or cause.as_of <= node.as_of


async def test_attempts_are_recorded_with_numbers(records: JsonlRecords, recorded: RunReport) -> None:
    attempts = defaultdict(list)
    for one in calls_in(await kept(records)):
        attempts[one.envelope.envelope_id].append(one.result)

    assert sum(map(len, attempts.values())) == recorded.attempts
    for results in attempts.values():
        assert [result.attempt_number for result in results] == list(range(1, len(results) + 1))
        assert not any(result.success and result.actionable for result in results[:-1])
        assert all(result.failure is not None for result in results[:-1])
    assert max(map(len, attempts.values())) > 1


async def test_decision_log_matches_recorded_events(records: JsonlRecords, recorded: RunReport) -> None:
    lines = lines_of(recorded.decision_log.read_bytes())
    everything = await kept(records)
    events = {event.id: event for event in events_in(everything)}
    last = {one.envelope.envelope_id: one for one in calls_in(everything)}

    for line in lines:
        if line["kind"] == "call":
            call = last[line["id"]]
            assert line["request_hash"] == call.envelope.request_hash
            assert line["attempts"] == call.result.attempt_number
        else:
            assert line["body"] == events[line["id"]].body
    decided = {line["id"] for line in lines}
    of_no_decision = {"analysis.skipped", "attempt.dispatched"}
    assert {event.id for event in events.values() if event.kind not in of_no_decision} <= decided


async def test_decision_lines_are_sorted(recorded: RunReport) -> None:
    lines = lines_of(recorded.decision_log.read_bytes())

    order = [(line["as_of"], line["subject"], line["step"]) for line in lines]

    assert order == sorted(order)
    assert len(set(order)) == len(order)


async def test_log_lines_round_trip_as_json(recorded: RunReport) -> None:
    for raw in recorded.log.read_bytes().splitlines():
        fields: dict[str, Any] = json.loads(raw)
        bare = raw.rpartition(b',"seq":')[0] + b"}"
        record = LLMInteraction.from_wire(bare) if "interaction_id" in fields else Event.from_wire(bare)

        assert list(fields)[-3:] == ["seq", "prev", "hash"]
        assert record.wire == bare
        assert type(record).from_wire(record.wire) == record
        if isinstance(record, LLMInteraction):
            assert list(fields)[:4] == ["interaction_id", "envelope", "result", "stored_at"]
            assert record.envelope.is_intact
            assert LLMInteraction.model_validate(fields).envelope == record.envelope


async def test_both_stores_return_the_same_session(recorded: RunReport, records: JsonlRecords) -> None:
    again = await evening(with_faults(rules()), session_id=recorded.session_id)

    on_disk = {
        _id(record): _told(record) for record in await kept(records) if not _is_of_the_platform(record)
    }
    in_memory = {_id(record): _told(record) for record in await again.records()}

    assert on_disk == in_memory


def _is_of_the_platform(record: Record) -> bool:
    """Whether it is what an operator ordered, or the start or end of a run: only a session with a folder has these."""
    return isinstance(record, Event) and record.kind in OF_THE_PLATFORM


def _id(record: Record) -> str:
    return record.interaction_id if isinstance(record, LLMInteraction) else record.id


def _told(record: Record) -> Any:
    """Return a record without how long it really took, and when that really was."""
    if isinstance(record, Event):
        return record
    fields = dict(record.result)
    return record.envelope, record.stored_at, {**fields, "latency_ms": 0, "priced_at": None}


async def test_retried_calls_show_all_attempts(records: JsonlRecords) -> None:
    retried = [one for one in calls_in(await kept(records)) if one.result.attempt_number > 1]

    for one in retried:
        node = TraceTree(await records.trace(one.trace_id)).node(one.interaction_id)
        assert isinstance(node, CallNode)
        assert len(node.attempts) >= one.result.attempt_number
    assert retried
