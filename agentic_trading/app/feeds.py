"""From the words after `--data` to feeds of bars."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from agentic_trading.app import wire
from agentic_trading.app.folder import DataSource
from agentic_trading.app.options import OptionError
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.feed import BarFeed, FeedItem
from agentic_trading.desk.market.rows import BarRows
from agentic_trading.desk.market.samples import SAMPLES, load_sample

DEFAULT_STDIN_SYMBOL = "BTCUSDT"


@dataclass(frozen=True, slots=True)
class Source:
    """One word after `--data`: what it names, and the symbol of its bars. `rows` is None where nobody knows."""

    data: DataSource
    rows: int | None


def sources(names: Sequence[str]) -> list[Source]:
    """Understand the words after `--data`: a sample, a CSV file, `-` for standard input, each with `SYMBOL=` before it.

    Without a symbol, a file's is its name up to the first `-`, `_` or `.`, and that of standard input is BTCUSDT.
    Raises `OptionError` for what is none of these, and for a symbol that stands twice.
    """
    found = [_source(name) for name in names]
    symbols = [source.data.symbol for source in found]
    for symbol in symbols:
        if symbols.count(symbol) > 1:
            raise OptionError("--data", f"{','.join(names)}, with {symbol} twice", "each symbol once")
    return found


def _source(name: str) -> Source:
    symbol, _, what = name.rpartition("=")
    if what in SAMPLES:
        sample = SAMPLES[what]
        return Source(DataSource(name=what, symbol=sample.symbol), sample.rows)
    if what == "-":
        return Source(DataSource(name=name, symbol=symbol or DEFAULT_STDIN_SYMBOL), None)
    path = Path(what)
    if not path.is_file():
        allowed = f"one of {', '.join(sorted(SAMPLES))}, a CSV file, or -"
        raise OptionError("--data", name, allowed)
    return Source(DataSource(name=name, symbol=symbol or _symbol_in(path)), None)


def _symbol_in(path: Path) -> str:
    stem = path.name
    for mark in "-_.":
        stem = stem.partition(mark)[0]
    return stem.upper() or "UNKNOWN"


async def open_feed(data: DataSource) -> BarFeed:
    """Return the feed that a source names; a sample is read and checked now, the others as they are iterated."""
    what = data.name.rpartition("=")[2]
    if what in SAMPLES:
        return wire.bars_feed(await asyncio.to_thread(load_sample, what), symbol=data.symbol, name=what)
    if what == "-":
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
    """Give the bars that an earlier run was fed, then what `feed` has beyond them."""

    def __init__(self, fed: Sequence[Bar], feed: BarFeed) -> None:
        self.symbol = feed.symbol
        self.timeframe = feed.timeframe
        self._fed = fed
        self._feed = feed

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield bars and notes; what was fed before comes once."""
        last: datetime | None = None
        async for item in wire.bars_feed(self._fed, symbol=self.symbol, name="resumed"):
            last = item.close_time if isinstance(item, Bar) else last
            yield item
        async for item in self._feed:
            if last is None or _starts(item) >= last:
                yield item


def _starts(item: FeedItem) -> datetime:
    match item:
        case Bar(open_time=opened):
            return opened
        case _:
            return item.after if item.kind == "gap" else item.open_time
