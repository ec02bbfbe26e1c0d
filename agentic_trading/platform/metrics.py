"""The list of all metrics of `/metrics`, and their samples: a worker, its attempts and the budgets.

Documents, alerts and the dashboard are generated from the list: `python -m tools.monitoring write`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal

from agentic_trading.bus.topic import BrokerStatistics
from agentic_trading.governance.admission import RefusedCounter
from agentic_trading.governance.limits import UNITS, Unit
from agentic_trading.governance.status_feed import BudgetStatus, CounterStatus, lasting_counters
from agentic_trading.llm.limits import NANO
from agentic_trading.platform.workers import PlatformStatistics
from agentic_trading.worker.attempt_statistics import AttemptStatistics, HistogramSample
from agentic_trading.worker.housekeeping import BudgetReports
from agentic_trading.worker.outbox import OutboxLag

MOST_COUNTERS: Final = 200
"""The maximum number of budget counters of a tenant in the metrics. The fullest ones are kept."""

UNIT_NAMES: Final[Mapping[Unit, str]] = MappingProxyType(
    dict(zip(UNITS, ("usd", "tokens", "calls"), strict=True))
)
"""The name of each unit in metrics. Nano-dollars are shown as dollars."""

COUNTER: Final = ("tenant", "scope", "id", "window")
MODEL: Final = ("workflow", "provider", "model")
CALLER: Final = ("tenant", *MODEL)


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric.

    Attributes:
        name: Its name, without the suffix that Prometheus adds to a type.
        type: Its type.
        labels: Its labels.
        unit: Its unit, for readers.
        meaning: Its meaning, as a line of text.

    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    unit: str
    meaning: str

    @property
    def shown_name(self) -> str:
        """The name in expressions. A histogram has three: `_bucket`, `_count` and `_sum`."""
        return f"{self.name}_total" if self.type == "counter" else self.name


_AMOUNTS: Final = {
    "limit": "ceiling of a counter",
    "spent": "charged to a counter in its current window, with the amount in doubt",
    "held": "reserved for calls in flight",
    "in_doubt": "part of the spent amount that may not have been billed",
}

_WORKER: Final = (
    Figure("agentic_worker_serving", "gauge", (), "0 or 1", "1 while the worker takes envelopes"),
    Figure("agentic_worker_ready", "gauge", (), "0 or 1", "1 if the worker takes envelopes and has no problem"),
    Figure(
        "agentic_worker_problem", "gauge", ("part",), "0 or 1",
        "1 for each part that has a problem. `/readyz` has the reason",
    ),
    Figure("agentic_deliveries", "counter", ("end",), "deliveries", "deliveries of envelopes and events, by their end"),
    Figure("agentic_published", "counter", ("topic",), "messages", "messages that this worker published"),
    Figure(
        "agentic_bus_waiting", "gauge", ("group", "topic"), "messages",
        "messages in this worker's partitions that wait",
    ),
    Figure(
        "agentic_bus_in_flight", "gauge", ("group", "topic"), "messages",
        "messages that this worker holds and has not finished",
    ),
    Figure("agentic_calls", "gauge", ("state",), "calls", "calls at this moment"),
    Figure("agentic_ledger_steps", "counter", ("step",), "steps", "steps of this worker in the ledger"),
    Figure("agentic_ledger_usd", "counter", ("kind",), "dollars", "amounts of charged calls"),
    Figure("agentic_ledger_nusd", "counter", ("kind",), "nano-dollars", "the same in nano-dollars. New queries use `agentic_ledger_usd_total`"),
    Figure(
        "agentic_outbox_lines", "gauge", (), "lines", "lines of the log that are not on `llm.records` yet"
    ),
    Figure("agentic_outbox_oldest_seconds", "gauge", (), "seconds", "waiting time of the oldest of these lines"),
    Figure(
        "agentic_outbox_left_out", "counter", (), "lines", "lines that the bus cannot take. They are only in the log"
    ),
    Figure("agentic_log_disk_free_bytes", "gauge", (), "bytes", "free space on the disk of the log"),
    Figure(
        "agentic_log_unshipped_segments", "gauge", (), "segments",
        "sealed segments of the log that `log.sealed_command` has not shipped yet",
    ),
    Figure(
        "agentic_signing_keys_unread_seconds", "gauge", (), "seconds",
        "time since the folder of signing keys was last read",
    ),
)  # fmt: skip

_ATTEMPTS: Final = (
    Figure(
        "agentic_attempts", "counter", (*MODEL, "outcome"), "attempts",
        "attempts that this worker recorded, recorded answers included",
    ),
    Figure(
        "agentic_attempt_duration_seconds", "histogram", MODEL, "seconds",
        "time from the send of an attempt to its answer or failure",
    ),
    Figure(
        "agentic_queue_wait_seconds", "histogram", ("workflow",), "seconds",
        "each wait of an attempt for headroom or a permit. An attempt may wait several times or not at all",
    ),
    Figure(
        "agentic_record_durable_seconds", "histogram", (), "seconds",
        "time in which the log stored a record. With durability `group`, it is then on disk",
    ),
    Figure("agentic_tokens", "counter", (*CALLER, "type"), "tokens", "tokens of sent attempts"),
    Figure("agentic_cost_usd", "counter", CALLER, "dollars", "charges of sent attempts, in doubt included"),
    Figure("agentic_answer_changes", "counter", ("kind",), "changes", "changes made while reading answers"),
    Figure("agentic_answer_violations", "counter", ("keyword",), "violations", "rules that answers broke"),
)  # fmt: skip

_HTTP: Final = (
    Figure(
        "agentic_http_requests", "counter", ("api", "key", "status"), "requests",
        "requests to `serve`, by API, name of the API key and HTTP status",
    ),
)  # fmt: skip

_BUDGETS: Final = (
    *(
        Figure(f"agentic_budget_{amount}_{unit}", "gauge", COUNTER, "dollars" if unit == "usd" else unit, meaning)
        for unit in UNIT_NAMES.values()
        for amount, meaning in _AMOUNTS.items()
    ),
    Figure(
        "agentic_budget_used_ratio", "gauge", (*COUNTER, "unit"), "ratio",
        "spent amount divided by the ceiling. 1 for a ceiling of 0",
    ),
    Figure(
        "agentic_budget_exhausted", "gauge", (*COUNTER, "unit"), "0 or 1",
        "1 if a unit is used up, or has refused every call for five minutes",
    ),
    Figure(
        "agentic_budget_pace_usd_per_hour", "gauge", COUNTER, "dollars an hour", "pace of the last hour"
    ),
    Figure(
        "agentic_budget_exhausted_timestamp_seconds", "gauge", COUNTER, "Unix time",
        "time at which a counter is exhausted at this pace. Absent if it lasts its window at this pace or at that of five minutes",
    ),
    Figure(
        "agentic_budget_refused", "counter", (*COUNTER, "unit"), "calls",
        "calls that this worker refused because the counter had too little left",
    ),
    Figure("agentic_budget_queue_calls", "gauge", ("tenant",), "calls", "calls that wait for headroom"),
    Figure("agentic_budget_queue_oldest_seconds", "gauge", ("tenant",), "seconds", "waiting time of the oldest of them"),
    Figure(
        "agentic_budget_series_left_out", "gauge", ("tenant",), "counters",
        f"counters that are not in the metrics, because a tenant has more than {MOST_COUNTERS}",
    ),
    Figure("agentic_workers_reporting", "gauge", ("tenant",), "workers", "workers that reported in the last 10 seconds"),
    Figure("agentic_halts", "gauge", ("tenant", "scope"), "halts", "halts in force. Tenant `*` means all tenants"),
)  # fmt: skip

FIGURES: Final[Mapping[str, Figure]] = MappingProxyType({
    figure.name: figure for figure in (*_WORKER, *_ATTEMPTS, *_HTTP, *_BUDGETS)
})
"""All metrics by name."""

PARTS: Final = ("asking", "bus", "ledger", "start", "stream")
"""The parts that can keep a worker from serving. Each has a metric at all times."""

MetricSample = tuple[tuple[str, ...], float | HistogramSample]
"""The values of the labels, and the value."""

Samples = Mapping[str, Sequence[MetricSample]]
"""Samples by the name of a figure. A figure that does not apply is left out."""


def metrics_text(*parts: Samples) -> bytes:
    """Return samples in the Prometheus text format, in the order of `FIGURES`.

    Raises:
        KeyError: If a sample has a name that is not in `FIGURES`.

    """
    found: dict[str, list[MetricSample]] = {}
    for part in parts:
        for name, samples in part.items():
            found.setdefault(FIGURES[name].name, []).extend(samples)
    lines: list[str] = []
    for figure in FIGURES.values():
        if figure.name in found:
            lines += _lines(figure, found[figure.name])
    return "".join(lines).encode("utf-8", "replace")


def worker_samples(health: Mapping[str, Any], lag: OutboxLag | None, free_bytes: int | None) -> Samples:
    """Return the samples of a worker process, its outbox and its disk."""
    problems = health["problems"]
    found: dict[str, list[MetricSample]] = {
        "agentic_worker_serving": [((), health["state"] == "serving")],
        "agentic_worker_ready": [((), health["ready"])],
        "agentic_worker_problem": [((part,), part in problems) for part in sorted({*PARTS, *problems})],
    }
    if free_bytes is not None:
        found["agentic_log_disk_free_bytes"] = [((), free_bytes)]
    if lag is not None:
        found["agentic_outbox_lines"] = [((), lag.lines)]
        found["agentic_outbox_oldest_seconds"] = [((), lag.oldest_s)]
        found["agentic_outbox_left_out"] = [((), lag.left_out)]
    return found


def platform_samples(statistics: PlatformStatistics) -> Samples:
    """Return the samples of the deliveries, the bus, the ledger and the log of an open platform."""
    pool, bus, ledger = statistics.pool, statistics.bus, statistics.ledger
    ends = {
        "finished": pool.finished,
        "dead_letter": pool.dead_letters,
        "given_back": pool.given_back,
        "event": pool.events,
    }
    steps = ("reserved", "settled", "released", "in_doubt", "late", "refused")
    charged = {"reserved": ledger.reserved_nusd, "charged": ledger.charged_nusd}
    found: dict[str, list[MetricSample]] = {
        "agentic_deliveries": [((end,), count) for end, count in ends.items()],
        "agentic_published": [((topic,), count) for topic, count in bus.published.items()],
        "agentic_bus_waiting": [((one.group, one.topic), one.waiting) for one in bus.backlogs],
        "agentic_bus_in_flight": [((one.group, one.topic), one.in_flight) for one in bus.backlogs],
        "agentic_calls": [(("in_flight",), ledger.in_flight), (("waiting_for_budget",), ledger.waiting)],
        "agentic_ledger_steps": [((step,), getattr(ledger, step)) for step in steps],
        "agentic_ledger_usd": [((kind,), nusd / NANO) for kind, nusd in charged.items()],
        "agentic_ledger_nusd": [((kind,), nusd) for kind, nusd in charged.items()],
        "agentic_record_durable_seconds": [((), pool.durable_s)],
    }
    if statistics.unshipped is not None:
        found["agentic_log_unshipped_segments"] = [((), statistics.unshipped)]
    if statistics.keys_unread_s is not None:
        found["agentic_signing_keys_unread_seconds"] = [((), statistics.keys_unread_s)]
    return found


def attempt_samples(attempts: AttemptStatistics) -> Samples:
    """Return the samples of the recorded attempts."""
    return {
        "agentic_attempts": [((*labels, outcome), n) for (labels, outcome), n in attempts.attempts.items()],
        "agentic_attempt_duration_seconds": [*attempts.durations_s.items()],
        "agentic_queue_wait_seconds": [((workflow,), one) for workflow, one in attempts.waits_s.items()],
        "agentic_tokens": [((*caller, kind), n) for (caller, kind), n in attempts.tokens.items()],
        "agentic_cost_usd": [(caller, nusd / NANO) for caller, nusd in attempts.cost_nusd.items()],
        "agentic_answer_changes": [((kind,), n) for kind, n in attempts.changes.items()],
        "agentic_answer_violations": [((keyword,), n) for keyword, n in attempts.violations.items()],
    }


def http_samples(requests: Mapping[tuple[str, str, str], int]) -> Samples:
    """Return the samples of HTTP requests, counted by API, key and status."""
    return {"agentic_http_requests": [*requests.items()]}


def bus_samples(bus: BrokerStatistics, reporting: Mapping[str, int]) -> Samples:
    """Return the samples of a client of a bus, and of the workers that report now by tenant."""
    return {
        "agentic_published": [((topic,), count) for topic, count in bus.published.items()],
        "agentic_workers_reporting": [((tenant,), count) for tenant, count in reporting.items()],
    }


def budget_samples(reports: BudgetReports, reporting: Mapping[str, int]) -> Samples:
    """Return the samples of budgets, queues, halts and workers by tenant.

    Counters of calls and traces are left out. Of several windows of a counter, the newest one counts. Of all
    counters, the `MOST_COUNTERS` fullest of a tenant are kept.

    Args:
        reports: The last reports of a worker, or of a folder.
        reporting: The number of workers that report now, by tenant.

    """
    found: dict[str, list[MetricSample]] = {
        name: [] for name in FIGURES if name.startswith("agentic_budget_")
    }
    for status in reports.statuses:
        counters = lasting_counters(status.counters)
        shown = sorted(counters, key=_fullest_first)[:MOST_COUNTERS]
        for counter in shown:
            _add_counter(found, status.tenant, counter, reports.refused)
        of_tenant = (status.tenant,)
        found["agentic_budget_series_left_out"].append((of_tenant, len(counters) - len(shown)))
        found["agentic_budget_queue_calls"].append((of_tenant, len(status.parked)))
        found["agentic_budget_queue_oldest_seconds"].append((of_tenant, _oldest_s(status)))
    # 0 halts are shown too, because an alert on an absent series could not be told from a wrong name.
    halts: list[MetricSample] = [
        ((tenant, str(scope)), count) for (tenant, scope), count in reports.halts.items()
    ]
    workers: list[MetricSample] = [((tenant,), count) for tenant, count in reporting.items()]
    return {**found, "agentic_halts": halts, "agentic_workers_reporting": workers}


def _add_counter(
    found: Mapping[str, list[MetricSample]],
    tenant: str,
    counter: CounterStatus,
    refused: Mapping[RefusedCounter, int],
) -> None:
    labels = (tenant, str(counter.scope), counter.id, str(counter.window))
    amounts = zip(counter.most, counter.spent, counter.held, counter.in_doubt, strict=True)
    for unit, (most, spent, held, in_doubt) in zip(UNITS, amounts, strict=True):
        if most is None:
            continue
        name, scale = UNIT_NAMES[unit], NANO if unit == "nano-USD" else 1
        for amount, value in (("limit", most), ("spent", spent), ("held", held), ("in_doubt", in_doubt)):
            found[f"agentic_budget_{amount}_{name}"].append((labels, value / scale))
        of = RefusedCounter(tenant, counter.scope, counter.id, counter.window, unit)
        by_unit = (*labels, name)
        # 0 refusals are shown too, because `increase` does not see the first value of a series.
        found["agentic_budget_used_ratio"].append((by_unit, spent / most if most else 1.0))
        found["agentic_budget_exhausted"].append((by_unit, unit in counter.exhausted))
        found["agentic_budget_refused"].append((by_unit, refused.get(of, 0)))
    if counter.nusd_per_hour is not None:
        found["agentic_budget_pace_usd_per_hour"].append((labels, counter.nusd_per_hour / NANO))
    # Only if both spans lead to it, as for the recorded warning. The last hour alone shows spending that has stopped.
    if counter.exhausted_at is not None and counter.exhausted_unit is not None:
        end = counter.exhausted_at.timestamp()
        found["agentic_budget_exhausted_timestamp_seconds"].append((labels, end))


def _fullest_first(counter: CounterStatus) -> tuple[float, str, str, str]:
    """Return a key that sorts the fullest counter first, and equal ones always in the same order."""
    return counter.share_left, str(counter.scope), counter.id, str(counter.window)


def _oldest_s(status: BudgetStatus) -> float:
    return max(((status.as_of - one.since).total_seconds() for one in status.parked), default=0.0)


def _lines(figure: Figure, samples: Iterable[MetricSample]) -> Iterator[str]:
    """Yield the lines of a metric.

    Written here, because the collectors of the client library take five times as long for thousands of
    samples.
    """
    name = figure.shown_name
    yield f"# HELP {name} {figure.meaning}\n# TYPE {name} {figure.type}\n"
    for labels, value in samples:
        pairs = [f'{label}="{_escaped(text)}"' for label, text in zip(figure.labels, labels, strict=True)]
        if isinstance(value, HistogramSample):
            bounds = (*map(str, value.bounds), "+Inf")
            for bound, count in zip(bounds, value.up_to, strict=True):
                yield _line(f"{name}_bucket", [*pairs, f'le="{bound}"'], count)
            yield _line(f"{name}_count", pairs, value.up_to[-1])
            yield _line(f"{name}_sum", pairs, value.sum)
        else:
            yield _line(name, pairs, value)


def _line(name: str, pairs: Sequence[str], value: float) -> str:
    labels = f"{{{','.join(pairs)}}}" if pairs else ""
    return f"{name}{labels} {float(value)!r}\n"


@lru_cache(maxsize=4096)  # because each counter has the same labels in a dozen metrics
def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
