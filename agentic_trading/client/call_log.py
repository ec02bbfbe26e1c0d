"""A client's own log: each call before it is published, its attempts, and what an earlier client of the log has left."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Self

import orjson

from agentic_trading.bus.topic import TAKEN_ELSEWHERE
from agentic_trading.clock import Clock
from agentic_trading.errors import TradingError
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.event import KINDS, CallRequested, CallUnanswered, EventBody
from agentic_trading.llm.fields import ON_RECORD, json_of
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.result import LLMResult
from agentic_trading.llm.store import InteractionStore, Record

PUBLISHED_AGAIN_WITHIN: Final = timedelta(hours=20)
"""How long after its first request a call is published again: claims know an envelope for 24 hours after its end, and the message
may wait for the rest of that. Later, a worker that has not run it itself could pay for it again.
"""


class AnswerNotKeptError(TradingError):
    """The answer to a call of an earlier client is kept nowhere that could be asked, and asking for it again could be paid twice."""

    def __init__(self, envelope_id: str, requested_at: datetime, why: str) -> None:
        self.envelope_id = envelope_id
        self.requested_at = requested_at
        self.why = why
        super().__init__(
            f"envelope {envelope_id} was requested at {requested_at:%Y-%m-%d %H:%M} UTC and has no answer on record here: {why}; "
            "it is not paid again. Allowed: logs of workers or an archive that have it (--answers-from); what they do not "
            "have either is then no decision, and what it cost stays charged"
        )


class _CallKey(NamedTuple):
    """One call: its envelope's id, and everything that it was counted by. The same id with other values is another call."""

    tenant: str
    agent: str
    step: str
    envelope_id: str
    request_hash: str
    occurrence: int

    @classmethod
    def of(cls, envelope: LLMEnvelope) -> Self:
        return cls(
            envelope.tenant_id,
            envelope.agent_id,
            envelope.step,
            envelope.envelope_id,
            envelope.request_hash,
            envelope.occurrence,
        )


@dataclass(slots=True)
class EarlierCall:
    """A call of an earlier client: when it was requested, by which event, its results by attempt, and how it ended.

    `envelope` is what was published, as long as there is no end; it is not intact where redaction has left a secret out.
    """

    requested_at: datetime | None = None
    request_id: str = ""
    envelope: LLMEnvelope | None = None
    results: dict[int, bytes] = field(default_factory=dict)
    unanswered: FailureReason | None = None
    is_ended: bool = False

    def add(self, result: LLMResult) -> None:
        """Take an attempt."""
        self.results[result.attempt_number] = result.wire
        if result.next_step in {"", "final"}:
            self.is_ended, self.unanswered, self.envelope = True, None, None


@dataclass(slots=True)
class EarlierCalls:
    """What a log knows of the calls of earlier clients; `read` its records in order.

    A call is open while it was requested and has neither its last attempt on record nor a reason why there is none.
    `are_all_read` says that every log which could have an answer was read: what is kept nowhere is then no decision, and
    else an `AnswerNotKeptError`. With `asks_again` a call that got no answer for a reason that may pass is open as well: nothing
    was decided without it. `found` are attempts of other logs that this one lacks.
    """

    are_all_read: bool = False
    asks_again: bool = False
    found: list[LLMInteraction] = field(default_factory=list)
    _calls: dict[_CallKey, EarlierCall] = field(default_factory=dict)
    _by_request: dict[str, EarlierCall] = field(default_factory=dict)

    def read(self, record: Record) -> None:
        """Take a record of the client's own log."""
        if isinstance(record, LLMInteraction):
            self._calls.setdefault(_CallKey.of(record.envelope), EarlierCall()).add(record.result)
            return
        match KINDS.of(record):
            case CallRequested(envelope=fields):
                envelope = LLMEnvelope.from_wire(json_of(fields), context=ON_RECORD)
                call = self._calls.setdefault(_CallKey.of(envelope), EarlierCall())
                call.requested_at, call.request_id = record.time, record.id
                call.envelope = None if call.is_ended else envelope
                self._by_request[record.id] = call
            case CallUnanswered(reason=reason):
                call = self._by_request.get(record.causation_id, EarlierCall())
                if not (call.is_ended or (self.asks_again and reason.recoverable)):
                    call.unanswered, call.is_ended, call.envelope = reason, True, None
            case _:
                pass

    def read_elsewhere(self, record: Record) -> None:
        """Take a record of another log, of a worker or an archive; an attempt at a call of this one that it lacks is `found`."""
        if not isinstance(record, LLMInteraction):
            return
        call = self._calls.get(_CallKey.of(record.envelope))
        if call is None or call.requested_at is None or record.result.attempt_number in call.results:
            return
        self.found.append(record)
        call.add(record.result)

    def of(self, envelope: LLMEnvelope) -> EarlierCall:
        """Return what is known of a call; nothing, for one that was never requested."""
        return self._calls.get(_CallKey.of(envelope)) or EarlierCall()


@dataclass(frozen=True, slots=True)
class CallLog:
    """Keeps in `store` what a client asks, before it is published, and what comes of it; `clock` is the machine's.

    What `earlier` clients of the store were answered is answered again from there, and is not published. A call that was left
    open is published as it was then: the claim of its id gives what came of it, and nothing is paid a second time.
    """

    store: InteractionStore
    clock: Clock
    redaction: Redaction
    earlier: EarlierCalls = field(default_factory=EarlierCalls)

    async def begin(self) -> None:
        """Put on record here what was found elsewhere."""
        for attempt in self.earlier.found:
            await self.store.store(attempt)

    def known(self, envelope: LLMEnvelope) -> Sequence[LLMInteraction] | NoDecision | None:
        """Return the attempts at a call that has ended, in order, or why it has none; None for one that is to be published."""
        call = self.earlier.of(envelope)
        if call.unanswered is not None:
            return NoDecision(reason=call.unanswered, envelope_id=envelope.envelope_id)
        if not call.is_ended:
            return None
        results = [LLMResult.from_wire(call.results[number]) for number in sorted(call.results)]
        return [LLMInteraction(envelope=envelope, result=result) for result in results]

    async def request(self, envelope: LLMEnvelope) -> LLMEnvelope | NoDecision:
        """Put on record that a call is about to be published, and return what to publish: of an open call, its envelope of then.

        One that cannot be published as it was, or was requested too long ago, is a `NoDecision` if all logs were read; else
        raises `AnswerNotKeptError`.
        """
        call = self.earlier.of(envelope)
        if call.requested_at is None:
            requested = CallRequested.model_validate({"envelope": orjson.loads(envelope.wire)})
            await self._record(requested, _request_id(envelope), envelope, envelope.causation_id)
            return envelope
        if self.clock.now() - call.requested_at > PUBLISHED_AGAIN_WITHIN:
            hours = PUBLISHED_AGAIN_WITHIN // timedelta(hours=1)
            return await self._lost(envelope, call, f"after {hours} hours its claim may be forgotten")
        before = call.envelope or envelope
        if before.envelope_hash == envelope.envelope_hash:
            return envelope
        if before.is_intact:
            return before
        return await self._lost(
            envelope, call, "its envelope had a secret in it, and is not on record as it was"
        )

    async def keep(
        self,
        envelope: LLMEnvelope,
        attempts: Sequence[LLMInteraction],
        answer: LLMInteraction | NoDecision,
        *,
        is_ended: bool,
    ) -> LLMInteraction | NoDecision:
        """Keep what came of a call, in order, and return its answer; unless it `is_ended`, a call without one stays open.

        Raises `AnswerNotKeptError` where an earlier client was to have the answer, and the workers have it no more.
        """
        for attempt in [*attempts, *([] if isinstance(answer, NoDecision) else [answer])]:
            await self.store.store(attempt)
        if isinstance(answer, LLMInteraction) or not is_ended:
            return answer
        call = self.earlier.of(envelope)
        if call.requested_at is not None and answer.reason.technical_details == TAKEN_ELSEWHERE:
            return await self._lost(envelope, call, answer.reason.description)
        return await self._unanswered(envelope, call, answer.reason)

    async def _lost(self, envelope: LLMEnvelope, call: EarlierCall, why: str) -> NoDecision:
        if not self.earlier.are_all_read:
            raise AnswerNotKeptError(envelope.envelope_id, call.requested_at or self.clock.now(), why)
        description = f"it was requested before, its answer is kept nowhere, and it is not paid again: {why}"
        reason = FailureReason(category=FailureKind.UNDELIVERABLE, description=description)
        return await self._unanswered(envelope, call, reason)

    async def _unanswered(
        self, envelope: LLMEnvelope, call: EarlierCall, reason: FailureReason
    ) -> NoDecision:
        cause = call.request_id or _request_id(envelope)
        event_id = derived_id(CallUnanswered.KIND, cause, reason.description)
        await self._record(CallUnanswered(reason=reason), event_id, envelope, cause)
        return NoDecision(reason=reason, envelope_id=envelope.envelope_id)

    async def _record(self, body: EventBody, event_id: str, envelope: LLMEnvelope, cause: str) -> None:
        event = body.as_event(
            event_id=event_id,
            trace_id=envelope.trace_id,
            tenant_id=envelope.tenant_id,
            time=self.clock.now(),
            causation_id=cause,
            as_of=envelope.as_of,
        )
        await self.store.record(self.redaction.record(event) if self.redaction.known else event)


def _request_id(envelope: LLMEnvelope) -> str:
    return derived_id(CallRequested.KIND, envelope.tenant_id, envelope.envelope_id, envelope.envelope_hash)
