"""The engine equals a plain account, keeps every cent, and knows nothing of the future."""

from collections.abc import Sequence

import numpy as np
import pytest

from agentic_trading.desk.planning.backtest import Backtest, TradeCosts, backtest, hold_equal_weight
from agentic_trading.desk.planning.panel import Flags, Floats, Panel, load_panel, rebalance_mask
from tests.desk.planning.oracle import World, play

FREE = TradeCosts(0.0, 0.0)
WORLDS = 120
NONE = float("nan")


def panel(close: object, opens: object = None) -> Panel:
    """Return a panel of these closes, a column a stock, with opens where they are given."""
    prices = np.array(close, dtype=np.float64)
    days = np.busday_offset(np.datetime64("2020-01-06"), np.arange(len(prices)))
    columns = {"close": prices} if opens is None else {"close": prices, "open": np.array(opens)}
    return Panel.of("made", days, [f"S{number}" for number in range(prices.shape[1])], columns)


def run(prices: Panel, weights: object, rebalance: Sequence[int] = (), **changes: object) -> Backtest:
    """Return the run of these weights without costs, a row a bar; `rebalance` names bars."""
    mask = np.zeros(len(prices.days), dtype=np.bool_)
    mask[list(rebalance)] = True
    settings = {"costs": FREE, **changes}
    return backtest(prices, np.array(weights, dtype=np.float64), mask, **settings)  # type: ignore[arg-type]


class Drawn:
    """A world drawn from a seed: prices with gaps, weights that change on some bars, a stop or none, costs or none."""

    def __init__(self, seed: int, bars: int = 70, stocks: int = 6) -> None:
        draw = np.random.default_rng(seed)
        steps = draw.normal(0.0, draw.choice([0.01, 0.04]), (bars, stocks))
        close = 50 * np.exp(np.cumsum(steps, axis=0))
        opens = close * np.exp(draw.normal(0, 0.01, close.shape))
        for stock in range(stocks):
            for _ in range(draw.integers(0, 4)):
                first = int(draw.integers(0, bars))
                close[first : first + int(draw.integers(1, 12)), stock] = np.nan
        opens[np.isnan(close)] = np.nan
        self.panel = panel(close, opens)
        self.rebalance: Flags = draw.random(bars) < draw.choice([0.0, 0.2, 1.0])
        changed = (draw.random(bars) < 0.3) | self.rebalance
        self.weights = self._weights(draw, changed, stocks)
        self.stop_loss = float(draw.choice([0.03, 0.10])) if draw.random() < 0.7 else None
        self.costs = TradeCosts(*draw.choice([0.0, 5.0, 150.0], 2).tolist())
        self.start = int(draw.choice([0, 9]))

    @staticmethod
    def _weights(draw: np.random.Generator, changed: Flags, stocks: int) -> Floats:
        rows = draw.random((len(changed), stocks)) * (draw.random((len(changed), stocks)) < 0.6)
        rows *= draw.choice([0.5, 1.0]) / np.maximum(rows.sum(axis=1, keepdims=True), 1e-9)
        return np.asarray(rows[np.maximum.accumulate(np.where(changed, np.arange(len(changed)), 0))])

    def world(self) -> World:
        opens, closes = (
            [[None if np.isnan(price) else price for price in row] for row in prices.tolist()]
            for prices in (self.panel.open, self.panel.close)
        )
        return World(
            opens, closes, self.weights.tolist(), self.rebalance.tolist(), self.stop_loss,
            self.costs.fee_bps, self.costs.slippage_bps, self.start,
        )  # fmt: skip

    def run(self, bars: int | None = None) -> Backtest:
        """Return the run of the first `bars`."""
        cut = panel(self.panel.close[:bars], self.panel.open[:bars])
        return backtest(
            cut, self.weights[:bars], self.rebalance[:bars],
            stop_loss=self.stop_loss, costs=self.costs, start=self.start,
        )  # fmt: skip


def test_engine_matches_plain_account() -> None:
    stopped = waited = 0
    for seed in range(WORLDS):
        drawn = Drawn(seed)
        ours, plain = drawn.run(), play(drawn.world())

        assert ours.equity == pytest.approx(plain.equity, rel=1e-12, abs=1e-12), seed
        assert ours.traded == pytest.approx(plain.traded, rel=1e-9, abs=1e-12), seed
        assert ours.stopped == plain.stopped, seed
        stopped += ours.stopped
        waited += len(ours.vanished)

    assert stopped > WORLDS
    assert waited > WORLDS


def test_cash_changes_match_trades_and_costs() -> None:
    for seed in range(60):
        drawn = Drawn(seed)
        done = drawn.run()
        prices = np.nan_to_num(drawn.panel.open)
        moved = np.diff(done.shares, axis=0, prepend=0.0)

        assert np.diff(done.cash, prepend=1.0) == pytest.approx(
            -(moved * prices).sum(axis=1) - done.paid, abs=1e-12
        )
        assert done.equity == pytest.approx(
            done.cash + (done.shares * drawn.panel.marks).sum(axis=1), abs=1e-12
        )
        assert not moved[np.isnan(drawn.panel.open)].any()
        assert done.cash.min() > -1e-12
        assert done.shares.min() >= 0.0


def test_later_bars_do_not_change_results() -> None:
    for seed in range(60):
        whole, cut = Drawn(seed).run(), 10 + seed
        part = Drawn(seed).run(cut)

        assert part.equity.tolist() == whole.equity[:cut].tolist()
        assert part.shares.tolist() == whole.shares[:cut].tolist()


def test_decision_is_filled_at_next_open() -> None:
    prices = panel([[10, 10], [10, 10], [20, 10]], [[10.0, 10], [10, 10], [16, 10]])

    done = run(prices, [[0, 0], [1, 0], [1, 0]])

    assert done.shares[:, 0].tolist() == [0, 0, 1 / 16]
    assert done.equity.tolist() == [1, 1, 20 / 16]


def test_weights_drift_until_rebalance() -> None:
    prices = panel([[10, 10], [10, 10], [20, 10], [20, 10]])
    half = [[0.5, 0.5]] * 4

    drifted, reset = run(prices, half), run(prices, half, rebalance=[2])

    assert (drifted.shares[3] * [20, 10]).tolist() == [1.0, 0.5]
    assert reset.shares[3] * [20, 10] == pytest.approx([0.75, 0.75])


def test_account_pays_trade_costs() -> None:
    done = run(panel([[10, 10]] * 3), [[0.5, 0.5]] * 3, costs=TradeCosts(80, 20))

    assert done.traded[1] == pytest.approx(1 / 1.01)
    assert done.paid[1] == pytest.approx(0.01 / 1.01)
    assert done.cash[1] == pytest.approx(0.0, abs=1e-15)


def test_unaffordable_purchase_is_filled_partly() -> None:
    prices = panel([[10, 10], [10, 10], [30, 10], [30, 10]])

    done = run(prices, [[0.5, 0], [0.5, 0], [0.5, 0.5], [0.5, 0.5]])

    assert done.equity[3] == 2.0
    assert (done.shares[3] * [30, 10]).tolist() == [1.5, 0.5]


def test_stopped_stock_waits_for_zero_weight() -> None:
    falls = panel([[10, 1], [10, 1], [8.9, 1], [8, 1], [8, 1], [8, 1], [8, 1]])
    weights = [[1, 0], [1, 0], [1, 0], [1, 0], [0, 0], [1, 0], [1, 0]]

    done = run(falls, weights, rebalance=range(7), stop_loss=0.1)

    assert (done.shares[:, 0] > 0).tolist() == [False, True, True, False, False, False, True]
    assert done.stopped == 1
    assert done.cash[3] == 0.8


def test_entry_price_includes_slippage_not_fee() -> None:
    falls = panel([[10, 1], [10, 1], [9.05, 1], [9.05, 1]])

    assert run(falls, [[1, 0]] * 4, stop_loss=0.1, costs=TradeCosts(100, 0)).stopped == 0
    assert run(falls, [[1, 0]] * 4, stop_loss=0.1, costs=TradeCosts(0, 100)).stopped == 1


def test_order_without_price_waits_for_next() -> None:
    prices = panel([[10, 1], [NONE, 1], [NONE, 1], [20, 1], [40, 1]])

    done = run(prices, [[1, 0]] * 5)

    assert done.traded.tolist() == [0, 0, 0, 1, 0]
    assert done.equity[-1] == 2.0
    assert done.vanished == ()


def test_vanished_stock_sold_at_next_price() -> None:
    prices = panel([[10, 1], [10, 1], [12, 1], *[[NONE, 1]] * 7, [6, 1], [6, 1]])

    done = run(prices, [[1, 0]] * 12)

    assert done.equity[2:10] == pytest.approx(1.2)
    assert done.vanished == ("S0",)
    assert done.cash[10] == pytest.approx(0.6)
    assert done.shares[11, 0] == pytest.approx(0.1)


def test_decisions_before_start_are_ignored() -> None:
    done = run(panel([[10, 1]] * 4), [[1, 0]] * 4, rebalance=range(4), start=2)

    assert done.traded.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("row", [[0.6, 0.6], [-0.1, 0], [NONE, 0], [float("inf"), 0], [0.5, 0.5, 0.0]])
def test_impossible_weights_are_rejected(row: list[float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        run(panel([[10, 1]] * 2), [row] * 2)


def test_equal_weight_holds_initial_universe() -> None:
    sample = load_panel()

    held = hold_equal_weight(sample, start=120)
    whole = hold_equal_weight(sample)

    assert (held.shares[121] > 0).sum() == 49
    assert np.count_nonzero(held.traded) == 1
    first, second = held.performance(122, 183), held.performance(183)
    assert (first.bars, second.bars, second.turnover) == (61, 62, 0.0)
    assert first.sharpe == pytest.approx(-0.551, abs=1e-3)
    assert second.sharpe == pytest.approx(-0.098, abs=1e-3)
    assert second.cagr == pytest.approx(-0.0498, abs=1e-4)
    assert whole.vanished == ("SGP",)
    assert whole.shares[-1, sample.symbols.index("SGP")] > 0


def test_reference_run_has_known_figures() -> None:
    sample = load_panel()
    weekly = rebalance_mask(sample.days, "W", 2)
    past = np.full_like(sample.filled, np.nan)
    past[20:] = sample.filled[:-20]
    rising = np.where(sample.filled > past, 1 / len(sample.symbols), 0.0)
    decided = np.maximum.accumulate(np.where(weekly, np.arange(len(weekly)), 0))

    done = backtest(sample, rising[decided], weekly, stop_loss=0.08)
    figures = done.performance(121)

    assert (done.stopped, done.vanished, figures.bars) == (44, ("SGP",), 124)
    assert figures.model_dump(exclude={"bars"}) == pytest.approx(
        {
            "total_return": -0.023468023437449026,
            "cagr": -0.047115542723318526,
            "sharpe": -0.4405160987015364,
            "sortino": -0.5712985212898165,
            "max_drawdown": -0.10861641262477051,
            "turnover": 5.850108888947603,
        },
        abs=1e-9,
    )


def test_figures_match_numpy_formulas() -> None:
    done = Drawn(7).run()

    figures = done.performance(20, bars_per_year=250)
    equity = done.equity[19:]
    returns = equity[1:] / equity[:-1] - 1

    assert figures.sharpe == pytest.approx(returns.mean() / returns.std(ddof=1) * 250**0.5, abs=1e-9)
    losses = np.sqrt((np.minimum(returns, 0) ** 2).mean())
    assert figures.sortino == pytest.approx(returns.mean() / losses * 250**0.5, abs=1e-9)
    assert figures.max_drawdown == pytest.approx((equity / np.maximum.accumulate(equity) - 1).min(), abs=1e-9)
    assert figures.cagr == pytest.approx((equity[-1] / equity[0]) ** (250 / 50) - 1, abs=1e-9)
    assert figures.turnover == pytest.approx((done.traded[20:] / equity[:-1]).sum() / 2 * 250 / 50, abs=1e-9)
