"""What other readers turn into a wrong order is refused here, each row of the list at the stage that sees it."""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest

from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.envelope_rules import output_policy
from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.llm.result import Stage
from agentic_trading.structured import Accepted, ParserException, Rejected, read, read_json
from agentic_trading.structured.engine import GiveUp, next_step
from tests.build import response

EXECUTION = output_policy(EnvelopeWorkflow.EXECUTION)
PLANNING = output_policy(EnvelopeWorkflow.PLANNING)
ANALYSIS = output_policy(EnvelopeWorkflow.ANALYSIS)
GENERAL = output_policy(EnvelopeWorkflow.GENERAL)
LOSSLESS = output_policy(mode="lossless")
POLICIES = {"execution": EXECUTION, "planning": PLANNING, "analysis": ANALYSIS, "lossless": LOSSLESS}

LEG: dict[str, Any] = {
    "type": "object",
    "properties": {"side": {"enum": ["BUY", "SELL"]}, "qty": {"type": "integer"}},
    "required": ["side", "qty"],
    "additionalProperties": False,
}
ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "side": {"enum": ["BUY", "SELL", "HOLD"]},
        "qty": {"type": "number", "minimum": 0},
        "limit_price": {"type": "number"},
        "tif": {"enum": ["GTC", "IOC"]},
        "reduce_only": {"type": "boolean"},
        "stop_loss": {"type": "number"},
        "lots": {"type": "integer"},
        "legs": {"type": "array", "items": {"type": "number"}},
        "orders": {"type": "array", "items": LEG},
        "note": {"type": "string"},
        "veto": {"type": "boolean"},
    },
    "required": ["side", "qty"],
    "additionalProperties": False,
}

TRUNCATED, JSON_PARSE, AMBIGUOUS = Stage.TRUNCATED, Stage.JSON_PARSE, Stage.AMBIGUOUS
SCHEMA = Stage.SCHEMA_VALIDATION


@dataclass(frozen=True, slots=True)
class Row:
    """Texts of one danger, and the stage that refuses them: in general, and where a policy sees them earlier or later.

    A policy whose stage is None accepts the text, by its own rule. `~` stands for the sentinel where one is asked for.
    """

    name: str
    texts: tuple[str, ...]
    stage: Stage
    besides: dict[str, Stage | None] = field(default_factory=dict)


def closed(*values: str) -> tuple[str, ...]:
    return tuple(f'{{"side":"BUY","qty":{value}~}}' for value in values)


WHOLE_ONLY: dict[str, Stage | None] = {"execution": JSON_PARSE}
ROWS = [
    Row(
        "a number cut in its digits",
        ('{"side":"BUY","limit_price":42500,"qty":0.1', '{"side":"BUY","qty":1,"limit_price":4250'),
        TRUNCATED,
    ),
    Row("a number cut behind its point", ('{"side":"BUY","qty":0.',), TRUNCATED),
    Row("a number with nothing behind its point", closed("0."), JSON_PARSE),
    Row(
        "a number cut in its exponent or sign",
        tuple(f'{{"side":"BUY","qty":{n}' for n in ("1.5e", "15e-", "-")),
        TRUNCATED,
    ),
    Row("a number without its exponent or digits", closed("1.5e", "15e-", "-"), JSON_PARSE),
    Row(
        "a list cut in or behind an item",
        (
            '{"side":"BUY","qty":1,"legs":[100,250,3',
            '{"side":"BUY","qty":1,"orders":[{"side":"BUY","qty":1},{"side":"SELL","qty":2}',
        ),
        TRUNCATED,
    ),
    Row(
        "a literal cut short",
        ('{"side":"BUY","qty":1,"reduce_only":tru', '{"side":"BUY","qty":1,"reduce_only":f'),
        TRUNCATED,
    ),
    Row("a literal cut short and closed", closed('1,"reduce_only":tru', '1,"reduce_only":f'), JSON_PARSE),
    Row("a key cut before its value", ('{"side":"BUY","qty":1,"reduce_only":',), TRUNCATED),
    Row("an enum cut in its text", ('{"side":"BUY","qty":1,"tif":"GT',), TRUNCATED),
    Row("an enum cut and closed", closed('1,"tif":"GT"'), SCHEMA),
    Row("a key twice with two values", closed('1,"qty":100', '1,"\\u0071ty":100'), AMBIGUOUS),
    Row("a bare number with thousands commas", closed("1,000", "42,500.50"), JSON_PARSE),
    Row("a number in words", closed('"1,000"', '"0,5"', '"10%"', '"$42,500"', '"1 000"', '"NaN"'), SCHEMA),
    Row(
        "a bare number with a unit, a fraction, a range or a leading zero",
        closed("10%", "$42500", "1/3", "42500-42600", "010", "1_000", "0x10", "+5", ".5", "5 BTC"),
        JSON_PARSE,
    ),
    Row(
        "not a number, or one beyond all range",
        closed("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "undefined"),
        JSON_PARSE,
    ),
    Row(
        "an ellipsis where something was left out",
        closed('1,"legs":[1,2,...]', '1,"legs":[1,…]', "1,...", '1,"note":...'),
        JSON_PARSE,
    ),
    Row(
        "an answer, then an example",
        ('{"side":"HOLD","qty":0}\nFor example: {"side":"BUY","qty":5}',),
        AMBIGUOUS,
        {**WHOLE_ONLY, "analysis": None},
    ),
    Row(
        "a draft, then an answer",
        ('Draft: {"side":"BUY","qty":5}\nFinal: {"side":"HOLD","qty":0}',),
        AMBIGUOUS,
        {**WHOLE_ONLY, "analysis": None},
    ),
    Row(
        "a whole object in a cut one",
        (
            '{"plan":{"side":"BUY","qty":5},"veto":tr',
            '[{"side":"BUY","qty":5}',
            '{"plan":{"side":"BUY","qty":5}\n',
            'Plan: {"plan": \'x\', "order": {"side":"BUY","qty":5}',
        ),
        TRUNCATED,
    ),
    Row(
        "members behind the end of the object",
        (
            '{"side":"BUY","qty":5}, "veto": true}',
            '{"side":"BUY","qty":5},"veto":true',
            '{"side":"BUY","qty":5},,\n',
            '{"side":"BUY","qty":5}\n"veto": true',
            '{"side":"BUY","qty":5}, veto: true',
        ),
        AMBIGUOUS,
        WHOLE_ONLY,
    ),
    Row(
        "members before the beginning of the object",
        ('"veto": true,\n{"side":"BUY","qty":5}', '"order": {"side":"BUY","qty":5}'),
        AMBIGUOUS,
        WHOLE_ONLY,
    ),
    Row(
        "a comment that hides a value",
        ('{"side":"BUY",/* "qty": 5 */ "qty": 1~}', '{"side":"BUY","qty":1~} // "lots": 3'),
        AMBIGUOUS,
        {**WHOLE_ONLY, "analysis": None, "lossless": None},
    ),
    Row(
        "a comment that hides a protected value",
        (
            '{"side":"BUY", // "reduce_only": true\n "qty": 1~}',
            '{"side":"BUY", # reduceOnly: true\n "qty": 1~}',
            '{"side":"BUY","qty":1~} /* "veto": true */',
            f'/* {"of no importance " * 20} "veto": true */ {{"side":"BUY","qty":1~}}',
        ),
        AMBIGUOUS,
        WHOLE_ONLY,
    ),
    Row(
        "an object that stands in a comment",
        (
            '// {"side":"BUY","qty":5}',
            '# {"side":"BUY","qty":5}',
            '{"side":"HOLD","qty":0} /* {"side":"BUY","qty":5} */',
        ),
        AMBIGUOUS,
        WHOLE_ONLY,
    ),
    Row(
        "a key without its value",
        (*closed('1,"stop_loss":'), '{"side":"BUY","stop_loss":,"qty":1~}', '{"side":,"qty":1~}'),
        JSON_PARSE,
    ),
    Row(
        "brackets that do not match",
        ('{"side":"BUY","qty":1,"legs":[1,2}]', '{"side":"BUY","qty":1]}', '{"side":"BUY","qty":1}]', '{"side":"BUY","qty":1}}}', '}{"side":"BUY","qty":1}'),
        JSON_PARSE,
    ),
    Row("a bracket that is never closed", ('{"side":"BUY","qty":1,"legs":[1,2}',), JSON_PARSE, {"execution": TRUNCATED}),
    Row("quotes inside a text, an odd number", ('{"qty":1,"note":"risk on, "side":"SELL"}',), JSON_PARSE, {"execution": TRUNCATED}),
    Row("quotes inside a text, an even number", closed('1,"note":"a "risk on" day"'), JSON_PARSE),
    Row("a required value that is missing", ('{"qty":1~}', '{"side":"BUY"~}'), SCHEMA),
    Row(
        "one bad item in a list of orders",
        closed('1,"orders":[{"side":"BUY","qty":1},{"side":"WAIT","qty":1}]', '1,"orders":[{"side":"BUY","qty":1},{}]'),
        SCHEMA,
    ),
    Row("a fraction for a whole number", closed('1,"lots":0.5', '1,"lots":2.5', '1,"lots":"2.5"'), SCHEMA),
    Row("a refusal in prose", ("I'm sorry, but I can't help with placing orders.",), JSON_PARSE),
    Row("thinking that was cut", ('<think>I could answer {"side":"BUY","qty":5} but',), TRUNCATED, WHOLE_ONLY),
]  # fmt: skip


def verdict(text: str, policy: OutputPolicy, **more: Any) -> Stage | None:
    """Return the stage at which `text` is refused as an order, or None if it is taken."""
    sealed = text.replace("~", ',"end":"ok"' if policy.require_sentinel else "")
    outcome = read(response(sealed, **more), ORDER, policy)
    return outcome.trace.verdict if isinstance(outcome, Rejected) else None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "_").replace(",", ""))
def test_danger_is_refused_at_expected_stage(row: Row) -> None:
    for text in row.texts:
        found = {name: verdict(text, policy) for name, policy in POLICIES.items()}
        assert found == {name: row.besides.get(name, row.stage) for name in POLICIES}, text


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize(
    ("stop_reason", "stage"),
    [
        ("refusal", Stage.REFUSAL),
        ("content_filter", Stage.REFUSAL),
        ("max_tokens", TRUNCATED),
        ("length", TRUNCATED),
        ("model_context_window_exceeded", TRUNCATED),
    ],
)
def test_stop_reason_refuses_perfect_order(stop_reason: str, stage: Stage, policy: OutputPolicy) -> None:
    assert verdict('{"side":"BUY","qty":1~}', policy, stop_reason=stop_reason) is stage


@pytest.mark.parametrize("stop_reason", ["refusal", "model_context_window_exceeded"])
def test_refusal_and_full_context_are_terminal(stop_reason: str) -> None:
    outcome = read(response('{"side":"BUY","qty":1}', stop_reason=stop_reason), ORDER, LOSSLESS)

    assert isinstance(outcome, Rejected)
    assert next_step(outcome, None, LOSSLESS, answers_read=1, cap_raised=False) == GiveUp("terminal")


def taken(text: str, policy: OutputPolicy) -> Accepted:
    outcome = read(response(text), ORDER, policy)
    assert isinstance(outcome, Accepted), outcome
    return outcome


@pytest.mark.parametrize(
    ("text", "side"),
    [
        ('{"side":"HOLD","qty":0}\nFor example: {"side":"BUY","qty":5}', "BUY"),
        ('Draft: {"side":"BUY","qty":5}\nFinal: {"side":"HOLD","qty":0}', "HOLD"),
    ],
)
def test_analysis_accepts_last_lossless_view(text: str, side: str) -> None:
    outcome = taken(text, ANALYSIS)

    assert (outcome.value["side"], outcome.trace.decode) == (side, "lossless")


def test_commented_key_is_recorded_when_dropped() -> None:
    outcome = taken('{"side":"BUY",/* "qty": 5 */ "qty": 1}', ANALYSIS)

    assert outcome.value == {"side": "BUY", "qty": 1}
    assert [(fix.kind, fix.before) for fix in outcome.trace.fixes] == [("hidden_key", '/* "qty": 5 */')]


@pytest.mark.parametrize("policy", [PLANNING, ANALYSIS, LOSSLESS])
def test_equal_repeated_key_is_logged(policy: OutputPolicy) -> None:
    outcome = taken('{"side":"BUY","qty":1,"qty":1}', policy)

    assert outcome.text == '{"side":"BUY","qty":1}'
    assert [(fix.kind, fix.where) for fix in outcome.trace.fixes] == [("repeated_key", "$.qty")]


@pytest.mark.parametrize("policy", [PLANNING, ANALYSIS, LOSSLESS])
@pytest.mark.parametrize(
    "number", ["9" * 100, "0.12345678901234567890123", "42500.10", "12345678901234567890.5"]
)
def test_long_numbers_keep_each_digit(number: str, policy: OutputPolicy) -> None:
    outcome = taken(f'{{"side":"BUY","qty":{number},}}', policy)

    assert outcome.value["qty"] == Decimal(number)
    assert f'"qty":{number}' in outcome.text


@pytest.mark.parametrize("policy", [PLANNING, ANALYSIS, LOSSLESS])
def test_trailing_line_break_is_kept(policy: OutputPolicy) -> None:
    assert taken('{"side":"BUY","qty":1,"note":"a\\n"}', policy).value["note"] == "a\n"
    assert taken('{"side":"BUY","qty":1,"note":"a\n"}', policy).value["note"] == "a\n"


@pytest.mark.parametrize(
    "text", ['{"qty":1,}', 'Qty 5. {"qty":5 "lots": }', "{qty: 1, side: }", '{"side" "qty": 1}']
)
def test_salvage_never_invents_order_side(text: str) -> None:
    outcome = read(response(text), ORDER, GENERAL)

    assert isinstance(outcome, Rejected)


@pytest.mark.parametrize("mode", ["strict", "lossless"])
def test_inner_object_of_cut_answer_refused(mode: Any) -> None:
    with pytest.raises(ParserException) as refused:
        read_json('{"plan":{"side":"BUY","qty":5},"veto":tr', mode=mode)

    assert refused.value.stage is TRUNCATED
