"""bt: a tree of strategy and securities, walked bar by bar."""

import bt
import numpy as np
import pandas as pd

from benchmarks.peers.trades import answer_runs


def prepare(days, close, wanted):
    """Return the run; parts of shares are allowed, as they are elsewhere."""
    index = pd.DatetimeIndex(days)
    prices = pd.DataFrame(close, index=index, columns=[f"S{number}" for number in range(close.shape[1])])
    weights = pd.DataFrame(wanted, index=index, columns=prices.columns).dropna()

    def run():
        strategy = bt.Strategy("momentum", [bt.algos.WeighTarget(weights), bt.algos.Rebalance()])
        account = bt.Backtest(
            strategy, prices, integer_positions=False, progress_bar=False, initial_capital=1.0
        )
        account.run()
        return np.asarray(account.strategy.values)[1:]  # the first row is the day before

    return run


if __name__ == "__main__":
    answer_runs(prepare)
