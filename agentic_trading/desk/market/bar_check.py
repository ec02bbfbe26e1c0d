"""Check the bars of a symbol: order, repetitions, gaps, contradictions, volume and suspected splits."""

from datetime import datetime
from enum import StrEnum
from typing import Final

from pydantic import BaseModel

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.bar_table import BarTable, SymbolRows, TableRow
from agentic_trading.desk.market.calendar import Calendar
from agentic_trading.desk.market.errors import BarError, BarSequenceError
from agentic_trading.desk.market.feed import Continuity, Duplicate, Gap

MOST_PLACES: Final = 5
"""Maximum number of places of a finding."""
LEAST_IDLE_BARS: Final = 10
"""The least number of bars without volume in a row. Fewer are usual in a thin market."""
SPLITS: Final = (
    *((2, 3), (3, 2)),
    *((whole, 1) for whole in (2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 30, 50, 100)),
    *((1, whole) for whole in (2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 30, 50, 100)),
)
"""The usual splits: shares after it, for shares before it."""
SPLIT_TOLERANCE: Final = 0.05
"""The move of a price on the day of a split that does not hide the split."""


class FindingKind(StrEnum):
    """The kinds of findings about bars."""

    UNREADABLE = "unreadable"
    EMPTY = "no bars"
    LENGTH = "no length"
    ORDER = "order"
    CONFLICT = "conflict"
    VALUES = "values"
    GAP = "gap"
    REPEAT = "repeat"
    NO_VOLUME = "no volume"
    SPLIT = "split"

    @property
    def stops_run(self) -> bool:
        """Whether a run refuses the file, or ends at the first place."""
        return self not in _WARNINGS


_WARNINGS: Final = frozenset({
    FindingKind.GAP,
    FindingKind.REPEAT,
    FindingKind.NO_VOLUME,
    FindingKind.SPLIT,
})


class BarPlace(BaseModel, frozen=True):
    """A place of a finding. `line` counts from 1. It is None for a whole file or symbol."""

    line: int | None = None
    open_time: datetime | None = None
    detail: str


class BarFinding(BaseModel, frozen=True):
    """All places of one kind in the bars of one symbol.

    Attributes:
        stops_run: Whether a run refuses the file, or ends at the first place.
        count: The number of places.
        places: The first places, at most `MOST_PLACES`.

    """

    kind: FindingKind
    stops_run: bool
    count: int
    places: tuple[BarPlace, ...]


class FoundPlaces:
    """Collects places by kind."""

    def __init__(self) -> None:
        self._counts: dict[FindingKind, int] = {}
        self._places: dict[FindingKind, list[BarPlace]] = {}

    def add(
        self, kind: FindingKind, detail: str, row: TableRow | None = None, *, line: int | None = None
    ) -> None:
        """Add a place: a row, a line, or neither for the whole source."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        places = self._places.setdefault(kind, [])
        if len(places) < MOST_PLACES:
            at = (line, None) if row is None else (row.line, row.open_time)
            places.append(BarPlace(line=at[0], open_time=at[1], detail=detail))

    def count(self, kind: FindingKind, more: int) -> None:
        """Count places of a kind that are not listed."""
        self._counts[kind] = self._counts.get(kind, 0) + more

    def listed(self) -> tuple[BarFinding, ...]:
        """Return the findings. Those that stop a run are first."""
        return tuple(
            BarFinding(
                kind=kind,
                stops_run=kind.stops_run,
                count=self._counts[kind],
                places=tuple(self._places[kind]),
            )
            for kind in FindingKind
            if kind in self._counts
        )


class SymbolCheck(BaseModel, frozen=True):
    """The bars of one symbol, with the findings. Times are None without a bar."""

    symbol: str
    timeframe: str
    bars: int
    first_open: datetime | None
    last_close: datetime | None
    findings: tuple[BarFinding, ...]


def check_symbol(
    table: BarTable,
    symbol: str,
    timeframe: Timeframe | None,
    *,
    calendar: Calendar | None = None,
) -> SymbolCheck:
    """Check the bars of a symbol in order of time.

    Args:
        table: The rows.
        symbol: A symbol of the table.
        timeframe: The length of the bars, or None if no length fits their times.
        calendar: The open times of a market that is not always open.

    """
    rows = table.symbols[symbol]
    findings = FoundPlaces()
    _check_order(rows, findings)
    if timeframe is None:
        findings.add(FindingKind.LENGTH, f"{rows.length.description.partition(' ')[2]}. Use --timeframe")
        return SymbolCheck(
            symbol=symbol, timeframe="", bars=0, first_open=None, last_close=None, findings=findings.listed()
        )
    check = _Bars(Continuity(table.source, symbol, timeframe, calendar), findings)
    for row, item in table.bars(symbol, timeframe):
        if isinstance(item, Bar):
            check.add(row, item)
        else:
            is_bar = isinstance(item.__cause__, BarError)
            kind = FindingKind.VALUES if is_bar else FindingKind.UNREADABLE
            findings.add(kind, f"{item.column} {item.value}; allowed: {item.allowed}", row)
    check.end()
    return SymbolCheck(
        symbol=symbol,
        timeframe=str(timeframe),
        bars=check.bars,
        first_open=check.first_open,
        last_close=None if check.last is None else check.last.close_time,
        findings=findings.listed(),
    )


def _check_order(rows: SymbolRows, findings: FoundPlaces) -> None:
    """Add the rows that are earlier than the row before them, and a single place for newest first."""
    if rows.is_newest_first:
        # One place, because each row of such a file is earlier than the row before.
        findings.add(FindingKind.ORDER, "newest first. Use `data convert`", rows.rows[0])
        return
    for last, row in rows.out_of_order:
        findings.add(
            FindingKind.ORDER,
            f"earlier than line {last.line}, {_text(last.open_time)}. Use `data convert`",
            row,
        )


class _Bars:
    """Checks bars in order of time, one after the other."""

    def __init__(self, continuity: Continuity, findings: FoundPlaces) -> None:
        self.bars = 0
        self.first_open: datetime | None = None
        self.last: Bar | None = None
        self._continuity = continuity
        self._findings = findings
        self._idle_row: TableRow | None = None
        self._idle_bars = 0

    def add(self, row: TableRow, bar: Bar) -> None:
        try:
            items = self._continuity.admit(row.line, bar)
        except BarSequenceError as e:
            self._findings.add(FindingKind.CONFLICT, f"{e.field} {e.value}; allowed: {e.allowed}", row)
            return
        for item in items:
            if isinstance(item, Gap):
                detail = f"{item.missing:,} missing from {_text(item.after)}"
                self._findings.add(FindingKind.GAP, detail, row)
            elif isinstance(item, Duplicate):
                self._findings.add(FindingKind.REPEAT, "equal to the bar before", row)
                return
        self._check_split(row, bar)
        self._check_volume(row, bar)
        self.bars += 1
        self.first_open = self.first_open or bar.open_time
        self.last = bar

    def end(self) -> None:
        """Add the last stretch of bars without volume."""
        self._end_idle("all bars" if self._idle_bars == self.bars else "")

    def _end_idle(self, bars: str = "") -> None:
        if self._idle_row is not None and self._idle_bars >= LEAST_IDLE_BARS:
            bars = bars or f"{self._idle_bars:,} bars"
            self._findings.add(FindingKind.NO_VOLUME, f"{bars} without volume", self._idle_row)
        self._idle_row, self._idle_bars = None, 0

    def _check_volume(self, row: TableRow, bar: Bar) -> None:
        if bar.volume:
            self._end_idle()
            return
        self._idle_row = self._idle_row or row
        self._idle_bars += 1

    def _check_split(self, row: TableRow, bar: Bar) -> None:
        last = self.last
        # A single wrong price is no split, because the prices of the bar overlap those of the bar before.
        if last is None or (bar.low <= last.high and bar.high >= last.low):
            return
        # The open, because the rest of the day moves the price away from the ratio.
        ratio = float(last.close / bar.open)
        after, before = min(SPLITS, key=lambda split: abs(ratio * split[1] / split[0] - 1))
        if abs(ratio * before / after - 1) <= SPLIT_TOLERANCE:
            detail = f"close {last.close}, open {bar.open}, as in a split of {after} for {before}"
            self._findings.add(FindingKind.SPLIT, detail, row)


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}" if moment.second == 0 else f"{moment:%Y-%m-%d %H:%M:%S}"
