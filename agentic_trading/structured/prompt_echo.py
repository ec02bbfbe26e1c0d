"""Know an object again that the model was shown: repeated in the middle of an answer, it is not the answer."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from agentic_trading.llm.attempt_trace import Stage
from agentic_trading.structured.errors import UnreadableError
from agentic_trading.structured.json_repair import RepairedJson, repair_json
from agentic_trading.structured.strict_json import MAX_DEPTH, decode

_MARK_BYTES: Final = 16
_TRIES: Final = 200
_SLOPPY_CHARS: Final = 16_384  # of an object with slips: to look at more from each bracket takes too long
_BEGINNING = re.compile(r"\{")
_DECODER = json.JSONDecoder(parse_float=Decimal)


@lru_cache(maxsize=2)
def object_digests(text: str) -> frozenset[bytes] | None:
    """Return a mark of every JSON object in `text`, those within others and within their strings too.

    Objects with slips count as well. None where the text holds more that may be one than can be looked into: any
    object may then have been shown.
    """
    found: set[bytes] = set()
    left = [text]
    tries = 0
    try:
        while left:
            for document in _documents(left.pop()):
                tries += document is None
                if tries > _TRIES:
                    return None
                _mark(document, found, left, 0)
    except _TooLongError:
        return None
    return frozenset(found)


class _TooLongError(Exception):
    """What may be an object with slips goes on for longer than is looked at."""


def value_digest(value: Any) -> bytes:
    """Return what equal JSON values have in common, whatever the order of their members and the form of their numbers."""
    return _mark(value, set(), [], 0)


def _mark(value: Any, found: set[bytes], texts: list[str], depth: int) -> bytes:
    """Return the mark of `value`; add those of its objects to `found`, and texts that may hold more to `texts`."""
    if depth > MAX_DEPTH:  # no answer is as deep
        return b""
    match value:
        case dict():
            members = sorted(
                key.encode("utf-8", "replace") + _mark(child, found, texts, depth + 1)
                for key, child in value.items()
            )
            mark = _digest(b"{", *members)
            found.add(mark)
        case list():
            mark = _digest(b"[", *(_mark(child, found, texts, depth + 1) for child in value))
        case str():
            if "{" in value:
                texts.append(value)
            mark = _digest(b'"', value.encode("utf-8", "replace"))
        case bool() | None:
            mark = _digest(str(value).encode())
        case _:
            mark = _digest(b"0", str(Decimal(value).normalize()).encode())
    return mark


def _digest(*parts: bytes) -> bytes:
    digest = blake2b(digest_size=_MARK_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _documents(words: str) -> Iterator[Any]:
    """Yield each object that stands in `words`, and None for each bracket that begins none."""
    position = 0
    while beginning := _BEGINNING.search(words, position):
        start = beginning.start()
        try:
            document, position = _object_at(words, start)
        except (ValueError, ArithmeticError, RecursionError):
            document, position = None, start + 1
        yield document


def _object_at(words: str, start: int) -> tuple[Any, int]:
    """Return the object at `start`, read strictly or else with its slips mended, and where it ends."""
    try:
        document, end = _DECODER.raw_decode(words, start)
    except (ValueError, ArithmeticError):
        repaired = _mended_at(words, start)
        document, end = decode(repaired.text).value, start + repaired.end
    return document, end


def _mended_at(words: str, start: int) -> RepairedJson:
    end = start + _SLOPPY_CHARS
    try:
        return repair_json(words[start:end], 0)
    except UnreadableError as e:
        if e.stage is Stage.TRUNCATED and end < len(words):
            raise _TooLongError from e
        raise
