"""Ship sealed segments: run a command for each one, in the order of the seals, until it succeeds.

All of this blocks, in a thread that only runs the command.
"""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from threading import Condition, Thread
from typing import IO, Any, Final

import orjson

from agentic_trading.files import replace_file
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.log_line import BrokenRecordError, read_line
from agentic_trading.llm.sealed_command import SealedCommand
from agentic_trading.llm.store import Seal
from agentic_trading.llm.stores.jsonl.reader import LogReader
from agentic_trading.llm.stores.jsonl.segments import LogFiles
from agentic_trading.logger import get_logger

log = get_logger()

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
"""The pause after a failure, in seconds. It doubles with each further failure."""

CLOSES_WITHIN_S: Final = 5.0
"""How long closing waits for commands, in seconds. A command that still runs is stopped."""

STOPS_WITHIN_S: Final = 1.0
"""How long a stopped command may take to end, in seconds."""

_SHOWN_CHARS: Final = 1000
_READ_BYTES: Final = 64 << 10
_REPEATED: Final = "stopped, because the log was closed. It is repeated at the next start"


class SegmentShipper:
    """Run a command for each sealed segment of a log, and then for the file of seals.

    One command runs at a time. Each segment is shipped in order, at least once: the last shipped seal is stored
    in a file after the command has succeeded, and a new process continues after it.

    Args:
        files: The files of the log.
        command: The command.
        seals: The seals of the log. The caller appends new ones.

    """

    def __init__(self, files: LogFiles, command: SealedCommand, seals: Sequence[Seal]) -> None:
        self._files = files
        self._command = command
        self._seals = seals
        self._reader = LogReader(files.active)
        self._log_id = ""
        self._shipped = _shipped_in(files.shipped, seals)
        self._ready = 0
        self._is_closing = False
        self._is_stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._changed = Condition()
        # A daemon, so that a command that never ends does not keep a process that did not close its log.
        self._thread = Thread(target=self._run, name="log-shipping", daemon=True)
        self._thread.start()

    @property
    def unshipped(self) -> int:
        """The number of sealed segments that are not shipped yet."""
        return len(self._seals) - self._shipped

    def ready(self, count: int) -> None:
        """Ship the first `count` segments, except those that are shipped. Returns at once."""
        with self._changed:
            self._ready = count
            self._changed.notify()

    def close(self) -> None:
        """Wait a few seconds until all segments are shipped, then stop the command.

        After a failure, it does not wait. The next process ships the rest.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(CLOSES_WITHIN_S)
        self._is_stopped = True
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._thread.is_alive():
                self._signal(number)
                self._thread.join(STOPS_WITHIN_S)

    def _run(self) -> None:
        pause_s = 0.0
        while self._waits(pause_s):
            seal = self._seals[self._shipped]
            if (problem := self._problem_with(seal)) is None:
                self._shipped += 1
                self._store(seal)
                pause_s = 0.0
            else:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S) or FIRST_PAUSE_S
                retry = {} if self._is_stopped else {"retry_in_s": pause_s}
                log.warning("log_segment_not_shipped", first=seal.first, **problem, **retry)

    def _waits(self, pause_s: float) -> bool:
        """Wait until the next segment can be shipped. Return false if the log is closed and no more is to be done."""
        with self._changed:
            if pause_s:
                return not self._changed.wait_for(lambda: self._is_closing, pause_s)
            self._changed.wait_for(lambda: self._is_closing or self._shipped < self._ready)
            return self._shipped < self._ready

    def _problem_with(self, seal: Seal) -> dict[str, Any] | None:
        """Ship a segment and the file of seals. Return the problem, None if there is none."""
        plain = str(self._files.sealed(seal.first))
        try:
            path = self._files.find_sealed(seal.first)
            if path is None:
                return {"path": plain, "error": "the segment is missing. Restore it"}
            self._log_id = self._log_id or read_line(self._reader.line_from(1, 0)).hash
            for file in (path, self._files.seals):
                if self._is_stopped:
                    return {"path": str(file), "error": _REPEATED}
                words = self._command.for_file(file.absolute(), self._log_id)
                if (problem := self._problem_of(words)) is not None:
                    return {"path": str(file), "program": words[0], **problem}
        except (StoreError, BrokenRecordError, OSError) as e:
            return {"path": plain, "error": self._command.redaction.text(str(e))}
        return None

    def _problem_of(self, words: Sequence[str]) -> dict[str, Any] | None:
        """Run a command to its end. Return its problem, None if it succeeded. Raises `OSError`."""
        # A file, because a pipe would stay open as long as a program that the command has left behind.
        with TemporaryFile() as errors:
            self._process = subprocess.Popen(  # noqa: S603 - the operator has named this program
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            if self._is_stopped:  # while it was started
                self._signal(signal.SIGTERM)
            code = self._process.wait()
            if code == 0:
                return None
            if self._is_stopped:
                return {"error": _REPEATED}
            # Secrets are removed before the text is cut, because a part of one would not be found.
            output = self._command.redaction.text(_end_of(errors)).strip()
            return {"exit_code": code, "stderr": output[-_SHOWN_CHARS:]}

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the running command and the processes that it has started."""
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(OSError):  # it has just ended
                os.killpg(process.pid, number)

    def _store(self, seal: Seal) -> None:
        shipped = {"log": self._log_id, "last": seal.last, "seal": seal.hash}
        try:
            replace_file(self._files.shipped, orjson.dumps(shipped) + b"\n")
        except OSError as e:
            log.warning("log_shipped_not_stored", path=str(self._files.shipped), error=e.strerror)


def _end_of(output: IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - _READ_BYTES))
    return output.read().decode("utf-8", errors="replace")


def _shipped_in(path: Path, seals: Sequence[Seal]) -> int:
    """Return how many of the seals are shipped. If the file cannot be used, all segments are shipped again."""
    try:
        last = orjson.loads(path.read_bytes())["seal"]
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, TypeError, KeyError):
        last = None
    for number, seal in enumerate(seals, start=1):
        if seal.hash == last:
            return number
    log.warning("log_shipped_unknown", path=str(path), reason="all segments are shipped again")
    return 0
