"""The adapters of `BarFeed`: bars of a file, of memory, and of a stream such as standard input."""

import asyncio
import gzip
import os
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TypeVar

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.bar_rows import BarRows
from agentic_trading.desk.market.errors import BarFormatError, FeedUnavailableError
from agentic_trading.desk.market.feed import Calendar, Continuity, FeedItem

T = TypeVar("T")

CHUNK_BYTES = 65_536
LONGEST_LINE_BYTES = 65_536


class CsvFeed:
    """Give the bars of a file of rows as `BarRows` reads them, packed with gzip if it ends in `.gz`.

    The file is read in blocks, in a thread, while it is iterated; at most `most_bars` are given, None for all of them.
    With `whole_rows_only` a last row without a line end is left out: a crash has cut it. Raises
    `FeedUnavailableError` if the file cannot be read or unpacked; what came before that has been given.
    """

    def __init__(
        self,
        path: Path,
        *,
        symbol: str,
        timeframe: Timeframe,
        calendar: Calendar | None = None,
        most_bars: int | None = None,
        whole_rows_only: bool = False,
    ) -> None:
        self.symbol = symbol
        self.timeframe = timeframe
        self._calendar = calendar
        self._path = path
        self._most_bars = most_bars
        self._whole_rows_only = whole_rows_only

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield the bars and the notes between them."""
        rows = BarRows(self._path.name, self.symbol, self.timeframe)
        continuity = Continuity(self._path.name, self.symbol, self.timeframe, self._calendar)
        left, line = self._most_bars, 0
        async with aclosing(self._blocks()) as blocks:
            async for block in blocks:
                for raw in block:
                    if left == 0 or (self._whole_rows_only and not raw.endswith(b"\n")):
                        return
                    line += 1
                    bar = rows.read(line, raw.removesuffix(b"\n"))
                    if bar is None:
                        continue
                    for item in continuity.admit(line, bar):
                        yield item
                    left = None if left is None else left - 1

    async def _blocks(self) -> AsyncGenerator[list[bytes]]:
        """Give the lines of the file with their ends, about `CHUNK_BYTES` at a time; no file stays open in between."""
        if self._path.suffix == ".gz":
            packed = await asyncio.to_thread(self._read, lambda: BytesIO(self._path.read_bytes()))
            unpacked = gzip.GzipFile(fileobj=packed)
            while block := await asyncio.to_thread(self._read, partial(unpacked.readlines, CHUNK_BYTES)):
                yield block
            return
        offset = 0
        while block := await asyncio.to_thread(self._read, partial(self._lines_from, offset)):
            offset += sum(map(len, block))
            yield block

    def _lines_from(self, offset: int) -> list[bytes]:
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.readlines(CHUNK_BYTES)

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (OSError, EOFError, zlib.error) as e:
            raise FeedUnavailableError(str(self._path), str(e)) from e


class MemoryFeed:
    """Give bars that are already here; a line in its errors is the place in the list, from 1."""

    def __init__(
        self,
        bars: Iterable[Bar],
        *,
        symbol: str,
        timeframe: Timeframe,
        calendar: Calendar | None = None,
        name: str = "memory",
    ) -> None:
        self.symbol = symbol
        self.timeframe = timeframe
        self._calendar = calendar
        self._bars = tuple(bars)
        self._name = name

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield the bars and the notes between them; never waits."""
        continuity = Continuity(self._name, self.symbol, self.timeframe, self._calendar)
        for line, bar in enumerate(self._bars, 1):
            for item in continuity.admit(line, bar):
                yield item


class StdinFeed:
    """Give one bar a line, CSV or JSON as `BarRows` reads them, as soon as its line has ended.

    `fd` is a pipe, a socket, a terminal or a file; it stays open and in blocking mode. Waiting for the next
    line leaves the loop free and can be cancelled. The sender sends a bar when its window has closed: a
    stream cannot prove it. Raises `BarFormatError` for a line of more than 64 KiB.
    """

    def __init__(self, fd: int, *, symbol: str, timeframe: Timeframe, name: str = "stdin") -> None:
        self.symbol = symbol
        self.timeframe = timeframe
        self._fd = fd
        self._name = name

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield the bars and the notes between them until the sender closes its end."""
        rows = BarRows(self._name, self.symbol, self.timeframe)
        continuity = Continuity(self._name, self.symbol, self.timeframe)
        async for line, raw in self._lines():
            bar = rows.read(line, raw)
            if bar is None:
                continue
            for item in continuity.admit(line, bar):
                yield item

    async def _lines(self) -> AsyncIterator[tuple[int, bytes]]:
        line, rest = 0, b""
        while chunk := await read_when_ready(self._fd):
            *ended, rest = (rest + chunk).split(b"\n")
            for raw in ended:
                line += 1
                yield line, self._within_limit(line, raw)
            self._within_limit(line + 1, rest)
        if rest:
            yield line + 1, rest

    def _within_limit(self, line: int, raw: bytes) -> bytes:
        if len(raw) > LONGEST_LINE_BYTES:
            raise BarFormatError(
                self._name, line, "(row)", raw[:80], f"at most {LONGEST_LINE_BYTES} bytes a line"
            )
        return raw


async def read_when_ready(fd: int) -> bytes:
    """Return the next bytes of `fd`, at most 64 KiB; no bytes mean its end.

    The descriptor is not made non-blocking: a terminal shares that mode with standard output, whose
    writers would then fail.
    """
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(fd, ready.set)
    except PermissionError:  # a regular file or /dev/null: epoll refuses what never makes a reader wait
        ready.set()
    else:
        try:
            await ready.wait()
        finally:
            loop.remove_reader(fd)
    return await asyncio.to_thread(os.read, fd, CHUNK_BYTES)
