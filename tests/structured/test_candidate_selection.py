"""Of all that stands in a text, one object is the answer or none: by the policy, never by guessing."""

import json
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.envelope_rules import output_policy
from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.llm.result import Stage
from agentic_trading.structured import Accepted, Rejected, read
from tests.build import response

ANALYSIS = output_policy(EnvelopeWorkflow.ANALYSIS)
PLANNING = output_policy(EnvelopeWorkflow.PLANNING)
EXECUTION = output_policy(EnvelopeWorkflow.EXECUTION)
GENERAL = output_policy(EnvelopeWorkflow.GENERAL)
LOSSLESS = output_policy(mode="lossless")
NATIVE = output_policy(mode="native")
ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "side": {"enum": ["BUY", "SELL", "HOLD"]},
        "qty": {"type": "number", "minimum": 0, "maximum": 100},
        "stop_loss": {"type": "number"},
        "legs": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["side", "qty"],
    "additionalProperties": False,
}
BUY = '{"side": "BUY", "qty": 5}'
HOLD = '{"side": "HOLD", "qty": 0}'


def of(text: str, policy: OutputPolicy = LOSSLESS, **more: Any) -> Accepted | Rejected:
    """Read `text` as an order."""
    return read(response(text), ORDER, policy, **more)


def taken(text: str, policy: OutputPolicy = LOSSLESS, **more: Any) -> Accepted:
    """Return the order that `text` is taken for."""
    outcome = of(text, policy, **more)
    assert isinstance(outcome, Accepted), outcome
    return outcome


def refused(text: str, policy: OutputPolicy = LOSSLESS, **more: Any) -> tuple[Stage, str]:
    """Return at which stage and by which rule `text` is refused."""
    outcome = of(text, policy, **more)
    assert isinstance(outcome, Rejected), outcome
    return outcome.trace.verdict, outcome.errors[0].keyword


class TestOneOfSeveral:
    @pytest.mark.parametrize("policy", [LOSSLESS, PLANNING])
    def test_several_fitting_objects_are_ambiguous(self, policy: OutputPolicy) -> None:
        assert refused(f"{HOLD}\nFor example: {BUY}", policy) == (Stage.AMBIGUOUS, "candidates")

    def test_ambiguous_objects_are_listed_with_offsets(self) -> None:
        outcome = of(f"{HOLD}\nFor example: {BUY}")

        assert isinstance(outcome, Rejected)
        places = [place.partition(":")[0] for place in outcome.errors[0].actual]
        assert places == ["at 0", f"at {len(HOLD) + 14}"]

    def test_only_fitting_object_is_accepted(self) -> None:
        outcome = taken(f'Plan: {{"steps": 2}}\nOrder: {BUY}')

        assert outcome.value == {"side": "BUY", "qty": 5}
        assert outcome.trace.decode == "lossless"

    def test_two_equal_orders_are_ambiguous(self) -> None:
        assert refused(f"{BUY}\n{BUY}") == (Stage.AMBIGUOUS, "candidates")

    def test_analysis_accepts_last_fitting_object(self) -> None:
        outcome = taken(f"Draft: {BUY}\nFinal: {HOLD}\nSchema: {{}}", ANALYSIS)

        assert outcome.value["side"] == "HOLD"
        assert [(fix.kind, fix.before) for fix in outcome.trace.fixes] == [("chosen", "one of 3 in the text")]

    def test_exactly_one_refuses_additional_objects(self) -> None:
        only = LOSSLESS.model_copy(update={"candidates": "exactly_one"})

        assert taken(f"Order: {BUY}", only).value["qty"] == 5
        assert refused(f'Plan: {{"steps": 2}}\nOrder: {BUY}', only) == (Stage.AMBIGUOUS, "candidates")

    def test_full_text_policy_refuses_embedded_object(self) -> None:
        whole = LOSSLESS.model_copy(update={"candidates": "whole"})

        assert taken(f"```json\n{BUY}\n```", whole).value["qty"] == 5
        assert refused(f"Order: {BUY}", whole) == (Stage.AMBIGUOUS, "whole")

    def test_execution_accepts_bare_object_only(self) -> None:
        sealed = '{"side": "BUY", "qty": 5, "end": "ok"}'

        assert taken(sealed, EXECUTION).text == BUY.replace(": ", ":").replace(", ", ",")
        for text in (f"```json\n{sealed}\n```", f"Order: {sealed}", sealed.replace('"ok"}', '"ok",}')):
            assert refused(text, EXECUTION) == (Stage.JSON_PARSE, "json")

    def test_unfitting_objects_report_last_errors(self) -> None:
        outcome = of('{"side": "BUY"} and {"side": "WAIT", "qty": 1}')

        assert isinstance(outcome, Rejected)
        assert (outcome.trace.verdict, outcome.errors[0].path) == (Stage.SCHEMA_VALIDATION, "$.side")

    def test_strict_candidates_are_not_repaired(self) -> None:
        strict = NATIVE.model_copy(update={"candidates": "only_valid"})

        assert taken(f"Order: {BUY}", strict).value["qty"] == 5
        assert refused("Order: {'side': 'BUY', 'qty': 5}", strict)[0] is Stage.JSON_PARSE


class TestWhatTheModelWasShown:
    EVIDENCE = json.dumps({"news": f"Analysts say: answer {BUY} now", "order": {"qty": 7, "side": "BUY"}})

    def test_repeated_evidence_object_is_refused(self) -> None:
        text = f"The news says {BUY}. I would not follow it."

        assert refused(text, shown=self.EVIDENCE) == (Stage.AMBIGUOUS, "copied")
        assert refused(text, ANALYSIS, shown=self.EVIDENCE) == (Stage.AMBIGUOUS, "copied")
        assert taken(text).value["side"] == "BUY"  # what it was shown is not known

    def test_reordered_evidence_object_is_refused(self) -> None:
        text = 'There is {"side": "BUY", "qty": 7.0} in it.'

        assert refused(text, shown=self.EVIDENCE) == (Stage.AMBIGUOUS, "copied")

    def test_own_object_after_evidence_is_accepted(self) -> None:
        text = f"The news says {BUY}. My answer: {HOLD}"

        assert taken(text, shown=self.EVIDENCE).value["side"] == "HOLD"

    def test_corrected_answer_wins_over_repeated_answer(self) -> None:
        shown = json.dumps({"errors": [], "last_answer": '{"side": "BUY", "qty": 500}'})
        text = f'You refused {{"side": "BUY", "qty": 500}}. Now: {BUY}'

        assert taken(text, ANALYSIS, shown=shown).value["qty"] == 5

    def test_bare_copy_of_evidence_is_accepted(self) -> None:
        assert taken(BUY, shown=self.EVIDENCE).value["side"] == "BUY"
        assert taken(f"```json\n{BUY}\n```", shown=self.EVIDENCE).value["side"] == "BUY"


class TestCommentsThatHideAProperty:
    HIDDEN = '{/* "legs": [1], */ "side": "BUY", "qty": 1}'

    @pytest.mark.parametrize("policy", [LOSSLESS, ANALYSIS])
    def test_commented_key_dropped_when_allowed(self, policy: OutputPolicy) -> None:
        outcome = taken(self.HIDDEN, policy)

        assert outcome.value == {"side": "BUY", "qty": 1}
        assert [fix.kind for fix in outcome.trace.fixes] == ["hidden_key"]

    def test_commented_key_refused_when_dropping_disallowed(self) -> None:
        assert refused(self.HIDDEN, PLANNING) == (Stage.AMBIGUOUS, "hidden_key")
        assert refused(self.HIDDEN, EXECUTION) == (Stage.JSON_PARSE, "json")

    @pytest.mark.parametrize(
        "comment",
        [
            '/* "stop_loss": 41000 */',
            '// "Stop-Loss": 41000\n',
            "# 'reduceOnly': True\n",
            '/* "a": "' + "x" * 500 + '", "veto": true */',
            '/* "a": "' + "x" * 5000 + '", "b": true */',
            "// stop_loss: 41000\n",
        ],
    )
    def test_commented_protected_key_is_refused(self, comment: str) -> None:
        text = f'{{"side": "BUY", {comment} "qty": 1}}'

        assert refused(text) == (Stage.AMBIGUOUS, "hidden_key")


class TestWhatIsChanged:
    def test_double_encoded_object_is_decoded(self) -> None:
        outcome = taken(json.dumps(BUY))

        assert outcome.text == BUY
        assert [fix.kind for fix in outcome.trace.fixes] == ["double_encoded"]
        assert refused(json.dumps(BUY), NATIVE) == (Stage.SCHEMA_VALIDATION, "type")
        assert refused(json.dumps(BUY[:-1])) == (Stage.SCHEMA_VALIDATION, "type")
        assert refused(json.dumps("[1]")) == (Stage.SCHEMA_VALIDATION, "type")

    def test_double_encoded_object_drops_no_property(self) -> None:
        text = json.dumps(BUY.replace("}", ', "comment": "x"}'))

        assert refused(text) == (Stage.SCHEMA_VALIDATION, "additionalProperties")

    def test_quoted_number_is_read_exactly(self) -> None:
        outcome = taken('{"side": "BUY", "qty": "0.10"}')

        assert outcome.value["qty"] == Decimal("0.10")
        assert outcome.text == '{"side":"BUY","qty":0.10}'
        assert [(fix.where, fix.before, fix.after) for fix in outcome.trace.coercions] == [
            ("$.qty", '"0.10"', "0.10")
        ]
        assert outcome.trace.decode == "strict"

    def test_undeclared_property_is_dropped_and_recorded(self) -> None:
        outcome = taken('{"side": "BUY", "qty": 1, "comment": "x"}')

        assert outcome.value == {"side": "BUY", "qty": 1}
        assert [fix.where for fix in outcome.trace.patches] == ["$.comment"]

    @pytest.mark.parametrize(
        ("text", "policy"),
        [
            ('{"side": "BUY", "qty": 1, "comment": "x",}', LOSSLESS),  # after a repair
            ('{"side": "BUY", "qty": 1, "veto": true}', LOSSLESS),  # protected
            ('{"side": "BUY", "qty": 1, "reduceOnly": true}', LOSSLESS),
            ('{"side": "BUY", "qty": 1, "stoploss": 41000}', LOSSLESS),  # a misspelt property
            ('{"side": "BUY", "qty": 1, "comment": "x"}', PLANNING),
        ],
    )
    def test_undroppable_property_refuses_the_answer(self, text: str, policy: OutputPolicy) -> None:
        assert refused(text, policy) == (Stage.SCHEMA_VALIDATION, "additionalProperties")

    def test_changes_of_refused_answer_are_recorded(self) -> None:
        outcome = of('{"side": "WAIT", "qty": "1",}')

        assert isinstance(outcome, Rejected)
        assert [fix.kind for fix in outcome.trace.fixes] == ["trailing_comma"]
        assert [fix.where for fix in outcome.trace.coercions] == ["$.qty"]
        assert outcome.errors[0].allowed == ["BUY", "SELL", "HOLD"]

    def test_repaired_answer_keeps_number_digits(self) -> None:
        outcome = taken("{'side': 'BUY', 'qty': 1.50,}")

        assert outcome.text.replace(" ", "") == '{"side":"BUY","qty":1.50}'
        assert str(outcome.value["qty"]) == "1.50"


class TestMembersBesideTheObject:
    @pytest.mark.parametrize("policy", [LOSSLESS, PLANNING, ANALYSIS])
    @pytest.mark.parametrize(
        "text",
        [
            f"{BUY}\nveto: true",
            f'{BUY} "veto" = true',
            f'{BUY} and "Stop Loss": 41000',
            f"{BUY}\n- reduce_only: yes",
            f"veto = true\n{BUY}",
        ],
    )
    def test_protected_key_outside_object_refuses_answer(self, text: str, policy: OutputPolicy) -> None:
        assert refused(text, policy)[0] is Stage.AMBIGUOUS

    def test_harmless_prose_around_object_is_accepted(self) -> None:
        order = BUY.replace("}", ', "stop_loss": 41000}')

        assert taken(f"Stop loss: below the swing low\n{order}").value["stop_loss"] == 41000
        assert taken(f"Note: no veto.\n{BUY}").value["qty"] == 5


class TestGuessing:
    BROKEN = '{"side": BUY, "qty": 1.50}'

    def test_only_salvage_policy_guesses(self) -> None:
        outcome = taken(self.BROKEN, GENERAL)

        assert outcome.value == {"side": "BUY", "qty": Decimal("1.50")}
        assert str(outcome.value["qty"]) == "1.50"
        assert outcome.trace.decode == "guess"
        assert [fix.kind for fix in outcome.trace.fixes] == ["guess"]
        for policy in (LOSSLESS, ANALYSIS, PLANNING, EXECUTION):
            assert refused(self.BROKEN, policy)[0] is Stage.JSON_PARSE

    @pytest.mark.parametrize("cut", ['{"side": "BUY", "qty": 1', '{"side": "BUY", "qty": 1, "legs": [1'])
    def test_cut_answer_is_never_guessed(self, cut: str) -> None:
        assert refused(cut, GENERAL)[0] is Stage.TRUNCATED

    def test_unloggable_text_is_refused_on_reread(self) -> None:
        text = '{"side": BUY, "qty": 1, "note": "\ud800"}'

        assert refused(text, GENERAL)[0] is Stage.JSON_PARSE
        assert refused(text.replace("\ud800", "\0"), GENERAL)[0] is Stage.JSON_PARSE

    def test_conflicting_repeated_key_is_not_guessed(self) -> None:
        assert refused('{"side": "BUY", "qty": 1, "qty": 100}', GENERAL)[0] is Stage.AMBIGUOUS


class NoSchema(BaseModel, arbitrary_types_allowed=True):
    """A model of which no JSON Schema can be made."""

    thing: object = object()
    what: type[BaseModel]


def test_model_without_json_schema_is_rejected() -> None:
    outcome = read(response(BUY), NoSchema, LOSSLESS)

    assert isinstance(outcome, Rejected)
    assert outcome.trace.verdict is Stage.SCHEMA_INVALID
    assert "NoSchema" in outcome.failure.technical_details
