"""An answer becomes an object or a verdict, whatever it is; what follows from a verdict is a plain decision."""

import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.envelope_rules import PRESETS
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.llm.result import AttemptTrace, LLMResult, Stage, Usage, Violation
from agentic_trading.structured import (
    Accepted,
    AskAgain,
    GiveUp,
    NextStep,
    RaiseCap,
    Rejected,
    next_step,
    read,
    schema_problem,
)
from tests.build import response, result
from tests.structured.asking import ANSWER, ORDER, REASKED, SEALED, STRICT
from tests.structured.test_strict_json import ANY_TEXT, documents

VALID = '{"side": "BUY", "qty": 0.10, "legs": [1, 20]}'


def accepted(
    text: str, schema: dict[str, Any] = ORDER, policy: OutputPolicy = STRICT, **more: Any
) -> Accepted:
    """Return what reading `text` gives; it must be accepted."""
    outcome = read(response(text), schema, policy, **more)
    assert isinstance(outcome, Accepted), outcome
    return outcome


def rejected(
    text: str, schema: dict[str, Any] = ORDER, policy: OutputPolicy = STRICT, **more: Any
) -> Rejected:
    """Return what reading `text` gives; it must not be accepted."""
    outcome = read(response(text), schema, policy, **more)
    assert isinstance(outcome, Rejected), outcome
    return outcome


def test_valid_answer_keeps_every_digit() -> None:
    outcome = accepted(f" {VALID}\n")

    assert outcome.value == {"side": "BUY", "qty": Decimal("0.10"), "legs": [1, 20]}
    assert outcome.text == VALID
    assert outcome.trace == AttemptTrace(
        parser="InstructorParser", transport="prompted", verdict=Stage.DONE, decode="strict"
    )


def test_accepted_answer_round_trips_through_log() -> None:
    value = accepted(VALID).value

    assert LLMResult.model_validate_json(result(parsed_output=value).wire).parsed_output == value


@pytest.mark.parametrize("workflow", PRESETS)
def test_every_policy_reads_strict_json(workflow: EnvelopeWorkflow) -> None:
    unsealed = PRESETS[workflow].output.model_copy(update={"require_sentinel": False})

    assert accepted(VALID, policy=unsealed).trace.decode == "strict"
    assert accepted(VALID, policy=unsealed).text == VALID


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("", Stage.RESPONSE_EMPTY),
        (" \n\u00a0", Stage.RESPONSE_EMPTY),
        ("I would rather not.", Stage.JSON_PARSE),
        ('{"side": "BUY", "qty": 1, "qty": 100}', Stage.AMBIGUOUS),
        ('{"side": "BUY", "qty": NaN}', Stage.JSON_PARSE),
        ('{"side": "BUY", "qty": 1e999}', Stage.JSON_PARSE),
        ('{"side": "BUY"', Stage.TRUNCATED),
        ('{"side": "BUY", "qty": 1, "note": "ri', Stage.TRUNCATED),
        ('{"side": "HOLD", "qty": 1}', Stage.SCHEMA_VALIDATION),
        ('{"side": "BUY", "qty": 1, "veto": true}', Stage.SCHEMA_VALIDATION),
        ('[{"side": "BUY", "qty": 1}]', Stage.SCHEMA_VALIDATION),
        ('"BUY"', Stage.SCHEMA_VALIDATION),
        ("42", Stage.SCHEMA_VALIDATION),
        (json.dumps(ORDER), Stage.SCHEMA_VALIDATION),
        ("[" * 300 + "]" * 300, Stage.JSON_PARSE),
        ('{"side"' * 200_000, Stage.JSON_PARSE),
    ],
)
def test_unacceptable_answer_gets_expected_verdict(text: str, stage: Stage) -> None:
    outcome = rejected(text)

    assert outcome.trace.verdict is stage
    assert outcome.errors == outcome.trace.errors != ()
    assert outcome.raw_output == text


@pytest.mark.parametrize("reason", ["max_tokens", "length", "model_context_window_exceeded"])
def test_stopped_answer_is_never_read(reason: str) -> None:
    outcome = read(response(VALID, stop_reason=reason), ORDER, STRICT)

    assert (outcome.trace.verdict, outcome.trace.decode) == (Stage.TRUNCATED, "none")


def test_answer_at_token_cap_is_truncated() -> None:
    long = response(VALID, usage=Usage(output_tokens=50))

    assert isinstance(read(long, ORDER, STRICT, max_tokens=51), Accepted)
    assert read(long, ORDER, STRICT, max_tokens=50).trace.verdict is Stage.TRUNCATED


@pytest.mark.parametrize("reason", ["refusal", "content_filter"])
def test_refusal_with_text_is_never_read(reason: str) -> None:
    outcome = read(response(VALID, stop_reason=reason), ORDER, STRICT)

    assert isinstance(outcome, Rejected)
    assert (outcome.trace.verdict, outcome.failure.category) == (Stage.REFUSAL, FailureKind.REFUSAL)


@given(
    st.dictionaries(
        st.text(max_size=4), st.integers() | st.text(max_size=9) | st.lists(st.booleans()), min_size=1
    )
)
def test_object_cut_anywhere_is_never_accepted(value: dict[str, Any]) -> None:
    text = json.dumps(value, ensure_ascii=False)

    for end in range(len(text)):
        verdict = read(response(text[:end]), {}, REASKED).trace.verdict

        assert verdict is (Stage.TRUNCATED if end else Stage.RESPONSE_EMPTY)


@given(documents().filter(lambda text: text.startswith("{")))
def test_any_strict_object_is_accepted_unchanged(text: str) -> None:
    assert accepted(text, schema={}).value == json.loads(text, parse_float=Decimal)


@given(
    ANY_TEXT | st.text('{}[]",:\\ \n0123456789.eE+-truefalsn'),
    st.sampled_from([STRICT, SEALED]),
)
def test_arbitrary_text_gets_serializable_verdict(text: str, policy: OutputPolicy) -> None:
    outcome = read(response(text), ORDER, policy)

    assert isinstance(outcome, Rejected)
    assert AttemptTrace.model_validate_json(outcome.trace.model_dump_json()) == outcome.trace


def test_sentinel_is_removed_from_answer() -> None:
    outcome = accepted('{"side": "BUY", "qty": 0.10, "end": "ok"}', policy=SEALED)

    assert outcome.value == {"side": "BUY", "qty": Decimal("0.10")}
    assert outcome.text == '{"side":"BUY","qty":0.10}'


def test_missing_sentinel_counts_as_truncated() -> None:
    assert rejected(VALID, policy=SEALED).failure.category is FailureKind.TRUNCATED


def test_wrong_sentinel_value_violates_schema() -> None:
    outcome = rejected('{"side": "BUY", "qty": 1, "end": "o"}', policy=SEALED)

    assert (outcome.trace.verdict, outcome.errors[0].path) == (Stage.SCHEMA_VALIDATION, "$.end")


def test_schema_property_colliding_with_sentinel_fails() -> None:
    schema = {"properties": {"end": {"type": "string"}}}

    assert rejected('{"end": "ok"}', schema, SEALED).trace.verdict is Stage.SCHEMA_INVALID
    assert accepted('{"end": "today"}', schema).value == {"end": "today"}


@pytest.mark.parametrize(
    "schema", [{"type": "objekt"}, {"maximum": math.nan}, {"$ref": "https://example.com/x"}]
)
def test_broken_schema_is_detected_beforehand(schema: dict[str, Any]) -> None:
    outcome, problem = rejected("{}", schema), schema_problem(schema, STRICT)

    assert outcome.trace.verdict is Stage.SCHEMA_INVALID
    assert outcome.failure.category is FailureKind.INVALID_REQUEST
    assert problem is not None
    assert "the schema cannot be used" in problem.description
    assert schema_problem(ORDER, STRICT) is None


def test_plain_text_gives_empty_object() -> None:
    outcome = accepted("Up. {", transport="text")

    assert (outcome.value, outcome.text, outcome.trace.decode) == ({}, "Up. {", "none")
    assert (
        read(response("", stop_reason="end_turn"), {}, STRICT, transport="text").trace.verdict
        is Stage.RESPONSE_EMPTY
    )


def test_thinking_is_stripped_from_plain_text() -> None:
    outcome = accepted("It may fall.</think> Up. {", transport="text")
    empty = read(response("It may fall.</think> "), {}, STRICT, transport="text")
    cut = read(response("<think>It may fall."), {}, STRICT, transport="text")

    assert (outcome.text, [fix.kind for fix in outcome.trace.fixes]) == ("Up. {", ["thinking"])
    assert outcome.raw_output == "It may fall.</think> Up. {"
    assert (empty.trace.verdict, cut.trace.verdict) == (Stage.RESPONSE_EMPTY, Stage.TRUNCATED)


def test_missing_schema_accepts_only_objects() -> None:
    assert accepted('{"anything": [1.0]}', schema={}).value == {"anything": [Decimal("1.0")]}
    assert rejected("prose", schema={}).trace.verdict is Stage.JSON_PARSE


def test_equal_repeated_key_is_recorded() -> None:
    text = '{"side": "BUY", "side": "BUY", "qty": 1}'

    outcome = accepted(text)

    assert outcome.text == '{"side":"BUY","qty":1}'
    assert [fix.where for fix in outcome.trace.fixes] == ["$.side"]
    assert [fix.where for fix in rejected(text.replace("1}", "11}")).trace.fixes] == ["$.side"]


def test_huge_invalid_answer_reports_single_error() -> None:
    assert len(rejected(f'{{"side": "BUY", "qty": 1, "legs": [{"0.5," * 200_000}1]}}').errors) == 1


@pytest.mark.parametrize("structured", [{"side": "BUY", "qty": 0.5}, {"side": "BUY", "qty": Decimal("0.5")}])
def test_provider_parsed_object_is_used_directly(structured: dict[str, Any]) -> None:
    outcome = read(response("Calling the tool.", structured=structured), ORDER, STRICT)

    assert isinstance(outcome, Accepted)
    assert (outcome.value["qty"], outcome.text) == (Decimal("0.5"), '{"side":"BUY","qty":0.5}')


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": (value,)}
    return value


@pytest.mark.parametrize(
    "structured", [{"qty": math.nan}, {"qty": math.inf}, {1: 2}, {"qty": {1}}, deep(3000)]
)
def test_invalid_provider_parsed_object_is_refused(structured: Any) -> None:
    outcome = read(response("as text", structured=structured), {}, STRICT)

    assert isinstance(outcome, Rejected)
    assert outcome.trace.verdict is Stage.JSON_PARSE
    assert read(response(outcome.raw_output), {}, STRICT).trace.verdict is Stage.JSON_PARSE


def test_logprobs_are_kept_with_answer() -> None:
    trace = read(response(VALID, logprobs=(-0.5, -1.5)), ORDER, STRICT).trace

    assert (trace.logprob_mean, trace.logprob_min) == (-1.0, -1.5)


def no_more_than_one(text: str) -> Sequence[Violation]:
    """Return a violation unless the quantity is 1."""
    wrong = Violation(path="$.qty", keyword="limit", message="is not 1", allowed=[1])
    return [] if json.loads(text)["qty"] == 1 else [wrong]


def test_semantic_check_runs_on_accepted_text() -> None:
    good, bad = '{"side": "BUY", "qty": 1}', '{"side": "BUY", "qty": 2}'

    assert accepted(good, check=no_more_than_one).trace.semantic_check == "order.v1"
    outcome = rejected(bad, check=no_more_than_one)
    assert (outcome.trace.verdict, outcome.trace.semantic_check) == (Stage.SEMANTIC, "order.v1")
    assert [v.path for v in outcome.errors] == ["$.qty"]


def test_missing_semantic_check_is_recorded() -> None:
    assert accepted(VALID).trace.semantic_check == ""
    assert accepted("{}", schema={}, check=lambda _: []).trace.semantic_check == "unnamed"


def test_semantic_check_does_not_see_sentinel() -> None:
    seen: list[str] = []

    def note(text: str) -> list[Violation]:
        seen.append(text)
        return []

    accepted('{"side": "BUY", "qty": 1, "end": "ok"}', policy=SEALED, check=note)

    assert seen == ['{"side":"BUY","qty":1}']


class Order(BaseModel):
    """A model whose own rules are stricter than the schema."""

    side: str
    qty: Decimal = Field(le=5)
    legs: list[int] = Field(default_factory=list, max_length=2)


def valid_order(text: str) -> Sequence[Violation]:
    """Let the model say what is wrong."""
    Order.model_validate_json(text)
    return ()


def test_model_violations_are_named_by_path() -> None:
    outcome = rejected('{"side": "BUY", "qty": 6, "legs": [1, 2, 3]}', check=valid_order)

    assert [(v.path, v.keyword) for v in outcome.errors] == [
        ("$.qty", "less_than_equal"),
        ("$.legs", "too_long"),
    ]


def test_value_error_of_check_becomes_violation() -> None:
    def refuse(text: str) -> Sequence[Violation]:
        raise ValueError("not today")

    outcome = rejected(VALID, check=refuse)

    assert [(v.path, v.keyword, v.message) for v in outcome.errors] == [("$", "semantic", "not today")]


@pytest.mark.parametrize(
    ("transport", "parser"), [("native_schema", "StructuredLogProbsParser"), ("prompted", "InstructorParser")]
)
def test_transport_parser_name_is_default(transport: Any, parser: str) -> None:
    assert accepted(VALID, transport=transport).trace.parser == parser
    assert accepted(VALID, transport=transport, parser="mine").trace.parser == "mine"


def verdict(stage: Stage, message: str = "wrong") -> Rejected:
    """Return a rejected answer with this verdict."""
    outcome = rejected("{", policy=REASKED)
    errors = (Violation(path="$", keyword="x", message=message),)
    return Rejected(outcome.failure, errors, "", outcome.trace.model_copy(update={"verdict": stage}))


def step(outcome: Rejected, policy: OutputPolicy = REASKED, **facts: Any) -> NextStep:
    """Return what follows from the first answer, or from what `facts` say."""
    known: dict[str, Any] = {"previous": None, "answers_read": 1, "cap_raised": False, **facts}
    return next_step(outcome, known.pop("previous"), policy, **known)


ASKED_AGAIN = [
    Stage.RESPONSE_EMPTY,
    Stage.JSON_PARSE,
    Stage.AMBIGUOUS,
    Stage.SCHEMA_VALIDATION,
    Stage.SEMANTIC,
]


@pytest.mark.parametrize("stage", ASKED_AGAIN)
def test_fixable_verdict_is_reasked_until_exhausted(stage: Stage) -> None:
    assert step(verdict(stage), answers_read=2) == AskAgain()
    assert step(verdict(stage), answers_read=3) == GiveUp("answers_used_up")
    assert step(verdict(stage), STRICT) == GiveUp("answers_used_up")


@pytest.mark.parametrize("stage", [Stage.REFUSAL, Stage.TRANSPORT, Stage.SCHEMA_INVALID])
def test_terminal_verdict_is_not_reasked(stage: Stage) -> None:
    assert step(verdict(stage)) == GiveUp("terminal")


def test_cut_answer_gets_one_raised_cap() -> None:
    assert step(verdict(Stage.TRUNCATED)) == RaiseCap()
    assert step(verdict(Stage.TRUNCATED), cap_raised=True) == GiveUp("terminal")
    assert step(verdict(Stage.TRUNCATED), STRICT) == GiveUp("terminal")


@pytest.mark.parametrize("stage", ASKED_AGAIN)
def test_repeated_errors_end_the_call(stage: Stage) -> None:
    assert step(verdict(stage), previous=verdict(stage), answers_read=2) == GiveUp("same_errors")
    assert step(verdict(stage), previous=verdict(stage, "else"), answers_read=2) == AskAgain()
    assert step(verdict(stage), previous=verdict(Stage.TRUNCATED), answers_read=2) == AskAgain()


@given(st.text(min_size=1), st.text(min_size=1))
def test_errors_match_only_with_equal_values(first: str, second: str) -> None:
    assume({first, second}.isdisjoint(ORDER["properties"]["side"]["enum"]))
    outcomes = [rejected(json.dumps({"side": side, "qty": 1}), policy=REASKED) for side in (first, second)]

    again = step(outcomes[1], previous=outcomes[0], answers_read=2)

    assert again == (GiveUp("same_errors") if first == second else AskAgain())


def test_failure_recoverability_follows_verdict() -> None:
    assert rejected("prose", ANSWER).failure.recoverable
    assert not rejected("{", ANSWER).failure.recoverable
