"""The trade that the rules propose: in at the market, out at an ATR stop, or at a level or a multiple of the ATR."""

from decimal import Decimal
from typing import Final

from agentic_trading.desk.analysis.candidates import Candidates, trade_candidates
from agentic_trading.desk.analysis.context import Context
from agentic_trading.desk.analysis.judgement import Layer, TradeProposal, StopName, TargetName
from agentic_trading.desk.analysis.features import QuestionFeatures

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
