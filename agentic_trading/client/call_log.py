"""A client's log of its calls, so that a restarted client does not repeat them."""

from collections.abc import Awaitable, Callable, Sequence
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

# Claims know a call for 24 hours after its end, and the message may wait for some of them. Later, a worker without the
# call in its own log would run it again, and the answer would be paid for twice (docs/explanation/decisions/0043).
PUBLISHED_AGAIN_WITHIN: Final = timedelta(hours=20)
"""How long after its first request a call may be published again."""


class AnswerNotKeptError(TradingError):
    """The answer of an earlier call is lost, and repeating the call could cost twice.

    Attributes:
        envelope_id: The id of the envelope.
        requested_at: The time of the first request.
        why: Why the call cannot be published again.

    """

    def __init__(self, envelope_id: str, requested_at: datetime, why: str) -> None:
        self.envelope_id = envelope_id
        self.requested_at = requested_at
        self.why = why
        super().__init__(
            f"Envelope {envelope_id} was requested at {requested_at:%Y-%m-%d %H:%M} UTC, and this log has no answer: {why}. "
            "The call is not repeated, because it could be paid twice. Pass logs of workers or an archive that have the "
            "answer (--answers-from). If they lack it too, the call ends without a decision, and its cost stays charged"
        )


class _CallKey(NamedTuple):
    """The identity of a call. The same envelope id with other values is another call."""

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
    """A call of an earlier client.

    Attributes:
        requested_at: The time of the first request, or None.
        request_id: The id of the event of the request.
        envelope: The published envelope while the call is open. Not intact if redaction removed a secret.
        results: The serialized results by attempt number.
        unanswered: The reason if the call ended without an answer.
        is_ended: Whether the call has ended.

    """

    requested_at: datetime | None = None
    request_id: str = ""
    envelope: LLMEnvelope | None = None
    results: dict[int, bytes] = field(default_factory=dict)
    unanswered: FailureReason | None = None
    is_ended: bool = False

    def add(self, result: LLMResult) -> None:
        """Add the result of an attempt."""
        self.results[result.attempt_number] = result.wire
        if result.next_step in {"", "final"}:
            self.is_ended, self.unanswered, self.envelope = True, None, None


@dataclass(slots=True)
class EarlierCalls:
    """The calls of earlier clients, collected from logs.

    Pass the records of the client's own log to `read`, in order. A call is open if it was requested and has
    neither a last attempt nor a reason for having no answer.

    Attributes:
        are_all_read: Whether all logs that could have an answer were read. If True, a lost answer is a
            `NoDecision`. If False, it raises `AnswerNotKeptError`.
        asks_again: Whether calls that got no answer for a temporary reason are open too. Set it if no
            decision was made without the answer.
        found: Attempts in other logs that the client's own log does not have.

    """

    are_all_read: bool = False
    asks_again: bool = False
    found: list[LLMInteraction] = field(default_factory=list)
    _calls: dict[_CallKey, EarlierCall] = field(default_factory=dict)
    _by_request: dict[str, EarlierCall] = field(default_factory=dict)

    def read(self, record: Record) -> None:
        """Add a record of the client's own log."""
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
        """Add a record of another log, of a worker or an archive.

        If it is an attempt of a known call that this log does not have, it is added to `found`.
        """
        if not isinstance(record, LLMInteraction):
            return
        call = self._calls.get(_CallKey.of(record.envelope))
        if call is None or call.requested_at is None or record.result.attempt_number in call.results:
            return
        self.found.append(record)
        call.add(record.result)

    def of(self, envelope: LLMEnvelope) -> EarlierCall:
        """Return the state of a call. It is empty for a call that was never requested."""
        return self._calls.get(_CallKey.of(envelope)) or EarlierCall()


@dataclass(frozen=True, slots=True)
class CallLog:
    """Stores the calls of a client in `store`, and answers repeated calls from there.

    Calls that `earlier` clients completed are answered from the store and are not published. Open calls are
    published unchanged: the claim of the envelope id has their result, so they are not paid twice.

    Args:
        store: The store of the client.
        clock: The system clock, for the times of requests.
        redaction: Secrets to remove from events.
        earlier: The calls of earlier clients of this store.
        agreed: Returns the envelope to publish for a new request, if clients with other stores may have made the
            same one. None publishes each request as it is.

    """

    store: InteractionStore
    clock: Clock
    redaction: Redaction
    earlier: EarlierCalls = field(default_factory=EarlierCalls)
    agreed: Callable[[LLMEnvelope], Awaitable[LLMEnvelope]] | None = None

    async def begin(self) -> None:
        """Store the attempts that were found in other logs."""
        for attempt in self.earlier.found:
            await self.store.store(attempt)

    def known(self, envelope: LLMEnvelope) -> Sequence[LLMInteraction] | NoDecision | None:
        """Return the attempts of a completed call in order, or its `NoDecision`.

        Returns None for a call that must be published.
        """
        call = self.earlier.of(envelope)
        if call.unanswered is not None:
            return NoDecision(reason=call.unanswered, envelope_id=envelope.envelope_id)
        if not call.is_ended:
            return None
        results = [LLMResult.from_wire(call.results[number]) for number in sorted(call.results)]
        return [LLMInteraction(envelope=envelope, result=result) for result in results]

    async def request(self, envelope: LLMEnvelope) -> LLMEnvelope | NoDecision:
        """Record the request of a call. Return the envelope to publish.

        For an open call, that is the envelope of its first request.

        Returns:
            The envelope, or a `NoDecision` if the answer is lost and all logs were read.

        Raises:
            AnswerNotKeptError: If the answer is lost and not all logs were read. That is if the call was
                requested more than 20 hours ago, or its envelope is not on record as it was published.

        """
        call = self.earlier.of(envelope)
        if call.requested_at is None:
            if self.agreed is not None:
                envelope = await self.agreed(envelope)
            requested = CallRequested.model_validate({"envelope": orjson.loads(envelope.wire)})
            await self._record(requested, _request_id(envelope), envelope, envelope.causation_id)
            return envelope
        if self.clock.now() - call.requested_at > PUBLISHED_AGAIN_WITHIN:
            hours = PUBLISHED_AGAIN_WITHIN // timedelta(hours=1)
            return await self._lost(envelope, call, f"after {hours} hours its claim may be forgotten")
        before = call.envelope or envelope
        if before.envelope_hash == envelope.envelope_hash:
            return envelope
        # An envelope built again has other times. The old one is published, because a claim refuses another content
        # under its id.
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
        """Store the result of a call in order, and return its answer.

        A call without an answer stays open unless it `is_ended`.

        Raises:
            AnswerNotKeptError: If an earlier client made the call, and the workers no longer have its answer.

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
