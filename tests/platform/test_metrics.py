"""Samples of budgets: bounded series, one window a counter, and names from the list."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agentic_trading.governance.admission import RefusedCounter
from agentic_trading.governance.controls_document import HaltScope
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.governance.status_feed import CounterStatus, QueuedStatus
from agentic_trading.platform.metrics import FIGURES, MOST_COUNTERS, Samples, budget_samples, metrics_text
from agentic_trading.worker.housekeeping import BudgetReports
from tests.build import NOW
from tests.governance.reporting import full, told


def counter(id_: str = "acme", **changes: Any) -> CounterStatus:
    fields: dict[str, Any] = {
        "scope": ScopeKind.TENANT, "id": id_, "window": Window.DAY, "window_id": "2026-01-02",
        "most": (2_000_000_000, None, None), "spent": (500_000_000, 0, 0), "held": (0, 0, 0), "in_doubt": (0, 0, 0),
    }  # fmt: skip
    return CounterStatus(**{**fields, **changes})


def samples(*counters: CounterStatus, refused: Any = (), **changes: Any) -> Samples:
    status = told(counters=counters, **changes)
    return budget_samples(BudgetReports([status], dict(refused), {}), {})


def test_five_thousand_agents_leave_two_hundred_series() -> None:
    agents = [
        counter(f"agent-{number}", scope=ScopeKind.AGENT, most=(10_000, 10_000, None), spent=(number, 0, 0))
        for number in range(5_000)
    ]

    found = samples(*agents)

    assert {len(found[f"agentic_budget_{amount}_usd"]) for amount in ("limit", "spent", "held")} == {200}
    assert {labels[2] for labels, _ in found["agentic_budget_spent_usd"]} == {
        f"agent-{number}" for number in range(4_800, 5_000)
    }
    assert found["agentic_budget_series_left_out"] == [(("acme",), 5_000 - MOST_COUNTERS)]


def test_exhausted_counter_is_kept_before_fuller_ones() -> None:
    full_ones = [counter(f"full-{number:03}", spent=(2_000_000_000, 0, 0)) for number in range(MOST_COUNTERS)]

    found = samples(*full_ones, counter("refusing", spent=(0, 0, 0), exhausted=("nano-USD",)))

    ids = {labels[2] for labels, _ in found["agentic_budget_exhausted"]}
    assert "refusing" in ids
    assert "full-199" not in ids


def test_counter_has_amounts_ratio_and_forecast() -> None:
    of = RefusedCounter("acme", ScopeKind.TENANT, "acme", Window.DAY, "nano-USD")

    forecast: dict[str, Any] = {
        "nusd_per_hour": 4_000_000_000,
        "exhausted_at": NOW,
        "exhausted_unit": "nano-USD",
    }
    found = samples(counter(**forecast), refused={of: 3})

    labels = ("acme", "tenant", "acme", "day")
    assert found["agentic_budget_limit_usd"] == [(labels, 2.0)]
    assert found["agentic_budget_spent_usd"] == [(labels, 0.5)]
    assert found["agentic_budget_used_ratio"] == [((*labels, "usd"), 0.25)]
    assert found["agentic_budget_refused"] == [((*labels, "usd"), 3)]
    assert found["agentic_budget_pace_usd_per_hour"] == [(labels, 4.0)]
    assert found["agentic_budget_exhausted_timestamp_seconds"] == [(labels, NOW.timestamp())]
    assert not found["agentic_budget_limit_tokens"]


def test_counter_that_stopped_spending_has_pace_and_no_forecast() -> None:
    found = samples(counter(nusd_per_hour=4_000_000_000, exhausted_at=NOW, exhausted_unit=None))

    assert len(found["agentic_budget_pace_usd_per_hour"]) == 1
    assert found["agentic_budget_exhausted_timestamp_seconds"] == []


def test_only_newest_window_of_counter_is_shown() -> None:
    days = [counter(window_id=f"2026-01-0{day}", spent=(day, 0, 0)) for day in (3, 1, 2)]

    [(_, spent)] = samples(*days)["agentic_budget_spent_usd"]

    assert spent == 3e-9


def test_counters_of_calls_and_traces_have_no_series() -> None:
    short = [counter(scope=scope) for scope in (ScopeKind.CALL, ScopeKind.TRACE)]

    found = samples(*short)

    assert not found["agentic_budget_spent_usd"]
    assert found["agentic_budget_series_left_out"] == [(("acme",), 0)]


def test_queue_has_length_and_oldest_wait() -> None:
    parked = QueuedStatus(
        reservation_id="r", scope=ScopeKind.TENANT, id="acme", unit="calls", asked=1, left=0, priority=0,
        since=NOW.replace(year=2025),
    )  # fmt: skip

    found = samples(parked=(parked,))

    assert found["agentic_budget_queue_calls"] == [(("acme",), 1)]
    assert found["agentic_budget_queue_oldest_seconds"] == [(("acme",), 365 * 86_400)]


def test_metrics_text_is_valid_with_hostile_names() -> None:
    reports = BudgetReports([full()], {}, {("acme", HaltScope.MODEL): 2})

    text = metrics_text(budget_samples(reports, {"acme": 3})).decode()

    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["agentic_halts"].samples[0].value == 2
    assert families["agentic_workers_reporting"].samples[0].value == 3
    assert families["agentic_budget_spent_usd"].samples[0].labels["id"] == "Ärger \"'{}\n"
    assert families["agentic_budget_used_ratio"].samples[-1].value == 1.0  # of a ceiling of 0
    assert set(families) <= set(FIGURES)


def test_sample_outside_the_list_raises() -> None:
    with pytest.raises(KeyError, match="agentic_unheard_of"):
        metrics_text({"agentic_unheard_of": [((), 1)]})
