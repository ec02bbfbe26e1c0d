"""Cut values out of a JSON text as they stand there: a parsed number has lost digits, and a repeated key its first value."""

import json
from collections.abc import Iterator

from agentic_trading.llm.providers.tool_calls import ToolCall

_BLANK = frozenset(" \t\n\r")
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)  # the values are only measured


def calls_in(body: bytes) -> list[ToolCall]:
    """Return the tool calls of a message in their order, with their input as it stands in `body`.

    Raises `ValueError` for what is no message, or holds a part twice that must be read, and `RecursionError` for one
    that is nested without end.
    """
    message = body.decode(json.detect_encoding(body), "surrogatepass")
    blocks = [block for _, block in _parts(_only(message, "content"))]
    return [
        ToolCall(name=str(json.loads(_only(block, "name"))), arguments=_only(block, "input"))
        for block in blocks
        if json.loads(_only(block, "type")) == "tool_use"
    ]


def _only(text: str, name: str) -> str:
    """Return the one value of a member of an object."""
    values = [value for key, value in _parts(text) if key == name]
    if len(values) != 1:
        raise ValueError(f"{name!r} stands {len(values)} times in one object; allowed is once")
    return values[0]


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the members of an object, or the items of a list without a name, as they are written."""
    at = _past(text, 0, "{[")
    is_object = text[at - 1] == "{"
    at = _skip(text, at)
    while text[at : at + 1] not in {"}", "]"}:
        name = ""
        if is_object:
            name, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _past(text, at, ":"))
        _, end = _DECODER.raw_decode(text, at)
        yield name, text[at:end]
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)


def _past(text: str, at: int, signs: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] not in set(signs):
        raise ValueError(f"no {' or '.join(signs)} at {at}")
    return at + 1


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] in _BLANK:
        at += 1
    return at
