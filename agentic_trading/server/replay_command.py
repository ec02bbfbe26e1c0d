"""Run a program again on the record of its calls, and compare its attempts with the recorded ones."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from agentic_trading.cancellation import end_wait, on_first_signal
from agentic_trading.llm.store import LOG_NAME
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.recorded_gateway import recorded_attempts_in
from agentic_trading.platform.settings import replay_environment
from agentic_trading.server.replay_report import CommandReplay, ReplayComparison
from agentic_trading.server.serving import ServeOptions, serve_api

STOPS_WITHIN_S: Final = 3.0
"""Seconds that a stopped program has to end after SIGTERM. Then it is killed."""

AFTER_CTRL_C_S: Final = 2.0
"""Seconds that a program in a terminal has to end before SIGTERM, because the terminal has sent it SIGINT."""

_STDERR: Final = 2

_Run = Callable[[str | None], Awaitable[int]]


async def replay_command(
    record: Path,
    words: Sequence[str],
    *,
    key: str = "",
    volatile: Sequence[str] = (),
    stdout_is_ours: bool = False,
) -> CommandReplay:
    """Run a program on a record, and compare. The record is only read.

    A gateway that the program opens with `local_gateway` gets recorded answers. If the record has calls of the HTTP
    server, one is started on a free port, and the variables of the SDKs name its URL. The network of the program
    is not blocked.

    SIGINT and SIGTERM stop the program and the server. The result then has the attempts until this time.

    Args:
        record: A log, or the folder of a log.
        words: The program and its arguments.
        key: The API key whose calls are replayed and compared. Empty: those of all keys.
        volatile: Patterns of texts in requests of SDKs that differ between runs, as of `ServeOptions`.
        stdout_is_ours: Whether the program's output goes to standard error.

    Raises:
        OptionError: If the record, the program, the calls of the key, or calls for `volatile` cannot be found.
        StoreError: If a log cannot be read.
        ConfigError: If the configuration or an API key is invalid.

    """
    comparison = ReplayComparison(key)
    await comparison.read(record)
    if volatile and not comparison.has_clients:
        allowed = "--volatile with a record of `serve`"
        raise OptionError("--volatile", f"given with {record}, without calls of SDKs", allowed)
    replay = _Replay()
    with TemporaryDirectory(prefix="agentic-replay-") as name:
        place = Path(name)
        gateways = place / "gateways"
        await asyncio.to_thread(gateways.mkdir)

        async def run(url: str | None) -> int:
            return await _run(words, replay_environment(record, gateways, url), is_quiet=stdout_is_ours)

        if comparison.has_clients:
            options = ServeOptions(
                None,
                "127.0.0.1",
                0,
                place / "server",
                record,
                drain_s=1.0,
                volatile=volatile,
                recorded_key=key,
            )
            await replay.serve(options, run)
        else:
            await replay.run(run)
        for log in sorted(await asyncio.to_thread(lambda: [*place.rglob(LOG_NAME)])):
            await comparison.compare(recorded_attempts_in(log, option="the replay"), replay.matched)
    return comparison.report(replay.exit_code, stopped=replay.stopped)


class _Replay:
    """A run of the program: its exit code, and whether a signal stopped it."""

    def __init__(self) -> None:
        self.matched: Mapping[str, str] = {}
        self._ended: int | None = None

    @property
    def stopped(self) -> bool:
        return self._ended is None

    @property
    def exit_code(self) -> int:
        return -signal.SIGTERM if self._ended is None else self._ended

    async def run(self, run: _Run) -> None:
        """Run the program until it ends, or until a signal."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                with on_first_signal(lambda: end_wait(limit)):
                    self._ended = await run(None)

    async def serve(self, options: ServeOptions, run: _Run) -> None:
        """Run the program with a server of the recorded answers."""
        failed: list[OptionError] = []

        async def during(url: str) -> None:
            try:
                self._ended = await run(url)
            except OptionError as e:  # kept, because a task group of the server would wrap it
                failed.append(e)

        use = await serve_api(options, lambda _line: None, during=during)
        if failed:
            raise failed[0]
        self.matched = {} if use is None else use.matched


async def _run(words: Sequence[str], environment: Mapping[str, str], *, is_quiet: bool) -> int:
    # A program in a terminal keeps its input there. Otherwise it gets a process group, so that a signal also ends the
    # processes that it has started.
    in_terminal = sys.stdin is not None and sys.stdin.isatty()
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            env=dict(environment),
            stdout=_STDERR if is_quiet else None,
            process_group=None if in_terminal else 0,
        )
    except OSError as e:
        allowed = "a program and its arguments, such as `python my_agent.py`"
        raise OptionError("COMMAND", f"{words[0]!r} ({e.strerror})", allowed) from e
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            await _stop(process, in_terminal=in_terminal)


async def _stop(process: Process, *, in_terminal: bool) -> None:
    """End a program: after a time for Ctrl-C in a terminal by SIGTERM, and by SIGKILL if that is not enough."""

    def send(number: int) -> None:
        with suppress(ProcessLookupError):
            (os.kill if in_terminal else os.killpg)(process.pid, number)

    try:
        if not in_terminal or not await _ends(process, AFTER_CTRL_C_S):
            send(signal.SIGTERM)
            await _ends(process, STOPS_WITHIN_S)
    finally:  # also after a second signal
        if process.returncode is None or not in_terminal:
            send(signal.SIGKILL)
        await process.wait()


async def _ends(process: Process, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()
    return process.returncode is not None
