"""What is told of budgets, record by record."""

from datetime import UTC, datetime
from typing import Any

import pytest

from agentic_trading.llm.event import Event
from agentic_trading.operate.budget_log import budget_events

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
COUNTER: dict[str, Any] = {
    "scope": "tenant",
    "id": "acme",
    "window": "day",
    "window_id": "2026-11-22",
    "unit": "nano-USD",
    "spent": 4_000_000_000,
    "most": 5_000_000_000,
    "nusd_per_hour": 1,
    "exhausted_at": "2026-11-22T15:30:10.123456+00:00",
}


def event(kind: str, **body: Any) -> Event:
    return Event(kind=kind, id=kind, trace_id="budget", tenant_id="acme", time=NOON, body=body)


@pytest.mark.parametrize(
    ("kind", "spent_usd", "why"),
    [
        ("budget.threshold_reached", 4, "4 USD of 5 USD used"),
        ("budget.exhausted", 5, "nothing is left: 5 USD of 5 USD used"),
        (
            "budget.exhausted",
            4,
            "calls were refused for five minutes and none was admitted: 4 USD of 5 USD used",
        ),
        (
            "budget.exhaustion_forecast",
            4,
            "4 USD of 5 USD used. At this pace, nothing is left at 2026-11-22 15:30",
        ),
    ],
)
def test_warning_is_shown_in_dollars(kind: str, spent_usd: int, why: str) -> None:
    counter = {**COUNTER, "spent": spent_usd * 1_000_000_000}

    (told,) = budget_events([event(kind, **counter)], "acme")

    assert (told.what, told.subject, told.why) == ("warning", "tenant acme · 2026-11-22", why)


def test_call_warning_is_shown_in_calls() -> None:
    counter = {**COUNTER, "unit": "calls", "spent": 8, "most": 10}

    (told,) = budget_events([event("budget.threshold_reached", **counter)], "acme")

    assert told.why == "8 calls of 10 calls used"


def test_expired_lease_is_shown_with_charge() -> None:
    body = {"reservation_id": "r-1", "state": "in_doubt", "nusd": 7, "tokens": 1}

    (told,) = budget_events([event("reservation.expired", **body)], "acme")

    assert (told.what, told.subject, told.nusd) == ("expired", "r-1", 7)


def test_history_hides_other_tenants() -> None:
    assert list(budget_events([event("budget.threshold_reached", **COUNTER)], "somebody-else")) == []
