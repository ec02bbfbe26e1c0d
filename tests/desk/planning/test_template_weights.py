"""The code of every template gives the weights that it promises, and none of the future changes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentic_trading.canonical import sha256_hex
from agentic_trading.desk.planning import TEMPLATES, code_problems, read_params
from agentic_trading.desk.planning.params import (
    FAMILIES,
    Family,
    PriceMomentumParams,
    grid_of,
    rule_violations,
)
from tests.desk.planning.sets import VALID
from tests.desk.planning.weights_oracle import oracle

Array = NDArray[np.float64]
BARS, STOCKS = 260, 12


@dataclass(frozen=True, slots=True)
class World:
    """Prices, volumes, events and the bars of a rebalance."""

    close: Array
    volume: Array
    catalyst: Array
    rebalance: NDArray[np.bool_]

    def until(self, bar: int) -> "World":
        return World(self.close[:bar], self.volume[:bar], self.catalyst[:bar], self.rebalance[:bar])


def world(seed: int, *, every: int = 5) -> World:
    """Return prices of a random walk; one stock vanishes for good, one for some days, and one never moves."""
    chance = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(chance.normal(0.0005, 0.02, (BARS, STOCKS)), axis=0))
    close[180:, 3] = np.nan
    close[90:110, 5] = np.nan
    close[:, 7] = 50.0
    volume = chance.lognormal(10, 0.6, (BARS, STOCKS))
    catalyst = (chance.random((BARS, STOCKS)) < 0.01).astype(np.float64)
    for each in (close, volume, catalyst):
        each.flags.writeable = False
    return World(close, volume, catalyst, np.arange(BARS) % every == every - 1)


def weights(code: str, seen: World) -> Array:
    """Return what the code that passes the gate gives for a world."""
    assert code_problems(code) == ()
    names: dict[str, Any] = {}
    exec(compile(code, "strategy", "exec"), names)  # noqa: S102 - it has passed the gate
    found: Array = names["target_weights"](seen.close, seen.volume, seen.catalyst, seen.rebalance)
    return found


def some_params(family: Family, choose: Any) -> dict[str, Any]:
    """Return a valid set of a family, chosen by `choose` of the values of each parameter."""
    grid = dict(TEMPLATES[family].PARAM_GRID)
    if family == "momentum":
        grid["catalyst_type"] = ("none", "volume", "revenue")
    params = {"strategy_type": family, **{name: choose(name, values) for name, values in grid.items()}}
    for broken in rule_violations(family, params, grid):
        params[broken.path.rpartition(".")[2]] = broken.suggestion
    return params


def code_of(params: Mapping[str, Any]) -> str:
    """Return the code of valid parameters."""
    return TEMPLATES[params["strategy_type"]].generate_code(read_params(params))


def sample(family: Family, seed: int) -> dict[str, Any]:
    """Return one of a family's sets, chosen by `seed`."""
    chance = np.random.default_rng(seed)
    return some_params(family, lambda _, values: values[int(chance.integers(len(values)))])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 12))]
)
def test_weights_match_plain_python_oracle(family: Family, seed: int) -> None:
    params, seen = sample(family, seed), world(seed, every=1 + seed % 6)

    found = weights(code_of(params), seen)

    columns = [array.T.tolist() for array in (seen.close, seen.volume, seen.catalyst)]
    expected = oracle(params, columns[0], columns[1], columns[2], seen.rebalance.tolist())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_later_data_keeps_past_weights(family: Family, data: st.DataObject) -> None:
    params = some_params(family, lambda name, values: data.draw(st.sampled_from(values), name))
    seen, cut = world(data.draw(st.integers(0, 50))), data.draw(st.integers(1, BARS - 1))
    code = code_of(params)

    whole = weights(code, seen)

    assert weights(code, seen.until(cut)).tobytes() == whole[:cut].tobytes()
    other = World(
        np.concatenate([seen.close[:cut], seen.close[cut:] * 3 + 1]),
        np.concatenate([seen.volume[:cut], seen.volume[cut:] * 5]),
        np.concatenate([seen.catalyst[:cut], 1 - seen.catalyst[cut:]]),
        seen.rebalance,
    )
    assert weights(code, other)[:cut].tobytes() == whole[:cut].tobytes()


def test_planted_look_ahead_changes_truncated_weights() -> None:
    code = code_of(VALID | {"strategy_type": "momentum", "catalyst_type": "none"})
    planted = code.replace("strength = change(close, 20)", "strength = close[-1] / close - 1")
    seen = world(1)

    whole = weights(planted, seen)

    assert planted != code
    assert weights(planted, seen.until(150)).tobytes() != whole[:150].tobytes()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(20, 32))
def test_template_weights_keep_promises(family: Family, seed: int) -> None:
    params, seen = sample(family, seed), world(seed)

    found = weights(code_of(params), seen)

    assert (found.dtype, found.shape) == (np.float64, seen.close.shape)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert (found.sum(axis=1) <= 1 + 1e-9).all()
    assert (np.count_nonzero(found, axis=1) <= params["n_stocks"]).all()
    assert (found <= params.get("max_weight", 1 / params["n_stocks"]) + 1e-12).all()
    assert (found[np.isnan(seen.close)] == 0).all()
    moved = np.flatnonzero((found[1:] > found[:-1]).any(axis=1)) + 1
    assert seen.rebalance[moved].all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bars", [1, 2, 30])
def test_short_history_holds_no_position(family: Family, bars: int) -> None:
    params = {**TEMPLATES[family].DEFAULTS, "strategy_type": family}

    found = weights(
        code_of(params | {"catalyst_type": "none"} if family == "momentum" else params), world(3).until(bars)
    )

    assert found.shape == (bars, STOCKS)
    assert not found[:20].any()


GOLDEN = {
    "momentum": "1cb45f9a4fbb1ff30e62136ebc49803a9513bf4001f27ddb4fbc12925daffc1e",
    "mean_reversion": "6c31ca29d6a0a0d0043b1f851d7de49cac09e0a2d6e262fa694bccbf820fa1ae",
    "volatility": "f4e1b6e097e590d9f2e6f4f8387386a5eb4d43cc1e2553ed96f03336e1362e1f",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_default_code_matches_golden_hash(family: Family) -> None:
    code = code_of({"strategy_type": family, **TEMPLATES[family].DEFAULTS})

    assert sha256_hex(code.encode()) == GOLDEN[family]


def test_every_price_momentum_set_passes_gate() -> None:
    bodies = set()
    grid = grid_of(PriceMomentumParams)
    for catalyst in grid["catalyst_type"]:
        for lookback in grid["catalyst_lookback"]:
            code = code_of(
                VALID
                | {"strategy_type": "momentum", "catalyst_type": catalyst, "catalyst_lookback": lookback}
            )
            assert code_problems(code) == ()
            bodies.add(code.partition("import")[2])
    assert len(bodies) == 5
