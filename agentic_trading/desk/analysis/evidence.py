"""The evidence of a question: what of each layer's numbers the model is told, in few words."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.desk.analysis.judgement import Layer
from agentic_trading.desk.analysis.shapes import patterns_told
from agentic_trading.desk.analysis.track import TrackRecord
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.rounding import significant
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
    Layer.SENTIMENT: (
        "taker_buy_20_pct",
        "trades",
        "trades_z",
        "volume_z",
        "streak",
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
SWING: Final = "swing_"
PRICES: Final = frozenset({"price"})
DISTANCES: Final = frozenset({"atr_14", "macd_histogram", "macd_histogram_change"})
DISTANCE_DIGITS: Final = 5
RATIO_DIGITS: Final = 3

Content = dict[str, Any]


def layer_evidence(snapshot: MarketSnapshot, record: TrackRecord) -> dict[Layer, Content]:
    """Return the evidence of each layer, in the order of `Layer`, in few digits.

    A measure is a row over `timeframes_told`, shortest first, that ends at the last one which has it; None is not
    available. Prices are those of the snapshot; distances between prices have 5 significant digits, ratios 3. What is not available as a whole is named in `not_available`, with the reason.
    A layer of which nothing can be told has nothing else. Whole numbers are ints and Nones are rare, so that
    canonical JSON is one pass of its encoder. About 3.5 kB in all.
    """
    inputs = snapshot.layer_inputs()
    trend, levels = inputs[Layer.TREND], inputs[Layer.LEVELS]
    patterns, frames = inputs[Layer.PATTERNS], timeframes_told(snapshot)
    return {
        Layer.TREND: {
            **_rows(Layer.TREND, trend, frames),
            "swings": _swing_labels(trend, frames),
            "conflicts": _conflicts(trend),
            **_incomplete(snapshot),
        },
        Layer.LEVELS: {**_nearest(levels), "swings": _swings(levels, snapshot.decision), **_absent(levels)},
        Layer.PATTERNS: {**patterns_told(patterns, snapshot.decision), **_absent(patterns)},
        Layer.INDICATORS: _rows(Layer.INDICATORS, inputs[Layer.INDICATORS], frames),
        Layer.SENTIMENT: _rows(Layer.SENTIMENT, inputs[Layer.SENTIMENT], frames),
        Layer.RISK: _risk(inputs[Layer.RISK]),
        Layer.VOLATILITY: _rows(Layer.VOLATILITY, inputs[Layer.VOLATILITY], frames),
        Layer.INTERMARKET: _whole(inputs[Layer.INTERMARKET]),
        Layer.SYSTEM: _whole(record.told()),
    }


def timeframes_told(snapshot: MarketSnapshot) -> tuple[Timeframe, ...]:
    """Return the timeframes whose measures are told: the one below that of decisions, and those from it on."""
    frames = list(snapshot.frames)
    below = [each for each in frames if each.seconds < snapshot.decision.seconds]
    return (*below[-1:], *frames[len(below) :])


def _rows(layer: Layer, told: Mapping[str, Any], timeframes: Sequence[Timeframe]) -> Content:
    frames = [told["timeframes"][timeframe] for timeframe in timeframes]
    rows = {name: _row([_short(name, frame.get(name)) for frame in frames]) for name in MEASURES[layer]}
    return {**rows, **_absent(told)}


def _row(values: list[Any]) -> list[Any]:
    """Leave off the timeframes that are too young: they are the longest, and stand last."""
    while values and values[-1] is None:
        values.pop()
    return values


def _short(name: str, value: Any) -> Any:
    """Round once more, where digits say nothing and each costs a token: a price that is one keeps all of them."""
    if not isinstance(value, float):
        return value
    if name not in PRICES:
        value = significant(value, DISTANCE_DIGITS if name in DISTANCES else RATIO_DIGITS)
    return int(value) if value is not None and value.is_integer() else value


def _whole(told: Mapping[str, Any]) -> Content:
    return {
        name: [_short(name, each) for each in value] if isinstance(value, list) else _short(name, value)
        for name, value in told.items()
    }


def _absent(told: Mapping[str, Any]) -> Content:
    """Keep what is missing as a whole: a measure of one timeframe is missing in its row."""
    absent = {name: reason for name, reason in told["not_available"].items() if not _is_of_one_frame(name)}
    return {"not_available": absent} if absent else {}


def _is_of_one_frame(name: str) -> bool:
    return name.startswith(tuple(f"{timeframe}." for timeframe in Timeframe))


def _swing_labels(trend: Mapping[str, Any], timeframes: Sequence[Timeframe]) -> Content:
    frames = [trend["timeframes"][timeframe] for timeframe in timeframes]
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
    return {
        side: _columns(levels["nearest"][side], ("level", "price", "distance_atr"))
        for side in ("above", "below")
    }


def _swings(levels: Mapping[str, Any], decision: Timeframe) -> Content:
    swings = levels["swings"][decision]
    return {side: _columns(swings[side][-SWINGS_TOLD:], ("price", "touches")) for side in ("highs", "lows")}


def _columns(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> Content:
    """Tell rows of named values as a row for each name: every name once."""
    return {name: [_named(name, row.get(name)) for row in rows] for name in names}


def _named(name: str, value: Any) -> Any:
    """Leave off when a swing was: its price tells it apart."""
    if name == "level" and value.startswith(SWING):
        return value.rpartition("_")[0]
    return _short(name, value)


def _risk(risk: Mapping[str, Any]) -> Content:
    sides = {
        side: {"stops": _stops(risk[side]), "targets": _columns(risk[side]["targets"], ("price", "rr"))}
        for side in ("long", "short")
    }
    return {**sides, **_absent(risk)}


def _stops(side: Mapping[str, Any]) -> Content:
    return {stop["kind"]: _short("price", stop["price"]) for stop in side["stops"]}
