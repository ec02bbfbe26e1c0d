"""What a model gives, as values."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentic_trading.desk.analysis.judgement import SCORE_RANGES, Direction, Judgement, Layer, TradeProposal
from tests.desk.analysis.build import answer, judgement, layer, layers, plan


def test_a_price_keeps_every_digit_that_was_written() -> None:
    proposal = judgement(trade_plan=plan("27953.830", "27000.00", "28000.10")).trade_plan

    assert proposal is not None
    assert str(proposal.entry) == "27953.830"
    assert json.loads(proposal.model_dump_json())["stop"] == "27000.00"


@given(st.decimals(min_value="1e-18", max_value=999_999_999_999, places=18))
def test_a_price_is_written_without_exponent_and_read_back_equal(price: Decimal) -> None:
    written = TradeProposal(entry="market", stop=price, target=price).model_dump_json()

    assert "E" not in json.loads(written)["target"]
    assert TradeProposal.model_validate_json(written).target == price


@pytest.mark.parametrize(
    "price", [27953.83, 28000, "1e5", "27,953", "-5", "27953.", "027953", "$10", "", "NaN", None]
)
def test_what_is_not_text_of_plain_digits_is_no_price(price: Any) -> None:
    with pytest.raises(ValidationError, match=r"trade_plan\.stop"):
        judgement(trade_plan=plan(stop=price))


@pytest.mark.parametrize("name", list(Layer))
def test_a_score_outside_the_range_of_its_layer_is_refused(name: Layer) -> None:
    least, most = SCORE_RANGES[name]

    for score in (least, most):
        assert judgement(layers=layers(**{name.value: layer(score)})).layers is not None
    for score in (least - 1, most + 1):
        with pytest.raises(ValidationError, match=f"allowed: {least} to {most}"):
            judgement(layers=layers(**{name.value: layer(score)}))


@pytest.mark.parametrize("extra", ["total", "veto", "risk_reward", "size", "symbol", "side", "quantity"])
def test_a_model_has_no_say_in_what_is_computed(extra: str) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Judgement.model_validate(answer(**{extra: 1}))


def test_layers_come_in_the_order_of_their_numbers() -> None:
    backwards = dict(reversed(layers().items()))

    assert [name for name, _ in judgement(layers=backwards).by_layer()] == list(Layer)


def test_a_name_of_a_candidate_stays_a_name() -> None:
    proposal = judgement(trade_plan=plan("pullback", "swing", "level_2")).trade_plan

    assert proposal == TradeProposal(entry="pullback", stop="swing", target="level_2")


def test_each_direction_has_its_sign() -> None:
    assert [direction.sign for direction in Direction] == [1, -1, 0]
