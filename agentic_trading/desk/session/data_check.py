"""Check files of bars before a run."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.bar_check import (
    BarFinding,
    FindingKind,
    FoundPlaces,
    SymbolCheck,
    check_symbol,
)
from agentic_trading.desk.market.bar_rows import NO_COLUMNS
from agentic_trading.desk.market.bar_table import BarTable
from agentic_trading.desk.market.errors import BarFormatError, MarketError
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.calendars import calendar_from
from agentic_trading.desk.session.feeds import is_file, named_as, symbol_of_file, without_symbol
from agentic_trading.platform.errors import OptionError

MOST_SYMBOLS: Final = 8
"""Maximum number of symbols in a message."""


class FileCheck(BaseModel, frozen=True):
    """The findings about a file.

    Attributes:
        file: The name that was given.
        symbols: The symbols of the file, with their bars and findings.
        findings: The findings about no particular symbol.
        unread: The columns that are not read.

    """

    file: str
    symbols: tuple[SymbolCheck, ...]
    findings: tuple[BarFinding, ...]
    unread: tuple[str, ...]

    @property
    def every_finding(self) -> tuple[BarFinding, ...]:
        """The findings about the file and its symbols."""
        return (*self.findings, *(each for symbol in self.symbols for each in symbol.findings))


class DataCheck(BaseModel, frozen=True):
    """The findings about files. `passed` is whether no finding stops a run."""

    passed: bool
    files: tuple[FileCheck, ...]


def stated_timeframe(text: str) -> Timeframe | None:
    """Return the length of `--timeframe`, or None if it is left out. Raises `OptionError` for another text."""
    if text not in {"", *Timeframe}:
        raise OptionError("--timeframe", text, ", ".join(Timeframe))
    return Timeframe(text) if text else None


def new_table(name: str, columns: Mapping[str, str] = NO_COLUMNS, *, only: str = "") -> BarTable:
    """Return an empty table for a file, which may have `SYMBOL=` before it. Looks for the file.

    Raises:
        OptionError: If there is no such file.

    """
    bare = without_symbol(name)
    path = Path(bare)
    if not is_file(path):
        allowed = f"a file of bars: CSV or JSON lines, plain, .gz or .zip, or .parquet{named_as(name)}"
        raise OptionError("FILE", name, allowed)
    stated = only or name.removesuffix(bare).removesuffix("=")
    return BarTable(path.name, stated or symbol_of_file(path), columns, only=stated)


async def fill(table: BarTable, name: str) -> None:
    """Add the lines of a file to its table.

    Raises:
        MarketError: If the file cannot be read, or its columns are not known.

    """
    line = 0
    async with aclosing(trading.file_blocks(Path(without_symbol(name)))) as blocks:
        async for block in blocks:
            for raw in block:
                line += 1
                table.add(line, raw)


async def check_files(
    names: Sequence[str], timeframe: str = "", columns: Mapping[str, str] = NO_COLUMNS, calendar: str = ""
) -> DataCheck:
    """Check files of bars, each with all its symbols, or with that of its `SYMBOL=`.

    Raises:
        OptionError: If a file is missing, or the length is not one of `Timeframe`.
        UnknownCalendarError: If there is no such calendar.
        MissingExtraError: If the package for calendars is not installed.

    """
    stated = stated_timeframe(timeframe)
    # All names first, because a wrong one would otherwise end the command after minutes.
    tables = [await asyncio.to_thread(new_table, name, columns) for name in names]
    files = [await _checked(name, table, stated, calendar) for name, table in zip(names, tables, strict=True)]
    found = (finding for file in files for finding in file.every_finding)
    return DataCheck(passed=not any(each.stops_run for each in found), files=tuple(files))


async def _checked(name: str, table: BarTable, timeframe: Timeframe | None, calendar: str) -> FileCheck:
    # An error of one file is a finding, because otherwise it would hide those of the other files.
    ended = None
    try:
        await fill(table, name)
    except MarketError as e:
        ended = e
    firsts = [row.open_time for symbol in table.symbols.values() for row in symbol.rows]
    hours = await calendar_from(calendar, min(firsts, default=None))
    lengths = table.lengths(trading.BASE, timeframe)
    symbols = [check_symbol(table, symbol, length, calendar=hours) for symbol, length in lengths.items()]
    findings = _findings_of(table, ended)
    return FileCheck(file=name, symbols=tuple(symbols), findings=findings, unread=table.unread)


def _findings_of(table: BarTable, ended: MarketError | None) -> tuple[BarFinding, ...]:
    """Return the findings about rows without a symbol and a time. `ended` is the error that ended the reading."""
    findings = FoundPlaces()
    for error in (*table.errors, *filter(None, [ended])):
        if isinstance(error, BarFormatError):
            detail = f"{error.column} {error.value!r}; allowed: {error.allowed}"
            findings.add(FindingKind.UNREADABLE, detail, line=error.line)
        else:
            findings.add(FindingKind.UNREADABLE, str(error))
    if table.unreadable > len(table.errors):
        findings.count(FindingKind.UNREADABLE, table.unreadable - len(table.errors))
    if not table.symbols and (table.others or not findings.listed()):
        others = ", ".join(list(table.others)[:MOST_SYMBOLS])
        findings.add(
            FindingKind.EMPTY, f"no row of this symbol, and rows of {others}" if others else "no row"
        )
    return findings.listed()
