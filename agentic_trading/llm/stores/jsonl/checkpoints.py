"""Checkpoints of a log: its end at certain times, in a file elsewhere.

All of this blocks.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson
from pydantic import TypeAdapter, ValidationError

from agentic_trading.canonical import utc_text
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.files import read_file
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.store import ChainHead
from agentic_trading.logger import get_logger

log = get_logger()

CHECKPOINT_S: Final = 60.0
"""The longest time between two checkpoints of a log that grows, in seconds."""

_MOST_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The end of a log at a time.

    Attributes:
        log: The hash of the first line, which tells logs apart.
        seq: The number of the last line.
        head: Its hash.
        seals: The hash of the last seal. 64 zeros in a log without seals.
        time: When it was made.

    """

    log: str
    seq: int
    head: str
    seals: str
    time: str


_CHECKPOINT: Final = TypeAdapter(Checkpoint)


class CheckpointWriter:
    """Append checkpoints of one log to a file.

    A checkpoint that cannot be written is reported, and the log continues. The next one covers it.
    """

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._written = ChainHead()
        self._is_failing = False
        self._at = self._clock.monotonic()

    def is_due(self, head: ChainHead, *, now: bool = False) -> bool:
        """Return whether there is news, and the last checkpoint is old. With `now`, any news is due."""
        return head != self._written and (now or self._clock.monotonic() - self._at >= CHECKPOINT_S)

    def put(self, first: str, head: ChainHead, seals: str) -> None:
        """Write the checkpoint of the log with a first line, an end, and a last seal."""
        self._at = self._clock.monotonic()
        line = (
            orjson.dumps(asdict(Checkpoint(first, head.seq, head.hash, seals, utc_text(self._clock.now()))))
            + b"\n"
        )
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                size = os.fstat(fd).st_size
                is_cut = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
                os.write(fd, b"\n" + line if is_cut else line)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as e:
            if not self._is_failing:
                log.warning("log_checkpoint_not_written", path=str(self._path), error=e.strerror)
            self._is_failing = True
        else:
            self._written, self._is_failing = head, False


def read_checkpoints(path: Path) -> list[Checkpoint]:
    """Return the checkpoints in a file, in order. Lines that were never written completely are left out.

    Raises:
        StoreError: If the file cannot be read, or a line is no checkpoint.

    """
    try:
        raw = read_file(path, most_bytes=_MOST_BYTES)
    except OSError as e:
        raise StoreError(
            path, f"cannot be read ({e.strerror}). Name a file that `log.checkpoint_file` has named"
        ) from e
    found = []
    for number, line in enumerate(raw.splitlines(keepends=True), start=1):
        # A crash or a full disk has cut it, or has left zeros. The next checkpoint is on a new line.
        if not line.endswith(b"\n") or (line[:1] in {b"{", b"\0"} and not line.endswith(b"}\n")):
            continue
        try:
            found.append(_CHECKPOINT.validate_json(line))
        except ValidationError as e:
            reason = "it is not a checkpoint. Restore the file, or name another one"
            raise StoreError(path, reason, line=number) from e
    return found
