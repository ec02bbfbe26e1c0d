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

_STRING = r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"'
_NUMBER = r"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+"
_SCALAR = rf"(?:{_STRING}|{_NUMBER}|true|false|null)"
# Well-formed members and items with the comma behind them, as many as stand in a row: most of a text is such.
_MEMBERS = re.compile(rf"(?:[ \t\n\r]*+{_STRING}[ \t\n\r]*+:[ \t\n\r]*+{_SCALAR}[ \t\n\r]*+,)++")
_ITEMS = re.compile(rf"(?:[ \t\n\r]*+{_SCALAR}[ \t\n\r]*+,)++")
_TOKEN = re.compile(
    rf"""
    [ \t\n\r]*+(?:
    (?P<punctuation>[{{}}\[\],:])
    |(?P<string>{_STRING})
    |(?P<number>{_NUMBER}(?![\w.%$€£/+\-]))
    |(?P<word>[^\W\d][\w$\-]*+|\$[\w$\-]++)
    |(?P<comment>//[^\n\r\u2028\u2029]*+|\#[^\n\r\u2028\u2029]*+|/\*(?:[^*]|\*(?!/))*+\*/)
    |(?P<quoted>["'`´“”„‘’‚])
    |(?P<space>[\s\ufeff\u200b\u2060]++)
    )
    """,
    re.VERBOSE,
)
_CLOSERS: Final = {
    '"': '"', "'": "'", "`": "`´", "´": "´`", "“": "”“", "”": "”", "„": "“”", "‘": "’‘", "’": "’", "‚": "‘’",
}  # fmt: skip
_IN_QUOTES = {quote: re.compile(rf'[^\\\x00-\x1f"{ends}]++') for quote, ends in _CLOSERS.items()}
_ESCAPED = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
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
_ELLIPSIS = re.compile(r"\.\.\.|…")
_OPERAND = re.compile(r"//\s*[-+.($€£0-9]")
_THOUSANDS_BEFORE = re.compile(r"[0-9],[0-9]{3}\Z")
_LOST_ITEM = re.compile(r"[0-9],(?:[ \t]+|[ \t\r]*\n\s*\n\s*)\]")
_GROUP = re.compile(r"-?[0-9]{1,3}")
_THOUSANDS = re.compile(r"[0-9]{3}(?![0-9])")
_ANY_ESCAPE = re.compile(r"\\.", re.DOTALL)
_HIDDEN_KEY = re.compile(r"""["'“”‘’]\s*:""")
_BREAKS: Final = frozenset("\n\r\v\f\x85\u2028\u2029")


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
    """Return where the first token behind blanks and comments begins, or the end."""
    while token := _TOKEN.match(text, start):
        kind = str(token.lastgroup)
        if kind not in {"space", "comment"}:
            return token.start(kind)
        start = token.end()
    return len(text) if not text[start:].strip() else start


def blank_kind(words: str) -> str:
    """Return what blanks and comments are: white space, a comment, or one that hides a key."""
    if _HIDDEN_KEY.search(words):
        return "hidden_key"
    return "comment" if "#" in words or "/" in words else "white_space"


def _lost_a_quote(comment: str) -> bool:
    """Whether a comment may be the rest of a text that a lost quote opened: its own quotes are then not in pairs."""
    left = _ANY_ESCAPE.sub("", comment) if "\\" in comment else comment
    if comment.count('"') % 2 or left.count('"') % 2:
        return True
    return left.count("'") % 2 == 1 and left.rstrip(" ,\t").endswith("'")


_Step = Callable[["_Value"], Optional["_Step"]]


class _Value:
    """A value on its way through the text: each step looks at the present token and says which one takes the next."""

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._start = self._position = start
        self._kind = self._raw = self._spelled = (
            ""  # of the present token: a punctuation mark is its own kind
        )
        self._gap = self._at = start  # where the token before it ended, and where it begins
        self._out: list[str] = []
        self._fixes: list[Fix] = []
        self._open: list[str] = []
        self._last = ("", "")  # kind and spelling of the value just read, where that was a scalar
        self._comma = (0, 0)  # place in the output and in the text
        self._step: _Step = _Value._value
        self._is_remarked = False  # a comment with a comma in it stands before the present token

    def read(self) -> Mended:
        """Return the value."""
        step: _Step | None = self._step
        while step is not None:
            self._step = step
            self._next()
            step = step(self)
        return Mended("".join(self._out), tuple(self._fixes), self._position)

    def _next(self) -> None:
        """Go to the next token that says something."""
        self._gap = self._position
        self._is_remarked = False
        while True:
            found = _TOKEN.match(self._text, self._position)
            if found is None:
                self._no_token()
            kind = str(found.lastgroup)
            raw = found[kind]
            self._position = found.end()
            self._at = self._position - len(raw)
            if kind == "comment":
                self._is_remarked |= "," in raw
                self._comment(raw)
            elif kind == "space":
                self._fix("white_space", raw)
            else:
                break
        self._raw = self._spelled = raw
        self._kind = raw if kind == "punctuation" else kind
        if kind == "quoted":
            self._kind = "string"
            self._quoted()

    def _no_token(self) -> NoReturn:
        left = self._text[self._position :].lstrip(" \t\n\r")
        offset = len(self._text) - len(left)
        if not left:
            refuse(Stage.TRUNCATED, "open", self._start, "the answer was cut: what begins is not closed")
        if left.startswith("/*"):
            refuse(Stage.TRUNCATED, "comment", offset, "the answer was cut: a comment is not closed")
        shown = left[:20].encode("utf-8", "backslashreplace").decode()
        refuse(Stage.JSON_PARSE, "token", offset, f"{shown!r} is no JSON, and has not one meaning,")

    def _comment(self, raw: str) -> None:
        is_due = self._step in {_Value._value, _Value._item_or_end, _Value._after_comma}
        if is_due and raw[0] == "#" and raw[1:2].isalnum():
            self._refuse("word", f"{raw[:SHOWN_CHARS]!r} where a value is due")
        if self._step is _Value._after and self._last[0] == "number" and _OPERAND.match(raw):
            self._refuse("number", "a comment, or a division,", Stage.AMBIGUOUS)
        if _ELLIPSIS.search(raw):
            self._refuse("ellipsis", "a comment that says that something was left out")
        if _lost_a_quote(raw):
            reason = "a comment with an odd number of quotes, or a text that lost one,"
            refuse(Stage.AMBIGUOUS, "comment", self._at, reason)
        self._fix(blank_kind(raw), raw[:COMMENT_CHARS], chars=COMMENT_CHARS)

    def _quoted(self) -> None:
        """Read a string in any quotes, or one with slips, and spell it as strict JSON."""
        text, quote, start = self._text, self._raw, self._at
        closers, plain = _CLOSERS[quote], _IN_QUOTES[quote]
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
        self._raw = text[start : at + 1]
        self._spelled = f'"{"".join(parts)}"'
        if "escape" in kinds:
            self._check_apostrophes()
        for kind in sorted(kinds):
            self._fix(kind, self._raw, self._spelled)

    def _check_apostrophes(self) -> None:
        if self._raw[0] == '"' and self._raw.count("'") > self._raw.count("\\'"):
            reason = "apostrophes with and without a backslash, or a text that lost a letter,"
            self._refuse("escape", reason, Stage.AMBIGUOUS)

    def _escape(self, at: int, closers: str) -> tuple[str, int]:
        """Return an escape as strict JSON spells it, and its length in the text."""
        if found := _ESCAPED.match(self._text, at):
            return found[0], len(found[0])
        escaped = self._text[at + 1 : at + 2]
        if escaped and escaped in f"'{closers}":
            return escaped, 2
        if _CUT_ESCAPE.match(self._text, at):
            refuse(Stage.TRUNCATED, "string", self._at, "the answer was cut: a string is not closed")
        refuse(Stage.JSON_PARSE, "escape", at, f"\\{escaped} is no escape")

    def _fix(
        self, kind: str, before: str, after: str = "", *, at: int = -1, chars: int = SHOWN_CHARS
    ) -> None:
        offset = self._at if at < 0 else at
        if len(self._fixes) == MOST_FIXES:
            refuse(Stage.JSON_PARSE, "slips", offset, f"more than {MOST_FIXES} slips, the next one")
        self._fixes.append(Fix(kind=kind, where=str(offset), before=before[:chars], after=after[:chars]))

    def _refuse(self, kind: str, reason: str, stage: Stage = Stage.JSON_PARSE) -> NoReturn:
        refuse(stage, kind, self._at, reason)

    def _value(self) -> "_Step | None":
        kind = self._kind
        if kind in {"{", "["}:
            return self._opened()
        if kind == "word":
            self._literal()
        elif kind not in {"string", "number"}:
            self._refuse("missing_value", f"{self._raw!r} where a value is due")
        self._out.append(self._spelled)
        self._last = ("quoted" if kind == "string" and self._raw[0] != '"' else kind, self._spelled)
        return _Value._after if self._open else None

    def _literal(self) -> None:
        word = self._raw
        if word not in _LITERALS:
            self._refuse("word", f"{word[:SHOWN_CHARS]!r} without quotes")
        self._spelled = _LITERALS[word]
        if self._spelled != word:
            self._fix("python_literal", word, self._spelled)

    def _opened(self) -> "_Step":
        if len(self._open) == MAX_DEPTH:
            self._refuse("depth", f"nested deeper than {MAX_DEPTH} levels")
        self._open.append(self._kind)
        self._out.append(self._kind)
        return self._in_a_row(_Value._key_or_end if self._kind == "{" else _Value._item_or_end)

    def _in_a_row(self, otherwise: "_Step") -> "_Step":
        """Take over what is well-formed from here on up to a comma, if anything is."""
        run = (_MEMBERS if self._open[-1] == "{" else _ITEMS).match(self._text, self._position)
        if run is None:
            return otherwise
        self._out += [run[0][:-1], ","]
        self._comma = (len(self._out) - 1, run.end() - 1)
        self._position = run.end()
        return _Value._after_comma

    def _closed(self) -> "_Step | None":
        if self._kind != ("}" if self._open[-1] == "{" else "]"):
            self._refuse("bracket", f"{self._kind} does not close {self._open[-1]}")
        self._open.pop()
        self._out.append(self._kind)
        self._last = ("", "")
        return _Value._after if self._open else None

    def _key_or_end(self) -> "_Step | None":
        return self._closed() if self._kind == "}" else self._key()

    def _item_or_end(self) -> "_Step | None":
        return self._closed() if self._kind == "]" else self._value()

    def _key(self) -> "_Step":
        word = self._raw
        is_bare = (self._kind == "word" and word not in _NO_KEYS) or (
            self._kind == "number" and _INDEX.fullmatch(word) is not None
        )
        if is_bare:
            if _THOUSANDS_BEFORE.search(self._text, max(0, self._at - 2), self._position):
                self._refuse("key", "a key, or a number with a comma in it,", Stage.AMBIGUOUS)
            self._spelled = f'"{word}"'
            self._fix("bare_key", word, self._spelled)
        elif self._kind != "string":
            self._refuse("key", f"{word[:SHOWN_CHARS]!r} where a key is due")
        self._out.append(self._spelled)
        return _Value._colon

    def _colon(self) -> "_Step":
        if self._kind != ":":
            self._refuse("colon", "a key without a colon behind it")
        self._out.append(":")
        return _Value._value

    def _after(self) -> "_Step | None":
        kind = self._kind
        if kind == ",":
            self._comma = (len(self._out), self._at)
            self._out.append(",")
            return self._in_a_row(_Value._after_comma)
        if kind in {"}", "]"}:
            return self._closed()
        if kind == ":":
            self._refuse("colon", "a colon behind a value")
        if self._is_remarked:
            self._refuse("missing_comma", "a comma that may stand in a comment", Stage.AMBIGUOUS)
        if self._last[0] == "quoted" and kind == "string" and not self._is_on_a_new_line:
            self._refuse("missing_comma", "a value behind a text in other quotes", Stage.AMBIGUOUS)
        if self._last[1] == '""' and self._at == self._gap:
            self._refuse("missing_comma", "three quotes", Stage.AMBIGUOUS)
        if self._last[1].endswith(',"'):
            self._refuse("missing_comma", "a comma that may have slipped into a text", Stage.AMBIGUOUS)
        return self._member_without_comma() if self._open[-1] == "{" else self._item_without_comma()

    def _after_comma(self) -> "_Step | None":
        if self._kind in {"}", "]"}:
            place, offset = self._comma
            if _LOST_ITEM.match(self._text, offset - 1):
                refuse(Stage.AMBIGUOUS, "trailing_comma", offset, "a comma too many, or an item too few,")
            self._out[place] = ""
            self._fix("trailing_comma", ",", at=offset)
            return self._closed()
        return self._key() if self._open[-1] == "{" else self._value()

    def _member_without_comma(self) -> "_Step":
        """Take a key behind a value without a comma: in quotes, or bare on a line of its own."""
        is_bare = self._kind in {"word", "number"}
        if self._kind != "string" and not (is_bare and self._is_on_a_new_line):
            self._refuse("missing_comma", f"{self._raw[:SHOWN_CHARS]!r} behind a value")
        self._fix("missing_comma", "", ",")
        self._out.append(",")
        return self._key()

    def _item_without_comma(self) -> "_Step | None":
        """Take an item behind another one without a comma, if the two cannot be parts of one."""
        kind, spelled = self._last
        if kind and self._at == self._gap:
            reason = "two values without anything between them"
            self._refuse("missing_comma", reason, Stage.AMBIGUOUS)
        is_split = (
            kind == self._kind == "number"
            and not self._is_on_a_new_line
            and (self._raw[0] == "-" or (_GROUP.fullmatch(spelled) and _THOUSANDS.match(self._raw)))
        )
        if is_split:
            self._refuse("missing_comma", "two numbers, or one with a space in it,", Stage.AMBIGUOUS)
        self._fix("missing_comma", "", ",")
        self._out.append(",")
        return self._value()

    @property
    def _is_on_a_new_line(self) -> bool:
        return not _BREAKS.isdisjoint(self._text[self._gap : self._at])
