"""Evidence of layers 6 and 9: the account and its risk, and earlier forecasts."""

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
    """An open position at its mark, in the quote currency.

    Attributes:
        value: The value, negative for a short.
        to_stop: The loss from the mark to the stops, 0 or more. None if part of the position has no stop.
        market: The closes of the symbol on the decision timeframe.

    """

    symbol: str
    value: Decimal
    to_stop: Decimal | None
    market: ReferenceMarket


@dataclass(frozen=True, slots=True)
class PortfolioContext:
    """The account at the close of a question, in the quote currency.

    Attributes:
        gross: The value of all positions and open entries, long and short added.
        risk_pct: The percentage of the equity that may be lost at a stop.
        largest: The maximum value of a position.

    """

    equity: Decimal
    gross: Decimal
    risk_pct: Decimal
    largest: Decimal
    holdings: tuple[Holding, ...] = ()

    def evidence(self, symbol: str, closes: Sequence[Close]) -> dict[str, Any]:
        """Return the figures of layer 6.

        Exposure and open risk are in percent of the equity. The correlation, from -1 to 1, is between the
        last 48 returns of `symbol` and those of all other positions together, weighted by value. It is
        negative if a long would hedge them. Unknown figures are named with their reason.
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
        """Return the position size for each stop, in percent of the equity.

        A position of this size loses `risk_pct` at its stop. Sizes are at most `largest`, and 0 without
        equity. `stops` have their `distance_pct` from the entry.
        """
        if self.equity <= 0:
            return [0.0] * len(stops)
        most, risk = self._pct(self.largest), float(self.risk_pct)
        return [min(most, 100.0 * risk / stop["distance_pct"]) for stop in stops]

    def _pct(self, value: Decimal) -> float:
        return float(100 * value / self.equity)


@dataclass(frozen=True, slots=True)
class DirectionForecast:
    """A direction that was forecast at the time `at` and the price `price`."""

    at: datetime
    direction: Direction
    price: float


@dataclass(frozen=True, slots=True)
class ForecastOutcome:
    """The move in the direction of a forecast, in percent, and when it became known."""

    forecast: DirectionForecast
    known_at: datetime
    gain_pct: float


class TrackRecord:
    """A record of forecasts, measured by the price a fixed number of bars later.

    Forecasts are measured whether they were traded or not. The outcome is the close of the first bar of the
    decision timeframe that ends at least 4 of its bars later. Costs are not included. Forecasts less than 4
    bars apart share a part of the move. Closes must come in order of time, and no close is used before its
    time. The last 100 outcomes are kept.
    """

    def __init__(self, timeframe: Timeframe) -> None:
        self._timeframe = timeframe
        self._open: deque[DirectionForecast] = deque()
        self._outcomes: deque[ForecastOutcome] = deque(maxlen=OUTCOMES_KEPT)

    @property
    def outcomes(self) -> tuple[ForecastOutcome, ...]:
        """The known outcomes, in the order of the forecasts."""
        return tuple(self._outcomes)

    def add_forecast(self, at: datetime, direction: Direction, price: float) -> None:
        """Add a forecast. A neutral forecast is ignored, because it has no outcome."""
        if direction is not Direction.NEUTRAL:
            self._open.append(DirectionForecast(at, direction, price))

    def see(self, at: datetime, price: float) -> None:
        """Add the close of a bar of the decision timeframe.

        It ends forecasts that are old enough.
        """
        while self._open and at >= self._open[0].at + HORIZON_BARS * self._timeframe.length:
            forecast = self._open.popleft()
            gain = 100.0 * forecast.direction.sign * (price / forecast.price - 1.0)
            self._outcomes.append(ForecastOutcome(forecast, at, gain))

    def evidence(self) -> dict[str, Any]:
        """Return the evidence of layer 9. Before ten outcomes, this is only their number."""
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
    """Return the figures of at least two gains in percent, oldest first.

    A figure that is not defined is None. `hit_rate_pct` counts gains above 0. `profit_factor` is the sum of
    gains over that of losses. `sharpe` and `sortino` are per forecast, not per year. `max_drawdown_pct` is
    the deepest fall of the running sum from its peak, the start included, and `calmar` is the sum over it.
    `runs_z` is the runs test of Abraham Wald and Jacob Wolfowitz (1940) over hits and misses: below 0 they
    come in streaks.
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
    """Return the deepest fall of the running sum from its peak, 0 or more."""
    at = peak = deepest = 0.0
    for gain in gains:
        at += gain
        peak = max(peak, at)
        deepest = max(deepest, peak - at)
    return deepest


def runs_z(hits: Sequence[bool]) -> float | None:
    """Return the number of runs as standard deviations from that of a random order.

    None if all hits are alike.
    """
    ones, count = sum(hits), len(hits)
    product = 2 * ones * (count - ones)
    if product in (0, count):
        return None
    runs = 1 + sum(one != other for one, other in pairwise(hits))
    expected = product / count + 1
    variance = product * (product - count) / (count**2 * (count - 1))
    return (runs - expected) / sqrt(variance)
