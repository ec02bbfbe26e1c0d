"""Layer 4: what the oscillators of each timeframe say."""

from collections.abc import Mapping
from typing import Any

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.frame import Frame
from agentic_trading.desk.market.layers.sheet import Sheet
from agentic_trading.desk.market.rounding import price, ratio


def indicators_layer(frames: Mapping[Timeframe, Frame]) -> dict[str, Any]:
    """Return RSI, MACD, ADX with its sides and the place in the Bollinger bands, for each timeframe.

    MACD is in units of price; `macd_histogram_change` is what the histogram gained since the last bar.
    """
    sheet = Sheet()
    present = sheet.frames(frames)
    sheet.not_available["market_breadth"] = "no source"
    return {
        "timeframes": {frame.timeframe.value: _one(sheet, frame) for frame in present},
        "not_available": sheet.not_available,
    }


def _one(sheet: Sheet, frame: Frame) -> dict[str, Any]:
    momentum = frame.momentum
    return sheet.keep(
        frame,
        {
            "rsi_14": ratio(momentum.rsi_14),
            "macd": price(momentum.macd),
            "macd_signal": price(momentum.macd_signal),
            "macd_histogram": price(momentum.macd_histogram),
            "macd_histogram_change": price(momentum.macd_histogram_change),
            "adx_14": ratio(momentum.adx_14),
            "plus_di_14": ratio(momentum.plus_di_14),
            "minus_di_14": ratio(momentum.minus_di_14),
            "percent_b": ratio(momentum.percent_b),
            "band_width_pct": ratio(momentum.band_width_pct),
        },
    )
