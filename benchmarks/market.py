"""What a bar costs: every indicator on five timeframes, streamed, beside TA-Lib over whole columns.

Run: `python -m benchmarks.market [--quick]`. Both sides work on the same bars in the same run. TA-Lib is C over
arrays and sees all bars at once; a live feed does not, so the last row is what it costs to ask TA-Lib for one
fresh value of each indicator when a bar has closed. Exits with 1 when any indicator disagrees at any bar.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import talib

from agentic_trading.desk.market.bar import Bar, ClosedBar, Resampler, Timeframe
from agentic_trading.desk.market.frame import Frame, FrameGauge
from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.market.snapshot import MarketView

RELATIVE = 1e-9  # of the value, or of the price where TA-Lib takes small differences of prices
TIMES = 200  # how often a call that is not fed bars is repeated
LOOK_BACK = 500  # bars after which the slowest average has forgotten its start
Columns = tuple[np.ndarray, ...]

MEASURES: dict[str, Callable[[Frame], float | None]] = {
    "ema_21": lambda f: f.trend.ema_21,
    "sma_50": lambda f: f.trend.sma_50,
    "sma_200": lambda f: f.trend.sma_200,
    "rsi_14": lambda f: f.momentum.rsi_14,
    "atr_14": lambda f: f.volatility.atr_14,
    "adx_14": lambda f: f.momentum.adx_14,
    "plus_di_14": lambda f: f.momentum.plus_di_14,
    "minus_di_14": lambda f: f.momentum.minus_di_14,
    "macd_signal": lambda f: f.momentum.macd_signal,
    "band_width_pct": lambda f: f.momentum.band_width_pct,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0 if all indicators agree."""
    parser = argparse.ArgumentParser(prog="benchmarks.market", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repetition in place of seven")
    repetitions = 1 if parser.parse_args(arguments).quick else 7
    bars = load_sample("btcusdt-5m")
    closed = by_timeframe(bars)
    columns = {timeframe: columns_of(each) for timeframe, each in closed.items()}
    worst = {timeframe: disagreement(closed[timeframe], columns[timeframe]) for timeframe in Timeframe}
    show_times(bars, columns, repetitions)
    return show_agreement(worst)


def by_timeframe(bars: Sequence[Bar]) -> dict[Timeframe, list[ClosedBar]]:
    found = {timeframe: Resampler(Timeframe.M5, timeframe) for timeframe in Timeframe}
    return {
        timeframe: [closed for bar in bars for closed in resampler.push(bar)]
        for timeframe, resampler in found.items()
    }


def columns_of(closed: Sequence[ClosedBar]) -> Columns:
    table = np.array([[float(each.bar.high), float(each.bar.low), float(each.bar.close)] for each in closed])
    return tuple(np.ascontiguousarray(table.T))


def with_talib(columns: Columns) -> dict[str, np.ndarray]:
    """Return the same measures over whole columns."""
    high, low, close = columns
    upper, middle, lower = talib.BBANDS(close, 20, 2.0, 2.0)
    return {
        "ema_21": talib.EMA(close, 21),
        "sma_50": talib.SMA(close, 50),
        "sma_200": talib.SMA(close, 200),
        "rsi_14": talib.RSI(close, 14),
        "atr_14": talib.ATR(high, low, close, 14),
        "adx_14": talib.ADX(high, low, close, 14),
        "plus_di_14": talib.PLUS_DI(high, low, close, 14),
        "minus_di_14": talib.MINUS_DI(high, low, close, 14),
        "macd_signal": talib.MACD(close, 12, 26, 9)[1],
        "band_width_pct": 100 * (upper - lower) / middle,
    }


def disagreement(closed: Sequence[ClosedBar], columns: Columns) -> dict[str, float | None]:
    """Return each measure's largest difference over all bars, in units of what is allowed; None unmeasured."""
    gauge = FrameGauge(closed[0].bar.timeframe)
    ours: dict[str, list[float]] = {name: [] for name in MEASURES}
    for each in closed:
        gauge.update(each)
        frame = gauge.read()
        for name, measure in MEASURES.items():
            value = None if frame is None else measure(frame)
            ours[name].append(np.nan if value is None else value)
    theirs = with_talib(columns)
    return {name: difference(name, np.array(ours[name]), theirs[name], columns[2]) for name in MEASURES}


def difference(name: str, ours: np.ndarray, theirs: np.ndarray, close: np.ndarray) -> float | None:
    if not np.array_equal(np.isnan(ours), np.isnan(theirs)):
        return float("inf")
    allowed = RELATIVE * np.abs(theirs)
    if name == "macd_signal":
        allowed = np.maximum(allowed, RELATIVE * close)
    if name == "band_width_pct":
        allowed = np.maximum(allowed, 200 * RELATIVE)
    known = ~np.isnan(theirs)
    return float(np.max(np.abs(ours - theirs)[known] / allowed[known])) if known.any() else None


def cpu_s(work: Callable[[], object], repetitions: int) -> float:
    """Return the median CPU seconds of one run."""
    taken = []
    for _ in range(repetitions):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return median(taken)


def show_times(bars: Sequence[Bar], columns: dict[Timeframe, Columns], repetitions: int) -> None:
    per_bar = len(bars)
    pushed = cpu_s(lambda: push_all(bars), repetitions) / per_bar
    with_snapshots = cpu_s(lambda: push_all(bars, MarketView.snapshot), repetitions) / per_bar
    snapshot = push_all(bars).snapshot()
    latest = tuple(column[-LOOK_BACK:] for column in columns[Timeframe.M5])
    rows = [
        ("push: all measures, five timeframes", pushed),
        ("snapshot after each push", with_snapshots - pushed),
        ("layer inputs as JSON values", cpu_s(lambda: repeat(snapshot.layer_inputs), repetitions) / TIMES),
        ("TA-Lib: ten measures, five timeframes, whole columns",
         cpu_s(lambda: [with_talib(each) for each in columns.values()], repetitions) / per_bar),
        (f"TA-Lib: asked again over {LOOK_BACK} bars, one timeframe",
         cpu_s(lambda: repeat(lambda: with_talib(latest)), repetitions) / TIMES),
    ]  # fmt: skip
    print(f"{per_bar} five-minute bars of BTCUSDT, median of {repetitions}, CPU time")
    print(f"{'':56}{'us a bar':>10}{'bars a s':>14}")
    for name, seconds in rows:
        print(f"{name:56}{1e6 * seconds:10.1f}{1 / seconds:14,.0f}")


def repeat(work: Callable[[], object]) -> None:
    for _ in range(TIMES):
        work()


def push_all(bars: Sequence[Bar], after_each: Callable[[MarketView], object] | None = None) -> MarketView:
    view = MarketView("BTCUSDT")
    for bar in bars:
        view.push(bar)
        if after_each is not None:
            after_each(view)
    return view


def show_agreement(worst: dict[Timeframe, dict[str, float | None]]) -> int:
    print(
        f"\nlargest difference from TA-Lib at any bar, 1 = the {RELATIVE:g} that is allowed, - = too few bars"
    )
    print(f"{'':16}" + "".join(f"{timeframe:>10}" for timeframe in worst))
    for name in MEASURES:
        sizes = (by_name[name] for by_name in worst.values())
        print(f"{name:16}" + "".join(f"{'-' if size is None else format(size, '.2g'):>10}" for size in sizes))
    wrong = [
        f"{timeframe} {name}"
        for timeframe, by_name in worst.items()
        for name, size in by_name.items()
        if size is not None and size > 1.0
    ]
    print("\nall agree" if not wrong else f"\ndisagree: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
