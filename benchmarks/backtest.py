"""What a backtest costs: momentum on 8,313 days of 20 stocks, rebalanced each week, beside vectorbt and bt.

Run: `python -m benchmarks.backtest [--quick]`. All trade the same weights on the same closes without costs, one bar after they
were decided, and must come to the same equity at every close. Exits with 1 if one does not, if ours takes more than
twice vectorbt's time when that is warm, or more than a fifth of bt's. The first run installs the peers, each into an
environment of its own.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from agentic_trading.desk.planning.backtest import TradeCosts, backtest
from agentic_trading.desk.planning.panel import Flags, Floats, Panel, rebalance_mask
from benchmarks.peers.contender import Contender, UnavailableError, peer

BARS, STOCKS, HELD, PERIOD = 8_313, 20, 5, 20
FREE = TradeCosts(0.0, 0.0)
MOST = {"vectorbt": 2.0, "bt": 1 / 5}
"""How many times a peer's time ours may take."""
SAME = 1e-9
"""How far two equities may be apart, in shares of them."""


@dataclass(slots=True)
class Row:
    """What one contender took, in CPU seconds a round, and how far its equity is from ours at any close."""

    contender: str
    seconds: list[float] = field(default_factory=list)
    apart: float = 0.0
    unavailable: str = ""

    def ratio_of(self, ours: "Row") -> float:
        """Return how many times this one's time ours takes, the median over the rounds."""
        return median(mine / theirs for mine, theirs in zip(ours.seconds, self.seconds, strict=True))

    def broken(self, ours: "Row") -> str:
        """Return which promise does not hold beside this contender, empty if all do or it cannot be measured."""
        if self.unavailable:
            return ""
        if not self.apart <= SAME:
            return f"{self.contender} comes to another equity: {self.apart:.1e} apart, allowed {SAME:.0e}"
        ratio, most = self.ratio_of(ours), MOST[self.contender]
        return (
            f"ours takes {ratio:.2f} times the time of {self.contender}, allowed {most:g}"
            if ratio > most
            else ""
        )


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be traded, and the file in which the peers find it."""

    panel: Panel
    weights: Floats
    rebalance: Flags
    file: Path

    @classmethod
    def made(cls, bars: int, folder: Path) -> "Task":
        """Make prices from a fixed seed, and the weights of a momentum strategy on them."""
        steps = np.random.default_rng(5).normal(2e-4, 0.015, (bars, STOCKS))
        days = np.busday_offset(np.datetime64("1990-01-02"), np.arange(bars), roll="forward")
        close = 100 * np.exp(np.cumsum(steps, axis=0))
        panel = Panel.of("made", days, [f"S{number}" for number in range(STOCKS)], {"close": close})
        weekly = rebalance_mask(days, "W")
        weights = momentum(close, weekly)
        wanted = np.full_like(close, np.nan)
        wanted[1:][weekly[:-1]] = weights[:-1][weekly[:-1]]
        file = folder / "task.npz"
        np.savez(file, days=days, close=close, wanted=wanted)
        return cls(panel, weights, weekly, file)

    def ours(self, *, costs: TradeCosts = FREE, stop_loss: float | None = None) -> tuple[float, Floats]:
        """Run ours; return its CPU seconds and its equity."""
        start = time.process_time()
        equity = backtest(self.panel, self.weights, self.rebalance, costs=costs, stop_loss=stop_loss).equity
        return time.process_time() - start, equity

    def theirs(self, contender: Contender) -> tuple[float, Floats]:
        """Run a peer; return its CPU seconds and its equity; raises `UnavailableError` if it has died."""
        equity = self.file.with_name("equity.npy")
        seconds = json.loads(contender.ask(json.dumps({"data": str(self.file), "equity": str(equity)})))
        return seconds, np.load(equity)


def momentum(close: Floats, rebalance: Flags) -> Floats:
    """Return equal weights of the strongest stocks that have risen, as they are on each bar of `rebalance` and after it."""
    risen = np.full_like(close, -np.inf)
    risen[PERIOD:] = close[PERIOD:] / close[:-PERIOD] - 1
    best = np.argsort(-risen, axis=1, kind="stable")[:, :HELD]
    weights = np.zeros_like(close)
    np.put_along_axis(weights, best, 1 / HELD, axis=1)
    weights[risen <= 0] = 0.0
    decided = np.maximum.accumulate(np.where(rebalance, np.arange(len(close)), -1))
    return np.where(decided[:, None] < 0, 0.0, weights[decided])


def measure(task: Task, rounds: int) -> tuple[Row, Row, list[Row]]:
    """Return ours without costs, ours with costs and a stop, and the peers: rounds in turn, after one to warm up."""
    ours, whole = Row("agentic_trading"), Row("agentic_trading, costs and a stop")
    peers = [Row(name) for name in MOST]
    with ExitStack() as stack:
        running: dict[str, Contender] = {}
        for row in peers:
            try:
                running[row.contender] = stack.enter_context(peer(row.contender))
            except UnavailableError as e:
                row.unavailable = e.reason
        for number in range(rounds + 1):
            seconds, equity = task.ours()
            ours.seconds.append(seconds)
            whole.seconds.append(task.ours(costs=TradeCosts(), stop_loss=0.1)[0])
            for row in peers:
                measure_peer(task, row, running, equity)
            print(f"round {number} of {rounds}", file=sys.stderr)
    for row in (ours, whole, *peers):
        del row.seconds[:1]
    return ours, whole, peers


def measure_peer(task: Task, row: Row, running: dict[str, Contender], equity: Floats) -> None:
    """Run a peer once, unless it is not there or has died."""
    if row.unavailable:
        return
    try:
        seconds, theirs = task.theirs(running[row.contender])
    except UnavailableError as e:
        row.unavailable = e.reason
        return
    row.seconds.append(seconds)
    row.apart = float(np.maximum(row.apart, distance(equity, theirs)))  # a NaN stays


def distance(ours: Floats, theirs: Floats) -> float:
    """Return how far two equity curves are apart at most, as a share of ours; infinite for other lengths."""
    return float(np.max(np.abs(theirs / ours - 1))) if ours.shape == theirs.shape else float("inf")


def show(ours: Row, whole: Row, peers: Sequence[Row]) -> None:
    """Print the table."""
    print(f"{'':36}{'CPU ms':>10}{'ours, times':>14}{'equity apart':>14}")
    for row in (ours, whole):
        print(f"{row.contender:36}{1_000 * median(row.seconds):10.0f}")
    for row in peers:
        if row.unavailable:
            print(f"{row.contender:36}  {row.unavailable}")
            continue
        figures = f"{1_000 * median(row.seconds):10.0f}{row.ratio_of(ours):14.2f}{row.apart:14.1e}"
        print(f"{row.contender:36}{figures}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a promise does not hold."""
    parser = argparse.ArgumentParser(prog="benchmarks.backtest", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2,000 days and one round in place of five")
    quick = parser.parse_args(arguments).quick
    with tempfile.TemporaryDirectory() as folder:
        task = Task.made(2_000 if quick else BARS, Path(folder))
        ours, whole, peers = measure(task, 1 if quick else 5)
    print(f"momentum on {len(task.panel.days):,} x {STOCKS}, weekly, {HELD} held, medians")
    show(ours, whole, peers)
    broken = [sentence for row in peers if (sentence := row.broken(ours))]
    print("\n" + ("\n".join(broken) or "the promises hold"))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
