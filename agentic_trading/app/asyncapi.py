"""The bus as an AsyncAPI 3.0 document: its topics, what they carry, their keys and headers, from the code that publishes."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from agentic_trading.bus.codec import ENVELOPE_HASH_HEADER, FINAL_HEADER, REPLY_TO
from agentic_trading.bus.log_stream import HASH_HEADER, LOG_HEADER, NUMBER_HEADER
from agentic_trading.bus.message import (
    DEAD_LETTER_RECORDED,
    ENVELOPE_REQUESTED,
    EVENT_RECORDED,
    INTERACTION_RECORDED,
    LOG_ENDED,
    Kind,
    event_headers,
)
from agentic_trading.bus.signing import PRINCIPAL_HEADER, REPLAYED_HEADER, SIGNATURE_HEADER
from agentic_trading.bus.topic import (
    DEAD_LETTERS,
    ENVELOPES,
    EVENTS,
    HEADS,
    MAX_MESSAGE_BYTES,
    RECORDS,
    REPLIES,
    Topic,
    lane_topic,
)
from agentic_trading.llm.envelope import SCHEMA_VERSION

_SIGNED: Final = (PRINCIPAL_HEADER, SIGNATURE_HEADER)
_LINE: Final = (LOG_HEADER, NUMBER_HEADER, HASH_HEADER)
_TRACE: Final = "the trace: its messages keep their order"
_ABOUT: Final = (
    "Written by `agentic-trading schemas write`; JSON, which is YAML. Servers are those of a deployment. Where a bus has a "
    "namespace, topics and groups begin with it and a dot. On a Redis each topic is a set of streams, with the same keys and "
    "headers. Delivery is at least once: de-duplicate on `ce_id`. Header values are printable ASCII, anything else and % "
    "percent-encoded; the CloudEvents are in binary mode."
)

HEADERS: Final[Mapping[str, str]] = MappingProxyType({
    "ce_specversion": "the version of CloudEvents",
    "ce_id": "the id of what the message carries; the same one is the same message",
    "ce_source": "where it comes from: the tenant, and who wrote it",
    "ce_type": "what has happened",
    "ce_time": "when, ISO 8601 in UTC",
    "ce_dataschema": "the schema of the body",
    "ce_partitionkey": "the key of the message",
    "ce_correlationid": "the trace",
    "ce_causationid": "what caused it: for an attempt and a dead letter the envelope",
    "ce_subject": "what it is about: of an event its kind, of a dead letter the reason",
    "ce_expirytime": "the deadline, ISO 8601 in UTC",
    "content-type": "how the body is spelled",
    "traceparent": "the W3C trace context",
    REPLY_TO: "the address for replies; without it nothing answers on the bus",
    FINAL_HEADER: "whether it is the last attempt",
    ENVELOPE_HASH_HEADER: "the hash of the envelope that is answered",
    PRINCIPAL_HEADER: "who sent it",
    SIGNATURE_HEADER: "the proof: an HMAC-SHA256 over key, value and headers",
    REPLAYED_HEADER: "the dead letter from which it was published again; not signed",
    LOG_HEADER: "the log in which the line stands",
    NUMBER_HEADER: "the number of the line in its log",
    HASH_HEADER: "the hash of the line; the body has that of the line before, too",
})
"""What each header says."""


@dataclass(frozen=True, slots=True)
class BusMessage:
    """A message: its kind, and headers that it has beside those of every message of the kind, always or at times."""

    kind: Kind
    title: str
    always: tuple[str, ...] = ()
    sometimes: tuple[str, ...] = ()


MESSAGES: Final[Mapping[str, BusMessage]] = MappingProxyType({
    "envelope": BusMessage(
        ENVELOPE_REQUESTED, "a call that is asked for", sometimes=(REPLY_TO, REPLAYED_HEADER, *_SIGNED)
    ),
    "event": BusMessage(
        EVENT_RECORDED, "a fact that a client puts on record", sometimes=(REPLAYED_HEADER, *_SIGNED)
    ),
    "attempt": BusMessage(
        INTERACTION_RECORDED,
        "an attempt at a call",
        always=(FINAL_HEADER, ENVELOPE_HASH_HEADER),
        sometimes=_SIGNED,
    ),
    "dead_letter": BusMessage(
        DEAD_LETTER_RECORDED, "a message that was given up, and why", sometimes=_SIGNED
    ),
    "interaction_line": BusMessage(
        INTERACTION_RECORDED,
        "a line of a log, byte for byte: an attempt, with seq, prev and hash",
        always=_LINE,
    ),
    "event_line": BusMessage(
        EVENT_RECORDED, "a line of a log, byte for byte: an event, with seq, prev and hash", always=_LINE
    ),
    "log_head": BusMessage(LOG_ENDED, "where the log of the archive ended"),
})


@dataclass(frozen=True, slots=True)
class BusChannel:
    """A topic as those who serve the bus see it: what its key is, what it carries, and whether they receive or send it."""

    topic: Topic[Any]
    key: str
    carries: tuple[str, ...]
    action: Literal["receive", "send"]

    @property
    def id(self) -> str:
        """The name of the channel in the document."""
        return self.topic.name.replace("{lane}", "LANE")

    def references(self) -> list[dict[str, str]]:
        """Return where the document has the messages of the channel."""
        return [{"$ref": f"#/channels/{self.id}/messages/{name}"} for name in self.carries]


_REPLIES: Final = BusChannel(
    REPLIES, "the address that the envelope gave", ("attempt", "dead_letter"), "send"
)
_REPLY: Final = {"channel": {"$ref": f"#/channels/{_REPLIES.id}"}, "messages": _REPLIES.references()}

CHANNELS: Final = (
    *(BusChannel(topic, _TRACE, ("envelope",), "receive") for topic in ENVELOPES.values()),
    *(BusChannel(lane_topic(each, "{lane}"), _TRACE, ("envelope",), "receive") for each in ENVELOPES),
    BusChannel(EVENTS, _TRACE, ("event",), "receive"),
    _REPLIES,
    BusChannel(DEAD_LETTERS, "that of the message", ("dead_letter",), "send"),
    BusChannel(RECORDS, _TRACE, ("interaction_line", "event_line"), "send"),
    BusChannel(HEADS, "the log of the archive", ("log_head",), "send"),
)
"""Every topic of the bus, and for each workflow that of a provider with a lane of its own."""


def bus_document() -> dict[str, Any]:
    """Return the document; its messages refer to the JSON Schemas beside it."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "agentic_trading: the bus, as those who serve it see it",
            "version": SCHEMA_VERSION,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {each.id: _channel(each) for each in CHANNELS},
        "operations": {f"{each.action}.{each.id}": _operation(each) for each in CHANNELS},
        "components": {"messages": {name: _message(each) for name, each in MESSAGES.items()}},
    }


def _channel(channel: BusChannel) -> dict[str, Any]:
    lane = {"lane": {"description": "the lane of a provider, as the configuration names it"}}
    most = channel.topic.room * MAX_MESSAGE_BYTES
    return {
        "address": channel.topic.name,
        "description": f"Key: {channel.key}. At most {most} bytes a value, where max_message_bytes is {MAX_MESSAGE_BYTES}.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in channel.carries},
        **({"parameters": lane} if channel.id != channel.topic.name else {}),
    }


def _operation(channel: BusChannel) -> dict[str, Any]:
    return {
        "action": channel.action,
        "channel": {"$ref": f"#/channels/{channel.id}"},
        "messages": channel.references(),
        **({"reply": _REPLY} if channel.carries == ("envelope",) else {}),
    }


def _message(message: BusMessage) -> dict[str, Any]:
    one, other, least = (_sample_headers(message.kind, text) for text in ("1", "2", ""))
    properties = {
        name: {
            **({"const": value} if other[name] == value else {"type": "string"}),
            "description": HEADERS[name],
        }
        for name, value in one.items()
    }
    for name in (*message.always, *message.sometimes):
        properties[name] = {"type": "string", "description": HEADERS[name]}
    return {
        "title": message.title,
        "contentType": one["content-type"],
        "correlationId": {"location": "$message.header#/ce_correlationid"},
        "headers": {"type": "object", "required": [*least, *message.always], "properties": properties},
        "payload": {"$ref": f"./{message.kind.schema.rpartition(':')[2]}.json"},
        "bindings": {"kafka": {"key": {"type": "string"}, "bindingVersion": "0.5.0"}},
    }


def _sample_headers(kind: Kind, text: str) -> dict[str, str]:
    """Return headers with `text` in all that messages of a kind may say otherwise; the empty one is left out where it can be."""
    return event_headers(
        kind, f"id-{text}", source=f"/{text}", key=text, trace_id=text, time=f"at {text}",
        cause=text, subject=text, expires=text,
    )  # fmt: skip
