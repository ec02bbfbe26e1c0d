"""Recompute the content of the layers at three moments, from the data file alone, and write it down.

Run by hand: `python -m tests.golden.market.make_golden`. It shares no code with the package: it reads the CSV
itself, selects bars by their close time, works on whole columns with numpy and TA-Lib, and rounds nothing.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import talib

from tests.golden.market.columns import NAN, Columns, at, candles, column, rank, read_rows, rolling, text
from tests.golden.market.flows import divergences, flows
from tests.golden.market.shapes import intermarket, patterns, sentiment, system

HERE = Path(__file__).parent
MOMENTS = ("2023-03-21T10:00:00Z", "2023-03-24T14:05:00Z", "2023-03-28T18:35:00Z")
MINUTES = {"5m": 5, "15m": 15, "1h": 60, "4h": 240, "1d": 1440}
DECISION = "1h"
NO_MOOD = ["vix", "put_call_ratio", "commitment_of_traders", "funding", "news"]
OPTIONAL = {"double_top", "double_bottom"}


def structure_of(highs, lows):
    if not highs or not lows or highs[-1]["label"] is None or lows[-1]["label"] is None:
        return None
    both = highs[-1]["label"] + lows[-1]["label"]
    return {"HHHL": "up", "LHLL": "down"}.get(both, "mixed")


def direction_of(close, ema, slope, sma, structure):
    if np.isnan(ema) or np.isnan(slope):
        return None
    votes = np.sign(close - ema) + np.sign(slope) + (0 if np.isnan(sma) else np.sign(close - sma))
    votes += {"up": 1, "down": -1}.get(structure, 0)
    return "up" if votes >= 2 else "down" if votes <= -2 else "sideways"


def trend(c):
    averages = {
        "ema_21": talib.EMA(c.close, 21),
        "sma_50": talib.SMA(c.close, 50),
        "sma_200": talib.SMA(c.close, 200),
    }
    span = rolling(c.high, 20, np.max) - rolling(c.low, 20, np.min)
    width = 100 * span / c.close
    volume = c.volume[-20:]
    signs = np.sign(c.close - c.open)[-20:]
    structure = structure_of(c.highs, c.lows)
    slopes = {name: (at(values) - at(values, 5)) / 5 for name, values in averages.items()}
    content = {
        "direction": direction_of(
            at(c.close), at(averages["ema_21"]), slopes["ema_21"], at(averages["sma_50"]), structure
        ),
        "structure": structure,
        "range_width_pct": at(width),
        "range_width_percentile": rank(width),
        "volume_skew": float((signs * volume).sum() / volume.sum()) if len(c.close) >= 20 else NAN,
    }
    for name, values in averages.items():
        content[name] = at(values)
        content[f"close_vs_{name}_atr"] = (at(c.close) - at(values)) / at(c.atr)
        content[f"{name}_slope_atr"] = slopes[name] / at(c.atr)
    return content


def indicators(c):
    slow = talib.EMA(c.close, 26)
    fast = np.full(len(c.close), NAN)
    if len(c.close) > 14:
        fast[14:] = talib.EMA(c.close[14:], 12)
    macd = fast - slow
    known = macd[~np.isnan(macd)]
    signal = talib.EMA(known, 9) if len(known) else known
    histogram = known - signal
    upper, middle, lower = talib.BBANDS(c.close, 20, 2.0, 2.0)
    hlc = (c.high, c.low, c.close)
    return {
        "rsi_14": at(talib.RSI(c.close, 14)),
        "macd": at(known),
        "macd_signal": at(signal),
        "macd_histogram": at(histogram),
        "macd_histogram_change": at(histogram) - at(histogram, 1),
        "adx_14": at(talib.ADX(*hlc, 14)),
        "plus_di_14": at(talib.PLUS_DI(*hlc, 14)),
        "minus_di_14": at(talib.MINUS_DI(*hlc, 14)),
        "percent_b": (at(c.close) - at(lower)) / (at(upper) - at(lower)),
        "band_width_pct": 100 * (at(upper) - at(lower)) / at(middle),
        **flows(c),
        "divergences": divergences(
            c, {"rsi": talib.RSI(c.close, 14), "macd_histogram": padded(histogram, c)}
        ),
    }


def padded(values, c):
    return np.concatenate([np.full(len(c.close) - len(values), NAN), values])


def volatility(c, minutes):
    year = np.sqrt(365 * 1440 / minutes)
    long = rolling(c.returns, 96, lambda part: part.std(ddof=1))
    latest = c.realised[~np.isnan(c.realised)][-20:]
    place = rank(c.realised)
    names = ("quiet", "normal", "elevated", "extreme")
    regime = None if np.isnan(place) else names[(place >= 20) + (place > 80) + (place > 95)]
    return {
        "atr_14": at(c.atr),
        "atr_pct": 100 * at(c.atr) / at(c.close),
        "atr_percentile": rank(100 * c.atr / c.close),
        "realised_20_annual_pct": 100 * at(c.realised) * year,
        "realised_96_annual_pct": 100 * at(long) * year,
        "realised_percentile": place,
        "vol_of_vol": float(latest.std(ddof=1) / latest.mean()) if len(latest) == 20 else NAN,
        "regime": regime,
        "next_bar_low": at(c.close) * np.exp(-at(c.realised)),
        "next_bar_high": at(c.close) * np.exp(at(c.realised)),
    }


def profile(bars):
    """Return volume at price of the last 288 bars in 50 bins, and its 70 percent area."""
    bars = bars[-288:]
    if len(bars) < 288:
        return None
    high, low, volume = column(bars, "high"), column(bars, "low"), column(bars, "volume")
    edges = low.min() + (high.max() - low.min()) / 50 * np.arange(51)
    held = np.zeros(50)
    for top, bottom, traded in zip(high, low, volume, strict=True):
        if top > bottom:
            inside = np.minimum(top, edges[1:]) - np.maximum(bottom, edges[:-1])
            held += traded * np.clip(inside, 0, None) / (top - bottom)
        else:
            held[min(np.searchsorted(edges, top, side="right") - 1, 49)] += traded
    first = last = int(held.argmax())
    while held[first : last + 1].sum() < 0.7 * volume.sum():
        above = held[last + 1] if last < 49 else -1
        below = held[first - 1] if first > 0 else -1
        if above >= below:
            last += 1
        else:
            first -= 1
    peak = int(held.argmax())
    return {"poc": (edges[peak] + edges[peak + 1]) / 2, "vah": edges[last + 1], "val": edges[first]}


def pivots(day):
    high, low = day["high"], day["low"]
    p = (high + low + day["close"]) / 3
    return {
        "p": p, "r1": 2 * p - low, "r2": p + high - low, "r3": high + 2 * (p - low),
        "s1": 2 * p - high, "s2": p - high + low, "s3": low - 2 * (high - p),
    }  # fmt: skip


def prior_week(days, moment):
    monday = datetime(moment.year, moment.month, moment.day, tzinfo=UTC) - timedelta(moment.weekday())
    week = [day for day in days if monday - timedelta(7) <= day["opened"] < monday]
    if not week:
        return None
    return {
        "opened": text(monday - timedelta(7)),
        "high": column(week, "high").max(),
        "low": column(week, "low").min(),
        "close": week[-1]["close"],
        "parts": len(week),
        "expected": 7,
    }


def retracement(c):
    if not c.highs or not c.lows or c.highs[-1]["closed"] == c.lows[-1]["closed"]:
        return None
    start, end = sorted((c.highs[-1], c.lows[-1]), key=lambda swing: swing["closed"])
    leg = end["price"] - start["price"]
    shares = {name: end["price"] - float(name) / 100 * leg for name in ("38.2", "50.0", "61.8")}
    return {"from": start["price"], "to": end["price"], **shares}


def swing_rows(c, side):
    swings = c.highs if side == "high" else c.lows
    extremes = column(c.bars[-100:], side)
    rows = []
    for swing in swings[-3:]:
        row = {"price": swing["price"], "at": text(swing["closed"])}
        if swing["label"] is not None:
            row["label"] = swing["label"]
        if not np.isnan(at(c.atr)):
            row["touches"] = int((np.abs(extremes - swing["price"]) <= 0.25 * at(c.atr)).sum())
        rows.append(row)
    return rows


def levels(by_timeframe, moment):
    last = at(by_timeframe["5m"].close)
    days = by_timeframe["1d"].bars if "1d" in by_timeframe else []
    step = 10 ** (np.floor(np.log10(last)) - 1)
    day = days[-1] if days else None
    content = {
        "close": last,
        "decision_timeframe": DECISION,
        "swings": {
            name: {"highs": swing_rows(c, "high"), "lows": swing_rows(c, "low")}
            for name, c in by_timeframe.items()
        },
        "round": {"below": last // step * step, "above": (last // step + 1) * step},
        "prior_day": day and {
            "opened": text(day["opened"]), "high": day["high"], "low": day["low"], "close": day["close"],
            "parts": day["parts"], "expected": 288,
        },
        "prior_week": prior_week(days, moment),
        "pivots": day and pivots(day),
        "fib": retracement(by_timeframe[DECISION]),
        "volume_profile": profile(by_timeframe["5m"].bars),
    }  # fmt: skip
    content["nearest"] = nearest(named(content), last, at(by_timeframe[DECISION].atr))
    return content


def named(content):
    """Return (name, price) of every level; swings only from the decision timeframe up."""
    pairs = [(f"round_{name}", price) for name, price in content["round"].items()]
    for group in ("prior_day", "prior_week"):
        pairs += [
            (f"{group}_{part}", content[group][part]) for part in ("high", "low", "close") if content[group]
        ]
    for group, prefix in (("pivots", "pivot"), ("fib", "fib"), ("volume_profile", "profile")):
        pairs += [
            (f"{prefix}_{name}", price)
            for name, price in (content[group] or {}).items()
            if name not in {"from", "to"}
        ]
    for timeframe, sides in content["swings"].items():
        if MINUTES[timeframe] >= MINUTES[DECISION]:
            for side in ("high", "low"):
                pairs += [
                    (f"swing_{side}_{timeframe}_{row['at']}", row["price"]) for row in sides[f"{side}s"]
                ]
    return pairs


def nearest(pairs, last, atr):
    def rows(chosen):
        ordered = sorted(chosen, key=lambda pair: (abs(pair[1] - last), pair[0]))[:4]
        return [
            {"level": name, "price": price, "distance_atr": (price - last) / atr} for name, price in ordered
        ]

    return {
        "above": rows([pair for pair in pairs if pair[1] > last]),
        "below": rows([pair for pair in pairs if pair[1] <= last]),
    }


def risk(by_timeframe, pairs):
    last, c = at(by_timeframe["5m"].close), by_timeframe[DECISION]
    atr = at(c.atr)
    content = {"entry": last, "timeframe": DECISION, "atr": atr, "not_available": []}
    for side, sign, swings in (("long", 1, c.lows), ("short", -1, c.highs)):
        stops = [(f"atr_{multiple}", last - sign * multiple * atr) for multiple in (1.0, 1.5, 2.0, 3.0)]
        behind = [swing["price"] for swing in swings if sign * (last - swing["price"]) > 0]
        if behind:
            stops.append(("swing", behind[-1] - sign * atr / 4))
        else:
            content["not_available"].append(f"{side}.swing_stop")
        ahead = sorted((sign * (price - last), name, price) for name, price in pairs)
        ahead = [row for row in ahead if row[0] > 0][:4]
        content[side] = {
            "stops": [
                {"kind": kind, "price": price, "distance_pct": 100 * abs(price - last) / last}
                for kind, price in stops
            ],
            "targets": [
                {"level": name, "price": price, "rr": distance / (2 * atr)} for distance, name, price in ahead
            ],
        }
    return content


def missing(value):
    return value is None or (isinstance(value, float) and np.isnan(value))


def layer(measures, absent):
    """Return one layer over its timeframes; what is NaN or None is named, not given."""
    frames, names = {}, [name for name in MINUTES if name not in measures] + absent
    for timeframe, values in measures.items():
        frames[timeframe] = {name: value for name, value in values.items() if not missing(value)}
        names += [
            f"{timeframe}.{name}" for name, value in values.items() if missing(value) and name not in OPTIONAL
        ]
    return {"timeframes": frames, "not_available": sorted(names)}


def conflicts(directions):
    return [
        {
            "lower": low,
            "lower_direction": directions[low],
            "higher": high,
            "higher_direction": directions[high],
        }
        for number, low in enumerate(directions)
        for high in list(directions)[number + 1 :]
        if {directions[low], directions[high]} == {"up", "down"}
    ]


def trend_layer(by_timeframe):
    measures = {name: trend(c) for name, c in by_timeframe.items()}
    content = layer(measures, [])
    content["conflicts"] = conflicts({name: values["direction"] for name, values in measures.items()})
    for name, c in by_timeframe.items():
        last = c.bars[-1]
        content["timeframes"][name] |= {
            "close_time": text(last["closed"]),
            "close": last["close"],
            "bars": len(c.bars),
            "complete": last["parts"] == MINUTES[name] // 5,
            "swing_labels": {
                "highs": [swing["label"] for swing in c.highs[-3:] if swing["label"]],
                "lows": [swing["label"] for swing in c.lows[-3:] if swing["label"]],
            },
        }
    return content


def layers(rows, others, moment):
    """Return the content of the nine layers at `moment`, the ninth as if `shapes.calls` had been the agent's."""
    every = {name: candles(rows, minutes, moment) for name, minutes in MINUTES.items()}
    by_timeframe = {name: Columns(bars) for name, bars in every.items() if bars}
    prices = levels(by_timeframe, moment)
    risks = risk(by_timeframe, named(prices))
    absent = [name for name in MINUTES if name not in by_timeframe]
    return {
        "trend": trend_layer(by_timeframe),
        "levels": {
            **{name: value for name, value in prices.items() if value is not None},
            "not_available": sorted(absent + [name for name, value in prices.items() if value is None]),
        },
        "patterns": layer({name: patterns(c) for name, c in by_timeframe.items()}, ["chart_shapes"]),
        "indicators": layer({name: indicators(c) for name, c in by_timeframe.items()}, ["market_breadth"]),
        "sentiment": layer({name: sentiment(c) for name, c in by_timeframe.items()}, NO_MOOD),
        "risk": risks,
        "volatility": layer(
            {name: volatility(c, MINUTES[name]) for name, c in by_timeframe.items()}, ["implied_volatility"]
        ),
        "intermarket": intermarket(
            every[DECISION], candles(others, MINUTES[DECISION], moment), "ETHUSDT", DECISION
        ),
        "system": system(every[DECISION]),
    }


def golden():
    """Return file name → content for every moment."""
    rows, others = read_rows(), read_rows("ethusdt-5m")
    return {
        f"btcusdt-{moment[:16].replace(':', '')}.json": layers(rows, others, datetime.fromisoformat(moment))
        for moment in MOMENTS
    }


if __name__ == "__main__":
    for name, content in golden().items():
        (HERE / name).write_text(json.dumps(content, indent=1, default=float) + "\n", encoding="utf-8")
        print(f"wrote {name}")
