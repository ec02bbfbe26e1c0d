"""The schema of a fill strategy and the model that reads one say the same."""

import json
from decimal import Decimal
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentic_trading.desk.execution.strategy import FillStrategy, FillTerms, closed_schema, read_choice
from tests.desk.execution.asked import in_full, text_of
from tests.desk.trade import strategy

SCHEMA = closed_schema(FillStrategy)
VALIDATOR = jsonschema_rs.validator_for(SCHEMA)


def test_schema_is_closed_and_requires_all() -> None:
    assert SCHEMA["additionalProperties"] is False
    assert set(SCHEMA["required"]) == set(SCHEMA["properties"])


@pytest.mark.parametrize("decided_elsewhere", ["side", "symbol", "quantity"])
def test_code_decided_fields_are_rejected(decided_elsewhere: str) -> None:
    assert decided_elsewhere not in SCHEMA["properties"]

    with pytest.raises(ValidationError):
        read_choice(in_full(strategy(), **{decided_elsewhere: "1"}))


def test_numbers_keep_all_digits() -> None:
    read = read_choice(in_full(strategy(), limit_offset_bps="1.2300000000000000000001"))

    assert isinstance(read.fill, FillTerms)
    assert str(read.fill.limit_offset_bps) == "1.2300000000000000000001"


def test_strategy_round_trips_through_json() -> None:
    assert FillStrategy.model_validate_json(strategy().model_dump_json()) == strategy()


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "order_type": st.sampled_from(["market", "limit", "post_only", "stop", ""]),
    "time_in_force": st.sampled_from(["gtc", "ioc", "day", "fok"]),
    "algo": st.sampled_from(["single", "twap", "passive_then_cross", "pov"]),
    "slices": st.sampled_from([0, 1, 20, 21, -1]),
    "interval_seconds": st.sampled_from([-1, 0, 86_400, 86_401]),
    "limit_offset_bps": st.sampled_from([-1001, -1000, 0, 0.5, 1000, 1000.5]),
    "price_reference": st.sampled_from(["last", "arrival", "mid"]),
    "max_participation": st.sampled_from([-0.1, 0, 0.25, 0.26]),
    "deadline_seconds": st.sampled_from([0, 1, 86_400, 86_401]),
    "on_deadline": st.sampled_from(["cross", "cancel", "reprice"]),
    "confidence": st.sampled_from([-0.1, 0, 1, 1.1]),
    "rationale": st.sampled_from(["", "x" * 300, "x" * 301]),
    "evidence_ids": st.lists(st.sampled_from(["E1", "E12", "E0", "e1", "1"]), max_size=9),
    "more": st.just("than was asked"),
}


@given(st.sets(st.sampled_from(sorted(VALUES)), max_size=2), st.data())
def test_model_and_schema_accept_same_values(names: set[str], data: st.DataObject) -> None:
    fields = json.loads(text_of(strategy()))
    fields.update({name: data.draw(VALUES[name], label=name) for name in sorted(names)})
    if data.draw(st.integers(0, 9), label="drop one") == 0:
        del fields["algo"]

    try:
        FillStrategy.model_validate(fields)
        accepted = True
    except ValidationError:
        accepted = False

    assert accepted == VALIDATOR.is_valid(fields)


def test_schema_bounds_are_plain_numbers() -> None:
    assert SCHEMA["properties"]["max_participation"]["maximum"] == 0.25
    assert strategy().max_participation == Decimal("0.1")
