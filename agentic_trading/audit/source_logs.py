"""What an archive has of each log: stretches of its lines without a gap, and what is missing or wrong between them."""

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from agentic_trading.errors import TradingError
from agentic_trading.llm.store import GENESIS, ChainedRecord

STATE_NAME: Final = "archive.json"
"""The file beside the archive's log that says what it has of each log."""

MOST_REPEATED: Final = 100
"""How many numbers are named of a log that came with a second line."""


class ArchiveError(TradingError, ValueError):
    """The archive at `path` cannot be gone on with or checked, for `problem`; `remedy` is what to do."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path} {problem}; {remedy}")


@dataclass(frozen=True, slots=True)
class Stretch:
    """The lines `first` to `last` of a log, each linked to the one before; `prev` is what the first one names, `hash` the last one's."""

    first: int
    last: int
    prev: str
    hash: str


@dataclass(slots=True)
class SourceLog:
    """The stretches of one log, in order; `repeated` are numbers that came with a second line of other content."""

    stretches: list[Stretch] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)

    def add(self, line: ChainedRecord, *, is_new: bool) -> str:
        """Note that a line has come; return what is wrong with its place, or nothing.

        `is_new` says that its record was not known: then no other line may have its number.
        """
        place = bisect_right(self.stretches, line.seq, key=lambda stretch: stretch.first)
        before = self.stretches[place - 1] if place else None
        after = self.stretches[place] if place < len(self.stretches) else None
        if before is not None and line.seq <= before.last:
            return self._again(line, before, is_new=is_new)
        problem = ""
        made = Stretch(line.seq, line.seq, line.prev, line.hash)
        if before is not None and before.last + 1 == line.seq:
            if before.hash == line.prev:
                place -= 1
                made = Stretch(before.first, line.seq, before.prev, line.hash)
                del self.stretches[place]
            else:
                problem = _unlinked(line.seq)
        if after is not None and line.seq + 1 == after.first:
            if line.hash == after.prev:
                made = Stretch(made.first, after.last, made.prev, after.hash)
                del self.stretches[place]
            else:
                problem = _unlinked(after.first)
        self.stretches.insert(place, made)
        return problem

    def findings(self) -> Iterator[str]:
        """Yield what is missing or wrong, in the order of the lines."""
        end, hash_ = 0, GENESIS
        for stretch in self.stretches:
            if stretch.first > end + 1:
                yield _missing(end + 1, stretch.first - 1)
            elif stretch.prev != hash_:
                yield _unlinked(stretch.first)
            end, hash_ = stretch.last, stretch.hash
        for number in self.repeated:
            yield f"line {number} came twice, with different content"

    @property
    def lines(self) -> int:
        """How many lines have come."""
        return sum(stretch.last - stretch.first + 1 for stretch in self.stretches)

    def _again(self, line: ChainedRecord, known: Stretch, *, is_new: bool) -> str:
        is_other = is_new or (line.seq == known.last and line.hash != known.hash)
        if not is_other or line.seq in self.repeated or len(self.repeated) >= MOST_REPEATED:
            return ""
        self.repeated.append(line.seq)
        return f"line {line.seq} came twice, with different content"


def _missing(first: int, last: int) -> str:
    return f"line {first} is missing" if first == last else f"lines {first} to {last} are missing"


def _unlinked(number: int) -> str:
    return f"line {number} does not continue the line before it"


@dataclass(slots=True)
class ArchiveState:
    """What an archive has, as its file says: its own log ended with line `lines` and its `hash`, when this was written.

    `conflicts` counts the records that came with other content than is kept under their id.
    """

    archive_id: str
    lines: int = 0
    hash: str = GENESIS
    conflicts: int = 0
    sources: dict[str, SourceLog] = field(default_factory=dict)

    def findings(self) -> Iterator[tuple[str, str]]:
        """Yield the id of a log, and what is missing or wrong in it."""
        for log_id, source in self.sources.items():
            for finding in source.findings():
                yield log_id, finding


_STATE: Final = TypeAdapter(ArchiveState)


def read_state(folder: Path) -> ArchiveState | None:
    """Return what an archive has, or None where no file says so; raises `ArchiveError` for one that cannot be read."""
    path = folder / STATE_NAME
    try:
        return _STATE.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not what an archive writes"
        remedy = "restore it, or delete it: every log is then named as incomplete from there on"
        raise ArchiveError(path, f"cannot be read ({why})", remedy) from e


def write_state(folder: Path, state: ArchiveState) -> None:
    """Replace what the file says, on disk; raises `ArchiveError`."""
    path = folder / STATE_NAME
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(_STATE.dump_json(state))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as e:
        remedy = "make room, or allow writing to the folder"
        raise ArchiveError(path, f"cannot be written ({e.strerror})", remedy) from e
