"""The frames of a tree of questions, as its records have them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, assert_never

from agentic_trading.client.events import (
    KINDS,
    FrameClosed,
    FrameOpened,
    FrameState,
    RecursionBody,
    UserAnswered,
    UserAsked,
)
from agentic_trading.llm.event import Event
from agentic_trading.llm.store import Record


@dataclass(frozen=True, slots=True)
class CausalFrame:
    """One question of a tree, and what came of it: see `FrameOpened` and `FrameClosed`.

    `path` leads to it from the root, whose is `0`: `2.1` is the first part of the second part. `state` is `open` until
    the frame is closed, and `waiting` while the user is to answer `asked`. `repeat_of` is the path of the frame that has the answer.
    """

    frame_id: str
    parent_frame_id: str
    path: str
    depth: int
    question: str
    priority: int | None
    envelope_id: str
    state: FrameState | Literal["open", "waiting"] = "open"
    stopped_by: str = ""
    conclusion: str = ""
    confidence: float | None = None
    cost_nusd: int = 0
    calls: int = 0
    skipped: int = 0
    repeat_of: str = ""
    asked: str = ""


class FrameRecords:
    """What is on record of one tree; of records with the same id the first holds, and those of other kinds are passed over."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.opened: dict[str, FrameOpened] = {}
        self.closed: dict[str, FrameClosed] = {}
        self.questions: dict[tuple[str, int], UserAsked] = {}
        self.answers: dict[tuple[str, int], UserAnswered] = {}
        for record in records:
            if isinstance(record, Event):
                self.add(record)

    def add(self, event: Event) -> RecursionBody | None:
        """Add a record and return its body, None for another kind's; raises `UnreadableBodyError` for one that is none of its kind."""
        body = KINDS.of(event)
        match body:
            case FrameOpened():
                self.opened.setdefault(body.frame_id, body)
            case FrameClosed():
                self.closed.setdefault(body.frame_id, body)
            case UserAsked():
                self.questions.setdefault((body.frame_id, body.number), body)
            case UserAnswered():
                self.answers.setdefault((body.frame_id, body.number), body)
            case None:
                pass
            case _:
                assert_never(body)
        return body

    @property
    def root(self) -> FrameOpened | None:
        """The frame of the whole question, once it is opened."""
        return next((one for one in self.opened.values() if not one.parent_frame_id), None)

    @property
    def waiting(self) -> dict[str, UserAsked]:
        """The questions that the user has not answered, by frame."""
        return {
            id_: one for (id_, number), one in self.questions.items() if (id_, number) not in self.answers
        }

    def paths(self) -> dict[str, str]:
        """Return the path of each frame, depth first and in order of their places."""
        children: dict[str, list[FrameOpened]] = {}
        for one in self.opened.values():
            children.setdefault(one.parent_frame_id, []).append(one)

        def below(parent: str, prefix: str) -> Iterator[tuple[str, str]]:
            for one in sorted(children.get(parent, ()), key=lambda one: one.place):
                path = f"{prefix}{one.place}"
                yield one.frame_id, path
                yield from below(one.frame_id, f"{path}." if parent else "")

        return dict(below("", ""))

    def frames(self, used: Mapping[str, tuple[int, int]] = MappingProxyType({})) -> tuple[CausalFrame, ...]:
        """Return all frames, each before those below it; of those that are not closed, `used` has calls and cost so far."""
        paths, waiting = self.paths(), self.waiting
        return tuple(self._frame(id_, paths, waiting, used.get(id_, (0, 0))) for id_ in paths)

    def _frame(
        self, id_: str, paths: Mapping[str, str], waiting: Mapping[str, UserAsked], used: tuple[int, int]
    ) -> CausalFrame:
        opened = self.opened[id_]
        frame = CausalFrame(
            frame_id=id_,
            parent_frame_id=opened.parent_frame_id,
            path=paths[id_],
            depth=opened.depth,
            question=opened.question,
            priority=opened.priority,
            envelope_id=opened.envelope_id,
        )
        closed = self.closed.get(id_)
        if closed is None:
            calls, cost_nusd = used
            asked = waiting[id_].question if id_ in waiting else ""
            waits = replace(frame, calls=calls, cost_nusd=cost_nusd, asked=asked)
            return replace(waits, state="waiting") if asked else waits
        return replace(
            frame,
            state=closed.state,
            stopped_by=closed.stopped_by,
            conclusion=closed.conclusion,
            confidence=closed.confidence,
            cost_nusd=closed.cost_nusd,
            calls=closed.calls,
            skipped=closed.skipped,
            repeat_of=paths.get(closed.repeat_of, closed.repeat_of),
        )
