"""A picture of a strategy's equity: beside all stocks in equal weight, with the halves and the drawdown below."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from agentic_trading.app.options import OptionError
from agentic_trading.app.strategies import Scene

STRATEGY: Final = "#1b6ca8"
BESIDE: Final = "#8a8a8a"


def draw_equity(path: Path, scene: Scene, equity: Sequence[float]) -> None:
    """Write a PNG; raises `OptionError` for a place that cannot be written to, or another ending."""
    if path.suffix.lower() != ".png":
        raise OptionError("--plot", str(path), "a file that ends in .png")
    window = scene.window
    days = scene.panel.days[window.start :]
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot(days, scene.hold, color=BESIDE, linewidth=1.2, label="equal weight")
    upper.plot(days, equity, color=STRATEGY, linewidth=1.6, label="strategy")
    lower.fill_between(days, _drawdown(scene.hold), 0, color=BESIDE, alpha=0.25, linewidth=0)
    lower.fill_between(days, _drawdown(equity), 0, color=STRATEGY, alpha=0.45, linewidth=0)
    for axes in (upper, lower):
        axes.axvline(scene.panel.days[window.split], color="black", linewidth=0.9, linestyle="--")
        axes.grid(alpha=0.25)
        axes.margins(x=0.01, y=0.1)
    for place, text in ((0.25, "chosen on this half"), (0.75, "reported on this one")):
        upper.text(place, 0.02, text, transform=upper.transAxes, ha="center", color="dimgray")
    upper.set_title(f"{scene.panel.name}: what 1 became", loc="left")
    upper.set_ylabel("equity")
    upper.legend(loc="upper left", frameon=False)
    lower.set_ylabel("drawdown, %")
    figure.autofmt_xdate()
    try:
        figure.savefig(path, format="png", dpi=110, metadata={"Software": None})
    except OSError as e:
        raise OptionError("--plot", f"{path} ({e.strerror})", "a file that can be written") from e


def _drawdown(equity: Sequence[float]) -> list[float]:
    """Return how far below its peak so far each value is, in percent."""
    peaks = accumulate(equity, max)
    return [100 * (value / peak - 1) for value, peak in zip(equity, peaks, strict=True)]
