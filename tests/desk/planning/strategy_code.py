"""Strategy code written by hand, a panel to run it over, and the weights that came of it."""

from typing import Any

import numpy as np

from agentic_trading.desk.planning.panel import Flags, Floats, Panel
from agentic_trading.desk.planning.sandbox import Aborted, Completed, SandboxJob

BARS, ASSETS = 60, 4


def panel(bars: int = BARS, assets: int = ASSETS) -> Panel:
    """Return prices that go up and down without a gap, and volumes."""
    rng = np.random.default_rng(7)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.02, (bars, assets)), axis=0))
    days = np.datetime64("2020-01-01", "D") + np.arange(bars)
    symbols = [f"S{place}" for place in range(assets)]
    return Panel.of("test", days, symbols, {"close": close, "volume": rng.uniform(1, 9, (bars, assets))})


def events() -> Floats:
    """Return a frame of a catalyst: 1 where it happened."""
    return np.floor(np.random.default_rng(8).uniform(0, 2, (BARS, ASSETS)))


def every(days: int, bars: int = BARS) -> Flags:
    """Return a mask of every so many bars, from the first."""
    mask = np.zeros(bars, dtype=np.bool_)
    mask[::days] = True
    return mask


def job(*body: str, **changes: Any) -> SandboxJob:
    """Return a job whose function has the lines of `body`."""
    lines = "\n    ".join(body)
    code = f"import numpy as np\n\n\ndef target_weights(close, volume, catalyst, rebalance):\n    {lines}\n"
    return SandboxJob(**{"code": code, "rebalance": every(5), **changes})


def follow_lead(days: int) -> SandboxJob:
    """Return a job that holds what is dearer `days` later, as if it knew: with 0 it uses no later bar."""
    return job(
        "weights = np.zeros(close.shape)",
        "last = close.shape[0] - 1",
        "for bar in range(1, close.shape[0]):",
        f"    chosen = np.where(close[min(bar + {days}, last)] > close[bar - 1], 0.25, 0.0)",
        "    weights[bar] = np.where(rebalance[bar], chosen, weights[bar - 1])",
        "return weights",
    )


EVEN = job("return np.full(close.shape, 0.25)")
ENDLESS = job("while True:", "    pass")


def weights_of(outcome: Completed | Aborted) -> list[list[float]]:
    """Return the rows of weights; fails for code that has none."""
    assert isinstance(outcome, Completed), outcome
    return outcome.weights.tolist()  # type: ignore[no-any-return]
