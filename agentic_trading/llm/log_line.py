"""A line of the log: its place in the chain, and the facts of its record."""

import re
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec
import orjson

from agentic_trading.canonical import sha256_hex
from agentic_trading.errors import TradingError
from agentic_trading.llm.interaction import reservation_id
from agentic_trading.llm.store import ChainedRecord, ChainHead

T = TypeVar("T")

CHAIN_TAG = b"agentic/log/v1\0"
_TAIL = re.compile(rb',"seq":([1-9][0-9]{0,18}),"prev":"([0-9a-f]{64})","hash":"([0-9a-f]{64})"\}')
_LONGEST_TAIL = len(b',"seq":,"prev":"","hash":""}') + 19 + 64 + 64


class BrokenRecordError(TradingError, ValueError):
    """A line was changed or moved. `reason` describes the fault."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def read_line(raw: bytes) -> ChainedRecord:
    """Parse a line, with or without its newline.

    Raises:
        BrokenRecordError: If it does not end in `seq`, `prev` and `hash`, or if the hash does not match its
            bytes.

    """
    end = len(raw) - raw.endswith(b"\n")
    tail = _TAIL.search(raw, max(0, end - _LONGEST_TAIL), end)
    if tail is None or tail.end() != end:
        raise BrokenRecordError("it does not end in seq, prev and hash")
    seq, prev, digest = tail[1], tail[2].decode(), tail[3].decode()
    if sha256_hex(CHAIN_TAG, raw[: tail.end(2) + 1]) != digest:
        raise BrokenRecordError("its hash is not that of its bytes")
    return ChainedRecord(raw[:end], tail.start(), int(seq), prev, digest)


def check_link(line: ChainedRecord, head: ChainHead) -> ChainHead:
    """Return the head of the chain after `line`.

    Raises:
        BrokenRecordError: If the line does not continue the chain that ends in `head`.

    """
    if line.seq != head.seq + 1:
        raise BrokenRecordError(f"it is number {line.seq} at the position of number {head.seq + 1}")
    if line.prev != head.hash:
        raise BrokenRecordError("it does not continue the line before it")
    return line.head


def holds_whole_line(raw: bytes) -> bool:
    """Return whether a whole line ends inside `raw` and more follows.

    An unfinished write never leaves that.
    """
    tail = _TAIL.search(raw)
    return tail is not None and tail.end() < len(raw) - raw.endswith(b"\n")


INTERACTION = "interaction"
"""The kind of an interaction, next to the kinds of events."""

DISPATCHED = "attempt.dispatched"
"""The kind of the event before each attempt that is sent."""


_Int = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]  # the integers of SQLite


# Only the members that make facts, because the others are most of a line. `gc=False` where no value holds another,
# so that the garbage collector does not visit thousands of rows.
class _Envelope(msgspec.Struct, gc=False):
    envelope_id: str
    trace_id: str
    causation_id: str
    tenant_id: str
    subject: str
    request_hash: str
    occurrence: _Int
    agent_id: str
    workflow: str
    model: str
    idempotency_key: str


class _Result(msgspec.Struct):
    attempt_number: _Int
    provider: str
    model: str | None
    success: bool
    input_tokens: _Int
    cache_read_tokens: _Int
    cache_write_5m_tokens: _Int
    cache_write_1h_tokens: _Int
    output_tokens: _Int
    cost_nusd: _Int
    served_from: str | None = None
    dispatched_at: str | None = None
    in_doubt: bool | None = None
    reservation_id: str | None = None
    bill_nusd: _Int | None = None
    unmetered: str | None = None
    failure: Any = None
    latency_ms: float | None = None


class _Interaction(msgspec.Struct):
    interaction_id: str
    envelope: _Envelope
    result: _Result
    stored_at: str


class _Body(msgspec.Struct):
    subject: Any = None
    symbol: Any = None
    reservation_id: Any = None
    verdict: Any = None
    reason: Any = None


class _Kind(msgspec.Struct):
    interaction_id: Any = msgspec.UNSET


class _Event(msgspec.Struct):
    id: str
    kind: str
    trace_id: str
    causation_id: str
    tenant_id: str
    time: str
    body: _Body


_KIND: Final = msgspec.json.Decoder(_Kind)
_AN_INTERACTION: Final = msgspec.json.Decoder(_Interaction)
_AN_EVENT: Final = msgspec.json.Decoder(_Event)
# As we write it: the order of members is not part of the format.
_INTERACTION_BEGINS: Final = b'{"interaction_id":'


# A struct, because an index makes one for every line: a dataclass takes three times as long to make.
class IndexRow(msgspec.Struct, frozen=True, gc=False):
    """The facts of one record. For an event, the fields of interactions are empty.

    Attributes:
        time: When it was recorded, in UTC.
        day: The UTC day of `time`.
        attempt: The number of the attempt, 0 for an event.
        input_tokens: All input tokens, cached ones included.
        sent: The attempt was sent. If neither `sent` nor `recorded`, it was refused.
        recorded: The attempt was served from a record.
        reservation: A number that all records of one reservation share: a sent attempt, and each event that
            names a reservation.
        billed_nusd: The server's own bill in nano-dollars.
        unmetered: The attempt was answered without a readable usage.
        verdict: The verdict of an event, as in the column `verdict` of an export.
        failure: The kind of the failure, as in the column `failure` of an export.
        latency_ms: The duration of the attempt in milliseconds.

    """

    id: str
    kind: str
    trace_id: str
    causation_id: str
    tenant: str
    time: str
    day: str
    subject: str = ""
    envelope_id: str = ""
    request_hash: str = ""
    occurrence: int = 0
    attempt: int = 0
    agent: str = ""
    workflow: str = ""
    provider: str = ""
    model: str = ""
    success: bool = True
    input_tokens: int = 0
    output_tokens: int = 0
    cost_nusd: int = 0
    sent: bool = False
    in_doubt: bool = False
    recorded: bool = False
    reservation: int | None = None
    billed_nusd: int = 0
    unmetered: bool = False
    verdict: str = ""
    failure: str = ""
    latency_ms: float = 0.0


def is_interaction(raw: bytes) -> bool:
    """Return whether the bytes of a record are those of an interaction: it has an `interaction_id`.

    Raises:
        ValueError: If the bytes are not a JSON object.

    """
    return raw.startswith(_INTERACTION_BEGINS) or _read(_KIND, raw).interaction_id is not msgspec.UNSET


def index_row_of(raw: bytes) -> IndexRow:
    """Return the facts of a record from its bytes.

    Raises:
        ValueError: If the bytes are not JSON, if a member of a record is missing or has another type, or if the
            time has no zone.

    """
    row = (
        _facts_of_interaction(_read(_AN_INTERACTION, raw))
        if is_interaction(raw)
        else _facts_of_event(_read(_AN_EVENT, raw))
    )
    # Checked here, because a time that an index cannot read would break all queries of the log.
    if datetime.fromisoformat(row.time).tzinfo is None:
        raise ValueError(f"the time {row.time!r:.40} has no zone")
    return row


def _read(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    try:
        return decoder.decode(raw)
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e


def _facts_of_interaction(read: _Interaction) -> IndexRow:
    envelope, result = read.envelope, read.result
    is_recorded = result.served_from == "recorded"
    is_sent = not is_recorded and bool(result.dispatched_at or result.cost_nusd)
    return IndexRow(
        id=read.interaction_id,
        kind=INTERACTION,
        trace_id=envelope.trace_id,
        causation_id=envelope.causation_id,
        tenant=envelope.tenant_id,
        time=read.stored_at,
        day=read.stored_at[:10],
        subject=envelope.subject,
        envelope_id=envelope.envelope_id,
        request_hash=envelope.request_hash,
        occurrence=envelope.occurrence,
        attempt=result.attempt_number,
        agent=envelope.agent_id,
        workflow=envelope.workflow,
        provider=result.provider,
        model=result.model or envelope.model,
        success=result.success,
        input_tokens=(
            result.input_tokens
            + result.cache_read_tokens
            + result.cache_write_5m_tokens
            + result.cache_write_1h_tokens
        ),
        output_tokens=result.output_tokens,
        cost_nusd=result.cost_nusd,
        sent=is_sent,
        in_doubt=is_sent and bool(result.in_doubt),
        recorded=is_recorded,
        reservation=_reservation_of(envelope, result) if is_sent else None,
        billed_nusd=result.bill_nusd or 0,
        # A charge in doubt is not in both sums.
        unmetered=is_sent and not result.in_doubt and bool(result.unmetered),
        failure=_category_of(result.failure),
        latency_ms=result.latency_ms or 0.0,
    )


def _reservation_of(envelope: _Envelope, result: _Result) -> int:
    made = (envelope.tenant_id, envelope.idempotency_key, result.attempt_number)
    return _number_of(result.reservation_id or reservation_id(*made))


def _number_of(reservation: str) -> int:
    """Return a number for a reservation id.

    Two ids with the same number only need a closer check.
    """
    return int(sha256_hex(reservation.encode("utf-8", "surrogatepass"))[:15], 16)


def _facts_of_event(event: _Event) -> IndexRow:
    body = event.body
    subject = body.subject or body.symbol
    reservation = body.reservation_id
    return IndexRow(
        id=event.id,
        kind=event.kind,
        trace_id=event.trace_id,
        causation_id=event.causation_id,
        tenant=event.tenant_id,
        time=event.time,
        day=event.time[:10],
        subject=subject if isinstance(subject, str) else "",
        reservation=_number_of(reservation) if isinstance(reservation, str) else None,
        verdict=_name_of(body.verdict),
        failure=_category_of(body.reason),
    )


def _category_of(failure: Any) -> str:
    return _name_of(failure.get("category")) if isinstance(failure, dict) else ""


def _name_of(value: Any) -> str:
    """Return a text as it is, and any other value as JSON. Empty for null."""
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()
