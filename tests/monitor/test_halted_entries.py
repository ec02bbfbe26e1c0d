"""Halted entries of trading sessions in `/metrics`, on the page of budgets, and in `budget show`."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agentic_trading.governance.controls_document import Halt, HaltScope, TenantControls
from agentic_trading.monitor.readings import metrics_of
from agentic_trading.operate.budgets import BudgetView
from tests.build import NOW
from tests.governance.reporting import told

EMPTY = TenantControls(version=0)


def entries_of(session: str, scope: HaltScope = HaltScope.ENTRIES) -> Halt:
    return Halt(scope=scope, id=session, by="the session", why="max_loss_pct is reached", at=NOW)


def session_view(reported_s: int, *halts: Halt, runs: bool = True) -> BudgetView:
    """Return the view of a session that reported some seconds ago."""
    report = told(time=NOW - timedelta(seconds=reported_s), is_running=runs)
    return BudgetView("place", "acme", TenantControls(version=1, halts=halts), EMPTY, (), (), (report,))


def halts_in(views: Sequence[BudgetView]) -> dict[str, float]:
    """Return the halts of the tenant in the metrics, without zeros."""
    families = text_string_to_metric_families(metrics_of(views, NOW).decode())
    samples = next(family.samples for family in families if family.name == "agentic_halts")
    return {
        sample.labels["scope"]: sample.value
        for sample in samples
        if sample.labels["tenant"] == "acme" and sample.value
    }


@pytest.mark.parametrize("reported_s", [0, 2], ids=["newest", "older"])
def test_halted_entries_of_each_running_session_count(reported_s: int) -> None:
    views = [session_view(reported_s, entries_of("s-1")), session_view(1)]

    assert halts_in(views) == {"entries": 1}


def test_halted_entries_are_counted_once_by_session() -> None:
    views = [session_view(2, entries_of("s-1")), session_view(1, entries_of("s-1"), entries_of("s-2"))]

    assert halts_in(views) == {"entries": 2}


def test_halted_entries_of_ended_sessions_count_only_in_the_newest() -> None:
    ended = session_view(2, entries_of("s-1"), runs=False)

    assert halts_in([ended, session_view(1)]) == {}
    assert halts_in([ended]) == {"entries": 1}


def test_other_halts_count_only_in_the_newest_session() -> None:
    views = [session_view(2, entries_of("planner", HaltScope.AGENT)), session_view(1)]

    assert halts_in(views) == {}


def test_halt_of_entries_names_its_effect_and_its_end() -> None:
    assert entries_of("s-1").reason_and_effect == (
        ": max_loss_pct is reached. Calls and exits are not stopped. "
        "To allow entries: agentic-trading resume --entries s-1"
    )
    assert entries_of("planner", HaltScope.AGENT).reason_and_effect == ": max_loss_pct is reached"
