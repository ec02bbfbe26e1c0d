"""The provider of the kill matrix, and how those who are killed ask it; it needs nothing but the standard library."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
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


class Biller(ThreadingHTTPServer):
    """The provider: counts what it billed and what was replied, and kills who asks for a name in `kills` once it has billed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Asked)
        self.billed: Counter[str] = Counter()
        self.replied: Counter[str] = Counter()
        self.kills: set[str] = set()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answer for as long as the block lasts."""
        thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


class _Asked(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Bill a call, or note a reply."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        name, biller = asked["name"], self.server
        assert isinstance(biller, Biller)
        (biller.billed if self.path == "/call" else biller.replied)[name] += 1
        if self.path == "/call" and name in biller.kills:
            biller.kills.discard(name)
            os.kill(asked["pid"], signal.SIGKILL)
            return
        answer = json.dumps({"text": '{"action":"wait","size":0}', "tokens": str(TOKENS)}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(answer)

    def log_message(self, *args: object) -> None:
        """Print nothing."""
