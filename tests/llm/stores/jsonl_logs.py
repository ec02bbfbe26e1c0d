"""Logs for the tests of the file: written in one go, opened again, cut and changed as bytes. All of it blocks."""

from collections.abc import Callable, Collection
from io import BytesIO
from pathlib import Path

from agentic_trading.llm import Event, JsonFileInteractionStore
from agentic_trading.llm.store import Record, Verification
from agentic_trading.llm.stores.jsonl.disk import Disk
from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.jsonl.frames import compressed_frames, open_compressed
from agentic_trading.llm.stores.jsonl.reader import LogReader
from agentic_trading.llm.stores.jsonl.segments import LogFiles
from agentic_trading.llm.stores.record_codec import identity_of
from tests.build import event


class HastyDisk(Disk):
    """Do not wait: for tests that open hundreds of logs and pull no plug."""

    def sync(self, fd: int) -> None:
        """Return at once."""

    def sync_folder(self, folder: Path) -> None:
        """Return at once."""


def reopened(path: Path, *added: Event) -> LogFile:
    """Open the log at `path` for writing, add events, close it, and return what it found out."""
    file = LogFile(path, HastyDisk())
    file.append([(identity_of(recorded), recorded.wire) for recorded in added], sync=True)
    file.close()
    return file


def written(path: Path, count: int = 3) -> list[Event]:
    """Write a log of so many numbered events, and return them."""
    events = [
        event(id=f"{path.stem}-{number}", trace_id="t", body={"number": number}) for number in range(count)
    ]
    reopened(path, *events)
    return events


def lines_in(path: Path) -> list[bytes]:
    """Return the lines of the file, with their newlines."""
    return path.read_bytes().splitlines(keepends=True)


def records_in(path: Path) -> list[Record]:
    """Return the records of the file, as another process reads them."""
    reader = LogReader(path)
    return [reader.record(line) for line, _ in reader.walk()]


def verified(path: Path) -> Verification:
    """Verify the file as another process would."""
    return LogReader(path).verify()


async def kept(store: JsonFileInteractionStore) -> list[Record]:
    """Return every record of the store."""
    return [entry.record async for entry in store.scan()]


def change_line(path: Path, number: int, change: Callable[[bytes], bytes]) -> Path:
    """Change a line of a log in its segment, plain or compressed, and return the file."""
    first = next(place.first for line, place in LogReader(path).walk() if line.seq == number)
    file = LogFiles(path).find_sealed(first) or path
    lines = plain_bytes(file).splitlines(keepends=True)
    lines[number - first] = change(lines[number - first])
    write_plain(file, b"".join(lines))
    return file


def blank_lines(path: Path, *, but: Collection[int]) -> None:
    """Overwrite all lines of a log in one segment with spaces, so that only those lines can be read."""
    lines = [
        raw if number in but else b" " * (len(raw) - 1) + b"\n"
        for number, raw in enumerate(lines_in(path), start=1)
    ]
    path.write_bytes(b"".join(lines))


def plain_bytes(file: Path) -> bytes:
    """Return the uncompressed bytes of a segment."""
    if file.suffix != ".zst":
        return file.read_bytes()
    with open_compressed(file) as opened:
        return opened.read()


def write_plain(file: Path, plain: bytes) -> None:
    """Write a segment, compressed if its name says so."""
    packed = b"".join(compressed_frames(BytesIO(plain))) if file.suffix == ".zst" else plain
    file.write_bytes(packed)
