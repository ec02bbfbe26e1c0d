"""Burn rates of budgets, forecasts of their end, and warnings. Computed from balances at several times."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from types import MappingProxyType
from typing import Final, Literal

from agentic_trading.governance import limits as limit_types
from agentic_trading.governance.admission import RefusalSpan, RefusedCounter
from agentic_trading.governance.events import (
    BudgetExhausted,
    BudgetExhaustionForecast,
    BudgetThresholdReached,
)
from agentic_trading.governance.ledger import Balance
from agentic_trading.governance.prices import Amount
from agentic_trading.ids import derived_id
from agentic_trading.llm.event import Event

SHORT = timedelta(minutes=5)
LONG = timedelta(hours=1)
"""Two spans are used, because a burst shows only in the short one, and the long one alone reacts late."""

_SAMPLES_EVERY = timedelta(seconds=5)

EVIDENT: Final = Fraction(1, 50)
"""A forecast needs five minutes of samples, or this share of the ceiling spent since the first sample."""

REFUSING: Final = timedelta(minutes=5)
"""A counter that refused calls for this long and admitted none is exhausted.

One oversized call is not enough.
"""

_HORIZON_H = 24 * 366
"""In hours. A counter that would last longer than a year at this rate has no forecast."""

CounterId = tuple[str, limit_types.ScopeKind, str, limit_types.Window, str]
BurnSample = tuple[datetime, Amount]


@dataclass(frozen=True, slots=True)
class BurnRate:
    """The amounts spent per hour, by the last five minutes and by the last hour (or since the start)."""

    short: Amount
    long: Amount


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a counter will be exhausted at the rate of the last hour, or None if its window ends before.

    Attributes:
        balance: The counter.
        burn: Its rates.
        exhausted_at: When it will be exhausted.
        unit: The unit that is exhausted first.
        is_steady: Whether the rate of the last five minutes leads to the same result.
        exhausted: The units that are used up, or in which the counter has refused every call for five
            minutes.

    """

    balance: Balance
    burn: BurnRate
    exhausted_at: datetime | None = None
    unit: limit_types.Unit | None = None
    is_steady: bool = False
    exhausted: tuple[limit_types.Unit, ...] = ()


@dataclass(slots=True)
class _Refusals:
    """The refusals of a counter by unit, since the last call that any worker admitted in it."""

    ceiling: limit_types.Ceiling
    calls: int
    spans: dict[limit_types.Unit, RefusalSpan] = field(default_factory=dict)

    def note(self, balance: Balance, refused: Mapping[limit_types.Unit, RefusalSpan]) -> None:
        """Note refusals up to this balance.

        An admitted call or another ceiling starts again.
        """
        calls = _calls(balance)
        if calls > self.calls or balance.ceiling != self.ceiling:
            self.spans.clear()
        else:
            for unit, span in refused.items():
                self.spans[unit] = self.spans.get(unit, span).joined(span)
        self.ceiling, self.calls = balance.ceiling, calls

    def exhausted(self, balance: Balance) -> Iterable[limit_types.Unit]:
        """Yield the units that are used up, or have too little left for any call."""
        for unit, most, spent in zip(
            limit_types.UNITS, balance.ceiling.units, balance.spent.units, strict=True
        ):
            span = self.spans.get(unit)
            is_refusing = span is not None and span.last - span.first >= REFUSING
            if most is not None and (spent >= most or is_refusing):
                yield unit


class BurnRateMeter:
    """Remembers for an hour the spending of counters with a ceiling, and their refusals.

    Counters of calls and traces are left out. Time is that of the calls, simulated or not.
    """

    def __init__(self, windows: limit_types.Windows) -> None:
        self._windows = windows
        self._seen: dict[CounterId, list[BurnSample]] = {}
        self._refusals: dict[CounterId, _Refusals] = {}
        self._unopened: dict[CounterId, Balance] = {}

    def look(
        self,
        balances: Iterable[Balance],
        now: datetime,
        refused: Mapping[RefusedCounter, RefusalSpan] = MappingProxyType({}),
    ) -> list[Forecast]:
        """Note the balances of `now` and the calls `refused` since the last call, and return forecasts.

        Counters of ended windows are forgotten.
        """
        current = {window: span.id for window, span in self._windows.at(now).items()}
        found = {_counter(one): one for one in balances}
        # A counter that has admitted no call yet is unknown to the ledger. It gets a zero balance here,
        # because its refusals would otherwise cause no warning.
        self._unopened = self._unopened | {
            _counter(one): one for one in (_blank(of, current, span) for of, span in refused.items())
        }
        self._unopened = {key: one for key, one in self._unopened.items() if key not in found}
        limited = [
            one
            for one in (*found.values(), *self._unopened.values())
            if one.scope not in limit_types.SHORT_LIVED
            and any(most is not None for most in one.ceiling.units)
            and one.window_id == current[one.window]
        ]
        self._seen = {
            _counter(one): self._noted(self._seen.get(_counter(one)), one.spent, now) for one in limited
        }
        self._unopened = {key: one for key, one in self._unopened.items() if one in limited}
        self._refusals = {_counter(one): self._refusing(one, refused) for one in limited}
        return [self._forecast(one, self._seen[_counter(one)], now) for one in limited]

    def _refusing(self, balance: Balance, refused: Mapping[RefusedCounter, RefusalSpan]) -> _Refusals:
        known = self._refusals.get(_counter(balance)) or _Refusals(balance.ceiling, _calls(balance))
        of = balance.tenant, balance.scope, balance.id, balance.window
        known.note(
            balance,
            {
                unit: span
                for unit in limit_types.UNITS
                if (span := refused.get(RefusedCounter(*of, unit))) is not None
            },
        )
        return known

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
        exhausted = tuple(self._refusals[_counter(balance)].exhausted(balance))
        evident = _evident(samples, balance, now)
        by_long = _first_to_end(balance, burn.long, now, over_by, evident)
        by_short = _first_to_end(balance, burn.short, now, over_by, evident)
        if by_long is None:
            return Forecast(balance, burn, exhausted=exhausted)
        at, unit = by_long
        return Forecast(balance, burn, at, unit, is_steady=by_short is not None, exhausted=exhausted)


def _counter(balance: Balance) -> CounterId:
    return balance.tenant, balance.scope, balance.id, balance.window, balance.window_id


def _blank(of: RefusedCounter, windows: Mapping[limit_types.Window, str], span: RefusalSpan) -> Balance:
    """Return the balance of a counter without admitted calls. Its ceiling is the amount left."""
    most = limit_types.Ceiling(*(span.left if unit == of.unit else None for unit in limit_types.UNITS))
    zero = Amount(0, 0, 0)
    return Balance(of.tenant, of.scope, of.id, of.window, windows[of.window], most, zero, zero, zero)


def _calls(balance: Balance) -> int:
    """Return the number of calls that a counter has admitted, ended or in flight."""
    return balance.spent.calls + balance.held.calls


def _evident(samples: Sequence[BurnSample], balance: Balance, now: datetime) -> frozenset[limit_types.Unit]:
    """Return the units with enough samples for a forecast."""
    since, before = samples[0]
    if now - since >= SHORT:
        return frozenset(limit_types.UNITS)
    of_unit = zip(limit_types.UNITS, balance.ceiling.units, balance.spent.units, before.units, strict=True)
    return frozenset(
        unit for unit, most, spent, old in of_unit if most is not None and spent - old >= EVIDENT * most
    )


def _when(sample: BurnSample) -> datetime:
    return sample[0]


def _pace(samples: Sequence[BurnSample], spent: Amount, now: datetime, span: timedelta) -> Amount:
    """Return the amount per hour since the last sample that is at least `span` old, or the first sample."""
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
    balance: Balance,
    per_hour: Amount,
    now: datetime,
    over_by: datetime | None,
    evident: frozenset[limit_types.Unit],
) -> tuple[datetime, limit_types.Unit] | None:
    """Return when an `evident` unit is first used up, and the unit, if that is before `over_by`."""
    ends = []
    for unit, left, pace in zip(limit_types.UNITS, balance.left.units, per_hour.units, strict=True):
        if left is None or pace <= 0 or unit not in evident:
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
    """A warning about a counter: soft limit passed, exhausted, or exhausted before its window ends.

    `spent` and `most` are in `unit`.
    """

    kind: AlertKind
    forecast: Forecast
    unit: limit_types.Unit
    spent: int
    most: int


class Alerts:
    """Finds new alerts. `warn_at` is the share of a ceiling at which warnings start."""

    def __init__(self, warn_at: Fraction = WARN_AT) -> None:
        if not 0 < warn_at <= 1:
            raise ValueError(f"warn_at is {warn_at}. Allowed: above 0, up to 1")
        self._warn_at = warn_at
        self._known: frozenset[tuple[object, ...]] = frozenset()

    def new(self, forecasts: Iterable[Forecast]) -> list[Alert]:
        """Return the alerts that hold now and did not hold at the last call."""
        holding = [alert for forecast in forecasts for alert in self._of(forecast)]
        fresh = [alert for alert in holding if _subject(alert) not in self._known]
        self._known = frozenset(map(_subject, holding))
        return fresh

    def _of(self, forecast: Forecast) -> Iterable[Alert]:
        balance = forecast.balance
        for unit, most, spent in zip(
            limit_types.UNITS, balance.ceiling.units, balance.spent.units, strict=True
        ):
            if most is None:
                continue
            is_exhausted = unit in forecast.exhausted
            if is_exhausted:
                yield Alert("exhausted", forecast, unit, spent, most)
            elif spent >= self._warn_at * most:
                yield Alert("threshold", forecast, unit, spent, most)
            if forecast.is_steady and forecast.unit == unit and not is_exhausted:
                yield Alert("forecast", forecast, unit, spent, most)


def _subject(alert: Alert) -> tuple[object, ...]:
    return alert.kind, alert.unit, alert.most, *_counter(alert.forecast.balance)


_WARNINGS: Final = {
    "threshold": BudgetThresholdReached,
    "exhausted": BudgetExhausted,
    "forecast": BudgetExhaustionForecast,
}


def warning_event(alert: Alert, now: datetime) -> Event:
    """Return the record of a warning.

    Its id depends only on the counter and its limit, so that all workers record the same event. The amounts
    and the time differ between workers, and the first record counts.
    """
    forecast, balance = alert.forecast, alert.forecast.balance
    subject = (balance.tenant, balance.scope, balance.id, balance.window, balance.window_id)
    body = _WARNINGS[alert.kind](
        scope=balance.scope,
        id=balance.id,
        window=balance.window,
        window_id=balance.window_id,
        unit=alert.unit,
        spent=alert.spent,
        most=alert.most,
        nusd_per_hour=forecast.burn.long.nusd,
        exhausted_at=forecast.exhausted_at,
    )
    return body.as_event(
        event_id=derived_id("budget", alert.kind, alert.unit, *subject, alert.most),
        trace_id="budget",
        tenant_id=balance.tenant,
        time=now,
    )
