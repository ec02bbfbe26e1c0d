"""Convert envelopes, interactions, events and dead letters to messages, and back."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentic_trading.bus import message as messages
from agentic_trading.bus.errors import UnreadableMessageError, UnreadableReason
from agentic_trading.bus.topic import MAX_MESSAGE_BYTES, DeadLetter, WireModel
from agentic_trading.canonical import CanonicalError, quoted, utc_text
from agentic_trading.llm.envelope import SCHEMA_VERSION, LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction

M = TypeVar("M", bound=WireModel)

REPLY_TO: Final = "at_reply_to"
"""The header with the reply address of a message."""

SENT_HEADER: Final = "at_sent"
"""The header with the time when a gateway published an envelope. It is covered by the signature."""

FINAL_HEADER: Final = "ce_final"
ENVELOPE_HASH_HEADER: Final = "at_envelope_hash"
_ADDRESS: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_MAJOR: Final = SCHEMA_VERSION.partition(".")[0]
_BROKEN: Final = (ValueError, TypeError, ArithmeticError, RecursionError)
"""Errors of parsing foreign bytes, such as years beyond the calendar or unlimited nesting."""


def envelope_message(
    envelope: LLMEnvelope, *, reply_to: str = "", sent_at: datetime | None = None
) -> messages.Message:
    """Return the message that requests a call.

    Without the address `reply_to`, the call gets no reply on the bus. Without the wall-clock time `sent_at`,
    workers compute the age of the envelope from its `created_at`.
    """
    headers = messages.event_headers(
        messages.ENVELOPE_REQUESTED,
        envelope.envelope_id,
        source=messages.source(envelope.tenant_id, "agents", envelope.agent_id),
        key=envelope.trace_id,
        trace_id=envelope.trace_id,
        time=utc_text(envelope.created_at),
        cause=envelope.causation_id,
        subject=envelope.subject,
        expires="" if envelope.deadline is None else utc_text(envelope.deadline),
    )
    if reply_to:
        headers[REPLY_TO] = reply_to
    if sent_at is not None:
        headers[SENT_HEADER] = utc_text(sent_at)
    return messages.Message(envelope.trace_id, envelope.wire, headers, envelope)


def reply_message(interaction: LLMInteraction, address: str, *, final: bool) -> messages.Message:
    """Return the message that carries an attempt to a reply address.

    `final` marks the last attempt of its envelope.
    """
    envelope = interaction.envelope
    headers = messages.event_headers(
        messages.INTERACTION_RECORDED,
        interaction.interaction_id,
        source=messages.source(envelope.tenant_id, "workers"),
        key=address,
        trace_id=envelope.trace_id,
        time=utc_text(interaction.stored_at),
        cause=envelope.envelope_id,
        subject=envelope.subject,
    )
    headers[FINAL_HEADER] = "true" if final else "false"
    headers[ENVELOPE_HASH_HEADER] = envelope.envelope_hash
    return messages.Message(address, interaction.wire, headers, interaction)


def event_message(event: Event) -> messages.Message:
    """Return the message that carries an event. Its subject is the event's kind."""
    headers = messages.event_headers(
        messages.EVENT_RECORDED,
        event.id,
        source=messages.source(event.tenant_id, "events"),
        key=event.trace_id,
        trace_id=event.trace_id,
        time=utc_text(event.time),
        cause=event.causation_id,
        subject=event.kind,
    )
    return messages.Message(event.trace_id, event.wire, headers, event)


def dead_letter_message(letter: DeadLetter, *, address: str = "") -> messages.Message:
    """Return the message that carries a dead letter. Its subject is the reason.

    Its cause is the envelope in the letter. With an `address`, it is a reply to that address.
    """
    key = address or letter.key
    headers = messages.event_headers(
        messages.DEAD_LETTER_RECORDED,
        letter.id,
        source=messages.source("dead-letters", letter.source_topic),
        key=key,
        trace_id=letter.trace_id,
        time=utc_text(letter.time),
        cause=letter.envelope_id,
        subject=letter.reason,
    )
    return messages.Message(key, letter.wire, headers)


def reply_address(message: messages.Message) -> str:
    """Return the reply address of a message, or an empty string if it is missing or invalid."""
    address = message.headers.get(REPLY_TO, "")
    return address if _ADDRESS.fullmatch(address) else ""


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """The headers of a reply: which envelope it answers, and whether it is the last attempt.

    The hash is empty for a dead letter, because a dead letter may hold any message.
    """

    is_attempt: bool
    is_dead_letter: bool
    envelope_id: str
    envelope_hash: str
    is_final: bool


def reply_head(message: messages.Message) -> ReplyHead:
    """Return which envelope a reply answers. Only the headers are read."""
    headers = message.headers
    kind = headers.get("ce_type")
    return ReplyHead(
        kind == messages.INTERACTION_RECORDED.type,
        kind == messages.DEAD_LETTER_RECORDED.type,
        messages.header(message, "ce_causationid"),
        headers.get(ENVELOPE_HASH_HEADER, ""),
        headers.get(FINAL_HEADER) == "true",
    )


def read_envelope(delivery: messages.Delivery, *, max_bytes: int = MAX_MESSAGE_BYTES) -> LLMEnvelope:
    """Return the envelope of a delivery, checked for integrity and for unknown fields.

    Raises:
        UnreadableMessageError: If the value is larger than `max_bytes` or is not an envelope. Also if its
            major version, a restriction or a field of `must_understand` is unknown, or if the checksum or the
            request hash is missing or wrong. No other error is raised.

    """
    message = delivery.message
    raw = message.value
    if len(raw) > max_bytes:
        raise _unreadable(message, {}, "too_large", f"{len(raw)} bytes. Allowed: at most {max_bytes}.")
    try:
        envelope = _body(LLMEnvelope, message) or LLMEnvelope.from_wire(raw)
        is_hashed_here = not envelope.model_fields_set & {"envelope_hash", "request_hash"}
        is_made = is_hashed_here and envelope is message.body
        is_whole = is_made or (envelope.is_intact and envelope.envelope_hash.encode() in raw)
        is_own_request = is_made or envelope.request_hash == envelope.compute_request_hash()
    except _BROKEN as e:
        fields = _fields(raw)
        raise _unreadable(message, fields, *_why_broken(fields, e)) from e
    ids = {"envelope_id": envelope.envelope_id, "trace_id": envelope.trace_id}
    if foreign := _foreign(envelope.schema_version, envelope.must_understand):
        raise _unreadable(message, ids, *foreign)
    if not is_whole:  # the raw bytes must contain the hash, because parsing fills in a missing one
        raise _unreadable(message, ids, "checksum", "envelope_hash does not match the fields. Send it again.")
    if not is_own_request:  # a replay would return the answer of another request
        raise _unreadable(
            message, ids, "checksum", "request_hash does not match the request. Build it again."
        )
    return envelope


def read_interaction(message: messages.Message) -> LLMInteraction:
    """Return the interaction of a message.

    Raises `UnreadableMessageError` if the message is not one.
    """
    return _read(LLMInteraction, message)


def read_event(message: messages.Message) -> Event:
    """Return the event of a message.

    Raises `UnreadableMessageError` if the message is not an event, or if the event cannot be written to a
    log.
    """
    event = _read(Event, message)
    try:
        _ = event.wire  # Python parses NaN and large integers that canonical JSON cannot represent
    except CanonicalError as e:
        raise UnreadableMessageError(
            "decode", _problem(e), trace_id=messages.header(message, "ce_correlationid")
        ) from e
    return event


def read_dead_letter(message: messages.Message) -> DeadLetter:
    """Return the dead letter of a message.

    Raises `UnreadableMessageError` if the message is not one.
    """
    return _read(DeadLetter, message)


def _body(model: type[M], message: messages.Message) -> M | None:
    """Return the `model` that was serialized to these very bytes, if this process made the message."""
    body = message.body
    return body if isinstance(body, model) and body.wire is message.value else None


def _read(model: type[M], message: messages.Message) -> M:
    try:
        return _body(model, message) or model.from_wire(message.value)
    except _BROKEN as e:
        raise UnreadableMessageError(
            "decode", _problem(e), trace_id=messages.header(message, "ce_correlationid")
        ) from e


def _unreadable(
    message: messages.Message, fields: dict[str, Any], reason: UnreadableReason, detail: str
) -> UnreadableMessageError:
    """Return the error with the ids from the body, or else from the headers."""
    return UnreadableMessageError(
        reason,
        detail,
        envelope_id=_text(fields.get("envelope_id")) or messages.header(message, "ce_id"),
        trace_id=_text(fields.get("trace_id")) or messages.header(message, "ce_correlationid"),
    )


def _why_broken(fields: dict[str, Any], e: Exception) -> tuple[UnreadableReason, str]:
    named = fields.get("must_understand")
    named = named if isinstance(named, list) else []
    if foreign := _foreign(fields.get("schema_version", SCHEMA_VERSION), named):
        return foreign
    if restriction := _unknown_restriction(e):
        return "unknown_restriction", f"{restriction} is unknown here. Allowed: the fields of {_MAJOR}.x."
    return "decode", _problem(e)


def _foreign(version: Any, must_understand: list[Any]) -> tuple[UnreadableReason, str] | None:
    """Return why this version cannot process an envelope, or None."""
    if str(version).partition(".")[0] != _MAJOR:
        return "schema_version", f"schema_version is {quoted(str(version))}. Allowed: {_MAJOR}.x."
    unknown = [str(name) for name in must_understand if str(name) not in LLMEnvelope.model_fields]
    if unknown:
        return "must_understand", f"unknown here, but must be understood: {', '.join(unknown):.80}"
    return None


def _unknown_restriction(e: Exception) -> str:
    """Return the path of an unknown field that restricts the call, or an empty string."""
    for error in _errors(e):
        if error["type"] == "extra_forbidden":  # only models of restrictions forbid unknown fields
            return _place(error)
    return ""


def _problem(e: Exception) -> str:
    """Describe an error without repeating the message's contents."""
    errors = _errors(e)
    if not errors:
        return f"{type(e).__name__}: {e}"[:200]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{_place(errors[0])}: {errors[0]['msg']}"[:200] + more


def _errors(e: Exception) -> list[ErrorDetails]:
    if not isinstance(e, ValidationError):
        return []
    return e.errors(include_url=False, include_context=False, include_input=False)


def _place(error: ErrorDetails) -> str:
    return ".".join(map(str, error["loc"])) or "message"


def _fields(raw: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(raw)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
