"""Check that an agent, and a resumed run, can use bars of their length."""

from collections.abc import Sequence

from agentic_trading.desk.market.bar import LADDER, Resampler, Timeframe
from agentic_trading.desk.market.samples import PANELS
from agentic_trading.desk.session.agents import OwnAgent
from agentic_trading.desk.session.feeds import ReadAhead
from agentic_trading.operate.session_folder import RunManifest
from agentic_trading.platform.errors import OptionError


def refuse_unfit_bars(own: OwnAgent | None, feeds: Sequence[ReadAhead]) -> None:
    """Raise `OptionError` if the agent cannot trade bars of this length. None is the shipped agent."""
    base = feeds[0].timeframe
    if own is not None:
        agent = own.create()
        for name in filter(None, (agent.timeframe, *agent.timeframes)):
            try:
                Resampler(base, Timeframe(name))
            except ValueError as e:
                was = f"{own.path}, which needs bars of {name}, and the data has bars of {base}"
                raise OptionError("--agent", was, f"multiples of {base}") from e
    elif base is not LADDER[0] and feeds[0].name not in PANELS:
        allowed = (
            f"bars of {LADDER[0]} for the shipped analyst, which makes {', '.join(LADDER[1:])} of them. "
            "An agent of your own trades all lengths: --agent MODULE:CLASS"
        )
        raise OptionError("--data", f"{feeds[0].name}, which has bars of {base}", allowed)


def refuse_other_lengths(feeds: Sequence[ReadAhead], manifest: RunManifest) -> None:
    """Raise `OptionError` if the bars of a resumed run have another length than before."""
    before = {source.symbol: source.timeframe for source in manifest.data}
    for feed in feeds:
        kept = before.get(feed.symbol, feed.timeframe)
        if feed.name not in PANELS and feed.timeframe != kept:
            allowed = f"bars of {kept}, because run {manifest.run_number} was started with them"
            raise OptionError("--data", f"{feed.name}, which has bars of {feed.timeframe}", allowed)
