"""What goes through the port to an exchange: orders that say one thing, fills and accounts that add up."""

from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from agentic_trading.desk.exchange import Account, Order, Position
from agentic_trading.desk.instrument import Instrument, Side, limit_from, round_down, round_up
from tests.desk.trade import START, order


@pytest.mark.parametrize(
    "changes",
    [
        {"limit_price": Decimal(1)},
        {"peg_bps": Decimal(1)},
        {"order_type": "limit"},
        {"order_type": "post_only", "limit_price": Decimal(1), "peg_bps": Decimal(1)},
    ],
)
def test_order_price_must_match_type(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="a market order has no price"):
        order(**changes)


def test_order_expiry_must_follow_start() -> None:
    with pytest.raises(ValidationError, match="must be after active_from"):
        order(active_from=START, expires_at=START)


@pytest.mark.parametrize("quantity", ["0", "-1", "NaN", "Infinity", "1e-13", "1e31"])
def test_quantity_outside_range_is_rejected(quantity: str) -> None:
    with pytest.raises(ValidationError):
        order(quantity=quantity)


def test_order_json_round_trip_keeps_digits() -> None:
    made = order(quantity=Decimal("0.100000000001"), stop_loss=Decimal("98.10"))

    assert Order.model_validate_json(made.model_dump_json()) == made
    assert '"0.100000000001"' in made.model_dump_json()


def test_equity_is_cash_plus_positions() -> None:
    held = Position(symbol="BTCUSDT", quantity=Decimal(-2), average_price=Decimal(90))
    account = Account(currency="USDT", cash=Decimal(1_000), positions=(held,))

    assert account.equity({"BTCUSDT": Decimal(100)}) == 800
    assert account.quantity("BTCUSDT") == -2
    assert account.quantity("ETHUSDT") == 0


def test_equity_without_mark_raises_key_error() -> None:
    held = Position(symbol="BTCUSDT", quantity=Decimal(1), average_price=Decimal(90))

    with pytest.raises(KeyError):
        Account(currency="USDT", cash=Decimal(0), positions=(held,)).equity({})


def test_prices_round_to_ticks_above_zero() -> None:
    btc = Instrument(symbol="BTCUSDT")

    assert round_down(Decimal("1.019"), Decimal("0.01")) == Decimal("1.01")
    assert round_up(Decimal("1.011"), Decimal("0.01")) == Decimal("1.02")
    assert round_up(Decimal("1.01"), Decimal("0.01")) == Decimal("1.01")
    assert btc.adverse_price(Decimal("0.001"), Side.SELL) == Decimal("0.01")


def test_limit_rounds_to_less_aggressive_tick() -> None:
    assert limit_from(Decimal(100), Decimal("0.5"), Side.BUY, Decimal("0.01")) == Decimal("99.99")
    assert limit_from(Decimal(100), Decimal("0.5"), Side.SELL, Decimal("0.01")) == Decimal("100.01")
    assert limit_from(Decimal(100), Decimal("-1.5"), Side.BUY, Decimal("0.01")) == Decimal("100.01")


def test_sides_are_opposites() -> None:
    assert Side.BUY.opposite is Side.SELL
    assert Side.SELL.opposite is Side.BUY
    assert (Side.BUY.sign, Side.SELL.sign) == (1, -1)
