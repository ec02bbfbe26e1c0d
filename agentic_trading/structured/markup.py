"""Know what in an answer its own marks set aside: a model's thinking, and code in a fence of another language."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from agentic_trading.llm.attempt_trace import Fix, Stage
from agentic_trading.structured.tokens import SHOWN_CHARS, refuse

_THINKING = re.compile(r"\s*+<(think|thinking|reasoning)>")
_FENCE_LINE = re.compile(r"^[ \t]*+```([\w+-]*+)[ \t]*+\r?+$", re.MULTILINE)
_JSON: Final = frozenset({"json", "json5", "jsonc"})


def strip_thinking(text: str) -> tuple[str, tuple[Fix, ...]]:
    """Return `text` with blanks in the place of the thinking that it begins with, and what was left out.

    Raises `UnreadableError` (`truncated`) where the thinking has no end: no object in it is the answer.
    """
    opening = _THINKING.match(text)
    if opening is None:
        return text, ()
    closing = f"</{opening[1]}>"
    place = text.find(closing, opening.end())
    if place < 0:
        refuse(
            Stage.TRUNCATED, "thinking", opening.start(1), "the answer was cut: the thinking is not closed"
        )
    end = place + len(closing)
    fix = Fix(kind="thinking", where="0", before=text[:end].strip()[:SHOWN_CHARS])
    return " " * end + text[end:], (fix,)


class CodeFences:
    """The code that stands in fences of other languages in a text with a fence that says `json`; else there is none."""

    def __init__(self, text: str) -> None:
        blocks = list(_blocks(text)) if text.count("```") > 1 else []
        has_json = any(language in _JSON for language, _, _ in blocks)
        code = [(start, end) for language, start, end in blocks if has_json and language not in {"", *_JSON}]
        self._starts = [start for start, _ in code]
        self._ends = [end for _, end in code]

    def end_of(self, place: int) -> int:
        """Return where the block ends that `place` is in, or 0 if it is in none."""
        index = bisect_right(self._starts, place) - 1
        return self._ends[index] if index >= 0 and place < self._ends[index] else 0


def _blocks(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the language of each closed fence, and where it begins and ends."""
    opening: re.Match[str] | None = None
    for line in _FENCE_LINE.finditer(text):
        if opening is None:
            opening = line
        elif not line[1]:
            yield opening[1].lower(), opening.start(), line.end()
            opening = None
