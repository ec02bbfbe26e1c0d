"""Daily prices of many stocks as arrays with filled gaps, and rebalance days."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final, Literal, Self, assert_never

from agentic_trading.desk.market.errors import EmptyUniverseError, PanelValueError
from agentic_trading.desk.market.samples import SP500, PanelSample, packed_bytes, unpacked
from agentic_trading.errors import extra_named

with extra_named():
    import numpy as np
    from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Days = NDArray[np.datetime64]

Resample = Literal["D", "W", "M"]
"""The days on which a portfolio is rebalanced: each bar, weekly, or monthly."""

FILLED_BARS: Final = 5
"""The maximum length of a filled gap. After more bars without a price, a stock counts as vanished."""
COLUMNS: Final = ("open", "high", "low", "close", "volume")
PRICE: Final = "a number above 0"
VOLUME: Final = "a number, 0 or more"


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """The bars of many stocks, one row per day and one column per symbol.

    Without a bar the prices are NaN and the volume is 0. The arrays are read-only and use earlier days only.

    Attributes:
        sha256: The digest of the panel's file, or empty.
        filled: `close` with gaps of up to `FILLED_BARS` filled by the last close, as strategy code gets it.
            NaN where a stock has vanished. No trade uses a filled price.
        marks: The last close so far, however old. 0 before the first close.

    """

    name: str
    sha256: str
    days: Days
    symbols: tuple[str, ...]
    open: Floats
    high: Floats
    low: Floats
    close: Floats
    volume: Floats
    filled: Floats
    marks: Floats

    @classmethod
    def of(
        cls, name: str, days: Days, symbols: Sequence[str], columns: Mapping[str, Floats], *, sha256: str = ""
    ) -> Self:
        """Build a panel from arrays by name.

        Args:
            name: The name of the panel in errors.
            days: The day of each row.
            symbols: The symbol of each column.
            columns: `close`, and any other of `COLUMNS`. The default of a price column is the close, and of
                the volume 0.
            sha256: The digest of the panel's file.

        Raises:
            PanelValueError: If a price is not above 0, is missing where the close is not, or is there without
                a close. Also for a volume below 0.
            EmptyUniverseError: If fewer than two stocks have a price.

        """
        close = columns["close"]
        missing = np.isnan(close)
        arrays = {column: np.array(columns.get(column, close), dtype=np.float64) for column in COLUMNS[:-1]}
        for column, values in arrays.items():
            _check(name, days, symbols, column, values, (np.isnan(values) != missing) | (values <= 0), PRICE)
        volume = np.where(missing, 0.0, columns.get("volume", np.zeros_like(close)))
        _check(name, days, symbols, "volume", volume, ~(volume >= 0), VOLUME)
        priced = int((~missing).any(axis=0).sum())
        if priced < 2:
            raise EmptyUniverseError(name, priced)
        filled, marks = fill_gaps(close, FILLED_BARS), np.nan_to_num(fill_gaps(close, len(close)))
        for array in (*arrays.values(), volume, filled, marks):
            array.setflags(write=False)
        return cls(name, sha256, days, tuple(symbols), **arrays, volume=volume, filled=filled, marks=marks)

    @classmethod
    def of_bars(
        cls, name: str, cells: Mapping[tuple[date, str], Sequence[float]], *, sha256: str = ""
    ) -> Self:
        """Build a panel from the `COLUMNS` of each bar by day and symbol.

        Raises the same errors as `of`.
        """
        days, symbols = sorted({day for day, _ in cells}), sorted({symbol for _, symbol in cells})
        bars, stocks = ({each: place for place, each in enumerate(axis)} for axis in (days, symbols))
        table = np.full((len(COLUMNS), len(days), len(symbols)), np.nan)
        for (day, symbol), values in cells.items():
            table[:, bars[day], stocks[symbol]] = values
        dated = np.array(days, dtype="datetime64[D]")
        return cls.of(name, dated, symbols, dict(zip(COLUMNS, table, strict=True)), sha256=sha256)


def _check(
    name: str, days: Days, symbols: Sequence[str], column: str, values: Floats, wrong: Flags, allowed: str
) -> None:
    wrong = wrong | np.isinf(values)
    if wrong.any():
        bar, stock = np.argwhere(wrong)[0]
        day: date = days[bar].item()
        raise PanelValueError(name, symbols[stock], day, column, values[bar, stock], allowed)


def fill_gaps(close: Floats, most: int) -> Floats:
    """Return prices with the first `most` bars of each gap filled by the last price.

    The rest of a gap is NaN.
    """
    bars = np.arange(len(close))[:, None]
    latest = np.maximum.accumulate(np.where(np.isnan(close), -1, bars), axis=0)
    filled = np.take_along_axis(close, np.maximum(latest, 0), axis=0)
    return np.where(bars - latest <= most, filled, np.nan)


def load_panel(sample: PanelSample = SP500) -> Panel:
    """Return a shipped panel. Reads a file, so call it outside the event loop.

    Raises:
        SampleDamagedError: If the file's bytes are not the shipped ones.

    """
    text = unpacked(sample, packed_bytes(sample)).decode()
    return read_panel(sample.name, text.splitlines(), sha256=sample.sha256)


def read_panel(name: str, lines: Iterable[str], *, sha256: str = "") -> Panel:
    """Return the panel in a CSV file with the columns `date`, `symbol` and `COLUMNS`.

    Rows may be in any order. A stock without a row for a day has a gap there.

    Raises:
        PanelValueError: With symbol and date, for an invalid date, a missing or invalid number, a price that
            is not above 0, a volume below 0, or a second row for one day.
        EmptyUniverseError: If fewer than two stocks have a price.

    """
    cells: dict[tuple[date, str], list[float]] = {}
    for row in csv.DictReader(lines):
        symbol, written = row["symbol"], row["date"]
        try:
            day = date.fromisoformat(written)
        except ValueError as e:
            raise PanelValueError(name, symbol, written, "date", written, "YYYY-MM-DD") from e
        if (day, symbol) in cells:
            raise PanelValueError(name, symbol, day, "date", "there twice", "one row a stock and day")
        cells[day, symbol] = [_number(name, symbol, day, column, row[column]) for column in COLUMNS]
    return Panel.of_bars(name, cells, sha256=sha256)


def _number(panel: str, symbol: str, day: date, column: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    is_volume = column == "volume"
    if not (value >= 0 if is_volume else value > 0):
        raise PanelValueError(panel, symbol, day, column, text, VOLUME if is_volume else PRICE)
    return value


def rebalance_mask(days: Days, resample: Resample, offset: int = 0) -> Flags:
    """Return which days are rebalance days. Each is known on the day itself.

    `D` is every bar, and `M` the first bar of each month. `W` is the first bar of the ISO week on or after
    Monday + `offset`. A week without such a bar has no rebalance day. Only `W` uses `offset`.
    """
    match resample:
        case "D":
            return np.ones(len(days), dtype=np.bool_)
        case "W":
            since_monday = days.astype("datetime64[D]").astype(np.int64) + 3  # 1970-01-01 was a Thursday
            week = np.where(since_monday % 7 >= offset, since_monday // 7, -1)
            return _first_of_each(week) & (week >= 0)
        case "M":
            return _first_of_each(days.astype("datetime64[M]").astype(np.int64))
        case _:
            assert_never(resample)


def _first_of_each(period: NDArray[np.int64]) -> Flags:
    first = np.zeros(len(period), dtype=np.bool_)
    first[np.unique(period, return_index=True)[1]] = True
    return first
