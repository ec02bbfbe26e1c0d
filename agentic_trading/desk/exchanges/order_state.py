"""An order at work: how far it has come."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from agentic_trading.desk.exchange import Cancellation, CancelReason, Order
from agentic_trading.desk.instrument import ZERO, Side


@dataclass(slots=True)
class OrderState:
    """An order and what has become of it.

    `left` is unfilled. `guarded` is filled and still to be closed by the order's stop or target. `limit` is
    known from the first bar on that could fill the order, and from the second one on the order is `resting`.
    `crossing` says that its deadline made it a market order, `stopped` that its stop was triggered.
    """

    order: Order
    left: Decimal
    guarded: Decimal = ZERO
    limit: Decimal | None = None
    resting: bool = False
    crossing: bool = False
    stopped: bool = False
    fills: int = 0

    @property
    def is_open(self) -> bool:
        return self.left > 0 or self.guarded > 0

    @property
    def is_guarding(self) -> bool:
        return self.order.stop_loss is not None or self.order.take_profit is not None

    @property
    def at_market(self) -> bool:
        return self.order.order_type == "market" or self.crossing

    def has_passed(self, price: Decimal) -> bool:
        """Tell whether to open at `price` would be at or beyond the order's own stop or target."""
        if self.order.reduce_only:
            return False
        low, high = self.order.stop_loss, self.order.take_profit
        if self.order.side is Side.SELL:
            low, high = high, low
        return (low is not None and price <= low) or (high is not None and price >= high)

    def end(self, reason: CancelReason, at: datetime) -> Cancellation:
        """Give up what is left, which must be something; what was filled stays guarded."""
        left, self.left = self.left, ZERO
        return Cancellation(
            order_id=self.order.order_id,
            intent_id=self.order.intent_id,
            symbol=self.order.symbol,
            quantity=left,
            reason=reason,
            time=at,
            trace_id=self.order.trace_id,
        )
