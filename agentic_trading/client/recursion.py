"""Ask a question that a model may split into parts, depth first, and join the answers under limits that always hold."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from typing_extensions import override

from agentic_trading.client import frame_calls
from agentic_trading.client import frames as frame_types
from agentic_trading.client.gateway import StructuredGateway
from agentic_trading.client.response import StructuredResponse
from agentic_trading.errors import TradingError
from agentic_trading.ids import derived_id
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, ResponseFormat
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.event import Event
from agentic_trading.llm.store import Record

TEXT_INSTRUCTIONS: Final = "Answer the one question in `context.question` from the evidence and from nothing else. Think step by step, then answer."


@dataclass(frozen=True, slots=True)
class Measured:
    """One question both ways: all output tokens, those of answers that were asked for again among them, and whether there was an answer."""

    question: str
    structured_tokens: int
    text_tokens: int
    structured_ok: bool
    text_ok: bool


@dataclass(frozen=True, slots=True)
class Savings:
    """What a set of questions took both ways. What structure costs by re-asks and failures counts against it."""

    measured: tuple[Measured, ...]

    @property
    def structured_tokens(self) -> int:
        """Output tokens of all structured calls."""
        return sum(one.structured_tokens for one in self.measured)

    @property
    def text_tokens(self) -> int:
        """Output tokens of all calls for text."""
        return sum(one.text_tokens for one in self.measured)

    @property
    def share(self) -> float | None:
        """Which share of the tokens of text structure saves, below zero where it costs more; None without any text."""
        return None if not self.text_tokens else 1 - self.structured_tokens / self.text_tokens

    @override
    def __str__(self) -> str:
        """Return the figures in one line, whatever their sign."""
        answered = sum(one.structured_ok for one in self.measured), sum(one.text_ok for one in self.measured)
        share = "no text to compare with" if self.share is None else f"{self.share:+.1%} saved"
        return (
            f"{len(self.measured)} questions · structured {self.structured_tokens} tokens, {answered[0]} answered"
            f" · text {self.text_tokens} tokens, {answered[1]} answered · {share}"
        )


async def measure_savings(
    gateway: StructuredGateway, questions: Iterable[str], build: Callable[[], EnvelopeBuilder]
) -> Savings:
    """Ask each question under `ASK_SCHEMA`, and as text, of the same model under the same cap, which `build` names.

    Raises what the gateway raises; a call that fails is counted by what it used.
    """
    measured = []
    for question in questions:
        structured = await gateway.ask_structured(_structured(build(), question))
        text = await gateway.ask_structured(_text(build(), question))
        measured.append(
            Measured(
                question=question,
                structured_tokens=structured.usage.output_tokens,
                text_tokens=text.usage.output_tokens,
                structured_ok=structured.ok,
                text_ok=text.ok,
            )
        )
    return Savings(tuple(measured))


def _structured(builder: EnvelopeBuilder, question: str) -> LLMEnvelope:
    builder = builder.with_instructions(
        frame_calls.INSTRUCTIONS[frame_calls.ASK], prompt_version=frame_calls.ASK
    )
    return builder.with_context({"question": question}).with_output_schema(frame_calls.ASK_SCHEMA).build()


def _text(builder: EnvelopeBuilder, question: str) -> LLMEnvelope:
    builder = builder.with_instructions(TEXT_INSTRUCTIONS, prompt_version="text.1")
    return builder.with_context({"question": question}).with_response_format(ResponseFormat.TEXT).build()


Findings = Sequence[Mapping[str, Any]]

_MOST_PRIORITY: Final = 2**53
"""A higher one, which JSON does not hold in every language, is not on record."""

CostBound = Callable[[LLMEnvelope], int]
"""Return the most that one attempt at an envelope can cost, in nano-dollars, as the gate reserves it."""


class QuestionTree:
    """The tree of one trace, from what is on record of it. Ids follow from that of the trace, and times are those of the root.

    `draft` is the envelope that others are made from, with the ids and the moment of a new tree. Recorded events are added
    to `recorded`, by id.
    """

    def __init__(
        self,
        gateway: StructuredGateway,
        draft: LLMEnvelope,
        on_record: Sequence[Record],
        *,
        cost_bound: CostBound,
        recorded: dict[str, Event],
    ) -> None:
        self._gateway = gateway
        self._recorded = recorded
        self._cost_bound = cost_bound
        self._root_id = derived_id("recursion", draft.tenant_id, draft.trace_id)
        events = [one for one in on_record if isinstance(one, Event) and one.tenant_id == draft.tenant_id]
        self._known = {event.id for event in events}
        root_event = derived_id(frame_types.FrameOpened.KIND, self._root_id)
        for event in events:
            if event.id == root_event:
                draft = draft.model_copy(update={"created_at": event.time, "as_of": event.as_of})
        self._calls = frame_calls.FrameCalls(gateway, draft, on_record)
        self._root: frame_calls.WorkingFrame | None = None
        self.trace_id = draft.trace_id
        self.frames = frame_types.FrameRecords(events)
        # Of several frames with one request the first one asks it.
        self._askers = {one.request_hash: one.frame_id for one in reversed(self.frames.opened.values())}

    async def walk(
        self, question: str, limits: frame_types.RecursionLimits
    ) -> tuple[frame_calls.WorkingFrame, frame_types.FrameClosed | None]:
        """Return the root and how it was closed, None while the user is to answer something.

        A tree that is on record keeps the limits that it began with. Raises `UndeliveredError` where a call cannot be made now.
        """
        known = self.frames.root
        if known is not None and known.limits is not None:
            limits = known.limits
        while True:
            ended = len(self.frames.closed)
            root = self._root = frame_calls.WorkingFrame(self._root_id, question, limits.max_cost_nusd)
            self._calls.begin(root, limits)
            base = self._calls.base
            closed = await self._ask(root, cause=base.causation_id, parent=base.parent_envelope_id)
            # A part may repeat one further on that was broken off, and has ended only now.
            if closed is not None or self.frames.waiting or len(self.frames.closed) == ended:
                return root, closed

    def causal_frames(self) -> tuple[frame_types.CausalFrame, ...]:
        """Return all frames, each before those below it; those that are not closed with what they have used so far."""
        made = [] if self._root is None else self._root.tree()
        return self.frames.frames({one.id: (one.sent, one.cost_nusd) for one in made})

    async def record_answer(self, answered: frame_types.UserAnswered, *, at: datetime) -> None:
        """Put on record what the user said, and when."""
        key = (answered.frame_id, answered.number)
        await self._record(answered, *key, cause=derived_id(frame_types.UserAsked.KIND, *key), at=at)

    async def _ask(
        self, frame: frame_calls.WorkingFrame, *, cause: str, parent: str
    ) -> frame_types.FrameClosed | None:
        """Ask the question of a frame, and its parts; None while the user is to answer something in it."""
        known, frame.is_closed = self.frames.opened.get(frame.id), frame.id in self.frames.closed
        if known is not None:
            frame.share_nusd = known.share_nusd
        envelope = self._calls.question(frame, cause=cause, parent=parent)
        await self._open(frame, envelope)
        asker = self._askers.setdefault(envelope.request_hash, frame.id)
        if asker != frame.id:
            return await self._repeat(frame, asker, cause)
        call = await self._calls.make(frame, envelope)
        answers: list[Mapping[str, str]] = []
        while True:
            answer = call.answer
            if answer is None or not answer.is_valid:
                return await self._fail(frame, call)
            may_split = len(frame.above) < self._calls.limits.max_depth
            if answer.should_continue and may_split:
                return await self._split(frame, call, answer)
            if not answer.should_ask_user:
                stopped_by = "depth" if answer.should_continue else ""
                skipped = len(answer.sub_tasks) + answer.without_query
                return await self._close(
                    frame, "concluded", answer=answer, stopped_by=stopped_by, skipped=skipped
                )
            number = len(answers) + 1
            reply = await self._ask_user(frame, number, answer.conclusion, call)
            if reply is None:
                return self.frames.closed.get(frame.id)
            answers.append(reply)
            cause = derived_id(frame_types.UserAnswered.KIND, frame.id, number)
            again = self._calls.question(
                frame,
                name=f"answered-{number}",
                cause=cause,
                parent=call.envelope.envelope_id,
                answers=answers,
            )
            call = await self._calls.make(frame, again)

    async def _ask_user(
        self, frame: frame_calls.WorkingFrame, number: int, question: str, call: frame_calls.FrameCall
    ) -> Mapping[str, str] | None:
        """Return what the user was asked and has said; None where that is to come, or the frame is closed without it."""
        key = (frame.id, number)
        is_new = key not in self.frames.questions
        if is_new and len(self.frames.questions) >= self._calls.limits.max_user_questions:
            await self._close(frame, "unfinished", stopped_by="questions")
            return None
        asked = frame_types.UserAsked(
            frame_id=frame.id, number=number, question=question[: frame_calls.KEPT_CHARS]
        )
        await self._record(asked, *key, cause=call.interaction_id)
        answered = self.frames.answers.get(key)
        if answered is None:
            return None
        return {"asked": self.frames.questions[key].question, "answer": answered.answer}

    async def _split(
        self, frame: frame_calls.WorkingFrame, call: frame_calls.FrameCall, answer: StructuredResponse
    ) -> frame_types.FrameClosed | None:
        """Ask the parts of a question, as far as the limits allow, and join what they found."""
        tasks = answer.ordered_sub_tasks
        taken = tasks[: self._calls.limits.max_children]
        stopped_by = "children" if len(tasks) > len(taken) else ""
        ended: list[frame_types.FrameClosed] = []
        findings: Findings = []
        for place, task in enumerate(taken, start=1):
            id_ = derived_id(frame.id, place)
            part = frame_calls.WorkingFrame(id_, task["query"].strip(), 0, frame, place, task.get("priority"))
            to_come = [
                {"question": one["query"], **frame_calls.LONGEST_FINDING} for one in taken[place - 1 :]
            ]
            if limit := self._limit_before(part, call, len(to_come), [*findings, *to_come]):
                stopped_by = limit
                break
            frame.parts.append(part)
            closed = await self._ask(part, cause=call.interaction_id, parent=call.envelope.envelope_id)
            findings = [*findings, frame_calls.finding_of(part, closed)]
            if closed is not None:
                ended.append(closed)
        skipped = len(tasks) + answer.without_query - len(frame.parts)
        if len(ended) < len(frame.parts):
            return None
        if all(closed.stopped_by == "cycle" for closed in ended):
            stopped_by = "cycle" if ended else stopped_by
            return await self._close(
                frame, "concluded", answer=answer, stopped_by=stopped_by, skipped=skipped
            )
        if not any(map(frame_calls.is_finding, ended)):
            why = next(closed.stopped_by for closed in ended if closed.stopped_by != "cycle")
            return await self._close(frame, "unfinished", stopped_by=why, skipped=skipped)
        joined = await self._calls.make(frame, self._calls.join(frame, call, findings))
        if joined.answer is None or not joined.answer.is_valid:
            return await self._fail(frame, joined, state="unfinished", skipped=skipped)
        return await self._close(
            frame, "concluded", answer=joined.answer, stopped_by=stopped_by, skipped=skipped
        )

    def _limit_before(
        self, part: frame_calls.WorkingFrame, call: frame_calls.FrameCall, to_come: int, findings: Findings
    ) -> str:
        """Return the limit that keeps a part from being asked, empty where none does, and set the part's share.

        What is on record was asked, and what is on record of a closed frame is all that was asked in it. Room is kept
        for the join of every frame that is open, and for the answer that one waits for.
        """
        if part.parent is None or part.id in self.frames.opened:
            return ""
        frame, calls, frames = part.parent, self._calls, self.frames
        if (closed := frames.closed.get(frame.id)) is not None:
            return closed.stopped_by or "calls"
        envelope = calls.question(part, cause=call.interaction_id, parent=call.envelope.envelope_id)
        if envelope.request_hash in self._askers:
            return ""
        least, left = self._cost_bound(envelope), frame.left_nusd
        most = left - self._cost_bound(calls.join(frame, call, findings))
        part.share_nusd = max(0, min(most, max(least, left // (to_come + 1))))
        if calls.is_on_record(envelope):
            return ""
        unclosed = len(frames.opened) - len(frames.closed)
        if calls.sent + 1 + unclosed > calls.limits.max_calls:
            return "calls"
        return "cost" if most < least else ""

    async def _repeat(
        self, frame: frame_calls.WorkingFrame, asker: str, cause: str
    ) -> frame_types.FrameClosed | None:
        """End a frame whose question is that of another one, without a call; None while that one waits for the user."""
        if any(one.id == asker for one in frame.above):
            return await self._close(frame, "repeated", stopped_by="cycle", repeat_of=asker, cause=cause)
        known = self.frames.closed.get(asker)
        if known is None:
            return None
        said = (
            {"conclusion": known.conclusion, "confidence": known.confidence}
            if frame_calls.is_finding(known)
            else {"stopped_by": known.stopped_by}
        )
        return await self._close(frame, "repeated", repeat_of=asker, cause=cause, **said)

    async def _fail(
        self,
        frame: frame_calls.WorkingFrame,
        call: frame_calls.FrameCall,
        *,
        state: frame_types.FrameState = "failed",
        skipped: int = 0,
    ) -> frame_types.FrameClosed:
        """Close a frame whose call failed, or whose answer is none; what a model says beside an error is kept, and no finding."""
        why = call.failure
        if why == FailureKind.BUDGET_EXHAUSTED:
            state = "unfinished"
        return await self._close(frame, state, answer=call.answer, stopped_by=why, skipped=skipped)

    async def _open(self, frame: frame_calls.WorkingFrame, envelope: LLMEnvelope) -> None:
        opened = frame_types.FrameOpened(
            frame_id=frame.id,
            parent_frame_id="" if frame.parent is None else frame.parent.id,
            depth=len(frame.above),
            place=frame.place,
            question=frame.question,
            priority=None if (frame.priority or 0) > _MOST_PRIORITY else frame.priority,
            envelope_id=envelope.envelope_id,
            request_hash=envelope.request_hash,
            share_nusd=frame.share_nusd,
            limits=self._calls.limits if frame.parent is None else None,
        )
        await self._record(opened, frame.id, cause=envelope.causation_id)

    async def _close(
        self,
        frame: frame_calls.WorkingFrame,
        state: frame_types.FrameState,
        *,
        answer: StructuredResponse | None = None,
        cause: str = "",
        **facts: Any,
    ) -> frame_types.FrameClosed:
        """Close a frame with what an answer says, unless it is closed on record: that holds."""
        if frame.id not in self.frames.closed:
            if answer is not None:
                facts |= {
                    "conclusion": answer.conclusion[: frame_calls.KEPT_CHARS],
                    "confidence": answer.confidence,
                }
            used = {"cost_nusd": frame.cost_nusd, "calls": frame.sent}
            closed = frame_types.FrameClosed.model_validate({
                "frame_id": frame.id,
                "state": state,
                **used,
                **facts,
            })
            await self._record(closed, frame.id, cause=cause or frame.calls[-1].interaction_id)
        return self.frames.closed[frame.id]

    async def _record(
        self, body: frame_types.RecursionBody, *key: str | int, cause: str, at: datetime | None = None
    ) -> None:
        """Put a fact on record, unless it is there."""
        base, event_id = self._calls.base, derived_id(body.KIND, *key)
        if event_id in self._known:
            return
        event = body.as_event(
            event_id=event_id,
            trace_id=self.trace_id,
            tenant_id=base.tenant_id,
            time=at or base.created_at,
            causation_id=cause,
            as_of=base.as_of,
        )
        await self._gateway.record(event)
        self._known.add(event_id)
        self._recorded[event_id] = event
        self.frames.add(event)


REMEMBERED_EVENTS: Final = 2_000
"""Number of events that a `Recursion` keeps until it reads them back from the log. Older ones are dropped."""


@dataclass(frozen=True, slots=True)
class Concluded:
    """The question has an answer: `conclusion`, whole, and how sure the model says it is."""

    trace_id: str
    conclusion: str
    confidence: float | None
    frames: tuple[frame_types.CausalFrame, ...]


@dataclass(frozen=True, slots=True)
class Paused:
    """The user is asked something: the frames in state `waiting` say what. `Recursion.resume` goes on with the answers."""

    trace_id: str
    frames: tuple[frame_types.CausalFrame, ...]

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
    frames: tuple[frame_types.CausalFrame, ...]
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
        limits: frame_types.RecursionLimits,
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
            answered = frame_types.UserAnswered(frame_id=id_, number=waiting[id_].number, answer=text, by=by)
            await tree.record_answer(answered, at=draft.created_at)
        return await _ended(tree, root.question, self._limits)

    def _draft(self, trace_id: str) -> LLMEnvelope:
        builder = self._build().with_instructions(
            frame_calls.INSTRUCTIONS[frame_calls.ASK], prompt_version=frame_calls.ASK
        )
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


async def _ended(tree: QuestionTree, question: str, limits: frame_types.RecursionLimits) -> RecursionOutcome:
    """Walk a tree and return how it ends."""
    trace_id = tree.trace_id
    try:
        root, closed = await tree.walk(question, limits)
    except frame_calls.UndeliveredError as e:
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
