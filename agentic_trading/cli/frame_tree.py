"""The frames of a tree of questions: as the tree that `ask` prints, and as lines under their calls in `trace show`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from rich.table import Table
from rich.text import Text

from agentic_trading.audit.trace import CallNode, EventNode, TraceNode, TraceTree
from agentic_trading.cli.output import printable, usd
from agentic_trading.client.events import FrameClosed, FrameOpened
from agentic_trading.client.frames import CausalFrame, FrameRecords
from agentic_trading.llm.errors import EventError
from agentic_trading.operate.choices import pluralize

MARKS: Final[Mapping[str, str]] = MappingProxyType({
    "concluded": "✓",
    "repeated": "=",
    "failed": "✗",
    "unfinished": "!",
    "waiting": "?",
    "open": "…",
})
"""How a frame stands."""


NOT_GIVEN: Final = "\u2013"
"""Stands for a confidence that the model did not give: it is never filled in."""


def frame_table(frames: Sequence[CausalFrame]) -> Table:
    """Return a line for each frame, those below it indented: the question, its own calls and cost, and what is to be said."""
    drawn = Table.grid(padding=(0, 2, 0, 0))
    for style in ("bold", "", "", "dim"):
        drawn.add_column(style=style, overflow="fold")
    for frame in frames:
        path = f"{frame.path} " if frame.depth else ""
        line = f"{'  ' * frame.depth}{MARKS[frame.state]} {path}{frame.question}"
        used = (pluralize(frame.calls, "call"), usd(frame.cost_nusd)) if frame.calls else ("", "")
        drawn.add_row(*(Text(printable(cell)) for cell in (line, *used, " · ".join(remarks(frame)))))
    return drawn


def remarks(frame: CausalFrame) -> Iterator[str]:
    """Yield what is to be said of a frame beside its question."""
    if frame.state == "waiting":
        yield f"asks: {frame.asked}"
    if frame.state == "repeated":
        yield (
            f"leads back to {frame.repeat_of}"
            if frame.stopped_by == "cycle"
            else f"same as {frame.repeat_of}"
        )
        return
    if frame.state == "concluded":
        yield f"confidence {NOT_GIVEN if frame.confidence is None else format(frame.confidence, '.2f')}"
    skipped = f"{pluralize(frame.skipped, 'part')} not asked" if frame.skipped else ""
    if why := ": ".join(part for part in (frame.stopped_by, skipped) if part):
        yield why


class TraceFrames:
    """The frames of a trace, each to be shown with its call."""

    def __init__(self, chain: TraceTree) -> None:
        self._records = FrameRecords()
        self._bodies: dict[str, FrameOpened | FrameClosed] = {}
        for node in chain.nodes:
            if isinstance(node, EventNode):
                with suppress(EventError):  # what cannot be understood is shown as it stands
                    self._add(node)
        self._frames = {frame.frame_id: frame for frame in self._records.frames()}
        called = {node.id for node in chain.nodes if isinstance(node, CallNode)}
        self._called = {frame.frame_id for frame in self._frames.values() if frame.envelope_id in called}

    def hides(self, node: TraceNode) -> bool:
        """Whether what a node says stands elsewhere: of a frame all stands at its call, or where it has none, where it was opened."""
        body = self._bodies.get(node.id)
        return isinstance(body, FrameClosed) or (body is not None and body.frame_id in self._called)

    def lines(self, node: TraceNode) -> list[str]:
        """Return what is to be said of a node as a part of a frame."""
        if isinstance(node, CallNode):
            frame = self._frames.get(node.envelope.step)
            if frame is None:
                return []
            if frame.envelope_id != node.id:
                return [f"frame {frame.path}: {node.envelope.prompt_version}"]
            first = f"frame {frame.path} {MARKS[frame.state]} {frame.question}"
            return [" · ".join([first, *remarks(frame)]), *filter(None, [frame.conclusion])]
        body = self._bodies.get(node.id)
        frame = None if body is None else self._frames.get(body.frame_id)
        if frame is None:
            return []
        return [" · ".join([f"frame {frame.path} {MARKS[frame.state]}", *remarks(frame)])]

    def _add(self, node: EventNode) -> None:
        body = self._records.add(node.event)
        if isinstance(body, FrameOpened | FrameClosed):
            self._bodies[node.id] = body
