"""The evidence of a question: what of each layer's numbers the model is given, in few words."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.desk.analysis.judgement import Layer
from agentic_trading.desk.analysis.portfolio_context import NO_PORTFOLIO, PortfolioContext, TrackRecord
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.layers.features import UNSOURCED
from agentic_trading.desk.market.snapshot import MarketSnapshot
from agentic_trading.desk.prompts import PRICE_DIGITS, significant

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
"""The measures that are given for every timeframe; prices that only repeat a distance are left out."""

SWINGS_SHOWN: Final = 2
SWING: Final = "swing_"
PRICES: Final = frozenset({"price"})
DISTANCES: Final = frozenset({"macd_histogram", "macd_histogram_change"})
DISTANCE_DIGITS: Final = 3
RATIO_DIGITS: Final = 2
CLOSE_CALLS: Final = frozenset({"taker_buy_20_pct", "profit_factor"})
"""Ratios that are judged by a small difference: they keep a third digit."""
STOP_DIGITS: Final = 6
FLAGS: Final = ("narrow_7", "wide_range", "squeeze")
DOUBLES: Final = ("double_top", "double_bottom")
PATTERN_TIMEFRAMES: Final = 2
GAPS_SHOWN: Final = 2

Content = dict[str, Any]


def layer_evidence(
    snapshot: MarketSnapshot, record: TrackRecord, portfolio: PortfolioContext | None = None
) -> dict[Layer, Content]:
    """Return the evidence of each layer, in the order of `Layer`, in few digits.

    A measure is a row over `evidence_timeframes`, shortest first, that ends at the last one which has it; None is not
    available. Prices are those of the snapshot, stops have 6 significant digits, distances between prices 3, ratios 2.
    What is not available as a whole is named in `not_available`, with the reason, but for what never is. A layer
    without any number has nothing else. `portfolio` is the account as of the snapshot. Whole numbers are ints and
    Nones are rare, so that canonical JSON is one pass of its encoder. About 3.5 kB in all.
    """
    inputs = snapshot.layer_inputs()
    trend, levels = inputs[Layer.TREND], inputs[Layer.LEVELS]
    patterns, frames = inputs[Layer.PATTERNS], evidence_timeframes(snapshot)
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
        Layer.PATTERNS: {
            **patterns_evidence(patterns, snapshot.decision),
            **_absent(Layer.PATTERNS, patterns),
        },
        Layer.INDICATORS: {
            **_rows(Layer.INDICATORS, inputs[Layer.INDICATORS], frames),
            "divergences": _divergences(inputs[Layer.INDICATORS], frames),
        },
        Layer.SENTIMENT: _rows(Layer.SENTIMENT, inputs[Layer.SENTIMENT], frames),
        Layer.RISK: _risk(inputs[Layer.RISK], snapshot, portfolio),
        Layer.VOLATILITY: _rows(Layer.VOLATILITY, inputs[Layer.VOLATILITY], frames),
        Layer.INTERMARKET: _whole(Layer.INTERMARKET, inputs[Layer.INTERMARKET]),
        Layer.SYSTEM: _whole(Layer.SYSTEM, record.evidence()),
    }


def evidence_timeframes(snapshot: MarketSnapshot) -> tuple[Timeframe, ...]:
    """Return the timeframes whose measures are given: the one below that of decisions, and those from it on."""
    frames = list(snapshot.frames)
    below = [each for each in frames if each.seconds < snapshot.decision.seconds]
    return (*below[-1:], *frames[len(below) :])


def _rows(layer: Layer, measured: Mapping[str, Any], timeframes: Sequence[Timeframe]) -> Content:
    frames = [measured["timeframes"][timeframe] for timeframe in timeframes]
    rows = {name: _row([_rounded(name, frame.get(name)) for frame in frames]) for name in MEASURES[layer]}
    return {**rows, **_absent(layer, measured)}


def _row(values: list[Any]) -> list[Any]:
    """Leave off the timeframes that have too few bars: they are the longest, and stand last."""
    while values and values[-1] is None:
        values.pop()
    return values


def _rounded(name: str, value: Any) -> Any:
    """Round a measure: digits that say nothing cost a token each; `price` alone keeps all of them."""
    if not isinstance(value, float):
        return value
    return _significant(value, PRICE_DIGITS if name in PRICES else digits_of(name))


def digits_of(measure: str) -> int:
    """Return with how many significant digits a measure is given."""
    if measure in DISTANCES:
        return DISTANCE_DIGITS
    return RATIO_DIGITS + (measure in CLOSE_CALLS)


def _whole(layer: Layer, measured: Mapping[str, Any]) -> Content:
    figures = {
        name: [_rounded(name, each) for each in value] if isinstance(value, list) else _rounded(name, value)
        for name, value in measured.items()
        if name != "not_available"
    }
    return {**figures, **_absent(layer, measured)}


def _absent(layer: Layer, measured: Mapping[str, Any]) -> Content:
    """Return what is missing now: a row shows that it lacks a timeframe, the prompt names what is never there."""
    never = UNSOURCED.get(layer, {})
    absent = {
        name: reason
        for name, reason in measured.get("not_available", {}).items()
        if name not in never and not _is_of_one_frame(name)
    }
    return {"not_available": absent} if absent else {}


_OF_ONE_FRAME: Final = tuple(f"{timeframe}." for timeframe in Timeframe)


def _is_of_one_frame(name: str) -> bool:
    return name.startswith(_OF_ONE_FRAME)


def _swing_labels(trend: Mapping[str, Any], timeframes: Sequence[Timeframe]) -> Content:
    frames = [trend["timeframes"][timeframe] for timeframe in timeframes]
    return {side: [" ".join(frame["swing_labels"][side]) for frame in frames] for side in ("highs", "lows")}


def _conflicts(trend: Mapping[str, Any]) -> list[str]:
    return [
        f"{pair['lower']} {pair['lower_direction']}, {pair['higher']} {pair['higher_direction']}"
        for pair in trend["conflicts"]
    ]


def _incomplete(snapshot: MarketSnapshot) -> Content:
    """Return which of the last bars have a hole in them; nothing where none has."""
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
    return {side: _columns(swings[side][-SWINGS_SHOWN:], ("price", "touches")) for side in ("highs", "lows")}


def _columns(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> Content:
    """Turn rows of named values into a row for each name: every name once."""
    return {name: [_named(name, row.get(name)) for row in rows] for name in names}


def _named(name: str, value: Any) -> Any:
    """Leave off when a swing was: its price identifies it."""
    if name == "level" and value.startswith(SWING):
        return value.rpartition("_")[0]
    return _rounded(name, value)


def _divergences(indicators: Mapping[str, Any], timeframes: Sequence[Timeframe]) -> list[str]:
    """Return them with their timeframe; there are none on most."""
    frames = indicators["timeframes"]
    return [f"{timeframe} {found}" for timeframe in timeframes for found in frames[timeframe]["divergences"]]


def _risk(risk: Mapping[str, Any], snapshot: MarketSnapshot, portfolio: PortfolioContext | None) -> Content:
    """Return the candidates either way, how much each stop allows to hold, and the account."""
    sides: Content = {
        side: {
            "stops": {stop["kind"]: _significant(stop["price"], STOP_DIGITS) for stop in risk[side]["stops"]},
            "targets": _columns(risk[side]["targets"], ("price", "rr")),
        }
        for side in ("long", "short")
    }
    absent = _absent(Layer.RISK, risk).get("not_available", {})
    if portfolio is None:
        return {**sides, "not_available": {**absent, "book": NO_PORTFOLIO}}
    for side, content in sides.items():
        content["size_pct"] = [
            _rounded("size_pct", size) for size in portfolio.sizes_pct(risk[side]["stops"])
        ]
    account = portfolio.evidence(snapshot.symbol, snapshot.closes)
    absent = {**absent, **account.pop("not_available", {})}
    figures = _whole(Layer.RISK, account)
    return {**sides, "book": figures, **({"not_available": absent} if absent else {})}


def _significant(value: float, digits: int) -> float | int | None:
    short = significant(value, digits)
    return int(short) if short is not None and short.is_integer() else short


def patterns_evidence(patterns: Mapping[str, Any], decision: Timeframe) -> dict[str, Any]:
    """Return what layer 3 found, by timeframe; what was not found is left out, and a timeframe without a bar too."""
    frames = patterns["timeframes"]
    longer = [each for each in Timeframe if each.seconds >= decision.seconds and each in frames]
    return {timeframe.value: _frame_patterns(frames[timeframe]) for timeframe in longer[:PATTERN_TIMEFRAMES]}


def _frame_patterns(frame: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "last_bar": [*frame["candles"], *(flag for flag in FLAGS if frame.get(flag))],
        "order_blocks": _zones(frame["order_blocks"]),
        "gaps": _zones(frame["gaps"][-GAPS_SHOWN:]),
    }
    if "break" in frame:
        broken = frame["break"]
        found["break"] = f"{broken['kind']} {broken['way']} of {_number(broken['price'])}, {_ago(broken)}"
    if "sweep" in frame:
        swept = frame["sweep"]
        found["sweep"] = f"{swept['way']} at {_number(swept['price'])}, {_ago(swept)}"
    for name in DOUBLES:
        if name in frame:
            found[name] = _double(frame[name])
    return {name: value for name, value in found.items() if value}


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
