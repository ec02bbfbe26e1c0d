"""The closed bars of a session by symbol and timeframe, with their indicators."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from agentic_trading.desk.agents.errors import DeskError
from agentic_trading.desk.market.bar import Bar, ClosedBar, Resampler, Timeframe
from agentic_trading.desk.market.frame import Frame, FrameGauge

BARS_KEPT: Final = 1_000
"""The number of last bars that are kept of each symbol and timeframe."""


class _Series:
    """The closed bars of one symbol and timeframe."""

    def __init__(self, base: Timeframe, timeframe: Timeframe) -> None:
        self._timeframe = timeframe
        self._resampler = None if base is timeframe else Resampler(base, timeframe)
        self._gauge: FrameGauge | None = None
        self.closed: deque[ClosedBar] = deque(maxlen=BARS_KEPT)

    def push(self, bar: Bar) -> tuple[ClosedBar, ...]:
        """Add a bar of the feed. Return the bars of this timeframe that it closes."""
        closed = (ClosedBar(bar),) if self._resampler is None else self._resampler.push(bar)
        self.closed.extend(closed)
        if self._gauge is not None:
            for each in closed:
                self._gauge.update(each)
        return closed

    def frame(self) -> Frame | None:
        """Return the indicators at the last closed bar, or None before the first one."""
        # Measured from the first use on, because indicators take more time than all else of a bar.
        if self._gauge is None:
            self._gauge = FrameGauge(self._timeframe)
            for each in self.closed:
                self._gauge.update(each)
        return self._gauge.read()


class BarHistory:
    """The closed bars of all symbols, in the timeframe of the feed and in longer ones.

    Args:
        timeframe: The timeframe of `on_bar`. An empty text is that of the feed.
        others: Further timeframes to keep.

    """

    def __init__(self, timeframe: str, others: Sequence[str]) -> None:
        self._timeframe = timeframe
        self._others = tuple(others)
        self._series: dict[str, dict[Timeframe, _Series]] = {}

    def push(self, bar: Bar) -> tuple[ClosedBar, ...]:
        """Add the next closed bar of a symbol. Return the bars of `on_bar` that it closes.

        Raises:
            DeskError: If a timeframe is not a multiple of the bars.

        """
        base = bar.timeframe
        wanted = Timeframe(self._timeframe or base)
        if bar.symbol not in self._series:
            kept = dict.fromkeys((base, wanted, *map(Timeframe, self._others)))
            self._series[bar.symbol] = {each: _new_series(base, each) for each in kept}
        due: tuple[ClosedBar, ...] = ()
        for timeframe, series in self._series[bar.symbol].items():
            closed = series.push(bar)
            if timeframe is wanted:
                due = closed
        return due

    def bars(self, symbol: str, n: int, timeframe: str) -> tuple[Bar, ...]:
        """Return the last `n` closed bars, oldest first."""
        series = self._of(symbol, timeframe)
        closed = () if series is None else series.closed
        return tuple(closed[place].bar for place in range(max(0, len(closed) - n), len(closed)))

    def frame(self, symbol: str, timeframe: str) -> Frame | None:
        """Return the indicators of a timeframe, or None before its first bar."""
        series = self._of(symbol, timeframe)
        return None if series is None else series.frame()

    def last(self, symbol: str) -> Bar:
        """Return the last bar of the feed. Raises `DeskError` before the first one."""
        series = self._series.get(symbol)
        if series is None:
            raise DeskError(f"{symbol} has no closed bar yet. Check `desk.history({symbol!r})` first")
        return next(iter(series.values())).closed[-1].bar

    def _of(self, symbol: str, timeframe: str) -> _Series | None:
        """Return the bars of a symbol and timeframe, or None before its first bar."""
        kept = self._series.get(symbol)
        if kept is None:
            return None
        wanted = timeframe or self._timeframe or next(iter(kept))
        for each, series in kept.items():
            if each == wanted:
                return series
        raise DeskError(
            f"bars of {wanted} are not kept. Allowed: {', '.join(kept)}. Add others to `timeframes`"
        )


def _new_series(base: Timeframe, timeframe: Timeframe) -> _Series:
    try:
        return _Series(base, timeframe)
    except ValueError as e:
        raise DeskError(f"timeframe: {e}") from e
