"""Run a session from the command line: confirm the cost, draw the progress, print the report."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode, confirm, say, stop
from agentic_trading.cli.output import PlainConsole, print_table, show_json, terminal_is_watching
from agentic_trading.desk.cli.report import write_report
from agentic_trading.desk.cli.summary import summary
from agentic_trading.desk.inference import InferenceGate
from agentic_trading.desk.session.options import RunOptions
from agentic_trading.desk.session.preflight import Preflight, preflight
from agentic_trading.desk.session.report import RunProgress
from agentic_trading.desk.session.run import run_session
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.lines import usd

NOT_STARTED = "not started: no call was sent and no file was written"


def confirm_run(expected: Preflight, *, yes: bool) -> None:
    """Print the estimate on standard error, and return only if the user confirms the cost.

    Does not ask with `yes` or if the run is free. The command ends if the user declines or there is no
    terminal.
    """
    say(preflight_text(expected), err=True)
    confirm("the cost", yes=yes or expected.is_free, otherwise=NOT_STARTED)


def preflight_text(expected: Preflight) -> str:
    """Return the estimated calls, cost and time of a run with a model, and its limits."""
    who = f"{expected.provider} ({', '.join(expected.models)})"
    return f"{who}: {_calls(expected)}, {_cost(expected)}, {_time(expected)}."


def _calls(expected: Preflight) -> str:
    limit = "" if expected.max_calls is None else f", never more than {expected.max_calls:,}"
    if expected.calls is None:
        return f"an unknown number of calls, because the data is a stream{limit}"
    return f"about {pluralize(expected.calls, 'call')}{limit or ', more if answers are not accepted'}"


def _cost(expected: Preflight) -> str:
    rest = "the rest of " if expected.goes_on else ""
    budget = f"never more than {rest}--budget-usd {usd(expected.budget_nusd)}"
    if expected.calls == 0 or expected.bound_nusd is None:
        return budget
    if expected.first_nusd > expected.budget_nusd:
        return f"{budget}, which is too small for the first call: it needs {usd(expected.first_nusd)} USD"
    if expected.is_free:
        return "at most 0 USD"
    return f"at most {usd(expected.bound_nusd)} USD if all are accepted, {budget}"


def _time(expected: Preflight) -> str:
    if expected.seconds is None or expected.seconds_a_call is None:
        return "until the stream ends"
    if expected.calls == 0:
        return "no time for calls"
    minutes = round(expected.seconds / 60)
    duration = f"about {pluralize(minutes, 'minute')}" if minutes else "less than a minute"
    return f"{duration} at {expected.seconds_a_call:.0f} s per call"


OnProgress = Callable[[RunProgress], None]


@contextmanager
def bar_on_standard_error() -> Iterator[OnProgress]:
    """Show a progress bar on standard error, and remove it at the end."""
    columns = (
        TextColumn("{task.fields[as_of]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("bars · {task.fields[calls]} calls · {task.fields[fills]} fills"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with ProgressBar(*columns, console=PlainConsole(stderr=True), transient=True) as drawn:
        task = drawn.add_task("", total=None, as_of="starting", calls=0, fills=0)

        def on_progress(now: RunProgress) -> None:
            drawn.update(
                task,
                completed=now.bars_done,
                total=now.bars_total,
                as_of=f"{now.as_of:%Y-%m-%d %H:%M}",
                calls=now.calls,
                fills=now.fills,
            )

        yield on_progress


@contextmanager
def no_bar() -> Iterator[OnProgress]:
    """Show no progress bar, because there is no terminal or a program reads the output."""
    yield lambda _now: None


def run_and_print(
    options: RunOptions, *, yes: bool, as_json: bool, page: bool = False, gate: InferenceGate
) -> None:
    """Run a session and print its report. If it asks models, the user confirms the cost first.

    With `page`, the page of the run is written too. The exit code is 1 if the result breaks `gate`.
    """
    progress = bar_on_standard_error() if terminal_is_watching() and not as_json else no_bar()
    if options.asks_models:
        _confirm_cost(options, yes=yes)
    try:
        with progress as on_progress:
            report = run_async(run_session(options, on_progress=on_progress))
    except (KeyboardInterrupt, asyncio.CancelledError):
        # This is the second signal, or one before the session began: otherwise the session itself would stop
        # in order.
        stop(ExitCode.INTERRUPTED, "stopped immediately. All answers so far are on disk")
    if as_json:
        show_json(report)
    else:
        print_table(summary(report, has_page=page))
    if page:
        write_report(options.out, run=report.run_number, rate=options.inference_rate, err=True)
    if report.interrupted:
        say("Interrupted. To continue after the last closed bar, repeat the command with --resume.", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED)
    if problems := gate.problems(report.pnl, report.inference):
        stop(ExitCode.FOUND_WRONG, ". ".join(problems))


def _confirm_cost(options: RunOptions, *, yes: bool) -> None:
    try:
        expected = run_async(preflight(options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        stop(ExitCode.INTERRUPTED, NOT_STARTED)
    confirm_run(expected, yes=yes)
