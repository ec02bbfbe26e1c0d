"""The frames of a question tree, rebuilt from recorded events."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal, assert_never

from pydantic import BaseModel, Field

from agentic_trading.llm.event import Event, EventBody, Kinds
from agentic_trading.llm.fields import Count, Open, PositiveCount, Text
from agentic_trading.llm.store import Record

FrameState = Literal["concluded", "repeated", "failed", "unfinished"]
"""How a frame ends.

- `concluded`: It has a conclusion.
- `repeated`: Another frame of the tree asks the same question.
- `failed`: Its call failed, or its answer is unusable.
- `unfinished`: A limit, or the lack of findings, left it without a conclusion.
"""


# Limited because each level of a tree is a level of the call stack.
MOST_DEPTH: Final = 16
"""The maximum depth of a tree."""


class RecursionLimits(BaseModel, frozen=True, extra="forbid"):
    """The limits of a question tree.

    Attributes:
        max_cost_nusd: Maximum cost of the whole trace in nano-dollars. The ledger enforces it.
        max_depth: Maximum depth of a frame. The root has depth 0.
        max_children: Maximum number of parts that are asked for one question.
        max_calls: Maximum number of calls in the whole trace. The ledger enforces it.
        max_user_questions: Maximum number of questions to the user.

    """

    max_cost_nusd: Count
    max_depth: int = Field(default=2, ge=0, le=MOST_DEPTH)
    max_children: PositiveCount = 5
    max_calls: PositiveCount = 20
    max_user_questions: Count = 3


class FrameOpened(EventBody, frozen=True):
    """A question is about to be asked.

    Attributes:
        frame_id: The id of the frame.
        parent_frame_id: The frame whose question was split. Empty for the root.
        depth: The number of ancestors.
        place: The position among the parts of the parent, from 1. The root has 0.
        question: The question.
        priority: The priority of the part. 1 comes first.
        envelope_id: The first call of the frame. A repeated question does not make it.
        request_hash: The hash of that request. Equal questions have the same hash.
        share_nusd: The planned maximum cost of the frame and its descendants, in nano-dollars.
        limits: The limits of the tree. Only the root has them.

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
    """A question was answered, or ended without an answer.

    Attributes:
        frame_id: The id of the frame.
        state: How the frame ended.
        stopped_by: The reason for stopping: `depth`, `children`, `calls`, `cost`, `questions`, `cycle`,
            `model_error`, `unusable`, or a kind of failure. Empty if the frame was not stopped.
        conclusion: The first 500 characters of the conclusion.
        confidence: The confidence that the model reported, from 0 to 1, or None.
        cost_nusd: The cost of the frame's own calls in nano-dollars. Recorded answers count at their first
            cost.
        calls: The number of the frame's own attempts that were sent.
        skipped: The number of sub-tasks that were not asked, including those without a query.
        repeat_of: The frame that asked the same question first.

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
    """A frame asks the user a question.

    Attributes:
        frame_id: The id of the frame.
        number: The number of the question in its frame, from 1.
        question: The first 500 characters of the question.

    """

    KIND = "recursion.user_asked"

    frame_id: str
    number: int
    question: Text


class UserAnswered(EventBody, frozen=True):
    """The user answered the question of a frame.

    Attributes:
        frame_id: The id of the frame.
        number: The number of the question in its frame, from 1.
        answer: The answer.
        by: The name of the user.

    """

    KIND = "recursion.user_answered"

    frame_id: str
    number: int
    answer: Text = Field(min_length=1)
    by: str = ""


RecursionBody = FrameOpened | FrameClosed | UserAsked | UserAnswered

KINDS = Kinds[RecursionBody](FrameOpened, FrameClosed, UserAsked, UserAnswered)


@dataclass(frozen=True, slots=True)
class CausalFrame:
    """One question of a tree with its result. See `FrameOpened` and `FrameClosed`.

    Attributes:
        path: The path from the root, `0`. `2.1` is the first part of the second part.
        state: `open` until the frame is closed, and `waiting` while the user must answer `asked`.
        repeat_of: The path of the frame that has the answer.
        asked: The question to the user.

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
    """The recorded frames of one tree.

    Of several records with one id, the first one counts. Other kinds of records are ignored.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.opened: dict[str, FrameOpened] = {}
        self.closed: dict[str, FrameClosed] = {}
        self.questions: dict[tuple[str, int], UserAsked] = {}
        self.answers: dict[tuple[str, int], UserAnswered] = {}
        for record in records:
            if isinstance(record, Event):
                self.add(record)

    def add(self, event: Event) -> RecursionBody | None:
        """Add an event and return its body, or None if it is of another kind.

        Raises:
            UnreadableBodyError: If the body is invalid for its kind.

        """
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
        """The root frame, once it is opened."""
        return next((one for one in self.opened.values() if not one.parent_frame_id), None)

    @property
    def waiting(self) -> dict[str, UserAsked]:
        """The unanswered questions to the user, by frame."""
        return {
            id_: one for (id_, number), one in self.questions.items() if (id_, number) not in self.answers
        }

    def paths(self) -> dict[str, str]:
        """Return the path of each frame, depth first and in the order of places."""
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
        """Return all frames, parents first. `used` has the calls and cost of open frames."""
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
