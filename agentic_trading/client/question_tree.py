"""The walk through a tree of questions: depth first, one call at a time, each step on record before the next."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from agentic_trading.client.events import (
    FrameClosed,
    FrameOpened,
    FrameState,
    RecursionBody,
    RecursionLimits,
    UserAnswered,
    UserAsked,
)
from agentic_trading.client.frame_calls import (
    KEPT_CHARS,
    LONGEST_FINDING,
    FrameCall,
    FrameCalls,
    WorkingFrame,
    finding_of,
    is_finding,
)
from agentic_trading.client.frames import CausalFrame, FrameRecords
from agentic_trading.client.gateway import StructuredGateway
from agentic_trading.client.response import StructuredResponse
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.event import Event
from agentic_trading.llm.store import Record

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
        root_event = derived_id(FrameOpened.KIND, self._root_id)
        for event in events:
            if event.id == root_event:
                draft = draft.model_copy(update={"created_at": event.time, "as_of": event.as_of})
        self._calls = FrameCalls(gateway, draft, on_record)
        self._root: WorkingFrame | None = None
        self.trace_id = draft.trace_id
        self.frames = FrameRecords(events)
        # Of several frames with one request the first one asks it.
        self._askers = {one.request_hash: one.frame_id for one in reversed(self.frames.opened.values())}

    async def walk(self, question: str, limits: RecursionLimits) -> tuple[WorkingFrame, FrameClosed | None]:
        """Return the root and how it was closed, None while the user is to answer something.

        A tree that is on record keeps the limits that it began with. Raises `UndeliveredError` where a call cannot be made now.
        """
        known = self.frames.root
        if known is not None and known.limits is not None:
            limits = known.limits
        while True:
            ended = len(self.frames.closed)
            root = self._root = WorkingFrame(self._root_id, question, limits.max_cost_nusd)
            self._calls.begin(root, limits)
            base = self._calls.base
            closed = await self._ask(root, cause=base.causation_id, parent=base.parent_envelope_id)
            # A part may repeat one further on that was broken off, and has ended only now.
            if closed is not None or self.frames.waiting or len(self.frames.closed) == ended:
                return root, closed

    def causal_frames(self) -> tuple[CausalFrame, ...]:
        """Return all frames, each before those below it; those that are not closed with what they have used so far."""
        made = [] if self._root is None else self._root.tree()
        return self.frames.frames({one.id: (one.sent, one.cost_nusd) for one in made})

    async def record_answer(self, answered: UserAnswered, *, at: datetime) -> None:
        """Put on record what the user said, and when."""
        key = (answered.frame_id, answered.number)
        await self._record(answered, *key, cause=derived_id(UserAsked.KIND, *key), at=at)

    async def _ask(self, frame: WorkingFrame, *, cause: str, parent: str) -> FrameClosed | None:
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
            cause = derived_id(UserAnswered.KIND, frame.id, number)
            again = self._calls.question(
                frame,
                name=f"answered-{number}",
                cause=cause,
                parent=call.envelope.envelope_id,
                answers=answers,
            )
            call = await self._calls.make(frame, again)

    async def _ask_user(
        self, frame: WorkingFrame, number: int, question: str, call: FrameCall
    ) -> Mapping[str, str] | None:
        """Return what the user was asked and has said; None where that is to come, or the frame is closed without it."""
        key = (frame.id, number)
        is_new = key not in self.frames.questions
        if is_new and len(self.frames.questions) >= self._calls.limits.max_user_questions:
            await self._close(frame, "unfinished", stopped_by="questions")
            return None
        asked = UserAsked(frame_id=frame.id, number=number, question=question[:KEPT_CHARS])
        await self._record(asked, *key, cause=call.interaction_id)
        answered = self.frames.answers.get(key)
        if answered is None:
            return None
        return {"asked": self.frames.questions[key].question, "answer": answered.answer}

    async def _split(
        self, frame: WorkingFrame, call: FrameCall, answer: StructuredResponse
    ) -> FrameClosed | None:
        """Ask the parts of a question, as far as the limits allow, and join what they found."""
        tasks = answer.ordered_sub_tasks
        taken = tasks[: self._calls.limits.max_children]
        stopped_by = "children" if len(tasks) > len(taken) else ""
        ended: list[FrameClosed] = []
        findings: Findings = []
        for place, task in enumerate(taken, start=1):
            id_ = derived_id(frame.id, place)
            part = WorkingFrame(id_, task["query"].strip(), 0, frame, place, task.get("priority"))
            to_come = [{"question": one["query"], **LONGEST_FINDING} for one in taken[place - 1 :]]
            if limit := self._limit_before(part, call, len(to_come), [*findings, *to_come]):
                stopped_by = limit
                break
            frame.parts.append(part)
            closed = await self._ask(part, cause=call.interaction_id, parent=call.envelope.envelope_id)
            findings = [*findings, finding_of(part, closed)]
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
        if not any(map(is_finding, ended)):
            why = next(closed.stopped_by for closed in ended if closed.stopped_by != "cycle")
            return await self._close(frame, "unfinished", stopped_by=why, skipped=skipped)
        joined = await self._calls.make(frame, self._calls.join(frame, call, findings))
        if joined.answer is None or not joined.answer.is_valid:
            return await self._fail(frame, joined, state="unfinished", skipped=skipped)
        return await self._close(
            frame, "concluded", answer=joined.answer, stopped_by=stopped_by, skipped=skipped
        )

    def _limit_before(self, part: WorkingFrame, call: FrameCall, to_come: int, findings: Findings) -> str:
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

    async def _repeat(self, frame: WorkingFrame, asker: str, cause: str) -> FrameClosed | None:
        """End a frame whose question is that of another one, without a call; None while that one waits for the user."""
        if any(one.id == asker for one in frame.above):
            return await self._close(frame, "repeated", stopped_by="cycle", repeat_of=asker, cause=cause)
        known = self.frames.closed.get(asker)
        if known is None:
            return None
        said = (
            {"conclusion": known.conclusion, "confidence": known.confidence}
            if is_finding(known)
            else {"stopped_by": known.stopped_by}
        )
        return await self._close(frame, "repeated", repeat_of=asker, cause=cause, **said)

    async def _fail(
        self, frame: WorkingFrame, call: FrameCall, *, state: FrameState = "failed", skipped: int = 0
    ) -> FrameClosed:
        """Close a frame whose call failed, or whose answer is none; what a model says beside an error is kept, and no finding."""
        why = call.failure
        if why == FailureKind.BUDGET_EXHAUSTED:
            state = "unfinished"
        return await self._close(frame, state, answer=call.answer, stopped_by=why, skipped=skipped)

    async def _open(self, frame: WorkingFrame, envelope: LLMEnvelope) -> None:
        opened = FrameOpened(
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
        frame: WorkingFrame,
        state: FrameState,
        *,
        answer: StructuredResponse | None = None,
        cause: str = "",
        **facts: Any,
    ) -> FrameClosed:
        """Close a frame with what an answer says, unless it is closed on record: that holds."""
        if frame.id not in self.frames.closed:
            if answer is not None:
                facts |= {"conclusion": answer.conclusion[:KEPT_CHARS], "confidence": answer.confidence}
            used = {"cost_nusd": frame.cost_nusd, "calls": frame.sent}
            closed = FrameClosed.model_validate({"frame_id": frame.id, "state": state, **used, **facts})
            await self._record(closed, frame.id, cause=cause or frame.calls[-1].interaction_id)
        return self.frames.closed[frame.id]

    async def _record(
        self, body: RecursionBody, *key: str | int, cause: str, at: datetime | None = None
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
