"""The figures of a run equal those of their sources, and are None where they mean nothing."""

from math import e, sqrt
from statistics import NormalDist, mean, stdev, variance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk import metrics
from agentic_trading.desk.metrics import deflated_sharpe, performance, returns_of, sharpe_ratio

EQUITY = [100.0, 110.0, 99.0, 99.0, 118.8]  # +10 %, -10 %, 0, +20 %
TRADED = [100.0, 22.0, 0.0, 49.5]


def test_small_account_has_expected_figures() -> None:
    figures = performance(EQUITY, TRADED, bars_per_year=8)

    assert figures.bars == 4
    assert figures.total_return == pytest.approx(0.188, abs=1e-12)
    assert figures.cagr == pytest.approx(1.188**2 - 1, abs=1e-12)
    assert figures.sharpe == pytest.approx(0.05 / sqrt(0.05 / 3) * sqrt(8), abs=1e-9)
    assert figures.sortino == pytest.approx(0.05 / sqrt(0.01 / 4) * sqrt(8), abs=1e-9)
    assert figures.max_drawdown == pytest.approx(-0.1, abs=1e-12)
    assert figures.turnover == pytest.approx((1.0 + 0.2 + 0 + 0.5) / 2 * 8 / 4, abs=1e-12)


def test_flat_account_has_no_ratios() -> None:
    figures = performance([1.0] * 5, [0.0] * 4)

    assert (figures.total_return, figures.cagr, figures.max_drawdown, figures.turnover) == (0, 0, 0, 0)
    assert (figures.sharpe, figures.sortino) == (None, None)


@given(st.floats(-0.5, 0.5), st.integers(2, 300))
def test_equal_returns_have_no_sharpe_ratio(each: float, bars: int) -> None:
    equity = [1.0]
    for _ in range(bars):
        equity.append(equity[-1] * (1 + each))

    assert performance(equity, [0.0] * bars).sharpe is None
    assert deflated_sharpe(returns_of(equity), [0.1]) is None


def test_zero_equity_leaves_drawdown_only() -> None:
    figures = performance([100.0, 120.0, 0.0, 30.0], [1.0] * 3)

    assert figures.max_drawdown == -1.0
    assert (figures.total_return, figures.cagr, figures.sharpe, figures.sortino, figures.turnover) == (
        None,
    ) * 5


def test_zero_bars_give_no_figures() -> None:
    assert set(performance([1.0], []).model_dump(exclude={"bars", "max_drawdown"}).values()) == {None}
    assert performance([], []).max_drawdown is None


def test_mismatched_equity_length_is_rejected() -> None:
    with pytest.raises(ValueError, match="zip"):
        performance([1.0, 2.0], [0.0, 0.0])


def test_single_minute_has_no_cagr() -> None:
    figures = performance([1.0, 2.0], [0.0], bars_per_year=525_600)

    assert figures.cagr is None
    assert figures.total_return == 1.0


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=60))
def test_figures_do_not_depend_on_currency(equity: list[float]) -> None:
    one, other = (
        performance([each * unit for each in equity], [0.0] * (len(equity) - 1)) for unit in (1, 64)
    )

    assert one == other
    assert -1 < (one.max_drawdown or 0) <= 0


def test_deflated_sharpe_matches_published_example() -> None:
    # Bailey and López de Prado (2014): 100 tries whose yearly ratios have variance 1/2, five years of 250 days, the
    # best at 2.5 a year with skewness -3 and kurtosis 10: expected by luck 0.1132 a day, probability 0.9004.
    half = sqrt(99 / 100 / 500)
    tried = [half, -half] * 50

    luck = metrics._luck(tried)

    assert luck == pytest.approx(0.1132, abs=5e-5)
    assert metrics._probability(2.5 / sqrt(250), luck, 1250, -3, 10) == pytest.approx(0.9004, abs=5e-5)


def test_deflated_sharpe_matches_formula() -> None:
    returns = [0.01, -0.02, 0.015, 0.007, -0.003, 0.02, -0.001, 0.004]
    tried = [0.3, 0.1, -0.2, 0.25]

    sharpe, spread = mean(returns) / stdev(returns), stdev(returns) * sqrt(7 / 8)
    skew, kurtosis = (mean((each - mean(returns)) ** n for each in returns) / spread**n for n in (3, 4))
    normal, euler = NormalDist(), 0.57721566490153286
    luck = sqrt(variance(tried)) * (
        (1 - euler) * normal.inv_cdf(1 - 1 / 4) + euler * normal.inv_cdf(1 - 1 / (4 * e))
    )
    expected = normal.cdf(
        (sharpe - luck) * sqrt(7) / sqrt(1 - skew * sharpe + (kurtosis - 1) / 4 * sharpe**2)
    )

    assert deflated_sharpe(returns, tried) == pytest.approx(expected, abs=1e-9)


def test_more_trials_lower_deflated_sharpe() -> None:
    returns = [0.01, -0.02, 0.015, 0.007, -0.003, 0.02, -0.001, 0.004]
    found = [deflated_sharpe(returns, [0.3, -0.1] * count) or 0.0 for count in (1, 5, 50)]

    assert found == sorted(found, reverse=True)
    assert (deflated_sharpe(returns, [0.3]) or 0.0) > found[0]


def test_single_return_has_no_sharpe() -> None:
    assert sharpe_ratio([0.01]) is None
    assert deflated_sharpe([0.01], []) is None


def test_trials_without_ratios_lower_the_deflated_sharpe() -> None:
    # With a deviation of 1 / sqrt(n - 1), the ratios of tried strategies are replaced by their number.
    returns = [0.01, -0.005, 0.02, 0.004, -0.01, 0.015, 0.003, 0.012]
    half = sqrt(9 / 10 / (len(returns) - 1))

    assert metrics.deflated_sharpe_of(returns, 10) == pytest.approx(
        deflated_sharpe(returns, [half, -half] * 5)
    )
    assert metrics.deflated_sharpe_of(returns, 1) == deflated_sharpe(returns, [0.3])
    assert metrics.deflated_sharpe_of([0.01], 10) is None
