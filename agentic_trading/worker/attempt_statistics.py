"""Counts and durations of a worker's attempts, by labels from closed lists, for metrics."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.result import AttemptTrace, LLMResult

OTHER: Final = "other"
"""The label of each value that is not in its list."""

ACCEPTED: Final = "accepted"
"""The outcome of an attempt whose answer was accepted."""

TOKEN_TYPES: Final = ("input", "output", "cache_read", "cache_write")

CHANGES: Final = frozenset({
    "bare_key", "boolean", "capitals", "chosen", "comment", "control_character", "double_encoded", "dropped",
    "escape", "fence", "guess", "hidden_key", "integer", "missing_comma", "number", "prose", "python_literal", "quotes", "repeated_key",
    "stray_sign", "thinking", "trailing_comma", "white_space", "wrapped",
})  # fmt: skip
"""The kinds of changes that the reader of answers makes."""

KEYWORDS: Final = frozenset({
    "additionalProperties", "allOf", "anyOf", "check_failed", "const", "contains", "dependentRequired", "depth",
    "echo", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "items", "json", "maxItems", "maxLength",
    "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "more", "multipleOf", "not",
    "oneOf", "pattern", "prefixItems", "propertyNames", "repeated_key", "required", "schema", "sentinel", "size",
    "type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
})  # fmt: skip
"""The keywords of JSON Schema and of the reader of answers. Checks of applications may have others."""

ATTEMPT_BOUNDS_S: Final = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)
"""The buckets that the GenAI conventions of OpenTelemetry name for the duration of an operation, in seconds."""

RECORD_BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)

MOST_CALLERS: Final = 1_000
"""The maximum number of combinations of tenant, workflow and model. Later tenants are counted as `OTHER`."""

AttemptLabels = tuple[str, str, str]
"""Workflow, provider, model."""

CallerLabels = tuple[str, str, str, str]
"""Tenant, workflow, provider, model."""


@dataclass(frozen=True, slots=True)
class HistogramSample:
    """A histogram at one time: the upper bounds of its buckets, the values up to each bound, all values, their sum.

    The last bucket has no bound.
    """

    bounds: Sequence[float]
    up_to: Sequence[int]
    sum: float


@dataclass(slots=True)
class Histogram:
    """Counts values by bucket. `bounds` are the upper bounds of all buckets but the last one."""

    bounds: Sequence[float]
    _counts: list[int] = field(init=False)
    _sum: float = 0.0

    def __post_init__(self) -> None:
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self._sum += value

    def sample(self) -> HistogramSample:
        """Return the counts so far."""
        return HistogramSample(self.bounds, tuple(accumulate(self._counts)), self._sum)


@dataclass(frozen=True, slots=True)
class AttemptStatistics:
    """Counts of the attempts that a process has recorded since its start.

    Attributes:
        attempts: Attempts by labels and outcome, recorded answers included.
        durations_s: Durations of sent attempts.
        waits_s: Each wait for headroom or a permit, by workflow. An attempt may have several.
        tokens: Tokens of live attempts by labels and type.
        cost_nusd: Charges of live attempts.
        changes: Changes made while reading answers, by kind.
        violations: Rules that answers broke, by keyword.

    """

    attempts: Mapping[tuple[AttemptLabels, str], int]
    durations_s: Mapping[AttemptLabels, HistogramSample]
    waits_s: Mapping[str, HistogramSample]
    tokens: Mapping[tuple[CallerLabels, str], int]
    cost_nusd: Mapping[CallerLabels, int]
    changes: Mapping[str, int]
    violations: Mapping[str, int]


class AttemptCounter:
    """Counts recorded attempts.

    Args:
        tenants: The tenants that have a label.
        models: The provider and the model of each label. Clients name models freely.
        clock: Real time, for waits.

    """

    def __init__(
        self,
        tenants: Collection[str] = (),
        models: Collection[tuple[str, str]] = (),
        clock: Clock | None = None,
    ) -> None:
        self._tenants = frozenset(tenants)
        self._models = frozenset(models)
        self._clock = clock or SystemClock()
        self._attempts: Counter[tuple[AttemptLabels, str]] = Counter()
        self._durations: dict[AttemptLabels, Histogram] = {}
        self._waits = {str(workflow): Histogram(ATTEMPT_BOUNDS_S) for workflow in EnvelopeWorkflow}
        self._charges: dict[CallerLabels, list[int]] = {}  # nano-dollars, then tokens by `TOKEN_TYPES`
        self._changes: Counter[str] = Counter()
        self._violations: Counter[str] = Counter()

    @contextmanager
    def waiting(self, workflow: EnvelopeWorkflow) -> Iterator[None]:
        """Count the duration of the block as a wait."""
        started = self._clock.monotonic()
        try:
            yield
        finally:
            self._waits[workflow].observe(self._clock.monotonic() - started)

    def note(self, interaction: LLMInteraction) -> None:
        """Count a recorded attempt. Count each one once."""
        envelope, result = interaction.envelope, interaction.result
        # Only names of the table, because a client may put any text there, and each would be a series.
        model = (str(envelope.provider), envelope.model)
        labels = (str(envelope.workflow), *(model if model in self._models else (OTHER, OTHER)))
        self._attempts[labels, _outcome(result)] += 1
        if result.served_from != "live":  # its tokens and its cost belong to the first call
            return
        if result.reading is not None:
            self._note_reading(result.reading)
        if result.dispatched_at is not None:
            histogram = self._durations.get(labels)
            if histogram is None:
                histogram = self._durations[labels] = Histogram(ATTEMPT_BOUNDS_S)
            histogram.observe(result.latency_ms / 1000)
            self._note_charge(self._caller(envelope.tenant_id, labels), result)

    def statistics(self) -> AttemptStatistics:
        """Return the counts so far."""
        return AttemptStatistics(
            attempts=dict(self._attempts),
            durations_s={labels: one.sample() for labels, one in self._durations.items()},
            waits_s={workflow: one.sample() for workflow, one in self._waits.items()},
            tokens={
                (caller, kind): count
                for caller, (_, *counts) in self._charges.items()
                for kind, count in zip(TOKEN_TYPES, counts, strict=True)
            },
            cost_nusd={caller: charge[0] for caller, charge in self._charges.items()},
            changes=dict(self._changes),
            violations=dict(self._violations),
        )

    def _caller(self, tenant: str, labels: AttemptLabels) -> CallerLabels:
        caller = (tenant, *labels)
        # Bounded, because each series costs memory here and in Prometheus, and there may be thousands of tenants.
        is_full = len(self._charges) >= MOST_CALLERS and caller not in self._charges
        return (OTHER, *labels) if is_full or tenant not in self._tenants else caller

    def _note_charge(self, caller: CallerLabels, result: LLMResult) -> None:
        charge = self._charges.get(caller)
        if charge is None:
            charge = self._charges[caller] = [0] * (1 + len(TOKEN_TYPES))
        charge[0] += result.cost_nusd
        charge[1] += result.input_tokens
        charge[2] += result.output_tokens
        charge[3] += result.cache_read_tokens
        charge[4] += result.cache_write_5m_tokens + result.cache_write_1h_tokens

    def _note_reading(self, reading: AttemptTrace) -> None:
        for fix in (*reading.fixes, *reading.coercions, *reading.patches):
            self._changes[fix.kind if fix.kind in CHANGES else OTHER] += 1
        for violation in reading.errors:
            self._violations[violation.keyword if violation.keyword in KEYWORDS else OTHER] += 1


def _outcome(result: LLMResult) -> str:
    if result.failure is None:
        return ACCEPTED if result.success else FailureKind.INTERNAL_ERROR
    kind = result.failure.category
    return str(kind) if kind in _FAILURES else OTHER


_FAILURES: Final = frozenset(FailureKind)
