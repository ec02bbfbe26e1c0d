"""backtesting.py: one strategy on one table of bars."""

from backtesting import Backtest

from benchmarks.peers.backtesting.channel import Channel
from benchmarks.peers.decisions import answer_files


def decide(bars):
    """Return the times and sides of the market orders. They are filled at the open after the close that decides them."""
    account = Backtest(bars.rename(columns=str.title), Channel, cash=100_000, finalize_trades=False).run()
    closed, held = account["_trades"], account["_strategy"].trades
    orders = [(opened, "buy") for opened in closed["EntryTime"]]
    orders += [(ended, "sell") for ended in closed["ExitTime"]]
    return sorted(orders + [(trade.entry_time, "buy") for trade in held])


if __name__ == "__main__":
    answer_files(decide)
