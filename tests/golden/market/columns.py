"""The bars of the data file as columns, read without the package's help."""

import csv
import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import talib

DATA = Path(__file__).parents[3] / "agentic_trading" / "desk" / "market" / "data"
NUMBERS = ("open", "high", "low", "close", "volume", "trades", "taker_buy_volume")
NAN = float("nan")


def read_rows(name="btcusdt-5m"):
    """Return the open time and `NUMBERS` of every row."""
    with gzip.open(DATA / f"{name}.csv.gz", "rt", encoding="ascii") as file:
        return [
            (
                datetime.fromisoformat(row["open_time"]),
                *(float(row[name]) for name in NUMBERS),
            )
            for row in csv.DictReader(file)
        ]


def candles(rows, minutes, moment):
    """Return the columns of the bars whose window ends at or before `moment`."""
    midnight = datetime(2023, 1, 1, tzinfo=UTC)
    groups = {}
    for row in rows:
        groups.setdefault((row[0] - midnight) // timedelta(minutes=minutes), []).append(row)
    made = []
    for number, parts in sorted(groups.items()):
        opened = midnight + number * timedelta(minutes=minutes)
        if opened + timedelta(minutes=minutes) > moment:
            continue
        table = np.array([part[1:] for part in parts])
        made.append({
            "opened": opened,
            "closed": opened + timedelta(minutes=minutes),
            "open": table[0, 0],
            "high": table[:, 1].max(),
            "low": table[:, 2].min(),
            "close": table[-1, 3],
            "volume": table[:, 4].sum(),
            "trades": table[:, 5].sum(),
            "taker": table[:, 6].sum(),
            "parts": len(parts),
        })
    return made


def column(bars, name):
    return np.array([bar[name] for bar in bars], dtype=float)


def text(moment):
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def at(values, back=0):
    """Return the value `back` places before the end, or NaN."""
    return float(values[-1 - back]) if len(values) > back else NAN


def rank(values, window=100):
    known = values[~np.isnan(values)][-window:]
    if len(known) < window:
        return NAN
    return float(100 * ((known < known[-1]).mean() + (known == known[-1]).mean() / 2))


def rolling(values, window, function):
    out = np.full(len(values), NAN)
    for end in range(window, len(values) + 1):
        part = values[end - window : end]
        if not np.isnan(part).any():
            out[end - 1] = function(part)
    return out


def find_swings(bars, side, wing=3):
    """Return the turning points of one side with their labels, oldest first."""
    sign = 1 if side == "high" else -1
    values = sign * column(bars, side)
    found = []
    for i in range(wing, len(values) - wing):
        if values[i] > values[i - wing : i].max() and values[i] >= values[i + 1 : i + 1 + wing].max():
            price = bars[i][side]
            label = None
            if found:
                order = "E" if price == found[-1]["price"] else "H" if price > found[-1]["price"] else "L"
                label = order + ("H" if side == "high" else "L")
            found.append({"price": price, "closed": bars[i]["closed"], "label": label})
    return found[-8:]


class Columns:
    """All columns of one timeframe, and the ATR they are measured in."""

    def __init__(self, bars):
        self.bars = bars
        self.open, self.high, self.low, self.close, self.volume = (
            column(bars, name) for name in ("open", "high", "low", "close", "volume")
        )
        self.atr = talib.ATR(self.high, self.low, self.close, 14)
        self.returns = np.concatenate([[NAN], np.diff(np.log(self.close))])
        self.realised = rolling(self.returns, 20, lambda part: part.std(ddof=1))
        self.highs = find_swings(bars, "high")
        self.lows = find_swings(bars, "low")
