"""Performance figures, computed from an account's equity at each bar."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import e, fsum, sqrt
from statistics import NormalDist
from typing import Final

from pydantic import BaseModel

DAYS_PER_YEAR: Final = 252.0
"""Trading days per year on a stock exchange."""
_ROUNDING: Final = 1e-14
"""Returns with a smaller spread count as equal, because each is a quotient of two floats, less 1."""
_NORMAL: Final = NormalDist()
_EULER_MASCHERONI: Final = 0.5772156649015329


class Performance(BaseModel, frozen=True):
    """The figures of an equity curve, as fractions. None if a figure is not defined.

    Attributes:
        total_return: Last equity over first equity, less 1.
        cagr: The total return as a yearly rate.
        sharpe: The mean return of a bar over its sample deviation, times the root of the bars per year. The
            risk-free rate is 0 (William F. Sharpe, 1994).
        sortino: The mean return over the root mean square of the losses, times the same root (Frank A.
            Sortino and Lee N. Price, 1994).
        max_drawdown: The deepest fall from an earlier peak, 0 or below.
        turnover: How many times a year the equity was exchanged: half of the value bought and sold in a bar,
            over the equity before it.

    """

    bars: int
    total_return: float | None
    cagr: float | None
    sharpe: float | None
    sortino: float | None
    max_drawdown: float | None
    turnover: float | None


def performance(
    equity: Sequence[float], traded: Sequence[float], *, bars_per_year: float = DAYS_PER_YEAR
) -> Performance:
    """Return the figures of an account from the first equity to the last.

    An account whose equity was ever 0 or below has a drawdown, but no rates.

    Args:
        equity: The equity at the start and at the end of each bar: one value more than `traded`.
        traded: The value bought and sold in each bar.
        bars_per_year: The number of bars in a year.

    Raises:
        ValueError: If `equity` does not have one value more than `traded`. Not checked without bars, or if an
            equity is 0 or below.

    """
    bars = len(traded)
    peaks = list(accumulate(equity, max))
    fall = min((now / peak - 1 for now, peak in zip(equity, peaks, strict=True) if peak > 0), default=None)
    if not bars or min(equity) <= 0:
        return Performance(
            bars=bars,
            total_return=None,
            cagr=None,
            sharpe=None,
            sortino=None,
            max_drawdown=fall,
            turnover=None,
        )
    returns = returns_of(equity)
    exchanged = fsum(value / before for value, before in zip(traded, equity[:-1], strict=True)) / 2
    return Performance(
        bars=bars,
        total_return=equity[-1] / equity[0] - 1,
        cagr=_yearly(equity[-1] / equity[0], bars_per_year / bars),
        sharpe=sharpe_ratio(returns, bars_per_year=bars_per_year),
        sortino=sortino_ratio(returns, bars_per_year=bars_per_year),
        max_drawdown=fall,
        turnover=exchanged * bars_per_year / bars,
    )


def returns_of(equity: Sequence[float]) -> list[float]:
    """Return the return of each bar."""
    return [after / before - 1 for before, after in pairwise(equity)]


def sharpe_ratio(returns: Sequence[float], *, bars_per_year: float = 1.0) -> float | None:
    """Return the Sharpe ratio, by default of a single bar.

    None if the returns do not differ.
    """
    moments = _moments(returns)
    return None if moments is None else moments[0] / moments[1] * sqrt(bars_per_year)


def sortino_ratio(returns: Sequence[float], *, bars_per_year: float = 1.0) -> float | None:
    """Return the Sortino ratio, by default of a single bar. None without a loss."""
    count = len(returns)
    downside = sqrt(fsum(min(each, 0.0) ** 2 for each in returns) / count) if count else 0.0
    return None if downside < _ROUNDING else fsum(returns) / count / downside * sqrt(bars_per_year)


def deflated_sharpe(returns: Sequence[float], tried: Sequence[float]) -> float | None:
    """Return the probability that a strategy is better than the luckiest of all tries.

    From David H. Bailey and Marcos Lopez de Prado, "The Deflated Sharpe Ratio", Journal of Portfolio
    Management 40 (5), 2014. With V the variance of the N tried, c = 0.5772 and F the normal distribution, the
    best of N without skill is expected at L = sqrt(V) * ((1 - c) * F^-1(1 - 1/N) + c * F^-1(1 - 1/(N * e))).
    The result is F((SR - L) * sqrt(n - 1) / sqrt(1 - g3 * SR + (g4 - 1) / 4 * SR^2)), of n returns with
    skewness g3 and kurtosis g4, 3 for a normal distribution. With a single try L is 0.

    Args:
        returns: The returns of the chosen strategy.
        tried: The Sharpe ratios of a single bar of all tried strategies, the chosen one included. Strategies
            that trade alike count once.

    Returns:
        The probability, or None if the returns do not differ.

    """
    return _deflated(returns, _luck(tried))


def deflated_sharpe_of(returns: Sequence[float], trials: int) -> float | None:
    """Return the deflated Sharpe ratio of the best of `trials` whose own ratios are unknown.

    The ratios are assumed to differ as much as those of independent strategies without skill, with a
    deviation of 1 / sqrt(n - 1) for n returns.

    Args:
        returns: The returns of the chosen strategy.
        trials: The number of tried strategies, the chosen one included.

    Returns:
        The probability, or None if the returns do not differ.

    """
    return _deflated(returns, _luck_of(trials, 1 / sqrt(len(returns) - 1) if len(returns) > 1 else 0.0))


def _deflated(returns: Sequence[float], luck: float) -> float | None:
    moments = _moments(returns)
    if moments is None:
        return None
    mean, deviation = moments
    count = len(returns)
    spread = sqrt(fsum((each - mean) ** 2 for each in returns) / count)
    skewness, kurtosis = (
        fsum(((each - mean) / spread) ** power for each in returns) / count for power in (3, 4)
    )
    return _probability(mean / deviation, luck, count, skewness, kurtosis)


def _probability(sharpe: float, luck: float, count: int, skewness: float, kurtosis: float) -> float | None:
    variance = 1 - skewness * sharpe + (kurtosis - 1) / 4 * sharpe**2
    return _NORMAL.cdf((sharpe - luck) * sqrt((count - 1) / variance)) if variance > 0 else None


def _luck(tried: Sequence[float]) -> float:
    """Return the expected Sharpe ratio of the best of `tried` without skill."""
    count = len(tried)
    if count < 2:
        return 0.0
    mean = fsum(tried) / count
    return _luck_of(count, sqrt(fsum((each - mean) ** 2 for each in tried) / (count - 1)))


def _luck_of(count: int, deviation: float) -> float:
    if count < 2:
        return 0.0
    of_n, of_ne = (_NORMAL.inv_cdf(1 - 1 / size) for size in (count, count * e))
    return deviation * ((1 - _EULER_MASCHERONI) * of_n + _EULER_MASCHERONI * of_ne)


def _moments(returns: Sequence[float]) -> tuple[float, float] | None:
    """Return mean and sample deviation, or None if the returns do not differ."""
    count = len(returns)
    if count < 2:
        return None
    mean = fsum(returns) / count
    deviation = sqrt(fsum((each - mean) ** 2 for each in returns) / (count - 1))
    return None if deviation < _ROUNDING else (mean, deviation)


def _yearly(growth: float, spans_per_year: float) -> float | None:
    try:
        return float(growth**spans_per_year) - 1
    except OverflowError:  # the gain of a minute, compounded to a year, would exceed a float
        return None
