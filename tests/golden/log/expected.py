"""The records of calls.jsonl, spelled out: the file is compared with them.

Hashes of requests are constants, because a record keeps its hashes when the schema gains fields.
"""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from agentic_trading.llm import (
    AttemptTrace,
    DeterminismLevel,
    EnvelopeWorkflow,
    Event,
    EvidenceItem,
    FailureKind,
    FailureReason,
    Fix,
    LLMBudget,
    LLMEnvelope,
    LLMInteraction,
    LLMProvider,
    LLMResult,
    OutputPolicy,
    RetryPolicy,
    SafetyConstraints,
    Stage,
    Violation,
)
from agentic_trading.llm.store import Record

AS_OF = datetime(2026, 1, 2, 0, 5, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 0, 5, 1, 250_000, tzinfo=UTC)
NEWER: dict[str, Any] = {"of_a_newer_release": {"kept": [1, "2", None]}}

TRIGGER = Event(
    kind="bar.closed",
    id="11111111-1111-5111-8111-111111111111",
    trace_id="22222222-2222-5222-8222-222222222222",
    tenant_id="default",
    as_of=AS_OF,
    time=LATER,
    body={
        "symbol": "BTCUSDT",
        "close": "87648.21",
        "volume": 17.375,
        "n": 9007199254740991,
        "note": "a\u2028b",
    },
)

ASKED = LLMEnvelope(
    schema_version="1.0",
    envelope_id="33333333-3333-5333-8333-333333333333",
    trace_id=TRIGGER.trace_id,
    causation_id=TRIGGER.id,
    idempotency_key="33333333-3333-5333-8333-333333333333",
    tenant_id="fund",
    created_at=AS_OF,
    deadline=datetime(2026, 1, 2, 0, 10, tzinfo=UTC),
    as_of=AS_OF,
    context_as_of=AS_OF,
    priority=1,
    subject="BTCUSDT",
    step="assess",
    occurrence=2,
    workflow=EnvelopeWorkflow.ANALYSIS,
    agent_id="analyst-1",
    agent_type="cmt",
    instructions='Judge the market: "up" or "down".\nNothing else.',
    prompt_version="cmt/1",
    context={"symbol": "BTCUSDT", "bars": [{"c": "87648.21", "v": 17.375}], "empty": {}},
    retrieved_evidence=[
        EvidenceItem(
            evidence_id="E1", source="bars", content={"rsi": "61.20"}, retrieved_at=AS_OF, available_at=AS_OF
        )
    ],
    tools_allowed=["none"],
    budget=LLMBudget(max_output_tokens=4096, thinking_budget=8000, max_cost_nusd=250_000_000),
    expected_output_schema={"type": "object", "required": ["bias"]},
    safety_constraints=SafetyConstraints(require_json=True),
    output_policy=OutputPolicy(mode="reask", decode="lossless", on_truncated="raise_cap_once"),
    provider=LLMProvider.ANTHROPIC,
    model="claude-sonnet-5-5",
    temperature=0.5,
    effort="high",
    determinism=DeterminismLevel.RECORDED,
    retry_policy=RetryPolicy(max_retries=2, base_s=0.5),
    must_understand=["deadline"],
    **NEWER,
    request_hash="rk1:a3040a25d9fabd67905c61f95c9b3adfa8a4a052626f8e2e3d272baa682a47d2",
    envelope_hash="199ed9aeef5e95ea",
)

ANSWERED = LLMInteraction(
    interaction_id="44444444-4444-5444-8444-444444444444",
    stored_at=LATER,
    envelope=ASKED,
    result=LLMResult(
        result_id="55555555-5555-5555-8555-555555555555",
        envelope_id=ASKED.envelope_id,
        timestamp=LATER,
        raw_output='{"bias": "up", "target": 90000.10, "size": 123456789012345678901234567890} \u2028',
        parsed_output={
            "bias": "up",
            "target": Decimal("90000.10"),
            "tiny": Decimal("1E-30"),
            "size": 123456789012345678901234567890,
            "list": [1, Decimal("2.50"), None, True],
        },
        validation_passed=True,
        latency_ms=1250.125,
        input_tokens=812,
        output_tokens=96,
        thinking_tokens=31,
        cache_read_tokens=4000,
        cache_write_5m_tokens=200,
        cache_write_1h_tokens=10,
        service_tier="standard",
        speed="fast",
        inference_geo="eu",
        cost_nusd=4_376_000,
        reserved_nusd=181_000_000,
        price_book="2026-01-01",
        provider=LLMProvider.ANTHROPIC,
        model="claude-sonnet-5-5-20260115",
        model_requested="claude-sonnet-5-5",
        stop_reason="end_turn",
        provider_request_id="req_1",
        provider_response_id="msg_1",
        attempt_number=1,
        reading=AttemptTrace(
            parser="prompted",
            transport="prompted",
            verdict=Stage.DONE,
            decode="lossless",
            fixes=(Fix(kind="fence", where="0", before="```json", after=""),),
            errors=(
                Violation(
                    path="$.bias",
                    keyword="enum",
                    message="not allowed",
                    allowed=["up", "down"],
                    suggestion="up",
                ),
            ),
            logprob_mean=-0.25,
        ),
        actionable=True,
        determinism_level=DeterminismLevel.RECORDED,
        served_from="live",
        dispatched_at=AS_OF,
        finished_at=LATER,
        output_hash="0123456789abcdef",
        **NEWER,
    ),
)

REFUSED = LLMInteraction(
    interaction_id="66666666-6666-5666-8666-666666666666",
    stored_at=LATER,
    envelope=ASKED,
    result=LLMResult(
        result_id="77777777-7777-5777-8777-777777777777",
        envelope_id=ASKED.envelope_id,
        timestamp=LATER,
        attempt_number=2,
        success=False,
        error="agent:analyst-1 has 0 nano-USD left",
        failure=FailureReason(
            category=FailureKind.BUDGET_EXHAUSTED,
            description="agent:analyst-1",
            technical_details="asked 181000000, left 0",
            recoverable=False,
        ),
        actionable=False,
        output_hash="e3b0c44298fc1c14",
    ),
)

NOTED = Event(
    kind="budget.refused",
    id="88888888-8888-5888-8888-888888888888",
    trace_id=TRIGGER.trace_id,
    causation_id=REFUSED.interaction_id,
    tenant_id="fund",
    time=LATER,
    **NEWER,
)

RECORDS: list[Record] = [TRIGGER, ANSWERED, REFUSED, NOTED]
HEAD = "96169b07c0a5b3739bc0de7bffc0dfe05591c64f6ecb2cd5a034e3d40baa47cd"
