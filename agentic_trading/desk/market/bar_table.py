"""The rows of a source by symbol, which are put in order of time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.bar_length import HEAD_ROWS, BarLength
from agentic_trading.desk.market.bar_rows import NO_COLUMNS, BarRows, is_symbol_of
from agentic_trading.desk.market.errors import BarFormatError

MOST_ERRORS: Final = 100


@dataclass(frozen=True, slots=True, order=True)
class TableRow:
    """A row that is not read yet, except for its open time."""

    open_time: datetime
    line: int
    raw: bytes


@dataclass(slots=True)
class SymbolRows:
    """The rows of one symbol in the order of the source."""

    rows: list[TableRow] = field(default_factory=list)

    def in_order(self) -> list[TableRow]:
        """Return the rows in order of time. Rows of one time stay in the order of the source."""
        return sorted(self.rows)

    @property
    def out_of_order(self) -> list[tuple[TableRow, TableRow]]:
        """The rows that are earlier than the row before them, each after that row."""
        return [(last, row) for last, row in pairwise(self.rows) if row.open_time < last.open_time]

    @property
    def is_newest_first(self) -> bool:
        """Whether no row is later than the one before it, and not all have one time."""
        return BarLength([row.open_time for row in self.rows]).is_newest_first

    @property
    def length(self) -> BarLength:
        """The length of the bars, by the step rule on the first of them."""
        return BarLength([row.open_time for row in self.in_order()[:HEAD_ROWS]])


class BarTable:
    """The rows of a source with one or several symbols.

    Rows are kept as bytes, because bars would take five times the memory.

    Args:
        source: The name of the source in errors.
        symbol: The symbol of the rows of a source without a column of symbols.
        columns: The names of columns by field, for names that are not known.
        only: The symbol whose rows are kept. Empty for all.

    Attributes:
        symbols: The rows by symbol.
        errors: The first rows without a readable time or symbol, at most `MOST_ERRORS`.
        unreadable: The number of all these rows.
        others: The number of rows of other symbols than `only`.

    """

    def __init__(
        self, source: str, symbol: str, columns: Mapping[str, str] = NO_COLUMNS, *, only: str = ""
    ) -> None:
        self.source = source
        self.symbols: dict[str, SymbolRows] = {}
        self.errors: list[BarFormatError] = []
        self.unreadable = 0
        self.others: dict[str, int] = {}
        self._columns = columns
        self._only = only
        self._rows = BarRows(source, symbol, Timeframe.S1, columns)
        self._head: list[tuple[int, bytes]] = []

    @property
    def unread(self) -> tuple[str, ...]:
        """The names of the columns that are not read."""
        return tuple(self._rows.unknown)

    @property
    def has_symbols(self) -> bool:
        """Whether a column has the symbol of each row."""
        return self._rows.has_symbols

    def add(self, line: int, raw: bytes) -> None:
        """Add a line of the source.

        Raises:
            BarFormatError: If the columns are not known, so that no later line can be read either.

        """
        try:
            found = self._rows.symbol_and_time(line, raw)
        except BarFormatError as e:
            if not self._rows.has_columns:
                raise
            self.unreadable += 1
            if len(self.errors) < MOST_ERRORS:
                self.errors.append(e)
            return
        if found is None:
            # A later header is a row that cannot be read, because no reader of one symbol begins with it.
            if not self.symbols:
                self._head.append((line, raw))
            return
        symbol, open_time = found
        if is_symbol_of(symbol, self._only):
            symbol = self._only
        if self._only not in {"", symbol}:
            self.others[symbol] = self.others.get(symbol, 0) + 1
            return
        self.symbols.setdefault(symbol, SymbolRows()).rows.append(TableRow(open_time, line, raw))

    def lengths(self, single: Timeframe, stated: Timeframe | None = None) -> dict[str, Timeframe | None]:
        """Return the length of the bars of each symbol, or None if no length fits their times.

        A symbol with a single bar has the length of the first other symbol, or `single`. `stated` is the
        length of all, if it is given.
        """
        if stated is not None:
            return dict.fromkeys(self.symbols, stated)
        found = {symbol: rows.length for symbol, rows in self.symbols.items()}
        # A single bar has no step, and a file seldom mixes lengths, so that another symbol shows its length.
        known = [length.timeframe for length in found.values() if length.timeframe is not None]
        alone = next(iter(known), single)
        return {symbol: length.timeframe if length.has_steps else alone for symbol, length in found.items()}

    def bars(self, symbol: str, timeframe: Timeframe) -> Iterator[tuple[TableRow, Bar | BarFormatError]]:
        """Yield the rows of a symbol in order of time, each with its bar or its error."""
        reader = BarRows(self.source, symbol, timeframe, self._columns)
        # The header first, because the first row in order of time may be the last one of the source.
        for line, raw in self._head:
            reader.read(line, raw)
        for row in self.symbols[symbol].in_order():
            try:
                bar = reader.read(row.line, row.raw)
            except BarFormatError as e:
                yield row, e
                continue
            if bar is not None:
                yield row, bar
