"""Compressed segments: zstd in independent frames, so that a line can be read without those before it.

A file ends in a seek table, as the seekable format of zstd describes it (`contrib/seekable_format` in its
repository). Programs that do not know the table skip it: `zstd -dc` and DuckDB read the whole file.
"""

import io
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from struct import Struct, iter_unpack
from typing import BinaryIO, Final

from typing_extensions import Buffer, override

FRAME_BYTES: Final = 128 << 10
"""Uncompressed size of a frame, in bytes: larger ones are smaller on disk, and a line takes longer to read."""

_LEVEL: Final = 3
_TABLE_HEAD: Final = Struct("<II")
_TABLE_MAGIC: Final = 0x184D2A5E
_ENTRY: Final = Struct("<II")
_FOOTER: Final = Struct("<IBI")
_FOOTER_MAGIC: Final = 0x8F92EAB1


class DamagedSegmentError(OSError):
    """A compressed segment was changed or cut."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(0, f"{path.name} is damaged: {reason}")


def compressed_frames(file: BinaryIO) -> Iterator[bytes]:
    """Yield the compressed frames of a plain segment, then the seek table."""
    import cramjam  # on use, because few logs are compressed

    sizes = bytearray()
    count = 0
    while plain := file.read(FRAME_BYTES):
        frame = bytes(cramjam.zstd.compress(plain, _LEVEL))
        sizes += _ENTRY.pack(len(frame), len(plain))
        count += 1
        yield frame
    table = sizes + _FOOTER.pack(count, 0, _FOOTER_MAGIC)
    yield _TABLE_HEAD.pack(_TABLE_MAGIC, len(table)) + table


class FramedFile(io.RawIOBase):
    """Read a compressed segment as if it were plain.

    Raises:
        DamagedSegmentError: If the file was changed or cut.
        OSError: If it cannot be opened or read.

    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        try:
            self._starts, self._ends = self._table()
        except BaseException:
            self._file.close()
            raise
        self._position = 0
        self._frame = -1
        self._plain = memoryview(b"")

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._ends[-1]}[whence]
        self._position = base + offset
        return self._position

    @override
    def tell(self) -> int:
        return self._position

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        wanted = memoryview(buffer)
        number = bisect_right(self._ends, self._position) - 1
        if number >= len(self._starts) - 1 or not wanted:
            return 0
        if number != self._frame:
            self._plain, self._frame = self._read_frame(number), number
        at = self._position - self._ends[number]
        part = self._plain[at : at + len(wanted)]
        wanted[: len(part)] = part
        self._position += len(part)
        return len(part)

    @override
    def close(self) -> None:
        self._file.close()
        super().close()

    def _table(self) -> "tuple[array[int], array[int]]":
        """Return where each frame begins in the file and in the plain bytes, both with the end."""
        size = self._file.seek(0, io.SEEK_END)
        footer_at = max(0, size - _FOOTER.size)
        self._file.seek(footer_at)
        footer = self._file.read()
        count, _, magic = _FOOTER.unpack(footer) if len(footer) == _FOOTER.size else (0, 0, 0)
        table_at = footer_at - count * _ENTRY.size
        if magic != _FOOTER_MAGIC or table_at < _TABLE_HEAD.size:
            raise DamagedSegmentError(self._path, "its seek table is missing")
        self._file.seek(table_at)
        entries = [*iter_unpack(_ENTRY.format, self._file.read(count * _ENTRY.size))]
        starts = array("Q", accumulate((packed for packed, _ in entries), initial=0))
        ends = array("Q", accumulate((plain for _, plain in entries), initial=0))
        if starts[-1] + _TABLE_HEAD.size != table_at:
            raise DamagedSegmentError(self._path, "its seek table does not fit its size")
        return starts, ends

    def _read_frame(self, number: int) -> memoryview:
        import cramjam

        begin, end = self._starts[number], self._starts[number + 1]
        size = self._ends[number + 1] - self._ends[number]
        self._file.seek(begin)
        packed = self._file.read(end - begin)
        try:
            plain = bytes(cramjam.zstd.decompress(packed, output_len=size))
        except Exception as e:  # cramjam's own error, which is no OSError
            raise DamagedSegmentError(self._path, f"a frame cannot be decompressed ({e})") from e
        if len(plain) != size:
            raise DamagedSegmentError(self._path, f"a frame has {len(plain)} bytes instead of {size}")
        return memoryview(plain)


def open_compressed(path: Path) -> io.BufferedReader:
    """Open a compressed segment for reading. Raises `OSError`."""
    return io.BufferedReader(FramedFile(path), FRAME_BYTES)
