"""The topics of the bus, their messages, and the interface of a broker."""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Final, Generic, Protocol, Self, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
)

from agentic_trading.bus.log_stream import LogHead, StreamedLine
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.canonical import sha256_hex
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction

MAX_RAW_BYTES = 1 << 20
MAX_DETAIL = 2000
MAX_ID = 4000
MAX_HEADERS = 1 << 15
SMALL_RAW_BYTES = 4000


def _from_base64(value: Any, info: ValidationInfo) -> Any:
    return b64decode(value, validate=True) if info.mode == "json" and isinstance(value, str) else value


def _to_base64(value: bytes) -> str:
    return b64encode(value).decode()


Base64 = Annotated[
    bytes,
    BeforeValidator(_from_base64),
    PlainSerializer(_to_base64, when_used="json"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]


TAKEN_ELSEWHERE: Final = "taken_elsewhere"
"""Dead-letter reason: another run sent the call, and its outcome is neither with the claim nor in this
worker's log."""


class DeadLetter(BaseModel, frozen=True, extra="allow"):
    """A message and why it was given up.

    `reason` is one of `UnreadableMessageError`'s, or a worker's own word (`crash_loop`). `raw` holds the message's
    value byte for byte, at most its first mebibyte; `raw_size` and `raw_sha256` are those of the whole value.
    `envelope_id` and `trace_id` are empty where they could not be read. `is_cut` says that the key or an id was cut,
    or the headers left out, because they were too long for a letter, or that no JSON can spell the key.
    """

    id: str
    reason: str = Field(min_length=1)
    detail: str = ""
    source_topic: str
    source_partition: int = 0
    position: int
    deliveries: int = 1
    key: str
    headers: dict[str, str] = Field(default_factory=dict)
    raw: Base64
    raw_size: int
    raw_sha256: str
    envelope_id: str = ""
    trace_id: str = ""
    time: AwareDatetime
    is_cut: bool = False

    @classmethod
    def of(
        cls,
        delivery: Delivery,
        *,
        reason: str,
        detail: str,
        time: datetime,
        envelope_id: str = "",
        trace_id: str = "",
    ) -> Self:
        """Return the letter of a delivery.

        The same message at the same position always gets the same letter id.
        """
        message = delivery.message
        digest = sha256_hex(message.value)
        headers, key = dict(message.headers), _spellable(message.key[:MAX_ID])
        if sum(map(len, headers)) + sum(map(len, headers.values())) > MAX_HEADERS:
            headers = {}
        return cls(
            id=derived_id("dead-letter", delivery.topic, delivery.partition, delivery.position, digest),
            reason=reason,
            detail=_spellable(detail[:MAX_DETAIL]),
            source_topic=delivery.topic,
            source_partition=delivery.partition,
            position=delivery.position,
            deliveries=delivery.deliveries,
            key=key,
            headers=headers,
            raw=message.value[:MAX_RAW_BYTES],
            raw_size=len(message.value),
            raw_sha256=digest,
            envelope_id=_spellable(envelope_id[:MAX_ID]),
            trace_id=_spellable(trace_id[:MAX_ID]),
            time=time,
            is_cut=len(headers) != len(message.headers)
            or key != message.key
            or max(map(len, (envelope_id, trace_id))) > MAX_ID,
        )

    def small(self) -> Self:
        """Return a copy without headers and with few raw bytes, for a bus that rejects the full letter."""
        fields = {**self.model_dump(), "headers": {}, "raw": self.raw[:SMALL_RAW_BYTES], "is_cut": True}
        return type(self).model_validate(fields)

    @property
    def is_replayable(self) -> bool:
        """Whether the letter contains the whole, unchanged message."""
        return not self.is_cut and len(self.raw) == self.raw_size and sha256_hex(self.raw) == self.raw_sha256

    def message(self) -> Message:
        """Return the original message, to be published to `source_topic` again.

        Raises:
            ValueError: If the letter does not contain the whole message.

        """
        if not self.is_replayable:
            raise ValueError(
                f"dead letter {self.id} holds {len(self.raw)} of {self.raw_size} bytes, or not its whole key and headers. "
                f"Take the message from {self.source_topic}, partition {self.source_partition}, at position {self.position}."
            )
        return Message(self.key, self.raw, self.headers)

    @cached_property
    def wire(self) -> bytes:
        """The serialized letter: JSON, with the raw bytes in base64 (RFC 4648 §4)."""
        return _LETTER.dump_json(self)

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Parse a letter. Raises pydantic's `ValidationError` if the bytes are not a valid letter."""
        return cls.model_validate_json(raw)


_LETTER = TypeAdapter(DeadLetter)


def _spellable(text: str) -> str:
    """Return `text` with lone surrogates replaced, because JSON cannot represent them."""
    return text.encode("utf-8", "replace").decode()


class WireModel(Protocol):
    """A model that can be serialized for the bus."""

    @property
    def wire(self) -> bytes:
        """The serialized model."""
        ...

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Parse a model. Raises `ValueError` if the bytes are invalid."""
        ...


M = TypeVar("M", bound=WireModel)


@dataclass(frozen=True, slots=True)
class Topic(Generic[M]):
    """A stream of messages that carry `model`.

    `room` is the size limit of a message, as a multiple of the broker's `max_message_bytes`. `newest` is the
    number of newest messages that a partition keeps, read or not, on a broker that would otherwise reject new
    messages (Redis). Without it, a partition keeps all messages that a group has not finished.
    """

    name: str
    model: type[M]
    room: int = 1
    newest: int | None = None


ENVELOPES: Final = {
    workflow: Topic(f"llm.envelopes.{workflow}", LLMEnvelope) for workflow in EnvelopeWorkflow
}
"""One topic for each workflow, so that an execution envelope never waits for an analysis."""


def lane_topic(workflow: EnvelopeWorkflow, lane: str) -> Topic[Any]:
    """Return the topic of a workflow's envelopes for providers in `lane`.

    If `lane` is empty, return the workflow's own topic.
    """
    topic = ENVELOPES[workflow]
    return Topic(f"{topic.name}.{lane}", LLMEnvelope) if lane else topic


REPLIES: Final = Topic("llm.replies", LLMInteraction, room=5)
"""The attempts of an envelope, or its dead letter, keyed by its reply address. See `Broker.replies`.

An interaction contains an envelope, an answer as text, and the object parsed from it. See `largest_answer`.
"""

EVENTS: Final = Topic("llm.events", Event)
DEAD_LETTERS: Final = Topic("llm.dead-letters", DeadLetter, room=2, newest=10_000)
"""Letters, each with another message in base64. Old letters make room for new ones, because a message can be
finished only after its letter is stored."""


RECORDS: Final = Topic("llm.records", StreamedLine, room=REPLIES.room)
"""All lines of all logs, of interactions and events. The records of a trace stay in order."""

HEADS: Final = Topic("llm.heads", LogHead, newest=1_000)
"""The end of the archive's log, published again and again, so that a truncated log can be detected."""


TOPICS: Final[tuple[Topic[Any], ...]] = (*ENVELOPES.values(), REPLIES, EVENTS, DEAD_LETTERS, RECORDS, HEADS)
"""The topics that the platform publishes to."""


def topics_with(lanes: Iterable[str]) -> list[Topic[Any]]:
    """Return the topics of the platform, and the topics of the given provider lanes."""
    return [*TOPICS, *(lane_topic(workflow, lane) for lane in lanes for workflow in ENVELOPES)]


CREATE: Final = "Run agentic-trading topics create to create missing topics"
"""The fix for a missing topic."""


@dataclass(frozen=True, slots=True)
class TopicProblem:
    """A problem of a topic: `what` is `found`, and must be `wanted`."""

    topic: str
    what: str
    found: str
    wanted: str


MAX_MESSAGE_BYTES = 1 << 20
"""The default size limit of a message value, in bytes. It is also Kafka's default."""


def largest_answer(max_message_bytes: int) -> int:
    """Return the size limit of a provider's answer, in bytes as received.

    Within the limit, its interaction can be published. The limit allows for an envelope of
    `max_message_bytes` in the same message. The answer's text takes up to twice the bytes of its body,
    because a quote in JSON becomes an escape in the input of a tool. In other bodies, escapes are already
    written out. The parsed object takes the bytes of the body, and the reading trace takes the rest. Numbers
    with exponents are written out in the object, and may still exceed the limit.
    """
    return max_message_bytes * (REPLIES.room - 2) // 3


MAX_HEAD_BYTES = 1 << 16
"""The size limit of the key and headers of a message, in bytes. The platform's own ids have 36 bytes."""


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """The messages of a topic that a group has not finished: `waiting` and delivered ones."""

    group: str
    topic: str
    waiting: int
    in_flight: int


def summed(lags: Iterable[ConsumerLag]) -> tuple[ConsumerLag, ...]:
    """Return one lag for each group and topic, sorted."""
    waiting, in_flight = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for lag in lags:
        waiting[lag.group, lag.topic] += lag.waiting
        in_flight[lag.group, lag.topic] += lag.in_flight
    return tuple(ConsumerLag(*each, waiting[each], in_flight[each]) for each in sorted(waiting))


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """The messages published through a broker and kept by it, and the lag of its groups."""

    published: Mapping[str, int]
    kept: Mapping[str, int]
    backlogs: tuple[ConsumerLag, ...]


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """The progress of a reader in one partition of a topic.

    `end` is the position after the last message of the partition. All messages before `done` are
    acknowledged. `done` is None for a partition that this reader does not have. Its `end` may then be
    unknown, which is 0.
    """

    topic: str
    partition: int
    end: int
    done: int | None


class Subscription(Protocol):
    """One reader of a group.

    Each message is delivered to one reader of the group, at least once. Messages with the same key are
    delivered in order within a topic. While a delivery is neither acknowledged nor given back, no other
    reader gets a message with its key. Keys do not wait for each other.
    """

    async def take(self) -> Delivery:
        """Wait for the next delivery and hold it.

        Topics with ready messages take turns. Several tasks may wait at once. A cancelled wait does not lose
        a message.

        Raises:
            BusClosedError: If the subscription or its broker is closed.

        """
        ...

    async def ack(self, delivery: Delivery) -> None:
        """Finish a delivery, so that the group does not get it again.

        Repeated calls have no effect, nor have calls for a delivery that is no longer held.
        """
        ...

    async def give_back(self, delivery: Delivery) -> None:
        """Return a delivery to the group, which gets it again before any later message of its key.

        Other keys may be delivered first. Repeated calls have no effect, nor have calls for a delivery that
        is no longer held.
        """
        ...

    async def progress(self) -> Sequence[PartitionProgress]:
        """Query the servers for all partitions of the topics, including those of other readers.

        Raises:
            BusUnavailableError: If the servers do not answer in time.

        """
        ...

    async def aclose(self) -> None:
        """Stop reading and return held deliveries to the group. Repeated calls have no effect."""
        ...


class Broker(Protocol):
    """The interface of a message broker.

    A broker stores the messages of each topic, and delivers each message to every group, at least once, until
    it is acknowledged.
    """

    @property
    def max_message_bytes(self) -> int:
        """The size limit of a message value in bytes, on a topic whose `room` is 1."""
        ...

    async def publish(self, topic: Topic[Any], message: Message) -> None:
        """Add a message to a topic. When this returns, the message is stored.

        Raises:
            MessageTooLargeError: If the value is larger than `max_message_bytes` times the topic's `room`, or
                if the key and headers are larger than `MAX_HEAD_BYTES` times `room`.
            BusClosedError: After `aclose`.

        """
        ...

    async def publish_all(self, topic: Topic[Any], messages: Sequence[Message]) -> None:
        """Add messages to a topic in order, with one wait for all.

        When this returns, they are stored.

        Raises:
            MessageTooLargeError: If one message is too large. No message was added.
            BusClosedError: After `aclose`. No message was added.

        """
        ...

    async def subscribe(self, topics: Sequence[Topic[Any]], group: str) -> Subscription:
        """Join `group` as one of its readers, and read `topics`.

        Topics with ready messages take turns. A new group starts at the oldest message that the broker still
        keeps. A known group continues after its finished messages.

        Raises:
            BusClosedError: After `aclose`.
            ValueError: If `topics` is empty.

        """
        ...

    async def replies(self, address: str) -> Subscription:
        """Read the replies to `address` that are published from now on, without a group.

        They are the messages on `REPLIES` with this key. `ack` and `give_back` have no effect. There is no
        other way to read that topic. Replies may be lost while no reader has their address.

        Raises:
            BusClosedError: After `aclose`.

        """
        ...

    def scan(self, topic: Topic[Any]) -> AsyncGenerator[Delivery]:
        """Yield the stored messages of `topic`, without a group.

        It starts with the oldest stored message, and ends with the newest one at the time of the call.
        Messages with the same key are in order. The deliveries are not held, and need no `ack`.

        Raises:
            BusClosedError: After `aclose`.

        """
        ...

    async def check(self, topics: Sequence[Topic[Any]]) -> None:
        """Ask the servers now whether `topics` can be used.

        Raises:
            BusUnavailableError: If the servers do not answer in time.
            TopicSetupError: If a topic does not exist.
            BusClosedError: After `aclose`.

        """
        ...

    async def delete_before(self, topic: Topic[Any], positions: Mapping[int, int]) -> None:
        """Delete the messages before a position, in each given partition.

        This cannot be undone. Scans and new groups do not get the deleted messages. A group that has not read
        them may still get them. Repeated calls have no effect.

        Args:
            topic: The topic.
            positions: The first position to keep, by partition.

        Raises:
            BusClosedError: After `aclose`.

        """
        ...

    async def aclose(self) -> None:
        """Close all subscriptions and stop accepting messages. Repeated calls have no effect."""
        ...

    def statistics(self) -> BrokerStatistics:
        """Return the counts of messages published through this broker, and its lag."""
        ...
