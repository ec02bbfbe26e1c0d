"""Stochastic, TRIX, volume's direction and divergences, computed without the package's help."""

import numpy as np
import talib

from tests.golden.market.columns import NAN, at, rolling


def flows(c):
    hlc = (c.high, c.low, c.close)
    top, bottom = rolling(c.high, 14, np.max), rolling(c.low, 14, np.min)
    fast = 100 * (c.close - bottom) / np.where(top > bottom, top - bottom, NAN)
    slow = rolling(fast, 3, np.mean)
    steps = np.concatenate([[NAN], np.sign(np.diff(c.close))])
    typical = (c.high + c.low + c.close) / 3
    vwap = rolling(typical * c.volume, 20, np.sum) / rolling(c.volume, 20, np.sum)
    known = np.where(np.isnan(steps), NAN, c.volume)
    return {
        "stochastic_k": at(slow),
        "stochastic_d": at(rolling(slow, 3, np.mean)),
        "trix_15": at(talib.TRIX(c.close, 15)),
        "obv_slope": at(rolling(steps * c.volume, 20, np.sum) / rolling(known, 20, np.sum)),
        "mfi_14": at(talib.MFI(*hlc, c.volume, 14)) if len(c.close) > 14 else NAN,
        "close_vs_vwap_20_atr": (at(c.close) - at(vwap)) / at(c.atr),
    }


def divergences(c, oscillators):
    """Hold the last two turning points of either side against the oscillators at their bars."""
    places = {bar["closed"]: number for number, bar in enumerate(c.bars)}
    found = []
    for name, swings, sign in (("bearish", c.highs, 1), ("bullish", c.lows, -1)):
        if len(swings) < 2:
            continue
        first, second = (places[swing["closed"]] for swing in swings[-2:])
        if sign * (swings[-1]["price"] - swings[-2]["price"]) > 0:
            found += [
                f"{name}_{oscillator}"
                for oscillator, values in oscillators.items()
                if sign * (values[second] - values[first]) < 0
            ]
    return found
