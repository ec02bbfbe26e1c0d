"""Frames of a recursive question, rebuilt from the events on record."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal, assert_never

from pydantic import BaseModel, Field

from agentic_trading.llm.event import Event, EventBody, Kinds
from agentic_trading.llm.fields import Count, Open, PositiveCount, Text
from agentic_trading.llm.store import Record

FrameState = Literal["concluded", "repeated", "failed", "unfinished"]
"""How a frame ends. `concluded`: it has a conclusion · `repeated`: its question was asked elsewhere in the tree, which
answers it · `failed`: its call failed, or the answer is of no use · `unfinished`: a limit, or the want of any finding,
left it without a conclusion."""


MOST_DEPTH: Final = 16
"""A walk is as deep as its tree."""


class RecursionLimits(BaseModel, frozen=True, extra="forbid"):
    """What a tree of questions may use.

    The root has depth 0. `max_cost_nusd` and `max_calls` are over the whole trace, and the ledger holds them.
    """

    max_cost_nusd: Count
    max_depth: int = Field(default=2, ge=0, le=MOST_DEPTH)
    max_children: PositiveCount = 5
    max_calls: PositiveCount = 20
    max_user_questions: Count = 3


class FrameOpened(EventBody, frozen=True):
    """A question is about to be asked, as the `place`-th part of its parent's, which begin at 1; the root's is 0.

    `envelope_id` and `request_hash` are those of its first call, which a repeated question does not make. `share_nusd`
    is what the frame and all below it should cost at most. The root has the `limits` of the tree.
    """

    KIND = "recursion.frame_opened"

    frame_id: str
    parent_frame_id: str = ""
    depth: int
    place: int = 0
    question: Text
    priority: int | None = None
    envelope_id: str
    request_hash: str
    share_nusd: int
    limits: RecursionLimits | None = None


class FrameClosed(EventBody, frozen=True):
    """A question has its answer, or will have none.

    `stopped_by` says what kept it from more: `depth`, `children`, `calls`, `cost`, `questions`, `cycle`, `model_error`,
    `unusable`, or the kind of a failure. `conclusion` is cut to 500 characters. `cost_nusd` and `calls` are of the frame's
    own calls (an answer from a record counts at the cost of its first call), `skipped` counts sub-tasks that were not asked, those
    without a query among them.
    """

    KIND = "recursion.frame_closed"

    frame_id: str
    state: Open[FrameState]
    stopped_by: str = ""
    conclusion: Text = ""
    confidence: float | None = None
    cost_nusd: int = 0
    calls: int = 0
    skipped: int = 0
    repeat_of: str = ""


class UserAsked(EventBody, frozen=True):
    """A frame has a question to the user: its `number`-th one, from 1, cut to 500 characters."""

    KIND = "recursion.user_asked"

    frame_id: str
    number: int
    question: Text


class UserAnswered(EventBody, frozen=True):
    """What a user, named `by`, has answered to the question of a frame."""

    KIND = "recursion.user_answered"

    frame_id: str
    number: int
    answer: Text = Field(min_length=1)
    by: str = ""


RecursionBody = FrameOpened | FrameClosed | UserAsked | UserAnswered

KINDS = Kinds[RecursionBody](FrameOpened, FrameClosed, UserAsked, UserAnswered)


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
