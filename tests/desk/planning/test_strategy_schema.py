"""A planner is offered what the data can serve, and no more; what is left out is said."""

from typing import Any

import pytest

from agentic_trading.canonical import canonical_bytes
from agentic_trading.desk.planning import NotOfferedError, PanelFacts, answer_schema, offered_by
from agentic_trading.desk.planning.params import FAMILIES, grid_of, read_params
from agentic_trading.desk.planning.schema import (
    EVERYTHING,
    FAMILY_SCHEMAS,
    STRATEGY_PARAMS,
    STRATEGY_PARAMS_SCHEMA,
    check_strategy_params,
    needed_bars,
)
from agentic_trading.desk.planning.template import TEMPLATES
from agentic_trading.structured import validate
from tests.desk.planning.sets import REASON, VALID, answer
from tests.gateway import asking

SAMPLE = offered_by(PanelFacts("sp500-sample", bars=245))


def planned(schema: Any, params: Any) -> list[tuple[str, str, Any]]:
    """Return what a choice of parameters breaks of a schema."""
    broken = validate({"reasoning": REASON, "params": params}, schema)
    return [(each.path, each.keyword, each.allowed) for each in broken]


def test_sample_withholds_unserved_values_with_reason() -> None:
    assert SAMPLE.grids["momentum"]["catalyst_type"] == ("none", "volume")
    assert SAMPLE.grids["mean_reversion"]["trend_filter"] == (0, 50, 100)
    assert SAMPLE.warm_up == 121
    assert SAMPLE.withheld == (
        "momentum.catalyst_type: revenue, earnings not offered: beside prices the data has volume",
        "mean_reversion.trend_filter: 200 needs more than 245 bars, with 60 in each half of the evaluation",
    )


def test_other_grids_are_offered_unchanged() -> None:
    for family, template in TEMPLATES.items():
        changed = {"catalyst_type", "trend_filter"}
        kept = {name: values for name, values in SAMPLE.grids[family].items() if name not in changed}
        assert kept == {name: values for name, values in template.PARAM_GRID.items() if name not in changed}


@pytest.mark.parametrize(
    ("frames", "catalysts"),
    [
        ({"volume", "revenue"}, ("revenue",)),
        ({"revenue", "earnings"}, ("revenue", "earnings")),
        ({"volume"}, ("none", "volume")),
        (set(), ("none",)),
    ],
)
def test_catalyst_offered_if_frame_exists(frames: set[str], catalysts: tuple[str, ...]) -> None:
    offered = offered_by(PanelFacts("a panel", bars=1_000, frames=frozenset(frames)))

    assert offered.grids["momentum"]["catalyst_type"] == catalysts


def test_value_offered_if_warm_up_fits() -> None:
    for bars, means in ((239, (20, 60, 90)), (240, (20, 60, 90, 120))):
        assert offered_by(PanelFacts("a panel", bars=bars)).grids["momentum"]["ma_periods"] == means
    for bars, lookbacks in ((240, (20, 40, 60)), (241, (20, 40, 60, 120))):
        assert offered_by(PanelFacts("a panel", bars=bars)).grids["volatility"]["vol_lookback"] == lookbacks
    assert (
        needed_bars("momentum_period", 5),
        needed_bars("trend_filter", 0),
        needed_bars("n_stocks", 20),
    ) == (6, 0, 0)
    assert EVERYTHING.warm_up == 200


def test_incomplete_family_is_withheld_with_reason() -> None:
    short = offered_by(PanelFacts("a short panel", bars=135))

    assert [*short.grids] == ["mean_reversion"]
    assert "momentum: not offered by this data, no value of ma_periods can be served" in short.withheld
    with pytest.raises(
        NotOfferedError, match=r"a short panel offers none of momentum: .*no value of ma_periods"
    ):
        answer_schema(short, ("momentum",))
    nothing = offered_by(PanelFacts("a day", bars=1))
    assert (nothing.grids, nothing.warm_up) == ({}, 0)
    with pytest.raises(NotOfferedError, match="a day offers none of momentum, mean_reversion, volatility"):
        answer_schema(nothing)


def test_single_family_schema_needs_no_tag() -> None:
    one = answer_schema(SAMPLE, ("momentum",))
    several = answer_schema(SAMPLE)

    assert one["$id"] == several["$id"] == STRATEGY_PARAMS
    assert "strategy_type" not in one["properties"]["params"]["required"]
    volume = {**VALID, "catalyst_type": "volume"}
    assert planned(one, volume) == planned(one, {**volume, "strategy_type": "momentum"}) == []
    assert planned(several, {**volume, "strategy_type": "momentum"}) == []
    assert planned(several, volume) == [("$.params.strategy_type", "required", [*FAMILIES])]
    assert planned(one, VALID) == [("$.params.catalyst_type", "enum", ["none", "volume"])]


@pytest.mark.parametrize(
    "changed",
    [
        {"momentum_period": 25},
        {"momentum_period": True},
        {"stop_loss": "10%"},
        {"leverage": 2},
        {"n_stocks": None},
    ],
)
def test_error_concerns_tagged_family_only(changed: dict[str, Any]) -> None:
    given = {**VALID, "strategy_type": "momentum", "catalyst_type": "volume", **changed}

    broken = planned(answer_schema(SAMPLE), given)

    assert broken == planned(answer_schema(SAMPLE, ("momentum",)), given)
    assert 1 <= len(broken) <= 2


def test_answer_schema_is_small() -> None:
    assert len(canonical_bytes(answer_schema(SAMPLE, ("momentum",)))) < 1_700
    assert len(canonical_bytes(answer_schema(SAMPLE))) < 4_500


def test_reasoning_may_be_outside_schema() -> None:
    apart = answer_schema(SAMPLE, ("momentum",), reasoning_apart=True)

    assert [*apart["properties"]] == ["params"]
    assert validate({"params": {**VALID, "catalyst_type": "none"}}, apart) == []


def test_defaults_fit_published_schemas() -> None:
    published = {schema["$id"]: schema for schema in FAMILY_SCHEMAS}

    assert [*published] == ["momentum_params.v1", "mean_reversion_params.v1", "volatility_params.v1"]
    for family, template in TEMPLATES.items():
        tagged = {"strategy_type": family, **template.DEFAULTS}
        assert validate(tagged, published[f"{family}_params.v1"]) == []
        assert planned(STRATEGY_PARAMS_SCHEMA, tagged) == []
        assert read_params(tagged).strategy_type == family


def test_rule_check_uses_offered_values() -> None:
    envelope = asking("planning").with_output_schema(answer_schema(SAMPLE)).build()
    sample = {
        "lookback": 60,
        "entry_z": 1,
        "exit_z": 1,
        "trend_filter": 50,
        "strategy_type": "mean_reversion",
    }

    broken = check_strategy_params(envelope, answer({**sample, "n_stocks": 5}))

    assert [(each.path, each.allowed, each.suggestion) for each in broken] == [
        ("$.params.exit_z", [0.0, 0.5], 0.5),
        ("$.params.trend_filter", [0, 100], 0),
    ]
    assert check_strategy_params(envelope, answer({**sample, "exit_z": 0.5, "trend_filter": 0})) == []
    assert check_strategy_params(envelope, answer({"strategy_type": "martingale"})) == []


def test_other_field_changes_if_first_cannot() -> None:
    narrow = {**grid_of_mean_reversion(), "trend_filter": (50,)}
    schema = {"properties": {"params": {"properties": _members("mean_reversion", narrow)}}}
    envelope = asking("planning").with_output_schema(schema).build()
    given = {"lookback": 60, "entry_z": 2, "exit_z": 1, "trend_filter": 50}

    (broken,) = check_strategy_params(envelope, answer(given))

    assert (broken.path, broken.allowed, broken.suggestion) == ("$.params.lookback", [10, 20, 40], 40)
    nowhere = {
        "properties": {"params": {"properties": _members("mean_reversion", {**narrow, "lookback": (60,)})}}
    }
    envelope = asking("planning").with_output_schema(nowhere).build()
    (broken,) = check_strategy_params(envelope, answer(given))
    assert (broken.path, broken.allowed, broken.suggestion) == ("$.params.trend_filter", [], None)


def grid_of_mean_reversion() -> dict[str, Any]:
    """Return the values of that family."""
    return dict(TEMPLATES["mean_reversion"].PARAM_GRID)


def _members(family: str, grid: dict[str, Any]) -> dict[str, Any]:
    return {
        "strategy_type": {"const": family},
        **{name: {"enum": [*values]} for name, values in grid.items()},
    }


def test_grid_follows_class_literals() -> None:
    assert grid_of(type(read_params(VALID)))["catalyst_type"] == ("revenue", "earnings")
