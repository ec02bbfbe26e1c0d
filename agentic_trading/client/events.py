"""What a tree of questions puts on record: each frame as it is opened and closed, and what the user was asked and said."""

from typing import Final, Literal

from pydantic import BaseModel, Field

from agentic_trading.llm.event import EventBody, Kinds
from agentic_trading.llm.fields import Count, PositiveCount, Text
from agentic_trading.llm.words import Open

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
