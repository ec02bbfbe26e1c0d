"""A source that cannot feed a run is refused before anything is written, or as soon as it shows."""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from agentic_trading.app import trading
from agentic_trading.app.feeds import CheckedFeed, ReadAhead, open_feeds, sources
from agentic_trading.app.options import OptionError
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.feed import BarFeed, FeedItem
from tests.desk.market.bars import bar, rows


async def all_of(feed: BarFeed) -> list[FeedItem]:
    return [item async for item in feed]


async def opened(*names: str) -> list[ReadAhead]:
    """Open what the names mean, as a run does."""
    return await open_feeds(await asyncio.to_thread(sources, names))


def feed_of(*places: int) -> BarFeed:
    """Return a feed of the bars at these places."""
    return trading.bars_feed([bar(place) for place in places], symbol="BTCUSDT", name="bars")


def file_of(path: Path, content: bytes) -> str:
    """Write a file and return the word that names it."""
    path.write_bytes(content)
    return str(path)


async def test_what_was_looked_at_is_given_all_the_same() -> None:
    feed = ReadAhead(feed_of(0, 1, 1, 4, 5), "bars")

    assert await feed.peek(2) == [bar(0), bar(1)]
    assert await feed.peek(4) == [bar(0), bar(1), bar(4), bar(5)]
    assert await all_of(feed) == await all_of(feed_of(0, 1, 1, 4, 5))


async def test_what_comes_before_a_moment_is_left_out_and_nothing_else() -> None:
    feed = ReadAhead(feed_of(0, 1, 1, 4, 5), "bars")
    await feed.peek(2)

    assert await feed.skip_to(bar(1).close_time)
    assert await feed.skip_to(bar(1).close_time)
    assert await all_of(feed) == [bar(4), bar(5)]
    assert not await feed.skip_to(bar(5).close_time)


@pytest.mark.parametrize(("step", "told"), [(12, "1h"), (3, "15m"), (288, "1d"), (18, "90m")])
async def test_bars_of_another_length_are_refused_with_what_they_look_like(
    step: int, told: str, tmp_path: Path
) -> None:
    name = file_of(tmp_path / "BTCUSDT.csv", rows([bar(step * place) for place in range(6)]))

    with pytest.raises(OptionError, match=f"which looks like bars of {told}; allowed: 5m"):
        await opened(name)
    with pytest.raises(OptionError, match=f"which looks like bars of {told}; allowed: 5m"):
        await all_of(CheckedFeed(feed_of(*(step * place for place in range(6))), "-"))


@pytest.mark.parametrize("places", [(0, 12, 24), (0, 12, 24, 25), (0, 12, 24, 48), (0, 1, 13, 25, 37)])
async def test_holes_are_not_taken_for_longer_bars(places: tuple[int, ...]) -> None:
    items = await all_of(CheckedFeed(feed_of(*places), "-"))

    assert [item.open_time for item in items if isinstance(item, Bar)] == [
        bar(0).open_time + place * timedelta(minutes=5) for place in places
    ]


@pytest.mark.parametrize("content", [b"", b"open_time,open,high,low,close,volume\n", b"# nothing\n\n"])
async def test_a_source_without_a_bar_is_refused(content: bytes, tmp_path: Path) -> None:
    name = file_of(tmp_path / "BTCUSDT.csv", content)

    with pytest.raises(OptionError, match=r"BTCUSDT\.csv, which holds no bar; allowed: a source of one"):
        await opened(name)
    with pytest.raises(OptionError, match="-, which holds no bar"):
        await all_of(CheckedFeed(feed_of(), "-"))


async def test_a_stream_is_not_waited_for_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as silent, os.fdopen(writer, "w"):
        monkeypatch.setattr(sys, "stdin", silent)

        (feed,) = await opened("ETH=-")

    assert feed.symbol == "ETH"
