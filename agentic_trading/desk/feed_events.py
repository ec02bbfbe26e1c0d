"""Events of feeds: a feed is silent, has bars again, or sent a bar too late."""

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.fields import Moment, Open


class FeedSilent(EventBody, frozen=True):
    """A feed has sent no bar for several bars. From now on, entries of its symbol are denied.

    Attributes:
        symbol: The symbol. Empty if no feed of the session sends bars, by the clock of the machine.
        last_close: The close of its last bar. Without a bar so far: the first close of the session.
        missing: The number of bars since then that could have closed.

    """

    KIND = "feed.silent"

    symbol: str
    last_close: Moment
    missing: int


class FeedResumed(EventBody, frozen=True):
    """A silent feed has sent a bar. Entries of its symbol are allowed again.

    Attributes:
        symbol: The symbol. Empty if no feed of the session had sent bars.
        last_close: The close of the last bar before the silence.

    """

    KIND = "feed.resumed"

    symbol: str
    last_close: Moment


class BarLeftOut(EventBody, frozen=True):
    """A late bar: it came after the time slice of its close, and was left out.

    Attributes:
        symbol: The symbol.
        timeframe: The length of the bar.
        open_time: The open of the bar.

    """

    KIND = "feed.bar_left_out"

    symbol: str
    timeframe: Open[Timeframe]
    open_time: Moment
