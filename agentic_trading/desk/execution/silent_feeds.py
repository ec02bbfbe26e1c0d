"""Silent feeds: the entries of a symbol without bars are halted."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from agentic_trading.canonical import utc_text
from agentic_trading.clock import Clock
from agentic_trading.desk.exchange import Cancellation
from agentic_trading.desk.execution.order_router import OrderRouter, TradeJournal
from agentic_trading.desk.feed_events import FeedResumed, FeedSilent
from agentic_trading.desk.market.bar import EPOCH, Bar
from agentic_trading.desk.market.calendar import Calendar, missing_between
from agentic_trading.ids import derived_id
from agentic_trading.logger import get_logger

log = get_logger()


@dataclass(frozen=True, slots=True)
class SilenceLimit:
    """The limit on missing bars in a row. At the limit, a feed is silent.

    Attributes:
        bars: The number. 0 if no feed is ever silent.
        calendar: The open times of the market, for the count of missing bars. None if it never closes.
        clock: The clock of the machine on paper. None in a backtest or a replay: they warn no operator.
        known_until: The last close of an interrupted run. Its operators were warned.

    """

    bars: int = 0
    calendar: Calendar | None = None
    clock: Clock | None = None
    known_until: datetime = EPOCH

    def warn(self, event: FeedSilent | FeedResumed, at: datetime) -> None:
        """Log an event at a time, unless operators were warned of it before."""
        if self.clock is not None and at > self.known_until:
            log.warning(event.KIND.replace(".", "_"), **event.model_dump(mode="json"))


class SilentFeeds:
    """Halts the entries of symbols with a silent feed.

    A symbol is silent at a close if the limit of its bars is missing up to this close, while another symbol
    has a bar. Its unfilled entries are cancelled, and the router denies further ones until its next bar.
    Exits are never denied. The state depends only on time slices, so that a replay and a resumed run repeat
    it.

    Args:
        session_id: The ids of its events are derived from it.
        symbols: The symbols of the session.
        limit: The limit.
        router: The router that denies entries.
        journal: Records the events.

    """

    def __init__(
        self,
        session_id: str,
        symbols: Sequence[str],
        limit: SilenceLimit,
        router: OrderRouter,
        journal: TradeJournal,
    ) -> None:
        self._session_id = session_id
        self._symbols = sorted(symbols)
        self._limit = limit
        self._router = router
        self._journal = journal
        self._last: dict[str, Bar] = {}

    async def check(self, bars: Sequence[Bar]) -> Sequence[Cancellation]:
        """Check all symbols at the close of `bars`, after their fills and before the agent.

        Return the cancellations of unfilled entries, in order.
        """
        if self._limit.bars == 0:
            return ()
        closed = {bar.symbol: bar for bar in bars}
        now, cancelled = bars[0], list[Cancellation]()
        for symbol in self._symbols:
            last, bar = self._last.get(symbol), closed.get(symbol)
            is_silent = symbol in self._router.silent_symbols
            if last is None:
                # Without a bar so far, a symbol is counted from the first close of the session.
                self._last[symbol] = bar or now
            elif bar is not None:
                self._last[symbol] = bar
                if is_silent:
                    await self._resume(symbol, last, bar.close_time)
            elif not is_silent:
                cancelled += await self._check_silent(symbol, last, now)
        return cancelled

    async def _check_silent(self, symbol: str, last: Bar, now: Bar) -> Sequence[Cancellation]:
        # The bar that closes now is missing too.
        missing = missing_between(last, now, self._limit.calendar) + 1
        if missing < self._limit.bars:
            return ()
        silent = FeedSilent(symbol=symbol, last_close=last.close_time, missing=missing)
        await self._publish(silent, now.close_time)
        self._router.silent_symbols.add(symbol)
        return await self._router.withdraw_entries(symbol)

    async def _resume(self, symbol: str, last: Bar, at: datetime) -> None:
        await self._publish(FeedResumed(symbol=symbol, last_close=last.close_time), at)
        self._router.silent_symbols.discard(symbol)

    async def _publish(self, event: FeedSilent | FeedResumed, at: datetime) -> None:
        await publish_feed_event(self._journal, event, self._session_id, at)
        self._limit.warn(event, at)


async def publish_feed_event(
    journal: TradeJournal, event: FeedSilent | FeedResumed, session_id: str, at: datetime
) -> None:
    """Record an event of a feed under an id of its symbol and the close of its last bar."""
    trace_id = derived_id(session_id, event.KIND, event.symbol, utc_text(event.last_close))
    await journal.publish(event, derived_id(event.KIND, trace_id), trace_id, "", at)
