"""What holds on paper for any bars and any orders: money and quantities are conserved, limits are kept."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.exchange import Account, ExecutionReport, Order
from agentic_trading.desk.instrument import EXACT, Instrument
from agentic_trading.desk.market.bar import Bar
from tests.desk.trade import FIVE_MINUTES, START, bar, fills_of, listed, order, paper

ODD = Instrument(
    symbol="BTCUSDT", tick_size=Decimal("0.07"), lot_size=Decimal("0.0003"), min_quantity=Decimal("0.0003")
)
CASH = Decimal("1000.123456789")

steps = st.integers(-300, 300)
volumes = st.decimals(0, 50, places=5)


@st.composite
def some_bars(draw: st.DrawFn) -> list[Bar]:
    """Return up to twelve bars that wander from 100, with holes between some."""
    bars, close, number = [], Decimal(100), 0
    for opening, closing, above, below in draw(
        st.lists(st.tuples(steps, steps, st.integers(0, 300), st.integers(0, 300)), min_size=2, max_size=12)
    ):
        opened = max(close + Decimal(opening).scaleb(-2), Decimal(10))
        close = max(opened + Decimal(closing).scaleb(-2), Decimal(10))
        high = max(opened, close) + Decimal(above).scaleb(-2)
        low = min(opened, close) - Decimal(below).scaleb(-2)
        bars.append(bar(number, f"{opened} {high} {low} {close}", str(draw(volumes))))
        number += draw(st.sampled_from([1, 1, 1, 3]))
    return bars


@st.composite
def some_order(draw: st.DrawFn, number: int) -> Order:
    """Return an order of any kind on the odd grid."""

    def price(least: int, most: int) -> Decimal:
        return ODD.tick_size * draw(st.integers(least, most))

    start = draw(st.integers(0, 6))
    kind = draw(st.sampled_from(["market", "limit", "post_only"]))
    pegged = draw(st.booleans())
    changes: dict[str, Any] = {
        "order_id": f"o{number}",
        "intent_id": f"i{number % 3}",
        "side": draw(st.sampled_from(["buy", "sell"])),
        "quantity": ODD.lot_size * draw(st.integers(1, 60_000)),
        "order_type": kind,
        "limit_price": price(1340, 1500) if kind != "market" and not pegged else None,
        "peg_bps": draw(st.decimals(-50, 50, places=2)) if kind != "market" and pegged else None,
        "time_in_force": draw(st.sampled_from(["gtc", "ioc"])),
        "active_from": START + start * FIVE_MINUTES,
        "expires_at": START + (start + draw(st.integers(1, 5))) * FIVE_MINUTES,
        "on_expiry": draw(st.sampled_from(["cancel", "cross"])),
        "void_from": START + (start + draw(st.integers(1, 7))) * FIVE_MINUTES
        if draw(st.booleans())
        else None,
        "max_participation": draw(st.decimals("0.01", 1, places=2)),
        "reduce_only": draw(st.booleans()),
        "stop_loss": price(1330, 1510) if draw(st.booleans()) else None,
        "take_profit": price(1330, 1510) if draw(st.booleans()) else None,
    }
    return order(**changes)


some_orders = st.integers(1, 6).flatmap(
    lambda count: st.tuples(*(some_order(number) for number in range(count)))
)


def run(bars: list[Bar], orders: tuple[Order, ...], **changes: Any) -> tuple[list[ExecutionReport], Account]:
    """Trade the orders over the bars on the odd grid."""

    async def trade() -> tuple[list[ExecutionReport], Account]:
        exchange = paper(instruments=listed(ODD), cash=CASH, **changes)
        for asked in orders:
            await exchange.submit(asked)
        reports = [report for closed in bars for report in await exchange.on_bar(closed)]
        return reports, await exchange.account()

    return asyncio.run(trade())


@given(some_bars(), some_orders)
def test_account_equals_sum_of_fills(bars: list[Bar], orders: tuple[Order, ...]) -> None:
    with localcontext(prec=5):
        reports, account = run(bars, orders)

    cash, held = CASH, Decimal(0)
    for fill in fills_of(reports):
        fee = EXACT.divide(
            EXACT.multiply(fill.price * fill.quantity, 5 if fill.liquidity == "taker" else 2), 10_000
        )
        assert 0 <= fill.fee - fee < Decimal("1e-8")
        cash += -fill.side.sign * fill.price * fill.quantity - fill.fee
        held += fill.side.sign * fill.quantity
    assert account.cash == cash
    assert account.quantity("BTCUSDT") == held
    assert account.equity({"BTCUSDT": Decimal(100)}) == cash + held * 100


@given(some_bars(), some_orders)
def test_longs_only_keep_balances_nonnegative(bars: list[Bar], orders: tuple[Order, ...]) -> None:
    reports, _ = run(bars, orders, allow_short=False)

    cash, held = CASH, Decimal(0)
    for fill in fills_of(reports):
        cash += fill.cash_change
        held += fill.side.sign * fill.quantity
        assert cash >= 0
        assert held >= 0


@given(some_bars(), some_orders)
def test_growing_position_never_exceeds_equity(bars: list[Bar], orders: tuple[Order, ...]) -> None:
    reports, _ = run(bars, orders)

    cash, held = CASH, Decimal(0)
    for fill in fills_of(reports):
        before = abs(held)
        cash += fill.cash_change
        held += fill.side.sign * fill.quantity
        if abs(held) > before:
            assert abs(held) * fill.price <= cash + held * fill.price


@given(some_bars(), some_orders)
def test_fills_never_exceed_order_quantity(bars: list[Bar], orders: tuple[Order, ...]) -> None:
    reports, _ = run(bars, orders)

    asked = {made.order_id: made for made in orders}
    entered: dict[str, Decimal] = defaultdict(Decimal)
    for fill in fills_of(reports):
        made = asked[fill.order_id]
        is_entry = fill.cause in {"order", "deadline"}
        entered[fill.order_id] += fill.quantity if is_entry else -fill.quantity
        assert (fill.side is made.side) == is_entry
        assert 0 <= entered[fill.order_id] <= made.quantity


@given(some_bars(), some_orders)
def test_fill_respects_limit_time_and_share(bars: list[Bar], orders: tuple[Order, ...]) -> None:
    reports, _ = run(bars, orders)

    asked = {made.order_id: made for made in orders}
    closed = {b.open_time: b for b in bars}
    traded: dict[Any, Decimal] = defaultdict(Decimal)
    for fill in fills_of(reports):
        made, during = asked[fill.order_id], closed[fill.bar_open_time]
        traded[fill.bar_open_time] += fill.quantity
        assert made.active_from <= fill.bar_open_time
        assert traded[fill.bar_open_time] <= during.volume * Decimal("0.25")
        if fill.cause == "order":
            assert fill.bar_open_time < made.expires_at
            if made.limit_price is not None:
                assert made.side.sign * (made.limit_price - fill.price) >= 0
                assert during.low < made.limit_price if made.side == "buy" else during.high > made.limit_price


@given(some_bars(), some_orders)
def test_entries_respect_expiry_and_plan_prices(bars: list[Bar], orders: tuple[Order, ...]) -> None:
    reports, _ = run(bars, orders)

    asked = {made.order_id: made for made in orders}
    for fill in fills_of(reports):
        made = asked[fill.order_id]
        if fill.cause not in {"order", "deadline"} or made.reduce_only:
            continue
        assert made.void_from is None or fill.bar_open_time < made.void_from
        if made.stop_loss is not None:
            assert made.side.sign * (fill.price - made.stop_loss) > 0
        if made.take_profit is not None:
            assert made.side.sign * (made.take_profit - fill.price) > 0


COINS = ("AUSD", "BUSD", "CUSD")


async def shared(wanted: Mapping[str, Decimal], first: Sequence[str]) -> dict[str, Decimal]:
    """Return what is bought of each of these quantities, at 100 and for 10,000 in cash; the bars come in the order `first`."""
    coins = [Instrument(symbol=symbol, lot_size=Decimal("0.001")) for symbol in COINS]
    exchange = paper(instruments=listed(*coins), shares_cash=True)
    for symbol in first:
        await exchange.on_bar(bar(0, "100 100 100 100", symbol=symbol))
    for symbol, quantity in wanted.items():
        await exchange.submit(order(order_id=symbol, intent_id=symbol, symbol=symbol, quantity=quantity))
    reports = [
        each
        for symbol in first
        for each in await exchange.on_bar(bar(1, "100 100 100 100", volume="100000", symbol=symbol))
    ]
    assert (await exchange.account()).cash >= 0
    bought = {fill.symbol: fill.quantity for fill in fills_of(reports)}
    return {symbol: bought.get(symbol, Decimal(0)) for symbol in COINS}


@given(st.lists(st.integers(1, 100_000), min_size=3, max_size=3), st.permutations(COINS))
def test_scarce_cash_is_shared_proportionally(lots: list[int], first: list[str]) -> None:
    wanted = {symbol: Decimal(number).scaleb(-3) for symbol, number in zip(COINS, lots, strict=True)}

    bought = asyncio.run(shared(wanted, first))

    room = Decimal(10_000) / (Decimal("100.02") * Decimal("1.0005"))  # half a spread on the grid, and the fee
    part = min(room / sum(wanted.values()), Decimal(1))
    for symbol, quantity in wanted.items():
        assert abs(bought[symbol] - quantity * part) <= Decimal("0.03")
