"""Records and their bytes: identity in a log, line in the chain, records of runs."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from struct import Struct
from typing import get_args

import orjson

from agentic_trading.canonical import canonical_bytes, sha256_hex, utc_text
from agentic_trading.llm import store as store_api
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import RecordConflictError, RecordError
from agentic_trading.llm.event import ArchiveStarted, Event, RunEnded, RunStarted, check_event
from agentic_trading.llm.facts import Fact
from agentic_trading.llm.interaction import LLMInteraction, interaction_id
from agentic_trading.llm.log_line import CHAIN_TAG, is_interaction


def record_of(raw: bytes) -> store_api.Record:
    """Read a record: an interaction if it has an `interaction_id`, otherwise an event.

    Raises:
        ValueError: If the bytes are not a record.

    """
    if is_interaction(raw):
        return LLMInteraction.from_wire(raw)
    return Event.from_wire(raw)


def id_of(record: store_api.Record) -> str:
    """Return the id of a record. An interaction and an event may have the same id."""
    return record.interaction_id if isinstance(record, LLMInteraction) else record.id


def trace_of(record: store_api.Record) -> str:
    """Return the id of the decision chain of a record."""
    return record.envelope.trace_id if isinstance(record, LLMInteraction) else record.trace_id


def wire_of(record: store_api.Record) -> bytes:
    """Return the bytes of a record. Raises `RecordError` if it cannot be serialized."""
    try:
        return record.wire
    except (ValueError, TypeError, OverflowError) as e:
        raise _unspellable(record, e) from e


def _unspellable(record: store_api.Record, e: Exception) -> RecordError:
    return RecordError(id_of(record), f"it cannot be written as JSON ({e}). Correct it and store it again")


def interactions(records: Iterable[store_api.Record]) -> list[LLMInteraction]:
    """Return the attempts among `records`, in their order."""
    return [record for record in records if isinstance(record, LLMInteraction)]


@dataclass(frozen=True, slots=True)
class Identity:
    """The key of a record in a log, and short hashes of the fields that must not change.

    The hashes (`facts`, 14 or 16 bytes) hold for this process only: they are compared, never written. `time` is
    the time of the record, None if it has none.
    """

    key: str
    facts: bytes
    time: datetime | None = field(default=None, compare=False)

    def at(self, seq: int) -> bytes:
        """Return the entry of the record in a log: the number of its line, and the hashes."""
        return seq.to_bytes(_NUMBER_BYTES) + self.facts

    def check(self, known: bytes) -> int:
        """Return the number of the line of an entry if it is the same record.

        Raises:
            RecordConflictError: If it is another record.

        """
        seq, facts = number_of(known), known[_NUMBER_BYTES:]
        if self.facts.startswith(facts):
            return seq
        kind, _, record_id = self.key.partition(":")
        marks, names, hint = _KINDS[kind]
        whole = facts + self.facts[len(facts) :]
        pairs = zip(names, marks.unpack(whole), marks.unpack(self.facts), strict=True)
        differs = ", ".join(name for name, before, now in pairs if before != now)
        raise RecordConflictError(record_id, differs, hint)


def number_of(known: bytes) -> int:
    """Return the number of the line of an entry."""
    return int.from_bytes(known[:_NUMBER_BYTES])


def attempt_key(envelope: LLMEnvelope, attempt: int) -> str:
    """Return the key of an attempt."""
    return f"interaction:{interaction_id(envelope.envelope_id, attempt, envelope.tenant_id)}"


def identity_of(record: store_api.Record) -> Identity:
    """Return the identity of a record.

    Raises:
        RecordError: If a body cannot be serialized, an id of an event is too long, an event has an
            `interaction_id`, or a result is of another envelope.

    """
    if isinstance(record, LLMInteraction):
        envelope, result = record.envelope, record.result
        if result.envelope_id != envelope.envelope_id:
            raise RecordError(
                record.interaction_id,
                f"its result is of envelope {result.envelope_id}, and its envelope is {envelope.envelope_id}."
                " Store the result with the envelope that it answers",
            )
        facts = _attempt_facts(
            envelope.tenant_id,
            envelope.envelope_id,
            result.attempt_number,
            envelope.request_hash,
            envelope.envelope_hash,
            result.output_hash,
        )
        return Identity(f"interaction:{record.interaction_id}", facts, record.stored_at)
    check_event(record)
    as_of = utc_text(record.as_of) if record.as_of else ""
    # Refused, because a reader of the log would otherwise take the event for an interaction.
    if "interaction_id" in (record.model_extra or {}):
        raise RecordError(
            record.id, "it has an interaction_id and would be read as an interaction. Leave it out"
        )
    names = (record.kind, record.trace_id, record.causation_id, record.tenant_id, as_of)
    try:
        body = record.body_json
    except ValueError as e:
        raise _unspellable(record, e) from e
    return Identity(f"event:{record.id}", _event_facts(names, body), record.time)


def identity_in(raw: bytes) -> Identity | None:
    """Return the identity of a record of an earlier process, None for an unknown kind of record."""
    fields = orjson.loads(raw)
    if "interaction_id" in fields:
        envelope, result = fields.get("envelope") or {}, fields.get("result") or {}
        facts = _attempt_facts(
            envelope.get("tenant_id"),
            envelope.get("envelope_id"),
            result.get("attempt_number"),
            envelope.get("request_hash"),
            "",
            "",
        )
        time = _time_in(fields.get("stored_at"))
        return Identity(f"interaction:{fields['interaction_id']}", facts[:_REQUEST_BYTES], time)
    if "id" not in fields:
        return None
    names = ("kind", "trace_id", "causation_id", "tenant_id", "as_of")
    body = canonical_bytes(fields.get("body") or {})
    facts = _event_facts([fields.get(name) or "" for name in names], body)
    return Identity(f"event:{fields['id']}", facts, _time_in(fields.get("time")))


def _time_in(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if isinstance(text, str) else None
    except ValueError:
        return None


def key_in(raw: bytes) -> str:
    """Return the key of a record of an earlier process. Empty for an unknown kind of record."""
    if (found := _ID.search(raw)) is not None:
        return f"interaction:{found[1].decode()}" if found[1] else f"event:{found[2].decode()}"
    fields = orjson.loads(raw)
    if "interaction_id" in fields:
        return f"interaction:{fields['interaction_id']}"
    return f"event:{fields['id']}" if "id" in fields else ""


_NUMBER_BYTES = 8
_EVENT_MARKS = Struct("<5HI")
_ATTEMPT_MARKS = Struct("<2H3I")
_REQUEST_BYTES = 8  # tenant, attempt and request
_KINDS: dict[str, tuple[Struct, tuple[str, ...], str]] = {
    "event": (
        _EVENT_MARKS,
        ("kind", "trace_id", "causation_id", "tenant_id", "as_of", "body"),
        "give every event its own id",
    ),
    "interaction": (
        _ATTEMPT_MARKS,
        ("tenant_id", "envelope_id or attempt_number", "request_hash", "envelope_hash", "output_hash"),
        "give every result of an envelope its own attempt_number",
    ),
}


def _event_facts(names: Iterable[object], body: bytes) -> bytes:
    return _EVENT_MARKS.pack(*[hash(str(name)) & 0xFFFF for name in names], hash(body) & 0xFFFFFFFF)


def _attempt_facts(
    tenant: object, envelope_id: object, attempt: object, request: object, envelope: object, output: object
) -> bytes:
    # Marks of two and four bytes, because every id of a log is kept in memory (decision 3).
    return _ATTEMPT_MARKS.pack(
        hash(str(tenant)) & 0xFFFF,
        hash((str(envelope_id), str(attempt))) & 0xFFFF,
        hash(str(request)) & 0xFFFFFFFF,
        hash(str(envelope)) & 0xFFFFFFFF,
        hash(str(output)) & 0xFFFFFFFF,
    )


def check_keys(by: Sequence[store_api.SpendKey]) -> tuple[store_api.SpendKey, ...]:
    """Return the keys of a sum. Raises `ValueError` for an unknown key."""
    allowed = get_args(store_api.SpendKey)
    unknown = [key for key in by if key not in allowed]
    if unknown:
        raise ValueError(f"cannot sum by {', '.join(unknown)}. Allowed keys: {', '.join(allowed)}")
    return tuple(by)


def summary_of(trace_id: str, facts: Sequence[Fact]) -> store_api.TraceSummary:
    """Return the summary of a decision chain from the facts of all its records, in the log's order."""
    attempts = [fact for fact in facts if fact.attempt]
    return store_api.TraceSummary(
        trace_id=trace_id,
        first=utc_text(facts[0].time),
        last=utc_text(facts[-1].time),
        attempts=len(attempts),
        events=len(facts) - len(attempts),
        cost_nusd=sum(fact.cost_nusd for fact in attempts),
        subject=next((fact.subject for fact in facts if fact.subject), ""),
    )


def write_line(record: bytes, head: store_api.ChainHead) -> tuple[bytes, store_api.ChainHead]:
    """Return the line of a record with its newline, and the new head of the chain.

    The record is a JSON object. Newlines in it become blanks, because in JSON they can only be white space
    between tokens. The hash is SHA-256 over a domain tag and all bytes before `,"hash":`.
    """
    body = b'%b,"seq":%d,"prev":"%b"' % (record[:-1].replace(b"\n", b" "), head.seq + 1, head.hash.encode())
    digest = sha256_hex(CHAIN_TAG, body)
    return b'%b,"hash":"%b"}\n' % (body, digest.encode()), store_api.ChainHead(head.seq + 1, digest)


_RUN_KINDS = (RunStarted.KIND, RunEnded.KIND, ArchiveStarted.KIND)
_RUN_MARKS = tuple(f'"{kind}"'.encode() for kind in _RUN_KINDS)


def run_records(line: store_api.ChainedRecord) -> list[store_api.RunRecord]:
    """Return the start or end of a run, or the start of an archive, in a line.

    Empty if there is none.
    """
    if (
        not any(mark in line.record for mark in _RUN_MARKS)
        or orjson.loads(line.record).get("kind") not in _RUN_KINDS
    ):
        return []
    return [store_api.RunRecord(line.seq, Event.from_wire(line.record), line.prev)]


def broken_at(
    head: store_api.ChainHead,
    reason: str,
    raw: bytes,
    runs: Sequence[store_api.RunRecord],
    *,
    is_unfinished: bool = False,
) -> store_api.Verification:
    """Return the result of a check for a log that is broken after `head`, at the line `raw`."""
    return store_api.Verification(
        head.seq,
        head.hash,
        broken_line=head.seq + 1,
        reason=reason,
        broken_id=_id_in(raw),
        is_unfinished=is_unfinished,
        runs=tuple(runs),
    )


_ID = re.compile(rb'^\{"interaction_id":"([^"\\]+)"|"id":"([^"\\]+)","kind":')


def _id_in(raw: bytes) -> str:
    """Return the id of the record in a broken line, empty if it cannot be read."""
    found = _ID.search(raw)
    return (found[1] or found[2]).decode("utf-8", "replace") if found else ""
