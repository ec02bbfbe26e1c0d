"""What positions are worth, and what their stops would cost."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from agentic_trading.desk.agents.analyst import holdings, loss_to_stops
from agentic_trading.desk.exchange import Account, OpenOrder, Order, Position
from agentic_trading.desk.instrument import Side
from agentic_trading.desk.market.correlation import ReferenceMarket

NOW = datetime(2023, 3, 25, tzinfo=UTC)


def guard(
    quantity: str, stop: str | None, side: Side = Side.BUY, symbol: str = "BTCUSDT", **changes: Any
) -> OpenOrder:
    """Return an order that is filled, and guards what it filled by a stop."""
    order = Order(
        order_id="order-1",
        intent_id="intent-1",
        symbol=symbol,
        side=side,
        quantity=Decimal(quantity),
        order_type="market",
        active_from=NOW,
        expires_at=NOW + timedelta(hours=1),
        stop_loss=None if stop is None else Decimal(stop),
    )
    return OpenOrder(order, **{"left": Decimal(0), "guarded": Decimal(quantity), **changes})


@pytest.mark.parametrize(
    ("side", "stop", "loss"), [(Side.BUY, "90", "20"), (Side.SELL, "110", "20"), (Side.BUY, "101", "0")]
)
def test_stop_costs_mark_distance_or_zero(side: Side, stop: str, loss: str) -> None:
    assert loss_to_stops("BTCUSDT", Decimal(2), [guard("2", stop, side)], Decimal(100)) == Decimal(loss)


def test_stop_losses_added_per_symbol() -> None:
    orders = [guard("1", "90"), guard("1", "95"), guard("5", "50", symbol="ETHUSDT")]

    assert loss_to_stops("BTCUSDT", Decimal(2), orders, Decimal(100)) == Decimal(15)


@pytest.mark.parametrize("orders", [[], [guard("1", "90")], [guard("2", None)]])
def test_partly_guarded_position_has_unknown_loss(orders: list[OpenOrder]) -> None:
    assert loss_to_stops("BTCUSDT", Decimal(2), orders, Decimal(100)) is None


def test_unfilled_quantity_is_not_guarded() -> None:
    waiting = guard("2", "90", left=Decimal(2), guarded=Decimal(0))

    assert loss_to_stops("BTCUSDT", Decimal(2), [waiting], Decimal(100)) is None


def test_holdings_valued_at_marks_by_symbol() -> None:
    account = Account(
        currency="USDT",
        cash=Decimal(1000),
        positions=(
            Position(symbol="BTCUSDT", quantity=Decimal(2), average_price=Decimal(80)),
            Position(symbol="ETHUSDT", quantity=Decimal(-3), average_price=Decimal(12)),
        ),
    )
    marks = {"BTCUSDT": Decimal(100), "ETHUSDT": Decimal(10)}
    markets = {symbol: ReferenceMarket(symbol, ()) for symbol in marks}

    found = holdings(account, [guard("2", "90")], marks, markets)

    assert [(each.symbol, each.value, each.to_stop) for each in found] == [
        ("BTCUSDT", Decimal(200), Decimal(20)),
        ("ETHUSDT", Decimal(-30), None),
    ]
