"""The costs of filling intents against their decision prices, and two baselines."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal

from pydantic import BaseModel

from agentic_trading.desk.exchange import Account, Exchange, Fill, Order, exits_first
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.instrument import BPS, EXACT, ZERO, Instrument, Side
from agentic_trading.desk.market.bar import LATEST, Bar
from agentic_trading.ids import derived_id

BPS_STEP = Decimal("0.0001")
WHOLE_SHARE = Decimal(1)


class Shortfall(BaseModel, frozen=True):
    """The implementation shortfall of the fills of one intent. Positive is a cost.

    Money is in the quote currency.

    Attributes:
        unfilled: The quantity that was never traded. Fills cannot show its missed gain.
        arrival_value: The filled quantity at the arrival price.
        price_cost: The exact cost of prices that were worse than the arrival price: delay, spread and impact
            together.
        fees: The fees, in addition to `price_cost`.
        total_bps: Price cost and fees over the arrival value, rounded to 1e-4. None without fills.

    """

    intent_id: str
    symbol: str
    side: Side
    filled: Decimal
    unfilled: Decimal
    arrival_value: Decimal
    price_cost: Decimal
    fees: Decimal
    total_bps: Decimal | None


class TotalShortfall(BaseModel, frozen=True):
    """The shortfall of several intents.

    Attributes:
        total_bps: The shortfall weighted by value. None without fills.
        whole: The number of intents that were filled completely.
        in_part: The number of intents that were filled in part.
        not_at_all: The number of intents without fills.

    """

    arrival_value: Decimal = ZERO
    price_cost: Decimal = ZERO
    fees: Decimal = ZERO
    total_bps: Decimal | None = None
    whole: int = 0
    in_part: int = 0
    not_at_all: int = 0


def shortfalls(intents: Iterable[OrderIntent], fills: Iterable[Fill]) -> list[Shortfall]:
    """Return the shortfall of each intent, in order.

    Fills of stops and targets, and of other intents, are left out. After A. F. Perold, "The Implementation
    Shortfall: Paper versus Reality", Journal of Portfolio Management 14(3), 1988: the executed part, side x
    (fill price - decision price) x quantity + fees.
    """
    own: defaultdict[str, list[Fill]] = defaultdict(list)
    for fill in fills:
        if fill.cause in {"order", "deadline"}:
            own[fill.intent_id].append(fill)
    return [_shortfall(intent, own[intent.intent_id]) for intent in intents]


def total_shortfall(parts: Sequence[Shortfall]) -> TotalShortfall:
    """Add the shortfalls of intents in one quote currency."""
    price_cost = _sum(part.price_cost for part in parts)
    fees = _sum(part.fees for part in parts)
    arrival_value = _sum(part.arrival_value for part in parts)
    not_at_all = sum(part.filled == 0 for part in parts)
    whole = sum(part.unfilled == 0 for part in parts)
    return TotalShortfall(
        arrival_value=arrival_value,
        price_cost=price_cost,
        fees=fees,
        total_bps=_in_bps(EXACT.add(price_cost, fees), arrival_value),
        whole=whole,
        in_part=len(parts) - whole - not_at_all,
        not_at_all=not_at_all,
    )


def _shortfall(intent: OrderIntent, fills: Sequence[Fill]) -> Shortfall:
    filled = _sum(fill.quantity for fill in fills)
    arrival_value = EXACT.multiply(filled, intent.arrival_price)
    paid_more = EXACT.subtract(_sum(fill.notional for fill in fills), arrival_value)
    price_cost = EXACT.multiply(intent.side.sign, paid_more)
    fees = _sum(fill.fee for fill in fills)
    return Shortfall(
        intent_id=intent.intent_id,
        symbol=intent.symbol,
        side=intent.side,
        filled=filled,
        unfilled=EXACT.subtract(intent.quantity, filled),
        arrival_value=arrival_value,
        price_cost=price_cost,
        fees=fees,
        total_bps=_in_bps(EXACT.add(price_cost, fees), arrival_value),
    )


def _sum(amounts: Iterable[Decimal]) -> Decimal:
    total = ZERO
    for amount in amounts:
        total = EXACT.add(total, amount)
    return total


def _in_bps(part: Decimal, whole: Decimal) -> Decimal | None:
    if whole == 0:
        return None
    return EXACT.divide(EXACT.multiply(part, BPS), whole).quantize(BPS_STEP, ROUND_HALF_EVEN, EXACT)


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """The fills of a run, the account after it, and its equity at the last close."""

    fills: tuple[Fill, ...]
    account: Account
    equity: Decimal


class Baseline:
    """Orders on a separate exchange, over the bars of a run.

    An order is submitted right before the first bar that may fill it. `orders` must be in order of
    `active_from`.
    """

    def __init__(self, exchange: Exchange, orders: Iterable[Order] = ()) -> None:
        self._exchange = exchange
        self._waiting = deque(orders)
        self._fills: list[Fill] = []
        self._marks: dict[str, Decimal] = {}

    def add(self, order: Order) -> None:
        """Add an order. It must not become active earlier than the orders before it."""
        self._waiting.append(order)

    async def on_bars(self, bars: Sequence[Bar]) -> None:
        """Process the next bars of the run, which close at the same time."""
        for bar in bars:
            await self._submit_due(bar.open_time)
        for bar in await exits_first(self._exchange, bars):
            await self.on_bar(bar)

    async def on_bar(self, bar: Bar) -> None:
        """Process the next bar of the run."""
        await self._submit_due(bar.open_time)
        reports = await self._exchange.on_bar(bar)
        self._fills.extend(report for report in reports if isinstance(report, Fill))
        self._marks[bar.symbol] = bar.close

    async def _submit_due(self, open_time: datetime) -> None:
        while self._waiting and self._waiting[0].active_from <= open_time:
            await self._exchange.submit(self._waiting.popleft())

    async def equity(self) -> Decimal:
        """Return the equity at the last close."""
        return (await self._exchange.account()).equity(self._marks)

    async def result(self) -> BaselineResult:
        """Return the result as of the last bar."""
        account = await self._exchange.account()
        return BaselineResult(tuple(self._fills), account, account.equity(self._marks))


class Baselines:
    """The baselines of a run: its intents as market orders, and holding each symbol.

    Each baseline has its own exchange from `new_exchange()`, and trades on the grids that the run has seen by
    then. To hold a symbol, all the cash is spent on it from its first open on.
    """

    def __init__(self, instruments: Mapping[str, Instrument], new_exchange: Callable[[], Exchange]) -> None:
        self._instruments = instruments
        self._new_exchange = new_exchange
        self._market_now = Baseline(new_exchange())
        self._held: dict[str, Baseline] = {}
        self._intents = 0

    async def on_bars(self, bars: Sequence[Bar], intents: Sequence[OrderIntent]) -> None:
        """Process the bars of a moment, and then the new intents of the run.

        Args:
            bars: The bars of the moment.
            intents: All intents that the run has sent so far, in order.

        """
        await self._market_now.on_bars(bars)
        for bar in bars:
            if bar.symbol not in self._held:
                instrument = self._instruments[bar.symbol]
                self._held[bar.symbol] = await buy_and_hold(bar, self._new_exchange(), instrument)
            await self._held[bar.symbol].on_bar(bar)
        for intent in intents[self._intents :]:
            self._market_now.add(at_market(intent))
        self._intents = len(intents)

    async def market_now(self) -> BaselineResult:
        """Return the result of the same intents as market orders.

        Each order is active from the first bar after its decision. Sizes, stops, targets, costs and the share
        of volume are those of the run. The difference to the run is the value of the fill strategies,
        including the time to choose them.
        """
        return await self._market_now.result()

    async def equities(self, cash: Decimal, symbols: Decimal) -> tuple[Decimal, Decimal]:
        """Return the equity at the last close of holding all symbols, and of the same intents at the market.

        To hold all symbols, an equal part of `cash` is invested in each of `symbols`. The part of a symbol
        without a bar is cash.
        """
        gains = [EXACT.subtract(await each.equity(), cash) for each in self._held.values()]
        return EXACT.add(cash, EXACT.divide(_sum(gains), symbols)), await self._market_now.equity()

    async def held(self) -> dict[str, BaselineResult]:
        """Return the result of holding each symbol."""
        return {symbol: await baseline.result() for symbol, baseline in self._held.items()}


async def buy_and_hold(first: Bar, exchange: Exchange, instrument: Instrument) -> Baseline:
    """Return a baseline that spends all cash from the open of `first` on, and holds.

    Its bars must be of this instrument only.
    """
    account = await exchange.account()
    order = Order(
        order_id=derived_id("buy_and_hold", instrument.symbol),
        intent_id="buy_and_hold",
        symbol=instrument.symbol,
        side=Side.BUY,
        quantity=instrument.lots(EXACT.divide(account.cash, first.open)),
        order_type="market",
        active_from=first.open_time,
        expires_at=LATEST,
        max_participation=WHOLE_SHARE,
    )
    return Baseline(exchange, [order])


def at_market(intent: OrderIntent) -> Order:
    """Return an intent as a market order, without a fill strategy."""
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
