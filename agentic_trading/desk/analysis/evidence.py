"""The evidence of a question: what of each layer's numbers the model is told, in few words."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.desk.analysis.judgement import Layer
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.snapshot import MarketSnapshot

MEASURES: Final[Mapping[Layer, tuple[str, ...]]] = MappingProxyType({
    Layer.TREND: (
        "bars",
        "direction",
        "structure",
        "close_vs_ema_21_atr",
        "close_vs_sma_50_atr",
        "close_vs_sma_200_atr",
        "ema_21_slope_atr",
        "range_width_percentile",
        "volume_skew",
    ),
    Layer.INDICATORS: (
        "rsi_14",
        "macd_histogram",
        "macd_histogram_change",
        "adx_14",
        "plus_di_14",
        "minus_di_14",
        "percent_b",
        "band_width_pct",
    ),
    Layer.VOLATILITY: (
        "atr_14",
        "atr_pct",
        "atr_percentile",
        "realised_20_annual_pct",
        "realised_percentile",
        "vol_of_vol",
        "regime",
    ),
})
"""The measures that are told of every timeframe; prices that only repeat a distance are left out."""

SWINGS_TOLD: Final = 2

Content = dict[str, Any]


def layer_evidence(snapshot: MarketSnapshot) -> dict[Layer, Content]:
    """Return the evidence of each layer, numbers rounded as in the snapshot.

    A measure is a row over the timeframes of `of`, shortest first, that ends at the last one which has it;
    None is not available. What is not available as a whole is named in `not_available`, with the reason.
    Whole numbers are ints and Nones are rare, so that canonical JSON is one pass of its encoder. About 3.3 kB
    in all.
    """
    inputs = snapshot.layer_inputs()
    trend, levels = inputs[Layer.TREND], inputs[Layer.LEVELS]
    return {
        Layer.TREND: {
            **_rows(Layer.TREND, trend),
            "swings": _swing_labels(trend),
            "conflicts": _conflicts(trend),
            **_incomplete(snapshot),
        },
        Layer.LEVELS: {**_nearest(levels), "swings": _swings(levels, snapshot.decision), **_absent(levels)},
        Layer.INDICATORS: _rows(Layer.INDICATORS, inputs[Layer.INDICATORS]),
        Layer.RISK: _risk(inputs[Layer.RISK]),
        Layer.VOLATILITY: _rows(Layer.VOLATILITY, inputs[Layer.VOLATILITY]),
    }


def _rows(layer: Layer, told: Mapping[str, Any]) -> Content:
    frames = told["timeframes"]
    rows = {name: _row([frame.get(name) for frame in frames.values()]) for name in MEASURES[layer]}
    return {"of": list(frames), **rows, **_absent(told)}


def _row(values: list[Any]) -> list[Any]:
    """Leave off the timeframes that are too young: they are the longest, and stand last."""
    while values and values[-1] is None:
        values.pop()
    return [_short(value) for value in values]


def _short(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _absent(told: Mapping[str, Any]) -> Content:
    """Keep what is missing as a whole: a measure of one timeframe is missing in its row."""
    absent = {name: reason for name, reason in told["not_available"].items() if not _is_of_one_frame(name)}
    return {"not_available": absent} if absent else {}


def _is_of_one_frame(name: str) -> bool:
    return name.startswith(tuple(f"{timeframe}." for timeframe in Timeframe))


def _swing_labels(trend: Mapping[str, Any]) -> Content:
    frames = trend["timeframes"].values()
    return {side: [" ".join(frame["swing_labels"][side]) for frame in frames] for side in ("highs", "lows")}


def _conflicts(trend: Mapping[str, Any]) -> list[str]:
    return [
        f"{pair['lower']} {pair['lower_direction']}, {pair['higher']} {pair['higher_direction']}"
        for pair in trend["conflicts"]
    ]


def _incomplete(snapshot: MarketSnapshot) -> Content:
    """Say which of the last bars have a hole in them; nothing where none has."""
    lasts = {timeframe: frame.last for timeframe, frame in snapshot.frames.items()}
    holed = [
        f"{timeframe}: {last.parts} of {last.expected} bars"
        for timeframe, last in lasts.items()
        if not last.complete
    ]
    return {"incomplete": holed} if holed else {}


def _nearest(levels: Mapping[str, Any]) -> Content:
    return {side: _told(levels["nearest"][side]) for side in ("above", "below")}


def _swings(levels: Mapping[str, Any], decision: Timeframe) -> Content:
    swings = levels["swings"][decision]
    return {side: _told(swings[side][-SWINGS_TOLD:]) for side in ("highs", "lows")}


def _told(prices: Iterable[Mapping[str, Any]]) -> list[Content]:
    return [{name: _short(value) for name, value in price.items() if name != "at"} for price in prices]


def _risk(risk: Mapping[str, Any]) -> Content:
    sides = {
        side: {"stops": _stops(risk[side]), "targets": _told(risk[side]["targets"])}
        for side in ("long", "short")
    }
    return {**sides, **_absent(risk)}


def _stops(side: Mapping[str, Any]) -> Content:
    return {stop["kind"]: _short(stop["price"]) for stop in side["stops"]}
