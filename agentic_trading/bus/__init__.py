"""The message bus: topics, the broker interface, and their errors."""

from agentic_trading.bus.errors import (
    BusClosedError,
    BusError,
    MessageTooLargeError,
    SignatureError,
    SigningKeyError,
    UnreadableMessageError,
)
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import (
    DEAD_LETTERS,
    ENVELOPES,
    EVENTS,
    HEADS,
    RECORDS,
    REPLIES,
    Broker,
    Subscription,
    Topic,
)

__all__ = [
    "DEAD_LETTERS",
    "ENVELOPES",
    "EVENTS",
    "HEADS",
    "RECORDS",
    "REPLIES",
    "Broker",
    "BusClosedError",
    "BusError",
    "Delivery",
    "Message",
    "MessageTooLargeError",
    "SignatureError",
    "SigningKeyError",
    "Subscription",
    "Topic",
    "UnreadableMessageError",
]
