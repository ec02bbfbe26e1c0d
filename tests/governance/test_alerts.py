"""Warnings come once, and again only when they had ceased to hold."""

from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction

import pytest

from agentic_trading.governance.burn_rate import Alerts, BurnRate, Forecast
from agentic_trading.governance.ledger import Balance
from agentic_trading.governance.limits import UNITS, Ceiling, ScopeKind, Window
from agentic_trading.governance.prices import Amount

NOTHING = Amount(0, 0, 0)
END = datetime(2026, 1, 2, tzinfo=UTC)


def forecast(spent: int, *, calls: int = 0, window_id: str = "2026-01-02") -> Forecast:
    balance = Balance(
        "acme", ScopeKind.AGENT, "a", Window.DAY, window_id, Ceiling(nusd=100, calls=10),
        Amount(spent, 0, calls), NOTHING, NOTHING,
    )  # fmt: skip
    units = zip(UNITS, balance.ceiling.units, balance.spent.units, strict=True)
    used_up = tuple(unit for unit, most, used in units if most is not None and used >= most)
    return Forecast(balance, BurnRate(NOTHING, NOTHING), exhausted=used_up)


def kinds(alerts: Alerts, *forecasts: Forecast) -> list[tuple[str, str]]:
    return [(alert.kind, alert.unit) for alert in alerts.new(forecasts)]


def test_soft_limit_alert_is_raised_once() -> None:
    alerts = Alerts()

    assert kinds(alerts, forecast(79)) == []
    assert kinds(alerts, forecast(80)) == [("threshold", "nano-USD")]
    assert kinds(alerts, forecast(95)) == []


def test_exhaustion_is_alerted_after_threshold() -> None:
    alerts = Alerts()
    kinds(alerts, forecast(90))

    assert kinds(alerts, forecast(100)) == [("exhausted", "nano-USD")]


def test_units_and_windows_alert_separately() -> None:
    alerts = Alerts()
    kinds(alerts, forecast(90))

    assert kinds(alerts, forecast(90, calls=9)) == [("threshold", "calls")]
    assert kinds(alerts, forecast(90, window_id="2026-01-03")) == [("threshold", "nano-USD")]


def test_alert_repeats_after_recovery() -> None:
    alerts = Alerts()
    kinds(alerts, forecast(90))
    kinds(alerts, forecast(10))

    assert kinds(alerts, forecast(90)) == [("threshold", "nano-USD")]


def test_only_steady_pace_raises_forecast() -> None:
    hasty = replace(forecast(10), exhausted_at=END, unit="nano-USD")
    steady = replace(hasty, is_steady=True)

    assert kinds(Alerts(), hasty) == []
    assert kinds(Alerts(), steady) == [("forecast", "nano-USD")]


@pytest.mark.parametrize("share", [Fraction(0), Fraction(-1, 2), Fraction(11, 10)])
def test_invalid_threshold_share_is_rejected(share: Fraction) -> None:
    with pytest.raises(ValueError, match="Allowed: above 0, up to 1"):
        Alerts(share)


def test_refusing_counter_alerts_exhausted_below_ceiling() -> None:
    refusing = replace(forecast(99), exhausted=("nano-USD",))

    assert kinds(Alerts(), refusing) == [("exhausted", "nano-USD")]


def test_exhausted_unit_raises_no_forecast() -> None:
    refusing = replace(
        forecast(10), exhausted_at=END, unit="nano-USD", is_steady=True, exhausted=("nano-USD",)
    )

    assert kinds(Alerts(), refusing) == [("exhausted", "nano-USD")]
