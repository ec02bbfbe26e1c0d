"""Own panels: prices of many stocks in a file, or in a folder with catalysts.

A folder has a file `panel.toml`, which names the files of prices and events and describes each catalyst.
"""

import csv
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.desk.market.bar_cells import NUMBER, TIMES, parse_day
from agentic_trading.desk.market.bar_files import PACKED, open_packed, readable
from agentic_trading.desk.market.bar_rows import OPEN_TIMES, plain_name
from agentic_trading.desk.market.errors import (
    BarFormatError,
    FeedUnavailableError,
    PanelFolderError,
    PanelValueError,
)
from agentic_trading.desk.planning.panel import COLUMNS, PRICE, VOLUME, Floats, Panel
from agentic_trading.errors import extra_named

with extra_named():
    import numpy as np

TERMS: Final = "panel.toml"
SYMBOLS: Final = ("symbol", "ticker")
DATES: Final = ("open_time", *OPEN_TIMES, "")
"""The names of a column of dates. The index of a data frame may have no name."""

KNOWN: Final = "known"
KNOWN_DAY: Final = "a date without a time, such as 2026-01-05: the first day at whose close it was known"
DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ]00:00(:00(\.0+)?)?)?")
"""A date without a time of day."""

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
CATALYST: Final = re.compile(r"(?!(none|volume)$)[a-z][a-z0-9_]{0,39}")
DESCRIPTION_CHARS: Final = 200
MOST_CATALYSTS: Final = 16
"""The maximum number of catalysts. Each is described in every question to the model."""

_GAP: Final = frozenset({"", "nan", "null", "none"})
_FORMS: Final = (
    "date, symbol and close, with open, high, low and volume if there are any; or date and one column of "
    "closes for each symbol"
)


@dataclass(frozen=True, slots=True, eq=False)
class OwnPanel:
    """Prices with frames of catalysts, each with a description for the model.

    Attributes:
        catalysts: A frame for each catalyst, in the form of `panel.close`: the value of an event on the first
            bar from the day on which it was known, otherwise 0.
        descriptions: The description of each catalyst.

    """

    panel: Panel
    catalysts: Mapping[str, Floats]
    descriptions: Mapping[str, str]

    def files(self) -> dict[str, str]:
        """Return the texts of a folder with the same prices, events and digests, by file name."""
        events = "events.csv" if self.catalysts else ""
        terms = [f'name = "{self.panel.name}"', 'prices = "prices.csv"']
        texts = {"prices.csv": _csv(("date", "symbol", *COLUMNS), self._price_rows())}
        if events:
            terms += [f'events = "{events}"', "", "[catalysts]"]
            terms += [f'{name} = "{_escaped(text)}"' for name, text in self.descriptions.items()]
            texts[events] = _csv((KNOWN, "symbol", *self.descriptions), self._event_rows())
        return {**texts, TERMS: "\n".join([*terms, ""])}

    def _price_rows(self) -> Iterator[list[object]]:
        panel = self.panel
        for bar, stock in np.argwhere(~np.isnan(panel.close)).tolist():
            values = [float(getattr(panel, name)[bar, stock]) for name in COLUMNS]
            yield [panel.days[bar], panel.symbols[stock], *map(repr, values)]

    def _event_rows(self) -> Iterator[list[object]]:
        panel = self.panel
        happened = np.logical_or.reduce([frame != 0 for frame in self.catalysts.values()])
        for bar, stock in np.argwhere(happened).tolist():
            values = [float(self.catalysts[name][bar, stock]) for name in self.descriptions]
            yield [panel.days[bar], panel.symbols[stock], *(repr(each) if each else "" for each in values)]


def load_own_panel(path: Path) -> OwnPanel:
    """Return the panel in a file of prices, or in a folder with `panel.toml`. Blocks.

    A file is CSV (plain, .gz or .zip) or Parquet. It has either a row for each stock and day, or a row for
    each day with a column of closes for each symbol. The order of rows does not matter, and a stock without a
    price on a day has a gap there. Equal contents have equal digests, whatever the form of the file.

    Raises:
        FeedUnavailableError: If a file cannot be read.
        BarFormatError: If columns are missing. It has the line.
        PanelValueError: For a wrong value, with line, symbol and date.
        PanelFolderError: If `panel.toml` is wrong.
        EmptyUniverseError: If fewer than two stocks have a price.
        MissingExtraError: If the package for Parquet is missing.

    """
    if not path.is_dir():
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.name.split(".")[0]).strip("._-") or "panel"
        return OwnPanel(read_prices(path, name), MappingProxyType({}), MappingProxyType({}))
    terms = _PanelTerms.read(path)
    panel = read_prices(path / terms.prices, terms.name)
    frames = read_events(path / terms.events, panel, terms.catalysts) if terms.catalysts else {}
    return OwnPanel(panel, MappingProxyType(frames), MappingProxyType(dict(terms.catalysts)))


def read_prices(path: Path, name: str) -> Panel:
    """Return the prices in a file as a panel. Raises the errors of `load_own_panel`."""
    table = _Table.read(path)
    # A file of bars of one stock has no symbols. It is refused, because its columns would be read as stocks.
    has_symbols = any(each in table.plain for each in SYMBOLS)
    if not has_symbols and "close" in table.plain:
        raise table.missing("symbol", _FORMS)
    cells = _long_cells(table) if has_symbols else _wide_cells(table)
    return Panel.of_bars(name, cells)


def _long_cells(table: "_Table") -> dict[tuple[date, str], list[float]]:
    day_at, symbol_at = table.place(DATES, "date", _FORMS), table.place(SYMBOLS, "symbol", _FORMS)
    table.place(("close",), "close", _FORMS)
    places = {name: table.plain.index(name) for name in COLUMNS if name in table.plain}
    cells: dict[tuple[date, str], list[float]] = {}
    for line, row in table.rows:
        day, symbol = table.day(line, row[day_at], day_at), table.symbol(line, row[symbol_at], symbol_at)
        given = {name: row[place] for name, place in places.items()}
        # A row without prices is a gap, because data frames write one for each stock and day.
        if all(text.lower() in _GAP for name, text in given.items() if name != "volume"):
            continue
        if (day, symbol) in cells:
            raise PanelValueError(
                table.source, symbol, day, "date", "there twice", "one row a stock and day", line
            )
        read = {name: _figure(table, line, symbol, day, name, text) for name, text in given.items()}
        prices = [read.get(name, read["close"]) for name in COLUMNS[:-1]]
        cells[day, symbol] = [*prices, read.get("volume", 0.0)]
    return cells


def _wide_cells(table: "_Table") -> dict[tuple[date, str], list[float]]:
    day_at = table.place(DATES, "date", _FORMS)
    symbols = {
        place: table.symbol(1, name, place) for place, name in enumerate(table.names) if place != day_at
    }
    if len(set(symbols.values())) < len(symbols):
        raise BarFormatError(table.source, 1, "(header)", "a symbol twice", "one column for each symbol")
    cells: dict[tuple[date, str], list[float]] = {}
    seen: set[date] = set()
    for line, row in table.rows:
        day = table.day(line, row[day_at], day_at)
        if day in seen:
            raise BarFormatError(table.source, line, table.names[day_at], row[day_at], "one row a day")
        seen.add(day)
        for place, symbol in symbols.items():
            if row[place].lower() not in _GAP:
                close = _figure(table, line, symbol, day, "close", row[place])
                cells[day, symbol] = [close, close, close, close, 0.0]
    return cells


def _figure(table: "_Table", line: int, symbol: str, day: date, column: str, text: str) -> float:
    is_volume = column == "volume"
    if is_volume and text.lower() in _GAP:
        return 0.0
    # `float` alone would also take inf, nan and 1_000.
    value = float(text) if NUMBER.fullmatch(text) else float("nan")
    if not (value >= 0 if is_volume else value > 0):
        allowed = VOLUME if is_volume else f"{PRICE}, or an empty cell in a day without a price"
        raise PanelValueError(table.source, symbol, day, column, repr(text), allowed, line)
    return value


def read_events(path: Path, panel: Panel, catalysts: Iterable[str]) -> dict[str, Floats]:
    """Return a frame for each catalyst from the columns of a file of events.

    Rows have the first day at whose close the event was known, and the symbol. An event counts on the first
    bar from this day on. Of several events of a stock on one bar, the one that was known last counts. Events
    before the first bar or after the last one are left out, because no strategy over these bars could use
    them.

    Raises the errors of `load_own_panel`.
    """
    table = _Table.read(path)
    names = tuple(catalysts)
    allowed = f"{KNOWN}, symbol, {', '.join(names)}"
    known_at = table.place((KNOWN,), KNOWN, allowed)
    symbol_at = table.place(SYMBOLS, "symbol", allowed)
    places = {name: table.place((name,), name, allowed) for name in names}
    stocks = {symbol: place for place, symbol in enumerate(panel.symbols)}
    events: dict[tuple[date, str], list[float]] = {}
    for line, row in table.rows:
        # A time is refused, because a report after the close would count at this close.
        if not DATE.fullmatch(row[known_at]):
            raise BarFormatError(table.source, line, KNOWN, row[known_at], KNOWN_DAY)
        day, symbol = table.day(line, row[known_at], known_at), table.symbol(line, row[symbol_at], symbol_at)
        if symbol not in stocks:
            listed = ", ".join([*panel.symbols[:8], *(["…"] if len(panel.symbols) > 8 else [])])
            raise PanelValueError(
                table.source, symbol, day, "symbol", repr(symbol), f"a symbol with prices: {listed}", line
            )
        if (day, symbol) in events:
            raise PanelValueError(
                table.source, symbol, day, KNOWN, "there twice", "one row a stock and day", line
            )
        events[day, symbol] = [
            _event_value(table, line, symbol, day, name, row[place]) for name, place in places.items()
        ]
    return _frames(panel, names, events)


def _event_value(table: "_Table", line: int, symbol: str, day: date, name: str, text: str) -> float:
    if text.lower() in _GAP:
        return 0.0
    if not NUMBER.fullmatch(text) or not np.isfinite(float(text)):
        allowed = "a number, above 0 where the event happened, or an empty cell"
        raise PanelValueError(table.source, symbol, day, name, repr(text), allowed, line)
    return float(text)


def _frames(
    panel: Panel, names: tuple[str, ...], events: Mapping[tuple[date, str], list[float]]
) -> dict[str, Floats]:
    frames = {name: np.zeros(panel.close.shape) for name in names}
    stocks = {symbol: place for place, symbol in enumerate(panel.symbols)}
    for day, symbol in sorted(events):  # by day, so that the event that was known last counts
        bar = int(np.searchsorted(panel.days, np.datetime64(day, "D")))
        # An event before the first bar is left out, because it would look like a new one there.
        if day < panel.days[0].item() or bar == len(panel.days):
            continue
        for name, value in zip(names, events[day, symbol], strict=True):
            if value:  # so that an empty cell does not remove an event that was known before
                frames[name][bar, stocks[symbol]] = value
    return frames


# --- files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Table:
    """The rows of a CSV or Parquet file, each with its line."""

    source: str
    names: tuple[str, ...]
    plain: tuple[str, ...]
    """The names in lower case, with `_` for blanks."""
    rows: list[tuple[int, list[str]]]

    @classmethod
    def read(cls, path: Path) -> "_Table":
        with readable(path):
            data = open_packed(path).read() if path.suffix in PACKED else path.read_bytes()
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as e:
            raise FeedUnavailableError(str(path), "it is not UTF-8 text") from e
        first = text.partition("\n")[0]
        separator = next((each for each in (",", ";", "\t") if each in first), ",")
        reader = csv.reader(StringIO(text, newline=""), delimiter=separator)
        rows: list[tuple[int, list[str]]] = []
        try:
            for row in reader:
                cells = [cell.strip() for cell in row]
                if any(cells) and not cells[0].startswith("#"):
                    rows.append((reader.line_num, cells))
        except csv.Error as e:
            raise BarFormatError(str(path), reader.line_num, "(row)", str(e), "rows of CSV") from e
        names = tuple(rows[0][1]) if rows else ()
        for line, cells in rows[1:]:
            if len(cells) != len(names):
                raise BarFormatError(
                    str(path), line, "(row)", f"{len(cells)} cells", f"{len(names)}, as the header"
                )
        return cls(str(path), names, tuple(map(plain_name, names)), rows[1:])

    def place(self, names: Iterable[str], column: str, allowed: str) -> int:
        """Return the place of a column with one of `names`. Raises `BarFormatError` without one, or with two."""
        found = [place for place, each in enumerate(self.plain) if each in names]
        if len(found) != 1:
            raise self.missing(column, allowed, count=len(found))
        return found[0]

    def missing(self, column: str, allowed: str, *, count: int = 0) -> BarFormatError:
        was = "not there" if count == 0 else f"there {count} times"
        return BarFormatError(self.source, 1, column, was, f"the columns {allowed}")

    def day(self, line: int, text: str, place: int) -> date:
        moment = parse_day(text)
        if moment is None:
            raise BarFormatError(self.source, line, self.names[place] or "(no name)", text, TIMES)
        return moment.date()

    def symbol(self, line: int, text: str, place: int) -> str:
        if not 0 < len(text) <= 40 or not text.isprintable():
            raise BarFormatError(
                self.source, line, self.names[place] or "(no name)", text[:50], "1 to 40 characters"
            )
        return text


@dataclass(frozen=True, slots=True)
class _PanelTerms:
    """The contents of `panel.toml`."""

    name: str
    prices: str
    events: str
    catalysts: Mapping[str, str]

    @classmethod
    def read(cls, folder: Path) -> "_PanelTerms":
        file = folder / TERMS
        given = _parsed(folder, file)
        if unknown := [each for each in given if each not in {"name", "prices", "events", "catalysts"}]:
            raise PanelFolderError(str(file), unknown[0], "unknown", "name, prices, events, catalysts")
        name = given.get("name", folder.resolve().name)
        if not isinstance(name, str) or not NAME.fullmatch(name):
            allowed = "1 to 64 letters, digits and the characters . _ -"
            raise PanelFolderError(str(file), "name", repr(name), allowed)
        prices = _checked_file(file, "prices", given)
        catalysts = _checked_catalysts(file, given.get("catalysts", {}))
        if "events" in given and not catalysts:
            allowed = 'a line for each column of events in the table [catalysts], such as surprise = "…"'
            raise PanelFolderError(str(file), "catalysts", "empty", allowed)
        return cls(name, prices, _checked_file(file, "events", given) if catalysts else "", catalysts)


def _parsed(folder: Path, file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as e:
        allowed = f"a folder with a file {TERMS}, which names the file of prices"
        raise PanelFolderError(str(folder), TERMS, e.strerror, allowed) from e
    except ValueError as e:  # TOML or UTF-8
        raise PanelFolderError(str(file), "text", str(e), "TOML") from e


def _checked_file(file: Path, field: str, given: Mapping[str, Any]) -> str:
    name = given.get(field)
    # A path is refused, because a folder that is copied must have all of its panel.
    if not isinstance(name, str) or Path(name).name != name or not (file.parent / name).is_file():
        raise PanelFolderError(str(file), field, repr(name), "the name of a file in this folder")
    return name


def _checked_catalysts(file: Path, given: object) -> Mapping[str, str]:
    if not isinstance(given, dict) or len(given) > MOST_CATALYSTS:
        allowed = f"a table of at most {MOST_CATALYSTS} names, each with a description"
        raise PanelFolderError(str(file), "catalysts", repr(given)[:80], allowed)
    for name, text in given.items():
        if not CATALYST.fullmatch(name):
            allowed = "1 to 40 lower-case letters, digits and _, and not none or volume"
            raise PanelFolderError(str(file), "catalysts", repr(name), allowed)
        if not isinstance(text, str) or not 0 < len(text) <= DESCRIPTION_CHARS or not text.isprintable():
            allowed = f"a description of 1 to {DESCRIPTION_CHARS} characters on one line"
            raise PanelFolderError(str(file), f"catalysts.{name}", repr(text)[:80], allowed)
    return given


def _csv(names: Iterable[str], rows: Iterable[list[object]]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
