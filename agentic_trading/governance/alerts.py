"""Warnings before a ceiling: each once, and again only when it had ceased to hold."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from agentic_trading.governance.burn_rate import Forecast
from agentic_trading.governance.ledger import Balance
from agentic_trading.governance.limit import UNITS, Unit

WARN_AT = Fraction(4, 5)

AlertKind = Literal["threshold", "exhausted", "forecast"]


@dataclass(frozen=True, slots=True)
class Alert:
    """What to tell of a counter: a soft limit was passed, nothing is left, or it will not last its window.

    `spent` and `most` are in `unit`.
    """

    kind: AlertKind
    forecast: Forecast
    unit: Unit
    spent: int
    most: int


class Alerts:
    """Tells what is new; `warn_at` is the share of a ceiling from which on it is told (a soft limit)."""

    def __init__(self, warn_at: Fraction = WARN_AT) -> None:
        if not 0 < warn_at <= 1:
            raise ValueError(f"warn_at is {warn_at}; allowed is above 0, up to 1")
        self._warn_at = warn_at
        self._told: frozenset[tuple[object, ...]] = frozenset()

    def new(self, forecasts: Iterable[Forecast]) -> list[Alert]:
        """Return the alerts that hold now and did not at the last look."""
        holding = [alert for forecast in forecasts for alert in self._of(forecast)]
        fresh = [alert for alert in holding if _subject(alert) not in self._told]
        self._told = frozenset(map(_subject, holding))
        return fresh

    def _of(self, forecast: Forecast) -> Iterable[Alert]:
        balance = forecast.balance
        for unit, most, spent in zip(UNITS, balance.ceiling.units, balance.spent.units, strict=True):
            if most is None:
                continue
            if spent >= most:
                yield Alert("exhausted", forecast, unit, spent, most)
            elif spent >= self._warn_at * most:
                yield Alert("threshold", forecast, unit, spent, most)
            if forecast.is_steady and forecast.unit == unit and spent < most:
                yield Alert("forecast", forecast, unit, spent, most)


def _subject(alert: Alert) -> tuple[object, ...]:
    return alert.kind, alert.unit, *_counter(alert.forecast.balance)


def _counter(balance: Balance) -> tuple[object, ...]:
    return balance.tenant, balance.scope, balance.id, balance.window, balance.window_id
