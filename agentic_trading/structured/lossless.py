"""Read JSON with slips that have one reading: tokens are kept as they stand, what comes out is strict JSON."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn, Optional

import orjson

from agentic_trading.llm.reading import Fix, Stage, Violation
from agentic_trading.structured.errors import UnreadableError
from agentic_trading.structured.reading import MAX_DEPTH

SHOWN_CHARS: Final = 80
COMMENT_CHARS: Final = 1_000
MOST_FIXES: Final = 2_000

_STRING = r'"[^"\\\x00-\x1f]*+(?:\\["\\/bfnrtu][^"\\\x00-\x1f]*+)*+"'
_NUMBER = r"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+"
_SCALAR = rf"(?:{_STRING}|{_NUMBER}|true|false|null)"
# Well-formed members and items with the comma behind them, as many as stand in a row: most of a text is such.
_MEMBERS = re.compile(rf"(?:[ \t\n\r]*+{_STRING}[ \t\n\r]*+:[ \t\n\r]*+{_SCALAR}[ \t\n\r]*+,)++")
_ITEMS = re.compile(rf"(?:[ \t\n\r]*+{_SCALAR}[ \t\n\r]*+,)++")
_BLANK = re.compile(r"[ \t\n\r]*+")
_TOKEN = re.compile(
    rf"""
    (?P<punctuation>[{{}}\[\],:])
    |(?P<string>{_STRING})
    |(?P<number>{_NUMBER}(?![\w.%$€£/+\-]))
    |(?P<word>[^\W\d][\w$\-]*+|\$[\w$\-]++)
    |(?P<comment>//[^\n\r\u2028\u2029]*+|\#[^\n\r\u2028\u2029]*+|/\*(?:[^*]|\*(?!/))*+\*/)
    |(?P<quoted>["'`´“”„‘’‚])
    |(?P<space>[\s\ufeff\u200b\u2060]++)
    """,
    re.VERBOSE,
)
_CLOSERS: Final = {
    '"': '"', "'": "'", "`": "`´", "´": "´`", "“": "”“", "”": "”", "„": "“”", "‘": "’‘", "’": "’", "‚": "‘’",
}  # fmt: skip
_IN_QUOTES = {quote: re.compile(rf'[^\\\x00-\x1f"{ends}]++') for quote, ends in _CLOSERS.items()}
_ESCAPED = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_LITERALS: Final = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
}
_NO_KEYS: Final = frozenset({*_LITERALS, "NaN", "Infinity", "undefined"})
_INDEX = re.compile(r"0|[1-9][0-9]*")
_GROUP = re.compile(r"-?[0-9]{1,3}")
_THOUSANDS = re.compile(r"[0-9]{3}(?![0-9])")
_HIDDEN_KEY = re.compile(r"""["'“”‘’]\s*:""")
_BREAKS: Final = frozenset("\n\r\v\f\x85\u2028\u2029")


@dataclass(slots=True)
class _Token:
    """A token that says something: how strict JSON spells it, where it stands, what stands before it."""

    kind: str
    raw: str
    spelled: str
    start: int
    after_blank: bool
    after_break: bool


@dataclass(frozen=True, slots=True)
class Mended:
    """One value as strict JSON, what was mended in it, and the offset at which it ends."""

    text: str
    fixes: tuple[Fix, ...]
    end: int


def mended(text: str, start: int) -> Mended:
    """Return the value that begins at `start`, behind blanks and comments.

    Raises `UnreadableError` with the kind of what is in the way and its offset: `truncated` where the text ends
    inside the value, `ambiguous` where it has two readings, else `json_parse`. The result still has to be decoded.
    """
    return _Value(text, start).read()


def refuse(stage: Stage, kind: str, offset: int, reason: str) -> NoReturn:
    """Raise the `UnreadableError` that names `kind`, the offset and the reason."""
    violation = Violation(path="$", keyword=kind, message=f"{reason} at offset {offset}")
    raise UnreadableError(stage, [violation])


def skip_blank(text: str, start: int) -> int:
    """Return where the first token behind blanks and comments begins."""
    while token := _TOKEN.match(text, start):
        if token.lastgroup not in {"space", "comment"}:
            break
        start = token.end()
    return start


_Step = Callable[["_Value", _Token], Optional["_Step"]]


class _Value:
    """A value on its way through the text: each step takes one token and says which step takes the next."""

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._start = self._position = start
        self._out: list[str] = []
        self._fixes: list[Fix] = []
        self._open: list[str] = []
        self._last: _Token | None = None  # the value just read, where that was a scalar
        self._comma = (0, 0)  # place in the output and in the text

    def read(self) -> Mended:
        """Return the value."""
        step: _Step | None = _Value._value
        while step is not None:
            step = step(self, self._token())
        return Mended("".join(self._out), tuple(self._fixes), self._position)

    def _token(self) -> _Token:
        text, after_blank, after_break = self._text, False, False
        while True:
            blank = _BLANK.match(text, self._position)
            if blank and blank.end() > self._position:
                after_blank = True
                after_break = after_break or "\n" in blank[0] or "\r" in blank[0]
                self._position = blank.end()
            start = self._position
            if start >= len(text):
                refuse(Stage.TRUNCATED, "open", self._start, "the answer was cut: what begins is not closed")
            found = _TOKEN.match(text, start)
            if found is None:
                self._no_token(start)
            kind, raw = str(found.lastgroup), found[0]
            self._position = found.end()
            match kind:
                case "space":
                    self._fix("white_space", start, raw)
                    after_blank, after_break = True, after_break or not _BREAKS.isdisjoint(raw)
                case "comment":
                    self._comment(start, raw)
                    after_blank = True
                case "quoted":
                    spelled = self._quoted(start, raw)
                    return _Token(
                        "string", text[start : self._position], spelled, start, after_blank, after_break
                    )
                case _:
                    return _Token(
                        raw if kind == "punctuation" else kind, raw, raw, start, after_blank, after_break
                    )

    def _no_token(self, start: int) -> NoReturn:
        if self._text.startswith("/*", start):
            refuse(Stage.TRUNCATED, "comment", start, "the answer was cut: a comment is not closed")
        shown = self._text[start : start + 20].encode("utf-8", "backslashreplace").decode()
        refuse(Stage.JSON_PARSE, "token", start, f"{shown!r} is no JSON, and has not one meaning,")

    def _comment(self, start: int, raw: str) -> None:
        if raw.count('"') % 2:
            refuse(
                Stage.AMBIGUOUS,
                "comment",
                start,
                "a comment with an odd number of quotes, or a text that lost one,",
            )
        kind = "hidden_key" if _HIDDEN_KEY.search(raw) else "comment"
        self._fix(kind, start, raw[:COMMENT_CHARS], chars=COMMENT_CHARS)

    def _quoted(self, start: int, quote: str) -> str:
        """Return a string in any quotes, or one with slips, as strict JSON."""
        text, closers, plain = self._text, _CLOSERS[quote], _IN_QUOTES[quote]
        parts: list[str] = []
        kinds = set() if quote == '"' else {"quotes"}
        quotes_inside = 0
        at = start + 1
        while at < len(text) and (char := text[at]) not in closers:
            if run := plain.match(text, at):
                parts.append(run[0])
                at = run.end()
                continue
            if char == "\\":
                spelled, length = self._escape(at, closers)
                kinds |= {"escape"} if length > len(spelled) else set()
            else:
                spelled, length = orjson.dumps(char).decode()[1:-1], 1
                quotes_inside += char == '"'
                kinds |= {"control_character"} if char < " " else set()
            if char == "\0":  # a log spells a lone surrogate so: it must stay unreadable
                refuse(Stage.JSON_PARSE, "control_character", at, "a raw U+0000 in a string")
            parts.append(spelled)
            at += length
        if at >= len(text):
            refuse(Stage.TRUNCATED, "string", start, "the answer was cut: a string is not closed")
        if quotes_inside % 2:
            refuse(Stage.AMBIGUOUS, "quotes", start, 'an odd number of " in other quotes')
        self._position = at + 1
        spelled = f'"{"".join(parts)}"'
        for kind in sorted(kinds):
            self._fix(kind, start, text[start : at + 1], spelled)
        return spelled

    def _escape(self, at: int, closers: str) -> tuple[str, int]:
        """Return an escape as strict JSON spells it, and its length in the text."""
        if found := _ESCAPED.match(self._text, at):
            return found[0], len(found[0])
        escaped = self._text[at + 1 : at + 2]
        if escaped and escaped in f"'{closers}":
            return escaped, 2
        refuse(Stage.JSON_PARSE, "escape", at, f"\\{escaped} is no escape")

    def _fix(self, kind: str, start: int, before: str, after: str = "", *, chars: int = SHOWN_CHARS) -> None:
        if len(self._fixes) == MOST_FIXES:
            refuse(Stage.JSON_PARSE, "slips", start, f"more than {MOST_FIXES} slips, the next one")
        self._fixes.append(Fix(kind=kind, where=str(start), before=before[:chars], after=after[:chars]))

    def _value(self, token: _Token) -> "_Step | None":
        if token.kind in {"{", "["}:
            return self._opened(token)
        if token.kind == "word":
            if token.raw not in _LITERALS:
                refuse(Stage.JSON_PARSE, "word", token.start, f"{token.raw[:SHOWN_CHARS]!r} without quotes")
            token.spelled = _LITERALS[token.raw]
            if token.spelled != token.raw:
                self._fix("python_literal", token.start, token.raw, token.spelled)
        elif token.kind not in {"string", "number"}:
            refuse(Stage.JSON_PARSE, "missing_value", token.start, f"{token.raw!r} where a value is due")
        self._out.append(token.spelled)
        self._last = token
        return _Value._after if self._open else None

    def _opened(self, token: _Token) -> "_Step":
        if len(self._open) == MAX_DEPTH:
            refuse(Stage.JSON_PARSE, "depth", token.start, f"nested deeper than {MAX_DEPTH} levels")
        self._open.append(token.kind)
        self._out.append(token.kind)
        return self._in_a_row(_Value._key_or_end if token.kind == "{" else _Value._item_or_end)

    def _in_a_row(self, otherwise: "_Step") -> "_Step":
        """Take over what is well-formed from here on up to a comma, if anything is."""
        run = (_MEMBERS if self._open[-1] == "{" else _ITEMS).match(self._text, self._position)
        if run is None:
            return otherwise
        self._out += [run[0][:-1], ","]
        self._comma = (len(self._out) - 1, run.end() - 1)
        self._position = run.end()
        return _Value._after_comma

    def _closed(self, token: _Token) -> "_Step | None":
        if token.kind != ("}" if self._open[-1] == "{" else "]"):
            refuse(Stage.JSON_PARSE, "bracket", token.start, f"{token.kind} does not close {self._open[-1]}")
        self._open.pop()
        self._out.append(token.kind)
        self._last = None
        return _Value._after if self._open else None

    def _key_or_end(self, token: _Token) -> "_Step | None":
        return self._closed(token) if token.kind == "}" else self._key(token)

    def _item_or_end(self, token: _Token) -> "_Step | None":
        return self._closed(token) if token.kind == "]" else self._value(token)

    def _key(self, token: _Token) -> "_Step":
        is_bare = (token.kind == "word" and token.raw not in _NO_KEYS) or (
            token.kind == "number" and _INDEX.fullmatch(token.raw) is not None
        )
        if is_bare:
            token.spelled = f'"{token.raw}"'
            self._fix("bare_key", token.start, token.raw, token.spelled)
        elif token.kind != "string":
            refuse(Stage.JSON_PARSE, "key", token.start, f"{token.raw[:SHOWN_CHARS]!r} where a key is due")
        self._out.append(token.spelled)
        return _Value._colon

    def _colon(self, token: _Token) -> "_Step":
        if token.kind != ":":
            refuse(Stage.JSON_PARSE, "colon", token.start, "a key without a colon behind it")
        self._out.append(":")
        return _Value._value

    def _after(self, token: _Token) -> "_Step | None":
        if token.kind == ",":
            self._comma = (len(self._out), token.start)
            self._out.append(",")
            return self._in_a_row(_Value._after_comma)
        if token.kind in {"}", "]"}:
            return self._closed(token)
        if token.kind == ":":
            refuse(Stage.JSON_PARSE, "colon", token.start, "a colon behind a value")
        in_object = self._open[-1] == "{"
        self._check_missing_comma(token, in_object=in_object)
        self._fix("missing_comma", token.start, "", ",")
        self._out.append(",")
        return self._key(token) if in_object else self._value(token)

    def _after_comma(self, token: _Token) -> "_Step | None":
        if token.kind in {"}", "]"}:
            place, offset = self._comma
            self._out[place] = ""
            self._fix("trailing_comma", offset, ",")
            return self._closed(token)
        return self._key(token) if self._open[-1] == "{" else self._value(token)

    def _check_missing_comma(self, token: _Token, *, in_object: bool) -> None:
        """Refuse what stands behind a value without a comma, unless both are complete and apart from each other."""
        last = self._last
        if last is not None and last.kind == "string" and last.spelled.endswith(',"'):
            refuse(Stage.AMBIGUOUS, "missing_comma", token.start, "a comma that may have slipped into a text")
        if in_object:
            if token.kind != "string" and not (token.kind in {"word", "number"} and token.after_break):
                refuse(
                    Stage.JSON_PARSE,
                    "missing_comma",
                    token.start,
                    f"{token.raw[:SHOWN_CHARS]!r} behind a value",
                )
            return
        touches = last is not None and not token.after_blank
        if touches:
            refuse(Stage.AMBIGUOUS, "missing_comma", token.start, "two values without anything between them")
        is_split = (
            last is not None
            and last.kind == token.kind == "number"
            and not token.after_break
            and _GROUP.fullmatch(last.raw)
            and _THOUSANDS.match(token.raw)
        )
        if is_split:
            refuse(Stage.AMBIGUOUS, "missing_comma", token.start, "two numbers, or one with a space in it,")
