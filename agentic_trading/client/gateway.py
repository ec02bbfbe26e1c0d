"""Ask for LLM calls over the bus and get the interactions back."""

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
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction

GatewayReply = LLMInteraction | NoDecision

log = structlog.get_logger()

_REMEMBERED = 10_000
"""Envelopes that a client knows again; one whose occurrence was set counts twice."""


class Gateway(Protocol):
    """What an agent needs of the gateway."""

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Have the call made and return its last attempt, or why there is none. Never raises for a failed call."""
        ...

    async def record(self, event: Event) -> None:
        """Put one fact of a trace on record."""
        ...


class GatewayClient:
    """The gateway, seen from an application: envelopes go out on the bus, interactions come back.

    Use it as an async context manager. Several `ask` may be under way at once. A request that an agent asks again
    for the same moment and step gets the next `occurrence`, in the order of asking, so that a replay can tell
    the first from the second; the very same envelope, asked again, gets the same answer again. `reply_timeout_s` bounds the wait for a worker; then the answer is a `NoDecision`.
    `signer` proves to workers who asks, where they want that proved.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        name: str = "client",
        reply_timeout_s: float = 900.0,
        signer: Signer | None = None,
    ) -> None:
        self._broker = broker
        self._signer = signer
        self._group = f"replies-{name}"
        self._reply_timeout_s = reply_timeout_s
        self._waiting: dict[str, list[_Waiter]] = {}
        self._asked: dict[tuple[str, str], tuple[datetime | None, Counter[str]]] = {}
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
        """Stop listening; whoever still waits is told that there is no answer."""
        for envelope_id, waiters in self._waiting.items():
            _resolve(waiters, _no_answer(envelope_id, "the client was closed"))
        await self._exit.aclose()

    async def submit(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Publish an envelope without waiting; returns it as published (its occurrence may have been set)."""
        envelope = self._with_occurrence(envelope)
        await self._broker.publish(ENVELOPES[envelope.workflow], self._signed(envelope_message(envelope)))
        return envelope

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Publish an envelope and wait for its last attempt.

        A dead letter, a closed client and a missing reply give a `NoDecision`. Raises `BusError` if the envelope
        cannot be published.
        """
        return await self._answer(envelope, None)

    async def ask_structured(self, envelope: LLMEnvelope) -> StructuredOutcome:
        """Publish an envelope and wait for all its attempts: the object, or why there is none, and what it took.

        What gives a `NoDecision` from `ask` gives an outcome that is not ok, with the attempts heard so far. An envelope
        that was answered before is not asked again: only its last attempt is told again, and `is_complete` is then
        False unless that was the first. Raises `BusError` if the envelope cannot be published.
        """
        attempts: list[LLMInteraction] = []
        answer = await self._answer(envelope, attempts)
        if isinstance(answer, NoDecision):
            return outcome_without_answer(answer, attempts)
        return outcome_of([*attempts, answer])

    async def record(self, event: Event) -> None:
        """Publish an event; a worker keeps it in the log."""
        await self._broker.publish(EVENTS, self._signed(event_message(event)))

    async def _answer(self, envelope: LLMEnvelope, attempts: list[LLMInteraction] | None) -> GatewayReply:
        """Publish an envelope and wait for its last attempt; those before it are put into `attempts`, if it is given."""
        envelope = self._with_occurrence(envelope)
        reply: asyncio.Future[GatewayReply] = asyncio.get_running_loop().create_future()
        message = self._signed(envelope_message(envelope))
        waiter = _Waiter(envelope, message, reply, attempts)
        waiters = self._waiting.setdefault(envelope.envelope_id, [])
        waiters.append(waiter)
        try:
            await self._broker.publish(ENVELOPES[envelope.workflow], message)
            async with asyncio.timeout(self._reply_timeout_s):
                return await reply
        except TimeoutError:
            return _no_answer(envelope.envelope_id, f"no worker answered within {self._reply_timeout_s:g} s")
        finally:
            waiters.remove(waiter)
            if not waiters:
                self._waiting.pop(envelope.envelope_id, None)

    def _signed(self, message: Message) -> Message:
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
        who = (envelope.agent_id, envelope.step)
        as_of, counts = self._asked.get(who, (envelope.as_of, Counter[str]()))
        if as_of != envelope.as_of:
            counts = Counter[str]()
        occurrence = envelope.occurrence + counts[envelope.request_hash]
        counts[envelope.request_hash] += 1
        self._asked[who] = (envelope.as_of, counts)
        return occurrence

    async def _read(self, replies: Subscription) -> None:
        while True:
            delivery = await replies.take()
            self._hear(delivery.topic, delivery.message)
            await replies.ack(delivery)

    def _hear(self, topic: str, message: Message) -> None:
        envelope_id = answered_envelope(message)
        waiters = self._waiting.get(envelope_id)
        if topic == DEAD_LETTERS.name and not envelope_id:
            self._hear_of_nobody(message)
        if not waiters:
            return
        try:
            if topic == DEAD_LETTERS.name:
                _bury(waiters, read_dead_letter(message))
            elif is_final(message):
                answer = read_interaction(message)
                _resolve(_asked_with(answer, waiters), answer)
            elif any(waiter.attempts is not None for waiter in waiters):
                _gather(waiters, read_interaction(message))
        except UnreadableMessageError as e:  # no answer to this one, and nothing to those who wait for others
            if topic == INTERACTIONS.name and not is_final(message):  # the last attempt is still to come
                log.warning("attempt_unreadable", envelope_id=envelope_id, detail=e.detail)
                return
            _resolve(waiters, _no_answer(envelope_id, f"the answer cannot be read: {e.detail}"))

    def _hear_of_nobody(self, message: Message) -> None:
        """Look whether a letter without ids is about a message of one's own: one that proves nothing, or the wrong thing."""
        if not self._waiting:
            return
        try:
            letter = read_dead_letter(message)
        except UnreadableMessageError:
            return
        _bury(self._waiting.get(header(Message("", b"", letter.headers), "ce_id"), ()), letter)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """Who waits for the answer to one envelope, `sent` as a message; with `attempts`, also for those that come before it."""

    envelope: LLMEnvelope
    sent: Message
    reply: "asyncio.Future[GatewayReply]"
    attempts: list[LLMInteraction] | None


def _asked_with(attempt: LLMInteraction, waiters: Iterable[_Waiter]) -> list[_Waiter]:
    return [waiter for waiter in waiters if waiter.envelope.envelope_hash == attempt.envelope.envelope_hash]


def _gather(waiters: Iterable[_Waiter], attempt: LLMInteraction) -> None:
    for waiter in _asked_with(attempt, waiters):
        if waiter.attempts is not None:
            waiter.attempts.append(attempt)


def _bury(waiters: Iterable[_Waiter], letter: DeadLetter) -> None:
    """Tell those whose message is in a dead letter that there is no answer."""
    why = f"dead letter: {letter.reason}: {letter.detail}"
    for waiter in waiters:
        if _is_from(waiter, letter):
            _resolve([waiter], _no_answer(waiter.envelope.envelope_id, why))


def _is_from(waiter: _Waiter, letter: DeadLetter) -> bool:
    """Whether a letter is about what a waiter has sent: anybody may send another message under the same id.

    Where the proof was wrong, it has to be that very message, head and all; else one of the same principal, and the
    same envelope where two have one id.
    """
    sent = waiter.sent
    if letter.reason in {"signature", "not_allowed"}:
        is_same_head = (letter.key, letter.headers) == (sent.key, dict(sent.headers))
        return is_same_head and letter.raw_sha256 == sha256_hex(sent.value)
    if letter.headers.get(PRINCIPAL_HEADER) != sent.headers.get(PRINCIPAL_HEADER):
        return False
    return letter.reason != "id_conflict" or waiter.envelope.envelope_hash.encode() in letter.raw


def _resolve(waiters: Iterable[_Waiter], answer: GatewayReply) -> None:
    for waiter in waiters:
        if not waiter.reply.done():
            waiter.reply.set_result(answer)


def _no_answer(envelope_id: str, why: str) -> NoDecision:
    reason = FailureReason(category=FailureKind.UNDELIVERABLE, description=why, recoverable=True)
    return NoDecision(reason=reason, envelope_id=envelope_id)
