"""The gateway's client: publish envelopes on the bus, and wait for their interactions."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, Self

import structlog

from agentic_trading.bus.codec import (
    answered_envelope,
    envelope_message,
    event_message,
    is_final,
    read_dead_letter,
    read_interaction,
)
from agentic_trading.bus.errors import UnreadableMessageError
from agentic_trading.bus.message import Message, header
from agentic_trading.bus.signing import PRINCIPAL_HEADER, Signer
from agentic_trading.bus.topic import (
    DEAD_LETTERS,
    ENVELOPES,
    EVENTS,
    INTERACTIONS,
    Broker,
    DeadLetter,
    Subscription,
)
from agentic_trading.canonical import sha256_hex
from agentic_trading.client.outcome import StructuredOutcome, outcome_of, outcome_without_answer
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.event import Event, check_event
from agentic_trading.llm.fields import long_ids
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.redaction import Redaction

GatewayReply = LLMInteraction | NoDecision

log = structlog.get_logger()

_REMEMBERED = 10_000
"""Envelopes that a client recognises; one whose occurrence was set counts twice."""


class Gateway(Protocol):
    """What an agent needs of the gateway."""

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Have the call made and return its last attempt, or why there is none. Never raises for a failed call."""
        ...

    async def record(self, event: Event) -> None:
        """Put one fact of a trace on record."""
        ...


class StructuredGateway(Gateway, Protocol):
    """What an application needs of the gateway beside an agent's part: what a call took, and calls not waited for."""

    async def ask_structured(self, envelope: LLMEnvelope) -> StructuredOutcome:
        """Have the call made and return its outcome with all its attempts. Never raises for a failed call."""
        ...

    async def submit(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Have the call made without waiting for it; return the envelope as published."""
        ...


class GatewayClient:
    """The gateway, seen from an application: envelopes go out on the bus, interactions come back.

    Use it as an async context manager. Several `ask` may be under way at once. A request that an agent asks again
    for the same moment and step gets the next `occurrence`, in the order of asking, so that a replay knows
    the first from the second; the very same envelope, asked again, gets the same answer again. `reply_timeout_s` bounds
    the wait for a worker; then the answer is a `NoDecision`. `signer` signs what is published, for workers that verify it. An event is
    published without what `redaction` knows; an envelope as it was built.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        name: str = "client",
        reply_timeout_s: float = 900.0,
        signer: Signer | None = None,
        redaction: Redaction | None = None,
    ) -> None:
        if problems := long_ids(["name"], [name]):
            raise ValueError(problems[0])
        self._broker = broker
        self._redaction = redaction or Redaction()
        self._signer = signer
        self._group = f"replies-{name}"
        self._reply_timeout_s = reply_timeout_s
        self._waiting: dict[str, list[_PendingCall]] = {}
        self._counts: dict[tuple[str, str], tuple[datetime | None, Counter[str]]] = {}
        self._occurrences: OrderedDict[str, int] = OrderedDict()  # by envelope hash
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Listen for replies from now on."""
        replies = await self._broker.subscribe([INTERACTIONS, DEAD_LETTERS], self._group)
        group = await self._exit.enter_async_context(asyncio.TaskGroup())
        reader = group.create_task(self._read(replies), name=self._group)
        self._exit.push_async_callback(replies.aclose)
        self._exit.callback(reader.cancel)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop listening; calls that still wait end with a `NoDecision`."""
        for envelope_id, calls in self._waiting.items():
            _resolve(calls, _no_answer(envelope_id, "the client was closed"))
        await self._exit.aclose()

    async def submit(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Publish an envelope without waiting; returns it as published (its occurrence may have been set)."""
        envelope = self._with_occurrence(envelope)
        await self._broker.publish(ENVELOPES[envelope.workflow], self._sign(envelope_message(envelope)))
        return envelope

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Publish an envelope and wait for its last attempt.

        A dead letter, a closed client and a missing reply give a `NoDecision`. Raises `BusError` if the envelope
        cannot be published.
        """
        return await self._answer(envelope, None)

    async def ask_structured(self, envelope: LLMEnvelope) -> StructuredOutcome:
        """Publish an envelope and wait for all its attempts: the object, or why there is none, and what it took.

        What gives a `NoDecision` from `ask` gives an outcome that is not ok, with the attempts received so far. An
        envelope that was answered before is not run again: only its last attempt is published again, and `is_complete`
        is then False unless that was the first. Raises `BusError` if the envelope cannot be published.
        """
        attempts: list[LLMInteraction] = []
        answer = await self._answer(envelope, attempts)
        if isinstance(answer, NoDecision):
            return outcome_without_answer(answer, attempts)
        return outcome_of([*attempts, answer])

    async def record(self, event: Event) -> None:
        """Publish an event; a worker keeps it in the log. Raises `RecordError` for an id that is too long."""
        if self._redaction.known:
            event = self._redaction.record(event)
        check_event(event)
        await self._broker.publish(EVENTS, self._sign(event_message(event)))

    async def _answer(self, envelope: LLMEnvelope, attempts: list[LLMInteraction] | None) -> GatewayReply:
        """Publish an envelope and wait for its last attempt; those before it are put into `attempts`, if it is given."""
        envelope = self._with_occurrence(envelope)
        reply: asyncio.Future[GatewayReply] = asyncio.get_running_loop().create_future()
        message = self._sign(envelope_message(envelope))
        call = _PendingCall(envelope, message, reply, attempts)
        calls = self._waiting.setdefault(envelope.envelope_id, [])
        calls.append(call)
        try:
            await self._broker.publish(ENVELOPES[envelope.workflow], message)
            async with asyncio.timeout(self._reply_timeout_s):
                return await reply
        except TimeoutError:
            return _no_answer(envelope.envelope_id, f"no worker answered within {self._reply_timeout_s:g} s")
        finally:
            calls.remove(call)
            if not calls:
                self._waiting.pop(envelope.envelope_id, None)

    def _sign(self, message: Message) -> Message:
        return message if self._signer is None else self._signer.sign(message)

    def _with_occurrence(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Count a request; an envelope that was published before is the same call, and is published as it was."""
        occurrence = self._occurrences.get(envelope.envelope_hash)
        if occurrence is None:
            occurrence = self._next_occurrence(envelope)
        published = envelope
        if occurrence != envelope.occurrence:
            published = envelope.model_copy(update={"occurrence": occurrence})
        for known in (envelope, published):
            self._occurrences[known.envelope_hash] = occurrence
            self._occurrences.move_to_end(known.envelope_hash)
        while len(self._occurrences) > _REMEMBERED:
            self._occurrences.popitem(last=False)
        return published

    def _next_occurrence(self, envelope: LLMEnvelope) -> int:
        key = (envelope.agent_id, envelope.step)
        as_of, counts = self._counts.get(key, (envelope.as_of, Counter[str]()))
        if as_of != envelope.as_of:
            counts = Counter[str]()
        occurrence = envelope.occurrence + counts[envelope.request_hash]
        counts[envelope.request_hash] += 1
        self._counts[key] = (envelope.as_of, counts)
        return occurrence

    async def _read(self, replies: Subscription) -> None:
        while True:
            delivery = await replies.take()
            self._receive(delivery.topic, delivery.message)
            await replies.ack(delivery)

    def _receive(self, topic: str, message: Message) -> None:
        envelope_id = answered_envelope(message)
        calls = self._waiting.get(envelope_id)
        if topic == DEAD_LETTERS.name and not envelope_id:
            self._receive_without_ids(message)
        if not calls:
            return
        try:
            if topic == DEAD_LETTERS.name:
                _end_by_letter(calls, read_dead_letter(message))
            elif is_final(message):
                answer = read_interaction(message)
                _resolve(_of_same_envelope(answer, calls), answer)
            elif any(call.attempts is not None for call in calls):
                _collect(calls, read_interaction(message))
        except UnreadableMessageError as e:  # no answer to this call, and nothing to the others
            if topic == INTERACTIONS.name and not is_final(message):  # the last attempt is still to come
                log.warning("attempt_unreadable", envelope_id=envelope_id, detail=e.detail)
                return
            _resolve(calls, _no_answer(envelope_id, f"the answer cannot be read: {e.detail}"))

    def _receive_without_ids(self, message: Message) -> None:
        """Find the call for a letter without ids: those of messages without a signature, or with a wrong one, have none."""
        if not self._waiting:
            return
        try:
            letter = read_dead_letter(message)
        except UnreadableMessageError:
            return
        _end_by_letter(self._waiting.get(header(Message("", b"", letter.headers), "ce_id"), ()), letter)


@dataclass(frozen=True, slots=True, eq=False)
class _PendingCall:
    """One envelope, `sent` as a message, and its answer to come; with `attempts`, also the attempts before the last."""

    envelope: LLMEnvelope
    sent: Message
    reply: "asyncio.Future[GatewayReply]"
    attempts: list[LLMInteraction] | None


def _of_same_envelope(attempt: LLMInteraction, calls: Iterable[_PendingCall]) -> list[_PendingCall]:
    return [call for call in calls if call.envelope.envelope_hash == attempt.envelope.envelope_hash]


def _collect(calls: Iterable[_PendingCall], attempt: LLMInteraction) -> None:
    for call in _of_same_envelope(attempt, calls):
        if call.attempts is not None:
            call.attempts.append(attempt)


def _end_by_letter(calls: Iterable[_PendingCall], letter: DeadLetter) -> None:
    """End the calls whose message is in a dead letter."""
    why = f"dead letter: {letter.reason}: {letter.detail}"
    for call in calls:
        if _is_from(call, letter):
            _resolve([call], _no_answer(call.envelope.envelope_id, why))


def _is_from(call: _PendingCall, letter: DeadLetter) -> bool:
    """Whether a letter is about the message of a call: any client may send another message under the same id.

    Where the proof was wrong, it has to be that very message, head and all; else one of the same principal, and the
    same envelope where two have one id.
    """
    sent = call.sent
    if letter.reason in {"signature", "not_allowed"}:
        is_same_head = (letter.key, letter.headers) == (sent.key, dict(sent.headers))
        return is_same_head and letter.raw_sha256 == sha256_hex(sent.value)
    if letter.headers.get(PRINCIPAL_HEADER) != sent.headers.get(PRINCIPAL_HEADER):
        return False
    return letter.reason != "id_conflict" or call.envelope.envelope_hash.encode() in letter.raw


def _resolve(calls: Iterable[_PendingCall], answer: GatewayReply) -> None:
    for call in calls:
        if not call.reply.done():
            call.reply.set_result(answer)


def _no_answer(envelope_id: str, why: str) -> NoDecision:
    reason = FailureReason(category=FailureKind.UNDELIVERABLE, description=why, recoverable=True)
    return NoDecision(reason=reason, envelope_id=envelope_id)
