"""Convert files of bars to the plain form that a run reads."""

import asyncio
import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.bar_rows import NO_COLUMNS
from agentic_trading.desk.market.bar_table import BarTable
from agentic_trading.desk.market.errors import BarFormatError
from agentic_trading.desk.market.feed import Continuity, Duplicate
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.data_check import MOST_SYMBOLS, fill, new_table, stated_timeframe
from agentic_trading.desk.session.kept_bars import BAR_COLUMNS, bar_row
from agentic_trading.errors import extra_named
from agentic_trading.files import replace_file
from agentic_trading.platform.errors import OptionError

PRICES: Final = ("open", "high", "low", "close", "volume", "quote_volume", "taker_buy_volume")
"""The fields that a Parquet file keeps as floats."""


class ConvertedSymbol(BaseModel, frozen=True):
    """The bars of one symbol that were written."""

    symbol: str
    timeframe: str
    bars: int
    first_open: datetime
    last_close: datetime


class Conversion(BaseModel, frozen=True):
    """A converted file.

    Attributes:
        file: The source.
        out: The new file.
        symbols: The bars that were written, by symbol.
        repeats: The number of repeated equal bars that were left out.
        others: The number of rows of other symbols that were left out, by symbol.
        out_of_order: The number of rows that were earlier than the row before them.
        unread: The columns that were left out.

    """

    file: str
    out: str
    symbols: tuple[ConvertedSymbol, ...]
    repeats: int
    others: Mapping[str, int]
    out_of_order: int
    unread: tuple[str, ...]


async def convert_file(
    name: str, out: Path, *, symbol: str = "", timeframe: str = "", columns: Mapping[str, str] = NO_COLUMNS
) -> Conversion:
    """Write the bars of a file to `out`, in order of time and without repeated bars.

    No bar is invented or changed. The ending of `out` chooses the form: `.csv`, `.csv.gz` or `.parquet`. The
    bars of several symbols are written one symbol after the other, with a column `symbol`.

    Args:
        name: The file, which may have `SYMBOL=` before it.
        out: The new file.
        symbol: The symbol whose rows are written. Empty for that of `name`, or for all.
        timeframe: The length of the bars. Empty if it is found from their times.
        columns: The names of columns by field, for names that are not known.

    Raises:
        OptionError: If `out` exists or has another ending, or the file is missing, has no row of the symbol,
            or has bars of no known length.
        MarketError: If a row is not a bar, or two bars of one time differ.
        MissingExtraError: If the package for Parquet is missing.

    """
    stated = stated_timeframe(timeframe)
    # Before the file is read, because reading takes minutes for many bars.
    write = await asyncio.to_thread(_writer_for, out)
    table = await asyncio.to_thread(lambda: new_table(name, columns, only=symbol))
    await fill(table, name)
    _refuse_unreadable(table, name)
    bars = _Bars(table, _known_lengths(table, stated, name))
    content = await asyncio.to_thread(write, bars, is_long=len(table.symbols) > 1)
    try:
        await asyncio.to_thread(replace_file, out, content)
    except OSError as e:
        raise OptionError("--out", f"{out} ({e.strerror})", "a file in a folder that can be written") from e
    return Conversion(
        file=name,
        out=str(out),
        symbols=tuple(bars.written),
        repeats=bars.repeats,
        others=table.others,
        out_of_order=sum(len(each.out_of_order) for each in table.symbols.values()),
        unread=table.unread,
    )


def _refuse_unreadable(table: BarTable, name: str) -> None:
    # Refused, because a file without these rows would look complete.
    if table.errors:
        raise table.errors[0]
    if not table.symbols:
        listed = ", ".join(list(table.others)[:MOST_SYMBOLS])
        was = f"{name}, with rows of {listed}" if listed else f"{name}, which holds no bar"
        raise OptionError("FILE", was, "a file with bars of the symbol")


def _known_lengths(table: BarTable, stated: Timeframe | None, name: str) -> dict[str, Timeframe]:
    known: dict[str, Timeframe] = {}
    for symbol, timeframe in table.lengths(trading.BASE, stated).items():
        if timeframe is None:
            was = f"{name}, {table.symbols[symbol].length.description}"
            raise OptionError(
                "FILE", was, f"bars of {', '.join(Timeframe)}, or their length with --timeframe"
            )
        known[symbol] = timeframe
    return known


class _Bars:
    """The bars of a table without repetitions, by symbol and in order of time. Iterate it once."""

    def __init__(self, table: BarTable, lengths: Mapping[str, Timeframe]) -> None:
        self.repeats = 0
        self.written: list[ConvertedSymbol] = []
        self._table = table
        self._lengths = lengths

    def __iter__(self) -> Iterator[Bar]:
        for symbol, timeframe in self._lengths.items():
            yield from self._of(symbol, timeframe)

    def _of(self, symbol: str, timeframe: Timeframe) -> Iterator[Bar]:
        continuity = Continuity(self._table.source, symbol, timeframe)
        first, last, count = None, None, 0
        for row, item in self._table.bars(symbol, timeframe):
            if isinstance(item, BarFormatError):
                raise item
            if any(isinstance(each, Duplicate) for each in continuity.admit(row.line, item)):
                self.repeats += 1
                continue
            first, last, count = first or item, item, count + 1
            yield item
        if first is not None and last is not None:
            self.written.append(
                ConvertedSymbol(
                    symbol=symbol,
                    timeframe=str(timeframe),
                    bars=count,
                    first_open=first.open_time,
                    last_close=last.close_time,
                )
            )


def _csv(bars: Iterable[Bar], *, is_long: bool) -> bytes:
    """Return bars as CSV, with all their digits."""
    lines = [",".join((*(["symbol"] * is_long), *BAR_COLUMNS))]
    lines += (f"{bar.symbol},{bar_row(bar)}" if is_long else bar_row(bar) for bar in bars)
    return "".join(f"{line}\n" for line in lines).encode()


def _gzip(bars: Iterable[Bar], *, is_long: bool) -> bytes:
    # Without the time, so that equal bars give equal bytes.
    return gzip.compress(_csv(bars, is_long=is_long), mtime=0)


def _parquet(bars: Iterable[Bar], *, is_long: bool) -> bytes:
    """Return bars as Parquet. Raises `OptionError` if a number has more digits than a float."""
    with extra_named():
        polars = import_module("polars")
    columns: dict[str, list[object]] = {name: [] for name in (*(["symbol"] * is_long), *BAR_COLUMNS)}
    for bar in bars:
        for name, cells in columns.items():
            value = getattr(bar, name)
            cells.append(_float(bar, name, value) if name in PRICES else value)
    schema: dict[str, Any] = {"symbol": polars.String} if is_long else {}
    schema |= {"open_time": polars.Datetime("us", "UTC"), **dict.fromkeys(PRICES, polars.Float64)}
    # Whole, because a float would be written with a fraction.
    schema |= {"trades": polars.Int64}
    packed = BytesIO()
    polars.DataFrame(columns, schema={name: schema[name] for name in columns}).write_parquet(packed)
    return packed.getvalue()


def _float(bar: Bar, field: str, value: Decimal | None) -> float | None:
    if value is None:
        return None
    # Because otherwise the bar would be another one after a conversion.
    if Decimal(repr(float(value))) != value:
        was = f"a .parquet file, and {field} of {bar.symbol} at {bar.open_time.isoformat()} is {value}"
        raise OptionError("--out", was, "a .csv or .csv.gz file, because a float has fewer digits")
    return float(value)


WRITERS: Final[Mapping[str, Callable[..., bytes]]] = MappingProxyType({
    ".csv": _csv,
    ".csv.gz": _gzip,
    ".parquet": _parquet,
})
"""The forms by the ending of the new file."""


def _writer_for(out: Path) -> Callable[..., bytes]:
    write = next((each for ending, each in WRITERS.items() if out.name.endswith(ending)), None)
    if write is None:
        raise OptionError("--out", out, f"a file that ends in {', '.join(WRITERS)}")
    if out.exists():
        raise OptionError("--out", f"{out}, which exists", "the name of a new file")
    return write
