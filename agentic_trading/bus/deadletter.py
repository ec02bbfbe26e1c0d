"""A message that nobody could follow, kept with the reason so that it can be looked at and sent again."""

from base64 import b64decode, b64encode
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Self

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

from agentic_trading.bus.message import Delivery, Message
from agentic_trading.canonical import sha256_hex
from agentic_trading.ids import derived_id

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


class DeadLetter(BaseModel, frozen=True, extra="allow"):
    """A message and why it was given up.

    `reason` is one of `UnreadableMessageError`'s, or a worker's own word (`crash_loop`). `raw` holds the message's
    value byte for byte, at most its first mebibyte; `raw_size` and `raw_sha256` are those of the whole value.
    `envelope_id` and `trace_id` are empty where they could not be read. `is_cut` says that the key or an id was cut,
    or the headers left out, because they were too long for a letter.
    """

    id: str
    reason: str = Field(min_length=1)
    detail: str = ""
    source_topic: str
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
        """Give up a delivery; the same message in the same place has the same id."""
        message = delivery.message
        digest = sha256_hex(message.value)
        headers = dict(message.headers)
        if sum(map(len, headers)) + sum(map(len, headers.values())) > MAX_HEADERS:
            headers = {}
        return cls(
            id=derived_id("dead-letter", delivery.topic, delivery.position, digest),
            reason=reason,
            detail=_spelled(detail[:MAX_DETAIL]),
            source_topic=delivery.topic,
            position=delivery.position,
            deliveries=delivery.deliveries,
            key=_spelled(message.key[:MAX_ID]),
            headers=headers,
            raw=message.value[:MAX_RAW_BYTES],
            raw_size=len(message.value),
            raw_sha256=digest,
            envelope_id=_spelled(envelope_id[:MAX_ID]),
            trace_id=_spelled(trace_id[:MAX_ID]),
            time=time,
            is_cut=len(headers) != len(message.headers)
            or max(map(len, (message.key, envelope_id, trace_id))) > MAX_ID,
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
                f"take the message from {self.source_topic} at position {self.position}"
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


def _spelled(text: str) -> str:
    """Return `text` as any JSON can spell it: a letter may quote what none can."""
    return text.encode("utf-8", "replace").decode()
