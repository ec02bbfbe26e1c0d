"""A message, its delivery to a reader, and its CloudEvents headers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from agentic_trading.bus.errors import MessageTooLargeError
from agentic_trading.canonical import sha256_hex


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes with a key and headers.

    Messages with the same key stay in order. Header values are printable ASCII. `body` is the object that
    `value` contains. Only the process that created the message has it, and need not parse it again. Brokers do
    not transport it, and signatures do not cover it.
    """

    key: str
    value: bytes
    headers: Mapping[str, str]
    body: object = field(default=None, compare=False, repr=False)

    @property
    def key_bytes(self) -> bytes:
        """The key as stored on a server.

        Keys that were decoded from invalid UTF-8 are restored exactly.
        """
        return self.key.encode("utf-8", "surrogateescape")

    def check_size(self, topic: str, *, most: int, most_in_head: int) -> None:
        """Raise `MessageTooLargeError` if the message is larger than `topic` accepts."""
        if len(self.value) > most:
            raise MessageTooLargeError(topic, len(self.value), most)
        if self.head_size > most_in_head:
            raise MessageTooLargeError(topic, self.head_size, most_in_head, "key and headers")

    @property
    def head_size(self) -> int:
        """The size of key and headers together, in bytes."""
        key = len(self.key) if self.key.isascii() else len(self.key.encode("utf-8", "surrogatepass"))
        return key + sum(map(len, self.headers)) + sum(map(len, self.headers.values()))


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message delivered to one reader of a group.

    `position` is the message's place in its partition, and grows for each key. A broker without partitions
    uses partition 0. `deliveries` counts the deliveries to the group, including this one, as far as the
    broker remembers: it is 1 on the first delivery, and may be 1 again after a crash.
    """

    topic: str
    position: int
    message: Message
    deliveries: int
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a message, and the JSON Schema of its body."""

    type: str
    schema: str


ENVELOPE_REQUESTED: Final = Kind(
    "io.agentic_trading.llm.envelope.requested.v1", "urn:agentic-trading:schema:llm_envelope.v1"
)
INTERACTION_RECORDED: Final = Kind(
    "io.agentic_trading.llm.interaction.recorded.v1", "urn:agentic-trading:schema:llm_interaction.v1"
)
EVENT_RECORDED: Final = Kind(
    "io.agentic_trading.llm.event.recorded.v1", "urn:agentic-trading:schema:event.v1"
)
DEAD_LETTER_RECORDED: Final = Kind(
    "io.agentic_trading.llm.dead_letter.recorded.v1", "urn:agentic-trading:schema:dead_letter.v1"
)
LOG_ENDED: Final = Kind("io.agentic_trading.llm.log.ended.v1", "urn:agentic-trading:schema:log_head.v1")

_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_UUID: Final = re.compile(r"[\da-fA-F]{8}-[\da-fA-F]{4}-[\da-fA-F]{4}-[\da-fA-F]{4}-[\da-fA-F]{12}", re.ASCII)


def event_headers(
    kind: Kind,
    event_id: str,
    *,
    source: str,
    key: str,
    trace_id: str,
    time: str,
    cause: str = "",
    subject: str = "",
    expires: str = "",
) -> dict[str, str]:
    """Return CloudEvents 1.0 headers (Kafka binding, binary mode) and a W3C `traceparent`.

    Times are ISO 8601 in UTC. Other values may be any text and are escaped. Empty attributes are left out,
    because the specification forbids them.
    """
    headers = {
        "ce_specversion": "1.0",
        "ce_id": escape_header(event_id),
        "ce_source": source,
        "ce_type": kind.type,
        "ce_time": time,
        "ce_dataschema": kind.schema,
        "content-type": "application/json",
        "traceparent": traceparent(trace_id, event_id),
    }
    if key:
        headers["ce_partitionkey"] = escape_header(key)
    if trace_id:
        headers["ce_correlationid"] = escape_header(trace_id)
    if cause:
        headers["ce_causationid"] = escape_header(cause)
    if subject:
        headers["ce_subject"] = escape_header(subject)
    if expires:
        headers["ce_expirytime"] = expires
    return headers


def header(message: Message, name: str) -> str:
    """Return the unescaped value of a header, or an empty string if it is missing."""
    value = message.headers.get(name, "")
    return unquote(value, errors="replace") if "%" in value else value


def escape_header(value: str) -> str:
    """Return `value` as printable ASCII.

    `%` and other characters are percent-encoded, so that no id breaks a header.
    """
    if value.isascii() and value.isprintable() and "%" not in value:
        return value
    return quote(value, safe=_PLAIN, errors="replace")


@lru_cache(maxsize=4096)
def source(*path: str) -> str:
    """Return the source of a message as a URI reference.

    Each step of the path is percent-encoded.
    """
    return "/".join(["/agentic-trading", *(quote(step, safe="", errors="replace") for step in path)])


def traceparent(trace_id: str, span_id: str) -> str:
    """Return the W3C trace context, version 00, of the message `span_id` in `trace_id`.

    It is always sampled. The trace id is the 16 bytes of a UUID, or the first 16 bytes of the SHA-256 of
    another id. The span id is the second half of these bytes. All zeros, which the W3C forbids, are replaced
    by bytes of the SHA-256.
    """
    return f"00-{_sixteen_bytes(trace_id)}-{_eight_bytes(span_id)}-01"


@lru_cache(maxsize=4096)  # a trace has about ten messages
def _sixteen_bytes(any_id: str) -> str:
    if _UUID.fullmatch(any_id):
        digits = any_id.replace("-", "").lower()
        if digits.strip("0"):
            return digits
    return _digest(any_id)[:32]


def _eight_bytes(any_id: str) -> str:
    digits = _sixteen_bytes(any_id)[16:]
    return digits if digits.strip("0") else _digest(any_id)[:16]


def _digest(any_id: str) -> str:
    return sha256_hex(any_id.encode("utf-8", "replace"))
