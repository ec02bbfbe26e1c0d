"""The facts of records, for every store: selection, effects and latency percentiles."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from math import ceil, floor, log2
from typing import Final, get_args

from agentic_trading.llm.facts import NAME_FIELDS, Fact, FactKey, Latency, RecordQuery
from agentic_trading.llm.log_line import IndexRow

# Within four years of this time, a number of microseconds takes six bytes in an index.
_EPOCH: Final = datetime(2028, 1, 1, tzinfo=UTC)
EPOCH_S: Final = int(_EPOCH.timestamp())
_MICROSECOND: Final = timedelta(microseconds=1)
MICROSECONDS_A_DAY: Final = timedelta(days=1) // _MICROSECOND
_BUCKETS_AN_OCTAVE: Final = 16
# A logarithm needs a lower end. No clock measures less than a microsecond.
_SHORTEST_MS: Final = 0.001
_SHORTEST: Final = -1_000  # the bucket of everything below


def micros_of(time: datetime) -> int:
    """Return a time in microseconds since 2028."""
    return (time - _EPOCH) // _MICROSECOND


def time_of(micros: int) -> datetime:
    """Return the UTC time of microseconds since 2028."""
    return _EPOCH + timedelta(microseconds=micros)


def fact_of(seq: int, row: IndexRow) -> Fact:
    """Return the facts of the record in line `seq`."""
    return Fact(
        seq=seq,
        time=datetime.fromisoformat(row.time).astimezone(UTC),
        kind=row.kind,
        tenant=row.tenant,
        agent=row.agent,
        workflow=row.workflow,
        provider=row.provider,
        model=row.model,
        subject=row.subject,
        verdict=row.verdict,
        failure=row.failure,
        attempt=row.attempt,
        success=bool(row.success and row.attempt),
        sent=row.sent,
        recorded=row.recorded,
        in_doubt=row.in_doubt,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        cost_nusd=row.cost_nusd,
        latency_ms=row.latency_ms,
    )


def is_selected(fact: Fact, trace_id: str, query: RecordQuery) -> bool:
    """Return whether a query selects a record. Its `where` is left out."""
    is_in_range = query.after < fact.seq and not 0 < query.before <= fact.seq
    return is_in_range and query.selects(fact, fact.time, trace_id)


def check_fact_keys(by: Sequence[FactKey]) -> tuple[FactKey, ...]:
    """Return the keys of a sum. Raises `ValueError` for an unknown key."""
    allowed = get_args(FactKey)
    unknown = [key for key in by if key not in allowed]
    if unknown:
        raise ValueError(f"cannot sum by {', '.join(unknown)}. Allowed keys: {', '.join(allowed)}")
    return tuple(by)


def effects_of(chain: Mapping[int, IndexRow], causes: Iterable[int]) -> set[int]:
    """Return the lines of a decision chain that follow from one of the lines `causes`."""
    by_cause: defaultdict[str, list[int]] = defaultdict(list)
    for seq, row in chain.items():
        if row.causation_id:
            by_cause[row.causation_id].append(seq)
    found = set[int]()
    todo = list(causes)
    while todo:
        row = chain[todo.pop()]
        news = {seq for name in (row.id, row.envelope_id) for seq in by_cause.get(name, ())} - found
        found |= news
        todo += news
    return found


def bucket_of(latency_ms: float) -> int:
    """Return the bucket of a duration in a histogram of latencies."""
    return floor(log2(latency_ms) * _BUCKETS_AN_OCTAVE) if latency_ms >= _SHORTEST_MS else _SHORTEST


def latency_of(model: str, buckets: Mapping[int, int]) -> Latency:
    """Return the percentiles of a histogram, whose values are numbers of attempts."""
    attempts = sum(buckets.values())
    return Latency(
        model=model,
        attempts=attempts,
        p50_ms=_percentile(buckets, ceil(attempts * 0.50)),
        p95_ms=_percentile(buckets, ceil(attempts * 0.95)),
        p99_ms=_percentile(buckets, ceil(attempts * 0.99)),
    )


def _percentile(buckets: Mapping[int, int], rank: int) -> float:
    """Return the middle of the bucket that has the attempt with this rank."""
    ordered = sorted(buckets)
    passed = list(accumulate(buckets[bucket] for bucket in ordered))
    bucket = ordered[bisect_left(passed, rank)]
    return 0.0 if bucket == _SHORTEST else 2 ** ((bucket + 0.5) / _BUCKETS_AN_OCTAVE)


def latencies_of(sent: Iterable[tuple[str, int, int]]) -> list[Latency]:
    """Return the percentiles by model, from models, buckets and their numbers of attempts."""
    buckets: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for model, bucket, attempts in sent:
        buckets[model][bucket] += attempts
    return [latency_of(model, buckets[model]) for model in sorted(buckets)]


def sums_key(fact: Fact, by: Collection[FactKey]) -> tuple[str, ...]:
    """Return the values of the keys of a sum."""
    return tuple(fact.time.date().isoformat() if key == "day" else getattr(fact, key) for key in by)


def condition_rows(facts: Iterable[Fact]) -> Iterable[tuple[object, ...]]:
    """Return facts as a condition sees them, in the order of `Fact`."""
    for fact in facts:
        time = fact.time.isoformat(timespec="microseconds").replace("+00:00", "Z")
        names = (fact.seq, time, *(getattr(fact, field) for field in NAME_FIELDS), fact.attempt)
        numbers = (
            fact.success,
            fact.sent,
            fact.recorded,
            fact.in_doubt,
            fact.input_tokens,
            fact.output_tokens,
            fact.cost_nusd,
            fact.latency_ms,
        )
        yield (*names, *(numbers if fact.attempt else (None,) * len(numbers)))
