"""Bars from a list, for tests, samples and backtests."""

from collections.abc import AsyncIterator, Iterable

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.continuity import Continuity
from agentic_trading.desk.market.feed import FeedItem


class MemoryFeed:
    """Give bars that are already here; a line in its errors is the place in the list, from 1."""

    def __init__(
        self, bars: Iterable[Bar], *, symbol: str, timeframe: Timeframe, name: str = "memory"
    ) -> None:
        self.symbol = symbol
        self.timeframe = timeframe
        self._bars = tuple(bars)
        self._name = name

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield the bars and the notes between them; never waits."""
        continuity = Continuity(self._name, self.symbol, self.timeframe)
        for line, bar in enumerate(self._bars, 1):
            for item in continuity.admit(line, bar):
                yield item
