"""An honest baseline: the analyst's question answered by fixed thresholds, as text, without a model.

Nothing here was fitted to data: the thresholds are textbook values or round numbers.
"""

from typing import Any, Final

from agentic_trading.desk.analysis.judgement import (
    Confidence,
    Direction,
    Finding,
    Judgement,
    Layer,
    LayerJudgement,
    Layers,
    Proposal,
)
from agentic_trading.desk.analysis.rule_plan import STOP, level_that_pays, propose
from agentic_trading.desk.analysis.sheet import Sheet
from agentic_trading.llm.envelope import LLMEnvelope

LEAN_TO_ACT: Final = 2
RSI_UNDECIDED: Final = (45, 55)
RSI_STRETCHED: Final = (25, 75)
ADX_TRENDING: Final = 20
SHELTER_ATR: Final = 1.0
ROOM_ATR: Final = 0.5

SIGNS: Final = {"up": 1, "down": -1}
REGIME_SCORES: Final = {"normal": 1, "extreme": -1}
CONFIDENCES: Final[tuple[Confidence, ...]] = ("low", "medium", "high")


def cmt_assessment_rule(envelope: LLMEnvelope) -> str:
    """Answer the analyst's question; equal context and evidence give equal text.

    Trend and indicators lean from -2 (bearish) to 2 (bullish) each. A sum of 2 or more either way makes the
    direction, if there is a stop within the limits; otherwise it is neutral, and no layer scores for or
    against it. Raises pydantic's `ValidationError` for an envelope that is not the analyst's.
    """
    sheet = Sheet.of(envelope)
    trend, momentum = _trend_lean(sheet), _momentum_lean(sheet)
    lean = trend + momentum
    plan = propose(sheet, rising=lean > 0) if abs(lean) >= LEAN_TO_ACT else None
    sign = _sign(lean) if plan else 0
    return Judgement(
        rationale=f"trend leans {trend:+d}, indicators {momentum:+d}; it takes {LEAN_TO_ACT} together to act",
        direction=_direction(sign),
        confidence=CONFIDENCES[max(0, abs(lean) - LEAN_TO_ACT)],
        layers=Layers(
            trend=_layer(sheet, Layer.TREND, trend, trend * sign, _trend_text(sheet)),
            levels=_levels(sheet, sign),
            indicators=_layer(sheet, Layer.INDICATORS, momentum, momentum * sign, _momentum_text(sheet)),
            risk=_risk(sheet, plan, sign),
            volatility=_volatility(sheet, sign),
        ),
        trade_plan=plan,
    ).model_dump_json()


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def _direction(lean: int) -> Direction:
    return (Direction.NEUTRAL, Direction.BULLISH, Direction.BEARISH)[_sign(lean)]


def _trend_lean(sheet: Sheet) -> int:
    """One step for the decision timeframe, one for the next longer or, where that has no trend yet, the structure."""
    here, above = [*sheet.row(Layer.TREND, "direction"), None, None][:2]
    second = sheet.here(Layer.TREND, "structure") if above is None else above
    return SIGNS.get(here, 0) + SIGNS.get(second, 0)


def _trend_text(sheet: Sheet) -> str:
    here, above = [*sheet.row(Layer.TREND, "direction"), None, None][:2]
    structure = sheet.here(Layer.TREND, "structure")
    frame = sheet.context.decision_timeframe
    return f"{frame} points {_said(here)}, the next longer {_said(above)}; structure of {frame}: {_said(structure)}"


def _momentum_lean(sheet: Sheet) -> int:
    """One step each for RSI, MACD histogram and, in a trend, the sides of ADX; 2 at most either way."""
    rsi, histogram, adx, plus, minus = _momentum(sheet)
    steps = _sign(histogram or 0)
    if rsi is not None and RSI_STRETCHED[0] <= rsi <= RSI_STRETCHED[1]:
        steps += (rsi > RSI_UNDECIDED[1]) - (rsi < RSI_UNDECIDED[0])
    if adx is not None and adx >= ADX_TRENDING:
        steps += _sign(plus - minus)
    return max(-2, min(2, steps))


def _momentum_text(sheet: Sheet) -> str:
    rsi, histogram, adx, plus, minus = map(_said, _momentum(sheet))
    return f"RSI {rsi}, MACD histogram {histogram}, ADX {adx} with +DI {plus} and -DI {minus}"


def _momentum(sheet: Sheet) -> list[Any]:
    measures = ("rsi_14", "macd_histogram", "adx_14", "plus_di_14", "minus_di_14")
    return [sheet.here(Layer.INDICATORS, measure) for measure in measures]


def _levels(sheet: Sheet, sign: int) -> LayerJudgement:
    """One point for a level close behind the price, one for room ahead of it."""
    told = sheet.told(Layer.LEVELS)
    above, below = (next(iter(told.get(side, ())), None) for side in ("above", "below"))
    ahead, behind = (above, below) if sign > 0 else (below, above)
    sheltered = behind is not None and abs(behind["distance_atr"]) <= SHELTER_ATR
    has_room = ahead is None or abs(ahead["distance_atr"]) >= ROOM_ATR
    score = sheltered + has_room if sign else 0
    text = f"nearest above: {_level_said(above)}; nearest below: {_level_said(below)}"
    return _layer(sheet, Layer.LEVELS, sign if score == 2 else 0, score, text)


def _risk(sheet: Sheet, plan: Proposal | None, sign: int) -> LayerJudgement:
    """One point if a level pays for the stop."""
    told = sheet.told(Layer.RISK)
    long, short = (told.get(side, {}).get("stops", {}).get(STOP) for side in ("long", "short"))
    text = f"stop {STOP}: {_said(long)} for a long, {_said(short)} for a short"
    pays = plan is not None and level_that_pays(sheet, plan.stop, rising=sign > 0) is not None
    return _layer(sheet, Layer.RISK, 0, int(pays), text)


def _volatility(sheet: Sheet, sign: int) -> LayerJudgement:
    """One point for normal volatility, one off for extreme."""
    regime, atr_pct = (sheet.here(Layer.VOLATILITY, measure) for measure in ("regime", "atr_pct"))
    frame = sheet.context.decision_timeframe
    text = f"volatility of {frame}: {_said(regime)}; ATR is {_said(atr_pct)} % of the price"
    return _layer(sheet, Layer.VOLATILITY, 0, REGIME_SCORES.get(regime, 0) if sign else 0, text)


def _layer(sheet: Sheet, layer: Layer, lean: int, score: int, text: str) -> LayerJudgement:
    if layer not in sheet.evidence:
        return LayerJudgement(
            direction=Direction.NEUTRAL, score=0, confidence="low", findings=(), unavailable=True
        )
    return LayerJudgement(
        direction=_direction(lean),
        score=score,
        confidence=CONFIDENCES[abs(score)],
        findings=(Finding(text=text, evidence_ids=(sheet.evidence[layer].name,)),),
        unavailable=False,
    )


def _level_said(level: dict[str, Any] | None) -> str:
    return "none" if level is None else f"{level['level']} at {level['price']}"


def _said(value: Any) -> str:
    return "not available" if value is None else str(value)
