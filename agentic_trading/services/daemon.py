"""A server program in a folder of its own: started in the background, found again, and stopped by its process id."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

from agentic_trading.clock import SystemClock
from agentic_trading.errors import TradingError

HOST: Final = "127.0.0.1"
"""The only address that a service of ours listens on."""

LOOKS_EVERY_S: Final = 0.02
PORTS: Final = range(10240, 32768)
"""Below those that the system hands out: a server that was killed gets its port again, and no client that dials it
meanwhile is connected to itself."""


class ServiceError(TradingError):
    """A local service cannot be prepared, started or stopped: `service`, and `why` with what to do."""

    def __init__(self, service: str, why: str) -> None:
        self.service = service
        self.why = why
        super().__init__(f"{service}: {why}")


def free_port(taken: Sequence[int] = ()) -> int:
    """Return a port of loopback that is free and not among `taken`; raises `ServiceError` if there is none."""
    offset = os.getpid() * 7919 % len(PORTS)  # two processes begin to look at different places
    for port in chain(PORTS[offset:], PORTS[:offset]):
        if port not in taken and is_free(port):
            return port
    raise ServiceError(
        "services", f"no port between {PORTS.start} and {PORTS.stop - 1} is free; stop a server"
    )


def is_free(port: int) -> bool:
    """Whether a server may listen on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind((HOST, port))
            return True
    return False


def program(service: str, *names: str) -> str:
    """Return the path of the first program of these that is installed; raises `ServiceError` if none is."""
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    raise ServiceError(service, f"{' or '.join(names)} is not on PATH; install it")


@dataclass(slots=True)
class Daemon:
    """The program `name` in `folder`, where its log and its process id stand.

    It goes on when the process that started it ends, unless `ends_with_starter`: a killed test run leaves nothing.
    For use by one process at a time.
    """

    name: str
    folder: Path
    ends_with_starter: bool = False
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False, repr=False)

    @property
    def log(self) -> Path:
        """The file with what the program prints."""
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """The id of the running process; None if it does not run, also if its id is another process's by now."""
        if self._process is not None:
            return self._process.pid if self._process.poll() is None else None
        with suppress(OSError, ValueError, KeyError, TypeError):
            noted = json.loads(self._note.read_bytes())
            pid, begun = int(noted["pid"]), noted["begun"]
            if _begun(pid) == begun:
                return pid
        return None

    def start(self, command: Sequence[str], is_ready: Callable[[str], bool], *, within_s: float) -> None:
        """Start `command`, and return when `is_ready` says so of what it has printed.

        Raises `ServiceError` with the end of its log if it ends before, or is not ready in time; it is then stopped.
        """
        if self.pid is not None:
            raise ServiceError(self.name, f"runs already, with process id {self.pid}; stop it first")
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603 - a program that is named in this package
                [*self._prefix(), *command],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        pid = self._process.pid
        self._note.write_text(json.dumps({"pid": pid, "begun": _begun(pid)}), encoding="utf-8")
        if not _within(within_s, lambda: self.pid is None or is_ready(self._printed())) or self.pid is None:
            self.kill()
            raise ServiceError(
                self.name, f"did not start within {within_s:g} s; {self.log} ends with:\n{self.tail()}"
            )

    def stop(self, *, within_s: float = 30.0) -> bool:
        """End it in good order, after `within_s` by force; returns whether it ran. Harmless twice."""
        pid = self.pid
        if pid is None:
            return False
        self.send(signal.SIGCONT)  # a stopped process does not hear that it is to end
        self.send(signal.SIGTERM)
        if not _within(within_s, lambda: self.pid is None):
            self.kill()
        self._forget()
        return True

    def kill(self) -> None:
        """End it as a crash does. Harmless twice."""
        self.send(signal.SIGKILL)
        _within(5.0, lambda: self.pid is None)
        self._forget()

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal; nothing if it does not run."""
        pid = self.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def tail(self) -> str:
        """Return the end of what it printed."""
        return self._printed()[-3000:]

    @property
    def _note(self) -> Path:
        return self.folder / f"{self.name}.pid"

    def _printed(self) -> str:
        try:
            return self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _prefix(self) -> list[str]:
        setpriv = shutil.which("setpriv") if self.ends_with_starter else None
        return [setpriv, "--pdeathsig", "KILL"] if setpriv else []

    def _forget(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        self._note.unlink(missing_ok=True)


def _begun(pid: int) -> str:
    """Return when a process began, as the system counts it; raises `OSError` if there is none, or only its remains.

    Where the system does not say it, a process that exists is as good as another.
    """
    os.kill(pid, 0)
    stat = Path(f"/proc/{pid}/stat")
    if not stat.parent.parent.is_dir():
        return ""
    state, *fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
    if state == "Z":
        raise ProcessLookupError(pid)
    return fields[18]


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Return whether `condition` holds before `seconds` are over."""
    clock = SystemClock()
    until = clock.monotonic() + seconds
    while not condition():
        if clock.monotonic() > until:
            return False
        time.sleep(LOOKS_EVERY_S)
    return True
