"""What is known of a record without its body: what it is found by, and what it counts for in sums."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import orjson

from agentic_trading.llm.records import SpendKey, TraceSummary

INTERACTION = "interaction"
"""The kind of an interaction among the kinds of events."""

_TOKENS_IN = ("input_tokens", "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens")


@dataclass(frozen=True, slots=True)
class IndexRow:
    """The facts of one record; what only interactions have is empty for an event, whose `attempt` is 0.

    `time` is when it was recorded and `day` the same day, both UTC; `input_tokens` counts cached ones too.
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


def index_row_of(raw: bytes) -> IndexRow:
    """Read the facts of a record's bytes; raises `ValueError` or `LookupError` for what is not a record."""
    fields = orjson.loads(raw)
    return _facts_of_interaction(fields) if "interaction_id" in fields else _facts_of_event(fields)


def checked_keys(by: Sequence[SpendKey]) -> tuple[SpendKey, ...]:
    """Return the keys of a sum; raises `ValueError` for one that there is not, naming those there are."""
    allowed = get_args(SpendKey)
    unknown = [key for key in by if key not in allowed]
    if unknown:
        raise ValueError(f"cannot sum by {', '.join(unknown)}; allowed are {', '.join(allowed)}")
    return tuple(by)


def summary_of(trace_id: str, facts: Sequence[IndexRow]) -> TraceSummary:
    """Sum up a decision chain, given the facts of all its records in the log's order."""
    attempts = [fact for fact in facts if fact.attempt]
    return TraceSummary(
        trace_id=trace_id,
        first=facts[0].time,
        last=facts[-1].time,
        attempts=len(attempts),
        events=len(facts) - len(attempts),
        cost_nusd=sum(fact.cost_nusd for fact in attempts),
        subject=next((fact.subject for fact in facts if fact.subject), ""),
    )


def _facts_of_interaction(fields: dict[str, Any]) -> IndexRow:
    envelope, result = fields["envelope"], fields["result"]
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
        input_tokens=sum(result[name] for name in _TOKENS_IN),
        output_tokens=result["output_tokens"],
        cost_nusd=result["cost_nusd"],
    )


def _facts_of_event(fields: dict[str, Any]) -> IndexRow:
    subject = fields["body"].get("subject") or fields["body"].get("symbol")
    return IndexRow(
        id=fields["id"],
        kind=fields["kind"],
        trace_id=fields["trace_id"],
        causation_id=fields["causation_id"],
        tenant=fields["tenant_id"],
        time=fields["time"],
        day=fields["time"][:10],
        subject=subject if isinstance(subject, str) else "",
    )
