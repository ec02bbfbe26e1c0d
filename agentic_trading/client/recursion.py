"""Ask a question that a model may split into parts, and join what these found, under limits that hold whatever it says."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from agentic_trading.client.events import RecursionLimits, UserAnswered
from agentic_trading.client.frame_calls import ASK, INSTRUCTIONS, UndeliveredError
from agentic_trading.client.frames import CausalFrame
from agentic_trading.client.gateway import StructuredGateway
from agentic_trading.client.question_tree import CostBound, QuestionTree
from agentic_trading.errors import TradingError
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.event import Event
from agentic_trading.llm.store import Record

REMEMBERED_EVENTS: Final = 2_000
"""Number of events that a `Recursion` keeps until it reads them back from the log. Older ones are dropped."""


@dataclass(frozen=True, slots=True)
class Concluded:
    """The question has an answer: `conclusion`, whole, and how sure the model says it is."""

    trace_id: str
    conclusion: str
    confidence: float | None
    frames: tuple[CausalFrame, ...]


@dataclass(frozen=True, slots=True)
class Paused:
    """The user is asked something: the frames in state `waiting` say what. `Recursion.resume` goes on with the answers."""

    trace_id: str
    frames: tuple[CausalFrame, ...]

    @property
    def questions(self) -> Mapping[str, str]:
        """What each waiting frame asks, by its path."""
        return {frame.path: frame.asked for frame in self.frames if frame.state == "waiting"}


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The question has no answer, for the reason `stopped_by` of `FrameClosed`; what parts of it found is in `frames`.

    `detail` says more where a call of the question itself was refused or has failed, or one of the tree could not be made: the
    root is open then, and `Recursion.resume` goes on.
    """

    trace_id: str
    stopped_by: str
    frames: tuple[CausalFrame, ...]
    detail: str = ""


RecursionOutcome = Concluded | Paused | Unfinished
"""The result of a tree of questions."""


class ResumeError(TradingError, ValueError):
    """A trace cannot be gone on with as asked; the message says what is allowed."""

    def __init__(self, trace_id: str, problem: str) -> None:
        self.trace_id = trace_id
        super().__init__(f"trace {trace_id} {problem}")


TraceRecords = Callable[[str], Awaitable[Sequence[Record]]]
"""Return the records of a trace. They may lag behind the events that a `Recursion` has recorded."""


class Recursion:
    """Asks a question; where the model splits it, asks the parts and joins what they found.

    Every call is an envelope in one trace, made from what `build` returns: model, agent, evidence, policy, never
    instructions, context or schema. All ids follow from the trace's, and `records` says what is on record of it: what
    was answered is not asked again, so that a tree that was broken off, or has paused, goes on where it was. The same
    answers give the same tree and the same records. A gateway writes events to the log after `record` has returned, so
    an instance keeps its own until `records` returns them: `resume` works directly after `Paused`.

    `limits` hold whatever a model answers. Money and calls of the trace are ceilings that every envelope carries and the
    ledger holds. Each frame has a share of the money, what is left divided by the parts to come and the join; a part
    is not asked where less is left than it and the join may cost by `cost_bound`.
    """

    def __init__(
        self,
        gateway: StructuredGateway,
        records: TraceRecords,
        limits: RecursionLimits,
        build: Callable[[], EnvelopeBuilder],
        *,
        cost_bound: CostBound | None = None,
    ) -> None:
        self._gateway = gateway
        self._records = records
        self._limits = limits
        self._build = build
        self._cost_bound = cost_bound or (lambda _envelope: 0)
        self._recorded: OrderedDict[str, Event] = OrderedDict()  # by id

    async def run(self, question: str, *, trace_id: str = "") -> RecursionOutcome:
        """Ask a question in a trace, by default a new one; asked before there, the tree goes on.

        Raises `ValueError` for an empty question, `ResumeError` for a trace with the tree of another one, what `build` raises,
        and what the gateway raises: `BusError` if nothing can be published, `AnswerNotKeptError` for an answer that is lost.
        """
        if not (asked := question.strip()):
            raise ValueError("the question is empty; allowed is a text")
        draft = self._draft(trace_id)
        tree = await self._tree(draft)
        root = tree.frames.root
        if root is not None and root.question != asked:
            raise ResumeError(
                draft.trace_id, f"is about another question, {root.question!r}; allowed is that one"
            )
        return await _ended(tree, asked, self._limits)

    async def resume(
        self, trace_id: str, answers: Mapping[str, str] = MappingProxyType({}), *, by: str = ""
    ) -> RecursionOutcome:
        """Go on with the tree of a trace, under the limits it began with; `answers` are the user's, by path or id of the frame.

        Raises `ResumeError` for a trace without a tree, and for an answer to a frame that asks nothing: nothing is
        then on record. Raises what `run` raises.
        """
        draft = self._draft(trace_id)
        tree = await self._tree(draft)
        root, waiting, paths = tree.frames.root, tree.frames.waiting, tree.frames.paths()
        if root is None:
            raise ResumeError(trace_id, "has no question on record; allowed is a trace that has one")
        ids = {path: id_ for id_, path in paths.items()}
        given = {ids.get(name, name): text.strip() for name, text in answers.items()}
        for id_, text in given.items():
            if id_ not in waiting:
                allowed = ", ".join(paths.get(one, one) for one in waiting) or "none"
                raise ResumeError(
                    trace_id, f"asks nothing in frame {paths.get(id_, id_)}; waiting are {allowed}"
                )
            if not text:
                raise ResumeError(
                    trace_id, f"has an empty answer to frame {paths.get(id_, id_)}; allowed is a text"
                )
        for id_, text in given.items():
            answered = UserAnswered(frame_id=id_, number=waiting[id_].number, answer=text, by=by)
            await tree.record_answer(answered, at=draft.created_at)
        return await _ended(tree, root.question, self._limits)

    def _draft(self, trace_id: str) -> LLMEnvelope:
        builder = self._build().with_instructions(INSTRUCTIONS[ASK], prompt_version=ASK)
        return builder.with_trace(trace_id).build()

    async def _tree(self, draft: LLMEnvelope) -> QuestionTree:
        on_record = await self._records(draft.trace_id)
        for record in on_record:
            if isinstance(record, Event):
                self._recorded.pop(record.id, None)
        while len(self._recorded) > REMEMBERED_EVENTS:
            self._recorded.popitem(last=False)
        to_come = [event for event in self._recorded.values() if event.trace_id == draft.trace_id]
        return QuestionTree(
            self._gateway,
            draft,
            [*on_record, *to_come],
            cost_bound=self._cost_bound,
            recorded=self._recorded,
        )


async def _ended(tree: QuestionTree, question: str, limits: RecursionLimits) -> RecursionOutcome:
    """Walk a tree and return how it ends."""
    trace_id = tree.trace_id
    try:
        root, closed = await tree.walk(question, limits)
    except UndeliveredError as e:
        return Unfinished(trace_id, str(FailureKind.UNDELIVERABLE), tree.causal_frames(), str(e))
    frames = tree.causal_frames()
    if closed is None:
        paused = Paused(trace_id, frames)
        return paused if paused.questions else Unfinished(trace_id, "cycle", frames)
    answer = root.calls[-1].answer
    if closed.state != "concluded" or answer is None:
        failed = root.calls[-1].outcome
        detail = "" if failed.error is None or failed.stage is not None else failed.error.description
        return Unfinished(trace_id, closed.stopped_by, frames, detail)
    return Concluded(trace_id, answer.conclusion, closed.confidence, frames)
