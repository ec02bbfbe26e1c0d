"""What a run with a model will come to, told, and whether its user wants that."""

import sys

import typer

from agentic_trading.app.cli.exits import ExitCode, stop
from agentic_trading.app.cli.interrupts import ended_as_by_ctrl_c, wait_for_input
from agentic_trading.app.cli.output import usd
from agentic_trading.app.preflight import Preflight
from agentic_trading.app.plural import pluralize

NOT_BEGUN = "not begun; nothing was sent or written"


def confirm_run(expected: Preflight, *, yes: bool) -> None:
    """Tell what is expected, on standard error, and go on only if that is wanted.

    With `yes` nobody is asked; where nobody can be asked, and after a no, the command ends.
    """
    typer.echo(preflight_text(expected), err=True)
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        stop(ExitCode.BAD_INPUT, "this is no terminal, so nobody can be asked; allowed is --yes")
    if not _wanted():
        stop(ExitCode.INTERRUPTED, NOT_BEGUN)


def _wanted() -> bool:
    """Ask; Ctrl-C, SIGTERM and the end of the input are a no."""
    with ended_as_by_ctrl_c():
        try:
            return _answered()
        except (KeyboardInterrupt, EOFError):
            typer.echo(err=True)
            return False


def _answered() -> bool:
    """Ask until the answer is a yes or a no, as which nothing at all counts; `EOFError` where the input ends."""
    while True:
        typer.echo("Go on? [y/N]: ", nl=False, err=True)
        wait_for_input(sys.stdin)
        if not (line := sys.stdin.readline()):
            raise EOFError
        said = line.strip()
        if said.lower() in {"y", "yes"}:
            return True
        if said.lower() in {"", "n", "no"}:
            return False
        typer.echo(f"{said!r} is neither yes nor no; allowed are y and n", err=True)


def preflight_text(expected: Preflight) -> str:
    """Say what a run with a model will probably come to, and what it cannot pass."""
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
    if not expected.calls or expected.bound_nusd is None:
        return budget
    if expected.first_nusd > expected.budget_nusd:
        return f"{budget}, into which the first of them does not fit: it needs {usd(expected.first_nusd)}"
    if expected.bound_nusd == 0:
        return "at most 0 USD"
    return f"at most {usd(expected.bound_nusd)} USD if all are accepted, {budget}"


def _time(expected: Preflight) -> str:
    if expected.seconds is None or expected.seconds_a_call is None:
        return "for as long as the stream lasts"
    if expected.calls == 0:
        return "no time to speak of"
    minutes = round(expected.seconds / 60)
    told = f"about {pluralize(minutes, 'minute')}" if minutes else "less than a minute"
    return f"{told} at {expected.seconds_a_call:.0f} s a call"
