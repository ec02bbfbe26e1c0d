"""The benchmark of backtests judges by what it says, and the peers that are installed come to our equity."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.backtest import MOST, SAME, Row, Task, distance
from benchmarks.peers.contender import is_ready, peer

OURS = Row("agentic_trading", [2.0, 4.0, 100.0])


@pytest.mark.parametrize("name", MOST)
def test_peer_equity_matches_ours(name: str, tmp_path: Path) -> None:
    if not is_ready(name):
        pytest.skip(
            f"{name} is not installed: `python -m benchmarks.backtest` does it, {name} is no part of [dev]"
        )
    task = Task.made(300, tmp_path)

    _, ours = task.ours()
    with peer(name) as contender:
        _, theirs = task.theirs(contender)

    assert len(ours) == 300
    assert ours[-1] != 1.0
    assert distance(ours, theirs) < SAME


def test_peer_orders_follow_decisions_next_bar(tmp_path: Path) -> None:
    task = Task.made(60, tmp_path)

    with np.load(task.file) as data:
        wanted = data["wanted"]

    bars = np.flatnonzero(~np.isnan(wanted[:, 0]))
    assert bars.tolist() == (np.flatnonzero(task.rebalance[:-1]) + 1).tolist()
    assert np.array_equal(wanted[bars], task.weights[bars - 1])
    assert task.weights[bars[-1] - 1].sum() > 0


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (Row("vectorbt", [1.0, 2.0, 1.0], apart=1e-12), ""),
        (Row("vectorbt", [0.9, 1.9, 90.0], apart=1e-12), "ours takes 2.11 times the time of vectorbt, allowed 2"),
        (Row("bt", [11.0, 21.0, 1.0], apart=1e-12), ""),
        (Row("bt", [9.0, 19.0, 999.0], apart=1e-12), "ours takes 0.21 times the time of bt, allowed 0.2"),
        (Row("bt", [99.0] * 3, apart=1e-3), "bt comes to another equity: 1.0e-03 apart, allowed 1e-09"),
        (Row("bt", [99.0] * 3, apart=float("nan")), "bt comes to another equity: nan apart, allowed 1e-09"),
        (Row("bt", unavailable="cannot be installed"), ""),
    ],
)  # fmt: skip
def test_promise_uses_the_median_round(row: Row, said: str) -> None:
    assert row.broken(OURS) == said


def test_curves_of_different_lengths_never_match() -> None:
    assert distance(np.ones(3), np.ones(2)) == float("inf")
    assert distance(np.array([1.0, 2.0]), np.array([1.0, 2.5])) == 0.25
