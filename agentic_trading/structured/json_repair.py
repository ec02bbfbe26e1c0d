"""Repair JSON with unambiguous syntax errors. Tokens keep their values."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Optional

from agentic_trading.llm.result import Fix, Stage
from agentic_trading.structured.decode import MAX_DEPTH
from agentic_trading.structured.outcome import UnreadableError
from agentic_trading.structured.tokens import NUMBER, SHOWN_CHARS, STRING, Tokens, refuse

_SCALAR = rf"(?:{STRING}|{NUMBER}|true|false|null)"
# Well-formed members and items in a row, each with its comma. Matched at once because they are most of a text.
_MEMBERS = re.compile(rf"(?>(?:[ \t\n\r]*+{STRING}[ \t\n\r]*+:[ \t\n\r]*+{_SCALAR}[ \t\n\r]*+,)+)")
_ITEMS = re.compile(rf"(?>(?:[ \t\n\r]*+{_SCALAR}[ \t\n\r]*+,)+)")
_LITERALS: Final = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
    "TRUE": "true",
    "FALSE": "false",
}
_PYTHON: Final = frozenset({"True", "False", "None"})
_NO_KEYS: Final = frozenset({*_LITERALS, "NaN", "Infinity", "undefined"})
_INDEX = re.compile(r"0|[1-9][0-9]*")
_THOUSANDS_BEFORE = re.compile(r"[0-9],[0-9]{3}\Z")
_LOST_ITEM = re.compile(r"[0-9],(?:[ \t]+|[ \t\r]*\n\s*\n\s*)\]")
_GROUP = re.compile(r"-?[0-9]{1,3}")
_THOUSANDS = re.compile(r"[0-9]{3}(?![0-9])")


@dataclass(frozen=True, slots=True)
class RepairedJson:
    """One value as strict JSON, its repairs, and the offset of its end."""

    text: str
    fixes: tuple[Fix, ...]
    end: int


def repair_json(text: str, start: int, *, keys: Collection[str] = ()) -> RepairedJson:
    """Return the value after the blanks and comments at `start`.

    The result must still be decoded.

    Args:
        text: The text.
        start: The offset.
        keys: The names in the schema. A name that is also a literal (`true`) may be a key without quotes.

    Raises:
        UnreadableError: With the kind and the offset of the error: `truncated` if the text ends inside the
            value, `ambiguous` if it has two meanings, otherwise `json_parse`.

    """
    return _Value(text, start, keys).read()


def json_extent(text: str, start: int) -> tuple[int, str | None]:
    """Return the end of the value at `start`, and the value as strict JSON.

    If the value is incomplete or invalid, return how far it was read, and None.
    """
    # A failed value returns how far it was read, so that the caller resumes there and takes linear time in total.
    value = _Value(text, start, ())
    try:
        whole = value.read()
    except UnreadableError as e:
        return len(text) if e.stage is Stage.TRUNCATED else value.reached, None
    return whole.end, whole.text


_Step = Callable[["_Value"], Optional["_Step"]]


class _Value:
    """Reads one value. Each step handles one token and returns the next step."""

    def __init__(self, text: str, start: int, keys: Collection[str]) -> None:
        self._now = Tokens(text, start)
        self._keys = keys
        self._out: list[str] = []
        self._open: list[str] = []
        self._last = ("", "")  # kind and spelling of the value just read, where that was a scalar
        self._comma = (0, 0)  # place in the output and in the text

    @property
    def reached(self) -> int:
        """How far the text was read."""
        return self._now.position

    def read(self) -> RepairedJson:
        """Return the value."""
        value, item, after_comma, after = (
            _Value._value,
            _Value._item_or_end,
            _Value._after_comma,
            _Value._after,
        )
        step: _Step | None = value
        while step is not None:
            self._now.next(
                value_is_due=step is value or step is item or step is after_comma,
                behind_number=step is after and self._last[0] == "number",
            )
            step = step(self)
        return RepairedJson("".join(self._out), self._now.fixes(), self._now.position)

    def _value(self) -> "_Step | None":
        kind = self._now.kind
        if kind in {"{", "["}:
            return self._opened()
        if kind == "word":
            self._literal()
        elif kind not in {"string", "number"}:
            self._now.refuse("missing_value", f"{self._now.raw!r} where a value is due")
        self._out.append(self._now.spelled)
        self._last = ("quoted" if kind == "string" and self._now.raw[0] != '"' else kind, self._now.spelled)
        return _Value._after if self._open else None

    def _literal(self) -> None:
        word = self._now.raw
        if word not in _LITERALS:
            self._now.refuse("word", f"{word[:SHOWN_CHARS]!r} without quotes")
        self._now.spelled = _LITERALS[word]
        if self._now.spelled != word:
            self._now.fix("python_literal" if word in _PYTHON else "capitals", word, self._now.spelled)

    def _opened(self) -> "_Step":
        if len(self._open) == MAX_DEPTH:
            self._now.refuse("depth", f"nested deeper than {MAX_DEPTH} levels")
        self._open.append(self._now.kind)
        self._out.append(self._now.kind)
        return self._in_a_row(_Value._key_or_end if self._now.kind == "{" else _Value._item_or_end)

    def _in_a_row(self, otherwise: "_Step") -> "_Step":
        """Copy well-formed members up to the last comma, if there are any."""
        run = (_MEMBERS if self._open[-1] == "{" else _ITEMS).match(self._now.text, self._now.position)
        if run is None:
            return otherwise
        self._out += [run[0][:-1], ","]
        self._comma = (len(self._out) - 1, run.end() - 1)
        self._now.position = run.end()
        return _Value._after_comma

    def _closed(self) -> "_Step | None":
        if self._now.kind != ("}" if self._open[-1] == "{" else "]"):
            self._now.refuse("bracket", f"{self._now.kind} does not close {self._open[-1]}")
        self._open.pop()
        self._out.append(self._now.kind)
        self._last = ("", "")
        return _Value._after if self._open else None

    def _key_or_end(self) -> "_Step | None":
        return self._closed() if self._now.kind == "}" else self._key()

    def _item_or_end(self) -> "_Step | None":
        return self._closed() if self._now.kind == "]" else self._value()

    def _key(self) -> "_Step":
        word = self._now.raw
        is_bare = (self._now.kind == "word" and (word not in _NO_KEYS or word in self._keys)) or (
            self._now.kind == "number" and _INDEX.fullmatch(word) is not None
        )
        if is_bare:
            # `{"qty": 5,100: 7}` is refused, because 5,100 may be one number.
            if _THOUSANDS_BEFORE.search(self._now.text, max(0, self._now.at - 2), self._now.position):
                self._now.refuse("key", "a key, or a number with a comma in it", Stage.AMBIGUOUS)
            self._now.spelled = f'"{word}"'
            self._now.fix("bare_key", word, self._now.spelled)
        elif self._now.kind != "string":
            self._now.refuse("key", f"{word[:SHOWN_CHARS]!r} where a key is due")
        self._out.append(self._now.spelled)
        return _Value._colon

    def _colon(self) -> "_Step":
        if self._now.kind != ":":
            self._now.refuse("colon", "a key without a colon behind it")
        self._out.append(":")
        return _Value._value

    def _after(self) -> "_Step | None":
        kind = self._now.kind
        if kind == ",":
            self._comma = (len(self._out), self._now.at)
            self._out.append(",")
            return self._in_a_row(_Value._after_comma)
        if kind in {"}", "]"}:
            return self._closed()
        if kind == ":":
            self._now.refuse("colon", "a colon behind a value")
        if self._now.follows_comma_in_comment:
            self._now.refuse("missing_comma", "a comma that may stand in a comment", Stage.AMBIGUOUS)
        if self._last[0] == "quoted" and kind == "string" and not self._now.is_on_a_new_line:
            self._now.refuse("missing_comma", "a value behind a text in other quotes", Stage.AMBIGUOUS)
        # `""` with a string directly after it is refused, because it may be the three quotes of Python.
        if self._last[1] == '""' and self._now.at == self._now.gap:
            self._now.refuse("missing_comma", "three quotes", Stage.AMBIGUOUS)
        if self._last[1].endswith(',"'):
            self._now.refuse("missing_comma", "a comma that may have slipped into a text", Stage.AMBIGUOUS)
        return self._member_without_comma() if self._open[-1] == "{" else self._item_without_comma()

    def _after_comma(self) -> "_Step | None":
        if self._now.kind in {"}", "]"}:
            place, offset = self._comma
            # `[1, ]` is refused, because its last number may be missing.
            if _LOST_ITEM.match(self._now.text, offset - 1):
                refuse(Stage.AMBIGUOUS, "trailing_comma", offset, "a comma too many, or an item too few")
            self._out[place] = ""
            self._now.fix("trailing_comma", ",", at=offset)
            return self._closed()
        return self._key() if self._open[-1] == "{" else self._value()

    def _member_without_comma(self) -> "_Step":
        """Read a key after a missing comma: in quotes, or without quotes on a new line."""
        is_bare = self._now.kind in {"word", "number"}
        if self._now.kind != "string" and not (is_bare and self._now.is_on_a_new_line):
            self._now.refuse("missing_comma", f"{self._now.raw[:SHOWN_CHARS]!r} behind a value")
        self._now.fix("missing_comma", "", ",")
        self._out.append(",")
        return self._key()

    def _item_without_comma(self) -> "_Step | None":
        """Read an item after a missing comma, unless the two may be parts of one."""
        kind, spelled = self._last
        if kind and self._now.at == self._now.gap:
            reason = "two values without anything between them"
            self._now.refuse("missing_comma", reason, Stage.AMBIGUOUS)
        is_split = (
            kind == self._now.kind == "number"
            and not self._now.is_on_a_new_line
            and (self._now.raw[0] == "-" or (_GROUP.fullmatch(spelled) and _THOUSANDS.match(self._now.raw)))
        )
        if is_split:
            self._now.refuse("missing_comma", "two numbers, or one with a space in it", Stage.AMBIGUOUS)
        self._now.fix("missing_comma", "", ",")
        self._out.append(",")
        return self._value()
