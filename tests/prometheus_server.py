"""A real Prometheus for tests, if it is installed: `apt-get install prometheus`."""

import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from agentic_trading.clock import SystemClock

# The environment chooses what tests may use, as it does for other services.
REQUIRED = os.environ.get("REQUIRE_SERVICES") == "1"  # noqa: TID251 - test set-up
WITHIN_S = 40.0
CLOCK = SystemClock()
T = TypeVar("T")


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`. Skips the test if it is not installed and not required."""
    found = shutil.which(name)
    if found is None:
        reason = f"{name} is not installed. Install it: apt-get install prometheus"
        if REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def until(look: Callable[[], T | None], what: str) -> T:
    """Return the first result of `look`. Fails after `WITHIN_S`."""
    pause, end = threading.Event(), CLOCK.monotonic() + WITHIN_S
    while (found := look()) is None:
        assert CLOCK.monotonic() < end, f"no {what} within {WITHIN_S:g} s"
        pause.wait(0.1)
    return found


@dataclass
class RunningPrometheus:
    """A server that runs."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API."""
        address = f"{self.url}/api/v1/{path}?{urlencode(parameters)}"
        with urlopen(address, timeout=10) as answer:  # noqa: S310 - our own server
            return json.load(answer)["data"]

    def series(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression now."""
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def answers(self) -> bool | None:
        """Return whether it answers, None if not yet."""
        assert self.process.poll() is None, self.log.read_text("utf-8")
        try:
            self.ask("status/buildinfo")
        except URLError:
            return None
        return True


@contextmanager
def prometheus(folder: Path, rules: str, targets: Mapping[str, Sequence[str]]) -> Iterator[RunningPrometheus]:
    """Run a server that scrapes the targets of each job every second, while the block lasts."""
    path = program("prometheus")
    jobs = [
        {"job_name": job, "static_configs": [{"targets": [*addresses]}]} for job, addresses in targets.items()
    ]
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = {"global": every, "rule_files": ["rules.yml"], "scrape_configs": jobs}
    (folder / "prometheus.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "rules.yml").write_text(rules, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = (
        f"--config.file={folder / 'prometheus.json'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    log = folder / "prometheus.log"
    with log.open("wb") as file, subprocess.Popen([path, *words], stdout=file, stderr=file) as process:
        running = RunningPrometheus(process, f"http://127.0.0.1:{port}", log)
        try:
            until(running.answers, "answer of Prometheus")
            yield running
        finally:
            process.kill()
