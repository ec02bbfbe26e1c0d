"""The trade that the rules propose: in at the market, out at an ATR stop, or at a level or a multiple of the risk."""

from decimal import Decimal
from typing import Final

from agentic_trading.desk.analysis.context import Context
from agentic_trading.desk.analysis.judgement import Layer, Proposal
from agentic_trading.desk.analysis.sheet import Sheet

STOP: Final = "atr_1.5"
NEAR_R: Final = Decimal(1)
FAR_R: Final = Decimal("2.5")


def propose(sheet: Sheet, *, rising: bool) -> Proposal | None:
    """Return a plan that buys if `rising`, else sells; None if the evidence gives no stop within the limits.

    The stop is the candidate of 1.5 ATR. The target is the nearest level told that pays 1 R or more, but no
    further than 2.5 R, nor beyond the limits of the context; 2.5 R where no level pays.
    """
    told = sheet.told(Layer.RISK).get(_side(rising=rising))
    if told is None:
        return None
    entry, stop = sheet.context.last_close, _exact(told["stops"][STOP])
    risk, reach = abs(entry - stop), _reach(sheet.context)
    if not 0 < risk <= reach:
        return None
    far = entry + (1 if rising else -1) * min(FAR_R * risk, reach)
    level = level_that_pays(sheet, stop, rising=rising)
    return Proposal(
        entry="market",
        stop=stop,
        target=far if level is None else min(far, level, key=lambda price: abs(price - entry)),
        invalidation=f"a trade at {stop:f}, the stop of 1.5 ATR",
    )


def level_that_pays(sheet: Sheet, stop: Decimal, *, rising: bool) -> Decimal | None:
    """Return the nearest level told that pays 1 R or more against `stop`; None if none within the limits does."""
    entry, reach = sheet.context.last_close, _reach(sheet.context)
    least = NEAR_R * abs(entry - stop)
    levels = sheet.told(Layer.RISK).get(_side(rising=rising), {}).get("targets", ())
    prices = (_exact(level["price"]) for level in levels)
    return next((price for price in prices if least <= abs(price - entry) <= reach), None)


def _side(*, rising: bool) -> str:
    return "long" if rising else "short"


def _reach(context: Context) -> Decimal:
    percent = context.last_close * context.limits.max_distance_percent / 100
    return min(percent, context.atr * context.limits.max_distance_atr)


def _exact(number: float) -> Decimal:
    """Return a rounded number of the evidence with the digits that it is told with."""
    return Decimal(repr(number))
