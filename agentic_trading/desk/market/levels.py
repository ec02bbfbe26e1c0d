"""Named price levels: pivots, swings, retracements, round numbers and the volume profile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from math import floor, log10

from agentic_trading.desk.market.bar import ClosedBar, Timeframe
from agentic_trading.desk.market.frame import Frame
from agentic_trading.desk.market.indicators.structure import Swing
from agentic_trading.desk.market.indicators.volume import Profile
from agentic_trading.desk.prompts import stamp

RETRACEMENTS = (0.382, 0.5, 0.618)
"""The fractions of a leg that are levels: two ratios of Fibonacci numbers, and one half."""

SWINGS_SHOWN = 3
_WEEK = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Pivots:
    """The classic pivot and three levels on either side, in units of price."""

    p: float
    r1: float
    r2: float
    r3: float
    s1: float
    s2: float
    s3: float

    @property
    def prices(self) -> dict[str, float]:
        above, below = (
            {"r1": self.r1, "r2": self.r2, "r3": self.r3},
            {"s1": self.s1, "s2": self.s2, "s3": self.s3},
        )
        return {"p": self.p, **above, **below}


@dataclass(frozen=True, slots=True)
class Level:
    """A price with its name, such as `pivot_r1` or `swing_low_4h_2023-03-24T12:00:00Z`."""

    name: str
    price: float


@dataclass(frozen=True, slots=True)
class Period:
    """High, low and close of a finished day or week. `parts` of the `expected` bars or days are known."""

    opened: datetime
    high: float
    low: float
    close: float
    parts: int
    expected: int

    @property
    def prices(self) -> dict[str, float]:
        return {"high": self.high, "low": self.low, "close": self.close}


@dataclass(frozen=True, slots=True)
class Leg:
    """The move between the last swing high and the last swing low, in order of time."""

    start: Swing
    end: Swing

    @property
    def retracements(self) -> dict[str, float]:
        """The prices at which 38.2, 50 and 61.8 percent of the leg are retraced."""
        prices = retracements(self.start.price, self.end.price)
        return {f"{100 * share:.1f}": price for share, price in zip(RETRACEMENTS, prices, strict=True)}


@dataclass(frozen=True)
class PriceLevels:
    """All price levels as of one moment. Levels that cannot be known yet are None or left out.

    `swings` are the last three of each side, on the decision timeframe and on longer timeframes.
    """

    round_below: float
    round_above: float
    prior_day: Period | None
    prior_week: Period | None
    pivots: Pivots | None
    leg: Leg | None
    profile: Profile | None
    swings: tuple[tuple[Timeframe, Swing], ...]

    @cached_property
    def named(self) -> tuple[Level, ...]:
        """All levels in a fixed order."""
        groups: dict[str, Mapping[str, float]] = {
            "round": {"below": self.round_below, "above": self.round_above},
            "prior_day": self.prior_day.prices if self.prior_day else {},
            "prior_week": self.prior_week.prices if self.prior_week else {},
            "pivot": self.pivots.prices if self.pivots else {},
            "fib": self.leg.retracements if self.leg else {},
            "profile": self.profile.prices if self.profile else {},
        }
        computed = [
            Level(f"{group}_{name}", price)
            for group, prices in groups.items()
            for name, price in prices.items()
        ]
        swings = [
            Level(f"swing_{swing.kind}_{timeframe}_{stamp(swing.at)}", swing.price)
            for timeframe, swing in self.swings
        ]
        return (*computed, *swings)


def price_levels(
    frames: Mapping[Timeframe, Frame],
    days: Sequence[ClosedBar],
    profile: Profile | None,
    *,
    price: float,
    decision: Timeframe,
    as_of: datetime,
) -> PriceLevels:
    """Return the levels around `price`. `days` are the closed days, oldest first."""
    below, above = round_numbers(price)
    prior_day = _period_of(days[-1]) if days else None
    return PriceLevels(
        round_below=below,
        round_above=above,
        prior_day=prior_day,
        prior_week=_prior_week(days, as_of),
        pivots=classic_pivots(prior_day.high, prior_day.low, prior_day.close) if prior_day else None,
        leg=_last_leg(frames.get(decision)),
        profile=profile,
        swings=tuple(
            (timeframe, swing)
            for timeframe, frame in frames.items()
            if timeframe.seconds >= decision.seconds
            for swing in (*frame.swing_highs[-SWINGS_SHOWN:], *frame.swing_lows[-SWINGS_SHOWN:])
        ),
    )


def classic_pivots(high: float, low: float, close: float) -> Pivots:
    """Return the floor traders' pivots of a finished period.

    - p = (high + low + close) / 3
    - r1 = 2p - low, r2 = p + (high - low), r3 = high + 2(p - low)
    - s1 = 2p - high, s2 = p - (high - low), s3 = low - 2(high - p)

    Source: John L. Person, A Complete Guide to Technical Trading Tactics, 2004.
    """
    p = (high + low + close) / 3
    return Pivots(
        p=p,
        r1=2 * p - low,
        r2=p + (high - low),
        r3=high + 2 * (p - low),
        s1=2 * p - high,
        s2=p - (high - low),
        s3=low - 2 * (high - p),
    )


def retracements(start: float, end: float) -> tuple[float, ...]:
    """Return the price after a retracement from `end` towards `start`, for each of `RETRACEMENTS`."""
    return tuple(end - share * (end - start) for share in RETRACEMENTS)


def round_numbers(price: float) -> tuple[float, float]:
    """Return the round prices at or below `price` and above it: multiples of a tenth of its power of ten.

    For 27,953 these are 27,000 and 28,000. For 1,780 they are 1,700 and 1,800.
    """
    step = 10.0 ** (floor(log10(price)) - 1)
    below = floor(price / step)
    return below * step, (below + 1) * step


def _period_of(day: ClosedBar) -> Period:
    bar = day.bar
    return Period(
        opened=bar.open_time,
        high=float(bar.high),
        low=float(bar.low),
        close=float(bar.close),
        parts=day.parts,
        expected=day.expected,
    )


def _prior_week(days: Sequence[ClosedBar], as_of: datetime) -> Period | None:
    """Return the last finished week, Monday to Sunday in UTC, from the known days of that week."""
    today = Timeframe.D1.start_of(as_of)
    start = today - timedelta(days=today.weekday()) - _WEEK
    bars = [day.bar for day in days if start <= day.bar.open_time < start + _WEEK]
    if not bars:
        return None
    return Period(
        opened=start,
        high=float(max(bar.high for bar in bars)),
        low=float(min(bar.low for bar in bars)),
        close=float(bars[-1].close),
        parts=len(bars),
        expected=7,
    )


def _last_leg(frame: Frame | None) -> Leg | None:
    if frame is None or not frame.swing_highs or not frame.swing_lows:
        return None
    high, low = frame.swing_highs[-1], frame.swing_lows[-1]
    if high.at == low.at:
        return None
    return Leg(low, high) if low.at < high.at else Leg(high, low)
