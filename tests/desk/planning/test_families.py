"""A family that is used from Python, without a package."""

from collections.abc import Iterator
from typing import Any

import pytest

from agentic_trading.desk.planning.errors import FamilyError, UnknownFamilyError
from agentic_trading.desk.planning.families import drop_family, load_family, template_of, use_family
from agentic_trading.desk.planning.params import (
    StrategyParamRequest,
    family_terms,
    read_params,
    shipped_family_of,
)
from agentic_trading.desk.planning.template import BaseTemplate
from tests.desk.cli.test_own_families import NEAR_HIGH, SET


@pytest.fixture
def near_high() -> Iterator[BaseTemplate]:
    module: dict[str, Any] = {"__name__": "near_high"}
    exec(compile(NEAR_HIGH, "near_high.py", "exec"), module)  # noqa: S102 - the file of our own page
    yield use_family(module["NearHigh"]())
    drop_family("near_high")


def test_set_of_family_in_use_is_read(near_high: BaseTemplate) -> None:
    params = read_params(SET)
    request = StrategyParamRequest.model_validate({"reasoning": "x" * 60, "params": SET})

    assert request.params == params == params.effective
    assert family_terms("near_high").classes == near_high.PARAMS
    assert template_of("near_high") is near_high
    with pytest.raises(ValueError, match=r"trend_days \(40\) must be less than high_days"):
        read_params({**SET, "trend_days": 40})


def test_dropped_family_is_unknown(near_high: BaseTemplate) -> None:
    drop_family(near_high.family)
    drop_family("momentum")  # a shipped family stays

    assert load_family("momentum") is template_of("momentum")
    for use in (template_of, family_terms, load_family):
        with pytest.raises(UnknownFamilyError, match="no strategy family is called 'near_high'"):
            use("near_high")
    with pytest.raises(ValueError, match="strategy_type"):
        read_params(SET)


def test_shipped_name_is_refused() -> None:
    class Again(BaseTemplate):
        family = "momentum"

    with pytest.raises(FamilyError, match="its name must have 1 to 40 lower-case letters"):
        use_family(Again())


def test_validated_set_is_taken_as_it_is(near_high: BaseTemplate) -> None:
    params = read_params(SET)

    request = StrategyParamRequest.model_validate({"reasoning": "x" * 60, "params": params})

    assert request.params is params


def test_sessions_take_shipped_families_only(near_high: BaseTemplate) -> None:
    assert shipped_family_of("momentum") == "momentum"
    with pytest.raises(UnknownFamilyError, match=r"'near_high'.* momentum"):
        shipped_family_of(near_high.family)
