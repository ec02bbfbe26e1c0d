"""The builder: presets, checks, and the printed examples."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.ids import NewId
from agentic_trading.llm import (
    DeterminismLevel,
    EnvelopeBuilder,
    EnvelopeValidationError,
    EnvelopeWorkflow,
    LLMProvider,
    LookAheadError,
    OutputPolicy,
    ResponseFormat,
    RetryPolicy,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


def itself() -> dict[str, Any]:
    """Return an object that holds itself."""
    endless: dict[str, Any] = {}
    endless["again"] = endless
    return endless


def builder() -> EnvelopeBuilder:
    return EnvelopeBuilder().with_instructions("Judge.")


def test_printed_analysis_example_builds() -> None:
    envelope = (
        EnvelopeBuilder()
        .for_analysis()
        .with_instructions("Apply all layers to this market data.")
        .with_context({"symbol": "BTCUSDT", "timeframes": ["5m", "1h"], "portfolio_exposure_pct": 0.15})
        .add_evidence("candle_history", {"1h": {"open": 42500, "high": 42800, "low": 42400, "close": 42750}})
        .add_evidence("indicator_values", {"rsi_14": 62.3, "atr_14": 450.2, "ema_12": 42600})
        .add_evidence("smc_confluence", {"fvg": [{"start": 42300, "end": 42500}]})
        .with_budget(max_output_tokens=4096, thinking_budget=8000)
        .with_output_schema(SCHEMA)
        .with_provider(LLMProvider.ANTHROPIC, "claude-sonnet-4-5-20250929")
        .with_trace(trace_id="signal-trace-abc")
        .with_agent("cmt-analyst-01", "cmt_analyst")
        .build()
    )

    assert envelope.workflow is EnvelopeWorkflow.ANALYSIS
    assert (envelope.temperature, envelope.safety_constraints.require_json) == (0.0, True)
    assert (envelope.budget.thinking_budget, envelope.budget.max_output_tokens) == (8000, 4096)
    assert envelope.trace_id == "signal-trace-abc"
    assert [item.evidence_id for item in envelope.retrieved_evidence] == ["E1", "E2", "E3"]


def test_printed_planning_example_builds() -> None:
    envelope = (
        EnvelopeBuilder()
        .for_planning()
        .with_instructions("Recommend parameters.")
        .with_context({"strategy_id": "smc_btcusdt", "current_params": {"ema_fast": 12, "atr_mult": 2.0}})
        .add_evidence("backtest_results", {"sharpe": 1.8, "max_dd": -12.5})
        .add_evidence("walk_forward", {"oos_sharpe": 1.2, "is_overfit": False})
        .with_budget(max_output_tokens=8192)
        .with_output_schema(SCHEMA)
        .with_provider(LLMProvider.ANTHROPIC, "claude-sonnet-4-5-20250929")
        .build()
    )

    assert (envelope.temperature, envelope.budget.max_output_tokens) == (0.0, 8192)
    assert envelope.safety_constraints.require_json


def test_printed_execution_example_builds() -> None:
    envelope = (
        EnvelopeBuilder()
        .for_execution()
        .with_instructions("Select a fill strategy.")
        .with_context({"symbol": "BTCUSDT", "side": "buy", "qty": "0.5", "urgency": 0.8, "spread_bps": 2.1})
        .add_evidence("orderbook_snapshot", {"bids": [["42500", "1.2"]], "asks": [["42501", "0.5"]]})
        .with_budget(max_output_tokens=2048)
        .with_output_schema(SCHEMA)
        .with_provider(LLMProvider.ANTHROPIC, "claude-sonnet-4-5-20250929")
        .with_trace(trace_id="order-trace-xyz", causation_id="signal-event-123")
        .build()
    )

    assert envelope.safety_constraints.require_deterministic
    assert envelope.safety_constraints.require_json
    assert (envelope.budget.max_output_tokens, envelope.causation_id) == (2048, "signal-event-123")
    assert (envelope.output_policy.mode, envelope.output_policy.answers_read) == ("native", 1)


@pytest.mark.parametrize(
    ("workflow", "model", "mode", "answers", "exhausted"),
    [
        ("for_analysis", "claude-sonnet-5-5", "reask", 2, "degraded"),
        ("for_planning", "claude-opus-5-5", "reask", 3, "fail"),
        ("for_execution", "claude-haiku-5-5", "native", 1, "fail"),
        ("for_general", "claude-sonnet-5-5", "salvage", 2, "degraded"),
    ],
)
def test_workflow_presets_set_model_and_policy(
    workflow: str,
    model: str,
    mode: str,
    answers: int,
    exhausted: str,
) -> None:
    envelope = getattr(builder(), workflow)().build()

    policy = envelope.output_policy
    assert (envelope.model, policy.mode, policy.answers_read) == (model, mode, answers)
    assert policy.on_exhausted == exhausted
    assert envelope.request_hash == envelope.compute_request_hash()


def test_equal_inputs_build_same_request_hash() -> None:
    one, other = builder().with_context({"a": 1}), builder().with_context({"a": 1})

    assert one.build().request_hash == other.build().request_hash
    assert one.build().envelope_id != one.build().envelope_id


def test_timestamps_come_from_injected_clock(clock: SimClock, ids: NewId) -> None:
    envelope = EnvelopeBuilder(clock=clock, ids=ids).with_instructions("x").add_evidence("s", 1).build()

    assert envelope.created_at == clock.now()
    assert envelope.retrieved_evidence[0].retrieved_at == clock.now()
    assert envelope.envelope_id != envelope.trace_id


def test_omitted_dates_stay_unset() -> None:
    envelope = builder().with_context({"a": 1}).add_evidence("s", 1).build()

    assert (envelope.as_of, envelope.context_as_of, envelope.deadline) == (None, None, None)
    assert envelope.retrieved_evidence[0].available_at is None


@pytest.mark.parametrize("text", ["", "   \n"])
def test_missing_instructions_are_refused(text: str) -> None:
    with pytest.raises(EnvelopeValidationError, match="instructions are missing"):
        EnvelopeBuilder().with_instructions(text).build()
    with pytest.raises(EnvelopeValidationError, match="instructions are missing"):
        EnvelopeBuilder().for_analysis().build()


def test_execution_rejects_nonzero_temperature() -> None:
    with pytest.raises(EnvelopeValidationError, match=r"temperature is 0.2.*allows 0.0 only"):
        builder().for_execution().with_temperature(0.2).build()


def test_execution_cannot_give_up_determinism() -> None:
    with pytest.raises(EnvelopeValidationError, match="demands require_deterministic"):
        builder().for_execution().with_safety(require_deterministic=False).build()


def test_deterministic_envelope_requires_zero_temperature() -> None:
    with pytest.raises(EnvelopeValidationError, match=r"require_deterministic allows 0\.0 only"):
        builder().with_safety(require_deterministic=True).with_temperature(0.7).build()
    with pytest.raises(EnvelopeValidationError, match="greedy"):
        builder().with_determinism(DeterminismLevel.GREEDY).with_temperature(0.7).build()


def test_analysis_accepts_nonzero_temperature() -> None:
    assert builder().for_analysis().with_temperature(0.7).build().temperature == 0.7


def test_every_problem_is_reported_at_once() -> None:
    broken = builder().with_safety(require_deterministic=True).with_temperature(0.7)
    broken.add_evidence("a", 1, evidence_id="same").add_evidence("b", 2, evidence_id="same")

    with pytest.raises(EnvelopeValidationError) as caught:
        broken.build()

    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.with_budget(max_output_tokens=0), "greater than 0"),
        (lambda b: b.with_temperature(float("nan")), "temperature"),
        (lambda b: b.with_context({"x": float("inf")}), r"\$\.x"),
        (lambda b: b.with_context({1: 2}), "not a string"),
        (lambda b: b.with_budget(max_cost_usd=1.0, max_cost_nusd=5), "disagree"),
        (lambda b: b.with_as_of(NOON.replace(tzinfo=None)), "timezone"),
        (lambda b: b.with_as_of(datetime.fromisoformat("0001-01-01T00:00:00+05:00")), "as_of: "),
        (lambda b: b.with_as_of("yesterday"), "as_of: Input should be a valid datetime"),
        (lambda b: b.with_budget(max_cost_usd=float("inf")), "no amount of dollars"),
        (lambda b: b.with_budget(max_cost_usd="a" * 50), "a str is no amount of dollars"),
        (lambda b: b.with_budget(max_output_tokens=2**70), "max_output_tokens: "),
        (lambda b: b.with_priority(2**70), "priority: "),
        (lambda b: b.with_subject("a", occurrence=-1), "occurrence: "),
        (
            lambda b: b.with_subject("\ud800"),
            r"^\$\.subject: holds a lone surrogate; allowed is text that UTF-8 can spell$",
        ),
        (lambda b: b.with_instructions("\ud800"), r"\$\.instructions: holds a lone surrogate"),
        (lambda b: b.with_context({"x": "\ud800"}), r"\$\.x: holds a lone surrogate"),
        (lambda b: b.add_evidence("\ud800", 1), r"source: holds a lone surrogate"),
        (lambda b: b.add_evidence("s", {1, 2}), "has no JSON spelling"),
        (lambda b: b.with_output_schema({"x": 2**70}), "cannot be spelled exactly"),
        (lambda b: b.with_context(itself()), "nested deeper"),
    ],
)
def test_bad_value_error_names_field(change: Any, message: str) -> None:
    with pytest.raises(EnvelopeValidationError, match=message):
        change(builder()).build()


def test_future_evidence_is_refused() -> None:
    late = builder().with_as_of(NOON).add_evidence("bars", {"c": 1}, available_at=NOON + timedelta(seconds=1))

    with pytest.raises(LookAheadError, match=r"evidence E1 \(bars\) is known since") as caught:
        late.build()

    assert caught.value.as_of == NOON


def test_future_context_refused_equal_time_accepted() -> None:
    assert builder().with_as_of(NOON).with_context({"a": 1}, as_of=NOON).build().context_as_of == NOON

    with pytest.raises(LookAheadError, match="the context"):
        builder().with_as_of(NOON).with_context({"a": 1}, as_of=NOON + timedelta(microseconds=1)).build()


def test_deadline_before_as_of_is_refused() -> None:
    with pytest.raises(EnvelopeValidationError, match="deadline is before as_of"):
        builder().with_as_of(NOON).with_deadline(NOON - timedelta(seconds=1)).build()


def test_child_links_to_parent_and_trace() -> None:
    parent = builder().with_tenant("t1").build()

    child = builder().child_of(parent).build()

    assert (child.trace_id, child.tenant_id) == (parent.trace_id, "t1")
    assert child.causation_id == child.parent_envelope_id == parent.envelope_id


def test_envelope_cannot_cause_itself() -> None:
    with pytest.raises(EnvelopeValidationError, match="causation_id is the envelope itself"):
        EnvelopeBuilder(ids=lambda: "same").with_instructions("x").with_trace(causation_id="same").build()


def test_builder_keeps_all_given_settings() -> None:
    envelope = (
        builder()
        .with_instructions("Judge.", prompt_version="v7")
        .with_tools("quote", "book")
        .with_output_policy(OutputPolicy(answers_read=4))
        .with_response_format(ResponseFormat.TEXT)
        .with_effort("high")
        .with_retry_policy(RetryPolicy(max_retries=0))
        .with_subject("BTCUSDT", step="cmt", occurrence=2)
        .with_deadline(NOON)
        .with_priority(7)
        .with_idempotency_key("k")
        .with_must_understand("as_of")
        .with_budget(max_cost_usd=0.5)
        .build()
    )

    assert (envelope.prompt_version, envelope.tools_allowed) == ("v7", ["quote", "book"])
    assert (envelope.output_policy.answers_read, envelope.response_format) == (4, ResponseFormat.TEXT)
    assert (envelope.effort, envelope.retry_policy.max_retries) == ("high", 0)
    assert (envelope.subject, envelope.step, envelope.occurrence) == ("BTCUSDT", "cmt", 2)
    assert (envelope.deadline, envelope.priority, envelope.idempotency_key) == (NOON, 7, "k")
    assert (envelope.must_understand, envelope.budget.max_cost_nusd) == (["as_of"], 500_000_000)
    assert envelope.budget.max_cost_usd == 0.5


def test_unknown_field_of_retry_policy_is_refused() -> None:
    policy = RetryPolicy.model_validate({"max_attempts": 1})

    with pytest.raises(
        EnvelopeValidationError, match=r"unknown field max_attempts\. Allowed: max_retries, base_s"
    ):
        EnvelopeBuilder().with_retry_policy(policy)
