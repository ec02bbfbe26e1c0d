"""The tokens of JSON with syntax errors: each is kept as it stands, or spelled strictly with the same value."""

import re
from typing import Final, NoReturn

import orjson
from pydantic import TypeAdapter

from agentic_trading.llm.result import Fix, Stage, Violation
from agentic_trading.structured.outcome import UnreadableError

SHOWN_CHARS: Final = 80
COMMENT_CHARS: Final = 1_000
MOST_FIXES: Final = 2_000
_FIXES = TypeAdapter(tuple[Fix, ...])

STRING = r'"[^"\\\x00-\x1f]*+(?>(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*)"'
NUMBER = r"-?+(?:0|[1-9][0-9]*+)(?>(?:\.[0-9]++)?)(?>(?:[eE][+-]?+[0-9]++)?)"
_TOKEN = re.compile(
    rf"""
    [ \t\n\r]*+(?:
    (?P<punctuation>[{{}}\[\],:])
    |(?P<string>{STRING})
    |(?P<number>{NUMBER}(?![\w.%$€£+\-]|/(?!\*)))
    |(?P<word>[^\W\d][\w$\-]*+|\$[\w$\-]++)
    |(?P<comment>//[^\n\r\u2028\u2029]*+|\#[^\n\r\u2028\u2029]*+|/\*(?>(?:[^*]|\*(?!/))*)\*/)
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
_TO_THE_END = {quote: re.compile(rf'[^\\\x00-\x1f"{ends}]*+[{ends}]') for quote, ends in _CLOSERS.items()}
_SPELLED = {char: orjson.dumps(char).decode()[1:-1] for char in ('"', *map(chr, range(32)))}
_ESCAPED = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_ELLIPSIS = re.compile(r"\.\.\.|…")
_OPERAND = re.compile(r"//\s*[-+.($€£0-9]")
_CONTROL = re.compile(r"[\x00-\x1f]")
_ANY_ESCAPE = re.compile(r"\\.", re.DOTALL)
_HIDDEN_KEY = re.compile(r"""["'“”‘’]\s*:""")
_BREAKS: Final = frozenset("\n\r\v\f\x85\u2028\u2029")


def refuse(stage: Stage, kind: str, offset: int, reason: str) -> NoReturn:
    """Raise the `UnreadableError` that names `kind`, the offset and the reason."""
    violation = Violation(path="$", keyword=kind, message=f"at offset {offset}: {reason}")
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


class Tokens:
    """The tokens of a text with syntax errors, one at a time, each with the strict spelling that has its value.

    `kind` is the present one's: `string`, `number`, `word`, or a punctuation mark itself. `raw` is how it stands in the
    text, from `at` on; `gap` is where the one before it ended. `follows_comma_in_comment`: between the two stands a
    comment with a comma in it.
    """

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.start = self.position = self.gap = self.at = start
        self.kind = self.raw = self.spelled = ""
        self._fixes: list[dict[str, str]] = []
        self.follows_comma_in_comment = False

    def next(self, *, value_is_due: bool, behind_number: bool) -> None:
        """Go to the next token that is neither blank nor comment; what may stand here decides what a comment may be."""
        self.gap = self.position
        self.follows_comma_in_comment = False
        while True:
            found = _TOKEN.match(self.text, self.position)
            if found is None:
                self._no_token()
            kind = str(found.lastgroup)
            raw = found[kind]
            self.position = found.end()
            self.at = self.position - len(raw)
            if kind == "comment":
                self.follows_comma_in_comment |= "," in raw
                self._comment(raw, value_is_due=value_is_due, behind_number=behind_number)
            elif kind == "space":
                self.fix("white_space", raw)
            else:
                break
        self.raw = self.spelled = raw
        self.kind = raw if kind == "punctuation" else kind
        if kind == "quoted":
            self.kind = "string"
            end = _TO_THE_END[raw].match(self.text, self.position) if raw != '"' else None
            if end is None:
                self._quoted()
            else:  # the quick way: everything in it is spelled strictly already
                self.spelled = f'"{end[0][:-1]}"'
                self.raw = raw + end[0]
                self.position = end.end()
                self.fix("quotes", self.raw, self.spelled)

    def _no_token(self) -> NoReturn:
        left = self.text[self.position :].lstrip(" \t\n\r")
        offset = len(self.text) - len(left)
        if not left:
            refuse(Stage.TRUNCATED, "open", self.start, "truncated: unclosed object")
        if left.startswith("/*"):
            refuse(Stage.TRUNCATED, "comment", offset, "truncated: unclosed comment")
        shown = left[:20].encode("utf-8", "backslashreplace").decode()
        refuse(Stage.JSON_PARSE, "token", offset, f"{shown!r} is no JSON, and has not one meaning")

    def _comment(self, raw: str, *, value_is_due: bool, behind_number: bool) -> None:
        if value_is_due and raw[0] == "#" and raw[1:2].isalnum():
            self.refuse("word", f"{raw[:SHOWN_CHARS]!r} where a value is due")
        if behind_number and _OPERAND.match(raw):
            self.refuse("number", "a comment, or a division", Stage.AMBIGUOUS)
        if _ELLIPSIS.search(raw):
            self.refuse("ellipsis", "a comment that says that something was left out")
        if _lost_a_quote(raw):
            reason = "a comment with an odd number of quotes, or a text that lost one"
            refuse(Stage.AMBIGUOUS, "comment", self.at, reason)
        self.fix(blank_kind(raw), raw[:COMMENT_CHARS], chars=COMMENT_CHARS)

    def _quoted(self) -> None:
        """Read a string in any quotes, or one with syntax errors, and spell it as strict JSON."""
        text, quote, start = self.text, self.raw, self.at
        closers, plain = _CLOSERS[quote], _IN_QUOTES[quote]
        parts: list[str] = []
        kinds = set() if quote == '"' else {"quotes"}
        at = start + 1
        while at < len(text) and text[at] not in closers:
            run = plain.match(text, at)
            spelled, length = (run[0], run.end() - at) if run else self._sign(at, closers)
            if length > len(spelled):
                kinds.add("escape")
            parts.append(spelled)
            at += length
        if at >= len(text):
            refuse(Stage.TRUNCATED, "string", start, "truncated: unclosed string")
        self.position = at + 1
        self.raw = text[start : at + 1]
        self.spelled = f'"{"".join(parts)}"'
        if _CONTROL.search(self.raw):
            kinds.add("control_character")
        self._check_quoted()
        if "escape" in kinds:
            self._check_apostrophes()
        for name in sorted(kinds):
            self.fix(name, self.raw, self.spelled)

    def _sign(self, at: int, closers: str) -> tuple[str, int]:
        """Return what is no plain character as strict JSON spells it, and its length in the text."""
        char = self.text[at]
        return self._escape(at, closers) if char == "\\" else (_SPELLED[char], 1)

    def _check_quoted(self) -> None:
        if "\0" in self.raw:  # a log spells a lone surrogate so: it must stay unreadable
            offset = self.at + self.raw.index("\0")
            refuse(Stage.JSON_PARSE, "control_character", offset, "a raw U+0000 in a string")
        if self.raw[0] != '"' and _ANY_ESCAPE.sub("", self.raw).count('"') % 2:
            self.refuse("quotes", 'an odd number of " in other quotes', Stage.AMBIGUOUS)

    def _check_apostrophes(self) -> None:
        if self.raw[0] == '"' and self.raw.count("'") > self.raw.count("\\'"):
            reason = "apostrophes with and without a backslash, or a text that lost a letter"
            self.refuse("escape", reason, Stage.AMBIGUOUS)

    def _escape(self, at: int, closers: str) -> tuple[str, int]:
        """Return an escape as strict JSON spells it, and its length in the text."""
        if found := _ESCAPED.match(self.text, at):
            return found[0], len(found[0])
        escaped = self.text[at + 1 : at + 2]
        if escaped and escaped in f"'{closers}":
            return escaped, 2
        if _CUT_ESCAPE.match(self.text, at):
            refuse(Stage.TRUNCATED, "string", self.at, "truncated: unclosed string")
        self.position = at
        refuse(Stage.JSON_PARSE, "escape", at, f"\\{escaped} is no escape")

    def fix(self, kind: str, before: str, after: str = "", *, at: int = -1, chars: int = SHOWN_CHARS) -> None:
        """Record a repair at `at`, or else at the present token; raises `UnreadableError` beyond `MOST_FIXES`."""
        offset = self.at if at < 0 else at
        if len(self._fixes) == MOST_FIXES:
            refuse(Stage.JSON_PARSE, "slips", offset, f"more than {MOST_FIXES} slips, this one is left")
        self._fixes.append({
            "kind": kind,
            "where": str(offset),
            "before": before[:chars],
            "after": after[:chars],
        })

    def fixes(self) -> tuple[Fix, ...]:
        """Return the repairs so far; built together, they cost half."""
        return _FIXES.validate_python(self._fixes)

    def refuse(self, kind: str, reason: str, stage: Stage = Stage.JSON_PARSE) -> NoReturn:
        """Raise the `UnreadableError` that names `kind`, the present token's offset and the reason."""
        refuse(stage, kind, self.at, reason)

    @property
    def is_on_a_new_line(self) -> bool:
        """Whether a line ends between the token before and the present one."""
        return not _BREAKS.isdisjoint(self.text[self.gap : self.at])
