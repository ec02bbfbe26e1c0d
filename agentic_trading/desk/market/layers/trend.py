"""Layer 1: which way each timeframe points, and where they disagree."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.frame import Frame, Trend
from agentic_trading.desk.market.indicators.swings import Swing
from agentic_trading.desk.market.layers.features import LayerFeatures
from agentic_trading.desk.market.rounding import price, ratio, stamp

OPPOSITE = {Trend.UP, Trend.DOWN}


def trend_layer(frames: Mapping[Timeframe, Frame]) -> dict[str, Any]:
    """Return direction, averages, slopes, structure and range of each timeframe.

    Distances and slopes are in ATR of the same timeframe, slopes per bar over 5 bars. `conflicts` names
    each pair of timeframes of which one points up and the other down.
    """
    sheet = LayerFeatures()
    present = sheet.frames(frames)
    return {
        "timeframes": {frame.timeframe.value: _one(sheet, frame) for frame in present},
        "conflicts": [
            {
                "lower": lower.timeframe.value,
                "lower_direction": str(lower.direction),
                "higher": higher.timeframe.value,
                "higher_direction": str(higher.direction),
            }
            for lower, higher in combinations(present, 2)
            if {lower.direction, higher.direction} == OPPOSITE
        ],
        "not_available": sheet.not_available,
    }


def _one(sheet: LayerFeatures, frame: Frame) -> dict[str, Any]:
    trend, close = frame.trend, frame.close
    return {
        "close_time": stamp(frame.close_time),
        "close": price(close),
        "bars": frame.bars,
        "complete": frame.last.complete,
        **sheet.keep(
            frame,
            {
                "direction": frame.direction,
                "structure": frame.structure,
                "ema_21": price(trend.ema_21),
                "sma_50": price(trend.sma_50),
                "sma_200": price(trend.sma_200),
                "close_vs_ema_21_atr": _distance(frame, close, trend.ema_21),
                "close_vs_sma_50_atr": _distance(frame, close, trend.sma_50),
                "close_vs_sma_200_atr": _distance(frame, close, trend.sma_200),
                "ema_21_slope_atr": ratio(frame.in_atr(trend.ema_21_slope)),
                "sma_50_slope_atr": ratio(frame.in_atr(trend.sma_50_slope)),
                "sma_200_slope_atr": ratio(frame.in_atr(trend.sma_200_slope)),
                "range_width_pct": ratio(trend.range_width_pct),
                "range_width_percentile": ratio(trend.range_width_percentile),
                "volume_skew": ratio(trend.volume_skew),
            },
        ),
        "swing_labels": {"highs": _labels(frame.swing_highs), "lows": _labels(frame.swing_lows)},
    }


def _distance(frame: Frame, close: float, average: float | None) -> float | None:
    return None if average is None else ratio(frame.in_atr(close - average))


def _labels(swings: Sequence[Swing]) -> list[str]:
    return [swing.label.value for swing in swings[-3:] if swing.label is not None]
