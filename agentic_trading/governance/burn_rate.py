"""How fast budgets are used up, when they will be, and what to warn of: arithmetic over balances at several moments."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from types import MappingProxyType
from typing import Final, Literal

from agentic_trading.governance import limits as limit_types
from agentic_trading.governance.admission import RefusalSpan, RefusedCounter
from agentic_trading.governance.ledger import Balance
from agentic_trading.governance.prices import Amount

SHORT = timedelta(minutes=5)
LONG = timedelta(hours=1)
"""Two spans, as one alone is either late or hasty: a burst shows in the short one only, and is over."""

_SAMPLES_EVERY = timedelta(seconds=5)

EVIDENT: Final = Fraction(1, 50)
"""A forecast rests on five minutes of samples, or on this share of the ceiling spent since the first one."""

REFUSING: Final = timedelta(minutes=5)
"""A counter that refused calls for so long, and admitted none between, is exhausted. One oversized call is not enough."""

_HORIZON_H = 24 * 366
"""A counter that would last for more than a year at this pace has no date."""

CounterId = tuple[str, limit_types.ScopeKind, str, limit_types.Window, str]
BurnSample = tuple[datetime, Amount]


@dataclass(frozen=True, slots=True)
class BurnRate:
    """What is spent in an hour, at the pace of the last five minutes and of the last hour (or since the start)."""

    short: Amount
    long: Amount


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a counter will have nothing left, if it goes on as in the last hour; None if not before its window ends.

    `unit` is the one that ends first. `is_steady` says that the last five minutes lead to the same. `exhausted` are the
    units that are used up, or in which the counter has refused every call for five minutes.
    """

    balance: Balance
    burn: BurnRate
    exhausted_at: datetime | None = None
    unit: limit_types.Unit | None = None
    is_steady: bool = False
    exhausted: tuple[limit_types.Unit, ...] = ()


@dataclass(slots=True)
class _Refusals:
    """When a counter refused calls since the last call that any worker had admitted in it, by unit."""

    ceiling: limit_types.Ceiling
    calls: int
    spans: dict[limit_types.Unit, RefusalSpan] = field(default_factory=dict)

    def note(self, balance: Balance, refused: Mapping[limit_types.Unit, RefusalSpan]) -> None:
        """Note what a counter has refused up to this balance; with a call or another ceiling, it begins again."""
        calls = _calls(balance)
        if calls > self.calls or balance.ceiling != self.ceiling:
            self.spans.clear()
        else:
            for unit, span in refused.items():
                self.spans[unit] = self.spans.get(unit, span).joined(span)
        self.ceiling, self.calls = balance.ceiling, calls

    def exhausted(self, balance: Balance) -> Iterable[limit_types.Unit]:
        """Yield the units of which nothing is left, or too little for any call."""
        for unit, most, spent in zip(
            limit_types.UNITS, balance.ceiling.units, balance.spent.units, strict=True
        ):
            span = self.spans.get(unit)
            is_refusing = span is not None and span.last - span.first >= REFUSING
            if most is not None and (spent >= most or is_refusing):
                yield unit


class BurnRateMeter:
    """Remembers what counters with a ceiling had spent, for an hour, and when they refused calls.

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
        """Note the balances of `now` and what was `refused` since the last look, and return where they lead.

        Counters of ended windows are forgotten. A counter that has admitted no call has no balance: it gets one of
        zeros here when it refuses a call.
        """
        current = {window: span.id for window, span in self._windows.at(now).items()}
        found = {_counter(one): one for one in balances}
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
    """Return the balance of a counter in which no call was admitted: what is left is its ceiling."""
    most = limit_types.Ceiling(*(span.left if unit == of.unit else None for unit in limit_types.UNITS))
    zero = Amount(0, 0, 0)
    return Balance(of.tenant, of.scope, of.id, of.window, windows[of.window], most, zero, zero, zero)


def _calls(balance: Balance) -> int:
    """Return how many calls a counter has admitted: charged ones, and those in flight."""
    return balance.spent.calls + balance.held.calls


def _evident(samples: Sequence[BurnSample], balance: Balance, now: datetime) -> frozenset[limit_types.Unit]:
    """Return the units whose pace is known well enough for a forecast."""
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
    balance: Balance,
    per_hour: Amount,
    now: datetime,
    over_by: datetime | None,
    evident: frozenset[limit_types.Unit],
) -> tuple[datetime, limit_types.Unit] | None:
    """Return when which `evident` unit is used up at this pace, if that is before `over_by`."""
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
    """A warning about a counter: a soft limit was passed, it is exhausted, or it will not last its window.

    `spent` and `most` are in `unit`.
    """

    kind: AlertKind
    forecast: Forecast
    unit: limit_types.Unit
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
