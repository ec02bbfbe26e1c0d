"""The named streams of the bus, what each of them carries, and the port to a broker."""

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
"""The reason of a dead letter: the call was sent, and what came of it is kept neither with its claim nor at that worker."""


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
        """Return the letter for a delivery that is given up; the same message in the same place has the same id."""
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
        """Return the letter without its headers and with little of its bytes, for a bus that takes no larger one."""
        fields = {**self.model_dump(), "headers": {}, "raw": self.raw[:SMALL_RAW_BYTES], "is_cut": True}
        return type(self).model_validate(fields)

    @property
    def is_replayable(self) -> bool:
        """Whether the letter holds the whole message, unharmed."""
        return not self.is_cut and len(self.raw) == self.raw_size and sha256_hex(self.raw) == self.raw_sha256

    def message(self) -> Message:
        """Return the message as it was, to be published to `source_topic` again.

        Raises `ValueError` if the letter does not hold all of it.
        """
        if not self.is_replayable:
            raise ValueError(
                f"dead letter {self.id} holds {len(self.raw)} of {self.raw_size} bytes, or not the whole head; "
                f"take the message from {self.source_topic}, partition {self.source_partition}, at position {self.position}"
            )
        return Message(self.key, self.raw, self.headers)

    @cached_property
    def wire(self) -> bytes:
        """The letter as it stands on the wire: JSON, the raw bytes in base64 (RFC 4648 §4)."""
        return _LETTER.dump_json(self)

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Read a letter; raises pydantic's `ValidationError` for anything else."""
        return cls.model_validate_json(raw)


_LETTER = TypeAdapter(DeadLetter)


def _spellable(text: str) -> str:
    """Return `text` as any JSON can spell it: a letter may quote what none can."""
    return text.encode("utf-8", "replace").decode()


class WireModel(Protocol):
    """A model that knows its bytes on the wire."""

    @property
    def wire(self) -> bytes:
        """The bytes of the model."""
        ...

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Read a model from its bytes; raises `ValueError` for anything else."""
        ...


M = TypeVar("M", bound=WireModel)


@dataclass(frozen=True, slots=True)
class Topic(Generic[M]):
    """A stream of messages that carry `model`.

    `room` is how many times a broker's largest message one of this topic may be. `newest` is how many messages a partition
    keeps, read or not, on a broker that would refuse more else (Redis); without it, all that a group has not finished.
    """

    name: str
    model: type[M]
    room: int = 1
    newest: int | None = None


ENVELOPES: Final = {
    workflow: Topic(f"llm.envelopes.{workflow}", LLMEnvelope) for workflow in EnvelopeWorkflow
}
"""One lane a workflow: an execution envelope never waits behind an analysis."""


def lane_topic(workflow: EnvelopeWorkflow, lane: str) -> Topic[Any]:
    """Return the topic of the envelopes of a workflow whose provider has a `lane` of its own; without one, the workflow's."""
    topic = ENVELOPES[workflow]
    return Topic(f"{topic.name}.{lane}", LLMEnvelope) if lane else topic


REPLIES: Final = Topic("llm.replies", LLMInteraction, room=5)
"""The attempts at an envelope that was asked, or its dead letter, by the address that the envelope gave: see `Broker.replies`.

An interaction holds an envelope, an answer as text and the object read from it: see `largest_answer`.
"""

EVENTS: Final = Topic("llm.events", Event)
DEAD_LETTERS: Final = Topic("llm.dead-letters", DeadLetter, room=2, newest=10_000)
"""A letter holds another message, in base64. Without a place for the next one its message could never be finished."""


RECORDS: Final = Topic("llm.records", StreamedLine, room=REPLIES.room)
"""All lines of all logs, of interactions and of events; the records of a trace keep their order."""

HEADS: Final = Topic("llm.heads", LogHead, newest=1_000)
"""Where the archive's log ended, again and again: a log that was cut shows against it."""


TOPICS: Final[tuple[Topic[Any], ...]] = (*ENVELOPES.values(), REPLIES, EVENTS, DEAD_LETTERS, RECORDS, HEADS)
"""The topics that the platform publishes to."""


def topics_with(lanes: Iterable[str]) -> list[Topic[Any]]:
    """Return the topics of the platform, and those of `lanes` that providers have of their own."""
    return [*TOPICS, *(lane_topic(workflow, lane) for lane in lanes for workflow in ENVELOPES)]


CREATE: Final = "agentic-trading topics create makes those that are missing"
"""What to do where a topic is not there."""


@dataclass(frozen=True, slots=True)
class TopicProblem:
    """What is wrong with a topic: `what` is `found`, and `wanted` is what the bus needs."""

    topic: str
    what: str
    found: str
    wanted: str


MAX_MESSAGE_BYTES = 1 << 20
"""The largest value of a message, unless a broker is set up otherwise; it is also Kafka's own default."""


def largest_answer(max_message_bytes: int) -> int:
    """Return how large a provider's answer may be, in bytes as it came, so that its interaction can be published.

    That holds beside an envelope of `max_message_bytes`. The text takes up to twice the bytes of the body that it stood in
    (where a quote in JSON becomes an escape, in the input of a tool; in other bodies escapes are spelled already), the
    object those of the body, and as much as a message is left for what reading it found. Numbers with exponents, which are
    written out in the object, may still pass it.
    """
    return max_message_bytes * (REPLIES.room - 2) // 3


MAX_HEAD_BYTES = 1 << 16
"""The most that key and headers of a message may have together; an id of ours has 36."""


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """What a group has not finished in a topic: messages that wait, and those handed out."""

    group: str
    topic: str
    waiting: int
    in_flight: int


def summed(lags: Iterable[ConsumerLag]) -> tuple[ConsumerLag, ...]:
    """Return one lag for each group and topic, in their order."""
    waiting, in_flight = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for lag in lags:
        waiting[lag.group, lag.topic] += lag.waiting
        in_flight[lag.group, lag.topic] += lag.in_flight
    return tuple(ConsumerLag(*each, waiting[each], in_flight[each]) for each in sorted(waiting))


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """Messages published through a broker and kept by it, per topic, and what its groups have not finished."""

    published: Mapping[str, int]
    kept: Mapping[str, int]
    backlogs: tuple[ConsumerLag, ...]


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """How far a reader is in one partition of a topic.

    `end` is the position behind the last message of the partition. All messages before `done` are acknowledged. `done` is
    None for a partition that this reader does not have; its `end` may then be unknown: 0.
    """

    topic: str
    partition: int
    end: int
    done: int | None


class Subscription(Protocol):
    """One reader of a group. Each message goes to one of the group's readers, at least once.

    Order is kept per key within a topic: a key with a delivery that is neither acknowledged nor given back is
    handed to no other reader. Keys do not wait for each other.
    """

    async def take(self) -> Delivery:
        """Wait for the next delivery and hold it.

        Topics that have something ready take turns. Several tasks may wait at once; a cancelled wait loses
        nothing. Raises `BusClosedError` once the subscription or its broker is closed.
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

    async def progress(self) -> Sequence[PartitionProgress]:
        """Ask the servers for every partition of the topics, including those of other readers, and how far this reader is.

        Raises `BusUnavailableError` where the servers do not answer in time.
        """
        ...

    async def aclose(self) -> None:
        """Stop reading; what is held goes back to the group. Harmless twice."""
        ...


class Broker(Protocol):
    """Keep each topic's messages, and hand every group each of them at least once until acknowledged."""

    @property
    def max_message_bytes(self) -> int:
        """The largest value of a message on a topic with `room` for one."""
        ...

    async def publish(self, topic: Topic[Any], message: Message) -> None:
        """Add a message to a topic; it is kept when this returns.

        Raises `MessageTooLargeError` for a value over `max_message_bytes` times the topic's `room`, for a key and
        headers over `MAX_HEAD_BYTES` times that room, and `BusClosedError` after `aclose`.
        """
        ...

    async def publish_all(self, topic: Topic[Any], messages: Sequence[Message]) -> None:
        """Add messages to a topic in their order, with one wait for all; they are kept when this returns.

        Raises as `publish` does: `MessageTooLargeError` and `BusClosedError` before any of them is added.
        """
        ...

    async def subscribe(self, topics: Sequence[Topic[Any]], group: str) -> Subscription:
        """Read `topics` in turn, each that has something ready, as one of the readers of `group`.

        A new group gets what came before it, as far as the broker still keeps it; a known one goes on where it
        was. Raises `BusClosedError` after `aclose`, and `ValueError` for no topics.
        """
        ...

    async def replies(self, address: str) -> Subscription:
        """Read the messages published on `REPLIES` under the key `address`, from now on, without a group.

        `ack` and `give_back` change nothing. That topic is read in no other way: what comes while no reader has its
        address may be gone. Raises `BusClosedError` after `aclose`.
        """
        ...

    def scan(self, topic: Topic[Any]) -> AsyncGenerator[Delivery]:
        """Yield the messages of `topic` from the oldest that is kept to the last one of now, without a group.

        Nothing of it is held or to be acknowledged. The order is that of each key. Raises `BusClosedError` after `aclose`.
        """
        ...

    async def check(self, topics: Sequence[Topic[Any]]) -> None:
        """Ask now whether `topics` can be used.

        Raises `BusUnavailableError` where the servers do not answer in time, `TopicSetupError` for a topic that is not
        there, and `BusClosedError` after `aclose`.
        """
        ...

    async def delete_before(self, topic: Topic[Any], positions: Mapping[int, int]) -> None:
        """Delete from `topic` what stands before a position, for each partition that is given. It cannot be undone.

        A scan, and a group that comes later, are not handed any of it. A group that has not read it may still be. Harmless
        twice. Raises `BusClosedError` after `aclose`.
        """
        ...

    async def aclose(self) -> None:
        """Close all subscriptions and take nothing more; harmless twice."""
        ...

    def statistics(self) -> BrokerStatistics:
        """Return what went through this broker, and what waits in it."""
        ...
