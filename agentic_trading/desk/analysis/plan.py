"""A trade plan from a judgement: named candidates, exact prices, and their rules."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel

from agentic_trading.desk.analysis.context import Context, evidence_by_layer
from agentic_trading.desk.analysis.judgement import Direction, Judgement, Layer, StopName, TargetName
from agentic_trading.desk.instrument import Side
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.fields import Open
from agentic_trading.llm.result import Violation

SIDES: Final = {Direction.BULLISH: Side.BUY, Direction.BEARISH: Side.SELL}
PULLBACK_ATR: Final = Decimal("0.5")
ATR: Final = "atr_"
LEVEL: Final = "level_"


@dataclass(frozen=True, slots=True)
class PriceRange:
    """The prices from `low` to `high`, both included, except `without`."""

    low: Decimal
    high: Decimal
    without: Decimal | None = None

    def __contains__(self, price: Decimal) -> bool:
        return self.low <= price <= self.high and price != self.without

    @property
    def text(self) -> str:
        return f"{self.low} to {self.high}" + (
            f", without {self.without}" if self.without is not None else ""
        )


@dataclass(frozen=True, slots=True)
class PlanPrices:
    """The prices of a proposed trade, in the quote currency.

    `entry` is "market" or a limit price.
    """

    entry: Literal["market"] | Decimal
    stop: Decimal
    target: Decimal


def plan_violations(context: Context, proposal: PlanPrices, *, rising: bool) -> Iterator[Violation]:
    """Yield the rules that the prices of a proposal break.

    The proposal buys if `rising`. A limit price is at the last close, or on the side that waits for a better
    price. The stop is on the losing side of the entry, and the target on the winning side. All keep the
    limits of the context.
    """
    market = _range_around(context.last_close, context.atr * context.limits.max_distance_atr)
    entry = context.last_close
    if proposal.entry != "market":
        entry = proposal.entry
        yield from _price_violation(
            "$.trade_plan.entry", entry, _side(market, context.last_close, above=not rising)
        )
    percent = _range_around(entry, entry * context.limits.max_distance_percent / 100)
    reach = PriceRange(max(market.low, percent.low), min(market.high, percent.high), without=entry)
    yield from _price_violation("$.trade_plan.stop", proposal.stop, _side(reach, entry, above=not rising))
    yield from _price_violation("$.trade_plan.target", proposal.target, _side(reach, entry, above=rising))


def _range_around(centre: Decimal, distance: Decimal) -> PriceRange:
    return PriceRange(max(Decimal(0), centre - distance), centre + distance)


def _side(allowed: PriceRange, price: Decimal, *, above: bool) -> PriceRange:
    return (
        PriceRange(price, allowed.high, allowed.without)
        if above
        else PriceRange(allowed.low, price, allowed.without)
    )


def _price_violation(path: str, price: Decimal, allowed: PriceRange) -> Iterator[Violation]:
    if price not in allowed:
        yield Violation(
            path=path,
            keyword="price",
            message=f"{price} is out of place; allowed: {allowed.text}",
            actual=str(price),
            allowed=allowed.text,
        )


class TradePlan(BaseModel, frozen=True):
    """A trade with its exits. Its size is set later, by the risk limits.

    Attributes:
        entry: The limit price, or the last close for an entry at the market.
        stop: The whole position is closed here, with a loss.
        target: The whole position is closed here, with a gain.
        risk_reward: The result of `risk_reward(entry, stop, target)`.

    """

    symbol: str
    side: Open[Side]
    entry_type: Open[Literal["market", "limit"]]
    entry: Decimal
    stop: Decimal
    target: Decimal
    risk_reward: Decimal
    invalidation: str


def trade_plan(
    symbol: str,
    direction: Direction,
    prices: PlanPrices,
    last_close: Decimal,
    invalidation: str | None = None,
) -> TradePlan | None:
    """Return the plan with checked prices in `direction`, or None if it is neutral.

    The default of `invalidation` is a trade at the stop.
    """
    side = SIDES.get(direction)
    if side is None:
        return None
    entry = last_close if prices.entry == "market" else prices.entry
    return TradePlan(
        symbol=symbol,
        side=side,
        entry_type="market" if prices.entry == "market" else "limit",
        entry=entry,
        stop=prices.stop,
        target=prices.target,
        risk_reward=risk_reward(entry, prices.stop, prices.target),
        invalidation=invalidation or f"a trade at {prices.stop:f}",
    )


def risk_reward(entry: Decimal, stop: Decimal, target: Decimal) -> Decimal:
    """Return the reward for one unit of risk, rounded down to hundredths.

    This is |target - entry| / |entry - stop| before costs. It is exact until the rounding.

    Raises:
        ZeroDivisionError: If the stop is at the entry. The check of an answer refuses such a stop.

    """
    ratio = abs(Fraction(target) - Fraction(entry)) / abs(Fraction(entry) - Fraction(stop))
    return Decimal(f"{int(ratio * 100)}e-2")  # from text: arithmetic would round to 28 digits


@dataclass(frozen=True, slots=True)
class Candidates:
    """The prices of names for a trade in one direction.

    A name without a price is absent.
    """

    entries: Mapping[str, Literal["market"] | Decimal]
    stops: Mapping[str, Decimal]
    targets: Mapping[str, Decimal]


def trade_candidates(context: Context, risk: Mapping[str, Any], *, rising: bool) -> Candidates:
    """Return the price of every name for a trade that buys if `rising`, or else sells.

    Stops are those of the evidence. ATR targets are that many ATR beyond the last close, and `level_1` to
    `level_4` are the targets of the evidence in order. A pullback waits for half an ATR. `risk` is the
    content of layer 6.
    """
    sign, content = (1 if rising else -1), risk.get("long" if rising else "short", {})
    levels = {
        f"{LEVEL}{place}": level
        for place, level in enumerate(content.get("targets", {}).get("price", ()), start=1)
    }
    multiples = (name for name in get_args(TargetName) if name.startswith(ATR))
    return Candidates(
        entries={"market": "market", "pullback": context.last_close - sign * PULLBACK_ATR * context.atr},
        stops={
            name: exact(price)
            for name, price in content.get("stops", {}).items()
            if name in get_args(StopName)
        },
        targets={
            **{
                name: context.last_close + sign * Decimal(name.removeprefix(ATR)) * context.atr
                for name in multiples
            },
            **{name: exact(level) for name, level in levels.items()},
        },
    )


def candidates_of(envelope: LLMEnvelope, *, rising: bool) -> Candidates:
    """Return the candidates of a question.

    Raises:
        pydantic.ValidationError: If the context is not the analyst's.

    """
    risk = evidence_by_layer(envelope).get(Layer.RISK)
    return trade_candidates(
        Context.model_validate(envelope.context), risk.content if risk else {}, rising=rising
    )


def plan_prices(envelope: LLMEnvelope, judgement: Judgement) -> PlanPrices | None:
    """Return the prices of an answer's plan, or None if the answer is neutral.

    The answer must have passed `check_cmt_assessment`.
    """
    proposal, direction = judgement.trade_plan, judgement.direction
    if proposal is None or direction is Direction.NEUTRAL:
        return None
    named = candidates_of(envelope, rising=direction is Direction.BULLISH)
    return PlanPrices(
        entry=named.entries[proposal.entry] if isinstance(proposal.entry, str) else proposal.entry,
        stop=named.stops[proposal.stop] if isinstance(proposal.stop, str) else proposal.stop,
        target=named.targets[proposal.target] if isinstance(proposal.target, str) else proposal.target,
    )


def exact(number: float) -> Decimal:
    """Return a rounded number of the evidence as a decimal with the same digits."""
    return Decimal(repr(number))
