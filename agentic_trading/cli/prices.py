"""`agentic-trading prices`: what tokens cost, and recorded costs recomputed."""

from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode
from agentic_trading.cli.options import AsJson, OfProvider, Store, log_of

app = typer.Typer(help="The price book: show it, check it.", no_args_is_help=True)

ModelName = Annotated[str, typer.Argument(metavar="[MODEL]", help="A model, or PROVIDER/MODEL; else all.")]
OnDay = Annotated[
    str, typer.Option("--on", metavar="DATE", help="The prices of this day, as 2026-11-22; else of today.")
]
EarlierBooks = Annotated[
    list[Path] | None,
    typer.Option("--book", metavar="FILE", help="A price book that was used then; may be repeated."),
]


@app.command("show", short_help="Show what a million tokens of each class cost.")
def show_prices(
    model: ModelName = "", *, provider: OfProvider = "", on: OnDay = "", as_json: AsJson = False
) -> None:
    """Show what a million tokens of each class cost; of one model also since when, and where that is from."""
    from agentic_trading.cli.model_tables import (
        load_book,
        price_details,
        price_table,
        select_prices,
        start_of_day,
    )
    from agentic_trading.cli.output import print_table, show_json

    book, at = load_book(), start_of_day(on)
    prices = select_prices(book, model, provider, at=at)
    if as_json:
        rows = [price.model_dump(mode="json") for price in prices]
        show_json({"book": book.id, "on": at.date(), "nusd_per_token": rows})
    elif model:
        print_table(*(price_details(price, book, at) for price in prices))
    else:
        print_table(price_table(prices, book, at))


@app.command("check", short_help="Recompute recorded costs.")
def check_prices(*, store: Store = None, book: EarlierBooks = None, as_json: AsJson = False) -> None:
    """Recompute the cost of every priced call of a log from its usage and its price book. Exit 1 if one differs."""
    from agentic_trading.audit.spend import CostCheck, load_price_books, recompute_costs
    from agentic_trading.cli.model_tables import cost_counts, cost_table
    from agentic_trading.cli.output import print_table, show_json
    from agentic_trading.cli.settings import configured
    from agentic_trading.platform.port_adapters import records_of
    from agentic_trading.platform.tables import load_tables

    log, config = log_of(store), configured()
    books = load_price_books(config.prices_file, book or [])
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
