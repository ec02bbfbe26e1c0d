"""Describe, check and convert market data: shipped samples and files."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table

from agentic_trading.cancellation import run_async
from agentic_trading.cli import output
from agentic_trading.cli.exits import ExitCode
from agentic_trading.cli.options import AsJson
from agentic_trading.desk.cli.data_output import check_text, conversion_text
from agentic_trading.desk.cli.run import CalendarOption, ColumnsOption, TimeframeOption
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.bar_rows import NO_COLUMNS
from agentic_trading.desk.market.feed import Duplicate, FeedItem, Gap, UnreadColumns
from agentic_trading.desk.market.samples import SAMPLES, Sample
from agentic_trading.desk.session.columns import named_columns
from agentic_trading.desk.session.data_check import check_files
from agentic_trading.desk.session.data_writer import convert_file
from agentic_trading.desk.session.feeds import CheckedFeed, open_feeds, sources
from agentic_trading.operate.lines import format_time

app = typer.Typer(help="Market data: shipped samples and files.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a source of bars: rows, span, prices, gaps, duplicates and origin.

    `sha256` is the checksum of the file, empty for standard input. Only samples have a licence and a source.
    """

    name: str
    symbol: str
    timeframe: str
    rows: int
    first_open: datetime
    last_close: datetime
    low: Decimal
    high: Decimal
    gaps: tuple[Gap, ...]
    duplicates: int
    unread: tuple[str, ...]
    sha256: str
    licence: str
    source: str


def sample_table(samples: Iterable[Sample]) -> Table:
    """Return a table with a row for each sample."""
    columns: dict[str, Callable[[Sample], str]] = {
        "name": lambda sample: sample.name,
        "symbol": lambda sample: sample.symbol,
        "bars": lambda sample: str(sample.timeframe),
        "rows": lambda sample: f"{sample.rows:,}",
        "from": lambda sample: format_time(sample.first_open),
        "to (UTC)": lambda sample: format_time(sample.last_close),
        "licence": lambda sample: sample.licence,
    }
    return output.listing(samples, columns, right=("rows",))


async def read_contents(name: str, timeframe: str = "", columns: Mapping[str, str] = NO_COLUMNS) -> Contents:
    """Read a source to its end and return its contents.

    Raises:
        OptionError: If the name is not a source, or the source cannot feed a run.
        MarketError: If a bar cannot be read or contradicts the bar before it.

    """
    [feed] = await open_feeds(await asyncio.to_thread(sources, [name]), timeframe, columns=columns)
    items: list[FeedItem] = [item async for item in CheckedFeed(feed, name, feed.steps)]
    bars = [item for item in items if isinstance(item, Bar)]
    sample = SAMPLES.get(name.rpartition("=")[2])
    return Contents(
        name=name,
        symbol=feed.symbol,
        timeframe=str(feed.timeframe),
        rows=len(bars),
        first_open=bars[0].open_time,
        last_close=bars[-1].close_time,
        low=min(bar.low for bar in bars),
        high=max(bar.high for bar in bars),
        gaps=tuple(item for item in items if isinstance(item, Gap)),
        duplicates=sum(isinstance(item, Duplicate) for item in items),
        unread=tuple(name for item in items if isinstance(item, UnreadColumns) for name in item.columns),
        sha256=sample.sha256 if sample else await asyncio.to_thread(_sha256, name.rpartition("=")[2]),
        licence=sample.licence if sample else "",
        source=sample.source if sample else "",
    )


def _sha256(name: str) -> str:
    # Standard input has no checksum, because it cannot be read a second time.
    return "" if name == "-" else hashlib.sha256(Path(name).read_bytes()).hexdigest()


def contents_text(contents: Contents) -> RenderableType:
    """Return the contents as text."""
    checksum = [output.unbroken("sha256", contents.sha256)] if contents.sha256 else []
    return Group(output.facts(_facts_of(contents)), *checksum)


def _facts_of(contents: Contents) -> Iterator[tuple[str, str]]:
    yield "name", contents.name
    yield "symbol", f"{contents.symbol}, {contents.timeframe} bars"
    yield "rows", f"{contents.rows:,}"
    yield (
        "span (UTC)",
        f"{format_time(contents.first_open)} to {format_time(contents.last_close)}",
    )
    yield "prices", f"{contents.low} to {contents.high}"
    yield "gaps", f"{len(contents.gaps):,}, none filled" if contents.gaps else "none"
    for line in output.capped([
        f"{gap.missing:,} missing from {format_time(gap.after)} to {format_time(gap.before)}"
        for gap in contents.gaps
    ]):
        yield "", line
    yield "repeated bars", f"{contents.duplicates:,}"
    if contents.unread:
        yield "columns not read", ", ".join(output.capped(contents.unread))
    yield "licence", contents.licence or "not known"
    yield "source", contents.source or "not known"


Source = Annotated[str, typer.Argument(metavar="NAME", help="A sample, a CSV file, or - for standard input.")]


@app.command("list")
def list_samples(*, as_json: AsJson = False) -> None:
    """List the samples that ship with the package."""
    if as_json:
        output.show_json(list(SAMPLES.values()))
    else:
        output.print_table(sample_table(SAMPLES.values()))


@app.command("describe", short_help="Show the contents of a sample or a file.")
def describe_source(
    name: Source, *, timeframe: TimeframeOption = "", columns: ColumnsOption = "", as_json: AsJson = False
) -> None:
    """Read a sample or a file like a run does, and print its rows, span, gaps, licence and checksum."""
    contents = run_async(read_contents(name, timeframe, named_columns(columns)))
    if as_json:
        output.show_json(contents)
    else:
        output.print_table(contents_text(contents))


Files = Annotated[
    list[str], typer.Argument(metavar="FILE…", help="Files of bars. SYMBOL=FILE checks one symbol of a file.")
]


@app.command("check", short_help="Find gaps, contradictions and suspected splits in files.")
def check_files_command(
    files: Files,
    *,
    timeframe: TimeframeOption = "",
    columns: ColumnsOption = "",
    calendar: CalendarOption = "",
    as_json: AsJson = False,
) -> None:
    """Check files of bars, by symbol. Exit code 1 means that a finding would stop a run.

    Findings are rows that cannot be read, rows out of order, contradictions, gaps, repeated bars, bars
    without volume and suspected splits, each with its first lines and times.
    """
    result = run_async(check_files(files, timeframe, named_columns(columns), calendar))
    if as_json:
        output.show_json(result)
    else:
        output.print_table(*check_text(result))
    if not result.passed:
        raise typer.Exit(ExitCode.FOUND_WRONG)


OneFile = Annotated[
    str, typer.Argument(metavar="FILE", help="A file of bars. SYMBOL=FILE selects one symbol of a file.")
]
NewFile = Annotated[
    Path, typer.Option("--out", metavar="FILE", help="New file, which ends in .csv, .csv.gz or .parquet.")
]
OneSymbol = Annotated[
    str,
    typer.Option(
        "--symbol", metavar="NAME", help="Symbol whose rows are written. [default: all of the file]"
    ),
]


@app.command("convert", short_help="Write a file as a run reads it.")
def convert_file_command(
    name: OneFile,
    *,
    out: NewFile,
    symbol: OneSymbol = "",
    timeframe: TimeframeOption = "",
    columns: ColumnsOption = "",
    as_json: AsJson = False,
) -> None:
    """Write the bars of a file in order of time, without repeated bars and other columns.

    No bar is invented or changed. Rows that are no bars, and repeated bars with other values, are refused.
    """
    result = run_async(
        convert_file(name, out, symbol=symbol, timeframe=timeframe, columns=named_columns(columns))
    )
    if as_json:
        output.show_json(result)
    else:
        output.print_table(conversion_text(result))
