"""Answers of the commands that read logs, and the tables of `spend` and `audit verify`."""

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentic_trading.audit.logs import MergedRecords
from agentic_trading.audit.spend import SpendReport
from agentic_trading.audit.trace import full_id
from agentic_trading.cancellation import run_async
from agentic_trading.cli.output import rows, table, unbroken
from agentic_trading.llm.facts import RecordQuery
from agentic_trading.llm.store import Spend, SpendKey
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.lines import printable, usd
from agentic_trading.operate.log_check import KnownEnd, LogCheck
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.port_adapters import records_of

T = TypeVar("T")

ALLOWED: tuple[str, ...] = get_args(SpendKey)
FIGURES = ("attempts", "failed", "tokens in", "tokens out", "USD")
RARE_FIGURES = ("USD billed", "in doubt", "USD in doubt", "unmetered", "USD unmetered", "refused", "recorded")
"""Shown only if a row has a value."""


def ask_logs(logs: Sequence[Path], question: Callable[[MergedRecords], Awaitable[T]]) -> T:
    """Return the result of `question` on logs. Raises `StoreError` if one of them cannot be read."""

    async def asked() -> T:
        async with AsyncExitStack() as opened:
            each = [await opened.enter_async_context(aclosing(records_of(log))) for log in logs]
            return await question(MergedRecords(each))

    return run_async(asked())


async def with_whole_trace(records: MergedRecords, query: RecordQuery, tenant: str | None) -> RecordQuery:
    """Return a query in which the beginning of a trace's id is the id. Raises `AmbiguousIdError`."""
    if not query.trace_id:
        return query
    return replace(query, trace_id=await full_id(records, query.trace_id, of="trace", tenant=tenant))


def spend_keys(by: str) -> tuple[SpendKey, ...]:
    """Parse comma-separated keys, and drop repeated ones. Raises `OptionError` for an unknown key."""
    names = tuple(dict.fromkeys(name.strip() for name in by.split(",") if name.strip()))
    for name in names:
        if name not in ALLOWED:
            raise OptionError("--by", f"{by!r}", f"any of {', '.join(ALLOWED)}, separated by commas")
    return cast(tuple[SpendKey, ...], names)


def as_table(report: SpendReport) -> Table:
    """Return a table with a row for each group, and the total."""
    figures = _figures(report.total, report.total)
    cells = (row.key + tuple(_figures(row, report.total).values()) for row in report.rows)
    drawn = rows(table(*report.by, *figures, right=tuple(figures)), cells)
    drawn.add_section()
    total = ("total", *("" for _ in report.by[1:])) if report.by else ()
    drawn.add_row(*(printable(cell) for cell in (*total, *figures.values())), style="bold")
    return drawn


def _figures(sums: Spend, total: Spend) -> dict[str, str]:
    """Return the figures of a row by heading, and the rare ones only if `total` has them."""
    numbers = (sums.attempts, sums.failed, sums.input_tokens, sums.output_tokens)
    shown = dict(zip(FIGURES, (*(f"{number:,}" for number in numbers), usd(sums.cost_nusd)), strict=True))
    calls = (f"{sums.refused:,}", f"{sums.recorded:,}")
    doubts = (f"{sums.in_doubt:,}", usd(sums.in_doubt_nusd))
    unmetered = (f"{sums.unmetered:,}", usd(sums.unmetered_nusd))
    rare = (usd(sums.billed_nusd), *doubts, *unmetered, *calls)
    has_any = (
        total.billed_nusd,
        *[total.in_doubt] * 2,
        *[total.unmetered] * 2,
        total.refused,
        total.recorded,
    )
    shown.update((name, text) for name, text, any_ in zip(RARE_FIGURES, rare, has_any, strict=True) if any_)
    return shown


def as_values(report: SpendReport) -> dict[str, Any]:
    """Return a report for JSON, with money in whole nano-dollars."""
    return {
        "by": report.by,
        "rows": [{**dict(zip(report.by, row.key, strict=True)), **_sums(row)} for row in report.rows],
        "total": _sums(report.total),
    }


def _sums(sums: Spend) -> dict[str, int]:
    return {name: value for name, value in asdict(sums).items() if name != "key"}


def checked_log(found: LogCheck) -> RenderableType:
    """Return the verdict on a log, with its findings and notes."""
    verdict = Text(found.verdict, "bold green" if found.verdict == "whole" else "bold red")
    intact = unbroken(pluralize(found.lines, "line"), f"verified in {printable(str(found.path))}")
    lines = [unbroken(finding.verdict, printable(str(finding))) for finding in found.findings]
    notes = [unbroken("note", printable(note)) for note in found.notes]
    return Group(verdict, intact, unbroken("head", f"{found.head}@{found.lines}"), *lines, *notes)


_HEAD = re.compile(r"([0-9a-f]{16,64})@([1-9][0-9]{0,18})")


def known_end(text: str) -> KnownEnd:
    """Parse `HASH@LINE`. Raises `OptionError` if it is not."""
    found = _HEAD.fullmatch(text)
    if found is None:
        allowed = "HASH@LINE: the hash of a line, or its first 16 or more digits, and the number of the line"
        raise OptionError("--head", repr(text), allowed)
    return KnownEnd(int(found[2]), found[1], f"--head {found[1][:8]}…@{found[2]}")


def log_values(found: LogCheck) -> dict[str, Any]:
    """Return the check of a log for JSON."""
    findings = [
        {**finding.model_dump(mode="json", exclude={"run"}), "run": finding.run and finding.run[1]}
        for finding in found.findings
    ]
    return {
        "verdict": found.verdict,
        "log": found.path,
        "lines": found.lines,
        "head": found.head,
        "findings": findings,
        "notes": found.notes,
    }
