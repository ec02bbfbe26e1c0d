"""The sources of bars in `--data`, and the feeds that read them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from agentic_trading.clock import Clock
from agentic_trading.desk.market import feed as bar_feed
from agentic_trading.desk.market.bar import EPOCH, Bar, Timeframe
from agentic_trading.desk.market.bar_length import HEAD_ROWS, BarLength, FileHead, length_text
from agentic_trading.desk.market.bar_rows import NO_COLUMNS, SYMBOL_NAME, symbol_name
from agentic_trading.desk.market.calendar import Calendar, OpenTimes
from agentic_trading.desk.market.samples import (
    PANELS,
    SAMPLES,
    load_panel_bars,
    load_sample,
    panel_calendar,
)
from agentic_trading.desk.session import trading
from agentic_trading.desk.time_slices import close_items
from agentic_trading.operate.session_folder import DataSource
from agentic_trading.platform.errors import OptionError

STDIN = "-"
FRAME = "frame"
"""The name of a data frame in a manifest, after its symbol."""
_STDIN_SYMBOL = "BTCUSDT"
FRAMES_ARE_IN_CODE = (
    "A run of data frames is continued in code: run_backtest with the same arguments and resume=True"
)
_RULE = "In SYMBOL=, the symbol has letters, digits, _ and ., at most 64 characters"
_SYMBOLS_LISTED = 8


@dataclass(frozen=True, slots=True)
class BarSource:
    """One source in `--data`, or a data frame.

    `rows` is the number of bars of a sample, and None for other sources. `lines` are those of a data frame.
    """

    data: DataSource
    rows: int | None
    lines: Sequence[bytes] | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the source is standard input."""
        return without_symbol(self.data.name) == STDIN


def sources(names: Sequence[str]) -> list[BarSource]:
    """Return the sources in `--data`: samples, CSV files, and `-` for standard input.

    Several symbols of standard input each need `SYMBOL=`, and its rows the column `symbol`.

    Each name may have `SYMBOL=` before it. Without it, the symbol of a file is its name up to the first `-`,
    `_` or `.`, in upper case, and the symbol of standard input is BTCUSDT. A sample of many stocks gives one
    source per stock, and must be the only name. The function looks for the files, so call it off the event
    loop.

    Raises:
        OptionError: If a name is not a source, a symbol is invalid or occurs twice, or one of several symbols
            of standard input is not named.

    """
    if panels := [name for name in names if name in PANELS]:
        if len(names) > 1:
            raise OptionError(
                "--data", ",".join(names), f"{panels[0]} without other data, because it is a whole market"
            )
        return [
            BarSource(DataSource(name=panels[0], symbol=symbol), len(bars))
            for symbol, bars in load_panel_bars(panels[0]).items()
        ]
    found = [_source(name) for name in names]
    symbols = [source.data.symbol for source in found]
    for symbol in symbols:
        if symbols.count(symbol) > 1:
            raise OptionError("--data", f"{','.join(names)}, with {symbol} twice", "each symbol once")
    if STDIN in names and sum(source.is_stream for source in found) > 1:
        allowed = f"a symbol for each, such as AAPL={STDIN},MSFT={STDIN}"
        raise OptionError("--data", f"{','.join(names)}, with standard input twice", allowed)
    return found


def without_symbol(name: str) -> str:
    """Return a name in `--data` without its `SYMBOL=`."""
    symbol, equals, bare = name.partition("=")
    return bare if equals and SYMBOL_NAME.fullmatch(symbol) else name


def bar_grid(data: DataSource, calendar: Calendar | None = None) -> bar_feed.BarGrid:
    """Return the length of a source's bars, and its calendar. Reads the file of a sample of many stocks."""
    if data.name in PANELS:
        return bar_feed.BarGrid(Timeframe.D1, OpenTimes(panel_calendar(load_panel_bars(data.name))))
    return bar_feed.BarGrid(Timeframe(data.timeframe), calendar)


async def open_feed(
    data: DataSource,
    clock: Clock | None = None,
    *,
    timeframe: Timeframe | None = None,
    columns: Mapping[str, str] = NO_COLUMNS,
    stdin: Callable[..., bar_feed.BarFeed] = trading.stdin_feed,
) -> bar_feed.BarFeed:
    """Return the feed of a source.

    A sample is read and checked now, other sources during the iteration. With a `clock`, files and standard
    input yield no bar before it has closed. Without a `timeframe`, the length of the bars of a file is found
    by the step rule, and is that of `data` for standard input. `columns` are names of columns by field.
    `stdin` opens the feed of a symbol of standard input.

    Raises:
        OptionError: If the length of the bars of a file cannot be found.

    """
    if data.name in PANELS:
        bars, grid = await asyncio.to_thread(lambda: (load_panel_bars(data.name), bar_grid(data)))
        return trading.bars_feed(bars[data.symbol], symbol=data.symbol, name=data.name, grid=grid)
    bare = without_symbol(data.name)
    if bare in SAMPLES:
        return trading.bars_feed(await asyncio.to_thread(load_sample, bare), symbol=data.symbol, name=bare)
    if bare == STDIN:
        length = timeframe or Timeframe(data.timeframe)
        return stdin(symbol=data.symbol, timeframe=length, clock=clock, columns=columns)
    path = Path(bare)
    if timeframe is None:
        head = await trading.head_of(path, symbol=data.symbol, most=HEAD_ROWS, columns=columns)
        ordered = f"Write such a file: agentic-trading data convert {data.name} --out FILE"
        timeframe = _found_length(head, data, ordered)
    return trading.file_feed(path, symbol=data.symbol, timeframe=timeframe, clock=clock, columns=columns)


async def _frame_feed(
    data: DataSource, lines: Sequence[bytes], timeframe: Timeframe | None
) -> bar_feed.BarFeed:
    """Return the feed of a data frame from its lines. Its name in errors is that of the source."""
    if timeframe is None:
        head = await trading.text_head(lines, data.name, symbol=data.symbol, most=HEAD_ROWS)
        timeframe = _found_length(head, data, "Sort the frame by its time")
    return trading.text_feed(lines, data.name, symbol=data.symbol, timeframe=timeframe)


def _found_length(head: FileHead, data: DataSource, ordered: str) -> Timeframe:
    """Return the length of the bars of a file, or `trading.BASE` for a single bar.

    `ordered` is the remedy for rows that are newest first.
    """
    if head.others and not head.times:
        listed = ", ".join(head.others[:_SYMBOLS_LISTED])
        name = symbol_name(head.others[0])
        finds = "" if name == head.others[0] else f", which finds {head.others[0]}"
        allowed = f"one of its symbols, such as {name}={without_symbol(data.name)}{finds}"
        raise OptionError(
            "--data", f"{data.name}, with rows of {listed} and no row of {data.symbol}", allowed
        )
    found = BarLength(head.times)
    if found.is_newest_first:
        allowed = f"rows in order of time. {ordered}"
        raise OptionError("--data", f"{data.name}, whose rows are newest first", allowed)
    timeframe = found.timeframe
    if timeframe is None and found.has_steps:
        allowed = (
            f"bars of {', '.join(Timeframe)}. If bars are missing between all of these, state their length "
            f"with --timeframe, such as --timeframe {trading.BASE}"
        )
        raise OptionError("--data", f"{data.name}, {found.description}", allowed)
    return timeframe or trading.BASE


class BarSteps:
    """Finds the length of a source's bars from the steps between them.

    The length is known (`is_known`) when two bars are exactly one `timeframe` apart, or if `--timeframe`
    gives it. A longer step proves no length, because bars may be missing.
    """

    def __init__(self, name: str, timeframe: Timeframe, *, is_known: bool = False) -> None:
        self._name = name
        self._timeframe = timeframe
        self._steps: set[timedelta] = set()
        self._last: Bar | None = None
        self.is_known = is_known

    @property
    def is_empty(self) -> bool:
        """Whether there is no bar yet."""
        return self._last is None

    def add(self, bar: Bar) -> bool:
        """Add the next bar, and return whether the length is known."""
        if not self.is_known and self._last is not None and bar.open_time > self._last.open_time:
            self._steps.add(bar.open_time - self._last.open_time)
            self.is_known = self._timeframe.length in self._steps
        self._last = bar
        return self.is_known

    def refuse_unknown(self) -> None:
        """Raise `OptionError` if all steps so far are longer than the timeframe. A single bar has no step."""
        if self.is_known or not self._steps:
            return
        shortest, own = min(self._steps), self._timeframe
        looks = f"which looks like bars of {length_text(shortest)}"
        if any(step % shortest for step in self._steps):
            looks = f"whose bars are {', '.join(map(length_text, sorted(self._steps)[:4]))} apart"
        allowed = (
            f"bars of {own}. State another length with --timeframe. If these are bars of {own} with missing "
            f"bars between them, use --timeframe {own}"
        )
        raise OptionError("--data", f"{self._name}, {looks}", allowed)


class ReadAhead:
    """A feed whose first bars can be read before the iteration."""

    def __init__(self, feed: bar_feed.BarFeed, name: str, *, is_known: bool = False) -> None:
        self.name = name
        self.symbol = feed.symbol
        self.timeframe = feed.timeframe
        self.steps = BarSteps(name, feed.timeframe, is_known=is_known)
        self._items = aiter(feed)
        self._ahead: deque[bar_feed.FeedItem] = deque()

    async def check(self) -> None:
        """Read until the length of the bars is known.

        Raises `OptionError` without a bar, or for another length.
        """
        async for item in self._items:
            self._ahead.append(item)
            if isinstance(item, Bar) and self.steps.add(item):
                break
        _refuse_empty(self.name, self.steps)
        self.steps.refuse_unknown()

    @property
    def first(self) -> Bar | None:
        """The first bar, if it was read."""
        return next((item for item in self._ahead if isinstance(item, Bar)), None)

    async def skip_to(self, moment: datetime) -> bool:
        """Skip items until a bar opens at or after `moment`, and wait for it.

        Returns whether such a bar exists.
        """
        while (item := self._ahead[0] if self._ahead else await anext(self._items, None)) is not None:
            if isinstance(item, Bar) and item.open_time >= moment:
                if not self._ahead:
                    self._ahead.append(item)
                return True
            if self._ahead:
                self._ahead.popleft()
        return False

    def __aiter__(self) -> AsyncIterator[bar_feed.FeedItem]:
        """Yield the items that were read ahead, then all others."""
        return self

    async def __anext__(self) -> bar_feed.FeedItem:
        """Return the next item."""
        return self._ahead.popleft() if self._ahead else await anext(self._items)

    async def aclose(self) -> None:
        """End the iteration of the feed."""
        await close_items(self._items)


async def open_feeds(
    named: Sequence[BarSource],
    timeframe: str = "",
    clock: Clock | None = None,
    columns: Mapping[str, str] = NO_COLUMNS,
) -> list[ReadAhead]:
    """Open all sources, and find the length of their bars. Standard input has that of `--timeframe`.

    Args:
        named: The sources.
        timeframe: The value of `--timeframe`, empty if it was not given.
        clock: The machine's clock in paper mode, else None.
        columns: The names of columns by field, of `--columns`.

    Raises:
        OptionError: If a source has no bar, or the sources have bars of different or unknown lengths.
        MarketError: If a text is not a bar.

    """
    if timeframe not in {"", *Timeframe}:
        raise OptionError("--timeframe", timeframe, ", ".join(Timeframe))
    feeds: list[ReadAhead] = []
    has_symbols = sum(source.is_stream for source in named) > 1
    stdin = trading.shared_stdin() if has_symbols else trading.stdin_feed
    for source in named:
        bare = without_symbol(source.data.name)
        stated = Timeframe(timeframe) if timeframe else None
        if source.lines is None:
            opened = await open_feed(source.data, clock, timeframe=stated, columns=columns, stdin=stdin)
        else:
            opened = await _frame_feed(source.data, source.lines, stated)
        if stated not in {None, opened.timeframe}:
            raise OptionError("--timeframe", timeframe, f"{opened.timeframe}, the length of bars of {bare}")
        # A stream is checked during the run, because it cannot be read to its end first.
        feed = ReadAhead(opened, source.data.name, is_known=bool(timeframe) or bare != STDIN)
        if bare != STDIN:
            await feed.check()
        feeds.append(feed)
    _refuse_mixed_lengths(feeds)
    return feeds


def _refuse_mixed_lengths(feeds: Sequence[ReadAhead]) -> None:
    for feed in feeds[1:]:
        if feed.timeframe is not feeds[0].timeframe:
            was = f"bars of {feeds[0].timeframe} in {feeds[0].name}, and of {feed.timeframe} in {feed.name}"
            raise OptionError("--data", was, "bars of one length in a session")


def with_lengths(named: Sequence[BarSource], feeds: Sequence[ReadAhead]) -> list[BarSource]:
    """Return the sources with the length of their bars, as a manifest keeps them."""
    return [
        replace(source, data=source.data.model_copy(update={"timeframe": str(feed.timeframe)}))
        for source, feed in zip(named, feeds, strict=True)
    ]


class CheckedFeed:
    """A feed that checks the length of its bars. `steps` are the steps before the feed.

    After the length is known, a longer step is a gap.

    Raises:
        OptionError: At the first step that contradicts the timeframe, or at the end if there was no bar.

    """

    def __init__(self, feed: bar_feed.BarFeed, name: str, steps: BarSteps) -> None:
        self.symbol = feed.symbol
        self.timeframe = feed.timeframe
        self._feed = feed
        self._name = name
        self._steps = steps

    async def __aiter__(self) -> AsyncIterator[bar_feed.FeedItem]:
        """Yield bars and notes, until a step contradicts the timeframe."""
        items = aiter(self._feed)
        try:
            async for item in items:
                if isinstance(item, Bar) and not self._steps.add(item):
                    self._steps.refuse_unknown()
                yield item
        finally:
            await close_items(items)
        _refuse_empty(self._name, self._steps)


class ResumedFeed:
    """The bars that an earlier run used, then the later bars of `feed`.

    A gap between the two is noted like other gaps.
    """

    def __init__(
        self, fed: bar_feed.BarFeed, feed: bar_feed.BarFeed, calendar: Calendar | None = None
    ) -> None:
        self.symbol = feed.symbol
        self.timeframe = feed.timeframe
        self._fed = fed
        self._feed = feed
        self._calendar = calendar

    async def __aiter__(self) -> AsyncIterator[bar_feed.FeedItem]:
        """Yield bars and notes. A bar that the earlier run used is yielded once."""
        continuity = bar_feed.Continuity("resumed", self.symbol, self.timeframe, self._calendar)
        line, last = 0, EPOCH
        items = aiter(self._feed)
        try:
            async for item in self._fed:
                if isinstance(item, Bar):
                    line, last = line + 1, item.close_time
                    for admitted in continuity.admit(line, item):
                        yield admitted
            async for item in items:
                if _was_given(item, last):
                    continue
                if not isinstance(item, Bar):
                    yield item
                    continue
                line += 1
                for admitted in continuity.admit(line, item):
                    yield admitted
        finally:
            await close_items(items)


def _was_given(item: bar_feed.FeedItem, last: datetime) -> bool:
    """Return whether a resumed feed skips an item of its source."""
    # Gaps are skipped, because the resumed feed finds them again, with the gap between the two runs.
    if isinstance(item, bar_feed.UnreadColumns):
        return False
    return isinstance(item, bar_feed.Gap) or item.open_time < last


@dataclass(frozen=True, slots=True)
class KeptBars:
    """The file with the bars of one symbol that an earlier run used.

    A last row that a crash has cut off is left out.
    """

    path: Path
    symbol: str
    grid: bar_feed.BarGrid
    count: int
    last_close: datetime

    def feed(self) -> bar_feed.BarFeed:
        """Return a feed of these bars, without bars that were added to the file later."""
        return trading.kept_feed(self.path, symbol=self.symbol, grid=self.grid, most_bars=self.count)


async def kept_bars(path: Path, data: DataSource, calendar: Calendar | None = None) -> KeptBars:
    """Return the bars in a file. A missing file counts as empty. Raises `MarketError` for a damaged row."""
    count, last_close = 0, EPOCH
    grid = await asyncio.to_thread(bar_grid, data, calendar)
    if await asyncio.to_thread(path.is_file):
        async for item in trading.kept_feed(path, symbol=data.symbol, grid=grid):
            if isinstance(item, Bar):
                count, last_close = count + 1, item.close_time
    return KeptBars(path, data.symbol, grid, count, last_close)


def _source(name: str) -> BarSource:
    bare = without_symbol(name)
    symbol = name.removesuffix(bare).removesuffix("=")
    if bare in SAMPLES:
        sample = SAMPLES[bare]
        if symbol not in {"", sample.symbol}:
            raise OptionError("--data", name, f"{bare} or {sample.symbol}={bare}: a sample keeps its symbol")
        return BarSource(DataSource(name=bare, symbol=sample.symbol), sample.rows)
    if bare == STDIN:
        return BarSource(DataSource(name=name, symbol=symbol or _STDIN_SYMBOL), None)
    path = Path(bare)
    if not is_file(path):
        allowed = (
            f"one of {', '.join(sorted({*SAMPLES, *PANELS}))}, a CSV file, or -. {_RULE}{named_as(name)}"
        )
        if bare == FRAME:
            allowed += f". {FRAMES_ARE_IN_CODE}"
        raise OptionError("--data", name, allowed)
    symbol = symbol or symbol_of_file(path)
    if not SYMBOL_NAME.fullmatch(symbol):
        raise OptionError(
            "--data", f"{name}, whose name does not begin with a symbol", f"SYMBOL={name}. {_RULE}"
        )
    return BarSource(DataSource(name=name, symbol=symbol), None)


def named_as(name: str) -> str:
    """Return a hint for a symbol such as BTC/USDT before a source."""
    symbol, equals, bare = name.partition("=")
    plain = symbol_name(symbol)
    if not equals or plain in {"", symbol}:
        return ""
    return f". {plain}={bare} finds the rows of {symbol} too"


def is_symbol(text: object) -> bool:
    """Return whether `text` can be the symbol of a source."""
    return isinstance(text, str) and SYMBOL_NAME.fullmatch(text) is not None


def is_file(path: Path) -> bool:
    """Return whether a file has this name. Looks for it, so call it off the event loop."""
    try:
        return path.is_file()
    except OSError:  # a name that no file can have, or a folder that may not be read
        return False


def symbol_of_file(path: Path) -> str:
    """Return the symbol in the name of a file: up to the first `-`, `_` or `.`, in upper case."""
    stem = path.name
    for mark in "-_.":
        stem = stem.partition(mark)[0]
    return stem.upper()


def _refuse_empty(name: str, steps: BarSteps) -> None:
    """Raise `OptionError` if a source has ended without a bar."""
    if steps.is_empty:
        raise OptionError("--data", f"{name}, which holds no bar", "a source with at least one closed bar")


def expected_rows(rows: Sequence[int | None], most: int | None) -> int | None:
    """Return the number of bars of all feeds, with at most `most` bars each, or None if it is not known."""
    total = 0
    for each in rows:
        bound = most if each is None else min(each, most or each)
        if bound is None:
            return None
        total += bound
    return total
