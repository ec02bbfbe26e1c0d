"""Implementations of `BarFeed`: bars of a file, of memory, and of a stream such as standard input."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from agentic_trading.clock import Clock
from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.bar_files import PACKED, open_packed, readable
from agentic_trading.desk.market.bar_length import FileHead
from agentic_trading.desk.market.bar_rows import LONGEST_LINE_BYTES, NO_COLUMNS, BarRows, line_text
from agentic_trading.desk.market.calendar import Calendar
from agentic_trading.desk.market.errors import BarFormatError
from agentic_trading.desk.market.feed import (
    Continuity,
    FeedItem,
    UnclosedBar,
    UnreadColumns,
)

T = TypeVar("T")

CHUNK_BYTES = 65_536
CLOSES_SOON: Final = timedelta(seconds=5)
"""A bar that closes within this time is waited for. The clocks of two machines differ by less."""


class _Rows:
    """Converts lines of one source to the items of its feed. With a `clock`, only closed bars are items."""

    def __init__(
        self,
        source: str,
        symbol: str,
        timeframe: Timeframe,
        calendar: Calendar | None = None,
        *,
        clock: Clock | None = None,
        columns: Mapping[str, str] = NO_COLUMNS,
        skips_others: bool = False,
        needs_symbol: bool = False,
    ) -> None:
        self._rows = BarRows(
            source, symbol, timeframe, columns, skips_others=skips_others, needs_symbol=needs_symbol
        )
        named = f"{source}, symbol {symbol}" if needs_symbol else source
        self._continuity = Continuity(named, symbol, timeframe, calendar)
        self._clock = clock
        self._noted = 0

    async def items(self, line: int, raw: bytes) -> Sequence[FeedItem]:
        """Return the bar on a line with the notes before it, or a note in its place.

        Waits for a bar that closes soon.
        """
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
    """Return whether a bar's window has ended by `clock`.

    Waits for an end that is at most `CLOSES_SOON` away.
    """
    while (left := bar.close_time - clock.now()) > timedelta():
        if left > CLOSES_SOON:
            return False
        await clock.sleep(left.total_seconds())
    return True


class CsvFeed:
    """A feed of the bars in a file, in the format of `BarRows`.

    A file that ends in `.gz`, `.zip` or `.parquet` is unpacked.

    The file is read in blocks, in a thread, during the iteration.

    Args:
        path: The file.
        symbol: The symbol of all bars.
        timeframe: The length of all bars.
        calendar: The open times of a market that is not always open.
        most_bars: The maximum number of bars, or None for all.
        whole_rows_only: Whether to leave out a last row without a line end, because a crash may have cut it.
        clock: If given, no bar is yielded before it has closed by this clock.
        columns: The names of columns by field, for names that are not known.
        skips_others: Whether rows of other symbols are skipped.

    Raises:
        FeedUnavailableError: If the file cannot be read or unpacked. All items before the error are yielded
            first.

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
        columns: Mapping[str, str] = NO_COLUMNS,
        skips_others: bool = False,
    ) -> None:
        self.symbol = symbol
        self.timeframe = timeframe
        self._path = path
        self._most_bars = most_bars
        self._whole_rows_only = whole_rows_only
        self._rows_of = partial(
            _Rows,
            path.name,
            symbol,
            timeframe,
            calendar,
            clock=clock,
            columns=columns,
            skips_others=skips_others,
        )

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield the bars, with notes between them."""
        rows = self._rows_of()
        left, line = self._most_bars, 0
        async with aclosing(self.blocks()) as blocks:
            async for block in blocks:
                for raw in block:
                    if left == 0:
                        return
                    line += 1
                    for item in await rows.items(line, raw):
                        yield item
                        if left is not None and isinstance(item, Bar):
                            left -= 1

    async def blocks(self) -> AsyncGenerator[list[bytes]]:
        """Yield the lines of the file, about `CHUNK_BYTES` at a time.

        Raises:
            FeedUnavailableError: If the file cannot be read or unpacked.
            BarFormatError: If a line is too long.

        """
        line, rest = 0, b""
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                *ended, rest = (rest + chunk).split(b"\n")
                yield ended
                line += len(ended)
                # Raises for the line that is too long, because otherwise a file without line ends would fill
                # the memory.
                if len(rest) > LONGEST_LINE_BYTES:
                    line_text(self._path.name, line + 1, rest)
        if rest and not self._whole_rows_only:
            yield [rest]

    async def _chunks(self) -> AsyncGenerator[bytes]:
        """Yield the bytes of the file. No file is open between two blocks."""
        if self._path.suffix in PACKED:
            unpacked = await asyncio.to_thread(open_packed, self._path)
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
        with readable(self._path):
            return read()


_LEAST_TIMES: Final = 2
"""The bars without which a file has no length."""


async def read_head(
    path: Path, *, symbol: str, most: int, columns: Mapping[str, str] = NO_COLUMNS
) -> FileHead:
    """Return the open times of the first `most` bars of a symbol in a file, in its order.

    They end before the first row that is not a bar, because a run trades up to there and then names it.

    Raises:
        FeedUnavailableError: If the file cannot be read or unpacked.
        BarFormatError: If one of the first two bars has no time.

    """
    feed = CsvFeed(path, symbol=symbol, timeframe=Timeframe.S1)
    return await head_in(feed.blocks(), path.name, symbol=symbol, most=most, columns=columns)


async def head_in(
    lines: AsyncGenerator[list[bytes]],
    source: str,
    *,
    symbol: str,
    most: int,
    columns: Mapping[str, str] = NO_COLUMNS,
) -> FileHead:
    """Return the same of lines that are read block by block. `source` is their name in errors."""
    rows = BarRows(source, symbol, Timeframe.S1, columns, skips_others=True)
    times: list[datetime] = []
    line = 0
    try:
        async with aclosing(lines) as blocks:
            async for block in blocks:
                for raw in block:
                    line += 1
                    time = rows.open_time(line, raw)
                    if time is not None:
                        times.append(time)
                    if len(times) == most:
                        return FileHead(tuple(times), tuple(rows.others))
    except BarFormatError:
        if len(times) < _LEAST_TIMES:
            raise
    return FileHead(tuple(times), tuple(rows.others))


class TextFeed:
    """A feed of the bars in lines of text, in the format of `BarRows`. Rows of other symbols are skipped."""

    def __init__(
        self,
        lines: Sequence[bytes],
        *,
        symbol: str,
        timeframe: Timeframe,
        name: str,
        columns: Mapping[str, str] = NO_COLUMNS,
    ) -> None:
        self.symbol = symbol
        self.timeframe = timeframe
        self._lines = lines
        self._name = name
        self._columns = columns

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield the bars, with notes between them. Never waits."""
        rows = _Rows(self._name, self.symbol, self.timeframe, columns=self._columns, skips_others=True)
        for line, raw in enumerate(self._lines, 1):
            for item in await rows.items(line, raw):
                yield item

    async def blocks(self) -> AsyncGenerator[list[bytes]]:
        """Yield all lines at once."""
        yield list(self._lines)


class MemoryFeed:
    """A feed of bars in memory. The line in its errors is the position in the list, from 1."""

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
        """Yield the bars, with notes between them. Never waits."""
        continuity = Continuity(self._name, self.symbol, self.timeframe, self._calendar)
        for line, bar in enumerate(self._bars, 1):
            for item in continuity.admit(line, bar):
                yield item


class StdinFeed:
    """A feed of one bar per line of a stream, in the format of `BarRows`.

    A bar is yielded when its line has ended.

    The wait for the next line does not block the event loop, and can be cancelled. The sender must send a bar
    after its window has closed.

    Args:
        fd: The file descriptor of a pipe, a socket, a terminal or a file. It stays open and in blocking mode.
        symbol: The symbol of all bars.
        timeframe: The length of all bars.
        name: The name of the stream in errors.
        clock: If given, no bar is yielded before it has closed by this clock.
        columns: The names of columns by field, for names that are not known.

    Raises:
        BarFormatError: If a line is not a bar, or has more than 64 KiB.

    """

    def __init__(
        self,
        fd: int,
        *,
        symbol: str,
        timeframe: Timeframe,
        name: str = "stdin",
        clock: Clock | None = None,
        columns: Mapping[str, str] = NO_COLUMNS,
    ) -> None:
        self.symbol = symbol
        self.timeframe = timeframe
        self._fd = fd
        self._name = name
        self._clock = clock
        self._columns = columns

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield the bars, with notes between them, until the sender closes the stream."""
        rows = _Rows(self._name, self.symbol, self.timeframe, clock=self._clock, columns=self._columns)
        async for line, raw in stream_lines(self._fd, self._name):
            for item in await rows.items(line, raw):
                yield item


async def stream_lines(fd: int, name: str) -> AsyncGenerator[tuple[int, bytes]]:
    """Yield the lines of a stream with their numbers, from 1. Raises `BarFormatError` for a line that is too long."""
    line, rest = 0, b""
    while chunk := await read_when_ready(fd):
        *ended, rest = (rest + chunk).split(b"\n")
        for raw in ended:
            line += 1
            yield line, raw
        # Raises for the line that is too long, because otherwise a stream without line ends would fill
        # the memory.
        if len(rest) > LONGEST_LINE_BYTES:
            line_text(name, line + 1, rest)
    if rest:
        yield line + 1, rest


class SharedStream:
    """A stream with the bars of several symbols, one bar per line, in the format of `BarRows`.

    Its rows need the column `symbol`. Rows of symbols without a feed are skipped. Create all feeds before you
    iterate one of them. A line is read when a feed needs its next bar, and kept until all feeds have read it.
    A feed that is closed needs no more lines.

    Args:
        fd: The file descriptor, as in `StdinFeed`.
        name: The name of the stream in errors.

    """

    def __init__(self, fd: int, *, name: str = "stdin") -> None:
        self._name = name
        self._lines = stream_lines(fd, name)
        self._unread: dict[str, deque[tuple[int, bytes]]] = {}
        self._reading = asyncio.Lock()
        self._has_ended = False

    def feed(
        self,
        *,
        symbol: str,
        timeframe: Timeframe,
        clock: Clock | None = None,
        columns: Mapping[str, str] = NO_COLUMNS,
    ) -> "SharedStreamFeed":
        """Return the feed of one symbol. The arguments are those of `StdinFeed`."""
        self._unread[symbol] = deque()
        rows = _Rows(
            self._name, symbol, timeframe, clock=clock, columns=columns, skips_others=True, needs_symbol=True
        )
        return SharedStreamFeed(symbol, timeframe, rows, self)

    async def next_line(self, symbol: str) -> tuple[int, bytes] | None:
        """Return the next line for the feed of a symbol, or None at the end."""
        unread = self._unread.get(symbol)
        while unread is not None:
            if unread:
                return unread.popleft()
            # The lock is free between two lines, so that the feed of a silent symbol does not hold up others.
            async with self._reading:
                if unread:
                    continue
                if self._has_ended:
                    return None
                await self._read()
        return None

    def drop(self, symbol: str) -> None:
        """Keep no more lines for the feed of a symbol."""
        self._unread.pop(symbol, None)

    async def _read(self) -> None:
        """Read the next line for all feeds."""
        line = await anext(self._lines, None)
        if line is None:
            self._has_ended = True
            return
        for unread in self._unread.values():
            unread.append(line)


class SharedStreamFeed:
    """The bars of one symbol of a `SharedStream`. An error has the line and the symbol.

    It is its own iterator, so that it can be closed before its first bar.
    """

    def __init__(self, symbol: str, timeframe: Timeframe, rows: _Rows, stream: SharedStream) -> None:
        self.symbol = symbol
        self.timeframe = timeframe
        self._rows = rows
        self._stream = stream
        self._items: deque[FeedItem] = deque()

    def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield the bars, with notes between them, until the sender closes the stream."""
        return self

    async def __anext__(self) -> FeedItem:
        """Return the next bar or note."""
        while not self._items:
            line = await self._stream.next_line(self.symbol)
            if line is None:
                raise StopAsyncIteration
            self._items.extend(await self._rows.items(*line))
        return self._items.popleft()

    async def aclose(self) -> None:
        """End the feed. The stream keeps no more lines for it."""
        self._stream.drop(self.symbol)


async def read_when_ready(fd: int) -> bytes:
    """Return the next bytes of `fd`, at most 64 KiB. The result is empty at the end of the stream."""
    # The descriptor stays in blocking mode, because a terminal shares this mode with standard output, whose
    # writers would then fail.
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(fd, ready.set)
    except (
        PermissionError
    ):  # from epoll, for a regular file or /dev/null, because these never make a reader wait
        ready.set()
    else:
        try:
            await ready.wait()
        finally:
            loop.remove_reader(fd)
    return await asyncio.to_thread(os.read, fd, CHUNK_BYTES)
