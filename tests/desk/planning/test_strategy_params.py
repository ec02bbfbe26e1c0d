"""Parameters are taken from their grids only, and together only where they agree."""

from collections import Counter
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from agentic_trading.desk.planning.errors import UnknownFamilyError
from agentic_trading.desk.planning.params import (
    CLASSES,
    FAMILIES,
    RULES,
    MeanReversionParams,
    MomentumStrategyParams,
    PriceMomentumParams,
    StrategyParamRequest,
    VolatilityParams,
    family_of,
    grid_of,
    read_params,
    rule_violations,
)
from agentic_trading.desk.planning.schema import disagreements, family_schema
from agentic_trading.desk.planning.template import MomentumTemplate, VolatilityTemplate
from agentic_trading.structured import validate
from tests.desk.planning.sets import EXAMPLE, REASON, VALID, all_sets

SENTENCE = "momentum_period ({}) should be <= ma_periods ({}) for proper trend confirmation"
COUNTS: list[tuple[type[BaseModel], int, int, int]] = [
    (MomentumStrategyParams, 20_480, 19_200, 11_520),
    (PriceMomentumParams, 20_480, 19_200, 7_200),
    (MeanReversionParams, 18_432, 15_840, 15_840),
    (VolatilityParams, 30_720, 26_880, 8_448),
]


def family_answer(model: type[BaseModel], given: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of the family of `model`."""
    return {"params": {"strategy_type": model.model_fields["strategy_type"].default, **given}}


@pytest.mark.parametrize(("model", "sets", "valid", "distinct"), COUNTS)
def test_rules_reject_expected_number_of_sets(
    model: type[BaseModel], sets: int, valid: int, distinct: int
) -> None:
    accepted, effective, all_of_them = 0, set(), 0
    for given in all_sets(model):
        all_of_them += 1
        try:
            params: Any = model.model_validate(given)
        except ValidationError:
            continue
        accepted += 1
        effective.add(params.effective.canonical)

    assert (all_of_them, accepted, len(effective)) == (sets, valid, distinct)


def test_period_above_mean_suggests_valid_value() -> None:
    refused = 0
    schema = {"properties": {"params": family_schema("momentum")}}
    for given in all_sets(MomentumStrategyParams):
        period, mean = given["momentum_period"], given["ma_periods"]
        if period <= mean:
            assert disagreements({"params": given}, schema) == []
            continue
        refused += 1
        with pytest.raises(ValidationError, match=r"for proper trend confirmation"):
            MomentumStrategyParams.model_validate(given)
        (broken,) = disagreements({"params": given}, schema)
        assert (broken.path, broken.message) == ("$.params.momentum_period", SENTENCE.format(period, mean))
        assert (broken.allowed, broken.suggestion, broken.actual) == ([5, 10, 20], 20, 30)

    assert refused == 1_280


@pytest.mark.parametrize(("model", "sets", "valid", "_distinct"), COUNTS)
def test_every_broken_rule_has_correction(
    model: type[BaseModel], sets: int, valid: int, _distinct: int
) -> None:
    family = family_of(model.model_fields["strategy_type"].default)
    grid, invalid, corrected = grid_of(model), 0, Counter[int]()
    for given in all_sets(model):
        found = list(rule_violations(family, given, grid))
        if not found:
            continue
        invalid += 1
        for violation in found:
            name = violation.path.rpartition(".")[2]
            assert violation.suggestion in violation.allowed
            changed = {**given, name: violation.suggestion}
            assert all(rule.kept_by(changed) for rule in RULES[family] if name in {rule.change, rule.other})
            if len(found) == 1:
                corrected[len(list(rule_violations(family, changed, grid)))] += 1

    assert invalid == sets - valid
    assert set(corrected) == {0}


@pytest.mark.parametrize("model", [model for model, *_ in COUNTS])
def test_off_grid_value_suggests_closest(model: type[BaseModel]) -> None:
    family = family_of(model.model_fields["strategy_type"].default)
    valid = next(
        given for given in all_sets(model) if not list(rule_violations(family, given, grid_of(model)))
    )
    tried = 0
    for name, values in grid_of(model).items():
        numbers = [value for value in values if not isinstance(value, str)]
        step = 1 if all(isinstance(value, int) for value in numbers) else 0.001
        for value in numbers:
            for beside in (value - step, value + step):
                if beside in values:
                    continue
                tried += 1
                with pytest.raises(ValidationError):
                    model.model_validate({**valid, name: beside})
                (broken,) = validate({**valid, name: beside}, family_schema(family))
                assert (broken.path, broken.keyword, broken.allowed) == (f"$.{name}", "enum", [*values])
                assert abs(broken.suggestion - beside) == min(abs(other - beside) for other in numbers)
    assert tried > 20


@pytest.mark.parametrize("name", VALID)
@pytest.mark.parametrize("wrong", [True, "20", None, 15.5, [20], {}, "10%", float("nan")])
def test_value_of_wrong_type_is_rejected(name: str, wrong: Any) -> None:
    with pytest.raises(ValidationError):
        read_params({**VALID, name: wrong})
    with pytest.raises(ValidationError):
        MomentumStrategyParams.model_validate({**VALID, name: wrong})


def test_boolean_is_not_a_number() -> None:
    given = {**next(all_sets(MeanReversionParams)), "exit_z": 0.5, "strategy_type": "mean_reversion"}

    assert read_params({**given, "entry_z": 1}) == read_params({**given, "entry_z": 1.0})
    for name, wrong in {"entry_z": True, "exit_z": False, "trend_filter": False}.items():
        with pytest.raises(ValidationError):
            read_params({**given, name: wrong})


def test_integral_float_equals_integer() -> None:
    params = MomentumStrategyParams.model_validate_json(EXAMPLE_PARAMS.replace("20", "20.0"))

    assert params == read_params(VALID)
    assert type(params.momentum_period) is int
    assert validate({**VALID, "momentum_period": 20.0}, family_schema("momentum")) == []


EXAMPLE_PARAMS = MomentumStrategyParams.model_validate(VALID).canonical


def test_monthly_rebalance_ignores_offset() -> None:
    offsets = [read_params({**VALID, "resample": "M", "resample_offset": offset}) for offset in range(5)]

    assert len({params.sha256 for params in offsets}) == 5
    assert {params.effective.sha256 for params in offsets} == {offsets[0].sha256}
    weekly = read_params({**VALID, "resample_offset": 3})
    assert weekly.effective == weekly


def test_params_are_closed_complete_and_frozen() -> None:
    params = read_params(VALID)

    with pytest.raises(ValidationError, match="Extra inputs"):
        read_params({**VALID, "leverage": 2})
    with pytest.raises(ValidationError, match="frozen"):
        setattr(params, "n_stocks", 20)  # noqa: B010 - that it cannot be assigned is what is tested
    with pytest.raises(ValidationError, match="Field required"):
        read_params({name: value for name, value in VALID.items() if name != "n_stocks"})


def test_tag_selects_family_defaulting_to_momentum() -> None:
    for model, *_ in COUNTS:
        given = next(all_sets(model))
        tag = model.model_fields["strategy_type"].default
        if model is VolatilityParams:
            given["max_weight"] = 0.2
        assert type(read_params({**given, "strategy_type": tag})) is model
    assert type(read_params(VALID)) is MomentumStrategyParams
    with pytest.raises(ValidationError, match="does not match any of the expected tags"):
        read_params({**VALID, "strategy_type": "martingale"})
    with pytest.raises(ValidationError):
        StrategyParamRequest.model_validate({"reasoning": REASON, "params": [VALID]})


def test_unknown_family_lists_allowed_names() -> None:
    with pytest.raises(UnknownFamilyError, match="Allowed: momentum, mean_reversion, volatility"):
        family_of("martingale")


def test_reasoning_length_is_bounded() -> None:
    request = StrategyParamRequest.model_validate_json(EXAMPLE)

    assert (len(request.reasoning), request.params) == (73, read_params(VALID))
    assert StrategyParamRequest(reasoning=REASON, params=request.params).params == request.params
    for length in (49, 501):
        with pytest.raises(ValidationError, match="reasoning"):
            StrategyParamRequest(reasoning="x" * length, params=request.params)


def test_every_parameter_is_described_in_schema() -> None:
    assert [*grid_of(MomentumStrategyParams)] == [*VALID]
    for family in FAMILIES:
        schema = family_schema(family)
        assert all(member["description"] for member in schema["properties"].values())
        assert schema["additionalProperties"] is False
        assert [*schema["properties"]] == ["strategy_type", *grid_of(*CLASSES[family])]
    assert grid_of(MomentumStrategyParams) == MomentumTemplate.PARAM_GRID


def test_excess_weight_cap_has_no_effect() -> None:
    given: dict[str, Any] = {**VolatilityTemplate.DEFAULTS, "strategy_type": "volatility", "n_stocks": 5}
    caps = (0.2, 0.25)

    for mode, distinct in {"low_vol": 1, "breakout": 1, "inverse_vol": 2}.items():
        sets = [read_params({**given, "mode": mode, "max_weight": cap}) for cap in caps]
        assert len({params.effective.sha256 for params in sets}) == distinct
