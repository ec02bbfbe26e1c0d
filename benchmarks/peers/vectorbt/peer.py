"""vectorbt: an account simulated by code that numba compiles when it is first called."""

import pandas as pd
import vectorbt as vbt

from benchmarks.peers.trades import answer_runs


def prepare(days, close, wanted):
    """Return the run; sales come before purchases (`call_seq`), all stocks share the cash."""
    prices = pd.DataFrame(close, index=pd.DatetimeIndex(days))

    def run():
        account = vbt.Portfolio.from_orders(
            prices,
            size=wanted,
            size_type="targetpercent",
            group_by=True,
            cash_sharing=True,
            call_seq="auto",
            fees=0.0,
            init_cash=1.0,
        )
        return account.value().to_numpy()

    return run


if __name__ == "__main__":
    answer_runs(prepare)
