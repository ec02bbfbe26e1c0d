"""Bar files from public bug reports."""

import asyncio
from decimal import Decimal

from agentic_trading.app.feeds import open_feeds, sources
from agentic_trading.desk.market.bar import Bar
from tests.cases.answering import PUBLIC


async def test_futures_klines_are_read_by_their_header() -> None:
    name = f"BTCUSDT={PUBLIC / 'o08_futures_klines.csv'}"
    (feed,) = await open_feeds(await asyncio.to_thread(sources, [name]))

    bars = [item async for item in feed if isinstance(item, Bar)]

    assert len(bars) == 3
    assert (bars[0].close, bars[0].trades) == (Decimal("42001.5"), 900)
    assert (bars[0].taker_buy_volume, bars[0].quote_volume) == (Decimal("5.25"), Decimal("441000.25"))
