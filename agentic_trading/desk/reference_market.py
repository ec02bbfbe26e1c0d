"""The second market of a session that is fed only one: shipped bars, as long as the first market's are shipped too."""

from collections import deque
from collections.abc import Sequence
from datetime import datetime

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.correlation import CLOSES_KEPT, Close, ReferenceMarket
from agentic_trading.desk.market.resample import Resampler
from agentic_trading.desk.market.snapshot import BASE


class ReferenceMarketFeed:
    """Run beside a market whose bars are `own`, never ahead of it.

    Only a market that is fed these very bars has this companion: from the first bar that is another one there is
    none any more, since nobody knows how the other market would have gone. Both rows are in order of time.
    """

    def __init__(self, own: Sequence[Bar], other: Sequence[Bar], *, decision: Timeframe) -> None:
        self._own = {bar.open_time: bar for bar in own}
        self._ahead = deque(other)
        self._symbol = other[0].symbol
        self._resampler = Resampler(BASE, decision)
        self._closes: deque[Close] = deque(maxlen=CLOSES_KEPT)
        self._strayed = False

    def push(self, bar: Bar) -> None:
        """Take the next bar of the first market; the second one goes on to the same close."""
        if self._strayed or self._own.get(bar.open_time) != bar:
            self._strayed = True
            return
        while self._ahead and self._ahead[0].close_time <= bar.close_time:
            for closed in self._resampler.push(self._ahead.popleft()):
                self._closes.append(Close(closed.bar.close_time, float(closed.bar.close)))

    def second_market(self, as_of: datetime) -> ReferenceMarket | None:
        """Return the second market as of a moment; None once the first one has gone its own way."""
        if self._strayed:
            return None
        return ReferenceMarket(self._symbol, tuple(self._closes)).until(as_of)
