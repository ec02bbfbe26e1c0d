"""Budgets on the command line: what stands, what is ordered, and what a wrong word is told."""

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from tests.cli.conftest import Command

NOBODY_LISTENS = "redis://127.0.0.1:1"


@pytest.fixture
def place(session: Path, tmp_path: Path) -> Path:
    """Return a copy of a session's folder."""
    return Path(shutil.copytree(session, tmp_path / "session"))


def test_budget_show_prints_remaining_budget(command: Command, place: Path) -> None:
    told = command("budget", "show", "--store", place)

    assert told.code == ExitCode.DONE
    assert "scope           window  unit     limit     spent      held  in doubt      left" in told.out
    assert "tenant default  total   USD   5.000000  0.000000" in told.out
    assert "worker (ended)" in told.out


def test_set_limit_is_shown_until_counted(command: Command, place: Path) -> None:
    set_ = command(
        "budget", "set", "agent", "*", "--per", "day", "--calls", 10, "--why", "a try", "--store", place
    )
    shown = command("budget", "show", "--store", place)

    assert "limit                 agent * per day: 10 calls" in set_.out
    assert "version 2" in set_.out
    assert "Set, not counted yet" in shown.out
    assert "agent * per day: 10 calls" in shown.out
    assert "tenant * in all" not in shown.out  # its counter is shown


def test_remove_requires_an_existing_limit(command: Command, place: Path) -> None:
    wrong = command("budget", "set", "agent", "*", "--remove", "--store", place)
    right = command("budget", "set", "tenant", "*", "--remove", "--store", place)

    assert wrong.code == ExitCode.BAD_INPUT
    assert wrong.err == "Error: agent * in all: no such limit is set. Allowed: tenant * in all: 5 USD\n"
    assert (right.code, "none" in right.out) == (ExitCode.DONE, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("tenants", "*", "--usd", "1"),
            "SCOPE is 'tenants'. Allowed: call, trace, agent, workflow, principal, tenant",
        ),
        (
            ("tenant", "*", "--usd", "1", "--per", "week"),
            "--per is 'week'. Allowed: none, minute, hour, day, month",
        ),
        (
            ("tenant", "*", "--usd", "-3"),
            "--usd is -3. Allowed: 0 (nothing that costs may run) to 9007199.254",
        ),
        (("tenant", "*", "--usd", "1e999999"), "--usd is 1e999999. Allowed: 0 "),
        (("tenant", "*", "--usd", "nan"), "--usd is 'nan'. Allowed: an amount of dollars, such as 25 or 0.5"),
        (("tenant", "*", "--usd", "much"), "--usd is 'much'. Allowed: an amount of dollars"),
        (("tenant", "*", "--usd", "1e-10"), "--usd is '1e-10'. Allowed: whole nano-dollars"),
        (("tenant", "*", "--calls", "-1"), "--calls is -1. Allowed: 0 (nothing may run) to "),
        (("tenant", "*", "--tokens", str(10**20)), f"--tokens is {10**20}. Allowed: 0 "),
        (("tenant", "*"), "the ceiling is left out. Allowed: --usd, --tokens or --calls"),
        (("tenant", "*", "--remove", "--usd", "1"), "--remove is given together with a ceiling"),
        (("tenant", "", "--usd", "1"), "ID is empty. Allowed: the id of one tenant, or '*'"),
        (("tenant", "other", "--usd", "1"), "default has no such tenant. Allowed: default, *"),
        (("workflow", "trading", "--usd", "1"), "Allowed: analysis, planning, execution, general, *"),
        (("tenant", "*", "--usd", "5"), "tenant * in all: it is 5 USD already. Allowed: another ceiling"),
        (("tenant", "*", "--usd", "1", "--tenant", "*"), "only halts can apply to all tenants"),
        (
            ("tenant", "*", "--usd", "1", "--store", "nowhere"),
            "--store is nowhere, where there is no log. Allowed: ",
        ),
        (
            ("tenant", "*", "--usd", "1", "--ledger", "http://h"),
            "--ledger is not the URL of a ledger",
        ),
        (("tenant", "*", "--usd", "1", "--ledger", "redis://h:x"), "Allowed: redis://HOST:PORT"),
    ],
)
def test_invalid_limit_error_names_allowed_values(
    words: tuple[str, ...], message: str, command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTIC_STORE", str(place))

    told = command("budget", "set", *words)

    assert (told.code, told.out) == (ExitCode.BAD_INPUT, "")
    assert message in told.err


def test_zero_cost_limit_is_accepted(command: Command, place: Path) -> None:
    assert (
        "tenant * in all: 0 USD" in command("budget", "set", "tenant", "*", "--usd", 0, "--store", place).out
    )


@pytest.mark.parametrize("words", [("show",), ("set", "tenant", "*", "--usd", "1"), ("rebuild",)])
def test_unreachable_server_error_hides_password(
    words: tuple[str, ...], command: Command, place: Path
) -> None:
    told = command("budget", *words, "--store", place, "--ledger", "redis://me:secret@127.0.0.1:1")

    assert told.code == ExitCode.LOG_UNUSABLE
    assert "127.0.0.1:1" in told.err
    assert "secret" not in told.err


@pytest.mark.parametrize(
    "words", [("budget", "show"), ("halt",), ("budget", "set", "agent", "a", "--usd", "1")]
)
def test_unreadable_controls_are_left_unchanged(
    words: tuple[str, ...], command: Command, place: Path
) -> None:
    board = place / "controls-default.json"
    board.write_text("{")

    told = command(*words, "--store", place)

    assert told.code == ExitCode.LOG_UNUSABLE
    assert f"{board} is not a controls document" in told.err
    assert board.read_text() == "{"


def test_rebuild_needs_a_server(command: Command, place: Path) -> None:
    told = command("budget", "rebuild", "--store", place)

    assert told.code == ExitCode.BAD_INPUT
    assert "Budgets in a folder need no rebuild" in told.err


def test_history_shows_only_chosen_tenant(command: Command, place: Path) -> None:
    told = command("budget", "history", "--store", place)
    other = command("budget", "history", "--store", place, "--tenant", "acme")

    assert "no limit -> 5 USD, by run: --budget-usd" in told.out
    assert other.out == "  No budget events of tenant acme.\n"


def test_budget_commands_print_json(command: Command, place: Path) -> None:
    shown = json.loads(command("budget", "show", "--store", place, "--json").out)
    history = json.loads(command("budget", "history", "--store", place, "--json").out)
    ordered = json.loads(command("halt", "--store", place, "--json").out)

    assert shown["counters"][0]["most"] == [5_000_000_000, None, None]
    assert [one["what"] for one in history] == ["command"]
    assert ordered["halts"][0]["scope"] == "tenant"


def test_watch_into_pipe_prints_changes_only(command: Command, place: Path) -> None:
    told = command("budget", "watch", "--store", place, "--seconds", 0.6)

    assert told.code == ExitCode.DONE
    assert told.out.count("Budgets of default") == 1
    assert "\x1b" not in told.out


def test_watch_runs_command_for_warning(command: Command, place: Path, tmp_path: Path) -> None:
    [report] = place.glob("budget-*.json")
    status = json.loads(report.read_text(encoding="utf-8"))
    status["counters"][0] |= {"most": [100, None, None], "spent": [85, 0, 0]}
    report.write_text(json.dumps(status), encoding="utf-8")
    code = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"

    told = command(
        *("budget", "watch", "--store", place, "--seconds", 0.6),
        *("--on-alert", shlex.join([sys.executable, "-c", code, str(tmp_path / "events")])),
    )

    [line] = (tmp_path / "events").read_text(encoding="utf-8").splitlines()
    assert told.code == ExitCode.DONE
    assert json.loads(line)["kind"] == "budget.threshold_reached"


def test_watch_warns_of_failed_command(command: Command, place: Path) -> None:
    [report] = place.glob("budget-*.json")
    status = json.loads(report.read_text(encoding="utf-8"))
    status["counters"][0] |= {"most": [100, None, None], "spent": [85, 0, 0]}
    report.write_text(json.dumps(status), encoding="utf-8")

    told = command("budget", "watch", "--store", place, "--seconds", 0.3, "--on-alert", "false")

    assert told.code == ExitCode.DONE
    assert "Warning: --on-alert false ended with exit code 1" in told.err


def test_watch_waits_for_unreachable_server(command: Command) -> None:
    told = command("budget", "watch", "--ledger", NOBODY_LISTENS, "--seconds", 0.3)

    assert told.code == ExitCode.DONE
    assert "on the Redis of the ledger cannot be reached: no Redis answers at " in told.out


def test_watch_in_terminal_redraws_in_place(place: Path) -> None:
    ours, theirs = pty.openpty()
    program = "from agentic_trading.cli.main import main; main()"
    words = ["budget", "watch", "--store", str(place), "--seconds", "0.6"]
    with subprocess.Popen([sys.executable, "-c", program, *words], stdout=theirs, stderr=theirs) as child:
        os.close(theirs)
        drawn = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)

    assert child.returncode == ExitCode.DONE
    assert drawn.count(b"Budgets of default") > 1
    assert b"\x1b[1A" in drawn  # up again, line by line


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side has closed it
        return b""


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (
            ("agent", "cmt-anlyst"),
            "agent cmt-anlyst: .* knows this agent. Allowed: cmt-analyst, .*or --force",
        ),
        (("principal", "desk-b"), "principal desk-b: .* knows this principal. Allowed: desk-a, or --force"),
        (("trace", "t-1"), "trace t-1: .* knows this trace. Allowed: .*or --force"),
        (("call", "c-1"), "call c-1: .* knows this call. Allowed: .*or --force"),
        (("agent", "*", "--tenant", "defualt"), "tenant defualt: .* knows this tenant. Allowed: default"),
    ],
)
def test_limit_on_unknown_name_suggests_names(
    words: tuple[str, ...], allowed: str, command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = place / "policy.toml"
    policy.write_text('[principals.desk-a]\ntenants = ["default"]\nmodels = ["rules/*"]\n')
    monkeypatch.setenv("AGENTIC_POLICY_FILE", str(policy))

    told = command("budget", "set", *words, "--usd", 1, "--store", place)
    forced = command("budget", "set", *words, "--usd", 1, "--store", place, "--force")

    assert (told.code, told.out) == (ExitCode.BAD_INPUT, "")
    assert re.search(allowed, told.err), told.err
    assert forced.code == ExitCode.DONE


@pytest.mark.parametrize("words", [("agent", "cmt-analyst"), ("agent", "*"), ("principal", "desk-a")])
def test_limit_on_known_name_prints_place(
    words: tuple[str, ...], command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = place / "policy.toml"
    policy.write_text('[principals.desk-a]\ntenants = ["default"]\nmodels = ["rules/*"]\n')
    monkeypatch.setenv("AGENTIC_POLICY_FILE", str(policy))

    told = command("budget", "set", *words, "--usd", 1, "--store", place)
    as_json = json.loads(command("budget", "set", *words, "--usd", 2, "--store", place, "--json").out)

    assert told.code == ExitCode.DONE
    assert f"place                 {place}" in told.out
    assert as_json["place"] == str(place)


def test_star_shows_budgets_of_every_tenant(command: Command, place: Path) -> None:
    shown = command("budget", "show", "--tenant", "*", "--store", place)
    as_json = json.loads(command("budget", "show", "--tenant", "*", "--store", place, "--json").out)
    watched = command("budget", "watch", "--tenant", "*", "--store", place, "--seconds", 0.1)

    assert "Budgets of default" in shown.out
    assert "tenant default  total   USD" in shown.out
    assert [one["tenant"] for one in as_json] == ["default"]
    assert "Budgets of default" in watched.out


def test_star_without_reported_tenants_is_empty(command: Command, place: Path) -> None:
    for report in place.glob("budget-*.json"):
        report.unlink()

    shown = command("budget", "show", "--tenant", "*", "--store", place)

    assert (shown.code, shown.out) == (ExitCode.DONE, f"  No worker has reported a tenant at {place}.\n")
