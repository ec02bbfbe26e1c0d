"""The check that each bar follows the one before it, used by every feed."""

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.errors import BarSequenceError
from agentic_trading.desk.market.feed import Duplicate, FeedItem, Gap


class Continuity:
    """Remember the last bar of a source; turn the next one into what the feed gives for it."""

    def __init__(self, source: str, symbol: str, timeframe: Timeframe) -> None:
        self._source = source
        self._symbol = symbol
        self._timeframe = timeframe
        self._last: Bar | None = None

    def admit(self, line: int, bar: Bar) -> tuple[FeedItem, ...]:
        """Return the bar with the gap before it, or a note in its place; `line` counts from 1.

        Raises `BarSequenceError` for a bar of another symbol or timeframe, an earlier bar, and a repeated
        bar with other values.
        """
        self._check_identity(line, bar)
        last = self._last
        if last is None or bar.open_time == last.close_time:
            self._last = bar
            return (bar,)
        if bar.open_time == last.open_time:
            return (self._duplicate(line, last, bar),)
        if bar.open_time < last.open_time:
            raise BarSequenceError(
                self._source,
                line,
                "open_time",
                bar.open_time.isoformat(),
                f"{last.close_time.isoformat()} or later",
            )
        self._last = bar
        return (self._gap(last, bar), bar)

    def _check_identity(self, line: int, bar: Bar) -> None:
        if bar.symbol != self._symbol:
            raise BarSequenceError(self._source, line, "symbol", bar.symbol, self._symbol)
        if bar.timeframe is not self._timeframe:
            raise BarSequenceError(self._source, line, "timeframe", bar.timeframe, self._timeframe)

    def _duplicate(self, line: int, first: Bar, second: Bar) -> Duplicate:
        for field in Bar.model_fields:
            before, now = getattr(first, field), getattr(second, field)
            if before != now:
                allowed = f"{before}, as in the bar that already opened at {first.open_time.isoformat()}"
                raise BarSequenceError(self._source, line, field, now, allowed)
        return Duplicate(symbol=self._symbol, timeframe=self._timeframe, open_time=first.open_time)

    def _gap(self, last: Bar, bar: Bar) -> Gap:
        return Gap(
            symbol=self._symbol,
            timeframe=self._timeframe,
            after=last.close_time,
            before=bar.open_time,
            missing=(bar.open_time - last.close_time) // self._timeframe.length,
        )
