"""The limits between a plan and an intent, and between an order and the exchange."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.execution.risk import (
    Approved,
    Rejection,
    RiskFacts,
    RiskLimits,
    Size,
    check_intent,
    check_order_risk,
    size_position,
)
from tests.desk.trade import BTC, exit_intent, intent, order

LIMITS = RiskLimits(max_order_notional=Decimal(5_000), max_position_notional=Decimal(6_000))
FACTS = RiskFacts(last_close=Decimal(100), equity=Decimal(10_000))


def rule(outcome: Approved | Rejection | None) -> str | None:
    """Return the rule that an outcome names, None if it passed."""
    return outcome.rule if isinstance(outcome, Rejection) else None


def checked(limits: RiskLimits = LIMITS, facts: RiskFacts = FACTS, **changes: Any) -> str | None:
    """Return the rule that stops an intent with `changes`."""
    return rule(check_intent(intent(**changes), limits, BTC, facts))


def test_intent_within_limits_is_unchanged() -> None:
    assert check_intent(intent(), LIMITS, BTC, FACTS) == Approved(intent=intent())


def test_quantity_rounds_down_to_lots() -> None:
    outcome = check_intent(intent(quantity=Decimal("1.0009999")), LIMITS, BTC, FACTS)

    assert isinstance(outcome, Approved)
    assert outcome.intent.quantity == Decimal("1.000")


@pytest.mark.parametrize(
    ("changes", "stopped_by"),
    [
        ({"quantity": Decimal("0.0009")}, "min_quantity"),
        ({"quantity": Decimal(50)}, None),
        ({"quantity": Decimal("50.001")}, "max_order_notional"),
        ({"stop_loss": None}, "stop_loss"),
        ({"stop_loss": Decimal(100)}, "stop_loss"),
        ({"stop_loss": Decimal("98.001")}, "tick_size"),
        ({"take_profit": Decimal(100)}, "take_profit"),
        ({"take_profit": None}, None),
        ({"arrival_price": Decimal("105.01"), "take_profit": None}, "price_collar"),
        ({"limit_price": Decimal(95), "stop_loss": Decimal(94)}, None),
        ({"limit_price": Decimal("94.99"), "stop_loss": Decimal(94)}, "price_collar"),
        ({"side": "sell", "stop_loss": Decimal(102), "take_profit": Decimal(96)}, None),
        ({"side": "sell"}, "stop_loss"),
        ({"side": "sell", "stop_loss": Decimal(102), "take_profit": Decimal(104)}, "take_profit"),
    ],
)
def test_entry_is_checked_against_limits(changes: dict[str, Any], stopped_by: str | None) -> None:
    assert checked(**changes) == stopped_by


def test_stop_is_optional_unless_required() -> None:
    assert checked(LIMITS.model_copy(update={"require_stop": False}), stop_loss=None) is None


def test_position_limit_counts_open_orders() -> None:
    held = replace(FACTS, position=Decimal(20))
    with_open = replace(held, pending=Decimal(20))

    assert checked(facts=held, quantity=Decimal(40)) is None
    assert checked(facts=held, quantity=Decimal("40.001")) == "max_position"
    assert checked(facts=with_open, quantity=Decimal("20.001")) == "max_position"


def test_position_limited_by_equity_share() -> None:
    poor = replace(FACTS, equity=Decimal(1_000))

    assert checked(facts=poor, quantity=Decimal("9.5")) is None
    assert checked(facts=poor, quantity=Decimal("9.501")) == "max_position"


def test_gross_limited_by_equity_share() -> None:
    others = replace(FACTS, gross=Decimal(8_000))

    assert checked(facts=others, quantity=Decimal(15)) is None
    assert checked(facts=others, quantity=Decimal("15.001")) == "max_gross"
    assert rule(check_order_risk(order(quantity=Decimal("15.001")), LIMITS, BTC, others)) == "max_gross"


def test_approved_intents_count_toward_gross() -> None:
    entry, leave = intent(quantity=Decimal(40), limit_price=Decimal(99)), exit_intent(quantity=Decimal(9))

    facts = replace(FACTS, gross=Decimal(100)).with_approved([entry, leave])

    assert facts == replace(FACTS, gross=Decimal(4_060))


def test_halt_allows_exit_only() -> None:
    halted = replace(FACTS, halted=True, position=Decimal(1))

    assert checked(facts=halted) == "halted"
    assert rule(check_intent(exit_intent(), LIMITS, BTC, halted)) is None


def test_coarse_tick_allows_exit_only() -> None:
    cheap = replace(FACTS, last_close=Decimal("0.07"), position=Decimal(1))
    price = Decimal("0.07")

    assert checked(facts=cheap, arrival_price=price, stop_loss=Decimal("0.06")) == "coarse_tick"
    assert rule(check_intent(exit_intent(arrival_price=price), LIMITS, BTC, cheap)) is None


def test_reducing_entry_ignores_size_limits() -> None:
    short = replace(FACTS, position=Decimal(-90), equity=Decimal(100))

    assert checked(facts=short, quantity=Decimal(50)) is None


def test_exit_limited_to_position_size() -> None:
    held = replace(FACTS, position=Decimal(80), equity=Decimal(100))

    assert rule(check_intent(exit_intent(quantity=Decimal(80)), LIMITS, BTC, held)) is None
    assert rule(check_intent(exit_intent(quantity=Decimal("80.001")), LIMITS, BTC, held)) == "reduce_only"
    assert (
        rule(check_intent(exit_intent(), LIMITS, BTC, replace(held, position=Decimal(-1)))) == "reduce_only"
    )


def test_exit_may_be_below_minimum() -> None:
    coarse = BTC.model_copy(update={"min_quantity": Decimal(1)})
    held = replace(FACTS, position=Decimal("0.002"))

    assert rule(check_intent(exit_intent(quantity=Decimal("0.002")), LIMITS, coarse, held)) is None


def test_order_rate_and_count_are_limited() -> None:
    few = LIMITS.model_copy(update={"max_orders_per_minute": 2, "max_open_orders": 3})

    assert checked(few, replace(FACTS, orders_last_minute=1, open_orders=2)) is None
    assert checked(few, replace(FACTS, orders_last_minute=2)) == "max_orders_per_minute"
    assert checked(few, replace(FACTS, open_orders=3)) == "max_open_orders"


@pytest.mark.parametrize(
    ("changes", "stopped_by"),
    [
        ({}, None),
        ({"quantity": Decimal("1.0001")}, "lot_size"),
        ({"quantity": Decimal("50.001")}, "max_order_notional"),
        ({"quantity": Decimal("50.001"), "reduce_only": True}, None),
        ({"order_type": "limit", "limit_price": Decimal("99.999")}, "tick_size"),
        ({"order_type": "limit", "limit_price": Decimal("105.01")}, "price_collar"),
        ({"order_type": "limit", "peg_bps": Decimal(-501)}, "price_collar"),
        ({"order_type": "limit", "peg_bps": Decimal(500)}, None),
    ],
)
def test_order_is_checked_against_limits(changes: dict[str, Any], stopped_by: str | None) -> None:
    assert rule(check_order_risk(order(**changes), LIMITS, BTC, FACTS)) == stopped_by


def test_rejection_shows_actual_and_allowed() -> None:
    outcome = check_intent(intent(quantity=Decimal(51)), LIMITS, BTC, FACTS)

    assert outcome == Rejection(rule="max_order_notional", was="5100.000", allowed="at most 5000")


def test_position_sized_by_risk() -> None:
    size = size_position(Decimal(10_000), Decimal(100), Decimal(97), Decimal(1), LIMITS, BTC)

    assert size == Size(Decimal("33.333"), "risk")  # 100 to lose, 3 a unit


def test_near_stop_bounded_by_size_limits() -> None:
    def sized(equity: int) -> Size:
        return size_position(Decimal(equity), Decimal(100), Decimal("99.9"), Decimal(1), LIMITS, BTC)

    assert sized(10_000) == Size(Decimal(50), "notional")
    assert sized(1_000) == Size(Decimal("9.5"), "exposure")


@pytest.mark.parametrize(("equity", "stop"), [(10_000, 100), (0, 97), (-5, 97)])
def test_unsizable_position_has_zero_size(equity: int, stop: int) -> None:
    assert size_position(Decimal(equity), Decimal(100), Decimal(stop), Decimal(1), LIMITS, BTC).quantity == 0


@given(
    st.decimals(1, 1_000_000, places=2),
    st.decimals(1, 100_000, places=2),
    st.decimals(1, 100_000, places=2),
    st.decimals("0.1", 5, places=1),
)
def test_sized_position_respects_risk_and_limits(
    equity: Decimal, entry: Decimal, stop: Decimal, risk_pct: Decimal
) -> None:
    quantity = size_position(equity, entry, stop, risk_pct, LIMITS, BTC).quantity

    assert quantity % BTC.lot_size == 0
    assert quantity * abs(entry - stop) <= equity * risk_pct / 100
    assert quantity * entry <= min(LIMITS.max_order_notional, equity * LIMITS.max_exposure_pct / 100)
