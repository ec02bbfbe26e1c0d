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


def test_price_keeps_all_written_digits() -> None:
    proposal = judgement(trade_plan=plan("27953.830", "27000.00", "28000.10")).trade_plan

    assert proposal is not None
    assert str(proposal.entry) == "27953.830"
    assert json.loads(proposal.model_dump_json())["stop"] == "27000.00"


@given(st.decimals(min_value="1e-18", max_value=999_999_999_999, places=18))
def test_price_round_trip_without_exponent(price: Decimal) -> None:
    written = TradeProposal(entry="market", stop=price, target=price).model_dump_json()

    assert "E" not in json.loads(written)["target"]
    assert TradeProposal.model_validate_json(written).target == price


@pytest.mark.parametrize(
    "price", [27953.83, 28000, "1e5", "27,953", "-5", "27953.", "027953", "$10", "", "NaN", None]
)
def test_malformed_price_is_rejected(price: Any) -> None:
    with pytest.raises(ValidationError, match=r"trade_plan\.stop"):
        judgement(trade_plan=plan(stop=price))


@pytest.mark.parametrize("name", list(Layer))
def test_score_outside_layer_range_rejected(name: Layer) -> None:
    least, most = SCORE_RANGES[name]

    for score in (least, most):
        assert judgement(layers=layers(**{name.value: layer(score)})).layers is not None
    for score in (least - 1, most + 1):
        with pytest.raises(ValidationError, match=f"allowed: {least} to {most}"):
            judgement(layers=layers(**{name.value: layer(score)}))


@pytest.mark.parametrize("extra", ["total", "veto", "risk_reward", "size", "symbol", "side", "quantity"])
def test_extra_answer_fields_are_rejected(extra: str) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Judgement.model_validate(answer(**{extra: 1}))


def test_layers_follow_enum_order() -> None:
    backwards = dict(reversed(layers().items()))

    assert [name for name, _ in judgement(layers=backwards).by_layer()] == list(Layer)


def test_candidate_names_stay_unchanged() -> None:
    proposal = judgement(trade_plan=plan("pullback", "swing", "level_2")).trade_plan

    assert proposal == TradeProposal(entry="pullback", stop="swing", target="level_2")


def test_each_direction_has_a_sign() -> None:
    assert [direction.sign for direction in Direction] == [1, -1, 0]
