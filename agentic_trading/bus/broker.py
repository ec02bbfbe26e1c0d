"""The port to the bus: topics that keep their messages, and groups that read each of them at least once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import Topic

MAX_MESSAGE_BYTES = 1 << 20
"""The largest value of a message, unless a broker is told otherwise; it is also Kafka's own default."""

MAX_HEAD_BYTES = 1 << 16
"""The most that key and headers of a message may have together; an id of ours has 36."""


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """What a group has not finished in a topic: messages that wait, and those handed out."""

    group: str
    topic: str
    waiting: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """Messages published through a broker and kept by it, per topic, and what its groups have not finished."""

    published: Mapping[str, int]
    kept: Mapping[str, int]
    backlogs: tuple[ConsumerLag, ...]


class Subscription(Protocol):
    """One reader of a group. Each message goes to one of the group's readers, at least once.

    Order is kept per key within a topic: a key with a delivery that is neither acknowledged nor given back is
    handed to nobody else. Keys do not wait for each other.
    """

    async def take(self) -> Delivery:
        """Wait for the next delivery and hold it.

        Topics go in the order in which they were subscribed: a message of the second is handed out only while
        the first has none ready. Several tasks may wait at once; a cancelled wait loses nothing. Raises
        `BusClosedError` once the subscription or its broker is closed.
        """
        ...

    async def ack(self, delivery: Delivery) -> None:
        """Finish a delivery: the group is not handed it again.

        Harmless twice, and for a delivery that is not held any more.
        """
        ...

    async def give_back(self, delivery: Delivery) -> None:
        """Let the group be handed the message again, before any later one of its key.

        Other keys may go first. Harmless twice, and for a delivery that is not held any more.
        """
        ...

    async def aclose(self) -> None:
        """Stop reading; what is held goes back to the group. Harmless twice."""
        ...


class Broker(Protocol):
    """Keep each topic's messages, and hand every group each of them at least once until acknowledged."""

    async def publish(self, topic: Topic[Any], message: Message) -> None:
        """Add a message to a topic; it is kept when this returns.

        Raises `MessageTooLargeError` for a value over the broker's limit times the topic's `room`, for a key and
        headers over `MAX_HEAD_BYTES` times that room, and `BusClosedError` after `aclose`.
        """
        ...

    async def subscribe(self, topics: Sequence[Topic[Any]], group: str) -> Subscription:
        """Read `topics`, the most urgent first, as one of the readers of `group`.

        A new group gets what came before it, as far as the broker still keeps it; a known one goes on where it
        was. Raises `BusClosedError` after `aclose`, and `ValueError` for no topics.
        """
        ...

    async def aclose(self) -> None:
        """Close all subscriptions and take nothing more; harmless twice."""
        ...

    def statistics(self) -> BrokerStatistics:
        """Return what went through this broker, and what waits in it."""
        ...
