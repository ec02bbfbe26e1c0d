"""Know what in an answer its own marks set aside: a model's thinking, and code in a fence of another language."""

import re
from typing import Final

from agentic_trading.llm.reading import Fix, Stage
from agentic_trading.structured.lossless import SHOWN_CHARS, refuse

_THINKING = re.compile(r"\s*+<(think|thinking|reasoning)>")
_FENCE_LINE = re.compile(r"^[ \t]*+```([\w+-]*+)[ \t]*+\r?+$", re.MULTILINE)
_JSON: Final = frozenset({"json", "json5", "jsonc"})


def without_thinking(text: str) -> tuple[str, tuple[Fix, ...]]:
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


def code_blocks(text: str) -> tuple[tuple[int, int], ...]:
    """Return where code stands in fences of other languages, beside a fence that says `json`; else nothing."""
    blocks: list[tuple[int, int]] = []
    language, start, has_json = None, 0, False
    for line in _FENCE_LINE.finditer(text):
        name = line[1].lower()
        if language is None:
            language, start = name, line.start()
            has_json = has_json or name in _JSON
        elif not name:
            if language and language not in _JSON:
                blocks.append((start, line.end()))
            language = None
    return tuple(blocks) if has_json else ()
