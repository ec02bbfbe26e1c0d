"""Layer 7: how much each timeframe swings, and against what is usual."""

from collections.abc import Mapping
from math import exp
from typing import Any

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.frame import Frame
from agentic_trading.desk.market.gauges.volatility import annual_pct
from agentic_trading.desk.market.layers.features import LayerFeatures
from agentic_trading.desk.market.layers.missing_features import UNSOURCED
from agentic_trading.desk.market.rounding import price, ratio


def volatility_layer(frames: Mapping[Timeframe, Frame]) -> dict[str, Any]:
    """Return ATR, realised volatility, their ranks and the regime of each timeframe.

    Realised volatility is in percent a year of 365 days. `next_bar_low` and `next_bar_high` lie one
    standard deviation of the last 20 log returns below and above the close.
    """
    sheet = LayerFeatures()
    present = sheet.frames(frames)
    sheet.not_available |= UNSOURCED["volatility"]
    return {
        "timeframes": {frame.timeframe.value: _one(sheet, frame) for frame in present},
        "not_available": sheet.not_available,
    }


def _one(sheet: LayerFeatures, frame: Frame) -> dict[str, Any]:
    reading, bars_per_year = frame.volatility, frame.timeframe.bars_per_year
    swing = reading.realised_20
    return sheet.keep(
        frame,
        {
            "atr_14": price(reading.atr_14),
            "atr_pct": ratio(reading.atr_pct),
            "atr_percentile": ratio(reading.atr_percentile),
            "realised_20_annual_pct": ratio(annual_pct(reading.realised_20, bars_per_year)),
            "realised_96_annual_pct": ratio(annual_pct(reading.realised_96, bars_per_year)),
            "realised_percentile": ratio(reading.realised_percentile),
            "vol_of_vol": ratio(reading.vol_of_vol),
            "regime": reading.regime,
            "next_bar_low": None if swing is None else price(frame.close * exp(-swing)),
            "next_bar_high": None if swing is None else price(frame.close * exp(swing)),
        },
    )
