"""Worker processes for tests: the installed command, on a bus and a ledger of real servers."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from agentic_trading.clock import SystemClock
from tests.forked import Running, command_line, running

PROGRAM = Path(sys.executable).parent / "agentic-trading"
WITHIN_S = 30.0
CLOCK = SystemClock()


@dataclass
class RunningWorker:
    """A worker that runs, and what it said so far."""

    process: subprocess.Popen[bytes] | Running
    said: Path
    _pause: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """Where its health is."""
        found = self.waits_for(r"(http://[\d.]+:\d+)/readyz")
        return found[1]

    def waits_for(self, pattern: str) -> re.Match[str]:
        """Wait until it has said something."""
        found: re.Match[str] = self._until(lambda: re.search(pattern, self.text), pattern)
        return found

    @property
    def text(self) -> str:
        return self.said.read_text("utf-8")

    def health(self) -> Mapping[str, Any]:
        """Return what `/readyz` says."""
        try:
            with urlopen(f"{self.url}/readyz", timeout=10) as answer:  # noqa: S310 - our own server
                found: Mapping[str, Any] = json.load(answer)
        except HTTPError as refused:
            found = json.load(refused)
        return found

    def is_ready(self) -> Mapping[str, Any]:
        """Wait until it serves, and return its health."""

        def ready() -> Mapping[str, Any] | None:
            try:
                health = self.health()
            except URLError:
                return None
            return health if health["ready"] else None

        found: Mapping[str, Any] = self._until(ready, "ready")
        return found

    def metrics(self) -> dict[str, float]:
        """Return what `/metrics` says, by name with labels."""
        with urlopen(f"{self.url}/metrics", timeout=10) as answer:  # noqa: S310 - our own server
            lines = answer.read().decode().splitlines()
        return {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
        }

    def ends(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Send it a signal, and return its exit code."""
        self.process.send_signal(by)
        return self.process.wait(WITHIN_S)

    def _until(self, look: Any, what: str) -> Any:
        end = CLOCK.monotonic() + WITHIN_S
        while (found := look()) is None:
            assert self.process.poll() is None, f"it has ended: {self.text}"
            assert CLOCK.monotonic() < end, f"no {what}: {self.text}"
            self._pause.wait(0.05)
        return found


@contextmanager
def worker(
    folder: Path, name: str, *words: str, program: Path | None = None, env: Mapping[str, str] | None = None
) -> Iterator[RunningWorker]:
    """Run a worker with its log below `folder` for as long as the block lasts: of this release, or of a `program`."""
    folder.mkdir(parents=True, exist_ok=True)
    said = folder / f"{name}.said"
    said.write_bytes(b"")
    command = ("worker", "--name", name, "--store", str(folder), "--http", "127.0.0.1:0", *words)
    with ExitStack() as stack:
        process: subprocess.Popen[bytes] | Running
        if program is None:
            streams = {1: said, 2: said}
            process = stack.enter_context(
                running(command_line, *command, streams=streams, cwd=Path.cwd(), env=env)
            )
        else:
            file = stack.enter_context(said.open("ab"))
            words = (str(program), *command)
            process = stack.enter_context(subprocess.Popen(words, stdout=file, stderr=file, env=env))
            stack.callback(process.kill)
        yield RunningWorker(process, said)
