"""Texts that match simple regular expressions, for drawn answers."""

import re
import string
from collections.abc import Iterator
from typing import Final

from agentic_trading.ids import fraction

TRIES: Final = 32
"""The number of texts that are drawn for a pattern with bounds on its length."""
_LONGEST_REPEAT: Final = 4
_CLASSES: Final = {
    "d": string.digits,
    "w": string.ascii_letters + string.digits + "_",
    "s": " ",
    ".": string.ascii_lowercase,
}
_QUANTIFIER: Final = re.compile(r"\{(\d+)(,?)(\d*)\}|[?*+]")
_CLASS: Final = re.compile(r"(?:\\.|[^\]\\])+\]", re.DOTALL)
_RANGES: Final = re.compile(r"\\(.)|(.)-([^\]\\])|(.)", re.DOTALL)

Path = tuple[str | int, ...]


class UnknownPatternError(ValueError):
    """The pattern has a part that is not drawn, such as a lookahead."""


def text_of_pattern(pattern: str, least: int, most: int | None, path: Path) -> str | None:
    """Return a text that matches a pattern and its bounds on the length, or None if none is found.

    Equal arguments give equal texts. Literals, classes, groups, alternatives and repeats are drawn.
    """
    try:
        wanted = re.compile(pattern)
        for place in range(TRIES):
            text = _Reader(pattern, (*path, "pattern", place)).text()
            # Also searched, because the drawn text is a guess where a part has two readings.
            if wanted.search(text) and least <= len(text) <= (most or len(text)):
                return text
    except (re.error, UnknownPatternError):
        return None
    return None


class _Reader:
    """Reads a pattern from left to right, and draws a text for it."""

    def __init__(self, pattern: str, path: Path) -> None:
        self._pattern = pattern
        self._path = path
        self._at = 0
        self._draws = 0

    def text(self) -> str:
        """Return the text of the whole pattern. Raises `UnknownPatternError`."""
        text = self._alternatives()
        if self._at < len(self._pattern):
            raise UnknownPatternError(self._pattern)
        return text

    def _draw(self, most: int) -> int:
        """Return a number from 0 to below `most`."""
        self._draws += 1
        return int(fraction(*self._path, self._draws) * most)

    def _next(self) -> str:
        self._at += 1
        return self._pattern[self._at - 1 : self._at]

    def _sees(self, text: str) -> bool:
        return self._pattern.startswith(text, self._at)

    def _alternatives(self) -> str:
        drawn = [self._sequence()]
        while self._sees("|"):
            self._at += 1
            drawn.append(self._sequence())
        return drawn[self._draw(len(drawn))]

    def _sequence(self) -> str:
        parts = []
        while self._at < len(self._pattern) and not self._sees("|") and not self._sees(")"):
            start = self._at
            text = self._atom()
            count = self._repeats()
            after = self._at
            parts.append(text if count else "")
            # Read again for each repeat, so that its characters differ.
            for _ in range(count - 1):
                self._at = start
                parts.append(self._atom())
            self._at = after
        return "".join(parts)

    def _repeats(self) -> int:
        found = _QUANTIFIER.match(self._pattern, self._at)
        if found is None:
            return 1
        self._at = found.end()
        if self._sees("?"):  # a lazy repeat matches the same texts
            self._at += 1
        low, high = {"?": (0, 1), "*": (0, _LONGEST_REPEAT), "+": (1, _LONGEST_REPEAT)}.get(
            found[0], (int(found[1] or 0), int(found[3] or 0))
        )
        if found[1] and not found[3]:
            high = low + _LONGEST_REPEAT * bool(found[2])
        return low + self._draw(high - low + 1)

    def _atom(self) -> str:
        match self._next():
            case "^" | "$":
                return ""
            case "(":
                return self._group()
            case "[":
                return self._one_of(self._class())
            case "\\":
                return self._escaped()
            case ".":
                return self._one_of(_CLASSES["."])
            case plain:
                return plain

    def _group(self) -> str:
        if self._sees("?:"):
            self._at += 2
        elif self._sees("?"):
            raise UnknownPatternError(self._pattern)
        text = self._alternatives()
        self._at += 1
        return text

    def _escaped(self) -> str:
        letter = self._next()
        if letter in _CLASSES and letter != ".":
            return self._one_of(_CLASSES[letter])
        if letter.isalnum():
            raise UnknownPatternError(self._pattern)
        return letter

    def _class(self) -> str:
        """Return the characters of a class after its `[`."""
        is_other = self._sees("^")
        self._at += is_other
        end = _CLASS.match(self._pattern, self._at)
        if end is None:
            raise UnknownPatternError(self._pattern)
        inside, self._at = self._pattern[self._at : end.end() - 1], end.end()
        found = "".join(self._members(inside))
        return "".join(each for each in _CLASSES["w"] if each not in found) if is_other else found

    def _members(self, inside: str) -> Iterator[str]:
        for escaped, first, last, single in _RANGES.findall(inside):
            if escaped.isalnum() and escaped not in "dws":
                raise UnknownPatternError(self._pattern)
            if escaped:
                yield _CLASSES[escaped] if escaped.isalnum() else escaped
            elif first:
                yield "".join(map(chr, range(ord(first), ord(last) + 1)))
            else:
                yield single

    def _one_of(self, characters: str) -> str:
        if not characters:
            raise UnknownPatternError(self._pattern)
        return characters[self._draw(len(characters))]
