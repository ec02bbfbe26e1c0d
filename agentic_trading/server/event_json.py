"""JSON of events: numbers and half surrogates of an answer keep their spelling."""

import json
from typing import Any

from orjson import Fragment, dumps


def read_answer(body: bytes) -> Any:
    """Decode the body of an answer. Numbers become `Fragment`s, so that none of their digits is lost.

    Raises:
        ValueError: If it is not JSON.
        RecursionError: If it is nested too deeply.

    """
    return json.loads(body.decode(), parse_int=Fragment, parse_float=Fragment, parse_constant=_constant)


def event_json(value: Any) -> bytes:
    """Serialize an event. Equal events have equal bytes.

    Raises:
        RecursionError: If it is nested too deeply.

    """
    try:
        return dumps(value)
    except TypeError:
        # A model that is cut off may end in half a surrogate pair, which orjson does not write.
        return _escaped(value).encode()


def _escaped(value: Any) -> str:
    """Serialize a value with all characters beyond ASCII as escapes."""
    match value:
        case dict():
            return (
                "{" + ",".join(f"{json.dumps(name)}:{_escaped(item)}" for name, item in value.items()) + "}"
            )
        case list():
            return "[" + ",".join(map(_escaped, value)) + "]"
        case Fragment():
            return dumps(value).decode()
        case _:
            return json.dumps(value)


def _constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
