"""Programs in processes of their own, which may be killed.

Each is forked from a process with the package already loaded. Loading takes most of a second, a fork a hundredth.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.cli.main import main

FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([
    "agentic_trading.cli.commands", "agentic_trading.cli.main", "agentic_trading.cli.serve", "agentic_trading.cli.worker",
    "agentic_trading.desk.cli.summary", "agentic_trading.cli.budget_tables", "agentic_trading.cli.replay_folder",
    "agentic_trading.desk.session.run", "agentic_trading.desk.session.preflight", "agentic_trading.desk.session.replay",
    "agentic_trading.llm.providers.openai.provider",
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Running:
    """A program that runs, with the part of `subprocess.Popen` that tests use."""

    process: ForkServerProcess

    @property
    def returncode(self) -> int | None:
        """The exit code or the negative signal, or `None` while it runs."""
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return its code."""
        self.process.join(timeout)
        assert self.returncode is not None, f"still running after {timeout} s"
        return self.returncode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            assert self.process.pid is not None
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a program: its exit code or the negative signal, its output and its errors."""

    code: int
    out: str
    err: str


@contextmanager
def running(
    program: Callable[..., object],
    *given: Any,
    streams: Mapping[int, Path],
    cwd: Path,
    env: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """Run `program` in `cwd` for as long as the block lasts. Without `env`, its environment is that of the tests.

    `streams` are the files of its standard streams. Others are those of the tests.
    """
    variables = environment() if env is None else dict(env)
    process = FORKS.Process(target=_run, args=(program, given, dict(streams), cwd, variables))
    process.start()
    try:
        yield Running(process)
    finally:
        process.kill()
        process.join()


def ended(
    program: Callable[..., object],
    *given: Any,
    folder: Path,
    env: Mapping[str, str] | None = MappingProxyType({}),
    stdin: str = "",
    cwd: Path | None = None,
) -> Ended:
    """Run `program` with the environment `env`, and wait until its process has ended.

    Its standard streams are files in `folder`.
    """
    streams = [folder / f"said.{name}" for name in ("in", "out", "err")]
    for path, text in zip(streams, (stdin, "", ""), strict=True):
        path.write_text(text, encoding="utf-8")
    with running(
        program, *given, streams=dict(enumerate(streams)), cwd=cwd or Path.cwd(), env=env
    ) as process:
        code = process.wait()
    return Ended(code, *(path.read_text(encoding="utf-8") for path in streams[1:]))


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of the tests with further `variables`."""
    return {**os.environ, **variables}  # noqa: TID251 - for a program of its own


def command_line(*words: str) -> None:
    """Be the program `agentic-trading` with `words`."""
    sys.argv = ["agentic-trading", *words]
    main()


def _run(
    program: Callable[..., object],
    given: tuple[Any, ...],
    streams: dict[int, Path],
    cwd: Path,
    env: Mapping[str, str],
) -> None:
    os.chdir(cwd)
    os.environ.clear()  # noqa: TID251 - that of a program of its own
    os.environ.update(env)  # noqa: TID251 - that of a program of its own
    for number, path in streams.items():
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND if number else os.O_RDONLY
        fd = os.open(path, flags, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)  # multiprocessing has closed it
    program(*given)
