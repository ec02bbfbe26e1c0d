"""A baseline that answers the analyst's question by fixed rules, without a model.

Its thresholds are textbook values or round numbers, and were not fitted to data.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from agentic_trading.desk.analysis import judgement
from agentic_trading.desk.analysis.context import Context, QuestionFeatures, is_available
from agentic_trading.desk.analysis.plan import Candidates, trade_candidates
from agentic_trading.llm.envelope import LLMEnvelope

STOP: Final[judgement.StopName] = "atr_1.5"
FAR: Final[judgement.TargetName] = "atr_4.0"
LEVEL_NAMES: Final[tuple[judgement.TargetName, ...]] = ("level_1", "level_2", "level_3", "level_4")
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
UNUSED: Final = judgement.TradeProposal(entry="market", stop=STOP, target=FAR)
"""The plan of a neutral answer, which is not used."""
CONFIDENCES: Final[tuple[judgement.Confidence, ...]] = ("low", "medium", "high")


class RuleAnswer(NamedTuple):
    """The score of a layer, and a text about the evidence behind it."""

    score: int
    text: str


def cmt_assessment_rule(envelope: LLMEnvelope) -> str:
    """Answer the analyst's question. Equal context and evidence give equal text.

    Trend and indicators lean from -2 (bearish) to 2 (bullish) each. If their sum is at least 2 in one
    direction, and there is a stop within the limits, this is the direction. Otherwise it is neutral. The
    other layers only have scores.

    Raises:
        pydantic.ValidationError: If the envelope is not the analyst's.

    """
    features = QuestionFeatures.of(envelope)
    trend, momentum = _trend(features).score, _momentum(features).score
    lean = trend + momentum
    sign = _sign(lean) if abs(lean) >= LEAN_TO_ACT else 0
    plan = propose(features, rising=sign > 0) if sign else None
    sign = sign if plan else 0
    return judgement.Judgement(
        layers={
            layer: _judged(features, layer, rule(features, sign))
            for layer, rule in LAYER_RULES.items()
            if layer in features.evidence and is_available(features.content(layer))
        },
        rationale=f"trend leans {trend:+d}, indicators {momentum:+d}; it takes {LEAN_TO_ACT} together to act",
        direction=(judgement.Direction.NEUTRAL, judgement.Direction.BULLISH, judgement.Direction.BEARISH)[
            sign
        ],
        confidence=CONFIDENCES[max(0, abs(lean) - LEAN_TO_ACT)],
        trade_plan=plan or UNUSED,
    ).model_dump_json(exclude_defaults=True)


def propose(features: QuestionFeatures, *, rising: bool) -> judgement.TradeProposal | None:
    """Return a plan that buys if `rising`, and sells otherwise.

    The stop is the candidate of 1.5 ATR. The target is the nearest level that pays at least the risk of the
    stop, within 4 ATR, or else 4 ATR. Returns None if the evidence has no stop within the limits.
    """
    named = trade_candidates(features.context, features.content(judgement.Layer.RISK), rising=rising)
    reach = _reach(features.context)
    if STOP not in named.stops or not 0 < _distance(features, named.stops[STOP]) <= reach:
        return None
    if _distance(features, named.targets[FAR]) > reach:
        return None
    return judgement.TradeProposal(entry="market", stop=STOP, target=_level_that_pays(features, named) or FAR)


def level_pays(features: QuestionFeatures, *, rising: bool) -> bool:
    """Return whether a level within 4 ATR pays at least the risk of the stop."""
    named = trade_candidates(features.context, features.content(judgement.Layer.RISK), rising=rising)
    return STOP in named.stops and _level_that_pays(features, named) is not None


def _level_that_pays(features: QuestionFeatures, named: Candidates) -> judgement.TargetName | None:
    least, most = (_distance(features, price) for price in (named.stops[STOP], named.targets[FAR]))
    levels = (name for name in LEVEL_NAMES if name in named.targets)
    return next((name for name in levels if least <= _distance(features, named.targets[name]) <= most), None)


def _distance(features: QuestionFeatures, price: Decimal) -> Decimal:
    return abs(price - features.context.last_close)


def _reach(context: Context) -> Decimal:
    percent = context.last_close * context.limits.max_distance_percent / 100
    return min(percent, context.atr * context.limits.max_distance_atr)


def _judged(
    features: QuestionFeatures, layer: judgement.Layer, answer: RuleAnswer
) -> judgement.LayerJudgement:
    return judgement.LayerJudgement(
        finding=answer.text[: judgement.ASKED_CHARS],
        evidence=features.evidence[layer].name,
        score=answer.score,
    )


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def _trend(features: QuestionFeatures, _sign_of_all: int = 0) -> RuleAnswer:
    """Score a step for the decision timeframe, and one for a longer one or structure."""
    here, above = [*features.row(judgement.Layer.TREND, "direction"), None, None][:2]
    structure = features.here(judgement.Layer.TREND, "structure")
    lean = SIGNS.get(here, 0) + SIGNS.get(structure if above is None else above, 0)
    frame = features.context.decision_timeframe
    return RuleAnswer(
        lean, f"{frame} points {_text(here)}, the next longer {_text(above)}; structure {_text(structure)}"
    )


def _momentum(features: QuestionFeatures, _sign_of_all: int = 0) -> RuleAnswer:
    """Score RSI, MACD histogram and, in a trend, ADX. At most 2 either way."""
    measures = ("rsi_14", "macd_histogram", "adx_14", "plus_di_14", "minus_di_14")
    rsi, histogram, adx, plus, minus = (
        features.here(judgement.Layer.INDICATORS, measure) for measure in measures
    )
    steps = _sign(histogram or 0)
    if rsi is not None and RSI_STRETCHED[0] <= rsi <= RSI_STRETCHED[1]:
        steps += (rsi > RSI_UNDECIDED[1]) - (rsi < RSI_UNDECIDED[0])
    if adx is not None and adx >= ADX_TRENDING:
        steps += _sign(plus - minus)
    text = f"RSI {_text(rsi)}, MACD histogram {_text(histogram)}, ADX {_text(adx)}"
    return RuleAnswer(max(-2, min(2, steps)), f"{text}, +DI {_text(plus)}, -DI {_text(minus)}")


def _levels(features: QuestionFeatures, sign: int) -> RuleAnswer:
    """Score one point for a level close behind the price, and one for room ahead."""
    content = features.content(judgement.Layer.LEVELS)
    above, below = (_nearest(content[side]) for side in ("above", "below"))
    ahead, behind = (above, below) if sign > 0 else (below, above)
    sheltered = behind is not None and abs(behind.distance_atr) <= SHELTER_ATR
    has_room = ahead is None or abs(ahead.distance_atr) >= ROOM_ATR
    text = f"above {_level_text(above)}; below {_level_text(below)}"
    return RuleAnswer(sheltered + has_room if sign else 0, text)


def _patterns(features: QuestionFeatures, _sign_of_all: int) -> RuleAnswer:
    """Score the latest break of the decision timeframe, and of the next longer one."""
    frames = {
        name: found for name, found in features.content(judgement.Layer.PATTERNS).items() if "break" in found
    }
    breaks = [found["break"] for found in frames.values()]
    lean = sum(SIGNS[broken.split()[1]] for broken in breaks)
    return RuleAnswer(
        lean, "; ".join(f"{name} {found['break']}" for name, found in frames.items()) or "no break"
    )


def _sentiment(features: QuestionFeatures, _sign_of_all: int) -> RuleAnswer:
    """Score one step if takers lean to one side."""
    share, streak = (
        features.here(judgement.Layer.SENTIMENT, measure) for measure in ("taker_buy_20_pct", "streak")
    )
    lean = 0 if share is None else (share > TAKERS_BALANCED[1]) - (share < TAKERS_BALANCED[0])
    return RuleAnswer(lean, f"buyers took {_text(share)} % of 20 bars; streak {_text(streak)}")


def _risk(features: QuestionFeatures, sign: int) -> RuleAnswer:
    """Score one point if a level pays for the stop."""
    content = features.content(judgement.Layer.RISK)
    long, short = (content.get(side, {}).get("stops", {}).get(STOP) for side in ("long", "short"))
    pays = sign != 0 and level_pays(features, rising=sign > 0)
    return RuleAnswer(int(pays), f"stop {STOP}: {_text(long)} for a long, {_text(short)} for a short")


def _volatility(features: QuestionFeatures, sign: int) -> RuleAnswer:
    """Score one point for normal volatility, and minus one for extreme volatility."""
    regime, atr_pct = (
        features.here(judgement.Layer.VOLATILITY, measure) for measure in ("regime", "atr_pct")
    )
    text = f"volatility is {_text(regime)}; ATR is {_text(atr_pct)} % of the price"
    return RuleAnswer(REGIME_SCORES.get(regime, 0) if sign else 0, text)


def _intermarket(features: QuestionFeatures, _sign_of_all: int) -> RuleAnswer:
    """Score one step for a market that leads the second one, and minus one if it lags."""
    content = features.content(judgement.Layer.INTERMARKET)
    return RuleAnswer(
        QUADRANTS.get(content["quadrant"], 0), f"{content['quadrant']} beside {content['beside']}"
    )


def _system(features: QuestionFeatures, sign: int) -> RuleAnswer:
    """Score one point for a profitable record, and minus one for a losing record."""
    content = features.content(judgement.Layer.SYSTEM)
    factor = content.get("profit_factor")
    score = 0 if factor is None or not sign else (factor >= PROFITABLE) - (factor <= LOSING)
    return RuleAnswer(score, f"profit factor {_text(factor)}, hit rate {_text(content['hit_rate_pct'])} %")


LAYER_RULES: Final[Mapping[judgement.Layer, Callable[[QuestionFeatures, int], RuleAnswer]]] = (
    MappingProxyType({
        judgement.Layer.TREND: _trend,
        judgement.Layer.LEVELS: _levels,
        judgement.Layer.PATTERNS: _patterns,
        judgement.Layer.INDICATORS: _momentum,
        judgement.Layer.SENTIMENT: _sentiment,
        judgement.Layer.RISK: _risk,
        judgement.Layer.VOLATILITY: _volatility,
        judgement.Layer.INTERMARKET: _intermarket,
        judgement.Layer.SYSTEM: _system,
    })
)


class NearestLevel(NamedTuple):
    """The nearest level on one side."""

    name: str
    price: float
    distance_atr: float


def _nearest(side: Mapping[str, Any]) -> NearestLevel | None:
    rows = zip(side["level"], side["price"], side["distance_atr"], strict=True)
    return next((NearestLevel(*row) for row in rows), None)


def _level_text(level: NearestLevel | None) -> str:
    return "none" if level is None else f"{level.name} at {level.price}"


def _text(value: Any) -> str:
    return "not available" if value is None else str(value)
