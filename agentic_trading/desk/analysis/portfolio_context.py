"""What layers 6 and 9 rest on: the account with its open risk, and how earlier forecasts came out."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from math import fsum, sqrt
from typing import Any, Final

from agentic_trading.desk.analysis.judgement import Direction
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.correlation import RETURNS, Close, ReferenceMarket, correlation_with
from agentic_trading.desk.metrics import sharpe_ratio, sortino_ratio
from agentic_trading.desk.prompts import ratio

NO_PORTFOLIO: Final = "no account is handed over"

HORIZON_BARS: Final = 4
LEAST_OUTCOMES: Final = 10
OUTCOMES_KEPT: Final = 100
LAST_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Holding:
    """An open position, in the quote currency at its mark.

    `value` is negative for a short. `to_stop` is what is lost from the mark to its stop, 0 or more; None where a part
    of it has no stop. `market` holds the closes of its symbol on the decision timeframe.
    """

    symbol: str
    value: Decimal
    to_stop: Decimal | None
    market: ReferenceMarket


@dataclass(frozen=True, slots=True)
class PortfolioContext:
    """The account at the close of a question, in the quote currency.

    `risk_pct` of the equity may be lost at a stop, and a position may be worth `largest` at most. `gross` is what
    all positions and open entries are worth, long and short added.
    """

    equity: Decimal
    gross: Decimal
    risk_pct: Decimal
    largest: Decimal
    holdings: tuple[Holding, ...] = ()

    def evidence(self, symbol: str, closes: Sequence[Close]) -> dict[str, Any]:
        """Return the figures of layer 6: exposure and open risk in percent of the equity, correlation in -1..1.

        The correlation is that of the last 48 returns of `symbol` with those of all other positions together, each
        weighted by its value: negative where a long would hedge them. What is not known is named.
        """
        evidence: dict[str, Any] = {"risk_pct": float(self.risk_pct)}
        if self.equity <= 0:
            return {**evidence, "not_available": {"exposure": "no equity", "open_risk": "no equity"}}
        absent: dict[str, str] = {}
        evidence["exposure_pct"] = self._pct(self.gross)
        losses = [each.to_stop for each in self.holdings if each.to_stop is not None]
        if len(losses) == len(self.holdings):
            evidence["open_risk_pct"] = self._pct(sum(losses, Decimal(0)))
        else:
            absent["open_risk"] = "a position has no stop"
        others = [each for each in self.holdings if each.symbol != symbol]
        weighted = [(each.market, self._pct(each.value)) for each in others]
        together = correlation_with(closes, weighted) if others else None
        if together is not None:
            evidence["correlation"] = together
        else:
            few = f"needs {RETURNS} returns in common that move"
            absent["correlation"] = few if others else "nothing else is held"
        return {**evidence, **({"not_available": absent} if absent else {})}

    def sizes_pct(self, stops: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return for each stop how much may be held in percent of the equity, so that it loses `risk_pct` there.

        `stops` have their `distance_pct` from the entry. Bounded by `largest`; 0 where there is no equity.
        """
        if self.equity <= 0:
            return [0.0] * len(stops)
        most, risk = self._pct(self.largest), float(self.risk_pct)
        return [min(most, 100.0 * risk / stop["distance_pct"]) for stop in stops]

    def _pct(self, value: Decimal) -> float:
        return float(100 * value / self.equity)


@dataclass(frozen=True, slots=True)
class DirectionForecast:
    """A direction that was forecast at `at`, when the price was `price`."""

    at: datetime
    direction: Direction
    price: float


@dataclass(frozen=True, slots=True)
class ForecastOutcome:
    """The move in the direction of a forecast, in percent, known since `known_at`."""

    forecast: DirectionForecast
    known_at: datetime
    gain_pct: float


class TrackRecord:
    """Measure forecasts by the price a fixed number of bars later, whether they were traded or not.

    The outcome of a forecast is the close of the first bar of the decision timeframe that ends 4 bars of it later or
    more. Costs are not in it, and forecasts that lie closer than 4 bars share a part of the move. Closes come in
    order of time; none is looked at before its time. The last 100 outcomes are kept.
    """

    def __init__(self, timeframe: Timeframe) -> None:
        self._timeframe = timeframe
        self._open: deque[DirectionForecast] = deque()
        self._outcomes: deque[ForecastOutcome] = deque(maxlen=OUTCOMES_KEPT)

    @property
    def outcomes(self) -> tuple[ForecastOutcome, ...]:
        """What is known, in the order of the forecasts."""
        return tuple(self._outcomes)

    def add_forecast(self, at: datetime, direction: Direction, price: float) -> None:
        """Keep a forecast until its outcome is known; a neutral one has none."""
        if direction is not Direction.NEUTRAL:
            self._open.append(DirectionForecast(at, direction, price))

    def see(self, at: datetime, price: float) -> None:
        """Take the close of a bar of the decision timeframe: forecasts that are old enough end with it."""
        while self._open and at >= self._open[0].at + HORIZON_BARS * self._timeframe.length:
            forecast = self._open.popleft()
            gain = 100.0 * forecast.direction.sign * (price / forecast.price - 1.0)
            self._outcomes.append(ForecastOutcome(forecast, at, gain))

    def evidence(self) -> dict[str, Any]:
        """Return the evidence of the ninth layer; before ten outcomes, how many there are."""
        if len(self._outcomes) < LEAST_OUTCOMES:
            reason = f"not enough decisions ({len(self._outcomes)} of {LEAST_OUTCOMES})"
            return {"not_available": {"record": reason}}
        gains = [outcome.gain_pct for outcome in self._outcomes]
        figures = {name: ratio(value) for name, value in figures_of(gains).items()}
        absent = {
            name: "no loss, or no spread, to measure it by"
            for name, value in figures.items()
            if value is None
        }
        return {
            "decisions": len(gains),
            "horizon": f"{HORIZON_BARS} bars of {self._timeframe}",
            **{name: value for name, value in figures.items() if value is not None},
            "last_pct": [ratio(gain) for gain in gains[-LAST_SHOWN:]],
            **({"not_available": absent} if absent else {}),
        }


def figures_of(gains: Sequence[float]) -> dict[str, float | None]:
    """Return what at least two gains in percent come to, oldest first; None where a figure is not defined.

    `hit_rate_pct` counts gains above 0. `profit_factor` is the sum of gains over that of losses. `sharpe` and `sortino`
    are of a single forecast and not of a year. `max_drawdown_pct` is the deepest fall of the running sum from its peak,
    the start included; `calmar` is the sum over it. `runs_z` is the runs test of Abraham Wald and Jacob Wolfowitz (1940)
    over hits and misses: below 0 they come in streaks.
    """
    total, count = fsum(gains), len(gains)
    won, lost = fsum(gain for gain in gains if gain > 0), -fsum(gain for gain in gains if gain < 0)
    deepest = max_drawdown(gains)
    return {
        "hit_rate_pct": 100.0 * sum(gain > 0 for gain in gains) / count,
        "profit_factor": won / lost if lost else None,
        "sharpe": sharpe_ratio(gains),
        "sortino": sortino_ratio(gains),
        "calmar": total / deepest if deepest else None,
        "max_drawdown_pct": deepest,
        "runs_z": runs_z([gain > 0 for gain in gains]),
    }


def max_drawdown(gains: Sequence[float]) -> float:
    """Return the deepest fall of the running sum from its peak so far, 0 or more."""
    at = peak = deepest = 0.0
    for gain in gains:
        at += gain
        peak = max(peak, at)
        deepest = max(deepest, peak - at)
    return deepest


def runs_z(hits: Sequence[bool]) -> float | None:
    """Return how many standard deviations the number of runs is from that of a random order; None if all are alike."""
    ones, count = sum(hits), len(hits)
    product = 2 * ones * (count - ones)
    if product in (0, count):
        return None
    runs = 1 + sum(one != other for one, other in pairwise(hits))
    expected = product / count + 1
    variance = product * (product - count) / (count**2 * (count - 1))
    return (runs - expected) / sqrt(variance)
