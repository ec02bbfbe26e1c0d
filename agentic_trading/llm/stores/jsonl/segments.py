"""The files of a log: one active segment, sealed segments, and the chain of their seals.

A segment that is full is sealed: its seal is appended to the file of seals, and the segment gets a name with
the number of its first line. It does not change any more.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

import orjson

from agentic_trading.canonical import sha256_hex, utc_text
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.merkle import merkle_root
from agentic_trading.llm.store import GENESIS, ChainHead, Seal

SEGMENT_BYTES: Final = 64 << 20
"""Size from which a segment is sealed, in bytes."""

DAY_BYTES: Final = 4 << 20
"""Size from which a segment is also sealed before the first record of the next UTC day, in bytes."""

_SEAL_TAG: Final = b"agentic/seal/v1\0"
_HASH: Final = b',"hash":"'
_SUFFIX: Final = ".jsonl"
_SEALED: Final = re.compile(r"-([0-9]{20})\.jsonl(\.zst(\.tmp)?)?")


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The names of a log's files, from that of its active segment."""

    active: Path

    def sealed(self, first: int) -> Path:
        """Return the name of the sealed segment that begins with line `first`."""
        return self._beside(f"-{first:020}{_SUFFIX}")

    def compressed(self, first: int) -> Path:
        """Return the name of this segment when it is compressed."""
        return self._beside(f"-{first:020}{_SUFFIX}.zst")

    @property
    def next(self) -> Path:
        """The next active segment, before the active one has the name of a sealed one."""
        return self.active.with_name(f"{self.active.name}.next")

    @property
    def seals(self) -> Path:
        """The file of seals."""
        return self._beside(f".seals{_SUFFIX}")

    @property
    def ids(self) -> Path:
        """The writer's database of the ids in sealed segments."""
        return self._beside(".ids.sqlite")

    @property
    def index(self) -> Path:
        """The readers' database."""
        return self._beside(".index.sqlite")

    @property
    def shipped(self) -> Path:
        """The last sealed segment that the sealed command has shipped."""
        return self._beside(".shipped.json")

    def exist(self) -> bool:
        """Return whether there is a log."""
        # Between the two names of a rotation there is no active segment, but there is a file of seals.
        return self.active.is_file() or self.seals.is_file()

    def find_sealed(self, first: int) -> Path | None:
        """Return the file of the sealed segment that begins with line `first`, or None."""
        # In this order, because the plain file is deleted after the compressed one has its name.
        return next((path for path in (self.sealed(first), self.compressed(first)) if path.is_file()), None)

    def sealed_firsts(self) -> list[int]:
        """Return the first line of every sealed segment, sorted."""
        return sorted({first for first, _ in self._sealed_files()})

    def unneeded(self) -> list[Path]:
        """Return files that a crash has left: unfinished ones, and compressed copies of plain segments."""
        plain = {first for first, is_compressed in self._sealed_files() if not is_compressed}
        copies = [
            self.compressed(first)
            for first, is_compressed in self._sealed_files()
            if is_compressed and first in plain
        ]
        unfinished = [path for path, found in self._matches() if found[3]]
        return [self.next, *copies, *unfinished]

    def _sealed_files(self) -> Iterator[tuple[int, bool]]:
        return ((int(found[1]), bool(found[2])) for _, found in self._matches() if not found[3])

    def _matches(self) -> Iterator[tuple[Path, re.Match[str]]]:
        """Yield the sealed segments, finished or not, with the parts of their names."""
        # Matched completely, because a pattern of `glob` would also find the segments of `<name>-2.jsonl`.
        for path in self.active.parent.glob(f"{_escaped(self._stem)}-*"):
            if found := _SEALED.fullmatch(path.name.removeprefix(self._stem)):
                yield path, found

    @property
    def _stem(self) -> str:
        return self.active.name.removesuffix(_SUFFIX)

    def _beside(self, suffix: str) -> Path:
        return self.active.with_name(f"{self._stem}{suffix}")


def _escaped(name: str) -> str:
    """Return a pattern of `glob` for exactly this name."""
    return re.sub(r"([*?[])", r"[\1]", name)


def is_sealed_segment(path: Path) -> bool:
    """Return whether a file name is that of a sealed segment or of a file of seals."""
    return bool(_SEALED.search(path.name)) or path.name.endswith(f".seals{_SUFFIX}")


def chained_seal(seal: Seal, prev: str) -> tuple[Seal, bytes]:
    """Return a seal after the one with the hash `prev`, and its line with a newline."""
    content = {**asdict(seal), "prev": prev}
    del content["hash"]
    body = orjson.dumps(content)[:-1]
    content["hash"] = sha256_hex(_SEAL_TAG, body)
    return Seal(**content), b'%b%b%b"}\n' % (body, _HASH, content["hash"].encode())


_NAMES: Final = {field.name for field in fields(Seal)}


@dataclass(frozen=True, slots=True)
class Seals:
    """The seals in a file, in order.

    Attributes:
        each: The seals before the first line that is not a seal.
        size: The size of their lines, in bytes.
        problem: Why that line is not a seal, empty if every line is a seal.
        is_torn: The line was never written completely.

    """

    each: tuple[Seal, ...] = ()
    size: int = 0
    problem: str = ""
    is_torn: bool = False

    def of(self, first: int) -> Seal | None:
        """Return the seal of the segment that begins with line `first`, or None."""
        at = bisect_left(self.each, first, key=lambda seal: seal.first)
        return self.each[at] if at < len(self.each) and self.each[at].first == first else None

    @property
    def head(self) -> str:
        """The hash of the last seal."""
        return self.each[-1].hash if self.each else GENESIS

    @property
    def end(self) -> ChainHead:
        """The head of the log's chain at the end of the last sealed segment."""
        return self.each[-1].end if self.each else ChainHead()


def read_seals(path: Path) -> Seals:
    """Return the seals in the file at `path`, an empty list if it is missing. Raises `StoreError` if it cannot be read."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return Seals()
    except OSError as e:
        raise StoreError(path, f"cannot be read ({e.strerror}). Allow reading it, or repair the disk") from e
    found: list[Seal] = []
    size = 0
    for line in raw.splitlines(keepends=True):
        try:
            found.append(_seal_of(line, found[-1] if found else None))
        except ValueError as e:
            # A seal is synced before the next one is written, so only the last one can be torn. It can be made again.
            is_torn = not line.endswith(b"\n") or b"\0" in raw[size:]
            return Seals(tuple(found), size, f"line {len(found) + 1} of {path.name}: {e}", is_torn=is_torn)
        size += len(line)
    return Seals(tuple(found), size)


def _seal_of(line: bytes, before: Seal | None) -> Seal:
    """Return the seal of a line. Raises `ValueError` if it is not the seal after `before`."""
    body, mark, _ = line.rpartition(_HASH)
    content = orjson.loads(line) if line.endswith(b"\n") and mark else {}
    if not isinstance(content, dict) or content.get("hash") != sha256_hex(_SEAL_TAG, body):
        raise ValueError("its hash is not that of its bytes")
    if content.keys() != _NAMES:
        raise ValueError("it is not a seal. A newer release may read it")
    seal = Seal(**content)
    prev, first = (before.hash, before.last + 1) if before else (GENESIS, 1)
    if seal.prev != prev or seal.first != first or seal.last - first + 1 != seal.count:
        raise ValueError("it does not continue the seal before it")
    return seal


class SegmentContent:
    """The content of the segment after `head`, line by line, from which its seal is made."""

    def __init__(self, head: ChainHead) -> None:
        self.first = head.seq + 1
        self.bytes = 0
        self.head = head
        self.earliest: datetime | None = None
        self.latest: datetime | None = None
        self._digest = sha256()
        self._hashes = bytearray()

    def add(self, line: bytes, head: ChainHead, time: datetime | None = None) -> None:
        """Add the next line, with its newline, and the time of its record if it has one."""
        self.bytes += len(line)
        self.head = head
        self._digest.update(line)
        self._hashes += bytes.fromhex(head.hash)
        if time is not None:
            self.earliest = time if self.earliest is None or time < self.earliest else self.earliest
            self.latest = time if self.latest is None or time > self.latest else self.latest

    def seal(self) -> Seal:
        """Return the seal of this content, before it is chained. Raises `ValueError` without a line."""
        return Seal(
            first=self.first,
            last=self.head.seq,
            count=self.head.seq - self.first + 1,
            bytes=self.bytes,
            first_time=utc_text(self.earliest) if self.earliest else "",
            last_time=utc_text(self.latest) if self.latest else "",
            sha256=self._digest.hexdigest(),
            root=merkle_root(bytes(self._hashes)),
            head=self.head.hash,
        )
