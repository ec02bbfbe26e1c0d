"""Layers 1, 4, 5, 7 and 8 as plain values: trend, indicators, sentiment, volatility, intermarket."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from math import exp
from typing import Any

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.correlation import (
    RETURNS,
    Close,
    ReferenceMarket,
    common_closes,
    market_correlation,
)
from agentic_trading.desk.market.frame import Frame, Trend
from agentic_trading.desk.market.gauges import annual_pct
from agentic_trading.desk.market.indicators.structure import Swing
from agentic_trading.desk.market.layers.features import (
    NOT_IN_SOURCE,
    UNSOURCED,
    LayerFeatures,
    features_by_timeframe,
)
from agentic_trading.desk.prompts import price, ratio, stamp

OPPOSITE = {Trend.UP, Trend.DOWN}


def trend_layer(frames: Mapping[Timeframe, Frame]) -> dict[str, Any]:
    """Return direction, averages, slopes, structure and range of each timeframe.

    Distances are in ATR of the same timeframe. Slopes are in ATR per bar, over 5 bars. `conflicts` lists each
    pair of timeframes with opposite directions.
    """
    features = LayerFeatures()
    present = features.frames(frames)
    return {
        "timeframes": {frame.timeframe.value: _trend_of(features, frame) for frame in present},
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
        "not_available": features.not_available,
    }


def _trend_of(features: LayerFeatures, frame: Frame) -> dict[str, Any]:
    trend, close = frame.trend, frame.close
    return {
        "close_time": stamp(frame.close_time),
        "close": price(close),
        "bars": frame.bars,
        "complete": frame.last.complete,
        **features.keep(
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


def indicators_layer(frames: Mapping[Timeframe, Frame]) -> dict[str, Any]:
    """Return oscillators, the place in the Bollinger bands, volume and divergences of each timeframe.

    MACD is in units of price. `macd_histogram_change` is the change of the histogram since the bar before.
    `close_vs_vwap_20_atr` is in ATR of the same timeframe. A divergence has its direction and its oscillator
    as a name.
    """
    return features_by_timeframe("indicators", frames, _indicators_of)


def _indicators_of(features: LayerFeatures, frame: Frame) -> dict[str, Any]:
    momentum = frame.momentum
    vwap = momentum.vwap_20
    measures = features.keep(
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
    return {**measures, "divergences": [f"{way}_{oscillator}" for way, oscillator in momentum.divergences]}


def volatility_layer(frames: Mapping[Timeframe, Frame]) -> dict[str, Any]:
    """Return ATR, realised volatility, their ranks and the regime of each timeframe.

    Realised volatility is in percent per year of the market's own calendar (`TradingYear`). `next_bar_low`
    and `next_bar_high` are one standard deviation of the last 20 log returns below and above the close.
    """
    return features_by_timeframe("volatility", frames, _volatility_of)


def _volatility_of(features: LayerFeatures, frame: Frame) -> dict[str, Any]:
    reading, bars_per_year = frame.volatility, frame.bars_per_year
    swing = reading.realised_20
    return features.keep(
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


def sentiment_layer(frames: Mapping[Timeframe, Frame]) -> dict[str, Any]:
    """Return taker share, trade count, volume, streak and opening gap of each timeframe.

    Shares are in percent of volume, and `gap_atr` is in ATR of the same timeframe. `not_available` lists
    taker volumes and trade counts if the source lacks them.
    """
    layer = features_by_timeframe("sentiment", frames, _sentiment_of)
    if not any(frame.sentiment.has_takers for frame in frames.values()):
        layer["not_available"]["taker_volume"] = NOT_IN_SOURCE
    if not any(frame.sentiment.has_trades for frame in frames.values()):
        layer["not_available"]["trade_count"] = NOT_IN_SOURCE
    return layer


def _sentiment_of(features: LayerFeatures, frame: Frame) -> dict[str, Any]:
    reading = frame.sentiment
    return features.keep(
        frame,
        {
            "taker_buy_pct": ratio(reading.taker_buy_pct),
            "taker_buy_20_pct": ratio(reading.taker_buy_20_pct),
            "trades": reading.trades,
            "trades_z": ratio(reading.trades_z),
            "volume_z": ratio(reading.volume_z),
            "streak": reading.streak,
            "gap_atr": ratio(frame.in_atr(reading.gap)),
        },
        unsourced=[
            *(() if reading.has_takers else ("taker_buy_pct", "taker_buy_20_pct")),
            *(() if reading.has_trades else ("trades", "trades_z")),
        ],
    )


def intermarket_layer(
    own: Sequence[Close], other: ReferenceMarket | None, *, decision: Timeframe
) -> dict[str, Any]:
    """Return the comparison of the market with a reference market, on the decision timeframe.

    `beside` is the symbol of the reference market. Without a reference market, or before 49 common closes,
    `not_available` has the reason.
    """
    if other is None:
        return {"not_available": {"second_market": "none is fed", **UNSOURCED["intermarket"]}}
    found = market_correlation(own, other)
    if found is None:
        has = max(0, len(common_closes(own, other)) - 1)
        reason = f"needs {RETURNS} returns in common, has {has}"
        return {"not_available": {"second_market": reason, **UNSOURCED["intermarket"]}}
    measures = {name: value for name, value in asdict(found).items() if name not in {"symbol", "quadrant"}}
    return {
        "beside": found.symbol,
        "timeframe": decision.value,
        **{name: ratio(value) for name, value in measures.items() if value is not None},
        "quadrant": found.quadrant.value,
        "not_available": {
            **{name: "a market does not move" for name, value in measures.items() if value is None},
            **UNSOURCED["intermarket"],
        },
    }
