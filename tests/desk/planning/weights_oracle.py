"""What the templates promise, bar by bar and stock by stock in plain Python: it shares nothing with their code."""

from collections.abc import Callable, Sequence
from math import isnan, nan, sqrt
from statistics import fmean, pstdev
from typing import Any

Column = Sequence[float]
Row = list[float]
Weights = list[Row]


def oracle(
    params: dict[str, Any],
    close: Sequence[Column],
    volume: Sequence[Column],
    events: Sequence[Column],
    due: Sequence[bool],
) -> Weights:
    """Return the wanted weights of each bar; the panels are columns, one a stock."""
    return _ORACLES[params["strategy_type"]](params, close, volume, events, due)


def _window(column: Column, t: int, n: int) -> Column:
    return column[t - n + 1 : t + 1] if t + 1 >= n else ()


def _mean(column: Column, t: int, n: int) -> float:
    window = _window(column, t, n)
    return fmean(window) if window and not any(map(isnan, window)) else nan


def _deviation(column: Column, t: int, n: int) -> float:
    window = _window(column, t, n)
    return pstdev(window) if window and not any(map(isnan, window)) else nan


def _return(column: Column, t: int, n: int) -> float:
    return column[t] / column[t - n] - 1 if t >= n else nan


def _best(scores: dict[int, float], places: int) -> list[int]:
    return sorted(scores, key=lambda stock: (-scores[stock], stock))[: max(places, 0)]


def _momentum(
    params: dict[str, Any],
    close: Sequence[Column],
    volume: Sequence[Column],
    events: Sequence[Column],
    due: Sequence[bool],
) -> Weights:
    kind, within, places = params["catalyst_type"], 21 * params["catalyst_lookback"], params["n_stocks"]
    held: Row = [0.0] * len(close)
    rows = []
    for t in range(len(due)):
        held = [0.0 if isnan(column[t]) else weight for column, weight in zip(close, held, strict=True)]
        if due[t]:
            scores = {}
            for stock, column in enumerate(close):
                strength = _return(column, t, params["momentum_period"])
                days = range(max(0, t - within + 1), t + 1)
                happened = {
                    "none": True,
                    "volume": any(volume[stock][day] > 2 * _mean(volume[stock], day, 20) for day in days),
                    "revenue": any(events[stock][day] > 0 for day in days),
                }[kind]
                if strength > 0 and column[t] > _mean(column, t, params["ma_periods"]) and happened:
                    scores[stock] = strength
            chosen = _best(scores, places)
            held = [1 / places if stock in chosen else 0.0 for stock in range(len(close))]
        rows.append(held)
    return rows


def _mean_reversion(
    params: dict[str, Any], close: Sequence[Column], _volume: Any, _events: Any, due: Sequence[bool]
) -> Weights:
    lookback, trend, places = params["lookback"], params["trend_filter"], params["n_stocks"]
    since: dict[int, int] = {}
    rows = []
    for t in range(len(due)):
        scores = {}
        for stock, column in enumerate(close):
            deviation = _deviation(column, t, lookback)
            scores[stock] = (column[t] - _mean(column, t, lookback)) / deviation if deviation else nan
        before = dict(since)
        since = {
            stock: start
            for stock, start in since.items()
            if scores[stock] <= -params["exit_z"] and t - start < params["max_hold_days"]
        }
        if due[t]:
            fresh = {
                stock: -score
                for stock, score in scores.items()
                if score < -params["entry_z"]
                and stock not in before
                and (trend == 0 or close[stock][t] > _mean(close[stock], t, trend))
            }
            since |= dict.fromkeys(_best(fresh, places - len(since)), t)
        rows.append([1 / places if stock in since else 0.0 for stock in range(len(close))])
    return rows


def _volatility(
    params: dict[str, Any], close: Sequence[Column], _volume: Any, _events: Any, due: Sequence[bool]
) -> Weights:
    lookback, places = params["vol_lookback"], params["n_stocks"]
    returns = [[_return(column, t, 1) for t in range(len(due))] for column in close]
    held: Row = [0.0] * len(close)
    rows = []
    for t in range(len(due)):
        held = [0.0 if isnan(column[t]) else weight for column, weight in zip(close, held, strict=True)]
        if due[t] and t >= lookback:
            risk = {stock: _deviation(column, t, lookback) for stock, column in enumerate(returns)}
            calm = {
                stock: -value
                for stock, value in risk.items()
                if value > 0
                and (
                    params["mode"] != "breakout" or close[stock][t] >= max(_window(close[stock], t, lookback))
                )
            }
            chosen = _best(calm, places)
            whole = sum(1 / risk[stock] for stock in chosen)
            share = {
                stock: 1 / risk[stock] / whole if params["mode"] == "inverse_vol" else 1 / places
                for stock in chosen
            }
            capped = {stock: min(weight, params["max_weight"]) for stock, weight in share.items()}
            past = [
                sum(weight * returns[stock][day] for stock, weight in capped.items())
                for day in range(t - lookback + 1, t + 1)
            ]
            swing = pstdev(past) * sqrt(252)
            scale = min(1.0, params["target_vol"] / swing) if swing else 1.0
            held = [scale * capped.get(stock, 0.0) for stock in range(len(close))]
        rows.append(held)
    return rows


_ORACLES: dict[str, Callable[..., Weights]] = {
    "momentum": _momentum,
    "mean_reversion": _mean_reversion,
    "volatility": _volatility,
}
