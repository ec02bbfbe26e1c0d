"""What the same intents would have come to without a choice: at the market on the next open; bought and held."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from agentic_trading.desk.exchange import Account, Exchange, Fill, Order
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.instrument import EXACT, Instrument, Side
from agentic_trading.desk.market.bar import Bar
from agentic_trading.ids import derived_id

WHOLE_SHARE = Decimal(1)


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """The fills of a run, the account after it, and what it is worth at the last close."""

    fills: tuple[Fill, ...]
    account: Account
    equity: Decimal


async def market_now(intents: Iterable[OrderIntent], bars: Sequence[Bar], exchange: Exchange) -> BaselineResult:
    """Run the same intents through a fresh `exchange` as market orders on the first bar after each decision.

    Sizes, stops and targets stay as they are, and so do costs and the share of volume: the difference to the
    real run is what the fill strategies were worth, the time that it took to choose them included. `bars` are those of the run, in order; empty ones raise
    `ValueError`.
    """
    waiting = sorted(intents, key=lambda intent: intent.as_of)
    return await _run((_at_market(intent) for intent in waiting), bars, exchange)


async def buy_and_hold(bars: Sequence[Bar], exchange: Exchange, instrument: Instrument) -> BaselineResult:
    """Spend all cash of a fresh `exchange` from the first open on, and hold; empty bars raise `ValueError`."""
    account = await exchange.account()
    first, last = _ends(bars)
    order = Order(
        order_id=derived_id("buy_and_hold", instrument.symbol),
        intent_id="buy_and_hold",
        symbol=instrument.symbol,
        side=Side.BUY,
        quantity=instrument.lots(EXACT.divide(account.cash, first.open)),
        order_type="market",
        active_from=first.open_time,
        expires_at=last.close_time + timedelta(seconds=1),
        max_participation=WHOLE_SHARE,
    )
    return await _run([order], bars, exchange)


def _at_market(intent: OrderIntent) -> Order:
    return Order(
        order_id=derived_id("market_now", intent.intent_id),
        intent_id=intent.intent_id,
        symbol=intent.symbol,
        side=intent.side,
        quantity=intent.quantity,
        order_type="market",
        active_from=intent.as_of,
        expires_at=intent.expires_at,
        on_expiry="cross",
        void_from=intent.expires_at if intent.kind == "entry" else None,
        max_participation=WHOLE_SHARE,
        reduce_only=intent.kind == "exit",
        stop_loss=intent.stop_loss,
        take_profit=intent.take_profit,
        trace_id=intent.trace_id,
        causation_id=intent.intent_id,
    )


async def _run(orders: Iterable[Order], bars: Sequence[Bar], exchange: Exchange) -> BaselineResult:
    """Submit each order right before the first bar that may fill it; `orders` come in order of that time."""
    _ends(bars)
    waiting = deque(orders)
    fills: list[Fill] = []
    marks: dict[str, Decimal] = {}
    for bar in bars:
        while waiting and waiting[0].active_from <= bar.open_time:
            await exchange.submit(waiting.popleft())
        reports = await exchange.on_bar(bar)
        fills.extend(report for report in reports if isinstance(report, Fill))
        marks[bar.symbol] = bar.close
    account = await exchange.account()
    return BaselineResult(tuple(fills), account, account.equity(marks))


def _ends(bars: Sequence[Bar]) -> tuple[Bar, Bar]:
    if not bars:
        raise ValueError("a baseline needs bars; give those of the run")
    return bars[0], bars[-1]
