"""The provider of the kill matrix, as those who are killed see it; it needs nothing but the standard library."""

import json
import os
import signal
from http.client import HTTPConnection
from typing import Literal

Point = Literal["taken", "noted", "billed", "answered", "recorded", "replied"]
POINTS: dict[Point, str] = {
    "taken": "taken, before anything is noted",
    "noted": "before the request is sent",
    "billed": "during the call, after it was billed",
    "answered": "after the answer, before it is recorded",
    "recorded": "recorded, before the reply",
    "replied": "after the reply, before that is recorded",
}
"""Where a worker is killed, in the order of a call."""

TOKENS = 50
"""What each call uses."""


def post(port: int, path: str, name: str) -> dict[str, str]:
    """Tell the provider's process something about the call `name`; return its answer. It may kill this process."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, json.dumps({"name": name, "pid": os.getpid()}))
        return dict(json.loads(connection.getresponse().read()))
    finally:
        connection.close()


def die_at(point: str, here: Point) -> None:
    """End this process as `kill -9` does, if it is to die here."""
    if point == here:
        os.kill(os.getpid(), signal.SIGKILL)
