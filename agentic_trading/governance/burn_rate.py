"""How fast budgets are used up, when they will be, and what to warn of: arithmetic over balances at several moments."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Literal

from agentic_trading.governance.ledger import Balance
from agentic_trading.governance.limits import SHORT_LIVED, UNITS, ScopeKind, Unit, Window, Windows
from agentic_trading.governance.prices import Amount

SHORT = timedelta(minutes=5)
LONG = timedelta(hours=1)
"""Two spans, as one alone is either late or hasty: a burst shows in the short one only, and is over."""

_SAMPLES_EVERY = timedelta(seconds=5)

_HORIZON_H = 24 * 366
"""A counter that would last for more than a year at this pace has no date."""

CounterId = tuple[str, ScopeKind, str, Window, str]
BurnSample = tuple[datetime, Amount]


@dataclass(frozen=True, slots=True)
class BurnRate:
    """What is spent in an hour, at the pace of the last five minutes and of the last hour (or since the start)."""

    short: Amount
    long: Amount


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a counter will have nothing left, if it goes on as in the last hour; None if not before its window ends.

    `unit` is the one that ends first. `is_steady` says that the last five minutes lead to the same.
    """

    balance: Balance
    burn: BurnRate
    exhausted_at: datetime | None = None
    unit: Unit | None = None
    is_steady: bool = False


class BurnRateMeter:
    """Remembers what agents, workflows and tenants with a ceiling had spent, for an hour; time is that of the calls, simulated or not."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._seen: dict[CounterId, list[BurnSample]] = {}

    def look(self, balances: Iterable[Balance], now: datetime) -> list[Forecast]:
        """Note the balances of `now`, and say where they lead; counters of ended windows are forgotten."""
        current = {window: span.id for window, span in self._windows.at(now).items()}
        limited = [
            one
            for one in balances
            if one.scope not in SHORT_LIVED
            and any(most is not None for most in one.ceiling.units)
            and one.window_id == current[one.window]
        ]
        self._seen = {
            _counter(one): self._noted(self._seen.get(_counter(one)), one.spent, now) for one in limited
        }
        return [self._forecast(one, self._seen[_counter(one)], now) for one in limited]

    def _noted(self, samples: list[BurnSample] | None, spent: Amount, now: datetime) -> list[BurnSample]:
        if samples is None:
            return [(now, spent)]
        if now - samples[-1][0] >= _SAMPLES_EVERY:
            samples.append((now, spent))
        del samples[: max(0, bisect_right(samples, now - LONG, key=_when) - 1)]
        return samples

    def _forecast(self, balance: Balance, samples: Sequence[BurnSample], now: datetime) -> Forecast:
        burn = BurnRate(_pace(samples, balance.spent, now, SHORT), _pace(samples, balance.spent, now, LONG))
        over_by = self._windows.at(now)[balance.window].over_by
        by_long = _first_to_end(balance, burn.long, now, over_by)
        by_short = _first_to_end(balance, burn.short, now, over_by)
        if by_long is None:
            return Forecast(balance, burn)
        at, unit = by_long
        return Forecast(balance, burn, at, unit, is_steady=by_short is not None)


def _counter(balance: Balance) -> CounterId:
    return balance.tenant, balance.scope, balance.id, balance.window, balance.window_id


def _when(sample: BurnSample) -> datetime:
    return sample[0]


def _pace(samples: Sequence[BurnSample], spent: Amount, now: datetime, span: timedelta) -> Amount:
    """Return what is spent in an hour at the pace since the last sample that is at least `span` old, or the first."""
    older = bisect_right(samples, now - span, key=_when)
    since, before = samples[max(0, older - 1)]
    passed = now - since
    if passed < _SAMPLES_EVERY:
        return Amount(0, 0, 0)
    return Amount(*(
        max(0, int((new - old) * (LONG / passed)))
        for new, old in zip(spent.units, before.units, strict=True)
    ))  # fmt: skip


def _first_to_end(
    balance: Balance, per_hour: Amount, now: datetime, over_by: datetime | None
) -> tuple[datetime, Unit] | None:
    """Return when which unit is used up at this pace, if that is before `over_by`."""
    ends = []
    for unit, left, pace in zip(UNITS, balance.left.units, per_hour.units, strict=True):
        if left is None or pace <= 0:
            continue
        hours = left / pace
        if hours < _HORIZON_H:
            ends.append((now + LONG * hours, unit))
    first = min(ends, default=None)
    return first if first is not None and (over_by is None or first[0] < over_by) else None


WARN_AT = Fraction(4, 5)

AlertKind = Literal["threshold", "exhausted", "forecast"]


@dataclass(frozen=True, slots=True)
class Alert:
    """A warning about a counter: a soft limit was passed, nothing is left, or it will not last its window.

    `spent` and `most` are in `unit`.
    """

    kind: AlertKind
    forecast: Forecast
    unit: Unit
    spent: int
    most: int


class Alerts:
    """Finds new alerts; `warn_at` is the share of a ceiling from which on it warns (a soft limit)."""

    def __init__(self, warn_at: Fraction = WARN_AT) -> None:
        if not 0 < warn_at <= 1:
            raise ValueError(f"warn_at is {warn_at}; allowed is above 0, up to 1")
        self._warn_at = warn_at
        self._known: frozenset[tuple[object, ...]] = frozenset()

    def new(self, forecasts: Iterable[Forecast]) -> list[Alert]:
        """Return the alerts that hold now and did not at the last look."""
        holding = [alert for forecast in forecasts for alert in self._of(forecast)]
        fresh = [alert for alert in holding if _subject(alert) not in self._known]
        self._known = frozenset(map(_subject, holding))
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
