"""Break the text of a JSON object in the ways in which models do."""

import re
from collections.abc import Callable
from itertools import pairwise

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)


def malform(text: str, *, way: float, where: float) -> str:
    """Return `text` broken in one of four ways; `way` and `where` are numbers in [0, 1) that choose.

    A comma is missing, a key has no quotes, a value has another type, or prose follows the object; the last one
    where the text has no place for the others.
    """
    tokens = list(_TOKEN.finditer(text))
    spoil = _WAYS[int(way * len(_WAYS))]
    return spoil(text, tokens, where) or f"{text}\n\nI hope this helps."


JsonTokens = list[re.Match[str]]


def _without_comma(text: str, tokens: JsonTokens, where: float) -> str:
    commas = [token for token in tokens if token[0] == ","]
    return _replaced(text, commas, where, lambda _: " ")


def _with_bare_key(text: str, tokens: JsonTokens, where: float) -> str:
    keys = [key for key, colon in pairwise(tokens) if colon[0] == ":" and key[0].startswith('"')]
    return _replaced(text, keys, where, lambda key: key.strip('"'))


def _with_other_type(text: str, tokens: JsonTokens, where: float) -> str:
    values = [value for colon, value in pairwise(tokens) if colon[0] == ":"]
    scalars = [value for value in values if value[0] not in {"{", "["}]
    return _replaced(text, scalars, where, lambda value: "0" if value.startswith('"') else '"n/a"')


def _with_prose(_text: str, _tokens: JsonTokens, _where: float) -> str:
    return ""


def _replaced(text: str, places: JsonTokens, where: float, change: Callable[[str], str]) -> str:
    if not places:
        return ""
    place = places[int(where * len(places))]
    return text[: place.start()] + change(place[0]) + text[place.end() :]


_WAYS = (_without_comma, _with_bare_key, _with_other_type, _with_prose)
