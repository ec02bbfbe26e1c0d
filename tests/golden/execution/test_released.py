"""Fill strategies of every release are read for ever: as what they were, and in the form of today."""

import json
from pathlib import Path

import jsonschema_rs
import pytest

from agentic_trading.canonical import sha256_hex
from agentic_trading.desk.execution.strategy import (
    FILL_STRATEGY_SCHEMA,
    FILL_STRATEGY_V1_SCHEMA,
    FillTerms,
    read_choice,
    read_strategy,
)
from agentic_trading.desk.execution.upcasting import (
    UnknownFillStrategyVersionError,
    choice_of,
    upcast_fill_strategy,
)

HERE = Path(__file__).parent
SCHEMAS = HERE.parents[2] / "schemas"
V1 = (HERE / "fill-answer.v1.json").read_text(encoding="utf-8")
V1_AS_V2 = (HERE / "fill-answer.v1-as-v2.json").read_text(encoding="utf-8")
SHA256_OF_V1 = "953c08e6088af8786cd9063e887a8d4f03265d51bd6c6b6e4301f5e188c73bc0"


def test_the_first_answer_fits_its_schema_and_is_read_as_what_it_was() -> None:
    assert jsonschema_rs.is_valid(dict(FILL_STRATEGY_V1_SCHEMA), json.loads(V1))
    assert str(read_strategy(V1).limit_offset_bps) == "2.125"


def test_the_first_answer_is_read_in_the_form_of_today() -> None:
    assert choice_of("fill_strategy.v1", V1) == choice_of("fill_strategy.v2", V1_AS_V2)


def test_the_form_of_today_is_the_same_strategy() -> None:
    old = read_strategy(V1)

    new = upcast_fill_strategy(old)

    assert isinstance(new.fill, FillTerms)
    assert new.strategy(new.fill) == old


def test_the_form_of_today_fits_the_published_schema() -> None:
    assert read_choice(V1_AS_V2) == upcast_fill_strategy(read_strategy(V1))
    assert jsonschema_rs.is_valid(dict(FILL_STRATEGY_SCHEMA), json.loads(V1_AS_V2))


def test_a_released_schema_does_not_change() -> None:
    assert sha256_hex((SCHEMAS / "fill_strategy.v1.json").read_bytes()) == SHA256_OF_V1


def test_an_answer_of_no_release_is_refused_with_those_there_are() -> None:
    allowed = r"allowed: fill_strategy\.v1 or fill_strategy\.v2"
    with pytest.raises(UnknownFillStrategyVersionError, match=allowed) as refused:
        choice_of("cmt_assessment.v1", "{}")

    assert refused.value.schema_id == "cmt_assessment.v1"
