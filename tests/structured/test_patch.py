"""A value is changed where its schema leaves one way to do so; nothing is invented, and every change is on record."""

from decimal import Decimal
from typing import Any

import orjson
import pytest

from agentic_trading.canonical import canonical_bytes, exact_bytes
from agentic_trading.structured.validation import compile_schema, find_violations
from tests.structured.patching import (
    BOOLEAN,
    CLOSED,
    INTEGER,
    NULL,
    NUMBER,
    PLAN,
    STRING,
    STRINGS,
    at_x,
    change,
    same,
)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("42", INTEGER, 42),
        ("-7", INTEGER, -7),
        ("0", INTEGER, 0),
        ("123456789012345678901234567890", INTEGER, 123456789012345678901234567890),
        ("42", NUMBER, 42),
        ("42.0", NUMBER, Decimal("42.0")),
        ("0.10", NUMBER, Decimal("0.10")),
        ("0.1234567890123456789", NUMBER, Decimal("0.1234567890123456789")),
        ("1e3", NUMBER, Decimal("1e3")),
        ("-0.0", NUMBER, Decimal("-0.0")),
        ("true", BOOLEAN, True),
        ("false", BOOLEAN, False),
        ("5", {"type": ["integer", "null"]}, 5),
        ("20", {"enum": [5, 10, 20]}, 20),
        ("0.10", {"enum": [0.08, 0.1]}, Decimal("0.10")),
        ("5", {"enum": ["auto", 5]}, 5),
        ("true", {"const": True}, True),
        ("5", {"anyOf": [INTEGER, NULL]}, 5),
        ("5", {"anyOf": [INTEGER, NUMBER]}, 5),
        ("5", {"oneOf": [INTEGER, NULL]}, 5),
        ("42500", {"anyOf": [INTEGER, {"type": "string", "enum": ["market"]}]}, 42500),
        ("5", {"allOf": [INTEGER, NUMBER]}, 5),
        ("5", {"anyOf": [{"anyOf": [INTEGER, BOOLEAN]}, NULL]}, 5),
    ],
)
def test_exact_string_value_is_converted(text: str, schema: dict[str, Any], value: Any) -> None:
    result = change({"x": text}, {"properties": {"x": schema}})

    assert same(result.value["x"], value)
    assert result.violations == []
    (fix,) = result.coercions
    assert (fix.where, fix.before, fix.after) == ("$.x", f'"{text}"', exact_bytes(value).decode())
    assert result.patches == ()


@pytest.mark.parametrize(
    "schema",
    [INTEGER, NUMBER, BOOLEAN, {"anyOf": [INTEGER, BOOLEAN, NULL]}, {"enum": [1, 5, 10, True]}, PLAN],
)
@pytest.mark.parametrize(
    "value",
    [
        "", " ", "null", "None", "yes", "no", "True", "FALSE", "on", " 5 ", "5 ", "+5", "05", "5.", ".5", "0x5",
        "1,000", "0,5", "10%", "$4", "4 USD", "1/3", "1_000", "NaN", "Infinity", "1e999", "-0x", "\u0665", "five", "1e", "--1",
        "[1]", "[]", "{", '{"a": 1} {"a": 2}', '{"stop": 1, "stop": 1}', "9" * 400,
    ],
)  # fmt: skip
def test_string_needing_interpretation_is_unchanged(schema: dict[str, Any], value: str) -> None:
    result = change({"x": value}, {"properties": {"x": schema}})

    assert result.value == {"x": value}
    assert result.coercions == result.patches == ()
    assert result.violations == find_violations(
        {"x": value}, compile_schema(canonical_bytes({"properties": {"x": schema}}))
    )


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("42.0", INTEGER),
        ("1e3", INTEGER),
        ("-0", INTEGER),
        (1, BOOLEAN),
        (0, BOOLEAN),
        (42, STRING),
        (True, STRING),
        (True, INTEGER),
        (Decimal("0.5"), INTEGER),
        (None, INTEGER),
        (None, STRINGS),
        (None, STRING),
        ([5], INTEGER),
        ([], NULL),
        ({"a": 1}, STRINGS),
        ({"a": 1}, STRING),
        ("42", NULL),
        ("25", {"enum": [5, 10, 20, 30]}),
        ("BUYY", {"enum": ["BUY", "SELL"]}),
        ("buy", {"enum": ["BUY", "SELL"]}),
        ("5", {"not": {"type": "string"}}),
        ("5", False),
        ("5.0", {"allOf": [INTEGER, NUMBER]}),
        (1.5, {"type": "number", "maximum": 1}),
    ],
)
def test_lossy_change_is_not_made(value: Any, schema: dict[str, Any]) -> None:
    assert same(at_x(value, schema), value)


def test_converted_string_may_violate_rule() -> None:
    result = change({"x": "42"}, {"properties": {"x": {"type": "integer", "maximum": 10}}})

    assert result.value == {"x": 42}
    assert [(v.path, v.keyword, v.actual) for v in result.violations] == [("$.x", "maximum", 42)]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (STRING, "5"),
        ({"anyOf": [INTEGER, STRING]}, "5"),
        ({"oneOf": [BOOLEAN, STRING]}, "true"),
        ({"type": ["number", "string"]}, "0.10"),
        ({"anyOf": [PLAN, STRING]}, '{"stop": 1}'),
        (STRINGS, ["5", "true", '{"a": 1}']),
        ({}, "5"),
    ],
)
def test_fitting_value_is_unchanged(schema: dict[str, Any], value: Any) -> None:
    whole = {"x": value}
    result = change(whole, {"properties": {"x": schema}})

    assert result.value is whole
    assert (result.coercions, result.patches, result.violations) == ((), (), [])


class TestObjectsInStrings:
    """A string that is one strict JSON object, where an object is wanted and a string is not."""

    def test_object_string_is_decoded_and_recorded(self) -> None:
        result = change({"plan": '\n {"stop": 0.10}\n'}, {"properties": {"plan": PLAN}})

        assert same(result.value, {"plan": {"stop": Decimal("0.10")}})
        (fix,) = result.coercions
        assert (fix.kind, fix.where) == ("double_encoded", "$.plan")
        assert (fix.before, fix.after) == ('"\\n {\\"stop\\": 0.10}\\n"', '{"stop":0.10}')

    def test_decoded_object_is_changed_further(self) -> None:
        inner = orjson.dumps({"stop": "1.50", "legs": 7}).decode()
        result = change({"plan": inner}, {"properties": {"plan": PLAN}})

        assert same(result.value, {"plan": {"stop": Decimal("1.50"), "legs": [7]}})
        assert [fix.kind for fix in result.coercions] == ["double_encoded", "number"]
        assert [fix.where for fix in result.patches] == ["$.plan.legs"]

    def test_nested_object_strings_are_decoded(self) -> None:
        nested: Any = {"v": "5"}
        for _ in range(4):
            nested = {"c": orjson.dumps(nested).decode()}
        node = {"type": "object", "properties": {"c": {"$ref": "#"}, "v": INTEGER}}

        assert change(nested, node).value == {"c": {"c": {"c": {"c": {"v": 5}}}}}

    def test_root_object_string_is_decoded(self) -> None:
        assert change('{"stop": 1}', PLAN).value == {"stop": 1}

    @pytest.mark.parametrize(
        "text",
        [
            "{'stop': 1}",
            '{"stop": 1,}',
            '{"stop": NaN}',
            '{"stop": 1} and more',
            '```json\n{"stop": 1}\n```',
            '"{\\"stop\\": 1}"',
        ],
    )
    def test_invalid_object_string_is_unchanged(self, text: str) -> None:
        assert at_x(text, PLAN) == text

    def test_string_choice_prevents_decoding(self) -> None:
        short = {"type": "string", "maxLength": 3}

        assert at_x('{"stop": 1}', {"anyOf": [PLAN, short]}) == '{"stop": 1}'
        assert at_x('{"stop": 1}', {"anyOf": [PLAN, NULL]}) == {"stop": 1}

    def test_too_deep_object_string_is_unchanged(self) -> None:
        deep = "[" * 100 + "]" * 100
        value: Any = {"v": f'{{"v": {deep}}}'}
        for _ in range(40):
            value = {"c": value}
        node = {"properties": {"c": {"$ref": "#"}, "v": {"type": "object"}}}

        assert change(value, node).value == value


class TestLists:
    """A scalar, where a list is wanted whose items take it as it is."""

    @pytest.mark.parametrize("value", ["BTCUSDT", "strong trend", "BTC/USD"])
    def test_scalar_becomes_single_item_list(self, value: str) -> None:
        result = change({"x": value}, {"properties": {"x": STRINGS}})

        assert result.value == {"x": [value]}
        assert [(f.kind, f.where, f.before, f.after) for f in result.patches] == [
            ("wrapped", "$.x", f'"{value}"', f'["{value}"]')
        ]
        assert result.coercions == ()

    @pytest.mark.parametrize(
        ("value", "schema"),
        [
            ("42", {"type": "array", "items": INTEGER}),
            ("HOLD", {"type": "array", "items": {"enum": ["BUY", "SELL"]}}),
            (5, {"type": "array", "items": INTEGER, "minItems": 2}),
            (5, {"type": "array", "items": {"type": "array", "items": INTEGER}}),
            ('["a"]', STRINGS),
            ("[a, b]", STRINGS),
            ('{"a": 1}', STRINGS),
            ('"a"', STRINGS),
            ("42", STRINGS),
            ("null", STRINGS),
            ("", STRINGS),
            ("  ", STRINGS),
            ("BTCUSDT, ETHUSDT", STRINGS),
            ("BTCUSDT;ETHUSDT", STRINGS),
            ("BTCUSDT|ETHUSDT", STRINGS),
            ("first\nsecond", STRINGS),
        ],
    )
    def test_unsuitable_scalar_is_not_wrapped(self, value: Any, schema: dict[str, Any]) -> None:
        assert at_x(value, schema) == value

    def test_numbers_and_booleans_are_wrapped(self) -> None:
        assert at_x(5, {"type": "array", "items": INTEGER}) == [5]
        assert same(at_x(*(True, {"type": "array", "items": BOOLEAN})), [True])
        assert same(at_x(Decimal("0.10"), {"type": ["array", "null"]}), [Decimal("0.10")])

    def test_list_wrapping_does_not_bypass_bounds(self) -> None:
        numbers = {"type": "array", "items": INTEGER}

        assert at_x(42, {"anyOf": [{"type": "integer", "maximum": 10}, numbers]}) == 42
        assert at_x(42, {"anyOf": [NULL, numbers]}) == [42]


class TestTwoReadings:
    """Where more than one result would fit, nothing is changed."""

    @pytest.mark.parametrize(
        ("value", "schema"),
        [
            ("5", {"oneOf": [INTEGER, NUMBER]}),
            ("5", {"oneOf": [{"minLength": 1}, {"pattern": "5"}, INTEGER]}),
            (
                {"a": 1, "b": 2},
                {
                    "anyOf": [
                        {"properties": {"a": INTEGER}, "additionalProperties": False},
                        {"properties": {"b": INTEGER}, "additionalProperties": False},
                    ]
                },
            ),
            (
                {"q": "7", "zz": 1},
                {
                    "anyOf": [
                        {"properties": {"q": INTEGER}},
                        {"properties": {"q": {"type": "number"}}, "additionalProperties": False},
                    ]
                },
            ),
        ],
    )
    def test_ambiguous_value_is_unchanged(self, value: Any, schema: dict[str, Any]) -> None:
        assert at_x(value, schema) == value

    def test_equal_branch_results_are_unambiguous(self) -> None:
        lists = {"anyOf": [STRINGS, {"type": "array"}, {"type": "array", "items": {"type": "array"}}]}

        assert at_x("BTCUSDT", lists) == ["BTCUSDT"]

    def test_different_branch_results_leave_value_unchanged(self) -> None:
        number = {"type": "object", "properties": {"q": INTEGER, "extra": STRING}}
        closed = {"type": "object", "properties": {"q": INTEGER}, "additionalProperties": False}

        assert at_x({"q": "5", "zzz": "1"}, {"anyOf": [number, closed]}) == {"q": "5", "zzz": "1"}

    def test_constant_selects_the_branch(self) -> None:
        limit = {"properties": {"kind": {"const": "limit"}, "px": NUMBER}, "required": ["kind", "px"]}
        market = {"properties": {"kind": {"const": "market"}, "px": STRINGS}, "required": ["kind"]}
        order = {"oneOf": [{"$ref": "#/$defs/limit"}, {"$ref": "#/$defs/market"}]}

        result = at_x({"kind": "limit", "px": "4250.50"}, order, limit=limit, market=market)

        assert same(result, {"kind": "limit", "px": Decimal("4250.50")})


def test_required_value_is_never_filled_in() -> None:
    schema = {"properties": {"side": {"enum": ["BUY"], "default": "BUY"}}, "required": ["side"]}

    assert change({}, schema).value == {}


def test_consequent_change_is_made_next_round() -> None:
    schema = {
        "properties": {"live": BOOLEAN},
        "if": {"properties": {"live": {"const": True}}, "required": ["live"]},
        "then": {"properties": {"qty": INTEGER}},
    }

    assert change({"live": "true", "qty": "5"}, schema).value == {"live": True, "qty": 5}


def test_nested_changes_are_both_applied() -> None:
    closed = {"properties": {"q": INTEGER}, "additionalProperties": False}
    schema = {"properties": {"x": {"anyOf": [closed, NULL], "properties": {"q": INTEGER}}}}

    result = change({"x": {"q": "5", "zz": 1}}, schema)

    assert result.value == {"x": {"q": 5}}
    assert sorted(fix.where for fix in (*result.coercions, *result.patches)) == ["$.x.q", "$.x.zz"]


def test_choice_list_is_changed_per_item() -> None:
    schema = {"properties": {"x": {"type": "array", "items": {"anyOf": [INTEGER, NULL]}}}}

    result = change({"x": ["1", None, 2, "x", "3"]}, schema)

    assert result.value == {"x": [1, None, 2, "x", 3]}
    assert [fix.where for fix in result.coercions] == ["$.x[0]", "$.x[4]"]
    assert [v.path for v in result.violations] == ["$.x[3]"]


def test_odd_property_names_are_valid_places() -> None:
    schema = {"properties": {"0": INTEGER, "a/b~c d": {"anyOf": [INTEGER, NULL]}}}

    result = change({"0": "5", "a/b~c d": "6"}, schema)

    assert result.value == {"0": 5, "a/b~c d": 6}
    assert [fix.where for fix in result.coercions] == ['$["0"]', '$["a/b~c d"]']


@pytest.mark.parametrize("key", ["", "00", "01", "+1"])
def test_ambiguous_places_are_not_changed(key: str) -> None:
    value = {"a": {key: {"b": "x"}, "b": "5"}, "c": "5"}
    schema = {
        "properties": {
            "a": {"properties": {"b": STRING}, "additionalProperties": {"properties": {"b": INTEGER}}},
            "c": INTEGER,
        }
    }

    assert change(value, schema).value is value
    assert change({"c": "5"}, {"properties": {key: STRING, "c": INTEGER}}).value == {"c": "5"}
    assert at_x(orjson.dumps({key: 1}).decode(), {"type": "object"}) == orjson.dumps({key: 1}).decode()


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07"])
@pytest.mark.parametrize("identity", [None, "order.v1", "https://example.com/order", "urn:order:1"])
def test_schema_parts_found_in_any_draft(draft: str, identity: str | None) -> None:
    leg = {"properties": {"q": {"anyOf": [INTEGER, {"$ref": "#/definitions/list"}]}}}
    schema: dict[str, Any] = {
        "$schema": f"http://json-schema.org/{draft}/schema#",
        "definitions": {"leg": leg, "list": {"type": "array", "items": BOOLEAN}},
        "properties": {"x": {"$ref": "#/definitions/leg"}, "y": {"$ref": "#/definitions/list"}},
    }
    if identity:
        schema["id" if draft == "draft-04" else "$id"] = identity

    assert change({"x": {"q": "5"}, "y": True}, schema).value == {"x": {"q": 5}, "y": [True]}


def test_recorded_long_value_is_truncated() -> None:
    result = change({"mood": "x" * 1000}, CLOSED)

    assert len(result.patches[0].before) == 200
