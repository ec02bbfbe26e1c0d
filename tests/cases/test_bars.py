"""Bar files from public bug reports."""

import asyncio
import subprocess
import sys
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from agentic_trading.clock import SimClock
from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.bar_rows import BarRows
from agentic_trading.desk.market.feed import UnclosedBar
from agentic_trading.desk.session.feeds import open_feeds, sources
from tests.cases.answering import PUBLIC


async def test_futures_klines_are_read_by_header() -> None:
    name = f"BTCUSDT={PUBLIC / 'o08_futures_klines.csv'}"
    (feed,) = await open_feeds(await asyncio.to_thread(sources, [name]))

    bars = [item async for item in feed if isinstance(item, Bar)]

    assert len(bars) == 3
    assert (bars[0].close, bars[0].trades) == (Decimal("42001.5"), 900)
    assert (bars[0].taker_buy_volume, bars[0].quote_volume) == (Decimal("5.25"), Decimal("441000.25"))


def written() -> bytes:
    """Return the bars of the report, the last of which is open."""
    return subprocess.run(
        [sys.executable, PUBLIC / "o09_unclosed_bar.py"], check=True, capture_output=True
    ).stdout


async def test_unclosed_bar_is_excluded_and_reported(tmp_path: Path) -> None:
    file = tmp_path / "bars.csv"
    text = await asyncio.to_thread(written)
    await asyncio.to_thread(file.write_bytes, text)
    rows = BarRows("bars.csv", "BTC", Timeframe.M5)
    bars = [rows.read(number, line) for number, line in enumerate(text.splitlines(), 1)]
    unclosed = bars[-1]
    assert unclosed is not None

    clock = SimClock(unclosed.open_time + timedelta(seconds=100))
    (feed,) = await open_feeds(await asyncio.to_thread(sources, [f"BTC={file}"]), clock=clock)
    items = [item async for item in feed]

    assert len([item for item in items if isinstance(item, Bar)]) == 419
    assert items[419:] == [UnclosedBar(symbol="BTC", timeframe=Timeframe.M5, open_time=unclosed.open_time)]
