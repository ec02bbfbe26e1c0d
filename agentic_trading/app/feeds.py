"""From the words after `--data` to feeds of bars."""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final

from agentic_trading.app import wire
from agentic_trading.app.options import OptionError
from agentic_trading.app.session_folder import DataSource
from agentic_trading.desk.market.bar import EPOCH, Bar, Timeframe
from agentic_trading.desk.market.bar_rows import BarRows
from agentic_trading.desk.market.feed import BarFeed, Continuity, Duplicate, FeedItem, Gap
from agentic_trading.desk.market.samples import SAMPLES, load_sample

STDIN = "-"
DEFAULT_STDIN_SYMBOL = "BTCUSDT"
PREFIX = "SYMBOL= before it is of letters, digits, _ and ., at most 64"
SYMBOL = re.compile(r"\w[\w.]{0,63}")


@dataclass(frozen=True, slots=True)
class BarSource:
    """One word after `--data`: what it names, and the symbol of its bars. `rows` is None where that is unknown."""

    data: DataSource
    rows: int | None


def sources(names: Sequence[str]) -> list[BarSource]:
    """Understand the words after `--data`: a sample, a CSV file, `-` for standard input, each with `SYMBOL=` before it.

    Without a symbol, a file's is its name up to the first `-`, `_` or `.`, and that of standard input is BTCUSDT.
    Raises `OptionError` for what is none of these, for a symbol that is none or stands twice, and for standard input
    that is to be read twice. Looks for the files, so call it off the loop.
    """
    found = [_source(name) for name in names]
    symbols = [source.data.symbol for source in found]
    for symbol in symbols:
        if symbols.count(symbol) > 1:
            raise OptionError("--data", f"{','.join(names)}, with {symbol} twice", "each symbol once")
    if sum(what_of(source.data.name) == STDIN for source in found) > 1:
        raise OptionError("--data", f"{','.join(names)}, with standard input twice", "one symbol on a stream")
    return found


def what_of(name: str) -> str:
    """Return what a word after `--data` names, without the symbol before it."""
    symbol, equals, what = name.partition("=")
    return what if equals and SYMBOL.fullmatch(symbol) else name


def _source(name: str) -> BarSource:
    what = what_of(name)
    symbol = name.removesuffix(what).removesuffix("=")
    if what in SAMPLES:
        sample = SAMPLES[what]
        if symbol not in {"", sample.symbol}:
            raise OptionError("--data", name, f"{what} or {sample.symbol}={what}: a sample keeps its symbol")
        return BarSource(DataSource(name=what, symbol=sample.symbol), sample.rows)
    if what == STDIN:
        return BarSource(DataSource(name=name, symbol=symbol or DEFAULT_STDIN_SYMBOL), None)
    path = Path(what)
    if not _is_file(path):
        allowed = f"one of {', '.join(sorted(SAMPLES))}, a CSV file, or -; {PREFIX}"
        raise OptionError("--data", name, allowed)
    symbol = symbol or _symbol_in(path)
    if not SYMBOL.fullmatch(symbol):
        raise OptionError("--data", f"{name}, whose name begins with no symbol", f"SYMBOL={name}; {PREFIX}")
    return BarSource(DataSource(name=name, symbol=symbol), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have, or a folder that may not be read
        return False


def _symbol_in(path: Path) -> str:
    stem = path.name
    for mark in "-_.":
        stem = stem.partition(mark)[0]
    return stem.upper()


async def open_feed(data: DataSource) -> BarFeed:
    """Return the feed that a source names; a sample is read and checked now, the others as they are iterated."""
    what = what_of(data.name)
    if what in SAMPLES:
        return wire.bars_feed(await asyncio.to_thread(load_sample, what), symbol=data.symbol, name=what)
    if what == STDIN:
        return wire.stdin_feed(symbol=data.symbol)
    return wire.file_feed(Path(what), symbol=data.symbol)


async def read_bars(path: Path, symbol: str) -> list[Bar]:
    """Return the bars that an earlier run was fed; a last row that a crash has cut is left out."""
    whole = (await asyncio.to_thread(_content, path)).rpartition(b"\n")[0]
    rows = BarRows(path.name, symbol, wire.BASE)
    read = (rows.read(number, line) for number, line in enumerate(whole.split(b"\n"), 1))
    return [bar for bar in read if bar is not None]


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


class ResumedFeed:
    """Give the bars that an earlier run was fed, then what `feed` has beyond them.

    A gap between the two is noted as any other: a stream may have lost what came while no run read it.
    """

    def __init__(self, fed: Sequence[Bar], feed: BarFeed) -> None:
        self.symbol = feed.symbol
        self.timeframe = feed.timeframe
        self._fed = fed
        self._feed = feed

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield bars and notes; what was fed before comes once."""
        continuity = Continuity("resumed", self.symbol, self.timeframe)
        place = 0
        for place, bar in enumerate(self._fed, start=1):
            for item in continuity.admit(place, bar):
                yield item
        last = self._fed[-1].close_time if self._fed else EPOCH
        async for item in self._feed:
            if isinstance(item, Gap) or item.open_time < last:
                continue  # holes are found again, with the one between the two feeds
            if isinstance(item, Duplicate):
                yield item
                continue
            place += 1
            for each in continuity.admit(place, item):
                yield each


ENOUGH: Final = 4
"""Bars that show how long the bars of a source are: three equal steps in a row are no holes."""


class ReadAhead:
    """The feed of a source called `name`; its first bars can be looked at before it is iterated, and come again then."""

    def __init__(self, feed: BarFeed, name: str) -> None:
        self.name = name
        self.symbol = feed.symbol
        self.timeframe = feed.timeframe
        self._items = aiter(feed)
        self._ahead: deque[FeedItem] = deque()

    async def show(self, most: int, *, after: datetime = EPOCH) -> list[Bar]:
        """Return the next bars that open at or after `after`, at most `most`; waits for them, or for the end."""
        shown = [item for item in self._ahead if isinstance(item, Bar) and item.open_time >= after][:most]
        while len(shown) < most and (item := await anext(self._items, None)) is not None:
            self._ahead.append(item)
            if isinstance(item, Bar) and item.open_time >= after:
                shown.append(item)
        return shown

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield what was looked at, then the rest."""
        while self._ahead:
            yield self._ahead.popleft()
        async for item in self._items:
            yield item


class CheckedFeed:
    """Give what `feed` gives; raise `OptionError` for bars of another length, and at the end if there was no bar."""

    def __init__(self, feed: BarFeed, name: str) -> None:
        self.symbol = feed.symbol
        self.timeframe = feed.timeframe
        self._feed = feed
        self._name = name

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield bars and notes, as long as they are those of a source that can feed a run."""
        first: list[Bar] = []
        async for item in self._feed:
            if isinstance(item, Bar) and len(first) < ENOUGH:
                first.append(item)
                refuse_longer_bars(self._name, first, self.timeframe)
            yield item
        refuse_none(self._name, first)


async def open_feeds(named: Sequence[BarSource]) -> list[ReadAhead]:
    """Open every source, and look at the first bars of those that need no waiting.

    Raises `OptionError` for one without a bar or with bars of another length, and what a feed raises for text that
    is no bar.
    """
    feeds = []
    for source in named:
        feed = ReadAhead(await open_feed(source.data), source.data.name)
        if what_of(source.data.name) != STDIN:
            first = await feed.show(ENOUGH)
            refuse_none(feed.name, first)
            refuse_longer_bars(feed.name, first, feed.timeframe)
        feeds.append(feed)
    return feeds


def refuse_none(name: str, first: Sequence[Bar]) -> None:
    """Raise `OptionError` where a source has ended without a bar."""
    if not first:
        raise OptionError("--data", f"{name}, which holds no bar", "a source of one closed bar and more")


def refuse_longer_bars(name: str, first: Sequence[Bar], timeframe: Timeframe) -> None:
    """Raise `OptionError` if the first bars, `ENOUGH` of them, are all the same longer step apart."""
    steps = {after.open_time - before.open_time for before, after in pairwise(first)}
    if len(first) == ENOUGH and len(steps) == 1 and min(steps) > timeframe.length:
        raise OptionError("--data", f"{name}, which looks like bars of {_spelled(*steps)}", timeframe)


def _spelled(step: timedelta) -> str:
    minutes = step // timedelta(minutes=1)
    for unit, length in (("d", 1_440), ("h", 60)):
        if minutes % length == 0:
            return f"{minutes // length}{unit}"
    return f"{minutes}m"
