"""Read bars from lines of CSV or JSON. Errors name the line and the column."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.bar_cells import CELLS, DAILY_CELLS, TIMES, joined_time, parse_time
from agentic_trading.desk.market.errors import BarError, BarFormatError

REQUIRED: Final = tuple(field for field, cell in CELLS.items() if cell.required)
OPEN_TIMES: Final = ("timestamp", "time", "datetime", "date", "unix")
ALIASES: Final = {
    **dict.fromkeys(OPEN_TIMES, "open_time"),
    "vol": "volume",
    "quote_asset_volume": "quote_volume",
    "number_of_trades": "trades",
    "trade_count": "trades",
    "count": "trades",
    "taker_buy_base_asset_volume": "taker_buy_volume",
    "ticker": "symbol",
}
ADJUSTED: Final = ("adj_close", "adjclose", "adjusted_close")
"""Closes that are adjusted for later splits and dividends. As a price they would be look-ahead."""
IDENTITY: Final = ("symbol", "timeframe")
COLUMNS: Final = (*CELLS, *ALIASES, *IDENTITY)

KLINE: Final = (
    *REQUIRED,
    "close_time",
    "quote_volume",
    "trades",
    "taker_buy_volume",
    "taker_buy_quote_asset_volume",
    "ignore",
)
TRADED: Final = (*REQUIRED, "trades")
WITHOUT_HEADER: Final = {len(layout): layout for layout in (REQUIRED, TRADED, tuple(CELLS), KLINE)}
"""The columns of a file without a header, by their count: our own, those of Kraken and those of Binance."""

LONGEST_LINE_BYTES: Final = 65_536
LONGEST_SYMBOL: Final = 64
SYMBOL_NAME: Final = re.compile(r"\w[\w.]{0,63}")
"""The symbols of sources. They are parts of file names, ids and options, so that `/` and `-` are not allowed."""
MOST_NAMES: Final = 256
"""Maximum number of column names of a source that are remembered. Every JSON line may have other names."""

BINARY: Final = (
    (b"PK\x03\x04", "a ZIP archive without the ending .zip"),
    (b"\x1f\x8b", "gzip data without the ending .gz"),
    (b"PAR1", "a Parquet file without the ending .parquet"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
"""The first bytes of files that are often mistaken for CSV."""

_DATE: Final = "(date)"
_TIME_OF_DAY: Final = "(time)"
_NOT_READ: Final = "(not read)"
_INDEX_NAMES: Final = frozenset({"unnamed:_0", "__index_level_0__"})
"""The names that pandas gives to an index without a name."""
_SEPARATORS: Final = (",", ";", "\t")
NO_COLUMNS: Final[Mapping[str, str]] = MappingProxyType({})


def symbol_name(text: str) -> str:
    """Return the symbol of a source that finds the rows of `text`, such as BTCUSDT for BTC/USDT."""
    return text if SYMBOL_NAME.fullmatch(text) else _letters(text)[:LONGEST_SYMBOL]


def is_symbol_of(text: str, symbol: str) -> bool:
    """Return whether `text` in a row is the symbol of a source, or the same letters and digits in another form."""
    return text == symbol or (not SYMBOL_NAME.fullmatch(text) and _letters(text) == _letters(symbol))


def _letters(symbol: str) -> str:
    return "".join(filter(str.isalnum, symbol))


def plain_name(name: str) -> str:
    """Return the name of a column in lower case, without `<>`, and with `_` for blanks."""
    plain = "_".join(name.strip().removeprefix("<").removesuffix(">").lower().split())
    return "" if plain in _INDEX_NAMES else plain


class BarRows:
    """Reads the bars of one source, line by line.

    A line is one row of CSV or one JSON object. The columns of CSV are named by a header before the first
    row, and separated by commas, semicolons or tabs. Without a header, the number of columns determines them:
    6 (the required ones), 7 (with trades), 9 (the shipped files) or 12 (the kline files of exchanges). Blank
    lines and lines that start with `#` are skipped.

    `COLUMNS` are all known names. Case does not matter, and a blank counts as `_`. A column without a name is
    the open time if no other one is. Other columns are ignored, and their names are added to `unknown`.
    `symbol` and `timeframe` are optional columns, but must be those of the source. A symbol in a row that is no
    `SYMBOL_NAME`, such as BTC/USDT, is compared by its letters and digits.

    Args:
        source: The name of the source in errors.
        symbol: The symbol of all bars.
        timeframe: The length of all bars.
        columns: The names of columns by field, for names that are not known.
        skips_others: Whether rows of other symbols are skipped. Their symbols are added to `others`.
        needs_symbol: Whether the column `symbol` is required, because the source has several symbols.

    """

    def __init__(
        self,
        source: str,
        symbol: str,
        timeframe: Timeframe,
        columns: Mapping[str, str] = NO_COLUMNS,
        *,
        skips_others: bool = False,
        needs_symbol: bool = False,
    ) -> None:
        self.symbol = symbol
        self.unknown: list[str] = []
        self.others: list[str] = []
        self._source = source
        self._identity = {"symbol": symbol, "timeframe": timeframe.value}
        self._cells = DAILY_CELLS if timeframe is Timeframe.D1 else CELLS
        self._columns = {plain_name(name): field for field, name in columns.items()}
        self._spelling = ""
        self._skips_others = skips_others
        self._needs_symbol = needs_symbol
        self._separator = ""
        self._has_header = False
        self._names: tuple[str, ...] = ()
        self._fields: tuple[str, ...] = ()
        self._remembered: set[str] = set()
        self._last: Bar | None = None

    def read(self, line: int, raw: bytes) -> Bar | None:
        """Return the bar on line `line` (from 1).

        The result is None for a header, a comment, a blank line, and a skipped row of another symbol.

        Raises:
            BarFormatError: If the line is not a bar. It has the line, the column, the value and the allowed
                values.

        """
        texts = self._texts(line, raw)
        return None if texts is None or self._is_other(line, texts) else self._bar(line, texts)

    def open_time(self, line: int, raw: bytes) -> datetime | None:
        """Return the open time of the bar on a line, and None where `read` returns None.

        Other cells are not checked. A daily bar has the time of its text, not of its date.
        """
        texts = self._texts(line, raw)
        return None if texts is None or self._is_other(line, texts) else self._time(line, texts)

    def symbol_and_time(self, line: int, raw: bytes) -> tuple[str, datetime] | None:
        """Return the symbol and the open time of a row, and None for a header, a comment or a blank line.

        Rows of other symbols are not skipped, and other cells are not checked. Without a column of symbols,
        the symbol is that of the source.
        """
        texts = self._texts(line, raw)
        if texts is None:
            return None
        symbol = self.symbol
        if self.has_symbols:
            place = self._fields.index("symbol")
            symbol = texts[place]
            if not isinstance(symbol, str) or not 0 < len(symbol) <= LONGEST_SYMBOL:
                raise self._error(line, self._names[place], symbol, "the symbol of the row")
        return symbol, self._time(line, texts)

    @property
    def has_columns(self) -> bool:
        """Whether the columns are known: from a header, from the first row, or from a JSON object."""
        return bool(self._names)

    @property
    def has_symbols(self) -> bool:
        """Whether a column has the symbol of each row."""
        return "symbol" in self._fields

    def _time(self, line: int, texts: Sequence[Any]) -> datetime:
        place, text = self._time_text(texts)
        time = parse_time(text) if isinstance(text, str) else None
        if time is None:
            raise self._error(line, self._names[place], text, TIMES)
        return time

    def _texts(self, line: int, raw: bytes) -> Sequence[Any] | None:
        """Return the texts of a line in the order of `self._names`, or None for a line that is not a row."""
        text = line_text(self._source, line, raw).strip(" \r\n\f\v")
        if not text or text.isspace() or text.startswith("#"):
            return None
        if text.startswith("{"):
            pairs = self._json_pairs(line, text)
            self._set_names(line, tuple(name for name, _ in pairs))
            return ["" if value is None else value for _, value in pairs]
        cells = self._csv_cells(line, text)
        if not self._has_header:
            self._has_header = True
            if _is_header(cells):
                self._set_names(line, tuple(cells))
                return None
            self._set_names(line, self._layout_of(line, cells))
        if len(cells) != len(self._names):
            allowed = f"{len(self._names)} cells: {', '.join(self._names)}"
            raise self._error(line, "(row)", f"{len(cells)} cells", allowed)
        return cells

    def _csv_cells(self, line: int, text: str) -> list[str]:
        if not self._separator:
            self._separator = next((each for each in _SEPARATORS if each in text), ",")
        if '"' not in text:
            return [cell.strip() for cell in text.split(self._separator)]
        try:
            return [cell.strip() for cell in next(csv.reader([text], delimiter=self._separator))]
        except csv.Error as e:
            raise self._error(line, "(row)", text[:80], "one row of CSV on one line") from e

    def _json_pairs(self, line: int, text: str) -> list[tuple[str, object]]:
        try:
            pairs: list[tuple[str, object]] = json.loads(
                text, parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=list
            )
        except (ValueError, RecursionError) as e:
            raise self._error(line, "(row)", text[:80], "one JSON object on one line") from e
        return pairs

    def _layout_of(self, line: int, cells: Sequence[str]) -> tuple[str, ...]:
        if len(cells) not in WITHOUT_HEADER:
            counts = ", ".join(str(count) for count in sorted(WITHOUT_HEADER))
            raise self._error(line, "(row)", f"{len(cells)} cells", f"a header first, or {counts} cells")
        return WITHOUT_HEADER[len(cells)]

    def _set_names(self, line: int, names: tuple[str, ...]) -> None:
        """Find the field of each column. A column that is not read is added to `unknown` once."""
        if names == self._names:
            return
        fields = self._fields_of([plain_name(name) for name in names])
        self._check_fields(line, names, fields)
        self._names, self._fields = names, fields
        for name, field in zip(names, fields, strict=True):
            if len(self._remembered) < MOST_NAMES and name not in self._remembered:
                self._remembered.add(name)
                if field == _NOT_READ:
                    self.unknown.append(name or "(no name)")

    def _check_fields(self, line: int, names: Sequence[str], fields: Sequence[str]) -> None:
        """Raise `BarFormatError` unless there is one column for each required field, and at most one otherwise."""
        seen: set[str] = set()
        for name, field in zip(names, fields, strict=True):
            if field in seen and field in CELLS:
                allowed = f"one column for {field}. Choose it with --columns {field}=NAME"
                raise self._error(line, name, name, allowed)
            seen.add(field)
        if self._needs_symbol and "symbol" not in seen:
            allowed = "a header with a column symbol, because the source has several symbols"
            raise BarFormatError(self._source, line, "symbol", None, allowed)
        for missing in (field for field in REQUIRED if field not in seen):
            if missing == "open_time" and _DATE in seen:
                continue
            all_of = ", ".join(REQUIRED).replace("open_time", f"open_time (or {', '.join(OPEN_TIMES)})")
            allowed = f"a column for each of {all_of}. Name another one with --columns {missing}=NAME"
            raise self._error(line, missing, None, allowed)

    def _fields_of(self, plain: Sequence[str]) -> tuple[str, ...]:
        chosen = set(self._columns.values())
        fields = []
        for name in plain:
            field = self._columns.get(name, "")
            if not field:
                usual = ALIASES.get(name, name)
                field = usual if usual in COLUMNS and usual not in chosen else _NOT_READ
            fields.append(field)
        times = [name for name, field in zip(plain, fields, strict=True) if field == "open_time"]
        if sorted(times) == ["date", "time"]:
            parts = {"date": _DATE, "time": _TIME_OF_DAY}
            return tuple(
                parts[name] if field == "open_time" else field
                for name, field in zip(plain, fields, strict=True)
            )
        # Because a data frame writes its index without a name: the time or the number of the row.
        if not times and plain.count("") == 1:
            fields[plain.index("")] = "open_time"
        return tuple(fields)

    def _is_own(self, line: int, text: object) -> bool:
        """Return whether a symbol in a row is that of the source.

        Raises:
            BarFormatError: If an earlier row of the source has another text for it.

        """
        if text == self._spelling:
            return True
        if not isinstance(text, str):
            return False
        if not is_symbol_of(text, self.symbol):
            return False
        # Refused, because they may be two markets, and their bars would be mixed.
        if self._spelling:
            allowed = (
                f"{self._spelling}, as in the rows before, because both are {self.symbol}. Keep one of them"
            )
            raise self._error(line, self._names[self._fields.index("symbol")], text, allowed)
        self._spelling = text
        return True

    def _is_other(self, line: int, texts: Sequence[Any]) -> bool:
        """Return whether a row is of another symbol, and skipped."""
        if not self._skips_others or "symbol" not in self._fields:
            return False
        symbol = texts[self._fields.index("symbol")]
        if self._is_own(line, symbol):
            return False
        if symbol not in self.others and len(self.others) < MOST_NAMES:
            self.others.append(symbol)
        return True

    def _time_text(self, texts: Sequence[Any]) -> tuple[int, Any]:
        """Return the place and the text of the open time."""
        fields = self._fields
        if _DATE not in fields:
            place = fields.index("open_time")
            return place, texts[place]
        place, time = fields.index(_DATE), texts[fields.index(_TIME_OF_DAY)]
        return place, joined_time(str(texts[place]), str(time))

    def _bar(self, line: int, texts: Sequence[Any]) -> Bar:
        values: dict[str, Any] = dict(self._identity)
        for place, (field, text) in enumerate(zip(self._fields, texts, strict=True)):
            cell = self._cells.get(field)
            if cell is not None:
                value = cell.read(text) if isinstance(text, str) else None
                if value is None and (text != "" or cell.required):
                    raise self._error(line, self._names[place], text, cell.allowed)
                values[field] = value
            elif field == _DATE:
                values["open_time"] = self._joined_time(line, texts)
            elif field in IDENTITY and not self._fits(line, field, text):
                raise self._error(line, self._names[place], text, self._identity[field])
        try:
            bar = Bar.model_validate(values)
        except BarError as e:
            allowed = e.allowed + (self._distance(values["open_time"]) if e.field == "open_time" else "")
            field = _DATE if e.field not in self._fields else e.field
            raise self._error(line, self._names[self._fields.index(field)], str(e.value), allowed) from e
        self._last = bar
        return bar

    def _fits(self, line: int, field: str, text: object) -> bool:
        return self._is_own(line, text) if field == "symbol" else text == self._identity[field]

    def _joined_time(self, line: int, texts: Sequence[Any]) -> object:
        place, text = self._time_text(texts)
        value = self._cells["open_time"].read(text)
        if value is None:
            raise self._error(line, self._names[place], text, TIMES)
        return value

    def _distance(self, open_time: datetime) -> str:
        """Return a hint for a bar off the grid: its distance from the bar before, often another length."""
        if self._last is None:
            return ""
        return (
            f". It opens {open_time - self._last.open_time} after the bar before. If the bars have another "
            "length, state it with --timeframe"
        )

    def _error(self, line: int, column: str, value: object, allowed: str) -> BarFormatError:
        return BarFormatError(self._named, line, column, value, allowed)

    @property
    def _named(self) -> str:
        """The source, with the symbol if it has several."""
        return f"{self._source}, symbol {self.symbol}" if self._needs_symbol else self._source


def _is_header(cells: Sequence[str]) -> bool:
    """Return whether the first row has names. Only the first one may be empty."""
    begins = [cell[:1] for cell in cells]
    return begins[0].isalpha() or begins[0] == "<" or (not begins[0] and any(map(str.isalpha, begins)))


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
