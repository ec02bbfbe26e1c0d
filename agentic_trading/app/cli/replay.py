"""`agentic-trading replay`: the same session again, from its own record."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.app.cli.exits import ExitCode
from agentic_trading.app.cli.log_selection import AsJson

app = typer.Typer(help="Sessions again, from their record, without a network.", no_args_is_help=True)

Session = Annotated[
    Path, typer.Argument(metavar="SESSION", help="A session's folder, as `run --out` made it.")
]
RunNumber = Annotated[
    int | None, typer.Option("--run", metavar="N", min=1, help="Which of its runs; the last one if left out.")
]
Workers = Annotated[
    int, typer.Option("--workers", metavar="N", min=1, max=256, help="How many calls at once.")
]


@app.callback()
def group() -> None:
    """Keep `run` a word of its own: a group of one command would swallow it."""


@app.command("run")
def run_again(
    session: Session, *, run: RunNumber = None, workers: Workers = 4, as_json: AsJson = False
) -> None:
    """Play a run again on its recorded answers and compare the decision logs byte for byte.

    Nothing is written, and the network is blocked. Exit 1 names the first difference.
    """
    from agentic_trading.app.cli.output import print_table, show_json
    from agentic_trading.app.cli.summary import comparison
    from agentic_trading.app.replay import replay
    from agentic_trading.app.settings import start

    settings = start()
    report = asyncio.run(replay(session, run=run, workers=workers, models_file=settings.models_file))
    if as_json:
        show_json(report)
    else:
        print_table(comparison(report))
    if not report.identical:
        raise typer.Exit(ExitCode.FOUND_WRONG)
