"""What cannot be served becomes a dead letter, and its caller is told."""

import structlog

from agentic_trading.bus.broker import Broker
from agentic_trading.bus.codec import dead_letter_message
from agentic_trading.bus.deadletter import DeadLetter
from agentic_trading.bus.errors import MessageTooLargeError
from agentic_trading.bus.headers import header
from agentic_trading.bus.message import Delivery
from agentic_trading.bus.topic import DEAD_LETTERS, EVENTS
from agentic_trading.clock import Clock

log = structlog.get_logger()

_NOT_TRUSTED = ("signature", "not_allowed")
"""Reasons for which nothing that a message says of itself is taken over: it may name somebody else's call."""


class DeadLetterPublisher:
    """Publish dead letters; a message that is too large for one is told of without most of its bytes."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock

    async def bury(
        self, delivery: Delivery, reason: str, detail: str, *, envelope_id: str = "", trace_id: str = ""
    ) -> None:
        """Publish why `delivery` was given up; ids that are not given are taken from its headers.

        A message that nobody has proved, or that its sender may not send, answers no call: its letter has no ids. An
        event answers none either.
        """
        is_trusted = reason not in _NOT_TRUSTED
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
        try:
            await self._broker.publish(DEAD_LETTERS, dead_letter_message(letter))
        except MessageTooLargeError:
            await self._broker.publish(DEAD_LETTERS, dead_letter_message(letter.small()))
