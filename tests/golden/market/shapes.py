"""Patterns, behaviour, the reference market and a record of forecasts, computed without the package's help."""

import numpy as np
import talib

from tests.golden.market.columns import NAN, at, column, rolling

MIRROR = {"up": "down", "down": "up"}


def names_of_last(c):
    """Name the last candle by the textbook rules, on whole columns."""
    o, h, low, close = (values[-2:] for values in (c.open, c.high, c.low, c.close))
    span, body = h - low, np.abs(close - o)
    top, bottom = np.maximum(o, close), np.minimum(o, close)
    if span[-1] <= 0:
        return []
    turn = np.sign(close - o)
    two = len(o) == 2
    covers = two and bottom[1] <= bottom[0] and top[1] >= top[0] and body[1] > body[0] and turn[0] == -turn[1]
    small = 0.1 * span[-1] < body[-1] <= span[-1] / 3
    above, below = h[-1] - top[-1], bottom[-1] - low[-1]
    rules = {
        "bullish_engulfing": covers and turn[1] > 0,
        "bearish_engulfing": covers and turn[1] < 0,
        "hammer": small and below >= 2 * body[-1] and above <= 0.1 * span[-1],
        "shooting_star": small and above >= 2 * body[-1] and below <= 0.1 * span[-1],
        "doji": body[-1] <= 0.1 * span[-1],
        "inside": two and h[1] <= h[0] and low[1] >= low[0] and span[1] < span[0],
        "outside": two and h[1] > h[0] and low[1] < low[0],
    }
    return [name for name, holds in rules.items() if holds]


def structure(c):
    """Walk over the bars once for each side, then put the two stories together."""
    numbers = {bar["closed"]: place for place, bar in enumerate(c.bars)}
    events, sweeps = [], []
    for way, swings, reached, sign in (("up", c.highs, c.high, 1), ("down", c.lows, c.low, -1)):
        done = set()
        for t in range(len(c.bars)):
            known = [swing for swing in swings if numbers[swing["closed"]] + 3 <= t]
            if not known or known[-1]["closed"] in done:
                continue
            level = known[-1]["price"]
            if sign * (c.close[t] - level) > 0:
                done.add(known[-1]["closed"])
                events.append((t, way, level))
            elif sign * (reached[t] - level) > 0:
                sweeps.append((t, MIRROR[way], level))
    return sorted(events), sorted(sweeps, key=lambda sweep: sweep[0])


def block(c, way, started):
    """Return the zone of the last bar against `way` in the 20 before `started`, unless it was closed through."""
    sign = 1 if way == "up" else -1
    for t in range(started - 1, max(started - 21, -1), -1):
        if sign * (c.close[t] - c.open[t]) < 0:
            later = c.close[started + 1 :]
            lost = (later < c.low[t]).any() if way == "up" else (later > c.high[t]).any()
            return None if lost else (way, c.low[t], c.high[t], t)
    return None


def last_block(c, events, way):
    """Return the block of the latest break that had one: a break without one leaves the old block in force."""
    for started in [t for t, broken, _ in reversed(events) if broken == way]:
        sign = 1 if way == "up" else -1
        before = range(max(started - 20, 0), started)
        if any(sign * (c.close[t] - c.open[t]) < 0 for t in before):
            return block(c, way, started)
    return None


def gaps(c):
    found = []
    for t in range(2, len(c.bars)):
        if c.low[t] > c.high[t - 2] and not (c.low[t + 1 :] <= c.high[t - 2]).any():
            found.append(("up", c.high[t - 2], c.low[t], t))
        elif c.high[t] < c.low[t - 2] and not (c.high[t + 1 :] >= c.low[t - 2]).any():
            found.append(("down", c.high[t], c.low[t - 2], t))
    return found[-3:]


def zone(c, found):
    way, low, high, t = found
    near = np.clip(at(c.close), low, high)
    content = {"way": way, "low": low, "high": high, "bars_ago": len(c.bars) - 1 - t}
    return content if np.isnan(at(c.atr)) else {**content, "distance_atr": (near - at(c.close)) / at(c.atr)}


def double(same, opposite, close, atr, sign):
    if np.isnan(atr) or len(same) < 2:
        return None
    first, second = same[-2:]
    between = [swing["price"] for swing in opposite if first["closed"] < swing["closed"] < second["closed"]]
    if not between or abs(first["price"] - second["price"]) > atr / 2:
        return None
    price = sign * min(sign * first["price"], sign * second["price"])
    neckline = sign * max(sign * each for each in between)
    if sign * close < sign * price:
        return None
    return {"price": price, "neckline": neckline, "confirmed": bool(sign * close > sign * neckline)}


def patterns(c):
    span, atr, last = c.high - c.low, at(c.atr), len(c.bars) - 1
    upper, _, lower = talib.BBANDS(c.close, 20, 2.0, 2.0)
    middle = at(talib.EMA(c.close, 20))
    events, sweeps = structure(c)
    content = {
        "candles": names_of_last(c),
        "narrow_7": bool(span[-1] <= span[-7:].min()) if len(span) >= 7 else None,
        "wide_range": None if np.isnan(atr) else bool(span[-1] >= 1.8 * atr),
        "squeeze": None
        if np.isnan(middle) or np.isnan(atr)
        else bool(at(upper) < middle + 1.5 * atr and at(lower) > middle - 1.5 * atr),
        "double_top": double(c.highs, c.lows, at(c.close), atr, -1),
        "double_bottom": double(c.lows, c.highs, at(c.close), atr, 1),
        "order_blocks": [
            zone(c, found) for way in ("up", "down") if (found := last_block(c, events, way)) is not None
        ],
        "gaps": [zone(c, found) for found in gaps(c)],
    }
    if events:
        t, way, level = events[-1]
        turned = len(events) > 1 and events[-2][1] != way
        kind = "choch" if turned else "bos"
        content["break"] = {"kind": kind, "way": way, "price": level, "bars_ago": last - t}
    if sweeps:
        t, way, level = sweeps[-1]
        content["sweep"] = {"way": way, "price": level, "bars_ago": last - t}
    return content


def streak(close):
    steps = np.sign(np.diff(close))[::-1]
    if not len(steps):
        return None
    turn = np.flatnonzero(steps != steps[0])
    return int(steps[0]) * int(turn[0] if len(turn) else len(steps))


def z_score(values):
    part = values[-20:]
    return float((part[-1] - part.mean()) / part.std(ddof=1)) if len(part) == 20 else NAN


def sentiment(c):
    takers, trades = column(c.bars, "taker"), column(c.bars, "trades")
    return {
        "taker_buy_pct": float(100 * takers[-1] / c.volume[-1]) if c.volume[-1] else NAN,
        "taker_buy_20_pct": at(100 * rolling(takers, 20, np.sum) / rolling(c.volume, 20, np.sum)),
        "trades": int(trades[-1]),
        "trades_z": z_score(trades),
        "volume_z": z_score(c.volume),
        "streak": streak(c.close),
        "gap_atr": (c.open[-1] - c.close[-2]) / at(c.atr) if len(c.close) > 1 else NAN,
    }


def intermarket(own, other, symbol, timeframe):
    prices = {bar["closed"]: bar["close"] for bar in other}
    both = np.array([(bar["close"], prices[bar["closed"]]) for bar in own if bar["closed"] in prices])[-49:]
    absent = {"macro_calendar": "no source"}
    if len(both) < 49:
        return {"not_available": ["macro_calendar", "second_market"]}
    mine, theirs = np.diff(np.log(both), axis=0).T
    gain = 100 * (both[-1] / both[-25] - 1)
    ratio = both[:, 0] / both[:, 1]
    strong, growing = ratio[-1] >= ratio[-24:].mean(), ratio[-1] >= ratio[-7]
    names = {(True, True): "leading", (True, False): "weakening", (False, True): "improving"}
    return {
        "beside": symbol,
        "timeframe": timeframe,
        "correlation": np.corrcoef(mine, theirs)[0, 1],
        "beta": np.polyfit(theirs, mine, 1)[0],
        "other_leads": np.corrcoef(mine[1:], theirs[:-1])[0, 1],
        "own_leads": np.corrcoef(mine[:-1], theirs[1:])[0, 1],
        "own_return_pct": gain[0],
        "other_return_pct": gain[1],
        "relative_strength_pct": gain[0] - gain[1],
        "quadrant": names.get((bool(strong), bool(growing)), "lagging"),
        "not_available": sorted(absent),
    }


def calls(hours):
    """Call every third hour: up if the close is above that of six hours before, else down."""
    close = column(hours, "close")
    return [(t, 1 if close[t] > close[t - 6] else -1) for t in range(6, len(hours), 3)]


def system(hours):
    """Return the record of `calls` as known at the last hour: outcomes four hours later or at the next close."""
    gains = []
    for t, sign in calls(hours):
        due = [
            k
            for k in range(len(hours))
            if hours[k]["closed"] >= hours[t]["closed"] + 4 * (hours[1]["closed"] - hours[0]["closed"])
        ]
        if due:
            gains.append(100 * sign * (hours[due[0]]["close"] / hours[t]["close"] - 1))
    if len(gains) < 10:
        return {"not_available": {"record": f"not enough decisions ({len(gains)} of 10)"}}
    gains = np.array(gains[-100:])
    equity = np.concatenate([[0], np.cumsum(gains)])
    fall = (np.maximum.accumulate(equity) - equity).max()
    hits = gains > 0
    n, up = len(hits), hits.sum()
    expected = 2 * up * (n - up) / n + 1
    runs = 1 + (hits[1:] != hits[:-1]).sum()
    return {
        "decisions": n,
        "horizon": "4 bars of 1h",
        "hit_rate_pct": 100 * hits.mean(),
        "profit_factor": gains[hits].sum() / -gains[gains < 0].sum(),
        "sharpe": gains.mean() / gains.std(ddof=1),
        "sortino": gains.mean() / np.sqrt((np.minimum(gains, 0) ** 2).mean()),
        "calmar": gains.sum() / fall,
        "max_drawdown_pct": fall,
        "runs_z": (runs - expected) / np.sqrt((expected - 1) * (expected - 2) / (n - 1)),
        "last_pct": list(gains[-5:]),
    }
