"""What weights promise: rows that keep or break each rule, and code that looks ahead or does not."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.planning.panel import Floats
from agentic_trading.desk.planning.promises import (
    CUTS,
    BrokenPromise,
    Promise,
    WeightRules,
    _cuts,
    broken_by_look_ahead,
    broken_promises,
)
from agentic_trading.desk.planning.sandbox import Sandbox, SandboxJob, SandboxLimits
from tests.desk.planning.strategy_code import events, every, follow_lead, job, panel

BARS, ASSETS = 12, 5
CLOSE = np.full((BARS, ASSETS), 10.0)
REBALANCE = every(4, BARS)
RULES = WeightRules(n_stocks=3, max_weight=0.4)


def kept(values: list[int]) -> Floats:
    """Return weights that keep every rule: three stocks in all, changed on rebalance bars alone."""
    rows = np.zeros((BARS, ASSETS))
    for start, first in zip(range(0, BARS, 4), values, strict=True):
        rows[start : start + 4, [(first + step) % ASSETS for step in range(3)]] = [0.4, 0.4, 0.2]
    return rows


def broken(weights: Floats, rules: WeightRules = RULES) -> list[Promise]:
    return [each.promise for each in broken_promises(weights, CLOSE, REBALANCE, rules)]


@given(st.lists(st.integers(0, ASSETS - 1), min_size=3, max_size=3))
def test_valid_weights_break_no_promise(values: list[int]) -> None:
    assert broken_promises(kept(values), CLOSE, REBALANCE, RULES) == ()


@given(
    st.integers(0, BARS - 1),
    st.sampled_from([
        (np.nan, Promise.FINITE, "1 at bar {}; allowed: no weight that is NaN or infinite"),
        (np.inf, Promise.FINITE, "1 at bar {}; allowed: no weight that is NaN or infinite"),
        (-0.1, Promise.NOT_NEGATIVE, "-0.1 at bar {}; allowed: 0 or more"),
        (0.5, Promise.MAX_WEIGHT, "0.5 at bar {}; allowed: 0.4 a stock or less"),
        (0.1, Promise.N_STOCKS, "4 at bar {}; allowed: 3 stocks or fewer"),
        (0.1, Promise.ROW_SUM, "1.1 at bar {}; allowed: 1 or less in all"),
    ]),
)
def test_wrong_weight_breaks_promise_at_bar(bar: int, wrong: tuple[float, Promise, str]) -> None:
    value, promise, message = wrong
    weights = kept([0, 0, 0])
    weights[bar, 4] = value

    found = {each.promise: each for each in broken_promises(weights, CLOSE, REBALANCE, RULES)}

    assert found[promise] == BrokenPromise(promise, message.format(bar), bar)


def test_checks_tolerate_rounding_of_shares() -> None:
    weights = np.zeros((BARS, 49))
    weights[:] = 1 / 49 * (1 + 4e-16)

    assert broken_promises(weights, weights, REBALANCE, WeightRules(49, 1 / 49)) == ()
    assert weights.sum(axis=1).max() > 1


def test_weights_change_only_on_rebalance() -> None:
    weights = kept([0, 1, 2])
    weights[6] = weights[0]  # of stocks 0 to 2 instead of 1 to 3

    (found,) = broken_promises(weights, CLOSE, REBALANCE, RULES)

    assert found == BrokenPromise(Promise.CHANGES, "3 at bar 6; allowed: no change between rebalance bars", 6)


def test_exits_between_rebalances_allow_zero_only() -> None:
    exits = WeightRules(n_stocks=3, max_weight=0.4, exits_between=True)
    left, reduced, entered = (kept([0, 1, 2]) for _ in range(3))
    left[6:8, 1] = 0.0
    reduced[6:8, 1] = 0.3
    entered[2:4, 4] = 0.0
    entered[3, 4], entered[3, 0] = 0.4, 0.0

    assert broken(left, exits) == []
    assert broken(left) == broken(reduced, exits) == broken(entered, exits) == [Promise.CHANGES]


def test_first_bar_weights_require_rebalance() -> None:
    weights = np.full((BARS, ASSETS), 0.2)
    rules = WeightRules(n_stocks=5)

    assert broken_promises(weights, CLOSE, REBALANCE, rules) == ()
    found = broken_promises(weights, CLOSE, ~REBALANCE, rules)

    assert [(each.promise, each.bar) for each in found] == [(Promise.CHANGES, 0)]


@pytest.mark.parametrize(
    ("weights", "form"),
    [
        (np.zeros((BARS, ASSETS), dtype=np.float32), "float32 (12, 5)"),
        (np.zeros((BARS, ASSETS), dtype=np.int64), "int64 (12, 5)"),
        (np.zeros((ASSETS, BARS)), "float64 (5, 12)"),
        (np.zeros(BARS), "float64 (12,)"),
    ],
)
def test_wrong_form_is_only_broken_promise(weights: Floats, form: str) -> None:
    message = f"weights are {form}; allowed: float64 (12, 5)"

    assert broken_promises(weights, CLOSE, REBALANCE, RULES) == (BrokenPromise(Promise.FORM, message, None),)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(panel(), SandboxLimits(cpu_s=1), catalysts={"earnings": events()}) as sandbox:
        yield sandbox


def test_past_only_code_passes_look_ahead(sandbox: Sandbox) -> None:
    assert broken_by_look_ahead(sandbox.run, follow_lead(0)) == ()
    assert broken_by_look_ahead(sandbox.run, job("return np.zeros(close.shape)")) == ()


@pytest.mark.parametrize("days", [1, 2, 5, 20])
def test_look_ahead_days_fail_both_checks(days: int, sandbox: Sandbox) -> None:
    found = broken_by_look_ahead(sandbox.run, follow_lead(days))

    assert [each.promise for each in found] == [Promise.TRUNCATION, Promise.ALTERATION]


def ahead_at(when: str, weight: str = "0.25") -> SandboxJob:
    """Return a job that holds what is dearer one bar later, at some bars only, as if it knew."""
    return job(
        "weights = np.zeros(close.shape)",
        "for bar in range(1, close.shape[0]):",
        f"    seen = min(bar + 1, close.shape[0] - 1) if {when} else bar",
        f"    weights[bar] = np.where(close[seen] > close[bar - 1], {weight}, 0.0)",
        "return weights",
        rebalance=every(1),
    )


@pytest.mark.parametrize(("period", "phase"), [(m, phase) for m in (5, 10) for phase in range(m)])
def test_rare_look_ahead_is_found(period: int, phase: int, sandbox: Sandbox) -> None:
    found = broken_by_look_ahead(sandbox.run, ahead_at(f"bar % {period} == {phase}"))

    assert Promise.TRUNCATION in [each.promise for each in found]


def test_look_ahead_preventing_change_is_found(sandbox: Sandbox) -> None:
    """Weights stay as they were at a rebalance bar, because the next close is known."""
    planted = job(
        "weights = np.zeros(close.shape)",
        "weights[:20, 0] = 0.25",
        "weights[20:, 1] = 0.25",
        "if close.shape[0] > 36:",
        "    weights[35] = weights[34]",
        "elif close.shape[0] == 36:",
        "    weights[35, 0] = 0.25",
        "return weights",
    )

    [found] = broken_by_look_ahead(sandbox.run, planted)

    assert (found.promise, found.bar) == (Promise.TRUNCATION, 35)


def test_cuts_depend_on_code_text() -> None:
    flat = np.zeros((BARS * 20, ASSETS))
    none = np.zeros(BARS * 20, dtype=np.bool_)

    drawn = [_cuts(flat, SandboxJob(code, none)) for code in ("a", "b", "a")]

    assert drawn[0] == drawn[2] != drawn[1]
    assert 1 < len(drawn[0]) <= CUTS


def test_last_close_everywhere_fails_both_checks(sandbox: Sandbox) -> None:
    planted = job(
        "weights = np.zeros(close.shape)",
        "weights[:] = np.where(close[-1] > 100.0, 0.25, 0.0)",
        "return weights",
    )

    truncated, altered = broken_by_look_ahead(sandbox.run, planted)

    assert truncated == BrokenPromise(
        Promise.TRUNCATION, "other weights at bar 0 with the first 1 bars alone; allowed: the same", 0
    )
    assert (altered.promise, altered.bar) == (Promise.ALTERATION, 0)


@pytest.mark.parametrize("source", ["volume", "catalyst", "rebalance[:, None] * close"])
def test_look_ahead_covers_every_input(source: str, sandbox: Sandbox) -> None:
    planted = job(
        f"seen = {source}", "return np.full(close.shape, np.sum(seen[1:])) * 0.001", catalyst="earnings"
    )

    found = broken_by_look_ahead(sandbox.run, planted)

    assert [each.promise for each in found] == [Promise.TRUNCATION, Promise.ALTERATION]


def test_single_bit_difference_is_found(sandbox: Sandbox) -> None:
    planted = job("return np.zeros(close.shape) * np.where(close[-1] > 100.0, 1.0, -1.0)")  # 0.0 and -0.0

    assert broken_by_look_ahead(sandbox.run, planted)


def test_missing_bars_count_as_look_ahead(sandbox: Sandbox) -> None:
    found = broken_by_look_ahead(sandbox.run, job("return close * 0.0 + close[40]"))

    assert found[0].message == (
        "with the first 1 bars alone: error: line 5: IndexError: index 40 is out of bounds for axis 0 with size 1; "
        "allowed: weights"
    )


def test_code_without_weights_breaks_form(sandbox: Sandbox) -> None:
    (found,) = broken_by_look_ahead(sandbox.run, job("return 1"))

    assert found == BrokenPromise(Promise.FORM, "error: returned int; allowed: float64 (60, 4)", None)
