"""`replay run` on the record of a gateway or of the HTTP server, which no `run` made."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote

import typer
from rich.text import Text

from agentic_trading.audit.logs import logs_at
from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import INTERRUPTED, ExitCode, say
from agentic_trading.cli.look_tables import checked_log, log_values
from agentic_trading.cli.output import facts, print_table, show_json, unbroken
from agentic_trading.cli.settings import configured
from agentic_trading.operate.lines import printable
from agentic_trading.operate.log_check import LogCheck, audit_log
from agentic_trading.operate.session_folder import SessionFolder
from agentic_trading.platform.errors import OptionError
from agentic_trading.server.replay_command import replay_command
from agentic_trading.server.replay_report import CommandReplay


def refuse_session_options(options: Mapping[str, object]) -> None:
    """Raise `OptionError` if an option of sessions is given, because it would have no effect."""
    for option, value in options.items():
        if value:
            was = f"{value}, given with a COMMAND or a folder without a run"
            raise OptionError(option, was, f"{option} with a session of `run`")


def replay_folder(
    record: Path,
    words: Sequence[str],
    *,
    key: str = "",
    volatile: Sequence[str] = (),
    allow_incomplete: bool,
    as_json: bool,
) -> None:
    """Check a record, and run a program on it. Print the result, and exit with 1 if it is different.

    Without a program, the record is only checked.
    """
    configured()
    _check_words(record, words, {"--key": key, "--volatile": ", ".join(volatile)})
    checks = run_async(_checked(record))
    if not words:
        _show_checks(record, checks, as_json=as_json)
        return
    for finding in (finding for check in checks for finding in check.findings):
        if not allow_incomplete:
            raise finding.error(". With `--allow-incomplete`, the intact lines are replayed")
        say(f"Warning: {finding}", err=True)
    replaying = replay_command(record.resolve(), words, key=key, volatile=volatile, stdout_is_ours=as_json)
    report = run_async(replaying)
    if as_json:
        show_json(report)
    else:
        _print(report, key=key)
    _exit(report)


def _exit(report: CommandReplay) -> None:
    """Exit with the code of a result that is not identical."""
    if report.stopped:
        made = report.recorded - report.unused
        say(f"{INTERRUPTED} {made:,} of {report.recorded:,} recorded attempts were made again.", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not report.identical:
        raise typer.Exit(ExitCode.FOUND_WRONG)


def _check_words(record: Path, words: Sequence[str], options: Mapping[str, str]) -> None:
    """Raise `OptionError` for a program on a session of `run`, and for `options` without a program."""
    if words and SessionFolder(record).manifest(1).exists():
        was = f"given with {record}, a session of `run`"
        raise OptionError("COMMAND", was, "the record of a gateway or of `serve`, or no COMMAND")
    for option, value in options.items():
        if value and not words:
            raise OptionError(option, f"{value!r}, given without a COMMAND", f"{option} with -- COMMAND")


def _show_checks(record: Path, checks: Sequence[LogCheck], *, as_json: bool) -> None:
    for check in checks:
        if as_json:
            show_json(log_values(check))
        else:
            print_table(checked_log(check))
    command = f"agentic-trading replay run {quote(str(record))} -- COMMAND"
    say(f"No call was repeated. To run your program on this record: {command}", err=True)
    if any(check.findings for check in checks):
        raise typer.Exit(ExitCode.FOUND_WRONG)


async def _checked(record: Path) -> list[LogCheck]:
    return [await audit_log(log) for log in await asyncio.to_thread(logs_at, record) or [record]]


def _print(report: CommandReplay, *, key: str) -> None:
    verdict = Text("identical", "bold green") if report.identical else Text("different", "bold red")
    if report.stopped:
        verdict = Text("interrupted", "bold yellow")
    record, replay = f"sha256:{report.recorded_digest}", f"sha256:{report.digest}"
    print_table(verdict, unbroken("record", record), unbroken("replay", replay), facts(_rows(report, key)))


def _rows(report: CommandReplay, key: str) -> Iterator[tuple[str, str]]:
    made = (
        f"{report.matched:,} matched · {report.different:,} with another result · {report.misses:,} missing"
    )
    yield "attempts", f"{report.recorded:,} recorded · {made} · {report.unused:,} unused"
    if report.volatile:
        yield "volatile", f"{report.volatile:,} matched without volatile texts"
    if len(report.keys) > 1:
        recorded = " · ".join(f"{printable(name)} {count:,}" for name, count in report.keys.items())
        # Only after a difference, because a program may well have used all of the keys.
        hint = "" if key or report.identical else ". For the program of one key, use --key NAME"
        yield "API keys", f"{recorded}{hint}"
    if report.repeated:
        times = "1 request has" if report.repeated == 1 else f"{report.repeated:,} requests have"
        yield "equal", f"{times} several results. Each call gets the next one, in any process"
    yield "exit code", str(report.exit_code)
    if report.interrupted:
        yield "interrupted", f"{report.interrupted:,} recorded without an answer"
    for message in report.unanswered:
        yield "interrupted", printable(message)
    for message in report.missed:
        yield "difference", printable(message)
