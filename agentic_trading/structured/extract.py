"""Find JSON in the text of an answer, after removing thinking."""

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Literal

from agentic_trading.llm.result import Fix, Stage
from agentic_trading.structured.decode import (
    STRING_OR_BRACKET,
    JsonCandidate,
    check_closed,
    check_size,
    decode,
    decode_at,
)
from agentic_trading.structured.json_repair import RepairedJson, json_extent, repair_json
from agentic_trading.structured.outcome import ParserException, UnreadableError
from agentic_trading.structured.tokens import COMMENT_CHARS, SHOWN_CHARS, blank_kind, refuse, skip_blank

MOST_WORK: Final = 100_000
"""Maximum work in search of marks inside strings.

It counts the characters of values that are not JSON, and `_EACH` for every value.
"""
_EACH: Final = 20
_NAME = r"(?:think|thinking|thoughts?|reasoning|reflection|scratchpad)"
# In order: tags (also `<seed:think>` and Kimi's triangles), tokens (Cohere, OpenThinker), gpt-oss, Gemma, MedGemma,
# Mistral, gpt-oss from a server that leaves out its tokens. One class is in front, so that the search skips most characters.
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
    """Return `text` with its thinking replaced by blanks, and the removal as a fix.

    Thinking is all text before the last closing mark outside of a JSON string, even if no mark opens it.
    Takes linear time.

    Raises:
        UnreadableError: `truncated` if an opened block or the last mark is incomplete. `ambiguous` if a mark
            is inside a value that is not JSON.

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
    """Return the name of the block of a mark, and whether the mark opens it."""
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
    """Refuse a value with marks, unless it is JSON with all marks in its strings."""
    if strict is None and end == len(text):
        refuse(Stage.TRUNCATED, "thinking", start, "truncated: unclosed value with a mark of thinking in it")
    # Refused, because the value may be the answer, or a draft that the thinking left open.
    if strict is None:
        refuse(Stage.AMBIGUOUS, "thinking", start, "a mark of thinking in a value that is not JSON")
    if sum(1 for _ in _MARK.finditer(strict)) != marks:
        refuse(Stage.AMBIGUOUS, "thinking", start, "a mark of thinking in a comment")


MOST_CANDIDATES: Final = 100
MOST_BRACKETS: Final = 1_000
"""Maximum number of brackets in prose. More would take too long."""
_LINE_CHARS: Final = 200
_FENCE_LINE = re.compile(r"^[ \t]*+```([\w+-]*+)[ \t]*+\r?+$", re.MULTILINE)
_JSON: Final = frozenset({"json", "json5", "jsonc"})
_BRACKET = re.compile(r"[{}\[\]]")
_FENCE = re.compile(r"```[\w+-]*+")
_FENCE_OPENING = re.compile(r"\s*+```[\w+-]*+[ \t]*+\r?+\n")
_OPEN_COMMENT = re.compile(r"(?:/\*(?>(?:[^*]|\*(?!/))*)|<!--(?>(?:[^-]|-(?!->))*))\Z")
_LINE_COMMENT = re.compile(r"^[ \t]*+(?://[^\n]*+|#[# \t]*+)\Z", re.MULTILINE)
_KEY_BEFORE = re.compile(r"""(?:^|[,{\n])\s*(?:"[^"\n]*"|'[^'\n]*')\s*:\s*$""")
_MEMBER_BEFORE = re.compile(r"""^[ \t]*+(?:"[^"\n]*+"|'[^'\n]*+'|“[^”\n]*+”)[ \t]*+:""", re.MULTILINE)
_MORE_BEHIND = re.compile(
    r"""\s*+(?:,\s*+(?:["'`“‘{\[,]|[\w$-]++\s*+:|$)|(?:"[^"\n]*+"|'[^'\n]*+'|“[^”\n]*+”)\s*+:)"""
)
_STRAY_BEHIND = re.compile(r"\s*+([,}])\s*+(?>(?:```\s*+)?)\Z")
_ELLIPSIS_BEHIND = re.compile(r"\s*+,?+\s*+(?:\.\.\.|…)")
_DATA_IN_BRACES = re.compile(r"""[:"]""")
_DATA_IN_BRACKETS = re.compile(r"""[{"]|[0-9]\s*,\s*[0-9]""")
_NOT_WHOLE: Final = frozenset({"", "`", "{", "["})  # brackets are looked for with what stands around them


def read_json(text: str, *, mode: Literal["strict", "lossless"] = "strict") -> Any:
    """Read a text as one JSON document, with numbers as int and Decimal.

    Args:
        text: The text.
        mode: `strict` accepts one JSON document with white space around it. It refuses repeated keys with
            different values, NaN, Infinity, numbers beyond the range of a double, lone surrogates, more than
            1 MiB, and more than 128 levels. `lossless` also repairs unambiguous syntax errors, and accepts a
            fence or prose around the document. Both modes read strict JSON alike.

    Raises:
        ParserException: If the text is not one document. Its `stage` is `truncated` if the text is
            incomplete, `ambiguous` if it has several meanings, otherwise `json_parse`.
        ValueError: If the mode is unknown.

    Example:
        read_json('{"qty": 0.10,}', mode="lossless")  # {'qty': Decimal('0.10')}

    """
    if mode not in {"strict", "lossless"}:
        raise ValueError(f"Unknown mode {mode!r}. Use 'strict' or 'lossless'")
    try:
        return read_document(text, lossless=mode == "lossless")
    except UnreadableError as e:
        raise ParserException(f"read_json({mode})", "", e.stage, text, e) from e


def read_document(text: str, *, lossless: bool) -> Any:
    """Return the same as `read_json`, but raise `UnreadableError`. For other packages."""
    try:
        return decode(text).value
    except UnreadableError as e:
        if e.stage is not Stage.JSON_PARSE:
            raise
        if not lossless:
            check_closed(text)
            raise
    return only(json_candidates(text, lossless=True)).value


def json_candidates(text: str, *, lossless: bool, keys: Collection[str] = ()) -> tuple[JsonCandidate, ...]:
    """Return all possible answers in a text, in order and at least one.

    Nested objects are not candidates. With `lossless`, unambiguous syntax errors are repaired. `keys` are the
    names in the schema.

    Raises:
        UnreadableError: `truncated` if something is unclosed at the end. `ambiguous` if members are outside
            of an object, or if there are too many objects. Otherwise `json_parse`.

    """
    check_size(text)
    text, thinking = strip_thinking(text)
    found = _candidates(text, lossless=lossless, keys=keys)
    if thinking:
        return tuple(candidate._replace(fixes=(*candidate.fixes, *thinking)) for candidate in found)
    return found


def only(found: Sequence[JsonCandidate]) -> JsonCandidate:
    """Return the only candidate.

    Raises:
        UnreadableError: `ambiguous` if there are several.

    """
    if len(found) > 1:
        places = ", ".join(str(candidate.start) for candidate in found)
        refuse(
            Stage.AMBIGUOUS, "candidates", found[0].start, f"{len(found)} documents (at {places}), the first"
        )
    return found[0]


def _candidates(text: str, *, lossless: bool, keys: Collection[str]) -> tuple[JsonCandidate, ...]:
    if fenced := _fenced(text):
        return (fenced,)
    if lossless and (whole := _whole(text)):
        return (whole,)
    found = list(_found(text, lossless=lossless, keys=keys))
    if any(isinstance(candidate.value, dict) for candidate in found):
        found = [candidate for candidate in found if not _is_citation(candidate)]
    if not found:
        refuse(Stage.JSON_PARSE, "json", 0, "there is no JSON in the text")
    return (_with_surroundings(text, found[0]),) if len(found) == 1 else tuple(found)


def _fenced(text: str) -> JsonCandidate | None:
    """Return the strict document in a fence with only white space around it, or None."""
    # A fast path, because most answers that are not plain JSON have this form.
    opening = _FENCE_OPENING.match(text)
    behind = text.rstrip()
    if opening is None or not behind.endswith("```"):
        return None
    start, end = opening.end(), len(behind) - len("```")
    try:
        decoded = decode(text[start:end])
    except UnreadableError:
        return None
    around = Fix(kind="fence", where="0", before=opening[0].strip())
    document = decoded.candidate(text, start, end, is_whole=True)
    return document._replace(fixes=(*document.fixes, around))


def _whole(text: str) -> JsonCandidate | None:
    """Return the text as one repaired value, or None if there is other text around it."""
    start = skip_blank(text, 0)
    if text[start : start + 1] in _NOT_WHOLE:
        return None
    try:
        value = repair_json(text, start)
    except UnreadableError:
        return None
    if skip_blank(text, value.end) < len(text):
        return None
    return _candidate(value, start)._replace(is_whole=True)


def _candidate(value: RepairedJson, start: int) -> JsonCandidate:
    decoded = decode(value.text)
    fixes = (*value.fixes, *decoded.fixes)
    return JsonCandidate(
        decoded.value,
        decoded.text or value.text,
        fixes,
        start,
        value.end,
        is_whole=False,
        is_repaired=bool(fixes),
        rounded=decoded.rounded,
    )


def _found(text: str, *, lossless: bool, keys: Collection[str]) -> Iterator[JsonCandidate]:
    position = count = passed_over = 0
    blocks = CodeFences(text)
    first: UnreadableError | None = None
    while bracket := _BRACKET.search(text, position):
        start = bracket.start()
        if end_of_code := blocks.end_of(start):
            position = end_of_code
            continue
        _check_beginning(text, position, start)
        try:
            candidate = _read_at(text, start, lossless=lossless, keys=keys)
        except UnreadableError as e:
            position = _end_of_prose(text, start, e)
            first = first or e
            passed_over += 1
            if passed_over > MOST_BRACKETS:
                raise
            continue
        if lossless:
            candidate = _without_stray_sign(text, candidate)
        _check_behind(text, candidate.end)
        count += 1
        if count > MOST_CANDIDATES:
            refuse(Stage.AMBIGUOUS, "candidates", start, f"more than {MOST_CANDIDATES} objects")
        yield candidate
        position = candidate.end
    _check_ending(text, position, first if count == 0 else None)


def _without_stray_sign(text: str, candidate: JsonCandidate) -> JsonCandidate:
    """Remove one comma or closing brace after an object that is the whole text."""
    stray = _STRAY_BEHIND.match(text, candidate.end)
    if stray is None or candidate.is_repaired or not isinstance(candidate.value, dict):
        return candidate
    before = text[: candidate.start].strip()
    if before and not _FENCE.fullmatch(before):
        return candidate
    fix = Fix(kind="stray_sign", where=str(stray.start(1)), before=stray[1])
    return candidate._replace(fixes=(*candidate.fixes, fix), end=stray.end(1), is_repaired=True)


def _check_behind(text: str, end: int) -> None:
    if _ELLIPSIS_BEHIND.match(text, end):
        refuse(Stage.JSON_PARSE, "ellipsis", end, "something was left out behind the object")
    if _MORE_BEHIND.match(text, end):
        refuse(Stage.AMBIGUOUS, "members", end, "more stands behind the end of the object")


def _check_beginning(text: str, position: int, start: int) -> None:
    if text[start] in "}]":
        refuse(Stage.JSON_PARSE, "bracket", start, f"{text[start]} closes nothing")
    if _OPEN_COMMENT.search(text, position, start) or _LINE_COMMENT.search(text, position, start):
        refuse(Stage.AMBIGUOUS, "comment", start, "an object begins in a comment")
    before = text[position:start]
    lost_its_front = before.count('"') % 2 == 1 and before.rstrip().endswith((",", ":"))
    is_member = lost_its_front or _KEY_BEFORE.search(text[max(position, start - _LINE_CHARS) : start])
    if is_member or _MEMBER_BEFORE.search(text, position, start):
        refuse(Stage.AMBIGUOUS, "members", start, "a key stands before the beginning of the object")


def _read_at(text: str, start: int, *, lossless: bool, keys: Collection[str]) -> JsonCandidate:
    if strict := decode_at(text, start):
        return strict[0].candidate(text, start, strict[1], is_whole=False)
    if lossless:
        return _candidate(repair_json(text, start, keys=keys), start)
    end = _end_of_span(text, start)
    return decode(text[start:end]).candidate(text, start, end, is_whole=False)


def _end_of_prose(text: str, start: int, why: UnreadableError) -> int:
    """Return the end of brackets in prose. Raise `why` if they may be data."""
    if why.stage is not Stage.JSON_PARSE:
        raise why
    try:
        end = _end_of_span(text, start)
    except UnreadableError:
        # The text is complete, so the error is in its middle. `truncated` would be wrong.
        if text.rstrip().endswith(("}", "]")):
            raise why from None
        raise
    span = text[start:end]
    is_prose = not _DATA_IN_BRACES.search(span) if span[0] == "{" else not _DATA_IN_BRACKETS.search(span)
    if not is_prose:
        raise why
    return end


def _end_of_span(text: str, start: int) -> int:
    """Return the end of the bracket at `start`, without looking into strings."""
    depth = 0
    for token in STRING_OR_BRACKET.finditer(text, start):
        first = token[0][0]
        depth += (first in "{[") - (first in "}]")
        if depth == 0:
            return token.end()
        if first == '"' and not token[1]:
            break
    return refuse(Stage.TRUNCATED, "open", start, "truncated: unclosed bracket")


def _check_ending(text: str, position: int, why: UnreadableError | None) -> None:
    if why is not None:
        raise why
    if _OPEN_COMMENT.search(text, position):
        refuse(Stage.TRUNCATED, "comment", position, "truncated: unclosed comment")


def _is_citation(candidate: JsonCandidate) -> bool:
    """Return whether a candidate is a citation, `[1]`, or an empty checkbox, `[ ]`."""
    value = candidate.value
    is_number = isinstance(value, list) and len(value) == 1 and type(value[0]) is int
    return is_number or candidate.text == "[ ]"


def _with_surroundings(text: str, candidate: JsonCandidate) -> JsonCandidate:
    """Return the only candidate, with the text around it as fixes."""
    before, behind = text[: candidate.start], text[candidate.end :]
    is_fenced = _FENCE.fullmatch(before.strip()) is not None and behind.strip() in {"", "```"}
    is_bare = skip_blank(text, 0) == candidate.start and not _has_words(behind)
    around = [
        _around(words, offset, is_fenced=is_fenced)
        for offset, words in ((0, before), (candidate.end, behind))
        if words.strip()
    ]
    fixes = (*candidate.fixes, *around)
    return candidate._replace(fixes=fixes, is_whole=is_fenced or is_bare)


def _around(words: str, offset: int, *, is_fenced: bool) -> Fix:
    said = words.strip()
    offset += words.find(said)
    if is_fenced or _has_words(words):
        return Fix(kind="fence" if is_fenced else "prose", where=str(offset), before=said[:SHOWN_CHARS])
    return Fix(kind=blank_kind(said), where=str(offset), before=said[:COMMENT_CHARS])


def _has_words(words: str) -> bool:
    return skip_blank(words, 0) < len(words)


class CodeFences:
    """The fences of other languages, in a text that has a fence marked as JSON."""

    def __init__(self, text: str) -> None:
        blocks = list(_blocks(text)) if text.count("```") > 1 else []
        has_json = any(language in _JSON for language, _, _ in blocks)
        code = [(start, end) for language, start, end in blocks if has_json and language not in {"", *_JSON}]
        self._starts = [start for start, _ in code]
        self._ends = [end for _, end in code]

    def end_of(self, place: int) -> int:
        """Return the end of the block around `place`, or 0 if it is in none of them."""
        index = bisect_right(self._starts, place) - 1
        return self._ends[index] if index >= 0 and place < self._ends[index] else 0


def _blocks(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the language, the start and the end of each closed fence."""
    opening: re.Match[str] | None = None
    for line in _FENCE_LINE.finditer(text):
        if opening is None:
            opening = line
        elif not line[1]:
            yield opening[1].lower(), opening.start(), line.end()
            opening = None
