"""Where the prices of a proposed trade may lie."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from agentic_trading.desk.analysis.context import Context
from agentic_trading.llm.attempt_trace import Violation


@dataclass(frozen=True, slots=True)
class PriceRange:
    """The prices from `low` to `high`, both included but for `without`."""

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
    """The prices of a proposed trade, in the quote currency; `entry` is "market" or a limit price."""

    entry: Literal["market"] | Decimal
    stop: Decimal
    target: Decimal


def plan_violations(context: Context, proposal: PlanPrices, *, rising: bool) -> Iterator[Violation]:
    """Give what is wrong with the prices of a proposal; `rising` says that it buys.

    A limit price is at the last close or on the side that waits for a better price. The stop is on the
    losing side of the entry, the target on the winning side. All keep the limits of the context.
    """
    market = _around(context.last_close, context.atr * context.limits.max_distance_atr)
    entry = context.last_close
    if proposal.entry != "market":
        entry = proposal.entry
        yield from _unless("$.trade_plan.entry", entry, _side(market, context.last_close, above=not rising))
    percent = _around(entry, entry * context.limits.max_distance_percent / 100)
    reach = PriceRange(max(market.low, percent.low), min(market.high, percent.high), without=entry)
    yield from _unless("$.trade_plan.stop", proposal.stop, _side(reach, entry, above=not rising))
    yield from _unless("$.trade_plan.target", proposal.target, _side(reach, entry, above=rising))


def _around(centre: Decimal, distance: Decimal) -> PriceRange:
    return PriceRange(max(Decimal(0), centre - distance), centre + distance)


def _side(span: PriceRange, price: Decimal, *, above: bool) -> PriceRange:
    return PriceRange(price, span.high, span.without) if above else PriceRange(span.low, price, span.without)


def _unless(path: str, price: Decimal, allowed: PriceRange) -> Iterator[Violation]:
    if price not in allowed:
        yield Violation(
            path=path,
            keyword="price",
            message=f"{price} is out of place; allowed: {allowed.text}",
            actual=str(price),
            allowed=allowed.text,
        )
