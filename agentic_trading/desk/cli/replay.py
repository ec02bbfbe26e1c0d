"""Sessions again, from their record, without a network."""

from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode, say
from agentic_trading.cli.options import AsJson

app = typer.Typer(help="Sessions again, from their record, without a network.", no_args_is_help=True)

Session = Annotated[
    Path, typer.Argument(metavar="SESSION", help="A session's folder, as `run --out` made it.")
]
RunNumber = Annotated[
    int | None, typer.Option("--run", metavar="N", min=1, help="Which of its runs; the last one if left out.")
]
AllowIncomplete = Annotated[
    bool,
    typer.Option(
        "--allow-incomplete", help="Play what there is of a log that is broken, cut off, or of a killed run."
    ),
]
Workers = Annotated[
    int, typer.Option("--workers", metavar="N", min=1, max=256, help="How many calls at once.")
]


@app.callback()
def replay_group() -> None:
    """Keep `run` as a subcommand. Typer would turn a group of one command into that command."""


@app.command("run", short_help="Play a run again and compare the decision chains.")
def replay_run(
    session: Session,
    *,
    run: RunNumber = None,
    workers: Workers = 4,
    allow_incomplete: AllowIncomplete = False,
    as_json: AsJson = False,
) -> None:
    """Play a run again on its recorded answers and compare the decision logs byte for byte.

    Nothing is written, and the network is blocked. Exit 1 names the first difference; a log that is broken or lacks its
    end, and bars that were changed, are refused.
    """
    from agentic_trading.cli.output import print_table, printable, show_json
    from agentic_trading.cli.settings import configured
    from agentic_trading.desk.cli.summary import comparison
    from agentic_trading.desk.session.replay import replay

    configured()
    report = run_async(replay(session, run=run, workers=workers, allow_incomplete=allow_incomplete))
    for warning in report.warnings:
        say(f"Warning: {printable(warning)}", err=True)
    if as_json:
        show_json(report)
    else:
        print_table(comparison(report))
    if not report.identical:
        raise typer.Exit(ExitCode.FOUND_WRONG)
