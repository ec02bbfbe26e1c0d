"""From strategy to orders: sizes, prices and times."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.exchange import Order
from agentic_trading.desk.execution.order import FillLimits
from agentic_trading.desk.execution.strategy import plan_orders, slice_quantities, strategy_id
from tests.desk.trade import BTC, FIVE_MINUTES, START, exit_intent, intent, strategy

LIMITS = FillLimits(tick_size=Decimal("0.01"), lot_size=Decimal("0.001"))
AS_OF = START + FIVE_MINUTES


def planned(about: Any = None, late: timedelta = timedelta(), **changes: Any) -> list[Order]:
    """Return the orders of a strategy with `changes` that was there `late` after the decision."""
    about = about or intent()
    return plan_orders(about, strategy(**changes), LIMITS, known_at=about.as_of + late)


def test_single_order_copies_intent_fields() -> None:
    (order,) = planned()

    assert (order.symbol, order.side, order.quantity, order.intent_id) == ("BTCUSDT", "buy", 1, "i1")
    assert (order.stop_loss, order.take_profit, order.reduce_only) == (98, 104, False)
    assert (order.active_from, order.expires_at) == (AS_OF, AS_OF + timedelta(minutes=30))
    assert (order.on_expiry, order.max_participation) == ("cross", Decimal("0.1"))
    assert (order.trace_id, order.causation_id) == ("t1", strategy_id("i1"))


def test_entry_expires_with_intent_unlike_exit() -> None:
    (entry,), (leave,) = planned(), planned(exit_intent())

    assert (entry.void_from, leave.void_from) == (START + timedelta(hours=2), None)


@pytest.mark.parametrize(
    ("late", "bars"), [(timedelta(microseconds=1), 1), (FIVE_MINUTES, 1), (FIVE_MINUTES * 1.01, 2)]
)
def test_late_strategy_shifts_schedule_to_open(late: timedelta, bars: int) -> None:
    on_time = planned(algo="twap", slices=3, interval_seconds=300)

    moved = planned(late=late, algo="twap", slices=3, interval_seconds=300)

    way = bars * FIVE_MINUTES
    assert [order.active_from - way for order in moved] == [order.active_from for order in on_time]
    assert [order.expires_at - way for order in moved] == [order.expires_at for order in on_time]
    assert {order.void_from for order in moved} == {START + timedelta(hours=2)}


def test_exit_order_only_reduces() -> None:
    (order,) = planned(exit_intent())

    assert order.reduce_only
    assert (order.side, order.stop_loss, order.take_profit) == ("sell", None, None)


def test_slices_are_spaced_and_end_together() -> None:
    orders = planned(algo="twap", slices=3, interval_seconds=600, deadline_seconds=1800)

    assert [order.active_from for order in orders] == [AS_OF + timedelta(minutes=m) for m in (0, 10, 20)]
    assert [order.quantity for order in orders] == [Decimal("0.333"), Decimal("0.333"), Decimal("0.334")]
    assert {order.expires_at for order in orders} == {AS_OF + timedelta(minutes=30)}
    assert len({order.order_id for order in orders}) == 3


def test_interval_rounds_up_to_bars() -> None:
    first, second = planned(algo="twap", slices=2, interval_seconds=301)

    assert second.active_from - first.active_from == timedelta(minutes=10)


def test_arrival_limit_is_priced_immediately() -> None:
    (buy,) = planned(order_type="limit", price_reference="arrival", limit_offset_bps=Decimal("3.333"))
    (sell,) = planned(
        intent(side="sell", stop_loss=102, take_profit=98),
        order_type="limit",
        price_reference="arrival",
        limit_offset_bps=Decimal("3.333"),
    )

    assert buy.limit_price == Decimal("99.96")  # 100 - 0.03333, down to the tick
    assert sell.limit_price == Decimal("100.04")  # 100 + 0.03333, up to the tick


def test_arrival_price_is_plan_limit() -> None:
    (order,) = planned(intent(limit_price=Decimal("99.5")), order_type="limit", price_reference="arrival")

    assert order.limit_price == Decimal("99.5")


def test_limit_from_last_price_is_pegged() -> None:
    (order,) = planned(order_type="post_only", limit_offset_bps=Decimal("2.5"))

    assert (order.limit_price, order.peg_bps) == (None, Decimal("2.5"))


def test_day_order_is_cancelled_at_midnight() -> None:
    late = datetime(2026, 1, 2, 23, 50, tzinfo=UTC)
    about = intent(as_of=late, expires_at=late + timedelta(hours=2))

    (by_midnight,) = planned(about, time_in_force="day")
    (by_deadline,) = planned(about, time_in_force="day", deadline_seconds=300)

    assert by_midnight.expires_at == datetime(2026, 1, 3, tzinfo=UTC)
    assert by_midnight.on_expiry == "cancel"
    assert by_deadline.expires_at == late + timedelta(minutes=5)
    assert by_deadline.on_expiry == "cross"


def test_equal_strategies_give_equal_orders() -> None:
    assert planned() == planned()


@given(
    st.decimals("0.05", 1000, places=3),
    st.integers(1, 20),
    st.sampled_from([Decimal("0.001"), Decimal("0.0007"), Decimal("0.002")]),
)
def test_slices_sum_and_only_last_differs(quantity: Decimal, slices: int, lot: Decimal) -> None:
    quantity -= quantity % lot

    quantities = slice_quantities(quantity, slices, lot)

    assert sum(quantities) == quantity
    assert len(quantities) == slices
    assert len(set(quantities[:-1])) <= 1
    assert all(each % lot == 0 for each in quantities)
    assert quantities[-1] >= quantities[0]


def test_limits_are_narrowed_to_intent() -> None:
    about = intent(
        quantity=Decimal("0.005"), expires_at=AS_OF + timedelta(minutes=10), limit_price=Decimal(99)
    )

    narrow = FillLimits(min_slice_quantity=Decimal("0.002")).narrowed_to(about, BTC)

    assert (narrow.max_slices, narrow.max_deadline_s, narrow.may_cross) == (2, 600, False)
    assert narrow.allowed_order_types == ("limit", "post_only")
    assert narrow.lot_size == BTC.lot_size


def test_market_only_limits_stay_unnarrowed() -> None:
    narrow = FillLimits(allowed_order_types=("market",)).narrowed_to(intent(limit_price=Decimal(99)), BTC)

    assert narrow.allowed_order_types == ("market",)


def test_slices_meet_instrument_minimum() -> None:
    coarse = BTC.model_copy(update={"lot_size": Decimal(1), "min_quantity": Decimal(2)})

    narrow = FillLimits().narrowed_to(intent(quantity=Decimal(7)), coarse)

    assert (narrow.min_slice_quantity, narrow.max_slices) == (2, 3)
