"""The adapters of `BarFeed`: bars of a file, of memory, and of a stream such as standard input."""

import asyncio
import gzip
import os
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Final, TypeVar

from agentic_trading.clock import Clock
from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.bar_rows import LONGEST_LINE_BYTES, BarRows, line_text
from agentic_trading.desk.market.errors import FeedUnavailableError
from agentic_trading.desk.market.feed import (
    Calendar,
    Continuity,
    FeedItem,
    UnclosedBar,
    UnreadColumns,
)

T = TypeVar("T")

CHUNK_BYTES = 65_536
CLOSES_SOON: Final = timedelta(seconds=5)
"""How far ahead of the clock a bar may close to be waited for: clocks of two machines differ by less."""


class _Rows:
    """Lines of one source to what its feed gives for them, bars that have closed by `clock` only."""

    def __init__(
        self,
        source: str,
        symbol: str,
        timeframe: Timeframe,
        calendar: Calendar | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._rows = BarRows(source, symbol, timeframe)
        self._continuity = Continuity(source, symbol, timeframe, calendar)
        self._clock = clock
        self._noted = 0

    async def items(self, line: int, raw: bytes) -> Sequence[FeedItem]:
        """Return the bar on a line with the notes before it, or a note in its place; waits for one that closes soon."""
        bar = self._rows.read(line, raw)
        notes = self._notes()
        if bar is None:
            return notes
        if self._clock is not None and not await has_closed(bar, self._clock):
            unclosed = UnclosedBar(symbol=bar.symbol, timeframe=bar.timeframe, open_time=bar.open_time)
            return (*notes, unclosed)
        return (*notes, *self._continuity.admit(line, bar))

    def _notes(self) -> tuple[FeedItem, ...]:
        unknown = self._rows.unknown[self._noted :]
        self._noted += len(unknown)
        return (UnreadColumns(symbol=self._rows.symbol, columns=tuple(unknown)),) if unknown else ()


async def has_closed(bar: Bar, clock: Clock) -> bool:
    """Return whether the window of a bar has ended by `clock`; waits for the end if it is `CLOSES_SOON` away or less."""
    while (left := bar.close_time - clock.now()) > timedelta():
        if left > CLOSES_SOON:
            return False
        await clock.sleep(left.total_seconds())
    return True


class CsvFeed:
    """Give the bars of a file of rows as `BarRows` reads them, packed with gzip if it ends in `.gz`.

    The file is read in blocks, in a thread, while it is iterated; at most `most_bars` are given, None for all of them.
    With `whole_rows_only` a last row without a line end is left out: a crash has cut it. With a `clock` no bar is given
    before it has closed. Raises `FeedUnavailableError` if the file cannot be read or unpacked; what came before that has
    been given.
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
        clock: Clock | None = None,
    ) -> None:
        self.symbol = symbol
        self.timeframe = timeframe
        self._calendar = calendar
        self._path = path
        self._most_bars = most_bars
        self._whole_rows_only = whole_rows_only
        self._clock = clock

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield the bars and the notes between them."""
        rows = _Rows(self._path.name, self.symbol, self.timeframe, self._calendar, clock=self._clock)
        left, line = self._most_bars, 0
        async with aclosing(self._blocks()) as blocks:
            async for block in blocks:
                for raw in block:
                    if left == 0:
                        return
                    line += 1
                    for item in await rows.items(line, raw):
                        yield item
                        if left is not None and isinstance(item, Bar):
                            left -= 1

    async def _blocks(self) -> AsyncGenerator[list[bytes]]:
        """Give the lines of the file, about `CHUNK_BYTES` at a time."""
        line, rest = 0, b""
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                *ended, rest = (rest + chunk).split(b"\n")
                yield ended
                line += len(ended)
                if len(rest) > LONGEST_LINE_BYTES:
                    line_text(self._path.name, line + 1, rest)
        if rest and not self._whole_rows_only:
            yield [rest]

    async def _chunks(self) -> AsyncGenerator[bytes]:
        """Give the bytes of the file; no file stays open in between."""
        if self._path.suffix == ".gz":
            packed = await asyncio.to_thread(self._read, lambda: BytesIO(self._path.read_bytes()))
            unpacked = gzip.GzipFile(fileobj=packed)
            while chunk := await asyncio.to_thread(self._read, partial(unpacked.read, CHUNK_BYTES)):
                yield chunk
            return
        offset = 0
        while chunk := await asyncio.to_thread(self._read, partial(self._bytes_from, offset)):
            offset += len(chunk)
            yield chunk

    def _bytes_from(self, offset: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)

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
    line leaves the loop free and can be cancelled. The sender sends a bar when its window has closed; with a
    `clock`, no bar is given before that. Raises `BarFormatError` for a line of more than 64 KiB.
    """

    def __init__(
        self,
        fd: int,
        *,
        symbol: str,
        timeframe: Timeframe,
        name: str = "stdin",
        clock: Clock | None = None,
    ) -> None:
        self.symbol = symbol
        self.timeframe = timeframe
        self._fd = fd
        self._name = name
        self._clock = clock

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield the bars and the notes between them until the sender closes its end."""
        rows = _Rows(self._name, self.symbol, self.timeframe, clock=self._clock)
        async for line, raw in self._lines():
            for item in await rows.items(line, raw):
                yield item

    async def _lines(self) -> AsyncIterator[tuple[int, bytes]]:
        line, rest = 0, b""
        while chunk := await read_when_ready(self._fd):
            *ended, rest = (rest + chunk).split(b"\n")
            for raw in ended:
                line += 1
                yield line, raw
            if len(rest) > LONGEST_LINE_BYTES:
                line_text(self._name, line + 1, rest)
        if rest:
            yield line + 1, rest


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
