"""Separate the thinking of a model from its answer, by the marks of known models."""

import re
from collections.abc import Iterator
from typing import Final

from agentic_trading.llm.result import Fix, Stage
from agentic_trading.structured.json_repair import json_extent
from agentic_trading.structured.tokens import SHOWN_CHARS, refuse

MOST_WORK: Final = 100_000
"""Characters of values that are not JSON, and `_EACH` for every value, that are read in search of a mark inside a string."""
_EACH: Final = 20
_NAME = r"(?:think|thinking|thoughts?|reasoning|reflection|scratchpad)"
# In order: tags (also `<seed:think>` and Kimi's triangles), tokens (Cohere, OpenThinker), gpt-oss, Gemma, MedGemma, Mistral,
# gpt-oss from a server that leaves out its tokens. One class in front lets the search skip most characters.
_MARK = re.compile(
    rf"""
    [<◁\[a](?:
    (?<=[<◁])(?i:(?P<slash>/?)(?P<tag>(?:\w{{1,20}}[:_])?{_NAME})(?:\s[^<>]{{0,200}})?[>▷])
    |(?<=<)(?:
        \|(?i:(?P<ends>/|end_(?:of_)?)?(?:(?:begin|start)_(?:of_)?)?(?P<token>{_NAME})\|>)
        |\|channel\|>\s*+(?P<channel>\w*+)(?>(?:\s*+<\|constrain\|>\s*+\w++)?)(?>(?:\s*+<\|message\|>)?)
        |(?P<over>\|(?:end|call|return)\|>)
        |(?P<gemma>\|channel>|channel\|>)(?P<thought>\s*+thought\b)?
        |unused9(?P<unused>[45])>
    )
    |(?<=\[)(?P<bar>/?)(?P<square>THINK)\]
    |(?<=a)(?P<plain>(?<=\A.)nalysis(?=[^\W_])|ssistant(?:analysis|commentary|final))
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENING = re.compile(r"[{\[]")
_CUT_MARK = re.compile(r"(?:<[|/]|\[/|◁)[\w:|]*+\Z")
_MARK_CHARS: Final = 40
_CHANNEL: Final = "channel"


def strip_thinking(text: str) -> tuple[str, tuple[Fix, ...]]:
    """Return `text` with blanks in the place of its thinking, and what was left out.

    Thinking is all of the text before the last closing mark that is not inside a JSON string, also if no mark opens it.
    Takes linear time. Raises `UnreadableError`: `truncated` if an opened block or the last mark has no end, `ambiguous`
    if a mark is inside a value that is not JSON: the value may be the answer, or a draft that the thinking left open.
    """
    if not _may_have_marks(text):
        return text, ()
    end = _end_of_thinking(text)
    if cut := _CUT_MARK.search(text, max(end, len(text) - _MARK_CHARS)):
        refuse(Stage.TRUNCATED, "thinking", cut.start(), "truncated: unclosed mark")
    if not end:
        return text, ()
    fix = Fix(kind="thinking", where="0", before=text[:end].strip()[:SHOWN_CHARS])
    return " " * end + text[end:], (fix,)


def _end_of_thinking(text: str) -> int:
    end = 0
    unclosed: dict[str, list[int]] = {}
    for mark in _marks_outside_strings(text):
        name, opens = _side(mark)
        starts = unclosed.setdefault(name, [])
        if opens:
            if name == _CHANNEL:  # it ends where the next one begins
                starts.clear()
            starts.append(mark.start())
        elif starts or not mark["over"]:
            del starts[-1:]
            end = mark.end()
    if opened := [starts[0] for starts in unclosed.values() if starts]:
        refuse(Stage.TRUNCATED, "thinking", min(opened), "truncated: unclosed thinking")
    return end


def _may_have_marks(text: str) -> bool:
    # One character is found 50 times as fast as two, and most answers have none of these.
    return (
        "<" in text
        or "◁" in text
        or ("K" in text and "THINK]" in text)
        or text.startswith("analysis")
        or "assistantfinal" in text
    )


def _side(mark: re.Match[str]) -> tuple[str, bool]:
    """Return the name of the block that a mark belongs to, and whether it opens the block."""
    if name := mark["tag"] or mark["token"] or mark["square"]:
        return name.lower(), not (mark["slash"] or mark["ends"] or mark["bar"])
    if mark["unused"]:
        return "unused", mark["unused"] == "4"
    if mark["gemma"]:
        return _CHANNEL, mark["gemma"] == "|channel>" or mark["thought"] is not None
    return _CHANNEL, not mark["over"] and not str(mark["channel"] or mark["plain"]).endswith("final")


def _marks_outside_strings(text: str) -> Iterator[re.Match[str]]:
    marks = list(_MARK.finditer(text))
    position = index = work = 0
    while index < len(marks):
        mark = marks[index]
        bracket = _OPENING.search(text, position, mark.start())
        if bracket is None:
            yield mark
            position, index = mark.end(), index + 1
            continue
        start, (end, strict) = bracket.start(), json_extent(text, bracket.start())
        work += _EACH if strict is not None else _EACH + end - start
        behind = next((place for place in range(index, len(marks)) if marks[place].end() > end), len(marks))
        if behind > index:
            _check_strings(text, start, end, strict, behind - index)
        if work > MOST_WORK:
            refuse(Stage.AMBIGUOUS, "thinking", start, "too many brackets before a mark of thinking")
        index = behind
        position = min(end, marks[index].start()) if index < len(marks) else end


def _check_strings(text: str, start: int, end: int, strict: str | None, marks: int) -> None:
    """Refuse a value with marks in it unless it is JSON and all of them are in its strings."""
    if strict is None and end == len(text):
        refuse(Stage.TRUNCATED, "thinking", start, "truncated: unclosed value with a mark of thinking in it")
    if strict is None:  # the answer, or a draft that the thinking left open
        refuse(Stage.AMBIGUOUS, "thinking", start, "a mark of thinking in a value that is not JSON")
    if sum(1 for _ in _MARK.finditer(strict)) != marks:
        refuse(Stage.AMBIGUOUS, "thinking", start, "a mark of thinking in a comment")
