"""`agentic-trading prices`: what tokens cost, whether that still holds, and recorded costs recomputed."""

from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode, say, stop
from agentic_trading.cli.options import AsJson, OfProvider, log_of

app = typer.Typer(help="The price book: show it, check it.", no_args_is_help=True)

ModelName = Annotated[str, typer.Argument(metavar="[MODEL]", help="A model, or PROVIDER/MODEL; else all.")]
OnDay = Annotated[
    str, typer.Option("--on", metavar="DATE", help="The prices of this day, as 2026-11-22; else of today.")
]
LogToCheck = Annotated[
    Path | None,
    typer.Option("--store", metavar="PATH", help="A log or a session's folder, whose costs are recomputed."),
]
EarlierBooks = Annotated[
    list[Path] | None,
    typer.Option(
        "--book", metavar="FILE", help="With --store: a price book that was used then; may be repeated."
    ),
]


@app.command("show", short_help="Show what a million tokens of each class cost.")
def show_prices(
    model: ModelName = "", *, provider: OfProvider = "", on: OnDay = "", as_json: AsJson = False
) -> None:
    """Show what a million tokens of each class cost; of one model also since when, and where that is from."""
    from agentic_trading.cli.output import print_table, show_json
    from agentic_trading.cli.price_tables import load_book, price_details, price_table, start_of_day
    from agentic_trading.operate.prices import select_prices

    book, at = load_book(), start_of_day(on)
    prices = select_prices(book, model, provider, at=at)
    if as_json:
        rows = [price.model_dump(mode="json") for price in prices]
        show_json({"book": book.id, "on": at.date(), "nusd_per_token": rows})
    elif model:
        print_table(*(price_details(price, book, at) for price in prices))
    else:
        print_table(price_table(prices, book, at))


@app.command("check", short_help="Compare the price book with genai-prices.")
def check_prices(*, store: LogToCheck = None, book: EarlierBooks = None, as_json: AsJson = False) -> None:
    """Compare the price book with genai-prices; with --store, recompute recorded costs."""
    if store is not None:
        _check_log(log_of(store), book or [], as_json=as_json)
    elif book:
        stop(
            ExitCode.BAD_INPUT, "--book goes with --store; a book of your own is named by AGENTIC_PRICES_FILE"
        )
    else:
        _check_book(as_json=as_json)


def _check_book(*, as_json: bool) -> None:
    from agentic_trading.cli.output import print_table, show_json
    from agentic_trading.cli.price_tables import comparison_table, load_book, start_of_day
    from agentic_trading.operate.price_comparison import compare_prices

    found = compare_prices(load_book(), at=start_of_day())
    counts = found.counts()
    if as_json:
        show_json({"book": found.book, "source": found.source, "counts": counts, "lines": found.lines})
    else:
        print_table(comparison_table(found))
    numbers = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    say(f"against {found.source}: {numbers}", err=True)
    if counts["differs"]:
        raise typer.Exit(ExitCode.FOUND_WRONG)


def _check_log(log: Path, earlier: list[Path], *, as_json: bool) -> None:
    from agentic_trading.audit.spend import CostCheck, load_price_books, recompute_costs
    from agentic_trading.cli.output import print_table, show_json
    from agentic_trading.cli.price_tables import cost_counts, cost_table
    from agentic_trading.cli.settings import configured
    from agentic_trading.platform.port_adapters import records_of
    from agentic_trading.platform.tables import load_tables

    config = configured()
    books = load_price_books(config.prices_file, earlier)
    capabilities = load_tables(config.models_file).capabilities

    async def read() -> CostCheck:
        async with aclosing(records_of(log)) as records, aclosing(records.scan()) as entries:
            return await recompute_costs(entries, books, capabilities)

    found = run_async(read())
    if as_json:
        others = [record for record in found.records if record.finding != "agrees"]
        show_json({"counts": cost_counts(found), "records": others})
    else:
        print_table(cost_table(found))
    if not found.is_right:
        raise typer.Exit(ExitCode.FOUND_WRONG)
