"""The same intents at the market, and the same cash held."""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

from agentic_trading.desk.execution.shortfall import Baseline, BaselineResult, buy_and_hold, market_now
from agentic_trading.desk.market.bar import Bar
from tests.desk.trade import BTC, FIVE_MINUTES, START, bar, exit_intent, intent, paper

BARS = [
    bar(0, "100 101 99 100"),
    bar(1, "100.50 101 100 101"),
    bar(2, "101 103 100 102"),
    bar(3, "102 103 101 103"),
]


async def played(baseline: Baseline, bars: Sequence[Bar]) -> BaselineResult:
    """Return what a baseline has made of these bars."""
    for each in bars:
        await baseline.on_bar(each)
    return await baseline.result()


async def test_market_now_pays_the_open_after_each_decision() -> None:
    leaves = exit_intent(as_of=START + 3 * FIVE_MINUTES)

    outcome = await played(market_now([leaves, intent()], paper()), BARS)

    assert [(fill.price, fill.side) for fill in outcome.fills] == [
        (Decimal("100.52"), "buy"),
        (Decimal("101.98"), "sell"),
    ]
    assert outcome.account.positions == ()
    assert (
        outcome.equity == outcome.account.cash == Decimal(10_000) + sum(f.cash_change for f in outcome.fills)
    )


async def test_market_now_keeps_stops_and_targets() -> None:
    outcome = await played(market_now([intent(take_profit=Decimal(102))], paper()), BARS)

    assert [fill.cause for fill in outcome.fills] == ["order", "take_profit"]


async def test_an_intent_after_the_last_bar_is_not_filled() -> None:
    late = intent(as_of=START + timedelta(hours=1), expires_at=START + timedelta(hours=2))

    assert (await played(market_now([late], paper()), BARS)).fills == ()


async def test_an_entry_whose_intent_ended_in_a_halt_is_not_filled_after_it() -> None:
    entry = intent(expires_at=START + timedelta(hours=1))
    reopened = [BARS[0], bar(24, "100 101 99 100")]

    assert (await played(market_now([entry], paper()), reopened)).fills == ()


async def test_buy_and_hold_spends_the_cash_at_the_first_open() -> None:
    outcome = await played(await buy_and_hold(BARS[0], BARS[-1], paper(), BTC), BARS)

    (fill,) = outcome.fills
    assert fill.price == Decimal("100.01")
    assert fill.quantity == Decimal("99.940")  # 10,000 / (100.01 x 1.0005), down to lots
    assert outcome.equity == outcome.account.cash + fill.quantity * 103
