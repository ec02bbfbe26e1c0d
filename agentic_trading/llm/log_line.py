"""A line of the log: its place in the chain, and the facts of its record."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from agentic_trading.canonical import sha256_hex
from agentic_trading.errors import TradingError
from agentic_trading.llm.interaction import reservation_id
from agentic_trading.llm.store import ChainedRecord, ChainHead

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


# Not frozen: a frozen one takes four times as long to make, and an index makes one for every line.
@dataclass(slots=True)
class IndexRow:
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
    verdict: str = ""
    failure: str = ""
    latency_ms: float = 0.0


def index_row_of(raw: bytes) -> IndexRow:
    """Return the facts of a record from its bytes.

    Raises:
        ValueError: If the bytes are not JSON, or the time is not one with a zone.
        LookupError: If a member of a record is missing.
        TypeError: If the body of an event is not an object.

    """
    fields = orjson.loads(raw)
    row = _facts_of_interaction(fields) if "interaction_id" in fields else _facts_of_event(fields)
    # Checked here, because a time that an index cannot read would break all queries of the log.
    if datetime.fromisoformat(row.time).tzinfo is None:
        raise ValueError(f"the time {row.time!r:.40} has no zone")
    return row


def _facts_of_interaction(fields: dict[str, Any]) -> IndexRow:
    envelope, result = fields["envelope"], fields["result"]
    is_recorded = result.get("served_from") == "recorded"
    is_sent = not is_recorded and bool(result.get("dispatched_at") or result["cost_nusd"])
    return IndexRow(
        id=fields["interaction_id"],
        kind=INTERACTION,
        trace_id=envelope["trace_id"],
        causation_id=envelope["causation_id"],
        tenant=envelope["tenant_id"],
        time=fields["stored_at"],
        day=fields["stored_at"][:10],
        subject=envelope["subject"],
        envelope_id=envelope["envelope_id"],
        request_hash=envelope["request_hash"],
        occurrence=envelope["occurrence"],
        attempt=result["attempt_number"],
        agent=envelope["agent_id"],
        workflow=envelope["workflow"],
        provider=result["provider"],
        model=result["model"] or envelope["model"],
        success=result["success"],
        input_tokens=(
            result["input_tokens"]
            + result["cache_read_tokens"]
            + result["cache_write_5m_tokens"]
            + result["cache_write_1h_tokens"]
        ),
        output_tokens=result["output_tokens"],
        cost_nusd=result["cost_nusd"],
        sent=is_sent,
        in_doubt=is_sent and bool(result.get("in_doubt")),
        recorded=is_recorded,
        reservation=_reservation_of(envelope, result) if is_sent else None,
        billed_nusd=result.get("bill_nusd") or 0,
        failure=_category_of(result.get("failure")),
        latency_ms=float(result.get("latency_ms") or 0),
    )


def _reservation_of(envelope: dict[str, Any], result: dict[str, Any]) -> int:
    made = (envelope["tenant_id"], envelope["idempotency_key"], result["attempt_number"])
    return _number_of(result.get("reservation_id") or reservation_id(*made))


def _number_of(reservation: str) -> int:
    """Return a number for a reservation id.

    Two ids with the same number only need a closer check.
    """
    return int(sha256_hex(reservation.encode("utf-8", "surrogatepass"))[:15], 16)


def _facts_of_event(fields: dict[str, Any]) -> IndexRow:
    body = fields["body"]
    if not isinstance(body, dict):
        raise TypeError(f"the body of event {fields['id']!r:.100} is no object")
    subject = body.get("subject") or body.get("symbol")
    reservation = body.get("reservation_id")
    return IndexRow(
        id=fields["id"],
        kind=fields["kind"],
        trace_id=fields["trace_id"],
        causation_id=fields["causation_id"],
        tenant=fields["tenant_id"],
        time=fields["time"],
        day=fields["time"][:10],
        subject=subject if isinstance(subject, str) else "",
        reservation=_number_of(reservation) if isinstance(reservation, str) else None,
        verdict=_name_of(body.get("verdict")),
        failure=_category_of(body.get("reason")),
    )


def _category_of(failure: Any) -> str:
    return _name_of(failure.get("category")) if isinstance(failure, dict) else ""


def _name_of(value: Any) -> str:
    """Return a text as it is, and any other value as JSON. Empty for null."""
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()
