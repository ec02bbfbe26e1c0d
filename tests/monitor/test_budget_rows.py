"""Rows of the page of budgets: their figures, signs and words."""

from datetime import timedelta
from typing import Any

import pytest

from agentic_trading.governance.controls_document import TenantControls
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.governance.status_feed import CounterStatus, DenialStatus, QueuedStatus
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.limits import NANO
from agentic_trading.monitor import budget_rows as rows
from agentic_trading.operate.budgets import BudgetView
from tests.build import NOW
from tests.governance.reporting import told

DAY = f"{NOW:%Y-%m-%d}"


def counter(**changes: Any) -> CounterStatus:
    """Return a counter of a day with a limit of 10 USD; `changes` are its fields."""
    fields: dict[str, Any] = {
        "scope": ScopeKind.TENANT,
        "id": "acme",
        "window": Window.DAY,
        "window_id": DAY,
        "most": (10 * NANO, None, None),
        "spent": (2 * NANO, 0, 0),
        "held": (NANO, 0, 0),
        "in_doubt": (NANO // 2, 0, 0),
        **changes,
    }
    return CounterStatus(**fields)


def view(*counters: CounterStatus, tenant: str = "acme", **report: Any) -> BudgetView:
    """Return the budgets of a tenant with one running worker; `report` are fields of its report."""
    status = told(tenant=tenant, counters=counters, **report)
    controls = TenantControls()
    return BudgetView("place", tenant, controls, controls, counters, status.parked, (status,))


def row(*, running: bool = True, **changes: Any) -> rows.CounterRow:
    """Return the only row of a counter."""
    one = counter(**changes)
    (found,) = rows.counter_rows("", view(one, is_running=running), one, NOW)
    return found


@pytest.mark.parametrize(
    ("nusd", "text"),
    [
        (0, "0"),
        (1, "0.000000001"),
        (10_700_000, "0.01070"),
        (2_868_123_456, "2.868"),
        (5_989_325_000, "5.989"),
        (39_986_400_000, "39.98"),
        (9_999_999_999, "9.999"),
        (40 * NANO, "40.00"),
        (1_234_567 * NANO, "1,234,567.00"),
    ],
)
def test_money_has_four_digits_and_is_cut(nusd: int, text: str) -> None:
    assert rows.short_usd(nusd) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (119, "119 s"), (120, "2 min"), (7_199, "119 min"), (7_200, "2 h"), (172_800, "2 d")],
)
def test_span_has_its_largest_unit(seconds: int, text: str) -> None:
    assert rows.span_text(timedelta(seconds=seconds)) == text


def test_row_has_all_amounts() -> None:
    found = row()

    assert (found.spent, found.in_doubt, found.held, found.left, found.limit) == (
        "2.000",
        "0.5000",
        "1.000",
        "7.000",
        "10.00",
    )
    assert (found.unit, found.used, found.pace) == ("USD", "20% used, 10% held", "-")
    assert found.bar == ("30.0", "40.0", "60.0")
    assert found.widths == ("40.0", "10.0", "20.0")


def test_share_below_the_limit_is_never_all_of_it() -> None:
    found = row(spent=(10 * NANO - 1, 0, 0), held=(0, 0, 0), in_doubt=(0, 0, 0))

    assert (found.used, found.outlook.text) == ("99% used, 0% held", "99 % used")


def test_share_has_no_rounding_error_of_a_float() -> None:
    assert row(spent=(29 * NANO // 10, 0, 0), held=(NANO * 57 // 10, 0, 0)).used == "29% used, 57% held"


def test_bar_of_overspent_counter_ends_at_its_box() -> None:
    found = row(spent=(25 * NANO, 0, 0), in_doubt=(0, 0, 0))

    assert (found.widths, found.left) == (("200.0", "0.0", "0.0"), "0")


def test_counter_without_headroom_by_its_limit_is_full() -> None:
    found = row(most=(0, None, None), spent=(0, 0, 0), held=(0, 0, 0), in_doubt=(0, 0, 0))

    assert (found.widths[0], found.used) == ("200.0", "100% used, 0% held")


def test_each_limited_unit_is_a_row() -> None:
    one = counter(most=(None, 400_000, 12), spent=(0, 398_724, 3))

    found = list(rows.counter_rows("", view(one), one, NOW))

    assert [(each.unit, each.spent) for each in found] == [("tokens", "398,724"), ("calls", "3")]
    assert len({each.key for each in found}) == 2


IN_7_MINUTES = NOW + timedelta(minutes=7)


@pytest.mark.parametrize(
    ("changes", "outlook"),
    [
        ({}, rows.Outlook("✓", "lasts its window", "good")),
        ({"window": Window.NONE, "window_id": ""}, rows.Outlook("✓", "lasts", "good")),
        ({"running": False}, rows.Outlook("-", "no worker runs", "dim")),
        ({"spent": (8_490_000_000, 0, 0)}, rows.Outlook("▲", "84 % used", "warn")),
        ({"spent": (8_490_000_000, 0, 0), "running": False}, rows.Outlook("▲", "84 % used", "warn")),
        ({"exhausted": ("nano-USD",)}, rows.Outlook("■", "too little for a call", "bad")),
        ({"exhausted": ("nano-USD",), "spent": (10 * NANO, 0, 0)}, rows.Outlook("■", "used up", "bad")),
        (
            {"exhausted_at": IN_7_MINUTES, "exhausted_unit": "nano-USD"},
            rows.Outlook("▲", f"out {IN_7_MINUTES:%H:%M}, in 7 min", "bad"),
        ),
        (
            {"exhausted_at": NOW + timedelta(days=3), "exhausted_unit": "nano-USD"},
            rows.Outlook("▲", f"out {NOW + timedelta(days=3):%Y-%m-%d %H:%M}, in 3 d", "warn"),
        ),
        # The rates of the last hour and of five minutes do not agree, so that nothing is promised.
        ({"exhausted_at": IN_7_MINUTES}, rows.Outlook("✓", "lasts its window", "good")),
        (
            {"exhausted_at": IN_7_MINUTES, "exhausted_unit": "nano-USD", "running": False},
            rows.Outlook("-", "no worker runs", "dim"),
        ),
    ],
)
def test_outlook_is_a_sign_and_words(changes: dict[str, Any], outlook: rows.Outlook) -> None:
    assert row(**changes).outlook == outlook


def test_forecast_is_held_against_the_time_of_the_session() -> None:
    market = NOW - timedelta(days=1_000)
    one = counter(
        window_id=f"{market:%Y-%m-%d}",
        exhausted_at=market + timedelta(minutes=7),
        exhausted_unit="nano-USD",
    )

    (found,) = rows.counter_rows("", view(one, as_of=market), one, NOW)

    assert found.outlook.text == f"out {market + timedelta(minutes=7):%H:%M}, in 7 min"
    assert found.window_id == ""


@pytest.mark.parametrize(
    ("window", "window_id", "text"),
    [
        (Window.NONE, "", ""),
        (Window.DAY, DAY, ""),
        (Window.DAY, "2020-01-01", "2020-01-01"),
        (Window.MONTH, DAY[:7], ""),
        (Window.MONTH, "2020-01", "2020-01"),
        (Window.HOUR, f"{DAY}T20+0000", "20:00"),
        (Window.HOUR, "2020-01-01T20-0500", "2020-01-01 20:00 -0500"),
        (Window.HOUR, f"{DAY}T20-0500", "20:00 -0500"),
        (Window.MINUTE, f"{DAY}T20:10+0530", "20:10 +0530"),
        (Window.MINUTE, f"{DAY}T20:10+0000", "20:10"),
    ],
)
def test_window_is_named_where_it_is_not_the_present_day(window: Window, window_id: str, text: str) -> None:
    assert row(window=window, window_id=window_id).window_id == text


def test_counters_of_calls_and_ended_windows_are_left_out() -> None:
    ended = counter(window=Window.MINUTE, window_id=f"{DAY}T20:10+0000")
    newest = counter(window=Window.MINUTE, window_id=f"{DAY}T20:11+0000")
    agent = counter(scope=ScopeKind.AGENT, id="a")
    call = counter(scope=ScopeKind.CALL, id="c", window=Window.NONE, window_id="")

    assert rows.shown_counters(view(agent, call, newest, ended, counter())) == [counter(), newest, agent]


def test_line_rises_with_spending() -> None:
    assert rows.spark_path([0, 5, 10]) == "M0 21L45 11L90 1"
    assert rows.spark_path([0, 0]) == "M0 21L90 21"
    assert rows.spark_path([7]) == ""


def denial(at: int, **changes: Any) -> DenialStatus:
    """Return a refusal some seconds after `NOW`."""
    fields: dict[str, Any] = {
        "at": NOW + timedelta(seconds=at),
        "envelope_id": f"e-{at}",
        "agent": "a",
        "workflow": "analysis",
        "kind": FailureKind.BUDGET_EXHAUSTED,
        "why": f"tenant acme has {at} left",
        "scope": ScopeKind.TENANT,
        "id": "acme",
        "window": Window.DAY,
        "unit": "nano-USD",
        **changes,
    }
    return DenialStatus(**fields)


def test_same_reasons_are_one_row() -> None:
    refusals = (denial(1), denial(9), denial(3), denial(4, agent="b"), denial(2, scope=None, why="halted"))

    found = rows.refusal_rows([view(refusals=refusals)], 12)

    assert [(each.times, each.agent, each.reason, each.envelope) for each in found] == [
        ("3", "a", "tenant acme has 9 left", "e-9"),
        ("1", "b", "tenant acme has 4 left", "e-4"),
        ("1", "a", "halted", "e-2"),
    ]
    assert len(rows.refusal_rows([view(refusals=refusals)], 2)) == 2


def test_waiting_calls_are_longest_first() -> None:
    def queued(seconds: int) -> QueuedStatus:
        return QueuedStatus(
            reservation_id=f"r{seconds}", scope=ScopeKind.AGENT, id="a", unit="tokens", asked=2_000, left=5,
            priority=3, since=NOW - timedelta(seconds=seconds),
        )  # fmt: skip

    found = rows.waiting_rows([view(parked=(queued(5), queued(150)))], NOW, 12)

    assert [each.waits for each in found] == ["2 min", "5 s"]
    assert (found[0].counter, found[0].asked, found[0].left, found[0].unit) == (
        "agent a",
        "2,000",
        "5",
        "tokens",
    )


@pytest.mark.parametrize(
    ("age", "running", "state"),
    [(9, True, ("✓ runs", "good")), (10, True, ("■ silent", "bad")), (9, False, ("- ended", "dim"))],
)
def test_worker_is_silent_after_ten_seconds(age: int, running: bool, state: tuple[str, str]) -> None:  # noqa: FBT001 - a parameter of the test
    report = view(time=NOW - timedelta(seconds=age), is_running=running)

    (found,) = rows.worker_rows([("", report)], NOW)

    assert (found.state, found.tone) == state
    assert found.age == f"{age} s ago"


def test_newest_report_of_a_worker_counts() -> None:
    old, new = view(tenant="a", time=NOW - timedelta(seconds=3)), view(tenant="b")

    found = rows.worker_rows([("", new), ("", old), ("other", old)], NOW)

    assert [(each.name, each.age) for each in found] == [("w-1", "0 s ago"), ("other · w-1", "3 s ago")]
