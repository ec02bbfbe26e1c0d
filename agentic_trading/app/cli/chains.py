"""Decision chains as tables, trees and values."""

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from agentic_trading.app.cli.chain_outcome import chain_outcome
from agentic_trading.app.cli.output import heading, format_time, printable, rows, table, usd
from agentic_trading.app.cli.step_text import step_text
from agentic_trading.audit.trace import CallNode, TraceNode, TraceTree
from agentic_trading.audit.causal_path import CausalPath
from agentic_trading.canonical import Fragment
from agentic_trading.llm.records import Records, TraceSummary

Listed = tuple[TraceSummary, str]
"""A chain, and what came of it."""

ROOM_FOR_FIGURES: Final = 100
"""Columns from which on a list of chains has room for the number of calls and their cost."""


def chain_table(chains: Sequence[Listed], width: int) -> Table:
    """Return a row a chain, in 80 columns without figures: an id that is wrapped cannot be copied."""
    figures = ("calls", "USD") if width >= ROOM_FOR_FIGURES else ()
    drawn = table("last record", "subject", *figures, "what came of it", "trace", right=figures)
    drawn.columns[-1].no_wrap = True
    return rows(
        drawn,
        (
            (
                chain.last[:16].replace("T", " "),
                chain.subject or "-",
                *((f"{chain.attempts:,}", usd(chain.cost_nusd)) if figures else ()),
                outcome or "-",
                chain.trace_id,
            )
            for chain, outcome in chains
        ),
    )


async def listed(records: Records, limit: int, *, with_calls: bool, tenant: str | None) -> list[Listed]:
    """Return the newest chains with what came of each: a tenant's, or without one all of them."""
    chains = await records.traces(limit, with_calls=with_calls, tenant=tenant)
    return [(chain, chain_outcome(await records.trace(chain.trace_id, tenant=tenant))) for chain in chains]


def tree_of(trace_id: str, chain: TraceTree) -> RenderableType:
    """Return a whole chain, each node below its cause; where tenants share it, with whose each is."""
    drawn = Tree(Text(f"trace {trace_id} · {len(chain.nodes)} steps · {usd(chain.cost_nusd)} USD", "bold"))
    below = {-1: drawn}
    is_shared = len(chain.tenants) > 1
    for row in chain.rows():
        below[row.depth] = below[row.depth - 1].add(_label(row.node, is_shared=is_shared))
    orphans = [
        f"  {node.kind} {node.id} names a cause that is not here: {node.cause}" for node in chain.orphans
    ]
    cycles = [f"  these name each other as their cause: {', '.join(ring)}" for ring in chain.cycles]
    return Group(drawn, *(Text(odd, "red") for odd in (*orphans, *cycles)))


def path_of(answer: CausalPath) -> RenderableType:
    """Return the way from the first cause to the record, and what else came of its cause and of itself."""
    shown = (*answer.path, *answer.siblings, *answer.effects)
    is_shared = len({node.tenant for node in shown}) > 1
    path = Table.grid(padding=(0, 1, 0, 0))
    for number, node in enumerate(answer.path, start=1):
        path.add_row(Text(f"{number}", "dim"), _label(node, is_shared=is_shared))
    parts: list[RenderableType] = [Text(f"why {answer.record_id}", "bold"), path]
    if answer.missing_cause:
        parts.append(Text(f"the path breaks off: {answer.missing_cause} is not in this trace", "red"))
    for title, nodes in (("Beside it", answer.siblings), ("What came of it", answer.effects)):
        if nodes:
            parts.extend([heading(title), *(_label(node, is_shared=is_shared) for node in nodes)])
    return Group(*parts)


def _label(node: TraceNode, *, is_shared: bool) -> RenderableType:
    whose = (f"  tenant {printable(node.tenant)}", "yellow") if is_shared else ""
    name = Text.assemble(
        (node.kind, "bold cyan"), "  ", (format_time(node.as_of), "dim"), "  ", (node.id, "dim"), whose
    )
    return Group(name, *(Padding(Text(line), (0, 0, 0, 2)) for line in step_text(node)))


def values_of(chain: TraceTree) -> list[dict[str, Any]]:
    """Return every step with its depth, in the order of the tree; records are as they stand in the log."""
    return [{"depth": row.depth, **_value(row.node)} for row in chain.rows()]


def values_of_path(answer: CausalPath) -> dict[str, Any]:
    """Return the path, what stands beside it, and what came of it."""
    return {
        "record_id": answer.record_id,
        "trace_id": answer.trace_id,
        "missing_cause": answer.missing_cause,
        "path": [_value(node) for node in answer.path],
        "siblings": [_value(node) for node in answer.siblings],
        "effects": [_value(node) for node in answer.effects],
    }


def _value(node: TraceNode) -> dict[str, Any]:
    records = node.attempts if isinstance(node, CallNode) else (node.event,)
    return {
        "kind": node.kind,
        "id": node.id,
        "cause": node.cause,
        "as_of": node.as_of,
        "records": [Fragment(record.wire) for record in records],
    }
