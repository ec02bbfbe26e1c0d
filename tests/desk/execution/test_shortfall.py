"""What filling has cost, against the price of the decision."""

from decimal import Decimal

from agentic_trading.desk.execution.shortfall import (
    Baseline,
    Shortfall,
    TotalShortfall,
    at_market,
    shortfalls,
    total_shortfall,
)
from agentic_trading.desk.instrument import Side
from tests.desk.trade import bar, fills_of, intent, order, paper

BARS = [bar(0, "100 101 99 100"), bar(1, "100.50 101 100 101")]


async def test_shortfall_includes_price_and_fees() -> None:
    exchange = paper()
    await exchange.on_bar(BARS[0])
    await exchange.submit(order(stop_loss=Decimal(98), max_participation=Decimal("0.0006")))
    fills = await exchange.on_bar(BARS[1])
    stopped = await exchange.on_bar(bar(2, "97 98 96 97"))

    [shortfall] = shortfalls([intent()], fills_of([*fills, *stopped]))

    assert shortfall == Shortfall(
        intent_id="i1",
        symbol="BTCUSDT",
        side=Side.BUY,
        filled=Decimal("0.600"),
        unfilled=Decimal("0.400"),
        arrival_value=Decimal(60),
        price_cost=Decimal("0.31200"),  # 0.6 x 0.52
        fees=Decimal("0.03015600"),
        total_bps=Decimal("57.0260"),
    )


def test_unfilled_intent_has_no_cost() -> None:
    [shortfall] = shortfalls([intent()], [])

    assert (shortfall.filled, shortfall.unfilled, shortfall.total_bps) == (0, 1, None)


async def test_sale_below_arrival_is_cost() -> None:
    sold = intent(side="sell", stop_loss=Decimal(102), take_profit=Decimal(96))

    baseline = Baseline(paper(), [at_market(sold)])
    for each in (BARS[0], bar(1, "99 99 99 99")):
        await baseline.on_bar(each)

    fills = (await baseline.result()).fills
    assert [each.price_cost for each in shortfalls([sold], fills)] == [Decimal("1.01000")]


def test_total_shortfall_is_value_weighted() -> None:
    total = total_shortfall([
        part(filled=Decimal(3), unfilled=Decimal(0), price_cost=Decimal("0.5"), fees=Decimal("0.25")),
        part(filled=Decimal(1), unfilled=Decimal(2), price_cost=Decimal("-0.5"), fees=Decimal("0.75")),
        part(filled=Decimal(0), unfilled=Decimal(3)),
    ])

    assert total == TotalShortfall(
        arrival_value=Decimal(400),
        price_cost=Decimal(0),
        fees=Decimal(1),
        total_bps=Decimal(25),
        whole=1,
        in_part=1,
        not_at_all=1,
    )


def test_total_without_shortfalls_is_empty() -> None:
    assert total_shortfall([]) == TotalShortfall()


def part(
    *, filled: Decimal, unfilled: Decimal, price_cost: Decimal = Decimal(0), fees: Decimal = Decimal(0)
) -> Shortfall:
    """Return what filling an intent at an arrival price of 100 has cost."""
    return Shortfall(
        intent_id="i1",
        symbol="BTCUSDT",
        side=Side.BUY,
        filled=filled,
        unfilled=unfilled,
        arrival_value=filled * 100,
        price_cost=price_cost,
        fees=fees,
        total_bps=None,
    )
