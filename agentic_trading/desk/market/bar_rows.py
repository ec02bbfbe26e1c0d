"""Read bars from lines of CSV or JSON. Errors name the line and the column."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.desk.market.bar import EPOCH, Bar, Timeframe
from agentic_trading.desk.market.errors import BarError, BarFormatError

NUMBER: Final = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")
WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
EPOCH_DIGITS: Final = re.compile(r"[0-9]+")
MICROSECONDS_PER_TICK: Final = {13: 1_000, 16: 1}  # by number of digits; 16 since 2025 in kline files


def number(text: str) -> Decimal | None:
    """Return a decimal number with all its digits. Separators, infinities and NaN are not accepted."""
    return Decimal(text) if NUMBER.fullmatch(text) else None


def whole(text: str) -> int | None:
    """Return a whole number of at most 18 digits."""
    return int(text) if WHOLE.fullmatch(text) else None


def parse_time(text: str) -> datetime | None:
    """Return a time given in epoch milliseconds, epoch microseconds or ISO 8601 (UTC if it has no offset)."""
    try:
        if EPOCH_DIGITS.fullmatch(text):
            tick = MICROSECONDS_PER_TICK.get(len(text))
            return None if tick is None else EPOCH + timedelta(microseconds=int(text) * tick)
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class Cell:
    """The parser of one field, a description of the allowed texts, and whether the field is required."""

    read: Callable[[str], object | None]
    allowed: str
    required: bool = True


_NUMBER = Cell(number, "a decimal number such as 27953.83")

CELLS: Final[Mapping[str, Cell]] = MappingProxyType({
    "open_time": Cell(parse_time, "epoch milliseconds (13 digits), microseconds (16) or an ISO 8601 time"),
    "open": _NUMBER,
    "high": _NUMBER,
    "low": _NUMBER,
    "close": _NUMBER,
    "volume": _NUMBER,
    "quote_volume": Cell(number, "a decimal number, or nothing", required=False),
    "trades": Cell(whole, "a whole number, or nothing", required=False),
    "taker_buy_volume": Cell(number, "a decimal number, or nothing", required=False),
})


REQUIRED: Final = tuple(field for field, cell in CELLS.items() if cell.required)
OPEN_TIMES: Final = ("timestamp", "time", "datetime", "date")
ALIASES: Final = {
    **dict.fromkeys(OPEN_TIMES, "open_time"),
    "quote_asset_volume": "quote_volume",
    "number_of_trades": "trades",
    "trade_count": "trades",
    "count": "trades",
    "taker_buy_base_asset_volume": "taker_buy_volume",
}
NOT_READ: Final = (
    "close_time",
    "taker_buy_quote_asset_volume",
    "taker_buy_quote_volume",
    "ignore",
    "vwap",
    "adj_close",  # because it is adjusted for later splits and dividends, it would be look-ahead
)
IDENTITY: Final = ("symbol", "timeframe")
COLUMNS: Final = (*CELLS, *ALIASES, *NOT_READ, *IDENTITY)

KLINE: Final = (
    *REQUIRED,
    "close_time",
    "quote_volume",
    "trades",
    "taker_buy_volume",
    "taker_buy_quote_asset_volume",
    "ignore",
)
WITHOUT_HEADER: Final = {len(layout): layout for layout in (REQUIRED, tuple(CELLS), KLINE)}

LONGEST_LINE_BYTES: Final = 65_536
MOST_NAMES: Final = 256
"""Maximum number of column names of a source that are remembered. Every JSON line may have other names."""

BINARY: Final = (
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "gzip data without the ending .gz"),
    (b"PAR1", "a Parquet file"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
"""The first bytes of files that are often mistaken for CSV."""

Pairs = Iterable[tuple[str, object]]


class BarRows:
    """Reads the bars of one source, line by line.

    A line is one row of CSV or one JSON object. The columns of CSV are named by a header before the first
    row. Without a header, the number of columns determines them: 6 (the required ones), 9 (the shipped files)
    or 12 (the kline files of exchanges). Blank lines and lines that start with `#` are skipped.

    `COLUMNS` are all known names. Case does not matter, and a blank counts as `_`. Other columns are ignored,
    and their names are added to `unknown`. `symbol` and `timeframe` are optional columns, but must be those
    of the source.
    """

    def __init__(self, source: str, symbol: str, timeframe: Timeframe) -> None:
        self.symbol = symbol
        self._source = source
        self._identity = {"symbol": symbol, "timeframe": timeframe.value}
        self._header: tuple[str, ...] | None = None
        self._fields: dict[str, str] = {}
        self.unknown: list[str] = []
        self._last: Bar | None = None

    def read(self, line: int, raw: bytes) -> Bar | None:
        """Return the bar on line `line` (from 1), or None for a header, a comment or a blank line.

        Raises:
            BarFormatError: If the line is not a bar. It has the line, the column, the value and the allowed
                values.

        """
        text = line_text(self._source, line, raw).strip()
        if not text or text.startswith("#"):
            return None
        if text.startswith("{"):
            return self._bar(line, self._json_pairs(line, text))
        cells = self._csv_cells(line, text)
        if self._header is None:
            if cells[0][:1].isalpha():
                self._header = self._checked_names(line, cells)
                return None
            self._header = self._layout_of(line, cells)
        if len(cells) != len(self._header):
            allowed = f"{len(self._header)} cells: {', '.join(self._header)}"
            raise self._error(line, "(row)", f"{len(cells)} cells", allowed)
        return self._bar(line, zip(self._header, cells, strict=True))

    def _csv_cells(self, line: int, text: str) -> list[str]:
        if '"' not in text:
            return [cell.strip() for cell in text.split(",")]
        try:
            return [cell.strip() for cell in next(csv.reader([text]))]
        except csv.Error as e:
            raise self._error(line, "(row)", text[:80], "one row of CSV on one line") from e

    def _json_pairs(self, line: int, text: str) -> Pairs:
        try:
            pairs = json.loads(
                text, parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=list
            )
        except (ValueError, RecursionError) as e:
            raise self._error(line, "(row)", text[:80], "one JSON object on one line") from e
        self._checked_names(line, [name for name, _ in pairs])
        return [(name, "" if value is None else value) for name, value in pairs]

    def _layout_of(self, line: int, cells: Sequence[str]) -> tuple[str, ...]:
        if len(cells) not in WITHOUT_HEADER:
            counts = ", ".join(str(count) for count in WITHOUT_HEADER)
            raise self._error(line, "(row)", f"{len(cells)} cells", f"a header first, or {counts} cells")
        return WITHOUT_HEADER[len(cells)]

    def _checked_names(self, line: int, names: Sequence[str]) -> tuple[str, ...]:
        seen: set[str] = set()
        for name in names:
            field = self._field(name)
            if field in seen and field in CELLS:
                raise self._error(line, name, name, f"one column for {field}")
            seen.add(field)
        for field in REQUIRED:
            if field not in seen:
                all_of = ", ".join(REQUIRED).replace("open_time", f"open_time (or {', '.join(OPEN_TIMES)})")
                raise self._error(line, field, None, f"a column for each of {all_of}")
        return tuple(names)

    def _field(self, name: str) -> str:
        """Return the field of a column. A name that is not in `COLUMNS` is added to `unknown` once."""
        field = self._fields.get(name)
        if field is None:
            plain = "_".join(name.lower().split())
            field = ALIASES.get(plain, plain)
            if len(self._fields) < MOST_NAMES:
                self._fields[name] = field
                if plain not in COLUMNS:
                    self.unknown.append(name)
        return field

    def _bar(self, line: int, pairs: Pairs) -> Bar:
        columns: dict[str, str] = {}
        values: dict[str, Any] = dict(self._identity)
        for column, text in pairs:
            field = self._field(column)
            columns[field] = column
            cell = CELLS.get(field)
            if cell is not None:
                value = cell.read(text) if isinstance(text, str) else None
                if value is None and (text != "" or cell.required):
                    raise self._error(line, column, text, cell.allowed)
                values[field] = value
            elif field in IDENTITY and text != self._identity[field]:
                raise self._error(line, column, text, self._identity[field])
        try:
            bar = Bar.model_validate(values)
        except BarError as e:
            allowed = e.allowed + (self._distance(values["open_time"]) if e.field == "open_time" else "")
            raise self._error(line, columns[e.field], str(e.value), allowed) from e
        self._last = bar
        return bar

    def _distance(self, open_time: datetime) -> str:
        """Return a hint for a bar off the grid: its distance from the bar before, often another length."""
        if self._last is None:
            return ""
        return f". It opens {open_time - self._last.open_time} after the bar before, and bars of another length are not traded"

    def _error(self, line: int, column: str, value: object, allowed: str) -> BarFormatError:
        return BarFormatError(self._source, line, column, value, allowed)


def line_text(source: str, line: int, raw: bytes) -> str:
    """Return a line as text.

    Raises `BarFormatError` for binary data and for more than `LONGEST_LINE_BYTES`.
    """
    if b"\0" not in raw:
        if len(raw) > LONGEST_LINE_BYTES:
            allowed = f"at most {LONGEST_LINE_BYTES} bytes a line"
            raise BarFormatError(source, line, "(row)", f"{len(raw)} bytes", allowed)
        try:
            return raw.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError:
            pass
    begins = next((kind for start, kind in BINARY if raw.startswith(start)), "bytes that are not UTF-8 text")
    raise BarFormatError(source, line, "(row)", begins, "UTF-8 text: CSV or JSON lines, plain or .gz")
