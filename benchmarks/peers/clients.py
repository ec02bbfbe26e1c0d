"""The side of a library that calls the HTTP server: each line of input is a call, each line of output is its result.

It needs nothing but the standard library: every library's environment runs it.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """A call: the server, the secret of a key, a model, a prompt, and fields that the library does not know."""

    url: str
    secret: str
    model: str
    words: str = "Judge NVDA."
    more: Mapping[str, Any] = field(default_factory=dict)


Way = Callable[[Call], Any]
"""A call of a library. Its result is JSON, or an exception."""


def answer_calls(ways: Mapping[str, Way]) -> None:
    """Make the calls of standard input, until it ends. The step `ways` returns the names of all ways."""
    out, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no result
    for line in sys.stdin:
        asked = json.loads(line)
        step = asked.pop("step")
        result = {"result": sorted(ways)} if step == "ways" else _result(ways[step], Call(**asked))
        print(json.dumps(result), file=out, flush=True)


def _result(way: Way, call: Call) -> dict[str, Any]:
    try:
        return {"result": way(call)}
    except Exception as e:  # noqa: BLE001 - every library raises exceptions of its own
        return {"error": f"{type(e).__name__}: {e}"[:500], "status": _status(e)}


def _status(e: BaseException | None) -> int | None:
    """Return the status of an exception, or of its cause."""
    while e is not None:
        if isinstance(status := getattr(e, "status_code", None), int):
            return status
        e = e.__cause__ or e.__context__
    return None
