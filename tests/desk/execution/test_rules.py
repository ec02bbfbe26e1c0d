"""The baseline writes text that the check accepts, whatever it is asked; and chooses by what it is given."""

import json
from datetime import timedelta
from decimal import Decimal

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.exchange import OrderType
from agentic_trading.desk.execution.candidates import fill_strategy_rule
from agentic_trading.desk.execution.check import check_fill_strategy, terms_of
from agentic_trading.desk.execution.order import FillLimits, OrderIntent
from agentic_trading.desk.execution.strategy import FILL_STRATEGY_SCHEMA, FillStrategy, read_choice
from agentic_trading.desk.market.bar import Bar
from tests.desk.execution.asked import WIDE, asked, closed_bars
from tests.desk.trade import exit_intent, intent

VALIDATOR = jsonschema_rs.validator_for(dict(FILL_STRATEGY_SCHEMA))


def chosen(
    about: OrderIntent | None = None, bars: list[Bar] | None = None, limits: FillLimits | None = None
) -> FillStrategy:
    """Return what the rule chooses, checked on the way."""
    envelope = asked(about, limits, bars or closed_bars())
    text = fill_strategy_rule(envelope)
    assert check_fill_strategy(envelope, text) == []
    choice = read_choice(text)
    return choice.strategy(terms_of(envelope, choice))


def test_small_entry_takes_in_narrow_bars() -> None:
    choice = chosen()

    assert (choice.algo, choice.order_type, choice.on_deadline) == ("single", "market", "cross")
    assert choice.expected_slippage_bps == 1  # half of the spread


def test_small_entry_waits_in_wide_bars() -> None:
    choice = chosen(bars=closed_bars(WIDE, WIDE))

    assert (choice.algo, choice.order_type, choice.on_deadline) == (
        "passive_then_cross",
        "post_only",
        "cross",
    )
    assert choice.limit_offset_bps == 20  # a tenth of a range of 200
    assert choice.deadline_seconds == 900


def test_patient_order_respects_price_band() -> None:
    choice = chosen(bars=closed_bars(WIDE, WIDE), limits=FillLimits(price_band_bps=Decimal(7)))

    assert choice.limit_offset_bps == 7


def test_exit_does_not_wait() -> None:
    choice = chosen(exit_intent(), closed_bars(WIDE, WIDE))

    assert (choice.algo, choice.order_type) == ("single", "market")


def test_large_order_is_sliced_per_bar() -> None:
    choice = chosen(intent(quantity=Decimal(35)))

    assert (choice.algo, choice.slices, choice.interval_seconds) == ("twap", 4, 300)


def test_bars_without_volume_force_slicing() -> None:
    choice = chosen(bars=closed_bars("100 100 100 100", volume="0"))

    assert (choice.algo, choice.slices) == ("twap", 10)


def test_priced_plan_waits_at_price() -> None:
    choice = chosen(intent(limit_price=Decimal("99.5")))

    assert (choice.order_type, choice.price_reference, choice.on_deadline) == ("limit", "arrival", "cancel")
    assert choice.limit_offset_bps == 0


@pytest.mark.parametrize("kind", ["market", "limit", "post_only"])
def test_disallowed_order_type_is_replaced(kind: str) -> None:
    limits = FillLimits.model_validate({"allowed_order_types": [kind]})

    choices = [chosen(bars=closed_bars(shape), limits=limits) for shape in (WIDE, "100 100 100 100")]

    assert {choice.order_type for choice in choices} == {kind}


@st.composite
def any_limits(draw: st.DrawFn) -> FillLimits:
    """Return limits that leave much or hardly any room."""
    kinds: tuple[OrderType, ...] = ("limit", "post_only")
    more: tuple[OrderType, ...] = ("market", "limit", "post_only")
    return FillLimits(
        max_slices=draw(st.integers(1, 20)),
        max_participation=draw(st.decimals("0.001", "0.25", places=3)),
        max_deadline_s=draw(st.integers(1, 20_000)),
        price_band_bps=draw(st.decimals(0, 100, places=2)),
        allowed_order_types=(draw(st.sampled_from(kinds)), *draw(st.lists(st.sampled_from(more)))),
        min_slice_quantity=draw(st.decimals("0.001", 5, places=4)),
    )


@given(
    any_limits(),
    st.decimals("0.001", 2000, places=3),
    st.sampled_from(["100 101 99 100", "100 100 100 100", "100 100.2 99.9 100.1"]),
    st.sampled_from(["0", "0.5", "1000"]),
    st.sampled_from([None, Decimal(99)]),
    st.booleans(),
    st.integers(1, 7200),
)
def test_rule_text_meets_schema_and_limits(
    limits: FillLimits,
    quantity: Decimal,
    shape: str,
    volume: str,
    limit_price: Decimal | None,
    leaves: bool,  # noqa: FBT001 - hypothesis passes by place
    lives_s: int,
) -> None:
    made = exit_intent(quantity=quantity) if leaves else intent(quantity=quantity, limit_price=limit_price)
    about = made.model_copy(update={"expires_at": made.as_of + timedelta(seconds=lives_s)})
    envelope = asked(about, limits, closed_bars(shape, shape, volume=volume))

    text = fill_strategy_rule(envelope)

    VALIDATOR.validate(json.loads(text))
    jsonschema_rs.validator_for(json.loads(envelope.output_schema_json)).validate(json.loads(text))
    assert check_fill_strategy(envelope, text) == []


def test_equal_envelopes_give_equal_text() -> None:
    assert fill_strategy_rule(asked()) == fill_strategy_rule(asked())
