"""A source that cannot feed a run is refused before anything is written, or as soon as it shows."""

import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.errors import BarFormatError
from agentic_trading.desk.market.feed import BarFeed, FeedItem
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.feeds import BarSteps, CheckedFeed, ReadAhead, open_feeds, sources
from agentic_trading.platform.errors import OptionError
from tests.desk.market.bars import MONDAY, bar, rows


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


def times_file(path: Path, minutes: Sequence[float]) -> str:
    """Write bars that open these minutes after Monday midnight, and return the word that names the file."""
    times = (MONDAY + timedelta(minutes=each) for each in minutes)
    lines = ["open_time,open,high,low,close,volume", *(f"{time.isoformat()},1,1,1,1,1" for time in times)]
    return file_of(path / "BTCUSDT.csv", "\n".join(lines).encode())


@pytest.mark.parametrize(
    ("minutes", "length"),
    [
        ([seconds / 60 for seconds in (0, 1, 2, 3, 60)], "1s"),
        ([seconds / 60 for seconds in (0, 30, 60, 120)], "30s"),
        ([0, 1, 2, 5, 6], "1m"),
        ([0, 5, 10, 30], "5m"),
        ([15 * place for place in range(6)], "15m"),
        ([60 * place for place in range(6)], "1h"),
        ([870, 930, 990, 2310, 2370], "1h"),
        ([870, 1110, 2310, 2550, 3690, 3930, 5070, 5310], "4h"),
        ([1440 * day for day in WEEK], "1d"),
        ([0, 1440], "1d"),
        ([1440 * 4, 1440 * 5 - 60, 1440 * 6 - 60], "1d"),
        ([0], "5m"),
    ],
)
async def test_shortest_step_is_the_length(minutes: list[float], length: str, tmp_path: Path) -> None:
    (feed,) = await opened(times_file(tmp_path, minutes))

    bars = [item for item in await all_of(feed) if isinstance(item, Bar)]
    assert feed.timeframe == length
    assert len(bars) == len(minutes)


@pytest.mark.parametrize(
    ("minutes", "shown"),
    [
        ([90 * place for place in range(6)], "which looks like bars of 90m"),
        ([10_080 * place for place in range(6)], "which looks like bars of 7d"),
        ([0, 10, 25, 35], "whose bars are 10m, 15m apart"),
        ([0, 15, 35, 60], "whose bars are 15m, 20m, 25m apart"),
        ([15, 10, 5, 0], "whose rows are newest first"),
    ],
)
async def test_unknown_length_is_rejected(minutes: list[float], shown: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=shown):
        await opened(times_file(tmp_path, minutes))


async def test_sources_of_two_lengths_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    minutes, hours = times_file(tmp_path, [0, 1]), times_file(tmp_path / "a", [0, 60])

    with pytest.raises(
        OptionError, match=r"bars of 1m in A=.*, and of 1h in B=.*Allowed: bars of one length"
    ):
        await opened(f"A={minutes}", f"B={hours}")


async def test_stream_is_rejected_at_first_contradiction() -> None:
    items = aiter(checked(0, 288, 576))

    given = [await anext(items), await anext(items)]

    assert [item for item in given if isinstance(item, Bar)] == [bar(0)]
    with pytest.raises(
        OptionError,
        match=r"which looks like bars of 1d\. Allowed: bars of 5m\. State another length with --timeframe",
    ):
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
    with pytest.raises(OptionError, match=r"--timeframe is 90m\. Allowed: 1s, 5s"):
        await open_feeds(await asyncio.to_thread(sources, [name]), "90m")
    with pytest.raises(
        OptionError, match=r"--timeframe is 1h\. Allowed: 5m, the length of bars of btcusdt-5m"
    ):
        await open_feeds(await asyncio.to_thread(sources, ["btcusdt-5m"]), "1h")


async def test_shorter_bars_than_stated_are_rejected(tmp_path: Path) -> None:
    name = times_file(tmp_path, [0, 1])

    (feed,) = await open_feeds(await asyncio.to_thread(sources, [name]), "5m")

    with pytest.raises(BarFormatError, match=r"a multiple of 5m\. It opens 0:01:00 after the bar before"):
        await all_of(feed)


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
