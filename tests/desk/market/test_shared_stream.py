"""Several symbols on one stream: each feed has the bars of its symbol, and errors have the line and the symbol."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.errors import BarFormatError, BarSequenceError
from agentic_trading.desk.market.feed import FeedItem
from agentic_trading.desk.market.feeds import SharedStream, SharedStreamFeed
from agentic_trading.desk.time_slices import merge_feeds
from tests.desk.market.bars import bar, rows

M5 = Timeframe.M5
A0, B0, A1, B1 = (bar(place, symbol=name) for place in (0, 1) for name in "AB")


@contextmanager
def feeds_of(content: bytes, *symbols: str) -> Iterator[list[SharedStreamFeed]]:
    """Give the feeds of symbols of a pipe that holds `content`."""
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    stream = SharedStream(reader)
    try:
        yield [stream.feed(symbol=symbol, timeframe=M5) for symbol in symbols]
    finally:
        os.close(reader)


async def all_of(feed: SharedStreamFeed) -> list[FeedItem]:
    return [item async for item in feed]


async def test_each_feed_yields_bars_of_its_symbol() -> None:
    with feeds_of(rows([A0, B0, A1, bar(1, symbol="C"), B1]), "A", "B") as (a, b):
        assert await all_of(a) == [A0, A1]
        assert await all_of(b) == [B0, B1]


async def test_concurrent_reads_share_lines() -> None:
    with feeds_of(rows([B0, A0, B1, A1]), "A", "B") as (a, b):
        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(all_of(feed)) for feed in (a, b)]

    assert [read.result() for read in reads] == [[A0, A1], [B0, B1]]


async def test_symbols_one_after_another_merge_by_time() -> None:
    with feeds_of(rows([B0, B1, A0, A1]), "A", "B") as feeds:
        assert [each.bars async for each in merge_feeds(feeds)] == [(A0, B0), (A1, B1)]


async def test_feed_of_silent_symbol_lets_other_feeds_read() -> None:
    reader, writer = os.pipe()
    stream = SharedStream(reader)
    silent, other = (stream.feed(symbol=name, timeframe=M5) for name in "AB")
    items = aiter(other)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(all_of(silent))
        os.write(writer, rows([B0, B1]))
        assert [await anext(items), await anext(items)] == [B0, B1]
        assert not waiting.done()
        os.close(writer)
    os.close(reader)

    assert waiting.result() == []


async def test_error_has_line_and_symbol() -> None:
    content = rows([A0, B0, A1, B1]).replace(
        b"B,5m,2026-01-05 00:05:00+00:00,100.5", b"B,5m,2026-01-05 00:05:00+00:00,x"
    )
    with feeds_of(content, "A", "B") as (a, b):
        assert await all_of(a) == [A0, A1]
        with pytest.raises(BarFormatError, match=r"stdin, symbol B.*line 5") as refused:
            await all_of(b)
    assert refused.value.value == "x"


async def test_error_of_order_has_symbol() -> None:
    with (
        feeds_of(rows([A0, B1, A1, B0]), "A", "B") as (_, b),
        pytest.raises(BarSequenceError, match=r"stdin, symbol B.*line 5"),
    ):
        await all_of(b)


@pytest.mark.parametrize(
    "content",
    [
        b"open_time,open,high,low,close,volume\n",
        b"2026-01-05T00:00Z,1,2,1,2,3\n",
        b'{"open_time": "2026-01-05T00:00Z"}\n',
    ],
    ids=["header", "no header", "json"],
)
async def test_rows_without_symbol_are_refused(content: bytes) -> None:
    with (
        feeds_of(content, "A", "B") as (a, _),
        pytest.raises(BarFormatError, match="a column symbol, because the source has several symbols"),
    ):
        await all_of(a)


async def test_json_lines_of_symbols_are_read() -> None:
    lines = "".join(f"{each.model_dump_json(exclude_none=True)}\n" for each in (A0, B0, A1))
    with feeds_of(lines.encode(), "A", "B") as (a, b):
        assert (await all_of(a), await all_of(b)) == ([A0, A1], [B0])
