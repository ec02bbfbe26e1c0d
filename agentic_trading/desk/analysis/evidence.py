"""The evidence of a question: what of each layer's numbers the model is told, in few words."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.desk.analysis.judgement import Layer
from agentic_trading.desk.analysis.portfolio_context import NO_BOOK, PortfolioContext, TrackRecord
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.layers.features import UNSOURCED
from agentic_trading.desk.market.snapshot import MarketSnapshot
from agentic_trading.desk.prompts import PRICE_DIGITS, significant

FLAGS: Final = ("narrow_7", "wide_range", "squeeze")
DOUBLES: Final = ("double_top", "double_bottom")
TIMEFRAMES_TOLD: Final = 2
GAPS_TOLD: Final = 2


def patterns_told(patterns: Mapping[str, Any], decision: Timeframe) -> dict[str, Any]:
    """Return what layer 3 found, by timeframe; what was not found is left out, and a timeframe without a bar too."""
    frames = patterns["timeframes"]
    longer = [each for each in Timeframe if each.seconds >= decision.seconds and each in frames]
    return {timeframe.value: _told(frames[timeframe]) for timeframe in longer[:TIMEFRAMES_TOLD]}


def _told(frame: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "last_bar": [*frame["candles"], *(flag for flag in FLAGS if frame.get(flag))],
        "order_blocks": _zones(frame["order_blocks"]),
        "gaps": _zones(frame["gaps"][-GAPS_TOLD:]),
    }
    if "break" in frame:
        broken = frame["break"]
        told["break"] = f"{broken['kind']} {broken['way']} of {_number(broken['price'])}, {_ago(broken)}"
    if "sweep" in frame:
        swept = frame["sweep"]
        told["sweep"] = f"{swept['way']} at {_number(swept['price'])}, {_ago(swept)}"
    for name in DOUBLES:
        if name in frame:
            told[name] = _double(frame[name])
    return {name: value for name, value in told.items() if value}


def _double(double: Mapping[str, Any]) -> str:
    state = "confirmed" if double["confirmed"] else "candidate"
    return f"{state} at {_number(double['price'])}, neckline {_number(double['neckline'])}"


def _zones(zones: Iterable[Mapping[str, Any]]) -> list[str]:
    return [
        f"{zone['way']} {_number(zone['low'])} to {_number(zone['high'])}, {_ago(zone)}" for zone in zones
    ]


def _ago(event: Mapping[str, Any]) -> str:
    return f"{event['bars_ago']} bars ago"


def _number(number: float) -> str:
    return str(int(number)) if number.is_integer() else str(number)


MEASURES: Final[Mapping[Layer, tuple[str, ...]]] = MappingProxyType({
    Layer.TREND: (
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
        "stochastic_k",
        "stochastic_d",
        "trix_15",
        "obv_slope",
        "mfi_14",
        "close_vs_vwap_20_atr",
    ),
    Layer.SENTIMENT: (
        "taker_buy_20_pct",
        "trades_z",
        "volume_z",
        "streak",
    ),
    Layer.VOLATILITY: (
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
DISTANCES: Final = frozenset({"macd_histogram", "macd_histogram_change"})
DISTANCE_DIGITS: Final = 3
RATIO_DIGITS: Final = 2
CLOSE_CALLS: Final = frozenset({"taker_buy_20_pct", "profit_factor"})
"""Ratios that are judged by a small difference: they keep a third digit."""
STOP_DIGITS: Final = 6

Content = dict[str, Any]


def layer_evidence(
    snapshot: MarketSnapshot, record: TrackRecord, book: PortfolioContext | None = None
) -> dict[Layer, Content]:
    """Return the evidence of each layer, in the order of `Layer`, in few digits.

    A measure is a row over `timeframes_told`, shortest first, that ends at the last one which has it; None is not
    available. Prices are those of the snapshot, stops have 6 significant digits, distances between prices 3, ratios 2.
    What is not available as a whole is named in `not_available`, with the reason, but for what never is. A layer of
    which nothing can be told has nothing else. `book` is the account as of the snapshot. Whole numbers are ints and
    Nones are rare, so that canonical JSON is one pass of its encoder. About 3.5 kB in all.
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
        Layer.LEVELS: {
            **_nearest(levels),
            "swings": _swings(levels, snapshot.decision),
            **_absent(Layer.LEVELS, levels),
        },
        Layer.PATTERNS: {**patterns_told(patterns, snapshot.decision), **_absent(Layer.PATTERNS, patterns)},
        Layer.INDICATORS: {
            **_rows(Layer.INDICATORS, inputs[Layer.INDICATORS], frames),
            "divergences": _divergences(inputs[Layer.INDICATORS], frames),
        },
        Layer.SENTIMENT: _rows(Layer.SENTIMENT, inputs[Layer.SENTIMENT], frames),
        Layer.RISK: _risk(inputs[Layer.RISK], snapshot, book),
        Layer.VOLATILITY: _rows(Layer.VOLATILITY, inputs[Layer.VOLATILITY], frames),
        Layer.INTERMARKET: _whole(Layer.INTERMARKET, inputs[Layer.INTERMARKET]),
        Layer.SYSTEM: _whole(Layer.SYSTEM, record.told()),
    }


def timeframes_told(snapshot: MarketSnapshot) -> tuple[Timeframe, ...]:
    """Return the timeframes whose measures are told: the one below that of decisions, and those from it on."""
    frames = list(snapshot.frames)
    below = [each for each in frames if each.seconds < snapshot.decision.seconds]
    return (*below[-1:], *frames[len(below) :])


def _rows(layer: Layer, told: Mapping[str, Any], timeframes: Sequence[Timeframe]) -> Content:
    frames = [told["timeframes"][timeframe] for timeframe in timeframes]
    rows = {name: _row([_short(name, frame.get(name)) for frame in frames]) for name in MEASURES[layer]}
    return {**rows, **_absent(layer, told)}


def _row(values: list[Any]) -> list[Any]:
    """Leave off the timeframes that are too young: they are the longest, and stand last."""
    while values and values[-1] is None:
        values.pop()
    return values


def _short(name: str, value: Any) -> Any:
    """Round once more, where digits say nothing and each costs a token: a price that is one keeps all of them."""
    if not isinstance(value, float):
        return value
    return _digits(value, PRICE_DIGITS if name in PRICES else digits_of(name))


def digits_of(measure: str) -> int:
    """Return with how many significant digits a measure is told."""
    if measure in DISTANCES:
        return DISTANCE_DIGITS
    return RATIO_DIGITS + (measure in CLOSE_CALLS)


def _whole(layer: Layer, told: Mapping[str, Any]) -> Content:
    figures = {
        name: [_short(name, each) for each in value] if isinstance(value, list) else _short(name, value)
        for name, value in told.items()
        if name != "not_available"
    }
    return {**figures, **_absent(layer, told)}


def _absent(layer: Layer, told: Mapping[str, Any]) -> Content:
    """Keep what is missing here and now: a row shows that it lacks a timeframe, the prompt names what is never there."""
    never = UNSOURCED.get(layer, {})
    absent = {
        name: reason
        for name, reason in told.get("not_available", {}).items()
        if name not in never and not _is_of_one_frame(name)
    }
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


def _divergences(indicators: Mapping[str, Any], timeframes: Sequence[Timeframe]) -> list[str]:
    """Tell them by timeframe; there are none on most."""
    frames = indicators["timeframes"]
    return [f"{timeframe} {found}" for timeframe in timeframes for found in frames[timeframe]["divergences"]]


def _risk(risk: Mapping[str, Any], snapshot: MarketSnapshot, book: PortfolioContext | None) -> Content:
    """Tell the candidates either way, how much each stop allows to hold, and the account."""
    sides: Content = {
        side: {
            "stops": {stop["kind"]: _digits(stop["price"], STOP_DIGITS) for stop in risk[side]["stops"]},
            "targets": _columns(risk[side]["targets"], ("price", "rr")),
        }
        for side in ("long", "short")
    }
    told = _absent(Layer.RISK, risk)
    if book is None:
        return {**sides, "not_available": {**told.get("not_available", {}), "book": NO_BOOK}}
    for side, content in sides.items():
        content["size_pct"] = [_short("size_pct", size) for size in book.sizes_pct(risk[side]["stops"])]
    account = book.told(snapshot.symbol, snapshot.closes)
    absent = {**told.get("not_available", {}), **account.pop("not_available", {})}
    figures = _whole(Layer.RISK, account)
    return {**sides, "book": figures, **({"not_available": absent} if absent else {})}


def _digits(value: float, digits: int) -> float | int | None:
    short = significant(value, digits)
    return int(short) if short is not None and short.is_integer() else short
