"""Run a stub in a process of its own, on a free port of this machine's loopback."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]


@contextmanager
def serving(module: str) -> Iterator[str]:
    """Start `module`, whose first line of output is its port; yield its address, then end that process."""
    command = [sys.executable, "-m", module]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def page_of(address: str, path: str) -> dict[str, Any]:
    """Return what a stub says at `path`; it blocks, so that a running loop asks it from a thread."""
    with closing(HTTPConnection(urlsplit(address).netloc, timeout=5)) as connection:
        connection.request("GET", path)
        page: dict[str, Any] = json.load(connection.getresponse())
        return page
