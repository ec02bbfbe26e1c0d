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
def test_an_order_has_the_one_price_that_its_type_takes(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="a market order has no price"):
        order(**changes)


def test_an_order_ends_after_it_began() -> None:
    with pytest.raises(ValidationError, match="must be after active_from"):
        order(active_from=START, expires_at=START)


@pytest.mark.parametrize("quantity", ["0", "-1", "NaN", "Infinity", "1e-13", "1e31"])
def test_a_quantity_is_positive_and_within_what_money_can_count(quantity: str) -> None:
    with pytest.raises(ValidationError):
        order(quantity=quantity)


def test_an_order_survives_its_own_json_with_every_digit() -> None:
    made = order(quantity=Decimal("0.100000000001"), stop_loss=Decimal("98.10"))

    assert Order.model_validate_json(made.model_dump_json()) == made
    assert '"0.100000000001"' in made.model_dump_json()


def test_an_account_is_worth_its_cash_and_its_positions() -> None:
    held = Position(symbol="BTCUSDT", quantity=Decimal(-2), average_price=Decimal(90))
    account = Account(currency="USDT", cash=Decimal(1_000), positions=(held,))

    assert account.equity({"BTCUSDT": Decimal(100)}) == 800
    assert account.quantity("BTCUSDT") == -2
    assert account.quantity("ETHUSDT") == 0


def test_a_position_without_a_mark_has_no_worth() -> None:
    held = Position(symbol="BTCUSDT", quantity=Decimal(1), average_price=Decimal(90))

    with pytest.raises(KeyError):
        Account(currency="USDT", cash=Decimal(0), positions=(held,)).equity({})


def test_a_price_rounds_to_ticks_and_never_to_zero() -> None:
    btc = Instrument(symbol="BTCUSDT")

    assert round_down(Decimal("1.019"), Decimal("0.01")) == Decimal("1.01")
    assert round_up(Decimal("1.011"), Decimal("0.01")) == Decimal("1.02")
    assert round_up(Decimal("1.01"), Decimal("0.01")) == Decimal("1.01")
    assert btc.adverse_price(Decimal("0.001"), Side.SELL) == Decimal("0.01")


def test_a_limit_is_never_more_aggressive_than_its_offset() -> None:
    assert limit_from(Decimal(100), Decimal("0.5"), Side.BUY, Decimal("0.01")) == Decimal("99.99")
    assert limit_from(Decimal(100), Decimal("0.5"), Side.SELL, Decimal("0.01")) == Decimal("100.01")
    assert limit_from(Decimal(100), Decimal("-1.5"), Side.BUY, Decimal("0.01")) == Decimal("100.01")


def test_sides_are_opposites() -> None:
    assert Side.BUY.opposite is Side.SELL
    assert Side.SELL.opposite is Side.BUY
    assert (Side.BUY.sign, Side.SELL.sign) == (1, -1)
