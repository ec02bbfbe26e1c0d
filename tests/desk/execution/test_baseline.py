"""The same intents at the market, and the same cash held."""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.execution.shortfall import BaselineResult, Baselines
from agentic_trading.desk.market.bar import Bar
from tests.desk.trade import BTC, FIVE_MINUTES, START, bar, exit_intent, intent, paper

BARS = [
    bar(0, "100 101 99 100"),
    bar(1, "100.50 101 100 101"),
    bar(2, "101 103 100 102"),
    bar(3, "102 103 101 103"),
]


async def at_the_market(intents: Sequence[OrderIntent], bars: Sequence[Bar]) -> BaselineResult:
    """Return what intents have made of these bars as market orders, each known from the close of its decision on."""
    baselines = Baselines({"BTCUSDT": BTC}, paper)
    for each in bars:
        known = [intent for intent in intents if intent.as_of <= each.close_time]
        await baselines.on_bars([each], known)
    return await baselines.market_now()


async def test_market_baseline_pays_next_open() -> None:
    leaves = exit_intent(as_of=START + 3 * FIVE_MINUTES)

    outcome = await at_the_market([intent(), leaves], BARS)

    assert [(fill.price, fill.side) for fill in outcome.fills] == [
        (Decimal("100.52"), "buy"),
        (Decimal("101.98"), "sell"),
    ]
    assert outcome.account.positions == ()
    assert (
        outcome.equity == outcome.account.cash == Decimal(10_000) + sum(f.cash_change for f in outcome.fills)
    )


async def test_market_baseline_keeps_stops_and_targets() -> None:
    outcome = await at_the_market([intent(take_profit=Decimal(102))], BARS)

    assert [fill.cause for fill in outcome.fills] == ["order", "take_profit"]


async def test_baseline_ignores_intent_after_last_bar() -> None:
    late = intent(as_of=START + timedelta(hours=1), expires_at=START + timedelta(hours=2))

    assert (await at_the_market([late], BARS)).fills == ()


async def test_baseline_ignores_intent_expired_in_halt() -> None:
    entry = intent(expires_at=START + timedelta(hours=1))
    reopened = [BARS[0], bar(24, "100 101 99 100")]

    assert (await at_the_market([entry], reopened)).fills == ()


async def test_buy_and_hold_spends_all_cash() -> None:
    baselines = Baselines({"BTCUSDT": BTC}, paper)
    for each in BARS:
        await baselines.on_bars([each], [])

    outcome = (await baselines.held())["BTCUSDT"]
    (fill,) = outcome.fills
    assert fill.price == Decimal("100.01")
    assert fill.quantity == Decimal("99.940")  # 10,000 / (100.01 x 1.0005), down to lots
    assert outcome.equity == outcome.account.cash + fill.quantity * 103
