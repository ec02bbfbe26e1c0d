"""Prices that follow from earlier prices: pivots, retracements, round numbers."""

from dataclasses import dataclass
from math import floor, log10

RETRACEMENTS = (0.382, 0.5, 0.618)
"""The shares of a leg that are looked at: two ratios of Fibonacci numbers and the half."""


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


def classic_pivots(high: float, low: float, close: float) -> Pivots:
    """Return the floor traders' pivots of a finished period.

    p = (high + low + close) / 3; r1 = 2p - low, r2 = p + (high - low), r3 = high + 2(p - low);
    s1 = 2p - high, s2 = p - (high - low), s3 = low - 2(high - p). Source: John L. Person, A Complete Guide
    to Technical Trading Tactics, 2004.
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
    """Return how far price would come back from `end` after a leg from `start`, for each of `RETRACEMENTS`."""
    return tuple(end - share * (end - start) for share in RETRACEMENTS)


def round_numbers(price: float) -> tuple[float, float]:
    """Return the round prices at or below, and above, `price`: multiples of a tenth of its power of ten.

    27,953 lies between 27,000 and 28,000; 1,780 between 1,700 and 1,800.
    """
    step = 10.0 ** (floor(log10(price)) - 1)
    below = floor(price / step)
    return below * step, (below + 1) * step
