"""Ask questions that a model may split into parts, and join the answers."""

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
    """One question asked in both ways: the output tokens with re-asks, and the success."""

    question: str
    structured_tokens: int
    text_tokens: int
    structured_ok: bool
    text_ok: bool


@dataclass(frozen=True, slots=True)
class Savings:
    """Output tokens of questions asked both ways, as structured calls and as text.

    Re-asks and failed calls count.
    """

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
        """The share of the text tokens that structured calls save.

        Negative if structured calls need more tokens. None if there are no text tokens.
        """
        return None if not self.text_tokens else 1 - self.structured_tokens / self.text_tokens

    @override
    def __str__(self) -> str:
        """Return the figures in one line."""
        answered = sum(one.structured_ok for one in self.measured), sum(one.text_ok for one in self.measured)
        share = "no text to compare with" if self.share is None else f"{self.share:+.1%} saved"
        return (
            f"{len(self.measured)} questions · structured {self.structured_tokens} tokens, {answered[0]} answered"
            f" · text {self.text_tokens} tokens, {answered[1]} answered · {share}"
        )


async def measure_savings(
    gateway: StructuredGateway, questions: Iterable[str], build: Callable[[], EnvelopeBuilder]
) -> Savings:
    """Ask questions as structured calls and as text, and compare the output tokens.

    Structured calls use `ASK_SCHEMA`. Failed calls count with the tokens that they used.

    Args:
        gateway: The gateway that runs the calls, one after the other.
        questions: The questions. Each is asked twice.
        build: Returns an `EnvelopeBuilder` with the model and its output cap. Both calls use the same ones.

    Raises:
        Exception: Any error of the gateway.

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

# JSON readers of some languages would round a larger integer.
_MOST_PRIORITY: Final = 2**53
"""The highest priority on record. A higher priority is recorded as None."""

CostBound = Callable[[LLMEnvelope], int]
"""Returns the maximum cost of one attempt in nano-dollars, as the gate reserves it."""


class QuestionTree:
    """The tree of one trace, rebuilt from its records.

    All ids are derived from the trace id, and all times are those of the root. `draft` is the template of the
    envelopes, with the ids and times of a new tree. Recorded events are added to `recorded`, by id.
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
        """Run the tree. Return its root and its end, or None if the user must answer.

        A recorded tree keeps its limits. Raises `UndeliveredError` if a call cannot be made now.
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
            # Walk again, because a part may repeat a later, interrupted part that has ended only now.
            if closed is not None or self.frames.waiting or len(self.frames.closed) == ended:
                return root, closed

    def causal_frames(self) -> tuple[frame_types.CausalFrame, ...]:
        """Return all frames, parents first. Open frames have their usage so far."""
        made = [] if self._root is None else self._root.tree()
        return self.frames.frames({one.id: (one.sent, one.cost_nusd) for one in made})

    async def record_answer(self, answered: frame_types.UserAnswered, *, at: datetime) -> None:
        """Record an answer of the user with its time."""
        key = (answered.frame_id, answered.number)
        await self._record(answered, *key, cause=derived_id(frame_types.UserAsked.KIND, *key), at=at)

    async def _ask(
        self, frame: frame_calls.WorkingFrame, *, cause: str, parent: str
    ) -> frame_types.FrameClosed | None:
        """Ask the question of a frame and its parts. Return None if the user must answer."""
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
        """Return a question to the user with its answer, or None without an answer."""
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
        """Ask the parts of a question within the limits, and join their findings."""
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
            # Parts to come count with the longest finding, because the cost of the join grows with its findings.
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
        # The conclusion of the split answer counts, because no part could be asked.
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
        """Set the share of a part. Return the limit that excludes it, or an empty string."""
        if part.parent is None or part.id in self.frames.opened:
            return ""
        frame, calls, frames = part.parent, self._calls, self.frames
        # A closed frame has asked all its parts, so that a resumed tree stops at the same part.
        if (closed := frames.closed.get(frame.id)) is not None:
            return closed.stopped_by or "calls"
        envelope = calls.question(part, cause=call.interaction_id, parent=call.envelope.envelope_id)
        if envelope.request_hash in self._askers:
            return ""  # free, because the frame that asked first has the answer
        # The cost of the join is kept back, so that it can be made after the last part.
        least, left = self._cost_bound(envelope), frame.left_nusd
        most = left - self._cost_bound(calls.join(frame, call, findings))
        part.share_nusd = max(0, min(most, max(least, left // (to_come + 1))))
        if calls.is_on_record(envelope):
            return ""  # already counted: a limit would drop a finding that was paid for
        # One call is kept for each open frame, so that its join, or its question after an answer of the user, can be made.
        unclosed = len(frames.opened) - len(frames.closed)
        if calls.sent + 1 + unclosed > calls.limits.max_calls:
            return "calls"
        return "cost" if most < least else ""

    async def _repeat(
        self, frame: frame_calls.WorkingFrame, asker: str, cause: str
    ) -> frame_types.FrameClosed | None:
        """Close a repeated question without a call. Return None if the answer is pending."""
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
        """Close a frame if its call failed or its answer is unusable."""
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
        """Close a frame, unless it is closed on record."""
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
        """Record an event, unless it is on record."""
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
    """The question was answered.

    Attributes:
        trace_id: The trace of the tree.
        conclusion: The whole conclusion.
        confidence: The confidence that the model reported, from 0 to 1, or None.
        frames: All frames, parents first.

    """

    trace_id: str
    conclusion: str
    confidence: float | None
    frames: tuple[frame_types.CausalFrame, ...]


@dataclass(frozen=True, slots=True)
class Paused:
    """The tree waits for the user. Pass the answers to `Recursion.resume`.

    Attributes:
        trace_id: The trace of the tree.
        frames: All frames, parents first. Frames in state `waiting` have a question in `asked`.

    """

    trace_id: str
    frames: tuple[frame_types.CausalFrame, ...]

    @property
    def questions(self) -> Mapping[str, str]:
        """The question of each waiting frame, by the path of the frame."""
        return {frame.path: frame.asked for frame in self.frames if frame.state == "waiting"}


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The question has no answer.

    Attributes:
        trace_id: The trace of the tree.
        stopped_by: The reason, as in `FrameClosed.stopped_by`.
        frames: All frames, parents first, with the findings of parts.
        detail: More about a call of the root that failed or was refused, or about a call that could not be
            made. In the second case the root is still open, and `Recursion.resume` continues.

    """

    trace_id: str
    stopped_by: str
    frames: tuple[frame_types.CausalFrame, ...]
    detail: str = ""


RecursionOutcome = Concluded | Paused | Unfinished
"""The result of a question tree."""


class ResumeError(TradingError, ValueError):
    """A trace cannot be resumed as requested. The message names the allowed values."""

    def __init__(self, trace_id: str, problem: str) -> None:
        self.trace_id = trace_id
        super().__init__(f"Trace {trace_id} {problem}")


TraceRecords = Callable[[str], Awaitable[Sequence[Record]]]
"""Returns the records of a trace. They may lag behind the events of a `Recursion`."""


class Recursion:
    """Asks a question. If the model splits it, asks its parts and joins the findings.

    Every call is an envelope in one trace, and all ids are derived from the trace id. An answered call is not
    repeated: an interrupted or paused tree resumes at its last recorded answer. Equal answers give the same
    tree and the same records. A gateway writes events to the log after `record` returns. The instance keeps
    its last 2,000 events until `records` returns them, so you can call `resume` directly after `Paused`.

    The limits hold for every answer of a model. The ledger enforces the cost and the number of calls of the
    whole trace. Each frame has a share of the money: the rest, divided by the remaining parts and the join. A
    part is not asked if, by `cost_bound`, the part and the join may cost more than the rest.

    Args:
        gateway: The gateway that runs the calls.
        records: Returns the records of a trace.
        limits: The limits of a new tree.
        build: Returns an `EnvelopeBuilder` with the settings of every call: model, agent, evidence, policy.
            Instructions, context and schema are set here.
        cost_bound: Returns the maximum cost of one attempt in nano-dollars. Default: 0, so that only the
            ledger limits the cost.

    Example:
        limits = RecursionLimits(max_cost_nusd=500_000_000)  # 0.50 dollars
        recursion = Recursion(gateway, store.records.trace, limits, build)
        outcome = await recursion.run("When did spend rise?")
        if isinstance(outcome, Paused):
            answers = {path: input(question) for path, question in outcome.questions.items()}
            outcome = await recursion.resume(outcome.trace_id, answers)

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
        """Ask a question in a trace. If the trace has this question, resume its tree.

        Args:
            question: The question. Not empty.
            trace_id: The trace. Default: a new one.

        Raises:
            ValueError: If the question is empty.
            ResumeError: If the trace has a tree of another question.
            BusError: If a call or an event cannot be published.
            AnswerNotKeptError: If the answer of an earlier call is lost.

        """
        if not (asked := question.strip()):
            raise ValueError("The question is empty. Pass a text")
        draft = self._draft(trace_id)
        tree = await self._tree(draft)
        root = tree.frames.root
        if root is not None and root.question != asked:
            raise ResumeError(
                draft.trace_id, f"has another question: {root.question!r}. Ask it again, or use a new trace"
            )
        return await _ended(tree, asked, self._limits)

    async def resume(
        self, trace_id: str, answers: Mapping[str, str] = MappingProxyType({}), *, by: str = ""
    ) -> RecursionOutcome:
        """Resume the tree of a trace, within its original limits.

        Args:
            trace_id: The trace of the tree.
            answers: The answers of the user, by the path or the id of the frame that asked.
            by: The name of the user, for the record.

        Raises:
            ResumeError: If the trace has no tree, or an answer is empty or belongs to no waiting frame. No
                answer is recorded then.
            BusError: If a call or an event cannot be published.
            AnswerNotKeptError: If the answer of an earlier call is lost.

        """
        draft = self._draft(trace_id)
        tree = await self._tree(draft)
        root, waiting, paths = tree.frames.root, tree.frames.waiting, tree.frames.paths()
        if root is None:
            raise ResumeError(trace_id, "has no question on record. Use the trace of a recorded question")
        ids = {path: id_ for id_, path in paths.items()}
        given = {ids.get(name, name): text.strip() for name, text in answers.items()}
        for id_, text in given.items():
            if id_ not in waiting:
                allowed = ", ".join(paths.get(one, one) for one in waiting) or "none"
                raise ResumeError(
                    trace_id, f"does not wait in frame {paths.get(id_, id_)}. Waiting frames: {allowed}"
                )
            if not text:
                raise ResumeError(
                    trace_id, f"got an empty answer for frame {paths.get(id_, id_)}. Pass a text"
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
    """Run a tree and return its outcome."""
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
