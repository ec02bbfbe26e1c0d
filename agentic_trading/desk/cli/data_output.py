"""Print the results of `data check` and `data convert`."""

from collections.abc import Iterator

from rich.console import RenderableType

from agentic_trading.cli import output
from agentic_trading.desk.market.bar_check import BarFinding, SymbolCheck
from agentic_trading.desk.session.data_check import DataCheck, FileCheck
from agentic_trading.desk.session.data_writer import Conversion
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.lines import format_time


def check_text(check: DataCheck) -> Iterator[RenderableType]:
    """Yield a table for each file, and the verdict."""
    for file in check.files:
        yield output.heading(file.file)
        yield output.rows(
            output.table(
                "symbol",
                "bars",
                "finding",
                "number",
                "line",
                "time (UTC)",
                "detail",
                right=("number", "line"),
            ),
            _rows_of(file),
        )
        if file.unread:
            yield output.facts([("columns not read", ", ".join(output.capped(file.unread)))])
    yield output.heading(_verdict(check))


def conversion_text(conversion: Conversion) -> RenderableType:
    """Return a conversion as text: the bars that were written, and the rows and columns that were left out."""
    return output.facts(_facts_of(conversion))


def _facts_of(conversion: Conversion) -> Iterator[tuple[str, str]]:
    yield "written", conversion.out
    lines = [
        f"{each.symbol}, {pluralize(each.bars, 'bar')} of {each.timeframe}, "
        f"{format_time(each.first_open)} to {format_time(each.last_close)}"
        for each in conversion.symbols
    ]
    for number, line in enumerate(output.capped(lines)):
        yield "" if number else "bars (UTC)", line
    yield "rows put in order", f"{conversion.out_of_order:,}"
    yield "repeats left out", f"{conversion.repeats:,}"
    if conversion.others:
        yield "other symbols", f"{output.counts(dict(conversion.others))} left out"
    if conversion.unread:
        yield "columns left out", ", ".join(output.capped(conversion.unread))


def _rows_of(file: FileCheck) -> Iterator[tuple[str, ...]]:
    yield from _findings(("-", "-"), file.findings)
    for symbol in file.symbols:
        what = (symbol.symbol, _bars(symbol))
        if symbol.findings:
            yield from _findings(what, symbol.findings)
        else:
            span = f"{format_time(symbol.first_open)} to {format_time(symbol.last_close)}"
            yield (*what, "none", "", "", "", span)


def _bars(symbol: SymbolCheck) -> str:
    return f"{symbol.bars:,} of {symbol.timeframe}" if symbol.timeframe else "-"


def _findings(what: tuple[str, str], findings: tuple[BarFinding, ...]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each place. The symbol and the finding are in the first one only."""
    for finding in findings:
        name = f"{'ERROR' if finding.stops_run else 'warning'}: {finding.kind}"
        label = (*what, name, f"{finding.count:,}")
        for place in finding.places:
            line = "" if place.line is None else str(place.line)
            yield (*label, line, format_time(place.open_time) if place.open_time else "", place.detail)
            label = ("",) * 4
        what = ("", "")


def _verdict(check: DataCheck) -> str:
    found = [each for file in check.files for each in file.every_finding]
    errors = sum(each.stops_run for each in found)
    if errors:
        return f"{pluralize(errors, 'finding')} would stop a run"
    return f"A run can read this, with {pluralize(len(found), 'warning')}" if found else "No findings"
