"""The execution agent: what it asks, what it takes for an answer, and what it puts on record."""

import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, get_args

import pytest

from agentic_trading.canonical import exact_value
from agentic_trading.clock import SimClock
from agentic_trading.desk.execution.agent import (
    FILL_STRATEGY_PROMPT,
    ExecutionAgent,
    TimedFillStrategy,
    strategy_of,
)
from agentic_trading.desk.execution.order import FillLimits
from agentic_trading.desk.execution.strategy import FillChoice, FillName, FillStrategy, FillTerms, strategy_id
from agentic_trading.desk.market.errors import NoBarsError
from agentic_trading.desk.prompts import load_prompt
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.errors import FailureKind, FailureReason, LookAheadError, NoDecision
from agentic_trading.llm.limits import RetryPolicy
from tests.build import interaction
from tests.desk.execution.asked import (
    SETTINGS,
    SPREAD,
    RuleGateway,
    SilentGateway,
    asked,
    chosen_text,
    closed_bars,
    in_full,
)
from tests.desk.trade import BTC, FIVE_MINUTES, START, bar, intent, strategy

AS_OF = START + FIVE_MINUTES


def agent_of(gateway: RuleGateway) -> ExecutionAgent:
    """Return an agent that asks `gateway`."""
    return ExecutionAgent(gateway, SimClock(AS_OF), FillLimits(), SETTINGS)


async def decided(gateway: RuleGateway, **changes: Any) -> TimedFillStrategy | NoDecision:
    """Have the built intent decided."""
    return await agent_of(gateway).decide(intent(**changes), BTC, closed_bars(), SPREAD)


def test_envelope_is_caused_by_intent() -> None:
    envelope = asked()

    assert envelope.workflow is EnvelopeWorkflow.EXECUTION
    assert (envelope.trace_id, envelope.causation_id) == ("t1", "i1")
    assert (envelope.subject, envelope.step) == ("BTCUSDT", "fill_strategy")
    assert (envelope.as_of, envelope.context_as_of) == (AS_OF, AS_OF)
    assert envelope.deadline == AS_OF + timedelta(seconds=60)
    assert envelope.prompt_version == FILL_STRATEGY_PROMPT.version


def test_envelope_offers_candidates_with_terms() -> None:
    envelope = asked()

    candidates = envelope.context["candidates"]
    schema = json.loads(envelope.output_schema_json)
    assert schema["$id"] == "fill_strategy.v2"
    assert set(schema["properties"]["fill"]["enum"]) == set(candidates)
    assert FillTerms.model_validate(envelope.context["terms"]).order_type == "market"
    assert candidates["take_now"] == {}
    assert candidates["slices"] == {
        "algo": "twap",
        "slices": 2,
        "interval_seconds": 300,
        "deadline_seconds": 3600,
    }


def test_default_retry_policy_is_used() -> None:
    assert asked().retry_policy == RetryPolicy()


@pytest.mark.parametrize(("attempt_s", "waits_s"), [(300, 300), (20, 60)])
def test_fill_deadline_covers_attempt_timeout(attempt_s: float, waits_s: int) -> None:
    policy = RetryPolicy(attempt_timeout_s=attempt_s)
    agent = ExecutionAgent(
        RuleGateway(), SimClock(AS_OF), FillLimits(), replace(SETTINGS, retry_policy=policy)
    )

    envelope = agent.envelope(intent(), BTC, closed_bars(), SPREAD)

    assert envelope.retry_policy == policy
    assert envelope.deadline == AS_OF + timedelta(seconds=waits_s)
    assert envelope.request_hash == asked().request_hash


def test_equal_intents_give_equal_envelopes() -> None:
    assert asked().envelope_id == asked().envelope_id
    assert asked().request_hash == asked().request_hash
    assert asked().envelope_id != asked(intent(intent_id="i9")).envelope_id


def test_envelope_contains_limits_order_and_market() -> None:
    context = asked().context

    assert context["limits"]["max_deadline_s"] == 3600
    assert context["limits"]["max_slices"] == 10
    assert context["order"]["quantity"] == "1"
    assert context["order"]["side"] == "buy"
    assert context["market"] == {"last_close": "100", "spread_bps": "2", "bar_seconds": 300}


def test_evidence_is_numbered_and_dated() -> None:
    evidence = asked().retrieved_evidence

    assert [(item.evidence_id, item.source) for item in evidence] == [
        ("E1", "bars"),
        ("E2", "volume"),
        ("E3", "volatility"),
    ]
    assert {item.available_at for item in evidence} == {AS_OF}


def test_envelope_below_3000_bytes() -> None:
    envelope = asked(bars=[bar(number - 23, "100 101 99 100") for number in range(24)])

    assert len(envelope.context_json) + sum(map(len, envelope.evidence_json)) < 3_000


def test_prompt_version_has_sixteen_characters() -> None:
    assert len(FILL_STRATEGY_PROMPT.version) == 16
    assert "E1, E2" in FILL_STRATEGY_PROMPT.text


def test_prompt_explains_candidates_and_answer_fields() -> None:
    names = [*get_args(FillName), *FillChoice.model_fields]

    assert [name for name in names if f"`{name}`" not in FILL_STRATEGY_PROMPT.text] == []


def test_released_fill_prompt_is_pinned() -> None:
    assert load_prompt("agentic_trading.desk.execution", "fill_strategy.v1").version == "fbdcf751b49eef4e"


async def test_strategy_within_limits_is_recorded() -> None:
    gateway = RuleGateway()

    outcome = await decided(gateway)

    assert isinstance(outcome, TimedFillStrategy)
    made, chosen = gateway.events
    assert (made.kind, made.id, made.causation_id) == ("intent.approved", "i1", "assessment-1")
    assert (chosen.kind, chosen.id) == ("intent.strategy_chosen", strategy_id("i1"))
    assert chosen.causation_id == interaction(envelope=gateway.asked[0]).interaction_id
    assert {event.trace_id for event in gateway.events} == {"t1"}
    assert {event.as_of for event in gateway.events} == {AS_OF}
    assert chosen.body["symbol"] == "BTCUSDT"
    assert chosen.body["request_hash"] == gateway.asked[0].request_hash
    assert (
        FillStrategy.model_validate({name: chosen.body[name] for name in FillStrategy.model_fields})
        == outcome.strategy
    )


@pytest.mark.parametrize("late", [timedelta(), timedelta(seconds=7)])
async def test_strategy_known_at_answer_time(late: timedelta) -> None:
    outcome = await decided(RuleGateway(finished_at=AS_OF + late))

    assert isinstance(outcome, TimedFillStrategy)
    assert outcome.known_at == AS_OF + late


async def test_missing_answer_gives_no_decision() -> None:
    reason = FailureReason(category=FailureKind.UNDELIVERABLE, description="no worker")
    gateway = SilentGateway(NoDecision(reason=reason))

    outcome = await decided(gateway)

    assert outcome == NoDecision(reason=reason)
    assert [event.kind for event in gateway.events] == ["intent.approved", "intent.undecided"]
    assert gateway.events[-1].causation_id == "i1"


@pytest.mark.parametrize(
    ("changes", "category"),
    [
        (
            {"success": False, "failure": FailureReason(category=FailureKind.TIMEOUT, description="late")},
            "timeout",
        ),
        ({"success": False, "error": "odd"}, "internal_error"),
        ({"validation_passed": False}, "internal_error"),
        ({"in_doubt": True}, "internal_error"),
        ({"actionable": False}, "internal_error"),
        ({"parsed_output": {}}, "parsing_error"),
    ],
)
async def test_unactionable_answer_gives_no_decision(changes: dict[str, Any], category: str) -> None:
    gateway = RuleGateway(**changes)

    outcome = await decided(gateway)

    assert isinstance(outcome, NoDecision)
    assert outcome.reason.category == category
    assert (outcome.envelope_id, outcome.trace_id) == (gateway.asked[0].envelope_id, "t1")
    assert gateway.events[-1].kind == "intent.undecided"
    assert gateway.events[-1].body["reason"]["category"] == category


async def test_excessive_answer_gives_no_decision() -> None:
    gateway = RuleGateway(lambda _: in_full(strategy(), max_participation="0.25"))

    outcome = await decided(gateway)

    assert isinstance(outcome, NoDecision)
    assert "max_participation is 0.25" in outcome.reason.technical_details


def test_strategy_keeps_all_answer_digits() -> None:
    envelope = asked()
    written = exact_value(chosen_text("take_now", confidence=Decimal("0.10000000000000000001")).encode())

    outcome = strategy_of(envelope, interaction(envelope=envelope, parsed_output=written))

    assert isinstance(outcome, FillStrategy)
    assert str(outcome.confidence) == "0.10000000000000000001"


async def test_unclosed_bar_raises_without_record() -> None:
    gateway = RuleGateway()

    with pytest.raises(LookAheadError):
        await agent_of(gateway).decide(intent(), BTC, [*closed_bars(), bar(1, "100 101 99 100")], SPREAD)

    assert gateway.events == []


async def test_decision_without_bars_raises() -> None:
    with pytest.raises(NoBarsError):
        await agent_of(RuleGateway()).decide(intent(), BTC, [], SPREAD)
