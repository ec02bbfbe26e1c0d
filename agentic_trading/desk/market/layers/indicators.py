"""Layer 4: what the oscillators of each timeframe say."""

from collections.abc import Mapping
from typing import Any

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.frame import Frame
from agentic_trading.desk.market.layers.features import LayerFeatures
from agentic_trading.desk.market.layers.missing_features import UNSOURCED
from agentic_trading.desk.market.rounding import price, ratio


def indicators_layer(frames: Mapping[Timeframe, Frame]) -> dict[str, Any]:
    """Return oscillators, the place in the Bollinger bands, volume's direction and divergences of each timeframe.

    MACD is in units of price; `macd_histogram_change` is what the histogram gained since the last bar, and
    `close_vs_vwap_20_atr` is in ATR of the same timeframe. A divergence names its way and its oscillator.
    """
    sheet = LayerFeatures()
    present = sheet.frames(frames)
    sheet.not_available |= UNSOURCED["indicators"]
    return {
        "timeframes": {frame.timeframe.value: _one(sheet, frame) for frame in present},
        "not_available": sheet.not_available,
    }


def _one(sheet: LayerFeatures, frame: Frame) -> dict[str, Any]:
    momentum = frame.momentum
    vwap = momentum.vwap_20
    told = sheet.keep(
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
            "stochastic_k": ratio(momentum.stochastic_k),
            "stochastic_d": ratio(momentum.stochastic_d),
            "trix_15": ratio(momentum.trix_15),
            "obv_slope": ratio(momentum.obv_slope),
            "mfi_14": ratio(momentum.mfi_14),
            "close_vs_vwap_20_atr": None if vwap is None else ratio(frame.in_atr(frame.close - vwap)),
        },
    )
    return {**told, "divergences": [f"{way}_{oscillator}" for way, oscillator in momentum.divergences]}
