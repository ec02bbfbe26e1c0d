"""`agentic-trading prices`: what tokens cost, whether that still holds, and whether what was charged comes out again."""

from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.app.cli.exits import ExitCode, stop
from agentic_trading.app.cli.log_selection import AsJson, log_of

app = typer.Typer(help="The price book: show it, check it, prepare a new one.", no_args_is_help=True)

ModelName = Annotated[str, typer.Argument(metavar="[MODEL]", help="A model, or PROVIDER/MODEL; else all.")]
OfProvider = Annotated[
    str, typer.Option("--provider", metavar="NAME", help="Only the models of this provider.")
]
OnDay = Annotated[
    str, typer.Option("--on", metavar="DATE", help="The prices of this day, as 2026-11-22; else of today.")
]
LogToCheck = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="PATH", help="A log or a session's folder, whose costs are computed again."
    ),
]
EarlierBooks = Annotated[
    list[Path] | None,
    typer.Option(
        "--book", metavar="FILE", help="With --store: a price book that was used then; may be repeated."
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the candidate goes.")]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that is there.")]


@app.command("show")
def show_prices(
    model: ModelName = "", *, provider: OfProvider = "", on: OnDay = "", as_json: AsJson = False
) -> None:
    """Tell what a million tokens of each class cost, since when, and where that is from."""
    from agentic_trading.app.cli.output import console, show_json
    from agentic_trading.app.cli.output import print_table as show_parts
    from agentic_trading.app.cli.price_tables import (
        as_value,
        book_in_use,
        moment_of,
        price_rows_text,
        price_table,
    )
    from agentic_trading.app.prices.selection import select_prices

    book, at = book_in_use(), moment_of(on)
    prices = select_prices(book, model, provider, at=at)
    if as_json:
        show_json(as_value(prices, book, at))
    elif model:
        show_parts(*(price_rows_text(price, book, at) for price in prices))
    else:
        show_parts(price_table(prices, book, at, console().width))


@app.command("check")
def check_prices(*, store: LogToCheck = None, book: EarlierBooks = None, as_json: AsJson = False) -> None:
    """Hold the book against genai-prices; with --store, compute again what calls on record cost."""
    if store is not None:
        _check_log(store, book or [], as_json=as_json)
    elif book:
        stop(
            ExitCode.BAD_INPUT, "--book goes with --store; a book of your own is named by AGENTIC_PRICES_FILE"
        )
    else:
        _check_book(as_json=as_json)


@app.command()
def refresh(out: Out, *, force: Force = False) -> None:
    """Write a candidate: the book with what genai-prices says differently, for you to read and then to use."""
    _refuse_without_genai()
    from agentic_trading.app.cli.price_tables import book_in_use, moment_of
    from agentic_trading.app.prices.draft import candidate, refuse_target
    from agentic_trading.app.prices.genai import GenaiPrices

    book, source = book_in_use(), GenaiPrices()
    refuse_target(out, force=force)
    made = candidate(book, source, at=moment_of())
    if made is None:
        typer.echo(f"{source.source} says nothing differently; nothing is written", err=True)
        return
    try:
        made.write(out)
    except OSError as e:
        stop(ExitCode.LOG_UNUSABLE, f"{out} cannot be written ({e.strerror})")
    typer.echo("\n".join(made.diff))
    typer.echo(f"written to {out}; read it, mend it, then use it by AGENTIC_PRICES_FILE={out}", err=True)


def _check_book(*, as_json: bool) -> None:
    _refuse_without_genai()
    from agentic_trading.app.cli.output import print_table as show_parts
    from agentic_trading.app.cli.output import show_json
    from agentic_trading.app.cli.price_tables import book_in_use, comparison_table, moment_of
    from agentic_trading.app.prices.comparison import compared
    from agentic_trading.app.prices.genai import GenaiPrices

    found = compared(book_in_use(), GenaiPrices(), at=moment_of())
    counts = found.counts()
    if as_json:
        show_json({"book": found.book, "source": found.source, "counts": counts, "lines": found.lines})
    else:
        show_parts(comparison_table(found))
    told = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    typer.echo(f"against {found.source}: {told}", err=True)
    if found.differs:
        raise typer.Exit(ExitCode.FOUND_WRONG)


def _check_log(store: Path, books: list[Path], *, as_json: bool) -> None:
    from agentic_trading.app.cli.output import print_table as show_parts
    from agentic_trading.app.cli.output import show_json
    from agentic_trading.app.cli.price_tables import cost_table, cost_value, costs_on_record

    found = costs_on_record(log_of(store), books)
    if as_json:
        show_json(cost_value(found))
    else:
        show_parts(cost_table(found))
    if not found.is_right:
        raise typer.Exit(ExitCode.FOUND_WRONG)


def _refuse_without_genai() -> None:
    from importlib.util import find_spec

    if find_spec("genai_prices") is None:
        needs = "this needs genai-prices, which is not installed"
        stop(ExitCode.BAD_INPUT, f"{needs}; run pip install 'agentic-trading[prices]'")
