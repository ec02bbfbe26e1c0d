"""A run from the command line: its cost confirmed, its progress drawn, its report printed."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode, confirm, say, stop
from agentic_trading.cli.output import PlainConsole, print_table, show_json, terminal_is_watching, usd
from agentic_trading.desk.cli.summary import summary
from agentic_trading.desk.session.options import RunOptions
from agentic_trading.desk.session.preflight import Preflight, preflight
from agentic_trading.desk.session.report import RunProgress
from agentic_trading.desk.session.run import run_session
from agentic_trading.operate.choices import pluralize

NOT_STARTED = "not started; nothing sent, nothing written"


def confirm_run(expected: Preflight, *, yes: bool) -> None:
    """Print what is expected on standard error, and go on only if the user confirms it.

    With `yes`, or if the run can cost nothing, no question is put. Without a terminal, and after a no, the command ends.
    """
    say(preflight_text(expected), err=True)
    confirm("the cost", yes=yes or expected.is_free, otherwise=NOT_STARTED)


def preflight_text(expected: Preflight) -> str:
    """Return what a run with a model will probably cost and take, and its limits."""
    who = f"{expected.provider} ({', '.join(expected.models)})"
    return f"{who}: {_calls(expected)}, {_cost(expected)}, {_time(expected)}."


def _calls(expected: Preflight) -> str:
    limit = "" if expected.max_calls is None else f", never more than {expected.max_calls:,}"
    if expected.calls is None:
        return f"as many calls as the stream gives reason for{limit}"
    return f"about {pluralize(expected.calls, 'call')}{limit or ', more where answers are not accepted'}"


def _cost(expected: Preflight) -> str:
    rest = "what is left of " if expected.goes_on else ""
    budget = f"never more than {rest}--budget-usd {usd(expected.budget_nusd)}"
    if expected.calls == 0 or expected.bound_nusd is None:
        return budget
    if expected.first_nusd > expected.budget_nusd:
        return f"{budget}, into which the first of them does not fit: it needs {usd(expected.first_nusd)}"
    if expected.is_free:
        return "at most 0 USD"
    return f"at most {usd(expected.bound_nusd)} USD if all are accepted, {budget}"


def _time(expected: Preflight) -> str:
    if expected.seconds is None or expected.seconds_a_call is None:
        return "for as long as the stream lasts"
    if expected.calls == 0:
        return "no time to speak of"
    minutes = round(expected.seconds / 60)
    duration = f"about {pluralize(minutes, 'minute')}" if minutes else "less than a minute"
    return f"{duration} at {expected.seconds_a_call:.0f} s a call"


OnProgress = Callable[[RunProgress], None]


@contextmanager
def bar_on_standard_error() -> Iterator[OnProgress]:
    """Draw a bar of the session's progress on standard error; it is gone at the end."""
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
    """Draw nothing: there is no terminal, or a program reads."""
    yield lambda _now: None


def run_and_print(options: RunOptions, *, yes: bool, as_json: bool) -> None:
    """Run a session, once the user confirms what a model will cost, and print its report."""
    progress = bar_on_standard_error() if terminal_is_watching() and not as_json else no_bar()
    if options.asks_models:
        _confirm_cost(options, yes=yes)
    try:
        with progress as on_progress:
            report = run_async(run_session(options, on_progress=on_progress))
    except (KeyboardInterrupt, asyncio.CancelledError):  # a second time, or before the session began
        stop(ExitCode.INTERRUPTED, "ended at once; what was answered is on disk")
    if as_json:
        show_json(report)
    else:
        print_table(summary(report))
    if report.interrupted:
        say("Interrupted; the same command with --resume goes on after the last closed bar.", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED)


def _confirm_cost(options: RunOptions, *, yes: bool) -> None:
    try:
        expected = run_async(preflight(options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        stop(ExitCode.INTERRUPTED, NOT_STARTED)
    confirm_run(expected, yes=yes)
