"""Know an object again that the model was shown: repeated in the middle of an answer, it is not the answer."""

import json
from collections.abc import Hashable, Iterator
from decimal import Decimal
from typing import Any

_DECODER = json.JSONDecoder(parse_float=Decimal)
_TRIES = 100


def objects_in(text: str) -> frozenset[Hashable]:
    """Return every JSON object in `text`, those within others and within their strings too, as `key_of` spells them."""
    found: set[Hashable] = set()
    left: list[Any] = [text]
    while left:
        match left.pop():
            case str() as words:
                left += _documents(words)
            case dict() as shown:
                found.add(key_of(shown))
                left += shown.values()
            case list() as items:
                left += items
            case _:
                pass
    return frozenset(found)


def key_of(value: Any) -> Hashable:
    """Return what equal JSON values have in common, whatever the order of their members."""
    match value:
        case dict():
            return frozenset((key, key_of(child)) for key, child in value.items())
        case list():
            return tuple(key_of(child) for child in value)
        case bool() | None:
            return str(value)
        case str() | int() | Decimal():
            return value
        case _:
            return repr(value)


def _documents(words: str) -> Iterator[Any]:
    """Yield the objects that stand in `words`; a text with many open brackets is given up after a number of tries."""
    start, tries = words.find("{"), 0
    while start >= 0 and tries < _TRIES:
        try:
            document, end = _DECODER.raw_decode(words, start)
            yield document
        except (ValueError, RecursionError):
            end = start + 1
            tries += 1
        start = words.find("{", end)
