"""A command runs once for each warning of a budget, with the event on its standard input."""

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.governance.controls_document import TenantControls
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.governance.status_feed import CounterStatus
from agentic_trading.operate.budgets import AlertCommand, BudgetView
from agentic_trading.platform.errors import OptionError

APPENDS = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"


def python(code: str, *words: object) -> str:
    """Return a command that runs code in this Python."""
    return shlex.join([sys.executable, "-c", code, *map(str, words)])


def view(*spent: int, scope: ScopeKind = ScopeKind.AGENT, **changes: Any) -> BudgetView:
    """Return a view of agents that have spent so much of 100."""
    counters = tuple(
        CounterStatus(**{
            "scope": scope, "id": f"a{number}", "window": Window.DAY, "window_id": "2026-01-02",
            "most": (100, None, None), "spent": (each, 0, 0), "held": (0, 0, 0), "in_doubt": (0, 0, 0), **changes,
        })
        for number, each in enumerate(spent)
    )  # fmt: skip
    return BudgetView("place", "acme", TenantControls(), TenantControls(), counters, (), ())


def noted(command: AlertCommand, *views: BudgetView) -> list[str]:
    """Return the failures of a command for these budgets."""
    return asyncio.run(command.note(views))


def lines(file: Path) -> list[dict[str, Any]]:
    """Return the events that the command has written."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_command_gets_each_warning_once(tmp_path: Path) -> None:
    file = tmp_path / "events"
    command = AlertCommand(python(APPENDS, file))

    problems = [*noted(command, view(85, 10)), *noted(command, view(86, 90))]
    problems += noted(command, view(0, 90))  # raised, and reached again
    problems += noted(command, view(87, 90))

    assert problems == []
    found = lines(file)
    assert [(one["kind"], one["body"]["id"], one["body"]["spent"]) for one in found] == [
        ("budget.threshold_reached", "a0", 85),
        ("budget.threshold_reached", "a1", 90),
    ]
    assert {one["tenant_id"] for one in found} == {"acme"}


def test_command_gets_exhaustion_but_no_counter_of_calls(tmp_path: Path) -> None:
    file = tmp_path / "events"
    command = AlertCommand(python(APPENDS, file))

    noted(command, view(100, scope=ScopeKind.TRACE), view(5, exhausted=("nano-USD",)))

    assert [one["kind"] for one in lines(file)] == ["budget.exhausted"]


def test_command_without_shell_gets_words_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "$HOME; echo *"

    noted(AlertCommand(python(APPENDS, file)), view(85))

    assert len(lines(file)) == 1


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import sys; print('one'); sys.exit('no route')", "ended with exit code 1: no route"),
        (
            "import sys; sys.stdin.read(); sys.stdin.close(); __import__('threading').Event().wait()",
            "has not ended",
        ),
    ],
)
def test_failed_command_is_reported(code: str, problem: str) -> None:
    [told] = noted(AlertCommand(python(code), within_s=2.0), view(85))

    assert told.startswith(f"--on-alert {sys.executable} {problem}")
    assert "budget.threshold_reached" in told


def test_program_that_disappears_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "notify"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    command = AlertCommand(shlex.quote(str(program)))
    program.unlink()

    [told] = noted(command, view(85))

    assert "cannot be started (No such file or directory)" in told


def test_ten_thousand_windows_are_remembered(tmp_path: Path) -> None:
    file = tmp_path / "events"
    command = AlertCommand(python(APPENDS, file))
    noted(command, view(85))
    command._sent |= dict.fromkeys(map(str, range(9_999)))

    noted(command, view(0, 85))

    assert len(command._sent) == 10_000


@pytest.mark.parametrize("text", ["", "'open", "no-such-program --x"])
def test_unusable_command_is_refused(text: str) -> None:
    with pytest.raises(OptionError) as refused:
        AlertCommand(text)

    assert refused.value.option == "--on-alert"
