"""Sums of what calls cost, as a table and as values."""

from dataclasses import asdict
from typing import Any, cast, get_args

from rich.table import Table

from agentic_trading.app.cli.output import printable, rows, table, usd
from agentic_trading.app.options import OptionError
from agentic_trading.audit.spend import SpendReport
from agentic_trading.llm.records import Spend, SpendKey

ALLOWED: tuple[str, ...] = get_args(SpendKey)
FIGURES = ("attempts", "failed", "tokens in", "tokens out", "USD")


def spend_keys(by: str) -> tuple[SpendKey, ...]:
    """Read names with commas between, each once; raises `OptionError` for one that nothing can be summed by."""
    names = tuple(dict.fromkeys(name.strip() for name in by.split(",") if name.strip()))
    for name in names:
        if name not in ALLOWED:
            raise OptionError("--by", f"{by!r}", f"any of {', '.join(ALLOWED)}, with commas between")
    return cast(tuple[SpendKey, ...], names)


def as_table(report: SpendReport) -> Table:
    """Return a row a group and the total below them."""
    drawn = rows(table(*report.by, *FIGURES, right=FIGURES), (row.key + _figures(row) for row in report.rows))
    drawn.add_section()
    total = ("total", *("" for _ in report.by[1:])) if report.by else ()
    drawn.add_row(*(printable(cell) for cell in (*total, *_figures(report.total))), style="bold")
    return drawn


def _figures(sums: Spend) -> tuple[str, ...]:
    numbers = (sums.attempts, sums.failed, sums.input_tokens, sums.output_tokens)
    return (*(f"{number:,}" for number in numbers), usd(sums.cost_nusd))


def as_values(report: SpendReport) -> dict[str, Any]:
    """Return plain values: each row with its keys by name, money in whole nano-dollars."""
    return {
        "by": report.by,
        "rows": [{**dict(zip(report.by, row.key, strict=True)), **_sums(row)} for row in report.rows],
        "total": _sums(report.total),
    }


def _sums(sums: Spend) -> dict[str, int]:
    return {name: value for name, value in asdict(sums).items() if name != "key"}
