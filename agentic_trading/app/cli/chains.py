"""Decision chains as tables, trees and values."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from agentic_trading.app.cli.output import heading, moment, rows, table, usd
from agentic_trading.app.cli.telling import told
from agentic_trading.audit.trace import CallNode, TraceNode, TraceTree
from agentic_trading.audit.why import Why
from agentic_trading.canonical import Fragment
from agentic_trading.llm.records import TraceSummary


def chain_table(chains: Sequence[TraceSummary]) -> Table:
    """Return a row a chain, narrow enough for 80 columns: an id that is wrapped cannot be copied."""
    drawn = table("last record", "subject", "calls", "USD", "trace", right=("calls", "USD"))
    return rows(
        drawn,
        (
            (
                chain.last[:16].replace("T", " "),
                chain.subject or "-",
                f"{chain.attempts:,}",
                usd(chain.cost_nusd),
                chain.trace_id,
            )
            for chain in chains
        ),
    )


def tree_of(trace_id: str, chain: TraceTree) -> RenderableType:
    """Return a whole chain, each node below its cause."""
    drawn = Tree(Text(f"trace {trace_id} · {len(chain.nodes)} steps · {usd(chain.cost_nusd)} USD", "bold"))
    below = {-1: drawn}
    for row in chain.rows():
        below[row.depth] = below[row.depth - 1].add(_label(row.node))
    orphans = [
        f"  {node.kind} {node.id} names a cause that is not here: {node.cause}" for node in chain.orphans
    ]
    return Group(drawn, *(Text(orphan, "red") for orphan in orphans))


def path_of(answer: Why) -> RenderableType:
    """Return the way from the first cause to the record, and what else came of its cause and of itself."""
    path = Table.grid(padding=(0, 1, 0, 0))
    for number, node in enumerate(answer.path, start=1):
        path.add_row(Text(f"{number}", "dim"), _label(node))
    parts: list[RenderableType] = [Text(f"why {answer.record_id}", "bold"), path]
    if answer.missing_cause:
        parts.append(Text(f"the path breaks off: {answer.missing_cause} is not in this trace", "red"))
    for title, nodes in (("Beside it", answer.siblings), ("What came of it", answer.effects)):
        if nodes:
            parts.extend([heading(title), *(_label(node) for node in nodes)])
    return Group(*parts)


def _label(node: TraceNode) -> Text:
    label = Text.assemble((node.kind, "bold cyan"), "  ", (moment(node.as_of), "dim"), "  ", (node.id, "dim"))
    for line in told(node):
        label.append(f"\n  {line}")
    return label


def values_of(chain: TraceTree) -> list[dict[str, Any]]:
    """Return every step with its depth, in the order of the tree; records are as they stand in the log."""
    return [{"depth": row.depth, **_value(row.node)} for row in chain.rows()]


def values_of_path(answer: Why) -> dict[str, Any]:
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
