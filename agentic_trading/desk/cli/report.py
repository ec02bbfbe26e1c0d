"""Write the report of a session as one page."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentic_trading.cli.exits import say

Session = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a session, created by `run --out`.")]
RunNumber = Annotated[
    int | None,
    typer.Option("--run", metavar="N", min=1, help="Number of the run. [default: the last run]"),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="File of the page. [default: report.html in DIR, report-2.html for run 2]",
    ),
]
Csv = Annotated[
    Path | None,
    typer.Option(
        "--csv",
        metavar="FOLDER",
        help="Also write equity, fills, decisions and calls as CSV files to this folder.",
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(
        "--trials",
        metavar="N",
        min=1,
        help="Number of prompts, models and seeds that you tried, this run included. Prints the deflated Sharpe ratio.",
    ),
]


def _rate(text: str) -> Any:
    from agentic_trading.desk.inference import InferenceRate

    try:
        return InferenceRate.parse(text)
    except ValueError as e:
        raise typer.BadParameter(str(e)) from e


Rate = Annotated[
    Any,
    typer.Option(
        "--inference-rate",
        metavar="USDEUR=0.91",
        parser=_rate,
        help="Price of one US dollar in the currency of the P&L, for the P&L net of inference. [default: 1 for USD and USDT]",
    ),
]


def report_command(
    session: Session,
    *,
    run: RunNumber = None,
    out: Out = None,
    csv: Csv = None,
    trials: Trials = None,
    inference_rate: Rate = None,
) -> None:
    """Write the report of a run as one HTML page, from its record alone.

    The page needs no network and no script. The run may still be running, or may have been killed.
    """
    from agentic_trading.cli.settings import configured

    configured()
    write_report(session, run=run, out=out, csv=csv, trials=trials, rate=inference_rate)


def write_report(
    session: Path,
    *,
    run: int | None = None,
    out: Path | None = None,
    csv: Path | None = None,
    trials: int | None = None,
    rate: Any = None,
    err: bool = False,
) -> None:
    """Write the page of a run, and print its path and main figures, on standard error if `err` is set."""
    from agentic_trading.cancellation import run_async
    from agentic_trading.desk.inference import rate_for
    from agentic_trading.desk.report import assumptions, export, page
    from agentic_trading.desk.report.record import read_run
    from agentic_trading.files import replace_file
    from agentic_trading.operate.session_folder import writing

    recorded = run_async(read_run(session, run=run))
    terms = assumptions.ReportTerms(rate_for(recorded.currency, rate), trials)
    view = page.page_of(recorded, terms)
    path = out or recorded.folder.page(recorded.report.run_number)
    with writing(path):
        replace_file(path, page.html_of(view).encode(), sync=False)
    for warning in view.warnings:
        say(f"Warning: {warning}", err=True)
    for tile in view.tiles[:3]:
        say(f"{tile.name}: {tile.value} {tile.note}", err=err)
    if trials is not None:
        skill = assumptions.skill_after(recorded, trials)
        say(
            f"deflated Sharpe ratio after {trials:,} trials: {'-' if skill is None else f'{skill:.3f}'}",
            err=err,
        )
    say(f"Page: {path}", err=err)
    if csv is not None:
        for written in export.write_csv(recorded, csv):
            say(f"CSV: {written}", err=err)
