"""Cut, damaged or sloppy, a text gives the value that was meant or none: swept over every place, and over all that hypothesis finds."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.result import Stage
from agentic_trading.structured import ParserException, read_json
from agentic_trading.structured.extract import json_candidates

# Two losses look like a syntax error that is repaired: an item of one character leaves a trailing comma (`[1,2]` becomes `[1,]`),
# and one backslash of two before an apostrophe leaves an escape. So no list in these orders ends in such an item, and no
# text has such backslashes.
ORDER: dict[str, Any] = {
    "symbol": "BTC/USDT",
    "side": "BUY",
    "qty": 0.15,
    "limit_price": 42500.5,
    "tif": "GTC",
    "reduce_only": False,
    "stop_loss": 41200,
    "take_profit": [43000, 43500.25, 44000],
    "legs": [
        {"px": 42500.5, "qty": 0.05, "note": "#1 pick", "if": {"above": [[1, 2, 30], [[4], [5, 60]]]}},
        {"px": 42400, "qty": 0.1, "note": "it's 'quoted' // not a comment", "done": None},
        {},
    ],
    "urls": ["https://x.y/z?a=1#b", "/* x */", "/* x", "*/", "//", "#"],
    "tags": [
        "a",
        "b', c",
        "'a",
        "",
        "[",
        "{a}",
        "}",
        "]",
        ",",
        ":",
        ", ",
        "a,",
        ",b",
        "`",
        "“q”",
        "‘",  # noqa: RUF001 - a quote that must not be taken for one
        "None",
    ],
    "said": [
        'he said "hi"',
        '"',
        '","',
        '": "',
        "line\nbreak",
        "back\\slash",
        "c:\\new\\",
        "\\",
        '\\"',
    ],
    "note": 'Above the weekly pivot; "stop" below - 10% risk, {x: 1}, [1], x: y, 1,000, "k": 2, \'k\': 3',
    "empty": {},
    "none": [],
    "numbers": [-1.5e-3, 12345678901234567890123, 0, 100, 200, -300, 1e5, 0.10],
    "1": "one",
    "#": "#",
    "//": "/",
    'k"': "x",
    "k'": {"k:": [True, False, None]},
    "veto": False,
    "text": "```json\n{}\n``` <think> and </think>",
    "end": "ok",
}
EVENTS: list[Any] = [
    {"t": "2026-03-01T00:00:00Z", "what": ["open", "it's on: {now}"], "why": "vol > 10% # see 'desk'"},
    {"t": "2026-03-01T00:05:00Z", "what": ["close", "don't // wait"], "why": None, "px": [1.25, 1.5]},
    ["a", ["b", ["c", {"d": ["e", {"f": "g\t\u2028 “h” \u00a0"}]}]], {"a b": {"c'd": 'e"f'}}],
    {"a": "1 200", "b": [1, 200, 3000, 12, 345], "c": [["x"], ["y z"]], "d": [{"e": 1}, {"f": 22}]},
]
SPACINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "indented": {"indent": 2},
    "indented_raw": {"indent": 1, "ensure_ascii": False},
    "compact": {"separators": (",", ":")},
    "compact_raw": {"separators": (",", ":"), "ensure_ascii": False},
}
TEXTS = {
    f"{name}_{spacing}": json.dumps(value, **how)
    for name, value in (("order", ORDER), ("events", EVENTS))
    for spacing, how in SPACINGS.items()
}


def read_or_stage(text: str, mode: Any = "lossless") -> Any:
    try:
        return read_json(text, mode=mode)
    except ParserException as e:
        return e.stage


# A text before the JSON is independent of its spacing, so that two spacings show it.
CUT = [
    pytest.param(
        before,
        text,
        id=f"{frame}_{name}",
        marks=pytest.mark.soak if before and not name.endswith(("_indented", "_compact")) else (),
    )
    for frame, before in (("bare", ""), ("fenced", "```json\n"), ("introduced", "Here's the order:\n"))
    for name, text in TEXTS.items()
]


@pytest.mark.parametrize(("before", "text"), CUT)
def test_text_cut_anywhere_is_truncated(before: str, text: str) -> None:
    for end in range(1, len(text)):
        assert read_or_stage(before + text[:end]) is Stage.TRUNCATED, text[max(0, end - 30) : end]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_lost_character_never_changes_value(text: str) -> None:
    meant = read_json(text)
    recovered = 0
    for place in range(len(text)):
        damaged = text[:place] + text[place + 1 :]
        if not isinstance(read_or_stage(damaged, "strict"), Stage):
            continue
        found = read_or_stage(damaged)
        assert isinstance(found, Stage) or found == meant, text[max(0, place - 30) : place + 30]
        recovered += not isinstance(found, Stage)
    assert recovered


def looks_like_a_slip(damaged: str, place: int) -> bool:
    """Whether one of the two losses took place that look like a syntax error."""
    left_behind = damaged[:place].rstrip(), damaged[place:].lstrip()
    return (left_behind[0].endswith(",") and left_behind[1].startswith("]")) or "\\'" in damaged


SAFE = st.characters(exclude_categories=["Cs"])
NASTY = st.text(st.sampled_from("'\"`“”\u2018\u2019#/*\\{}[]:,. \n\t\u2028ab01-") | SAFE, max_size=12)
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)
JSON_TEXT = st.one_of(
    NUMBERS,
    st.sampled_from(["true", "false", "null"]),
    NASTY.map(json.dumps),
    NASTY.map(lambda text: json.dumps(text, ensure_ascii=False)),
)


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    blank = st.sampled_from(["", "", " ", "\n", "\r\n\t"])
    members = st.dictionaries(NASTY, inner, max_size=4)
    objects = st.builds(
        lambda pairs, b: (
            "{" + b + f",{b}".join(f"{json.dumps(k)}{b}:{v}" for k, v in pairs.items()) + b + "}"
        ),
        members,
        blank,
    )
    arrays = st.builds(
        lambda items, b: f"[{b}" + f"{b},".join(items) + f"{b}]", st.lists(inner, max_size=4), blank
    )
    return objects | arrays


DOCUMENTS = st.recursive(JSON_TEXT, _nested, max_leaves=15)
CONTAINERS = _nested(DOCUMENTS)


@given(DOCUMENTS, st.sampled_from(["", " ", "\n\t"]))
def test_strict_json_reads_alike_without_repairs(text: str, blank: str) -> None:
    value = json.loads(text, parse_float=Decimal)

    assert read_json(f"{blank}{text}{blank}", mode="strict") == value
    assert read_json(f"{blank}{text}{blank}", mode="lossless") == value
    if text[0] in "{[":
        (candidate,) = json_candidates(text, lossless=True)
        assert (candidate.fixes, candidate.text) == ((), text)


@given(CONTAINERS, st.data())
def test_every_proper_prefix_is_refused(text: str, data: st.DataObject) -> None:
    end = data.draw(st.integers(1, len(text) - 1))

    assert read_or_stage(text[:end]) is Stage.TRUNCATED
    assert isinstance(read_or_stage(text[:end], "strict"), Stage)


@given(CONTAINERS, st.data())
def test_random_character_loss_gives_plausible_reading(text: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:place] + text[place + 1 :]
    found = read_or_stage(damaged)

    is_refused = isinstance(found, Stage)
    is_strict = not isinstance(read_or_stage(damaged, "strict"), Stage)
    assert is_refused or is_strict or found == read_json(text) or looks_like_a_slip(damaged, place)


STRICT_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
COMMENTS = ["/* so */", "// so\n", "# so\n", "/* 'a' \"b\" */", "\u00a0", "\ufeff", " \n "]


def slips(tokens: Sequence[str], data: st.DataObject) -> Iterator[str]:
    """Yield the tokens of a strict text with syntax errors of the kinds that are repaired, each where it has one reading."""
    how_often = data.draw(st.integers(0, 3))

    def some() -> bool:
        return how_often > 0 and data.draw(st.integers(0, 3)) < how_often

    for place, token in enumerate(tokens):
        following = tokens[place + 1] if place + 1 < len(tokens) else ""
        if token == "," and some():  # noqa: S105 - of JSON, not of a login
            yield _instead_of_comma(tokens[place - 1], following)
        elif token[0] == '"' and some():
            yield _requoted(
                token, data.draw(st.sampled_from(["'", "`", "“", "bare"])), is_key=following == ":"
            )
        elif token in {"true", "false", "null"} and some():
            yield {"true": "True", "false": "False", "null": "None"}[token]
        else:
            yield token
        if token not in {"{", "[", ",", ":"} and following in {"}", "]"} and some():
            yield ","
        if following and some():
            yield f" {data.draw(st.sampled_from(COMMENTS))}"


def _instead_of_comma(before: str, behind: str) -> str:
    """Leave the comma out, where it is clear that there was one."""
    return "," if before.endswith(',"') or before[-1] not in '}]"' else "\n"


def _requoted(token: str, quote: str, *, is_key: bool) -> str:
    """Give a string other quotes, or none, if it says the same then."""
    inner = token[1:-1]
    if quote == "bare":
        is_name = (
            is_key
            and re.fullmatch("[a-zäöü_]+", inner)
            and inner not in {"true", "false", "null", "undefined"}
        )
        return inner if is_name else token
    if any(sign in inner for sign in f"\\'\"{quote}”\u00b4"):
        return token.replace("'", "\\'") if quote == "'" and "\\" not in token else token
    return f"{quote}{inner}{'”' if quote == '“' else quote}"


@given(CONTAINERS, st.data())
def test_slips_never_change_the_value(text: str, data: st.DataObject) -> None:
    sloppy = "".join(slips(STRICT_TOKEN.findall(text), data))

    assert read_json(sloppy, mode="lossless") == json.loads(text, parse_float=Decimal)


NUMBER_IN_TEXT = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def numbers_in(text: str) -> list[str]:
    outside_of_strings = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    return NUMBER_IN_TEXT.findall(outside_of_strings)


@given(CONTAINERS, st.data())
def test_accepted_numbers_are_in_source_text(text: str, data: st.DataObject) -> None:
    damaged = mutated(text, data)
    try:
        (candidate,) = json_candidates(damaged, lossless=True)
    except ValueError:  # refused, or several
        return

    for number in numbers_in(candidate.text):
        assert number in damaged


def mutated(text: str, data: st.DataObject) -> str:
    """Return a text with up to four characters lost, doubled, changed or put in."""
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(text)))
        width = data.draw(st.integers(0, 2))
        filling = data.draw(st.text(st.sampled_from("'\"`“”#/*\\{}[]:,. \n0123ae\x00\ud800"), max_size=2))
        text = text[:place] + filling + text[place + width :]
    return text


@given(DOCUMENTS, st.data())
def test_mutated_text_is_read_or_refused(text: str, data: st.DataObject) -> None:
    with suppress(ParserException):
        read_json(mutated(text, data), mode="lossless")


@given(st.text(st.sampled_from("'\"`“”#/*\\{}[]:,. \n0123ae\x00\ud800-") | st.characters()))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ParserException):
        read_json(text, mode="lossless")


@given(CONTAINERS, st.data())
def test_lossless_agrees_with_strict_json(text: str, data: st.DataObject) -> None:
    damaged = mutated(text, data)
    strict = read_or_stage(damaged, "strict")

    if not isinstance(strict, Stage):
        assert read_or_stage(damaged) == strict
