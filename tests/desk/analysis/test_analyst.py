"""The analyst at the closes of its decision timeframe."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import orjson
import pytest

from agentic_trading.client.gateway import GatewayReply
from agentic_trading.clock import SimClock
from agentic_trading.desk.analysis.analyst import CmtAnalyst
from agentic_trading.desk.analysis.assessment import Assessment, Verdict
from agentic_trading.desk.analysis.portfolio_context import TrackRecord
from agentic_trading.desk.analysis.rules import cmt_assessment_rule
from agentic_trading.desk.exchange import Position
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.market.snapshot import MarketSnapshot, MarketView
from agentic_trading.desk.market.triggers import Skip, SkipReason
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind, FailureReason, LookAheadError, NoDecision
from agentic_trading.llm.limits import RetryPolicy
from tests.build import interaction
from tests.desk.analysis.build import Desk, hours, market

REASON = FailureReason(category=FailureKind.BUDGET_EXHAUSTED, description="the day's budget is spent")


@pytest.fixture(autouse=True, scope="module")
def first_bar() -> Bar:
    """Return the first five minutes of the sample, read before any loop runs."""
    hours()
    return load_sample("btcusdt-5m")[0]


def by_rules(envelope: LLMEnvelope) -> GatewayReply:
    """Answer as a worker with the rules provider would."""
    text = cmt_assessment_rule(envelope)
    return interaction(envelope=envelope, raw_output=text, parsed_output=orjson.loads(text))


def failed(envelope: LLMEnvelope) -> GatewayReply:
    """Answer with an attempt that ran out of time."""
    reason = FailureReason(category=FailureKind.TIMEOUT, description="no answer in 60 s")
    return interaction(envelope=envelope, success=False, failure=reason, parsed_output={}, raw_output="")


def degraded(envelope: LLMEnvelope) -> GatewayReply:
    """Answer with an attempt whose text could not be read."""
    return interaction(envelope=envelope, validation_passed=False, parsed_output={}, raw_output="hold")


def undelivered(envelope: LLMEnvelope) -> GatewayReply:
    """Answer that the call was not made."""
    return NoDecision(reason=REASON, envelope_id=envelope.envelope_id)


def analyst(
    desk: Desk, clock: SimClock, *, session_id: str = "session-1", retry_policy: RetryPolicy | None = None
) -> CmtAnalyst:
    """Return an analyst that has not asked anything yet."""
    return CmtAnalyst(
        desk,
        clock,
        session_id=session_id,
        provider=LLMProvider.RULES,
        model="rules-1",
        retry_policy=retry_policy,
    )


async def walk(
    desk: Desk,
    snapshots: Sequence[MarketSnapshot],
    *,
    session_id: str = "session-1",
    after: tuple[MarketSnapshot, datetime, TrackRecord | None] | None = None,
) -> CmtAnalyst:
    """Show one analyst a stretch of the market; `after` is what it remembers of the time before."""
    clock = SimClock(snapshots[0].as_of)
    agent = analyst(desk, clock, session_id=session_id)
    if after:
        agent.remember(after[0], assessed_at=after[1], track=after[2])
    for snapshot in snapshots:
        clock.advance_to(snapshot.as_of)
        await agent.consider(snapshot)
    return agent


async def considered(
    desk: Desk, snapshot: MarketSnapshot | None = None, **changes: Any
) -> Assessment | NoDecision | Skip:
    """Return what a fresh analyst makes of a snapshot at its close."""
    seen = snapshot or market()
    return await analyst(desk, SimClock(seen.as_of)).consider(seen, **changes)


async def test_trigger_causes_call_and_assessment() -> None:
    desk = Desk(by_rules)

    outcome = await considered(desk)

    assert isinstance(outcome, Assessment)
    assert len(desk.asked) == 1
    assert desk.kinds() == ["analysis.triggered", "analysis.assessed"]
    assert Assessment.model_validate(desk.events[1].body) == outcome


async def test_steps_link_causes_within_single_trace() -> None:
    desk = Desk(by_rules)

    outcome = await considered(desk, cause="bar-1")

    assert isinstance(outcome, Assessment)
    trigger, assessment = desk.events
    envelope = desk.asked[0]
    assert trigger.causation_id == "bar-1"
    assert envelope.causation_id == trigger.id
    assert assessment.causation_id == outcome.interaction_id
    assert assessment.id == outcome.assessment_id
    assert {trigger.trace_id, envelope.trace_id, assessment.trace_id} == {outcome.trace_id}
    assert outcome.request_hash == envelope.request_hash


async def test_trigger_event_contains_decision_bar() -> None:
    desk = Desk(by_rules)

    await considered(desk)

    body = desk.events[0].body
    assert body["kind"] == "thesis_due"
    assert (body["symbol"], body["step"]) == ("BTCUSDT", "cmt")
    assert body["bar"]["timeframe"] == "1h"
    assert body["bar"]["close_time"] == "2023-03-25T01:00:00Z"
    assert (body["bar"]["parts"], body["bar"]["expected"]) == (12, 12)
    assert body["last_close"] == "27556.35"


async def test_trigger_reports_incomplete_bar() -> None:
    desk = Desk(by_rules)

    holed = next(now for now in hours() if not now.frames[now.decision].last.complete)
    await analyst(desk, SimClock(holed.as_of)).consider(holed)

    bar = desk.events[0].body["bar"]
    assert bar["close_time"] == "2023-03-24T13:00:00Z"
    assert (bar["parts"], bar["expected"]) == (8, 12)


async def test_question_deadline_is_five_minutes() -> None:
    desk = Desk(by_rules)

    await considered(desk)

    assert desk.asked[0].deadline == market().as_of + timedelta(minutes=5)


@pytest.mark.parametrize(("attempt_s", "waits_s"), [(400, 400), (20, 300)])
async def test_deadline_covers_longer_attempt_timeout(attempt_s: float, waits_s: int) -> None:
    desk, policy = Desk(by_rules), RetryPolicy(attempt_timeout_s=attempt_s)
    clock = SimClock(market().as_of)
    patient = analyst(desk, clock, retry_policy=policy)

    await patient.consider(market())

    assert desk.asked[0].retry_policy == policy
    assert desk.asked[0].deadline == market().as_of + timedelta(seconds=waits_s)


async def test_question_names_agent_and_provider() -> None:
    desk = Desk(by_rules)

    await considered(desk)

    envelope = desk.asked[0]
    assert (envelope.agent_id, envelope.agent_type, envelope.tenant_id) == (
        "cmt-analyst",
        "cmt_analyst",
        "default",
    )
    assert (envelope.provider, envelope.model) == (LLMProvider.RULES, "rules-1")


async def test_question_contains_open_position() -> None:
    desk = Desk(by_rules)
    held = Position(symbol="BTCUSDT", quantity=Decimal("0.05"), average_price=Decimal("27950.10"))

    await considered(desk, position=held)

    assert desk.asked[0].context["position"] == {
        "symbol": "BTCUSDT", "quantity": "0.05", "average_price": "27950.10",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer_to", "category"),
    [
        (failed, FailureKind.TIMEOUT),
        (degraded, FailureKind.PARSING_ERROR),
        (undelivered, FailureKind.BUDGET_EXHAUSTED),
    ],
)
async def test_failed_call_returns_no_decision(
    answer_to: Callable[[LLMEnvelope], GatewayReply], category: FailureKind
) -> None:
    desk = Desk(answer_to)

    outcome = await considered(desk)

    assert isinstance(outcome, NoDecision)
    assert outcome.reason.category is category
    assert (outcome.envelope_id, outcome.as_of) == (desk.asked[0].envelope_id, market().as_of)
    assert outcome.trace_id == desk.asked[0].trace_id
    assert desk.kinds() == ["analysis.triggered", "analysis.undecided"]
    assert desk.events[1].body["reason"]["category"] == category
    assert desk.events[1].body["request_hash"] == desk.asked[0].request_hash


async def test_undecided_caused_by_attempt_or_question() -> None:
    tried, never_sent = Desk(failed), Desk(undelivered)

    await considered(tried)
    await considered(never_sent)

    answer = failed(tried.asked[0])
    assert not isinstance(answer, NoDecision)
    assert tried.events[1].causation_id == answer.interaction_id
    assert never_sent.events[1].causation_id == never_sent.asked[0].envelope_id


async def test_close_without_trigger_records_skip() -> None:
    desk = Desk(by_rules)

    outcome = await considered(desk, market(20))

    assert isinstance(outcome, Skip)
    assert outcome.reason is SkipReason.WARMING_UP
    assert desk.kinds() == ["analysis.skipped"]
    assert desk.events[0].body["reason"] == "warming_up"
    assert desk.asked == []


async def test_repeated_close_skips_without_record() -> None:
    desk = Desk(by_rules)
    agent = analyst(desk, SimClock(market().as_of))
    await agent.consider(market())

    again = await agent.consider(market())

    assert isinstance(again, Skip)
    assert again.reason is SkipReason.NO_NEW_BAR
    assert len(desk.events) == 2


async def test_no_record_before_first_decision_bar(first_bar: Bar) -> None:
    desk = Desk(by_rules)
    view = MarketView("BTCUSDT")
    view.push(first_bar)

    outcome = await considered(desk, view.snapshot())

    assert isinstance(outcome, Skip)
    assert desk.events == []


async def test_failed_call_keeps_thesis_due() -> None:
    desk = Desk(failed)

    await walk(desk, hours()[119:121])

    assert desk.kinds() == [
        "analysis.triggered",
        "analysis.undecided",
        "analysis.triggered",
        "analysis.undecided",
    ]


async def test_resumed_analyst_matches_uninterrupted_run() -> None:
    whole, second_half = Desk(by_rules), Desk(by_rules)
    await walk(whole, hours()[100:140])
    half = [event for event in whole.events if event.as_of and event.as_of <= hours()[119].as_of]
    last = max(event.as_of for event in half if event.kind == "analysis.assessed" and event.as_of)

    stopped = await walk(Desk(by_rules), hours()[100:120])

    await walk(second_half, hours()[120:140], after=(hours()[119], last, stopped.track))

    assert [event.wire for event in second_half.events] == [event.wire for event in whole.events[len(half) :]]


async def test_equal_sessions_leave_equal_records() -> None:
    first, second, other = Desk(by_rules), Desk(by_rules), Desk(by_rules)

    await walk(first, hours()[110:130])
    await walk(second, hours()[110:130])
    await walk(other, hours()[110:130], session_id="session-2")

    assert [event.wire for event in first.events] == [event.wire for event in second.events]
    assert [envelope.wire for envelope in first.asked] == [envelope.wire for envelope in second.asked]
    assert {event.id for event in first.events}.isdisjoint(event.id for event in other.events)
    assert [e.request_hash for e in first.asked] == [e.request_hash for e in other.asked]


async def test_record_ids_are_unique_per_session() -> None:
    desk = Desk(by_rules)

    await walk(desk, hours()[110:140])

    ids = [event.id for event in desk.events] + [envelope.envelope_id for envelope in desk.asked]
    assert len(ids) == len(set(ids))


async def test_future_bar_raises_before_recording() -> None:
    desk = Desk(by_rules)
    early = replace(market(), as_of=market().as_of - timedelta(seconds=1))

    with pytest.raises(LookAheadError):
        await considered(desk, early)

    assert desk.asked == []
    assert desk.events == []


async def test_sample_yields_every_verdict() -> None:
    desk = Desk(by_rules)

    await walk(desk, hours())

    verdicts = {event.body["verdict"] for event in desk.events if event.kind == "analysis.assessed"}
    assert verdicts == set(Verdict)
    assert desk.kinds().count("analysis.skipped") + len(desk.asked) == len(hours())


async def test_track_record_requires_ten_known_outcomes() -> None:
    desk = Desk(by_rules)

    await walk(desk, hours()[26:140])

    records = [asked.retrieved_evidence[-1].content for asked in desk.asked]
    counts = [content.get("decisions") for content in records]
    assert records[0] == {"not_available": {"record": "not enough decisions (0 of 10)"}}
    assert counts[-1] is not None
    assert counts[-1] < len(desk.asked)
    known = [count for count in counts if count is not None]
    assert known == sorted(known)
    assert known[0] >= 10
