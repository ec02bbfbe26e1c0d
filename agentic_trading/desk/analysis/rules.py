"""An honest baseline: the analyst's question answered by fixed thresholds, as text, without a model.

Nothing here was fitted to data: the thresholds are textbook values or round numbers.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from agentic_trading.desk.analysis.context import Context, QuestionFeatures, is_available
from agentic_trading.desk.analysis.judgement import (
    ASKED_CHARS,
    Confidence,
    Direction,
    Judgement,
    Layer,
    LayerJudgement,
    StopName,
    TargetName,
    TradeProposal,
)
from agentic_trading.desk.analysis.plan import Candidates, trade_candidates
from agentic_trading.llm.envelope import LLMEnvelope

STOP: Final[StopName] = "atr_1.5"
FAR: Final[TargetName] = "atr_4.0"
LEVELS: Final[tuple[TargetName, ...]] = ("level_1", "level_2", "level_3", "level_4")


def propose(sheet: QuestionFeatures, *, rising: bool) -> TradeProposal | None:
    """Return a plan that buys if `rising`, else sells; None if the evidence gives no stop within the limits.

    The stop is the candidate of 1.5 ATR. The target is the nearest level told that pays for it, but no further than
    4 ATR; 4 ATR where none does.
    """
    named = trade_candidates(sheet.context, sheet.told(Layer.RISK), rising=rising)
    reach = _reach(sheet.context)
    if STOP not in named.stops or not 0 < _distance(sheet, named.stops[STOP]) <= reach:
        return None
    if _distance(sheet, named.targets[FAR]) > reach:
        return None
    return TradeProposal(entry="market", stop=STOP, target=_level_that_pays(sheet, named) or FAR)


def level_pays(sheet: QuestionFeatures, *, rising: bool) -> bool:
    """Tell whether a level told pays at least as much as the stop risks, within 4 ATR."""
    named = trade_candidates(sheet.context, sheet.told(Layer.RISK), rising=rising)
    return STOP in named.stops and _level_that_pays(sheet, named) is not None


def _level_that_pays(sheet: QuestionFeatures, named: Candidates) -> TargetName | None:
    least, most = (_distance(sheet, price) for price in (named.stops[STOP], named.targets[FAR]))
    levels = (name for name in LEVELS if name in named.targets)
    return next((name for name in levels if least <= _distance(sheet, named.targets[name]) <= most), None)


def _distance(sheet: QuestionFeatures, price: Decimal) -> Decimal:
    return abs(price - sheet.context.last_close)


def _reach(context: Context) -> Decimal:
    percent = context.last_close * context.limits.max_distance_percent / 100
    return min(percent, context.atr * context.limits.max_distance_atr)


LEAN_TO_ACT: Final = 2
RSI_UNDECIDED: Final = (45, 55)
RSI_STRETCHED: Final = (25, 75)
ADX_TRENDING: Final = 20
TAKERS_BALANCED: Final = (48, 52)
SHELTER_ATR: Final = 1.0
ROOM_ATR: Final = 0.5
PROFITABLE: Final = 1.25
LOSING: Final = 0.8

SIGNS: Final = {"up": 1, "down": -1}
QUADRANTS: Final = {"leading": 1, "lagging": -1}
REGIME_SCORES: Final = {"normal": 1, "extreme": -1}
UNUSED: Final = TradeProposal(entry="market", stop=STOP, target=FAR)
"""What stands in a neutral answer, where nobody looks at it."""
CONFIDENCES: Final[tuple[Confidence, ...]] = ("low", "medium", "high")


class RuleAnswer(NamedTuple):
    """A layer's score, and what of the evidence it rests on."""

    score: int
    text: str


def cmt_assessment_rule(envelope: LLMEnvelope) -> str:
    """Answer the analyst's question; equal context and evidence give equal text.

    Trend and indicators lean from -2 (bearish) to 2 (bullish) each, patterns, behaviour and the second market are
    scored beside them. A sum of trend and indicators of 2 or more either way makes the direction, if there is a
    stop within the limits; otherwise it is neutral. Raises pydantic's `ValidationError` for an envelope that is not
    the analyst's.
    """
    sheet = QuestionFeatures.of(envelope)
    trend, momentum = _trend(sheet).score, _momentum(sheet).score
    lean = trend + momentum
    sign = _sign(lean) if abs(lean) >= LEAN_TO_ACT else 0
    plan = propose(sheet, rising=sign > 0) if sign else None
    sign = sign if plan else 0
    return Judgement(
        layers={
            layer: _judged(sheet, layer, say(sheet, sign))
            for layer, say in SAYING.items()
            if layer in sheet.evidence and is_available(sheet.told(layer))
        },
        rationale=f"trend leans {trend:+d}, indicators {momentum:+d}; it takes {LEAN_TO_ACT} together to act",
        direction=(Direction.NEUTRAL, Direction.BULLISH, Direction.BEARISH)[sign],
        confidence=CONFIDENCES[max(0, abs(lean) - LEAN_TO_ACT)],
        trade_plan=plan or UNUSED,
    ).model_dump_json(exclude_defaults=True)


def _judged(sheet: QuestionFeatures, layer: Layer, said: RuleAnswer) -> LayerJudgement:
    return LayerJudgement(
        finding=said.text[:ASKED_CHARS], evidence=sheet.evidence[layer].name, score=said.score
    )


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def _trend(sheet: QuestionFeatures, _sign_of_all: int = 0) -> RuleAnswer:
    """One step for the decision timeframe, one for the next longer or, where that has no trend yet, the structure."""
    here, above = [*sheet.row(Layer.TREND, "direction"), None, None][:2]
    structure = sheet.here(Layer.TREND, "structure")
    lean = SIGNS.get(here, 0) + SIGNS.get(structure if above is None else above, 0)
    frame = sheet.context.decision_timeframe
    return RuleAnswer(
        lean, f"{frame} points {_told(here)}, the next longer {_told(above)}; structure {_told(structure)}"
    )


def _momentum(sheet: QuestionFeatures, _sign_of_all: int = 0) -> RuleAnswer:
    """One step each for RSI, MACD histogram and, in a trend, the sides of ADX; 2 at most either way."""
    measures = ("rsi_14", "macd_histogram", "adx_14", "plus_di_14", "minus_di_14")
    rsi, histogram, adx, plus, minus = (sheet.here(Layer.INDICATORS, measure) for measure in measures)
    steps = _sign(histogram or 0)
    if rsi is not None and RSI_STRETCHED[0] <= rsi <= RSI_STRETCHED[1]:
        steps += (rsi > RSI_UNDECIDED[1]) - (rsi < RSI_UNDECIDED[0])
    if adx is not None and adx >= ADX_TRENDING:
        steps += _sign(plus - minus)
    text = f"RSI {_told(rsi)}, MACD histogram {_told(histogram)}, ADX {_told(adx)}"
    return RuleAnswer(max(-2, min(2, steps)), f"{text}, +DI {_told(plus)}, -DI {_told(minus)}")


def _levels(sheet: QuestionFeatures, sign: int) -> RuleAnswer:
    """One point for a level close behind the price, one for room ahead of it."""
    told = sheet.told(Layer.LEVELS)
    above, below = (_nearest(told[side]) for side in ("above", "below"))
    ahead, behind = (above, below) if sign > 0 else (below, above)
    sheltered = behind is not None and abs(behind.distance_atr) <= SHELTER_ATR
    has_room = ahead is None or abs(ahead.distance_atr) >= ROOM_ATR
    text = f"above {_level_told(above)}; below {_level_told(below)}"
    return RuleAnswer(sheltered + has_room if sign else 0, text)


def _patterns(sheet: QuestionFeatures, _sign_of_all: int) -> RuleAnswer:
    """One step for the latest break of the decision timeframe, one for the next longer one's."""
    frames = {name: found for name, found in sheet.told(Layer.PATTERNS).items() if "break" in found}
    breaks = [found["break"] for found in frames.values()]
    lean = sum(SIGNS[broken.split()[1]] for broken in breaks)
    return RuleAnswer(
        lean, "; ".join(f"{name} {found['break']}" for name, found in frames.items()) or "no break"
    )


def _sentiment(sheet: QuestionFeatures, _sign_of_all: int) -> RuleAnswer:
    """One step where takers lean to one side."""
    share, streak = (sheet.here(Layer.SENTIMENT, measure) for measure in ("taker_buy_20_pct", "streak"))
    lean = 0 if share is None else (share > TAKERS_BALANCED[1]) - (share < TAKERS_BALANCED[0])
    return RuleAnswer(lean, f"buyers took {_told(share)} % of 20 bars; streak {_told(streak)}")


def _risk(sheet: QuestionFeatures, sign: int) -> RuleAnswer:
    """One point if a level pays for the stop."""
    told = sheet.told(Layer.RISK)
    long, short = (told.get(side, {}).get("stops", {}).get(STOP) for side in ("long", "short"))
    pays = sign != 0 and level_pays(sheet, rising=sign > 0)
    return RuleAnswer(int(pays), f"stop {STOP}: {_told(long)} for a long, {_told(short)} for a short")


def _volatility(sheet: QuestionFeatures, sign: int) -> RuleAnswer:
    """One point for normal volatility, one off for extreme."""
    regime, atr_pct = (sheet.here(Layer.VOLATILITY, measure) for measure in ("regime", "atr_pct"))
    text = f"volatility is {_told(regime)}; ATR is {_told(atr_pct)} % of the price"
    return RuleAnswer(REGIME_SCORES.get(regime, 0) if sign else 0, text)


def _intermarket(sheet: QuestionFeatures, _sign_of_all: int) -> RuleAnswer:
    """One step for a market that leads the second one, one against for a market that lags."""
    told = sheet.told(Layer.INTERMARKET)
    return RuleAnswer(QUADRANTS.get(told["quadrant"], 0), f"{told['quadrant']} beside {told['beside']}")


def _system(sheet: QuestionFeatures, sign: int) -> RuleAnswer:
    """One point for a record that pays, one off for one that does not."""
    told = sheet.told(Layer.SYSTEM)
    factor = told.get("profit_factor")
    score = 0 if factor is None or not sign else (factor >= PROFITABLE) - (factor <= LOSING)
    return RuleAnswer(score, f"profit factor {_told(factor)}, hit rate {_told(told['hit_rate_pct'])} %")


SAYING: Final[Mapping[Layer, Callable[[QuestionFeatures, int], RuleAnswer]]] = MappingProxyType({
    Layer.TREND: _trend,
    Layer.LEVELS: _levels,
    Layer.PATTERNS: _patterns,
    Layer.INDICATORS: _momentum,
    Layer.SENTIMENT: _sentiment,
    Layer.RISK: _risk,
    Layer.VOLATILITY: _volatility,
    Layer.INTERMARKET: _intermarket,
    Layer.SYSTEM: _system,
})


class Near(NamedTuple):
    """The nearest level on one side."""

    name: str
    price: float
    distance_atr: float


def _nearest(side: Mapping[str, Any]) -> Near | None:
    rows = zip(side["level"], side["price"], side["distance_atr"], strict=True)
    return next((Near(*row) for row in rows), None)


def _level_told(level: Near | None) -> str:
    return "none" if level is None else f"{level.name} at {level.price}"


def _told(value: Any) -> str:
    return "not available" if value is None else str(value)
