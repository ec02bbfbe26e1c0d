"""Strict JSON is decoded to one value, digit for digit, or refused with a reason."""

import json
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.canonical import exact_bytes
from agentic_trading.llm.result import Stage
from agentic_trading.structured import ParserException, read_json
from agentic_trading.structured.decode import MAX_BYTES, MAX_DEPTH, MOST_REPEATED, decode, member_path
from agentic_trading.structured.outcome import UnreadableError

ANY_TEXT = st.text() | st.text(st.sampled_from('a{}":\ud800\udfff\u2028\x00'))
DIGITS = st.text("0123456789", min_size=1, max_size=30)
DECIMALS = st.builds(
    lambda sign, whole, part: f"{sign}{whole.lstrip('0') or '0'}.{part}",
    st.sampled_from(["", "-"]),
    DIGITS,
    DIGITS,
)
INTEGERS = st.integers(-(10**100), 10**100).map(str)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = (
    st.sampled_from(["true", "false", "null"])
    | DECIMALS
    | INTEGERS
    | TEXT.map(json.dumps)
    | TEXT.map(lambda text: json.dumps(text, ensure_ascii=False))
)


def documents() -> st.SearchStrategy[str]:
    """Give JSON texts whose objects have no key twice."""
    members = st.text(max_size=5).filter(lambda key: not any("\ud800" <= c <= "\udfff" for c in key))

    def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        arrays = st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]")
        objects = st.dictionaries(members, inner, max_size=4).map(
            lambda pairs: "{" + ",".join(f"{json.dumps(k)}: {v}" for k, v in pairs.items()) + "}"
        )
        return arrays | objects

    return st.recursive(SCALARS, nested, max_leaves=20)


@given(documents(), st.text(" \t\r\n"), st.text(" \t\r\n"))
def test_strict_document_decodes_unchanged(text: str, before: str, after: str) -> None:
    decoded = decode(f"{before}{text}{after}")

    assert decoded.value == json.loads(text, parse_float=Decimal)
    assert decoded.fixes == ()


@given(DECIMALS | INTEGERS)
def test_decoded_number_keeps_every_digit(number: str) -> None:
    value = decode(f'{{"n": {number}}}').value

    assert exact_bytes(value) == f'{{"n":{number}}}'.encode()


def test_numbers_are_int_and_decimal() -> None:
    value = decode('{"i": 3, "d": 0.10, "e": 1e5, "big": 123456789012345678901234567890}').value

    assert [type(number) for number in value.values()] == [int, Decimal, Decimal, int]
    assert str(value["d"]) == "0.10"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"n": NaN}', "expected a JSON value"),
        ('{"n": Infinity}', "expected a JSON value"),
        ('{"n": -Infinity}', "invalid number|digit"),
        ('{"n": 1e999}', "infinity"),
        ('{"n": 1e-999}', "beyond the range of a double"),
        ('{"n": 1e-99999999999999999999}', "beyond the range of a double"),
        ('{"n": 1' + "0" * 400 + "}", "infinity"),
        ('{"n": 010}', ""),
        ('{"n": 10%}', ""),
        ('{"n": 1,000}', ""),
        ('{"n": .5}', ""),
        ('{"n": +1}', ""),
        ('{"a": 1,}', "trailing comma"),
        ("{'a': 1}", "string key"),
        ("{a: 1}", "string key"),
        ('{"a": 1 "b": 2}', ""),
        ('{"a": 1} // done', "content after document"),
        ('{"a": 1} {"a": 2}', "content after document"),
        ('```json\n{"a": 1}\n```', "expected a JSON value"),
        ('{"a": True}', ""),
        ('{"a": "line\nbreak"}', "control character"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"a": "\ud800"}', "surrogates"),
        ("\ufeff{}", "BOM|byte order"),
        ("\u00a0{}", ""),
        ("", "empty"),
    ],
)
def test_non_strict_document_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UnreadableError, match=f"(?i){reason}") as refused:
        decode(text)

    assert refused.value.stage is Stage.JSON_PARSE
    assert refused.value.violations[0].keyword == "json"


def test_refusal_shows_error_position() -> None:
    with pytest.raises(UnreadableError, match=r"line 2 column 8 \(char 9\)") as refused:
        decode('{\n "a": 1,}')

    assert refused.value.violations[0].actual == ",}"


@pytest.mark.parametrize("text", ["[" * MAX_DEPTH + "]" * MAX_DEPTH, '{"a":' * 128 + "1" + "}" * 128])
def test_deepest_allowed_document_is_decoded(text: str) -> None:
    assert decode(text).value


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 1_000, 100_000])
def test_too_deep_document_is_refused(depth: int) -> None:
    with pytest.raises(UnreadableError, match=r"deeper than 128|depth limit"):
        decode("[" * depth + "]" * depth)


def test_many_shallow_brackets_are_accepted() -> None:
    assert len(decode("[" + ",".join(["[{}]"] * 500) + "]").value) == 500


@pytest.mark.parametrize("filling", ["x", "ä", "\N{GRINNING FACE}"])
def test_text_over_one_mebibyte_is_refused(filling: str) -> None:
    fits = (MAX_BYTES - 2) // len(filling.encode()) * filling

    assert decode(f'"{fits}"').value == fits
    with pytest.raises(UnreadableError, match=f"allowed are {MAX_BYTES}"):
        decode(f'"{fits}{filling}"')


@pytest.mark.parametrize(
    ("text", "value", "where"),
    [
        ('{"a": 1, "a": 1}', {"a": 1}, "$.a"),
        ('{"a": 1e5, "a": 1e5}', {"a": Decimal("1e5")}, "$.a"),
        ('{"b": [{"a": {"x": 1.50}, "a": {"x": 1.50}}]}', {"b": [{"a": {"x": Decimal("1.50")}}]}, "$.b[0].a"),
    ],
)
def test_equal_repeated_key_is_noted(text: str, value: Any, where: str) -> None:
    decoded = decode(text)

    assert decoded.value == value
    assert [(fix.kind, fix.where) for fix in decoded.fixes] == [("repeated_key", where)]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 100}',
        '{"a": 1, "a": true}',
        '{"a": 1, "a": 1.0}',
        '{"a": 1, "\\u0061": 2}',
        '{"x": [{"a": [1], "a": [1, 2]}]}',
    ],
)
def test_conflicting_repeated_key_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError) as refused:
        decode(text)

    assert refused.value.stage is Stage.AMBIGUOUS
    assert refused.value.violations[0].path.endswith(".a")


def test_too_many_repeated_keys_are_refused() -> None:
    members = ",".join(['"a":1'] * (MOST_REPEATED + 1))

    assert len(decode(f"{{{members}}}").fixes) == MOST_REPEATED
    with pytest.raises(UnreadableError, match=f"more than {MOST_REPEATED} keys"):
        decode(f'{{{members},"a":1}}')


def test_odd_key_is_quoted_in_path() -> None:
    assert (member_path("$", "a_1"), member_path("$.b", "odd key")) == ("$.a_1", '$.b["odd key"]')
    assert len(member_path("$", "k" * 10_000)) < 100


def test_read_json_returns_exact_document() -> None:
    assert read_json(' {"qty": 0.10} ') == {"qty": Decimal("0.10")}


@given(ANY_TEXT)
def test_read_json_raises_only_parser_exception(text: str) -> None:
    with suppress(ParserException):
        read_json(text)


@pytest.mark.parametrize("mode", ["strict", "lossless"])
def test_conflicting_key_ambiguous_in_both_modes(mode: Any) -> None:
    with pytest.raises(ParserException) as refused:
        read_json('{"a": 1, "a": 2}', mode=mode)

    assert refused.value.stage is Stage.AMBIGUOUS


def test_unknown_mode_error_names_known_modes() -> None:
    mode: Any = "loose"
    with pytest.raises(ValueError, match="Use 'strict' or 'lossless'"):
        read_json("{}", mode=mode)


def test_read_json_error_carries_full_context() -> None:
    with pytest.raises(ParserException, match=r"read_json\(strict\) failed at json_parse") as refused:
        read_json("{a: 1}")

    assert (refused.value.stage, refused.value.content) == (Stage.JSON_PARSE, "{a: 1}")
