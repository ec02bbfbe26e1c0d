"""Decision chains as tables, trees and JSON, and the frames of a recursive question."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from agentic_trading.audit.trace import CallNode, CausalPath, TraceNode, TraceTree
from agentic_trading.canonical import Fragment
from agentic_trading.cli.exits import say
from agentic_trading.cli.output import heading, listing
from agentic_trading.client.frames import CausalFrame
from agentic_trading.operate import trace_lines
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.lines import format_time, printable, usd
from agentic_trading.operate.trace_lines import MARKS, ChainOutcome, TraceFrames, remarks


def frame_table(frames: Sequence[CausalFrame]) -> Table:
    """Return an indented line for each frame: its question, its own calls and cost, and remarks."""
    drawn = Table.grid(padding=(0, 2, 0, 0))
    for style in ("bold", "", "", "dim"):
        drawn.add_column(style=style, overflow="fold")
    for frame in frames:
        path = f"{frame.path} " if frame.depth else ""
        line = f"{'  ' * frame.depth}{MARKS[frame.state]} {path}{frame.question}"
        used = (pluralize(frame.calls, "call"), usd(frame.cost_nusd)) if frame.calls else ("", "")
        drawn.add_row(*(Text(printable(cell)) for cell in (line, *used, " · ".join(remarks(frame)))))
    return drawn


ROOM_FOR_FIGURES: Final = 100
"""The smallest width at which a list of chains shows calls and cost."""


def chain_table(chains: Sequence[ChainOutcome], width: int) -> Table:
    """Return a table of chains."""
    # A narrow table has no figures. Otherwise the id would be wrapped, and could not be copied.
    figures: dict[str, Callable[[ChainOutcome], str]] = {
        "calls": lambda one: f"{one[0].attempts:,}",
        "USD": lambda one: usd(one[0].cost_nusd),
    }
    columns: dict[str, Callable[[ChainOutcome], str]] = {
        "last record": lambda one: one[0].last[:16].replace("T", " "),
        "subject": lambda one: one[0].subject or "-",
        **(figures if width >= ROOM_FOR_FIGURES else {}),
        "outcome": lambda one: one[1] or "-",
        "trace": lambda one: one[0].trace_id,
    }
    drawn = listing(chains, columns, right=figures)
    drawn.columns[-1].no_wrap = True
    return drawn


def tree_of(trace_id: str, chain: TraceTree) -> RenderableType:
    """Return a chain as a tree, each node below its cause. A shared chain shows the tenant of each node."""
    drawn = Tree(
        Text(f"trace {printable(trace_id)} · {len(chain.nodes)} steps · {usd(chain.cost_nusd)} USD", "bold")
    )
    below = {-1: drawn}
    is_shared, frames = len(chain.tenants) > 1, TraceFrames(chain)
    for row in chain.rows():
        if not frames.hides(row.node):
            label = _label(row.node, is_shared=is_shared, before=frames.lines(row.node))
            below[row.depth] = below[row.depth - 1].add(label)
    orphans = [
        f"  {node.kind} {node.id} has a cause that is not in this trace: {node.cause}"
        for node in chain.orphans
    ]
    cycles = [f"  cycle of causes: {', '.join(ring)}" for ring in chain.cycles]
    return Group(drawn, *(Text(printable(odd), "red") for odd in (*orphans, *cycles)))


def path_of(answer: CausalPath) -> RenderableType:
    """Return the path from the first cause to the record, with siblings and effects."""
    shown = (*answer.path, *answer.quoted, *answer.siblings, *answer.effects)
    is_shared = len({node.tenant for node in shown}) > 1
    path = Table.grid(padding=(0, 1, 0, 0))
    path.add_column()
    path.add_column(overflow="fold")  # otherwise a long word of an answer would be cut
    for number, node in enumerate(answer.path, start=1):
        path.add_row(Text(f"{number}", "dim"), _label(node, is_shared=is_shared))
    parts: list[RenderableType] = [Text(printable(f"why {answer.record_id}"), "bold"), path]
    if answer.missing_cause:
        parts.append(
            Text(printable(f"the path is incomplete: {answer.missing_cause} is not in this trace"), "red")
        )
    others = {"Also quoted": answer.quoted, "Siblings": answer.siblings, "Effects": answer.effects}
    for title, nodes in others.items():
        if nodes:
            parts.extend([heading(title), *(_label(node, is_shared=is_shared) for node in nodes)])
    return Group(*parts)


def _label(node: TraceNode, *, is_shared: bool, before: Sequence[str] = ()) -> RenderableType:
    whose = (f"  tenant {printable(node.tenant)}", "yellow") if is_shared else ""
    name = Text.assemble(
        (printable(node.kind), "bold cyan"),
        "  ",
        (format_time(node.as_of), "dim"),
        "  ",
        (printable(node.id), "dim"),
        whose,
    )
    lines = (*map(printable, before), *trace_lines.step_text(node, warn_once))
    return Group(name, *(Padding(Text(line), (0, 0, 0, 2)) for line in lines))


def values_of(chain: TraceTree) -> list[dict[str, Any]]:
    """Return every step with its depth, in tree order, with the unchanged records of the log."""
    return [{"depth": row.depth, **_value(row.node)} for row in chain.rows()]


def values_of_path(answer: CausalPath) -> dict[str, Any]:
    """Return a path for JSON, with siblings and effects."""
    return {
        "record_id": answer.record_id,
        "trace_id": answer.trace_id,
        "missing_cause": answer.missing_cause,
        "path": [_value(node) for node in answer.path],
        "quoted": [_value(node) for node in answer.quoted],
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


@cache
def warn_once(text: str) -> None:
    """Print a warning, once for each text."""
    say(f"Warning: {printable(text)}", err=True)
