"""The tokens of JSON with syntax errors, each with its strict notation."""

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
    """Raise an `UnreadableError` with the kind, the offset and the reason."""
    violation = Violation(path="$", keyword=kind, message=f"at offset {offset}: {reason}")
    raise UnreadableError(stage, [violation])


def skip_blank(text: str, start: int) -> int:
    """Return the start of the first token after blanks and comments, or the end."""
    while token := _TOKEN.match(text, start):
        kind = str(token.lastgroup)
        if kind not in {"space", "comment"}:
            return token.start(kind)
        start = token.end()
    return len(text) if not text[start:].strip() else start


def blank_kind(words: str) -> str:
    """Return `white_space`, `comment`, or `hidden_key` for a comment with a key in it."""
    if _HIDDEN_KEY.search(words):
        return "hidden_key"
    return "comment" if "#" in words or "/" in words else "white_space"


def _lost_a_quote(comment: str) -> bool:
    """Return whether a comment may be the rest of a text that lost its opening quote."""
    # The quotes of such a comment are not in pairs. A comment would then hide a part of a value.
    left = _ANY_ESCAPE.sub("", comment) if "\\" in comment else comment
    if comment.count('"') % 2 or left.count('"') % 2:
        return True
    return left.count("'") % 2 == 1 and left.rstrip(" ,\t").endswith("'")


class Tokens:
    """The tokens of a text, one at a time, each with the strict notation of its value.

    Attributes:
        kind: The kind of the current token: `string`, `number`, `word`, or the punctuation mark itself.
        raw: The token as it is in the text.
        spelled: The token in strict notation.
        at: The offset of the token.
        gap: The end of the token before it.
        follows_comma_in_comment: Whether a comment between the two contains a comma.

    """

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.start = self.position = self.gap = self.at = start
        self.kind = self.raw = self.spelled = ""
        self._fixes: list[dict[str, str]] = []
        self.follows_comma_in_comment = False

    def next(self, *, value_is_due: bool, behind_number: bool) -> None:
        """Read the next token, without blanks and comments.

        The arguments decide whether a comment may also be a value or a division.
        """
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
            else:  # a fast path: its content is strict already
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
        """Read a string with any quotes or with errors, and write it as strict JSON."""
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
        """Return a special character in strict notation, and its length in the text."""
        char = self.text[at]
        return self._escape(at, closers) if char == "\\" else (_SPELLED[char], 1)

    def _check_quoted(self) -> None:
        # A log writes a lone surrogate as U+0000. Such a text is refused, so that a replay ends like the call.
        if "\0" in self.raw:
            offset = self.at + self.raw.index("\0")
            refuse(Stage.JSON_PARSE, "control_character", offset, "a raw U+0000 in a string")
        if self.raw[0] != '"' and _ANY_ESCAPE.sub("", self.raw).count('"') % 2:
            self.refuse("quotes", 'an odd number of " in other quotes', Stage.AMBIGUOUS)

    def _check_apostrophes(self) -> None:
        if self.raw[0] == '"' and self.raw.count("'") > self.raw.count("\\'"):
            reason = "apostrophes with and without a backslash, or a text that lost a letter"
            self.refuse("escape", reason, Stage.AMBIGUOUS)

    def _escape(self, at: int, closers: str) -> tuple[str, int]:
        """Return an escape in strict notation, and its length in the text."""
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
        """Record a repair at `at`, by default at the current token.

        Raises:
            UnreadableError: If there are more than `MOST_FIXES` repairs.

        """
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
        """Return the repairs so far."""
        # Built together, because building each one alone would take twice as long.
        return _FIXES.validate_python(self._fixes)

    def refuse(self, kind: str, reason: str, stage: Stage = Stage.JSON_PARSE) -> NoReturn:
        """Raise an `UnreadableError` with the kind, the reason and the token's offset."""
        refuse(stage, kind, self.at, reason)

    @property
    def is_on_a_new_line(self) -> bool:
        """Whether a line ends between the previous and the current token."""
        return not _BREAKS.isdisjoint(self.text[self.gap : self.at])
