"""The ways to fill that a question offers: each inside the limits, and only those that make sense."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.execution.candidates import FillFacts, fill_candidates
from agentic_trading.desk.execution.check import terms_violations
from agentic_trading.desk.execution.order import FillLimits


def facts(**changes: Any) -> FillFacts:
    """Return what is known of a small entry in bars that range 40 bps at a spread of 2; `changes` are its fields."""
    fields: dict[str, Any] = {
        "limits": FillLimits(),
        "quantity": Decimal(1),
        "is_exit": False,
        "share": Decimal("0.001"),
        "mean_range_bps": Decimal(40),
        "spread_bps": Decimal(2),
    }
    return FillFacts(**{**fields, **changes})


def test_entry_offers_all_candidates() -> None:
    offered = fill_candidates(facts())

    assert [*offered] == ["take_now", "take_capped", "slices", "slices_slow", "wait_near", "wait_far"]
    assert offered["take_now"].order_type == "market"
    assert offered["take_capped"].limit_offset_bps == -4
    assert offered["take_capped"].on_deadline == "cancel"
    assert (offered["slices"].slices, offered["slices"].interval_seconds) == (2, 300)
    assert (offered["slices_slow"].slices, offered["slices_slow"].interval_seconds) == (2, 1800)
    assert (offered["wait_near"].limit_offset_bps, offered["wait_near"].deadline_seconds) == (4, 900)
    assert (offered["wait_far"].limit_offset_bps, offered["wait_far"].deadline_seconds) == (10, 1800)


def test_exit_candidates_cross_at_deadline() -> None:
    offered = fill_candidates(facts(is_exit=True))

    assert {terms.on_deadline for terms in offered.values()} == {"cross"}


def test_priced_plan_rests_at_price() -> None:
    offered = fill_candidates(
        facts(limits=FillLimits(may_cross=False, allowed_order_types=("limit", "post_only")))
    )

    assert {name: terms.deadline_seconds for name, terms in offered.items()} == {
        "at_plan": 3600,
        "at_plan_brief": 1800,
    }
    assert {terms.limit_offset_bps for terms in offered.values()} == {0}
    assert {(terms.price_reference, terms.on_deadline) for terms in offered.values()} == {
        ("arrival", "cancel")
    }


def test_short_deadline_offers_single_candidate() -> None:
    limits = FillLimits(may_cross=False, allowed_order_types=("limit",), max_deadline_s=1800)

    assert [*fill_candidates(facts(limits=limits))] == ["at_plan"]


def test_offset_candidates_reference_last_price() -> None:
    offered = fill_candidates(facts()).values()

    assert {terms.price_reference for terms in offered if terms.limit_offset_bps} == {"last"}


@pytest.mark.parametrize(
    ("limits", "left_out"),
    [
        ({"max_slices": 1}, {"slices", "slices_slow"}),
        ({"max_deadline_s": 600}, {"slices_slow"}),
        ({"min_slice_quantity": Decimal("0.6")}, {"slices", "slices_slow"}),
        ({"allowed_order_types": ("market",)}, {"take_capped", "wait_near", "wait_far"}),
        ({"allowed_order_types": ("market", "post_only")}, {"take_capped"}),
    ],
)
def test_impossible_candidates_are_omitted(limits: Mapping[str, Any], left_out: set[str]) -> None:
    everything = set(fill_candidates(facts()))

    assert set(fill_candidates(facts(limits=FillLimits(**limits)))) == everything - left_out


def test_larger_order_has_more_slices() -> None:
    assert fill_candidates(facts(share=Decimal("0.035")))["slices"].slices == 4
    assert fill_candidates(facts(share=Decimal(3)))["slices"].slices == 10


@given(
    st.builds(
        FillLimits,
        max_slices=st.integers(1, 20),
        max_deadline_s=st.integers(1, 20_000),
        price_band_bps=st.decimals(0, 100, places=2),
        allowed_order_types=st.lists(
            st.sampled_from(["market", "limit", "post_only"]), min_size=1, unique=True
        ).map(tuple),
        min_slice_quantity=st.decimals("0.001", 5, places=4),
        may_cross=st.booleans(),
    ),
    st.decimals("0.001", 2000, places=3),
    st.booleans(),
    st.decimals(0, 2, places=6),
    st.decimals(0, 2_000, places=2),
)
def test_candidates_exist_and_meet_limits(
    limits: FillLimits,
    quantity: Decimal,
    is_exit: bool,  # noqa: FBT001 - hypothesis passes by place
    share: Decimal,
    mean_range_bps: Decimal,
) -> None:
    about = facts(
        limits=limits, quantity=quantity, is_exit=is_exit, share=share, mean_range_bps=mean_range_bps
    )

    offered = fill_candidates(about)

    assert offered
    assert not [each for terms in offered.values() for each in terms_violations(terms, limits, quantity)]
