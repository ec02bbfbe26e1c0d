"""A source that cannot feed a run is refused before anything is written, or as soon as it shows."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.errors import BarFormatError
from agentic_trading.desk.market.feed import BarFeed, FeedItem
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.feeds import BarSteps, CheckedFeed, ReadAhead, open_feeds, sources
from agentic_trading.platform.errors import OptionError
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


def checked(*places: int, timeframe: str = "") -> CheckedFeed:
    """Return the checked feed of a stream of the bars at these places."""
    return CheckedFeed(feed_of(*places), "-", BarSteps("-", trading.BASE, is_known=bool(timeframe)))


async def test_read_ahead_keeps_all_items() -> None:
    feed = ReadAhead(feed_of(0, 2, 3, 3, 7), "bars")

    await feed.check()

    assert await all_of(CheckedFeed(feed, "bars", feed.steps)) == await all_of(feed_of(0, 2, 3, 3, 7))


async def test_skip_to_omits_earlier_bars_only() -> None:
    feed = ReadAhead(feed_of(0, 1, 1, 4, 5), "bars")
    await feed.check()

    assert await feed.skip_to(bar(1).close_time)
    assert await feed.skip_to(bar(1).close_time)
    assert await all_of(feed) == [bar(4), bar(5)]
    assert not await feed.skip_to(bar(5).close_time)


WEEK = [0, 1, 4, 5, 6, 7, 8, 11]
"""Days with bars, from a Thursday on."""


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ([12 * place for place in range(6)], "which looks like bars of 1h"),
        ([3 * place for place in range(6)], "which looks like bars of 15m"),
        ([18 * place for place in range(6)], "which looks like bars of 90m"),
        ([288 * day for day in WEEK], "which looks like bars of 1d"),
        ([0, 288], "which looks like bars of 1d"),
        ([66, 78, 90, 354, 366, 378], "which looks like bars of 1h"),
        ([0, 2, 5, 7], "whose bars are 10m, 15m apart"),
    ],
)
async def test_bars_of_other_length_are_rejected(places: list[int], told: str, tmp_path: Path) -> None:
    name = file_of(tmp_path / "BTCUSDT.csv", rows([bar(place) for place in places]))
    allowed = (
        r"Allowed: bars of 5m\. If these are bars of 5m with missing bars between them, use --timeframe 5m"
    )

    with pytest.raises(OptionError, match=rf"{told}\. {allowed}"):
        await opened(name)


async def test_stream_is_rejected_at_first_contradiction() -> None:
    items = aiter(checked(0, 288, 576))

    given = [await anext(items), await anext(items)]

    assert [item for item in given if isinstance(item, Bar)] == [bar(0)]
    with pytest.raises(OptionError, match=r"which looks like bars of 1d\. Allowed: bars of 5m"):
        await anext(items)


@pytest.mark.parametrize("places", [(0, 1, 13, 25, 37), (0, 1), (0,)])
async def test_longer_later_step_is_gap(places: tuple[int, ...], tmp_path: Path) -> None:
    name = file_of(tmp_path / "BTCUSDT.csv", rows([bar(place) for place in places]))
    (feed,) = await opened(name)

    of_file, of_stream = await all_of(CheckedFeed(feed, name, feed.steps)), await all_of(checked(*places))

    assert of_file == of_stream == await all_of(feed_of(*places))


async def test_shortest_step_may_come_last(tmp_path: Path) -> None:
    name = file_of(tmp_path / "BTCUSDT.csv", rows([bar(place) for place in (0, 12, 24, 36, 48, 49)]))

    assert len(await all_of((await opened(name))[0])) == 10


async def test_timeframe_option_sets_bar_length(tmp_path: Path) -> None:
    name = file_of(tmp_path / "BTCUSDT.csv", rows([bar(0), bar(12), bar(24)]))

    (feed,) = await open_feeds(await asyncio.to_thread(sources, [name]), "5m")

    assert len(await all_of(CheckedFeed(feed, name, feed.steps))) == 5
    assert len(await all_of(checked(0, 12, 24, timeframe="5m"))) == 5
    with pytest.raises(OptionError, match=r"--timeframe is 1h\. Allowed: 5m, the only"):
        await open_feeds(await asyncio.to_thread(sources, [name]), "1h")


async def test_minute_bars_are_rejected(tmp_path: Path) -> None:
    text = b"open_time,open,high,low,close,volume\n2026-01-05T00:00,1,1,1,1,1\n2026-01-05T00:01,1,1,1,1,1\n"

    with pytest.raises(
        BarFormatError, match=r"allowed: a multiple of 5m\. It opens 0:01:00 after the bar before"
    ):
        await opened(file_of(tmp_path / "BTCUSDT.csv", text))


@pytest.mark.parametrize("content", [b"", b"open_time,open,high,low,close,volume\n", b"# nothing\n\n"])
async def test_source_without_bars_is_rejected(content: bytes, tmp_path: Path) -> None:
    name = file_of(tmp_path / "BTCUSDT.csv", content)

    with pytest.raises(
        OptionError, match=r"BTCUSDT\.csv, which holds no bar. Allowed: a source with at least one closed bar"
    ):
        await opened(name)
    with pytest.raises(OptionError, match="-, which holds no bar"):
        await all_of(checked())


async def test_opening_does_not_wait_for_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as silent, os.fdopen(writer, "w"):
        monkeypatch.setattr(sys, "stdin", silent)

        (feed,) = await opened("ETH=-")

    assert feed.symbol == "ETH"
