"""The attempts at one envelope, put together: the object or the reason, and every token and nano-dollar."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.client.outcome import TotalUsage, outcome_of, outcome_of_chain, outcome_without_answer
from agentic_trading.llm import (
    AttemptTrace,
    FailureKind,
    FailureReason,
    Fix,
    LLMEnvelope,
    LLMInteraction,
    NoDecision,
    OutputPolicy,
    Stage,
    Usage,
)
from tests.build import envelope, interaction
from tests.gateway import SCHEMA, Script, asking, attempts, gateway, not_connected, timed_out

ENVELOPE = envelope()
ACCEPTED = AttemptTrace(parser="p", transport="prompted", verdict=Stage.DONE, decode="strict")
RAW = ' {"action":"buy", "size":1.50}\n'
VALUE = {"action": "buy", "size": Decimal("1.50")}


def accepted(raw: str = RAW, **changes: Any) -> LLMInteraction:
    """Return an accepted attempt; `changes` are fields of its result."""
    fields = {"envelope": ENVELOPE, "raw_output": raw, "parsed_output": VALUE, "reading": ACCEPTED}
    return interaction(**fields | changes)


def rejected(stage: Stage = Stage.SCHEMA_VALIDATION, **changes: Any) -> LLMInteraction:
    """Return an attempt whose answer was not accepted; `changes` are fields of its result."""
    fields: dict[str, Any] = {
        "envelope": ENVELOPE,
        "parsed_output": {},
        "validation_passed": False,
        "success": False,
        "failure": FailureReason(category=FailureKind.PARSING_ERROR, description=f"failed at {stage}"),
        "reading": ACCEPTED.model_copy(update={"verdict": stage}),
        "next_step": "ask_again",
    }
    return interaction(**fields | changes)


async def run(script: Script, workflow: str = "analysis") -> list[LLMInteraction]:
    """Return the attempts that a gateway makes of a call whose model answers from `script`."""
    desk = gateway(script)
    asked: LLMEnvelope = asking(workflow).build()
    await desk.runner.run(asked)
    return await attempts(desk, asked)


def test_accepted_answer_gives_object_and_text() -> None:
    outcome = outcome_of([accepted()])

    assert (outcome.ok, outcome.json, outcome.json_text) == (True, VALUE, RAW.strip())
    assert (outcome.error, outcome.stage, outcome.is_complete) == (None, None, True)


def test_object_numbers_are_exact() -> None:
    raw = '{"action":"buy","size":0.10000000000000000555,"id":90071992547409931}'
    value = {"action": "buy", "size": Decimal("0.10000000000000000555"), "id": 90071992547409931}

    outcome = outcome_of([accepted(raw, parsed_output=value)])

    assert outcome.json == value
    assert outcome.json_text == raw


@pytest.mark.parametrize(
    ("raw", "reading"),
    [
        (
            "{'action': 'buy', 'size': 1.50}",
            {"decode": "lossless", "fixes": (Fix(kind="quotes", where="1"),)},
        ),
        (f"Sure: {RAW}", {"decode": "lossless", "fixes": (Fix(kind="prose", where="0"),)}),
        ('{"action":"buy","size":1.50,"end":"ok"}', {}),
        ('{"action":"buy","size":"1.50"}', {"coercions": (Fix(kind="number", where="$.size"),)}),
        ('{"action":"buy","size":1.50,"size":1.50}', {"fixes": (Fix(kind="repeated_key", where="$.size"),)}),
        (json.dumps(RAW), {"decode": "lossless"}),
    ],
    ids=["mended", "prose around", "sentinel", "coerced", "repeated key", "double-encoded"],
)
def test_mended_object_is_serialized_again(raw: str, reading: dict[str, Any]) -> None:
    outcome = outcome_of([accepted(raw, reading=ACCEPTED.model_copy(update=reading))])

    assert (outcome.ok, outcome.json) == (True, VALUE)
    assert outcome.json_text == '{"action":"buy","size":1.50}'


def test_plain_text_answer_is_returned() -> None:
    reading = ACCEPTED.model_copy(update={"transport": "text", "decode": "none"})

    outcome = outcome_of([accepted("The trend is up.", parsed_output={}, reading=reading)])

    assert (outcome.ok, outcome.json, outcome.json_text) == (True, {}, "The trend is up.")


@pytest.mark.parametrize(
    ("raw", "text"),
    [("It may.</think>\n It is up. ", "It is up."), ("<think>It may.", "<think>It may.")],
)
def test_plain_text_is_returned_without_thinking(raw: str, text: str) -> None:
    trace = ACCEPTED.model_copy(update={"transport": "text", "decode": "none"})

    outcome = outcome_of([accepted(raw, parsed_output={}, reading=trace)])

    assert (outcome.ok, outcome.json_text) == (True, text)


async def test_attempts_carry_trace_and_result() -> None:
    made = await run([not_connected(), "no json", '{"action":"buy","size":1.50}'])

    outcome = outcome_of(made)

    assert outcome.ok
    assert [attempt.number for attempt in outcome.attempts] == [1, 2, 3]
    assert [attempt.next_step for attempt in outcome.attempts] == ["retry", "ask_again", "final"]
    assert [attempt.trace and attempt.trace.verdict for attempt in outcome.attempts] == [
        None,
        Stage.JSON_PARSE,
        Stage.DONE,
    ]
    assert [attempt.failure and attempt.failure.category for attempt in outcome.attempts] == [
        FailureKind.SERVER_ERROR,
        FailureKind.PARSING_ERROR,
        None,
    ]
    assert [attempt.interaction_id for attempt in outcome.attempts] == [one.interaction_id for one in made]


async def test_usage_sums_all_attempts_after_failure() -> None:
    made = await run([timed_out(), "no json", '{"action":"hold","size":1}'])

    outcome = outcome_of(made)

    assert not outcome.ok
    assert [attempt.in_doubt for attempt in outcome.attempts] == [True, False, False]
    assert outcome.usage.cost_nusd == sum(one.result.cost_nusd for one in made)
    assert outcome.usage.cost_nusd == sum(attempt.cost_nusd for attempt in outcome.attempts)
    assert outcome.usage.output_tokens == sum(attempt.usage.output_tokens for attempt in outcome.attempts) > 0


@given(st.lists(st.integers(0, 2**53), min_size=1, max_size=5))
def test_usage_sums_are_exact_and_complete(counts: list[int]) -> None:
    used: list[dict[str, Any]] = [dict.fromkeys(TotalUsage.__slots__, count) for count in counts]

    total = outcome_of([rejected(attempt_number=n, **one) for n, one in enumerate(used, start=1)]).usage

    assert total == TotalUsage(**dict.fromkeys(TotalUsage.__slots__, sum(counts)))
    assert {name for name, part in Usage.model_fields.items() if part.annotation is int} <= set(
        TotalUsage.__slots__
    )


async def test_degraded_answer_is_not_ok() -> None:
    made = await run(["no json", "still no json"])
    assert made[-1].result.success
    assert made[-1].result.failure is not None

    outcome = outcome_of(made)

    assert (outcome.ok, outcome.json, outcome.json_text) == (False, None, "")
    assert outcome.stage is Stage.JSON_PARSE
    assert outcome.error == made[-1].result.failure.model_copy(
        update={"occurred_at": made[-1].result.timestamp}
    )


def test_guessed_answer_is_not_ok() -> None:
    guessed = accepted(reading=ACCEPTED.model_copy(update={"decode": "guess"}), actionable=False)

    outcome = outcome_of([guessed])

    assert (outcome.ok, outcome.json, outcome.stage) == (False, None, None)
    assert outcome.error == FailureReason(
        category=FailureKind.PARSING_ERROR,
        description="the answer was guessed: it is for display only",
        occurred_at=guessed.result.timestamp,
    )


def test_unactionable_answer_is_not_ok() -> None:
    outcome = outcome_of([accepted(actionable=False)])

    assert not outcome.ok
    assert outcome.error
    assert outcome.error.description == "the answer is marked as not actionable"


async def test_budget_refusal_has_reason_without_stage() -> None:
    desk = gateway([])
    asked = asking().with_budget(max_output_tokens=200, max_cost_usd=0.0).build()
    await desk.runner.run(asked)

    outcome = outcome_of(await attempts(desk, asked))

    assert (outcome.ok, outcome.stage, outcome.usage) == (False, None, TotalUsage())
    assert outcome.error
    assert outcome.error.category is FailureKind.BUDGET_EXHAUSTED
    assert outcome.attempts[0].trace is None


def test_wrong_model_failure_has_no_stage() -> None:
    wrong = FailureReason(category=FailureKind.WRONG_MODEL, description="served by another")
    made = rejected(Stage.DONE, failure=wrong)

    outcome = outcome_of([made])

    assert (outcome.ok, outcome.stage) == (False, None)
    assert outcome.error == wrong.model_copy(update={"occurred_at": made.result.timestamp})


def test_last_attempt_decides_in_any_order() -> None:
    first, second = rejected(attempt_number=1), accepted(attempt_number=2)

    outcome = outcome_of([second, first, first, second])

    assert outcome.ok
    assert [attempt.number for attempt in outcome.attempts] == [1, 2]
    assert outcome.usage.output_tokens == 40


def test_missing_attempt_makes_outcome_incomplete() -> None:
    assert outcome_of([rejected(attempt_number=1), accepted(attempt_number=2)]).is_complete
    assert not outcome_of([accepted(attempt_number=2)]).is_complete


def test_attempts_at_different_envelopes_are_refused() -> None:
    asked_otherwise = envelope(envelope_id=ENVELOPE.envelope_id, output_policy=OutputPolicy(answers_read=1))

    with pytest.raises(ValueError, match=r"belong to 2 envelopes\. Pass the attempts at one envelope"):
        outcome_of([accepted(), accepted(envelope=envelope(expected_output_schema=SCHEMA))])
    with pytest.raises(ValueError, match="belong to 2 envelopes"):
        outcome_of([accepted(), accepted(envelope=asked_otherwise)])


def test_outcome_without_attempts_is_refused() -> None:
    with pytest.raises(ValueError, match="There are no attempts"):
        outcome_of([])


def test_unanswered_outcome_has_reason_and_usage() -> None:
    reason = FailureReason(category=FailureKind.UNDELIVERABLE, description="nobody answered")

    outcome = outcome_without_answer(NoDecision(reason=reason), [rejected()])

    assert (outcome.ok, outcome.json, outcome.error, outcome.stage) == (False, None, reason, None)
    assert outcome.usage.output_tokens == 20


def test_chain_counts_attempts_per_envelope() -> None:
    other = envelope()
    first = outcome_of([rejected(), rejected(attempt_number=2)])
    second = outcome_of([accepted(envelope=other)])
    with_a_gap = outcome_of([rejected(attempt_number=2)])

    whole = outcome_of_chain([first, second])

    assert (whole.ok, whole.json, whole.error, whole.stage) == (True, VALUE, None, None)
    assert whole.attempts == first.attempts + second.attempts
    assert whole.is_complete
    assert not outcome_of_chain([with_a_gap, second]).is_complete
