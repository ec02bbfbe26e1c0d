"""Sums of what calls cost, as a table and as values."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast, get_args

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from agentic_trading.app.cli.output import printable, rows, table, usd
from agentic_trading.app.options import OptionError
from agentic_trading.audit.spend import SpendReport
from agentic_trading.llm.store import Spend, SpendKey

ALLOWED: tuple[str, ...] = get_args(SpendKey)
FIGURES = ("attempts", "failed", "tokens in", "tokens out", "USD")
UNBOUNDED = 100_000


def spend_keys(by: str) -> tuple[SpendKey, ...]:
    """Read names with commas between, each once; raises `OptionError` for one that nothing can be summed by."""
    names = tuple(dict.fromkeys(name.strip() for name in by.split(",") if name.strip()))
    for name in names:
        if name not in ALLOWED:
            raise OptionError("--by", f"{by!r}", f"any of {', '.join(ALLOWED)}, with commas between")
    return cast(tuple[SpendKey, ...], names)


def as_table(report: SpendReport, width: int) -> RenderableType:
    """Return a row a group and the total below them.

    Where the keys would not fit into `width` columns with the figures, all but the last key stand above the rows
    that share them.
    """
    drawn = _one_row_a_group(report)
    return drawn if _columns_of(drawn) <= width or len(report.by) < 2 else _under_headings(report)


def _one_row_a_group(report: SpendReport) -> Table:
    drawn = rows(table(*report.by, *FIGURES, right=FIGURES), (row.key + _figures(row) for row in report.rows))
    drawn.add_section()
    total = ("total", *("" for _ in report.by[1:])) if report.by else ()
    drawn.add_row(*(printable(cell) for cell in (*total, *_figures(report.total))), style="bold")
    return drawn


def _under_headings(report: SpendReport) -> Group:
    """Return rows below the keys that they share, all in the same columns."""
    lines: list[tuple[str, ...]] = [(report.by[-1], *FIGURES)]
    lines += [(f"  {printable(row.key[-1])}", *_figures(row)) for row in report.rows]
    lines += [("total", *_figures(report.total))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *below, total = (_in_columns(line, widths) for line in lines)
    drawn = [Text(head, "bold")]
    shared: tuple[str, ...] = ()
    for row, line in zip(report.rows, below, strict=True):
        if row.key[:-1] != shared:
            shared = row.key[:-1]
            drawn.append(Text(printable(" · ".join(shared)), "cyan"))
        drawn.append(Text(line))
    return Group(*drawn, Text(total, "bold"))


def _in_columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    key, *figures = cells
    aligned = (figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True))
    return "  ".join((key.ljust(widths[0]), *aligned))


def _columns_of(drawn: Table) -> int:
    """Return how wide a table would be if it had all the room it wants."""
    roomy = Console(width=UNBOUNDED)
    return Measurement.get(roomy, roomy.options, drawn).maximum


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
