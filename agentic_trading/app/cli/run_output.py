"""A run from the command line: agreed to, watched, told; imported only by a command that runs."""

import asyncio

import typer

from agentic_trading.app.cli.confirm import NOT_BEGUN, confirm_run
from agentic_trading.app.cli.exits import ExitCode, stop
from agentic_trading.app.cli.output import print_table, show_json, terminal_is_watching
from agentic_trading.app.cli.progress import bar_on_standard_error, no_bar
from agentic_trading.app.cli.summary import summary
from agentic_trading.app.options import MODELS, RunOptions
from agentic_trading.app.preflight import preflight
from agentic_trading.app.run import run_session


def run_and_tell(options: RunOptions, *, yes: bool, as_json: bool) -> None:
    """Run what was asked for, once its user agrees to what a model will come to, and print what came of it."""
    progress = bar_on_standard_error() if terminal_is_watching() and not as_json else no_bar()
    if options.provider in MODELS:
        _agree(options, yes=yes)
    try:
        with progress as on_progress:
            report = asyncio.run(run_session(options, on_progress=on_progress))
    except (KeyboardInterrupt, asyncio.CancelledError):  # a second time, or before the session began
        stop(ExitCode.INTERRUPTED, "ended at once; what was answered is on disk")
    if as_json:
        show_json(report)
    else:
        print_table(summary(report))
    if report.interrupted:
        typer.echo("Interrupted; the same command with --resume goes on after the last closed bar.", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED)


def _agree(options: RunOptions, *, yes: bool) -> None:
    try:
        expected = asyncio.run(preflight(options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        stop(ExitCode.INTERRUPTED, NOT_BEGUN)
    confirm_run(expected, yes=yes)
