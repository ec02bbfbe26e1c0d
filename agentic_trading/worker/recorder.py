"""Store attempts and events in the log first, then publish replies and dead letters."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from agentic_trading.bus.codec import dead_letter_message, reply_message
from agentic_trading.bus.errors import MessageTooLargeError
from agentic_trading.bus.message import Delivery, Message, header
from agentic_trading.bus.signing import Signer
from agentic_trading.bus.topic import DEAD_LETTERS, EVENTS, REPLIES, Broker, DeadLetter, Topic
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import RecordError
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.result import LLMResult
from agentic_trading.llm.store import InteractionStore
from agentic_trading.logger import get_logger
from agentic_trading.worker.attempt_statistics import RECORD_BOUNDS_S, Histogram
from agentic_trading.worker.error_boundary import UndeliverableError, id_conflict

log = get_logger()

R = TypeVar("R", LLMInteraction, Event)

_UNTRUSTED = ("signature", "not_allowed")
"""Reasons for which no ids of a message are used, because it may name the call of another sender."""


@dataclass(frozen=True, slots=True)
class ReplyRoute:
    """The reply address of a message, and the signer of its replies.

    Without an address, there are no replies.
    """

    address: str = ""
    signer: Signer | None = None

    def sealed(self, message: Message) -> Message:
        """Return a reply, signed if there is a signer."""
        return message if self.signer is None else self.signer.sign(message)


NO_REPLY: Final = ReplyRoute()


class RecordStream(Protocol):
    """The stream that sends the lines of the log to the bus."""

    async def reached(self, seq: int) -> None:
        """Return when all lines up to number `seq` are on the bus.

        Raises `UnstreamedError` after a limit.
        """
        ...

    def stop(self) -> None:
        """End the waits in `reached` after a limit, because the worker stops."""
        ...


class Recorder:
    """Store each attempt in the log, then send it to its caller.

    `redaction` removes known secrets first. With a `stream`, an attempt is sent to its caller only after it
    is on the stream. `durable_s` are the seconds in which the log has stored each record.
    """

    def __init__(
        self,
        store: InteractionStore,
        broker: Broker | None = None,
        redaction: Redaction | None = None,
        stream: RecordStream | None = None,
    ) -> None:
        self._store = store
        self._broker = broker
        self._stream = stream
        self._clock = SystemClock()
        self.redaction = redaction or Redaction()
        self.durable_s = Histogram(RECORD_BOUNDS_S)

    async def keep(
        self,
        interaction: LLMInteraction,
        *,
        final: bool,
        route: ReplyRoute = NO_REPLY,
        on_stored: Callable[[], None] | None = None,
    ) -> None:
        """Store an attempt durably, then send it by `route`.

        `final` marks the last attempt of its envelope. `on_stored` is called once it is stored. Raises `StoreError` or `RecordError` if the attempt
        was not stored. It is then not sent. Raises `UndeliverableError` if the last attempt is stored but too
        large for the bus. Raises `UnstreamedError` if the attempt is stored, but not on the stream when the
        worker ends.
        """
        kept = self.as_kept(interaction)
        seq = await self._stored(self._store.store(kept))
        if on_stored is not None:
            on_stored()
        await self.streamed(seq)
        await self._publish(kept, route, final=final)

    async def streamed(self, seq: int) -> None:
        """Return when line `seq` of the log is on the stream, if there is one.

        Raises `UnstreamedError`.
        """
        if self._stream is not None:
            await self._stream.reached(seq)

    def stop(self) -> None:
        """End waits for the stream after a limit, because the worker stops. Repeated calls have no effect."""
        if self._stream is not None:
            self._stream.stop()

    def as_kept(self, interaction: LLMInteraction) -> LLMInteraction:
        """Return an attempt without secrets, as it is stored.

        Raises `RecordError` if a secret cannot be removed.
        """
        kept = self._redacted(interaction, interaction.interaction_id)
        if kept is interaction:
            return kept
        return kept.model_copy(update={"redacted": True})  # because its hashes are those of the original

    async def has_attempt(self, envelope: LLMEnvelope, attempt: int) -> bool:
        """Whether the log has this attempt, by any process and for any envelope with this id."""
        return await self._store.has_attempt(envelope, attempt)

    async def attempt(self, envelope: LLMEnvelope, attempt: int) -> LLMResult | None:
        """Return the logged result of an attempt of exactly this envelope, or None."""
        if not await self.has_attempt(envelope, attempt):
            return None
        found = await self._store.get_by_trace_id(envelope.trace_id, tenant=envelope.tenant_id)
        marks = envelope.envelope_hash, attempt
        same = (each for each in found if (each.envelope.envelope_hash, each.result.attempt_number) == marks)
        return next((each.result for each in same), None)

    async def has_ended(self, envelope: LLMEnvelope, attempt: int, *, is_kept: bool) -> bool:
        """Return whether the log has this attempt.

        With `is_kept`, return whether the attempt is in the log and was the last one of its call.
        """
        if not await self.has_attempt(envelope, attempt):
            return False
        last = await self._store.get_by_envelope_id(envelope.envelope_id, tenant=envelope.tenant_id)
        return not is_kept or last is None or last.result.next_step == "final"

    async def attempts_of(self, envelope: LLMEnvelope) -> list[LLMInteraction]:
        """Return the logged attempts of this envelope, in order.

        If there are none, return those of another envelope with the same id.
        """
        last = await self._store.get_by_envelope_id(envelope.envelope_id, tenant=envelope.tenant_id)
        if last is None or last.result.attempt_number == 1:
            return [] if last is None else [last]
        found = await self._store.get_by_trace_id(last.trace_id, tenant=envelope.tenant_id)
        same = (last.envelope.envelope_id, last.envelope.envelope_hash)
        return [one for one in found if (one.envelope.envelope_id, one.envelope.envelope_hash) == same]

    def spelled(self, attempts: Iterable[LLMInteraction]) -> bytes:
        """Return attempts as stored, one on each line."""
        return b"\n".join(self.as_kept(one).wire for one in attempts)

    async def publish_again(
        self, envelope: LLMEnvelope, kept: bytes = b"", *, route: ReplyRoute = NO_REPLY
    ) -> bool:
        """Send the attempts of `envelope` by `route`, the last one as final.

        Returns False if there are none. `kept` contains the attempts from another process, as `spelled`
        there. It is used if the envelope is not in this log. Raises `UndeliverableError` if the attempts
        belong to another envelope with the same id.
        """
        known = await self.attempts_of(envelope)
        is_here = bool(known)
        known = known or [LLMInteraction.from_wire(line) for line in kept.splitlines()]
        if not known:
            return False
        if known[-1].envelope.envelope_hash != envelope.envelope_hash:
            raise id_conflict(envelope)
        if is_here and self._stream is not None:  # otherwise the process that stored it has waited for this
            await self.streamed(await self._store.store(known[-1]))
        for attempt in known:
            await self._publish(attempt, route, final=attempt is known[-1])
        return True

    async def keep_event(self, event: Event) -> int:
        """Store an event durably, and return its line number.

        Raises `StoreError` or `RecordError` if the event was not stored.
        """
        return await self._stored(self._store.record(self._redacted(event, event.id)))

    async def _stored(self, storing: Awaitable[int]) -> int:
        """Wait for a record to be stored, and count the seconds."""
        started = self._clock.monotonic()
        seq = await storing
        self.durable_s.observe(self._clock.monotonic() - started)
        return seq

    def _redacted(self, record: R, record_id: str) -> R:
        if not self.redaction.known:
            return record
        try:
            return self.redaction.record(record)
        except ValueError:
            raise RecordError(
                record_id, "it contains a secret at a place that cannot be redacted. Remove the secret."
            ) from None

    async def _publish(self, interaction: LLMInteraction, route: ReplyRoute, *, final: bool) -> None:
        if self._broker is None or not route.address:
            return
        reply = reply_message(interaction, route.address, final=final)
        try:
            await self._broker.publish(REPLIES, route.sealed(reply))
        except MessageTooLargeError as e:
            envelope = interaction.envelope
            if final:  # the caller waits for it, and would never get an answer
                detail = f"the answer is in the log as {interaction.interaction_id}, but too large for the bus: {e}"
                raise UndeliverableError(
                    "answer_too_large", detail, envelope_id=envelope.envelope_id, trace_id=envelope.trace_id
                ) from e
            log.warning("attempt_unpublished", envelope_id=envelope.envelope_id, reason=str(e))


class DeadLetterPublisher:
    """Publish dead letters, and send them to the callers.

    Letters that are too large are shortened.
    """

    def __init__(self, broker: Broker, clock: Clock, redaction: Redaction) -> None:
        self._broker = broker
        self._clock = clock
        self._redaction = redaction

    async def publish(
        self,
        delivery: Delivery,
        reason: str,
        detail: str,
        *,
        envelope_id: str = "",
        trace_id: str = "",
        route: ReplyRoute = NO_REPLY,
    ) -> None:
        """Publish the dead letter of `delivery`. Missing ids are taken from its headers.

        A letter has no ids if its message is from an unverified sender or was not allowed, because such a
        message answers no call. The letter of an event has no envelope id.
        """
        detail = self._redaction.text(detail)
        is_trusted = reason not in _UNTRUSTED
        is_call = is_trusted and delivery.topic != EVENTS.name
        letter = DeadLetter.of(
            delivery,
            reason=reason,
            detail=detail,
            envelope_id=(envelope_id or header(delivery.message, "ce_id")) if is_call else "",
            trace_id=(trace_id or header(delivery.message, "ce_correlationid")) if is_trusted else "",
            time=self._clock.now(),
        )
        log.warning(
            "dead_letter", reason=reason, detail=detail, topic=delivery.topic, position=delivery.position
        )
        await self._publish(DEAD_LETTERS, letter, NO_REPLY)
        if route.address and delivery.topic != EVENTS.name:
            await self._publish(REPLIES, letter, route)

    async def _publish(self, topic: Topic[Any], letter: DeadLetter, route: ReplyRoute) -> None:
        try:
            message = dead_letter_message(letter, address=route.address)
            await self._broker.publish(topic, route.sealed(message))
        except MessageTooLargeError:
            message = dead_letter_message(letter.small(), address=route.address)
            await self._broker.publish(topic, route.sealed(message))
