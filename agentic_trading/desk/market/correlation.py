"""The correlation and the relative strength of two markets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from math import fsum, log, sqrt

RETURNS = 48
STRENGTH_BARS = 24
MOMENTUM_BARS = 6
CLOSES_KEPT = 2 * RETURNS  # more than needed, because a gap in one market removes closes of both


class Quadrant(StrEnum):
    """Whether relative strength is above or below its mean, and whether it rises or falls."""

    LEADING = "leading"
    WEAKENING = "weakening"
    LAGGING = "lagging"
    IMPROVING = "improving"


@dataclass(frozen=True, slots=True)
class Close:
    """The close of a bar, with its time."""

    at: datetime
    price: float


@dataclass(frozen=True, slots=True)
class MarketCorrelation:
    """A comparison of the last 48 log returns of two markets, at common close times.

    Correlations and `beta` are None if a market does not move.

    Attributes:
        symbol: The symbol of the other market.
        correlation: The correlation of the returns, -1 to 1.
        beta: The percent that the own market moved per percent of the other market.
        other_leads: The correlation of own returns with the other market's returns one bar earlier.
        own_leads: The correlation of the other market's returns with own returns one bar earlier.
        own_return_pct: The gain of the own market over 24 bars, in percent.
        other_return_pct: The gain of the other market over 24 bars, in percent.
        relative_strength_pct: The difference of the two gains.
        quadrant: The ratio of the prices compared with its mean over 24 bars and with its value 6 bars
            earlier, after the idea of Julius de Kempenaer's relative rotation graphs.

    """

    symbol: str
    correlation: float | None
    beta: float | None
    other_leads: float | None
    own_leads: float | None
    own_return_pct: float
    other_return_pct: float
    relative_strength_pct: float
    quadrant: Quadrant


@dataclass(frozen=True, slots=True)
class ReferenceMarket:
    """A market to compare with: its closes on the decision timeframe, oldest first."""

    symbol: str
    closes: Sequence[Close]

    def until(self, as_of: datetime) -> "ReferenceMarket":
        """Return this market without the closes after `as_of`."""
        if not self.closes or self.closes[-1].at <= as_of:
            return self
        return ReferenceMarket(self.symbol, tuple(close for close in self.closes if close.at <= as_of))


def common_closes(own: Sequence[Close], other: ReferenceMarket) -> list[tuple[float, float]]:
    """Return the prices of both markets at their common close times, oldest first."""
    others: Mapping[datetime, float] = {close.at: close.price for close in other.closes}
    return [(close.price, others[close.at]) for close in own if close.at in others]


def market_correlation(own: Sequence[Close], other: ReferenceMarket) -> MarketCorrelation | None:
    """Compare two markets by their log returns. Returns None before 49 common closes."""
    prices = common_closes(own, other)[-(RETURNS + 1) :]
    if len(prices) <= RETURNS:
        return None
    mine = [log(b[0] / a[0]) for a, b in pairwise(prices)]
    theirs = [log(b[1] / a[1]) for a, b in pairwise(prices)]
    variance = covariance(theirs, theirs)
    then, now = prices[-1 - STRENGTH_BARS], prices[-1]
    own_gain, other_gain = 100.0 * (now[0] / then[0] - 1.0), 100.0 * (now[1] / then[1] - 1.0)
    return MarketCorrelation(
        symbol=other.symbol,
        correlation=correlation(mine, theirs),
        beta=covariance(mine, theirs) / variance if variance > 0.0 else None,
        other_leads=correlation(mine[1:], theirs[:-1]),
        own_leads=correlation(mine[:-1], theirs[1:]),
        own_return_pct=own_gain,
        other_return_pct=other_gain,
        relative_strength_pct=own_gain - other_gain,
        quadrant=_quadrant([mine_now / theirs_now for mine_now, theirs_now in prices]),
    )


def correlation_with(own: Sequence[Close], others: Sequence[tuple[ReferenceMarket, float]]) -> float | None:
    """Return the correlation of a market with a weighted sum of other markets, -1 to 1.

    It is computed from the last 48 log returns. Only bars with a close time in all markets count. Returns
    None before 49 such bars, and if one side does not move.
    """
    prices = [{close.at: close.price for close in market.closes} for market, _ in others]
    shared = [close for close in own if all(close.at in each for each in prices)][-(RETURNS + 1) :]
    if len(shared) <= RETURNS:
        return None
    mine = [log(b.price / a.price) for a, b in pairwise(shared)]
    weights = [weight for _, weight in others]
    theirs = [
        fsum(weight * log(each[b.at] / each[a.at]) for weight, each in zip(weights, prices, strict=True))
        for a, b in pairwise(shared)
    ]
    return correlation(mine, theirs)


def covariance(ones: Sequence[float], others: Sequence[float]) -> float:
    """Return the sample covariance of two sequences of equal length, with at least two values each."""
    one_mean, other_mean = fsum(ones) / len(ones), fsum(others) / len(others)
    products = ((one - one_mean) * (other - other_mean) for one, other in zip(ones, others, strict=True))
    return fsum(products) / (len(ones) - 1)


def correlation(ones: Sequence[float], others: Sequence[float]) -> float | None:
    """Return Pearson's correlation, -1 to 1, or None if one of the sequences is constant."""
    spread = sqrt(covariance(ones, ones)) * sqrt(covariance(others, others))
    # Limited to -1..1, because rounding would otherwise give values slightly outside.
    return max(-1.0, min(1.0, covariance(ones, others) / spread)) if spread > 0.0 else None


def _quadrant(ratios: Sequence[float]) -> Quadrant:
    strong = ratios[-1] >= fsum(ratios[-STRENGTH_BARS:]) / STRENGTH_BARS
    rising = ratios[-1] >= ratios[-1 - MOMENTUM_BARS]
    if strong:
        return Quadrant.LEADING if rising else Quadrant.WEAKENING
    return Quadrant.IMPROVING if rising else Quadrant.LAGGING
