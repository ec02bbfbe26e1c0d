"""A syntax error with one reading is repaired and logged; one with two readings is refused with its kind and its place."""

from decimal import Decimal
from typing import Any

import pytest

from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import Stage, Usage
from agentic_trading.structured import Accepted, ParserException, Rejected, read, read_json
from agentic_trading.structured.decode import MAX_DEPTH
from agentic_trading.structured.extract import json_candidates
from agentic_trading.structured.json_repair import repair_json
from agentic_trading.structured.outcome import UnreadableError
from agentic_trading.structured.tokens import COMMENT_CHARS, MOST_FIXES, SHOWN_CHARS

Logged = tuple[str, int, str, str]


def logged(text: str) -> list[Logged]:
    """Return what was repaired in a text, as kind, offset, before and after."""
    (candidate,) = json_candidates(text, lossless=True)
    return [(fix.kind, int(fix.where), fix.before, fix.after) for fix in candidate.fixes]


# text, intended value, what is logged as repaired
TRAILING_COMMA: list[tuple[str, Any, list[Logged]]] = [
    ("[1,]", [1], [("trailing_comma", 2, ",", "")]),
    ('{"a": 1,}', {"a": 1}, [("trailing_comma", 7, ",", "")]),
    ('{"a": [1, 2 ,\n ] }', {"a": [1, 2]}, [("trailing_comma", 12, ",", "")]),
    ("[{},]", [{}], [("trailing_comma", 3, ",", "")]),
    (
        '{"a": {"b": "x",},}',
        {"a": {"b": "x"}},
        [("trailing_comma", 15, ",", ""), ("trailing_comma", 17, ",", "")],
    ),
]
QUOTES: list[tuple[str, Any, list[Logged]]] = [
    ("'abc'", "abc", [("quotes", 0, "'abc'", '"abc"')]),
    ("['', 1]", ["", 1], [("quotes", 1, "''", '""')]),
    ("{'a': 1}", {"a": 1}, [("quotes", 1, "'a'", '"a"')]),
    ("[“a”]", ["a"], [("quotes", 1, "“a”", '"a"')]),
    ("[”a”]", ["a"], [("quotes", 1, "”a”", '"a"')]),
    ("[„a“, „b”]", ["a", "b"], [("quotes", 1, "„a“", '"a"'), ("quotes", 6, "„b”", '"b"')]),
    ("[‘a’, ‚b‘]", ["a", "b"], [("quotes", 1, "‘a’", '"a"'), ("quotes", 6, "‚b‘", '"b"')]),
    ("[`a`, ´b´, `c´]", ["a", "b", "c"], [("quotes", i, t, f'"{t[1]}"') for i, t in ((1, "`a`"), (6, "´b´"), (11, "`c´"))]),
    ("""['say "hi"']""", ['say "hi"'], [("quotes", 1, """'say "hi"'""", '"say \\"hi\\""')]),
    ("[“it's”]", ["it's"], [("quotes", 1, "“it's”", '"it\'s"')]),
    ("['ä\\n\\u0041\\\\']", ["ä\nA\\"], [("quotes", 1, "'ä\\n\\u0041\\\\'", '"ä\\n\\u0041\\\\"')]),
    ("['1,000', '// no', '# no']", ["1,000", "// no", "# no"], [("quotes", i, t, f'"{t[1:-1]}"') for i, t in ((1, "'1,000'"), (10, "'// no'"), (19, "'# no'"))]),
    ("[“a\\”b”]", ["a”b"], [("escape", 1, "“a\\”b”", '"a”b"'), ("quotes", 1, "“a\\”b”", '"a”b"')]),
]  # fmt: skip
ESCAPE: list[tuple[str, Any, list[Logged]]] = [
    ('["it\\\'s"]', ["it's"], [("escape", 1, '"it\\\'s"', '"it\'s"')]),
    (
        "['it\\'s']",
        ["it's"],
        [("escape", 1, "'it\\'s'", '"it\'s"'), ("quotes", 1, "'it\\'s'", '"it\'s"')],
    ),
]
CONTROL_CHARACTER: list[tuple[str, Any, list[Logged]]] = [
    ('{"a": "x\ny"}', {"a": "x\ny"}, [("control_character", 6, '"x\ny"', '"x\\ny"')]),
    ('["\t\x01"]', ["\t\x01"], [("control_character", 1, '"\t\x01"', '"\\t\\u0001"')]),
    ('{"a\r": 1}', {"a\r": 1}, [("control_character", 1, '"a\r"', '"a\\r"')]),
    ("['\n']", ["\n"], [("control_character", 1, "'\n'", '"\\n"'), ("quotes", 1, "'\n'", '"\\n"')]),
]
COMMENT: list[tuple[str, Any, list[Logged]]] = [
    ("[1, // one\n2]", [1, 2], [("comment", 4, "// one", "")]),
    ("[1, # one\r\n2]", [1, 2], [("comment", 4, "# one", "")]),
    ("[/* none */]", [], [("comment", 1, "/* none */", "")]),
    ("{/**/'a'/***/:/* * */1}", {"a": 1}, [("comment", 1, "/**/", ""), ("quotes", 5, "'a'", '"a"'), ("comment", 8, "/***/", ""), ("comment", 14, "/* * */", "")]),
    ('[1 // see "a" and \'b\'\n]', [1], [("comment", 3, "// see \"a\" and 'b'", "")]),
    ("[1 // don't\n]", [1], [("comment", 3, "// don't", "")]),
    ("[1 /* two\nlines */]", [1], [("comment", 3, "/* two\nlines */", "")]),
    ("[1/* one */, 2/**/]", [1, 2], [("comment", 2, "/* one */", ""), ("comment", 14, "/**/", "")]),
    ('{"a": 1} // done', {"a": 1}, [("comment", 9, "// done", "")]),
    ('/* so */ {"a": 1}', {"a": 1}, [("comment", 0, "/* so */", "")]),
]  # fmt: skip
HIDDEN_KEY: list[tuple[str, Any, list[Logged]]] = [
    ('{/* "b": 2, */ "a": 1}', {"a": 1}, [("hidden_key", 1, '/* "b": 2, */', "")]),
    ("{\"a\": 1, // 'b': 2\n}", {"a": 1}, [("hidden_key", 9, "// 'b': 2", ""), ("trailing_comma", 7, ",", "")]),
    ("{“a”: 1 # “b” : 2\n}", {"a": 1}, [("quotes", 1, "“a”", '"a"'), ("hidden_key", 8, "# “b” : 2", "")]),
    ('{"a": 1} // "b": 2', {"a": 1}, [("hidden_key", 9, '// "b": 2', "")]),
]  # fmt: skip
BARE_KEY: list[tuple[str, Any, list[Logged]]] = [
    ("{a: 1}", {"a": 1}, [("bare_key", 1, "a", '"a"')]),
    ("{a-b_1: 1}", {"a-b_1": 1}, [("bare_key", 1, "a-b_1", '"a-b_1"')]),
    ("{$ref: 1, _x: 2}", {"$ref": 1, "_x": 2}, [("bare_key", 1, "$ref", '"$ref"'), ("bare_key", 10, "_x", '"_x"')]),
    ("{größe: 1}", {"größe": 1}, [("bare_key", 1, "größe", '"größe"')]),
    ("{0: 1, 12: 2}", {"0": 1, "12": 2}, [("bare_key", 1, "0", '"0"'), ("bare_key", 7, "12", '"12"')]),
]  # fmt: skip
PYTHON_LITERAL: list[tuple[str, Any, list[Logged]]] = [
    ("True", True, [("python_literal", 0, "True", "true")]),
    ("[False, None, null]", [False, None, None], [("python_literal", 1, "False", "false"), ("python_literal", 8, "None", "null")]),
    ('{"a": None}', {"a": None}, [("python_literal", 6, "None", "null")]),
]  # fmt: skip
CAPITALS: list[tuple[str, Any, list[Logged]]] = [
    ("TRUE", True, [("capitals", 0, "TRUE", "true")]),
    ("[FALSE, True]", [False, True], [("capitals", 1, "FALSE", "false"), ("python_literal", 8, "True", "true")]),
]  # fmt: skip
STRAY_SIGN: list[tuple[str, Any, list[Logged]]] = [
    ('{"a": 1},', {"a": 1}, [("stray_sign", 8, ",", "")]),
    ('{"a": 1}\n}\n', {"a": 1}, [("stray_sign", 9, "}", "")]),
    ("{}}", {}, [("stray_sign", 2, "}", "")]),
]
WHITE_SPACE: list[tuple[str, Any, list[Logged]]] = [
    ("\ufeff[1]", [1], [("white_space", 0, "\ufeff", "")]),
    ("[\u00a01,\u20282\u200b]", [1, 2], [("white_space", i, c, "") for i, c in ((1, "\u00a0"), (4, "\u2028"), (6, "\u200b"))]),
    ('{"a"\u3000:\x0b1}', {"a": 1}, [("white_space", 4, "\u3000", ""), ("white_space", 6, "\x0b", "")]),
]  # fmt: skip
MISSING_COMMA: list[tuple[str, Any, list[Logged]]] = [
    ("[1 2]", [1, 2], [("missing_comma", 3, "", ",")]),
    ("[1\n200]", [1, 200], [("missing_comma", 3, "", ",")]),
    ("[1234 567]", [1234, 567], [("missing_comma", 6, "", ",")]),
    ("[1 2000]", [1, 2000], [("missing_comma", 3, "", ",")]),
    ('["a" "b"\n"c"]', ["a", "b", "c"], [("missing_comma", 5, "", ","), ("missing_comma", 9, "", ",")]),
    ('["a" true null 1]', ["a", True, None, 1], [("missing_comma", i, "", ",") for i in (5, 10, 15)]),
    ("[{} {}{}]", [{}, {}, {}], [("missing_comma", 4, "", ","), ("missing_comma", 6, "", ",")]),
    ("[[1][2]]", [[1], [2]], [("missing_comma", 4, "", ",")]),
    ('{"a": 1 "b": "x" "c": [] "d": {}}', {"a": 1, "b": "x", "c": [], "d": {}}, [("missing_comma", i, "", ",") for i in (8, 17, 25)]),
    ("{'a': 1\nb: 2}", {"a": 1, "b": 2}, [("quotes", 1, "'a'", '"a"'), ("missing_comma", 8, "", ","), ("bare_key", 8, "b", '"b"')]),
    ('{"a": 1 // one\n"b": 2}', {"a": 1, "b": 2}, [("comment", 8, "// one", ""), ("missing_comma", 15, "", ",")]),
]  # fmt: skip

MENDED = [
    (kind, *row)
    for kind, rows in {
        "trailing_comma": TRAILING_COMMA,
        "quotes": QUOTES,
        "escape": ESCAPE,
        "control_character": CONTROL_CHARACTER,
        "comment": COMMENT,
        "hidden_key": HIDDEN_KEY,
        "bare_key": BARE_KEY,
        "python_literal": PYTHON_LITERAL,
        "capitals": CAPITALS,
        "stray_sign": STRAY_SIGN,
        "white_space": WHITE_SPACE,
        "missing_comma": MISSING_COMMA,
    }.items()
    for row in rows
]


@pytest.mark.parametrize(("kind", "text", "value", "fixes"), MENDED)
def test_unambiguous_syntax_error_is_repaired(kind: str, text: str, value: Any, fixes: list[Logged]) -> None:
    assert read_json(text, mode="lossless") == value
    assert logged(text) == fixes
    assert kind in {fix[0] for fix in fixes}
    with pytest.raises(ParserException):
        read_json(text, mode="strict")


def test_repeated_key_is_logged_with_slips() -> None:
    (candidate,) = json_candidates('{"a": 1.0, "a": 1.0,}', lossless=True)

    assert (candidate.value, candidate.text) == ({"a": Decimal("1.0")}, '{"a":1.0}')
    assert [fix.kind for fix in candidate.fixes] == ["trailing_comma", "repeated_key"]


JSON_PARSE, AMBIGUOUS, TRUNCATED = Stage.JSON_PARSE, Stage.AMBIGUOUS, Stage.TRUNCATED
REFUSED: list[tuple[str, Stage, str, int | None]] = [
    ('{"a": 1, "a": 2,}', AMBIGUOUS, "repeated_key", None),
    ("[NaN]", JSON_PARSE, "word", 1),
    ('{"a": Infinity}', JSON_PARSE, "word", 6),
    ('{"a": -Infinity}', JSON_PARSE, "token", 6),
    ("[1e999,]", JSON_PARSE, "json", None),
    ("[undefined]", JSON_PARSE, "word", 1),
    ("{'a': BUY}", JSON_PARSE, "word", 6),
    ("[TRUEX]", JSON_PARSE, "word", 1),
    ("[tRUE]", JSON_PARSE, "word", 1),
    ("{TRUE: 1}", JSON_PARSE, "key", 1),
    ("[.5]", JSON_PARSE, "token", 1),
    ("[none]", JSON_PARSE, "word", 1),
    ("[1, ...]", JSON_PARSE, "token", 4),
    ("[1, …]", JSON_PARSE, "token", 4),
    ('{"a": 1, ...}', JSON_PARSE, "token", 9),
    ("{…}", JSON_PARSE, "token", 1),
    ("['a', ...'b']", JSON_PARSE, "token", 6),
    ('{"a": 10%}', JSON_PARSE, "token", 6),
    ('{"a": $42500}', JSON_PARSE, "word", 6),
    ('{"a": 42500$}', JSON_PARSE, "token", 6),
    ('{"a": 5 BTC}', JSON_PARSE, "missing_comma", 8),
    ('{"a": 1/3}', JSON_PARSE, "token", 6),
    ('{"a": 42500-42600}', JSON_PARSE, "token", 6),
    ('{"a": 010}', JSON_PARSE, "token", 6),
    ('{"a": 1,000}', JSON_PARSE, "token", 8),
    ('{"a": 1,200}', AMBIGUOUS, "key", 8),
    ('{"a": 1_000}', JSON_PARSE, "token", 6),
    ('{"a": +5}', JSON_PARSE, "token", 6),
    ('{"a": .5}', JSON_PARSE, "token", 6),
    ('{"a": 5.}', JSON_PARSE, "token", 6),
    ('{"a": 0x1F}', JSON_PARSE, "token", 6),
    ('{"a": 1.5e}', JSON_PARSE, "token", 6),
    ('{"a": -}', JSON_PARSE, "token", 6),
    ('{"a": 1.2.3}', JSON_PARSE, "token", 6),
    ('{"a": 12:30}', JSON_PARSE, "colon", 8),
    ('{"a":, "b": 1}', JSON_PARSE, "missing_value", 5),
    ('{"a":}', JSON_PARSE, "missing_value", 5),
    ('{"a" 1}', JSON_PARSE, "colon", 5),
    ('{"a": 1, "b"}', JSON_PARSE, "colon", 12),
    ('{"a"= 1}', JSON_PARSE, "token", 4),
    ('{"a":: 1}', JSON_PARSE, "missing_value", 5),
    ("[, 1]", JSON_PARSE, "missing_value", 1),
    ("[1,, 2]", JSON_PARSE, "missing_value", 3),
    ('{,"a": 1}', JSON_PARSE, "key", 1),
    ('{"a": 1,, "b": 2}', JSON_PARSE, "key", 8),
    ('{"a": 1; "b": 2}', JSON_PARSE, "token", 7),
    ('{"a": [1}]', JSON_PARSE, "bracket", 8),
    ('{"a": 1]}', JSON_PARSE, "bracket", 7),
    ('{"a": 1}}}', JSON_PARSE, "bracket", 8),
    ('{"a": 1}]', JSON_PARSE, "bracket", 8),
    ('{"a": 1}}{', JSON_PARSE, "bracket", 8),
    ('{"a": 1 "b": 2}}', JSON_PARSE, "bracket", 15),
    ('so {"a": 1}}', JSON_PARSE, "bracket", 11),
    ("[1]]", JSON_PARSE, "bracket", 3),
    (']{"a": 1}', JSON_PARSE, "bracket", 0),
    ('{"a": "x "y" z"}', JSON_PARSE, "missing_comma", 10),
    ("{'a': 'it's', 'b': 1}", JSON_PARSE, "missing_comma", 10),
    ('{"a": "x" + "y"}', JSON_PARSE, "token", 10),
    ('{"a": "\\x41"}', JSON_PARSE, "escape", 7),
    ('{"a": "\\d"}', JSON_PARSE, "escape", 7),
    ('{"a": "\\u12"}', JSON_PARSE, "escape", 7),
    ('["\\u12"]', JSON_PARSE, "escape", 2),
    ("{'a': '\\ud800'}", JSON_PARSE, "json", None),
    ('{"a": "\0"}', JSON_PARSE, "control_character", 7),
    ('{"a": 1 b: 2}', JSON_PARSE, "missing_comma", 8),
    ('{"a": 1 2: 3}', JSON_PARSE, "missing_comma", 8),
    ('{"a": "x" "b" "c": 1}', JSON_PARSE, "colon", 14),
    ("{true: 1}", JSON_PARSE, "key", 1),
    ("{None: 1}", JSON_PARSE, "key", 1),
    ("{NaN: 1}", JSON_PARSE, "key", 1),
    ("{-1: 1}", JSON_PARSE, "key", 1),
    ("{1.0: 1}", JSON_PARSE, "key", 1),
    ("{01: 1}", JSON_PARSE, "token", 1),
    ("{[1]: 1}", JSON_PARSE, "key", 1),
    ("[1: 2]", JSON_PARSE, "colon", 2),
    ("[1 200]", AMBIGUOUS, "missing_comma", 3),
    ("[-12 345.6]", AMBIGUOUS, "missing_comma", 5),
    ('["a""b"]', AMBIGUOUS, "missing_comma", 4),
    ('["a"1]', AMBIGUOUS, "missing_comma", 4),
    ('["a," "b"]', AMBIGUOUS, "missing_comma", 6),
    ('{"a": "x," "b": 1}', AMBIGUOUS, "missing_comma", 11),
    ("['say \"']", AMBIGUOUS, "quotes", 1),
    ('[1, # 5" pipe\n2]', AMBIGUOUS, "comment", 4),
    ('{"a": 1 /* " */}', AMBIGUOUS, "comment", 8),
    ('{"a": 10//3\n}', JSON_PARSE, "token", 6),
    ('{"a": 10 // 3\n}', AMBIGUOUS, "number", 9),
    ('{"a": 1, // ... and so on\n"b": 2}', JSON_PARSE, "ellipsis", 9),
    ('{"a": 1 // so,\n"b": 2}', AMBIGUOUS, "missing_comma", 15),
    ("[#1, 2\n]", JSON_PARSE, "word", 1),
    ("[\"it's what I don\\'t say\"]", AMBIGUOUS, "escape", 1),
    ("[1, 2, ]", AMBIGUOUS, "trailing_comma", 5),
    ("['a' 'b']", AMBIGUOUS, "missing_comma", 5),
    ('["""a"""]', AMBIGUOUS, "missing_comma", 3),
    ('{"a": """b"""}', AMBIGUOUS, "missing_comma", 8),
    ("[1 -2]", AMBIGUOUS, "missing_comma", 3),
    ('{"a": 1,\n# b": "c\\"",\n"d": 2}', AMBIGUOUS, "comment", 9),
    ("{'a': 1, 'b': [\n// pick',\n'x']}", AMBIGUOUS, "comment", 16),
    ("{'a': 1, 'b': [\n#1 pick',\n'x']}", JSON_PARSE, "word", 16),
    ('{"a": 1', TRUNCATED, "open", 0),
    ('{"a": "x', TRUNCATED, "string", 6),
    ("{'a': 'x", TRUNCATED, "string", 6),
    ("['x\\", TRUNCATED, "string", 1),
    ("['x\\u12", TRUNCATED, "string", 1),
    ("[1, /* so", TRUNCATED, "comment", 4),
    ("[1, // so", TRUNCATED, "open", 0),
    ("[tru", TRUNCATED, "open", 0),
    ("[True", TRUNCATED, "open", 0),
    ("{'a': 1.", TRUNCATED, "open", 0),
    ("{'a': -", TRUNCATED, "open", 0),
    ("{'a': [{", TRUNCATED, "open", 0),
    ('{"plan":{"side":"BUY","qty":5},"veto":tr', TRUNCATED, "open", 0),
]


@pytest.mark.parametrize(("text", "stage", "kind", "offset"), REFUSED)
def test_unrepairable_error_gives_kind_and_offset(
    text: str, stage: Stage, kind: str, offset: int | None
) -> None:
    with pytest.raises(ParserException) as refused:
        read_json(text, mode="lossless")

    (violation,) = refused.value.errors
    assert (refused.value.stage, violation.keyword) == (stage, kind)
    if offset is not None:
        assert violation.message.startswith(f"at offset {offset}: ")


def test_repaired_numbers_keep_written_digits() -> None:
    assert repair_json("{a: [1.50, 1e5, -0, 1E+2, 12345678901234567890.10],}", 0).text == (
        '{"a":[1.50, 1e5, -0, 1E+2,12345678901234567890.10]}'
    )


def test_repair_stops_at_value_end() -> None:
    found = repair_json("x = {'a': 1} and more", 4)

    assert (found.text, found.end) == ('{"a":1}', 12)


def test_long_slips_are_truncated_in_log() -> None:
    text = f"['{'x' * 5_000}', /* {'y' * 5_000} */ 1]"

    quotes, comment = logged(text)
    assert (len(quotes[2]), len(quotes[3])) == (SHOWN_CHARS, SHOWN_CHARS)
    assert len(comment[2]) == COMMENT_CHARS


@pytest.mark.parametrize("opening", ["[", "{a:"])
def test_deepest_value_repaired_deeper_refused(opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    deepest = f"{opening * MAX_DEPTH}1,{closing * MAX_DEPTH}"

    assert read_json(deepest, mode="lossless")
    with pytest.raises(ParserException, match="deeper than 128") as refused:
        read_json(f"{opening}{deepest}{closing}", mode="lossless")
    assert refused.value.errors[0].keyword == "depth"


def test_too_many_slips_are_refused() -> None:
    most = "''" + ",''" * (MOST_FIXES - 1)

    assert len(read_json(f"[{most}]", mode="lossless")) == MOST_FIXES
    with pytest.raises(ParserException, match=f"more than {MOST_FIXES} slips"):
        read_json(f"[{most},]", mode="lossless")


def test_refusal_of_surrogate_text_is_printable() -> None:
    with pytest.raises(UnreadableError, match=r"ud800") as refused:
        repair_json("[\ud800]", 0)

    assert str(refused.value).encode()


@pytest.mark.parametrize("word", ["true", "null", "FALSE", "NaN"])
def test_literal_key_requires_schema_property(word: str) -> None:
    schema = {"type": "object", "properties": {word: {"type": "integer"}}, "required": [word]}
    response = ModelResponse(f"{{{word}: 2}}", "stop", Usage(), "m-1")
    other = {"type": "object", "properties": {"buy": {"type": "integer"}}}

    taken, refused = (read(response, one, OutputPolicy(decode="lossless")) for one in (schema, other))

    assert isinstance(taken, Accepted)
    assert taken.value == {word: 2}
    assert isinstance(refused, Rejected)
