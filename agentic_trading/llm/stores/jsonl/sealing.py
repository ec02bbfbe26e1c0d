"""Seal the segments of a log that is written, and find the records in them.

All of this blocks.
"""

import os
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import file_digest
from pathlib import Path

from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.log_line import BrokenRecordError, read_line
from agentic_trading.llm.sealed_command import SealedCommand
from agentic_trading.llm.store import GENESIS, ChainHead, Seal
from agentic_trading.llm.stores import record_codec
from agentic_trading.llm.stores.jsonl.disk import Disk
from agentic_trading.llm.stores.jsonl.frames import compressed_frames, open_compressed
from agentic_trading.llm.stores.jsonl.ids import KeyPlace, SealedIds
from agentic_trading.llm.stores.jsonl.reader import LogPosition, LogReader
from agentic_trading.llm.stores.jsonl.segments import LogFiles, SegmentContent, chained_seal, read_seals
from agentic_trading.llm.stores.jsonl.shipping import SegmentShipper
from agentic_trading.logger import get_logger

log = get_logger()

_UNMODIFIED = "The log was not modified: restore the file"


@dataclass(slots=True)
class WrittenSegment:
    """A segment with the keys of its records.

    Attributes:
        known: The number and the facts of each record, by its key.
        offsets: The offset of each line.

    """

    content: SegmentContent
    known: dict[str, bytes] = field(default_factory=dict)
    offsets: "array[int]" = field(default_factory=lambda: array("Q"))

    def add(self, line: bytes, head: ChainHead, identity: record_codec.Identity | None) -> None:
        """Add the next line, with the identity of its record. The first record with a key counts."""
        self.offsets.append(self.content.bytes)
        self.content.add(line, head, identity.time if identity else None)
        if identity is not None:
            self.known.setdefault(identity.key, identity.at(head.seq))

    def places(self) -> Iterator[KeyPlace]:
        """Yield the place of each key."""
        for key, entry in self.known.items():
            seq = record_codec.number_of(entry)
            yield KeyPlace(key, seq, self.offsets[seq - self.content.first])


class SealedSegments:
    """The sealed segments of a log, for its only writer.

    Args:
        files: The files of the log. The caller has locked the active segment.
        disk: How bytes are written.
        compress: Compress each segment after it was sealed.
        command: Ship each segment with this command after it was sealed and compressed.

    Raises:
        StoreError: If a seal was changed, or a segment is missing. The log was not modified then.

    """

    def __init__(
        self, files: LogFiles, disk: Disk, *, compress: bool = False, command: SealedCommand | None = None
    ) -> None:
        self._files = files
        self._disk = disk
        self._compress = compress
        self._command = command
        self._shipper: SegmentShipper | None = None
        self._reader = LogReader(files.active)
        self._ids = SealedIds(files.ids)
        self._waiting: dict[int, WrittenSegment] = {}
        self._to_compress = deque[Seal]()
        self._is_closing = False
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log-sealed")
        found = read_seals(files.seals)
        if found.problem and not found.is_torn:
            raise StoreError(files.seals, f"{found.problem}. {_UNMODIFIED}")
        self._seals = [*found.each]
        self._size = found.size
        self._check_files()

    @property
    def end(self) -> ChainHead:
        """The end of the last sealed segment."""
        return self._seals[-1].end if self._seals else ChainHead()

    @property
    def seals_head(self) -> str:
        """The hash of the last seal. 64 zeros in a log without seals."""
        return self._seals[-1].hash if self._seals else GENESIS

    @property
    def has_interrupted_rotation(self) -> bool:
        """Whether the active segment has a seal, and not yet its name."""
        return bool(self._seals) and self._files.find_sealed(self._seals[-1].first) is None

    def open(self) -> None:
        """Remove files that a crash has left, and read keys that are missing in the file of ids.

        Raises:
            StoreError: If a segment or the file of ids cannot be used.

        """
        if self._files.seals.is_file() and self._files.seals.stat().st_size > self._size:
            with self._opened_seals() as fd:  # its last seal is torn, and is made again
                self._disk.truncate(fd, self._size)
                self._disk.sync(fd)
        for path in self._files.unneeded():
            self._disk.unlink(path)
        if self._seals:
            self._read_missing_keys()
        if self._command is not None:
            self._shipper = SegmentShipper(self._files, self._command, self._seals)
        plain = [seal for seal in self._seals if self._files.sealed(seal.first).is_file()]
        if self._compress and plain:
            # All from the first plain one on, because they are shipped in order.
            self._to_compress.extend(seal for seal in self._seals if seal.first >= plain[0].first)
            self._worker.submit(self._compress_next)
        self._ship(len(self._seals) - len(self._to_compress))

    def name_active(self) -> None:
        """Give the active segment the name of its seal. Raises `OSError`."""
        self._disk.rename(self._files.active, self._files.sealed(self._seals[-1].first))

    def append_seal(self, segment: WrittenSegment) -> None:
        """Write the seal of the active segment to disk. Raises `OSError`."""
        seal, line = chained_seal(segment.content.seal(), self.seals_head)
        is_new = not self._files.seals.exists()
        with self._opened_seals() as fd:
            self._disk.append(fd, line)
            self._disk.sync(fd)
        if is_new:
            self._disk.sync_folder(self._files.seals.absolute().parent)
        self._seals.append(seal)
        self._size += len(line)

    def finish(self, segment: WrittenSegment) -> None:
        """Store the keys of the segment that was sealed last, and compress it, in another thread."""
        seal = self._seals[-1]
        self._waiting[seal.first] = segment  # its keys are found here until they are stored
        self._worker.submit(self._store_keys)
        if self._compress:
            self._to_compress.append(seal)
            self._worker.submit(self._compress_next)
        else:
            self._ship(len(self._seals))

    def known(self, key: str) -> bytes | None:
        """Return the entry of a record whose key is not stored yet, or None."""
        return next((found for each in list(self._waiting.values()) if (found := each.known.get(key))), None)

    def may_have(self, key: str) -> bool:
        """Return whether a record with this key may be there. Raises `StoreError`."""
        return self.known(key) is not None or (self._ids.is_open and bool(self._ids.find([key])))

    def find(self, keys: Collection[str], opened_at: int) -> dict[str, bytes]:
        """Return the entries of the records in sealed segments that have one of the keys.

        An entry of a line after number `opened_at` has all facts, because this process has written it.

        Raises:
            StoreError: If the file of ids or a line cannot be read.

        """
        found: dict[str, bytes] = {}
        if not self._seals:
            return found
        for key in keys:
            if entry := self.known(key):
                found[key] = entry
        others = [key for key in keys if key not in found]
        for place in self._ids.find(others) if self._ids.is_open else ():
            identity = self._identity_at(place, is_own=place.seq > opened_at)
            if identity.key == place.key:
                found.setdefault(place.key, identity.at(place.seq))
        return found

    @property
    def unshipped(self) -> int | None:
        """The number of segments that are not shipped yet. None without a command."""
        return None if self._shipper is None else self._shipper.unshipped

    def close(self) -> None:
        """Wait until new segments have been compressed and their keys stored, and close the file of ids.

        A command that ships a segment is waited for a few seconds.
        """
        self._is_closing = True
        self._worker.shutdown()
        if self._shipper is not None:
            self._shipper.close()
        self._ids.close()

    def _check_files(self) -> None:
        """Raise `StoreError` unless each seal has its segment, and each segment its seal."""
        firsts = {*self._files.sealed_firsts()}
        for seal in self._seals:
            if seal.first not in firsts and not self._is_active(seal):
                path = self._files.sealed(seal.first)
                raise StoreError(path, f"the sealed segment is missing. {_UNMODIFIED}")
        if without := sorted(firsts - {seal.first for seal in self._seals}):
            name = self._files.sealed(without[0]).name
            raise StoreError(self._files.seals, f"it has no seal of {name}. {_UNMODIFIED}")

    def _is_active(self, seal: Seal) -> bool:
        """Return whether a seal is of the active segment: the last one, if a rotation was interrupted."""
        if seal is not self._seals[-1] or self._files.active.stat().st_size != seal.bytes:
            return False
        with self._files.active.open("rb") as file:
            return file_digest(file, "sha256").hexdigest() == seal.sha256

    def _read_missing_keys(self) -> None:
        stored = self._ids.open(self._seals)
        missing = self._seals[stored:]
        if len(missing) > 1:
            log.info("log_ids_read", path=str(self._files.ids), segments=len(missing))
        for number, seal in enumerate(missing, start=stored):
            before = self._seals[number - 1].end if number else ChainHead()
            start = LogPosition(before, seal.first)
            places, offset = [], 0
            for line, reached in self._reader.walk(start, seal.last):
                if key := record_codec.key_in(line.record):
                    places.append(KeyPlace(key, line.seq, offset))
                offset = reached.offset
            self._ids.add(seal, places)

    def _store_keys(self) -> None:
        """Store the keys of waiting segments, in order. After a failure, they stay in memory."""
        try:
            if not self._ids.is_open:
                self._ids.open(self._seals)
            for first, segment in sorted(self._waiting.items()):
                seal = next(seal for seal in self._seals if seal.first == first)
                self._ids.add(seal, segment.places())
                del self._waiting[first]
        except StoreError as e:
            log.warning("log_ids_not_stored", path=str(self._files.ids), error=str(e))

    def _identity_at(self, place: KeyPlace, *, is_own: bool) -> record_codec.Identity:
        raw = self._reader.line_from(self._seals[self._number_of(place.seq) - 1].first, place.offset)
        try:
            line = read_line(raw)
            if line.seq != place.seq:
                raise BrokenRecordError(f"line {line.seq} is at its place")
            if is_own:
                return record_codec.identity_of(record_codec.record_of(line.record))
            identity = record_codec.identity_in(line.record)
        except ValueError as e:
            reason = f"it cannot be compared with a new record ({e}). Verify the log, or delete {self._files.ids.name}: it is made again"
            raise StoreError(self._files.active, reason, line=place.seq) from e
        return identity or record_codec.Identity("", b"")

    def _compress_next(self) -> None:
        """Compress the oldest segment if it is plain, and ship it, then the next one."""
        if not self._to_compress:
            return
        seal = self._to_compress.popleft()
        if self._files.sealed(seal.first).is_file():
            self._compress_segment(seal)
        self._ship(self._number_of(seal.first))
        if not self._is_closing:  # segments of earlier processes can wait for the next one
            self._worker.submit(self._compress_next)

    def _compress_segment(self, seal: Seal) -> None:
        plain, packed = self._files.sealed(seal.first), self._files.compressed(seal.first)
        unfinished = packed.with_name(f"{packed.name}.tmp")
        try:
            self._write_compressed(plain, unfinished)
            _check_content(unfinished, seal)
            self._disk.rename(unfinished, packed)
            self._disk.sync_folder(packed.absolute().parent)
            self._disk.unlink(plain)
        except OSError as e:
            self._disk.unlink(unfinished)
            log.warning("log_segment_not_compressed", path=str(plain), error=str(e))

    def _write_compressed(self, plain: Path, packed: Path) -> None:
        """Write the compressed content of a segment to disk."""
        self._disk.unlink(packed)
        fd = self._disk.open(packed, must_be_new=True)
        try:
            with plain.open("rb") as file:
                for frame in compressed_frames(file):
                    self._disk.append(fd, frame)
            self._disk.sync(fd)
        finally:
            os.close(fd)

    def _ship(self, count: int) -> None:
        """Ship the first segments, as many as `count`."""
        if self._shipper is not None:
            self._shipper.ready(count)

    def _number_of(self, line: int) -> int:
        """Return the number of the segment with a line, from 1."""
        return bisect_right(self._seals, line, key=lambda seal: seal.first)

    @contextmanager
    def _opened_seals(self) -> Iterator[int]:
        fd = self._disk.open(self._files.seals)
        try:
            yield fd
        finally:
            os.close(fd)


def _check_content(path: Path, seal: Seal) -> None:
    """Raise `OSError` unless a compressed segment has the content of its seal."""
    with open_compressed(path) as file:
        if file_digest(file, "sha256").hexdigest() != seal.sha256:
            raise OSError(0, "its content differs from the seal")
