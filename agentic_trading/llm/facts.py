"""The facts of records: what a query selects, counts and sums without reading a record."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, get_args

FactKey = Literal[
    "day",
    "kind",
    "tenant",
    "agent",
    "workflow",
    "provider",
    "model",
    "subject",
    "verdict",
    "failure",
]
"""A key of `Records.sums`. `day` is the UTC day of the record's time."""

NameField = Literal[
    "kind", "tenant", "agent", "workflow", "provider", "model", "subject", "verdict", "failure"
]
NAME_FIELDS: Final[tuple[NameField, ...]] = get_args(NameField)
"""The fields of a `RecordQuery` that list names."""

ANY: Final = "*"
"""In a filter of a `RecordQuery`: any value but the empty one."""


@dataclass(frozen=True, slots=True)
class Fact:
    """The facts of one record. For an event, the fields of interactions are empty.

    Attributes:
        seq: The number of its line.
        time: When it was recorded, in UTC.
        kind: `interaction`, or the kind of the event.
        verdict: The verdict of an event, as in the column `verdict` of an export.
        failure: The kind of the failure, as in the column `failure` of an export.
        attempt: The number of the attempt, 0 for an event.
        input_tokens: All input tokens, cached ones included.
        sent: The attempt was sent. If neither `sent` nor `recorded`, it was refused.
        recorded: The attempt was served from a record.
        in_doubt: The attempt was sent and may have been billed without an answer.
        cost_nusd: The charge in nano-dollars.
        latency_ms: The duration of the attempt in milliseconds.

    """

    seq: int
    time: datetime
    kind: str
    tenant: str
    agent: str
    workflow: str
    provider: str
    model: str
    subject: str
    verdict: str
    failure: str
    attempt: int
    success: bool
    sent: bool
    recorded: bool
    in_doubt: bool
    input_tokens: int
    output_tokens: int
    cost_nusd: int
    latency_ms: float


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """A selection of records by their facts.

    Values of one field are alternatives. Different fields must all match. An empty field selects everything,
    and `ANY` selects every value but the empty one.

    Attributes:
        kind: `interaction`, or kinds of events.
        failure: Kinds of failures.
        since: The earliest time of a record.
        until: The first time after the selection.
        trace_id: The decision chain, empty for all.
        after: Only records in lines above this number.
        before: Only records in lines below this number. 0 means all.
        where: One more condition, in SQL over the fields of `Fact`. Times are texts such as
            `2026-06-01T00:00:00.000000Z`, and the flags, tokens, costs and durations of events are NULL. It may
            have subqueries over the selected `facts`.

    """

    kind: tuple[str, ...] = ()
    tenant: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()
    workflow: tuple[str, ...] = ()
    provider: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    subject: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()
    failure: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    trace_id: str = ""
    after: int = 0
    before: int = 0
    where: str = ""

    def selects(self, names: object, time: datetime, trace_id: str) -> bool:
        """Return whether a record meets all fields but `after`, `before` and `where`. `names` has its named facts."""
        return (
            all(_has_one_of(getattr(names, field), getattr(self, field)) for field in NAME_FIELDS)
            and (self.since is None or time >= self.since)
            and (self.until is None or time < self.until)
            and self.trace_id in {"", trace_id}
        )


def _has_one_of(value: str, allowed: tuple[str, ...]) -> bool:
    return not allowed or value in allowed or (bool(value) and ANY in allowed)


EVERYTHING: Final = RecordQuery()
"""The query that selects every record."""


@dataclass(frozen=True, slots=True)
class FactSums:
    """The sums of a group of records.

    Attributes:
        key: The group's value of each `FactKey`.
        records: All records of the group.
        failed: Records with a failure.
        cost_nusd: The charges in nano-dollars.

    """

    key: tuple[str, ...]
    records: int
    failed: int
    input_tokens: int
    output_tokens: int
    cost_nusd: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of the duration of a model's sent attempts, in milliseconds.

    They come from a histogram with 16 buckets an octave, so that each is within 4.5 % of the exact value.
    """

    model: str
    attempts: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
