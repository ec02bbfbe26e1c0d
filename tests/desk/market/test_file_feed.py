"""The file feed reads plain and packed files and says where one is broken."""

import gzip
import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from typing_extensions import override

from agentic_trading.clock import SimClock
from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.errors import BarFormatError, BarSequenceError, FeedUnavailableError
from agentic_trading.desk.market.feed import Duplicate, FeedItem, UnclosedBar, UnreadColumns
from agentic_trading.desk.market.feeds import CHUNK_BYTES, CsvFeed, StdinFeed
from tests.desk.market.bars import bar, rows


async def read(path: Path) -> list[FeedItem]:
    return [item async for item in CsvFeed(path, symbol="BTCUSDT", timeframe=Timeframe.M5)]


async def test_gzip_file_gives_same_bars(tmp_path: Path) -> None:
    bars = [bar(place) for place in range(3)]
    plain, packed = tmp_path / "bars.csv", tmp_path / "bars.csv.gz"
    plain.write_bytes(rows(bars))
    packed.write_bytes(gzip.compress(rows(bars)))

    assert await read(plain) == await read(packed) == bars


async def test_crlf_and_missing_final_newline_accepted(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    path.write_bytes(rows([bar(0), bar(1)]).replace(b"\n", b"\r\n").rstrip())

    assert await read(path) == [bar(0), bar(1)]


async def test_malformed_cell_error_has_position(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    path.write_bytes(rows([bar(0), bar(1)]).replace(b"00:05:00+00:00,100.5", b"00:05:00+00:00,1OO.5"))

    with pytest.raises(BarFormatError) as refused:
        await read(path)

    assert (refused.value.source, refused.value.line, refused.value.column) == ("bars.csv", 3, "open")


async def test_unordered_bar_error_has_line(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    path.write_bytes(b"# exported\n" + rows([bar(0), bar(2), bar(1)]))

    with pytest.raises(BarSequenceError) as refused:
        await read(path)

    assert (refused.value.source, refused.value.line, refused.value.field) == ("bars.csv", 5, "open_time")


async def test_conflicting_duplicate_error_has_field(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    path.write_bytes(rows([bar(0, volume="1"), bar(0, volume="2")]))

    with pytest.raises(BarSequenceError) as refused:
        await read(path)

    assert (refused.value.line, refused.value.field) == (3, "volume")


async def test_missing_file_error_has_path(tmp_path: Path) -> None:
    with pytest.raises(FeedUnavailableError) as refused:
        await read(tmp_path / "none.csv")

    assert refused.value.source == str(tmp_path / "none.csv")


async def test_unread_columns_are_noted_once(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    path.write_bytes(b"date,open,high,low,close,volume,vwap,rsi\n" + b"2026-01-05,1,1,1,1,1,1,50\n" * 2)

    first, *rest = await read(path)

    assert first == UnreadColumns(symbol="BTCUSDT", columns=("vwap", "rsi"))
    assert [type(item) for item in rest] == [Bar, Duplicate]


@pytest.mark.parametrize("name", ["bars.csv", "bars.csv.gz"])
async def test_endless_line_is_not_read_fully(name: str, tmp_path: Path) -> None:
    path, text = tmp_path / name, b"1" * 10_000_000
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    with pytest.raises(BarFormatError) as refused:
        await read(path)

    assert refused.value.line == 1
    assert refused.value.value == f"{2 * CHUNK_BYTES} bytes"


@pytest.mark.parametrize("damage", ["not packed", "cut", "flipped"])
async def test_corrupt_gzip_is_reported(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "bars.csv.gz"
    packed = gzip.compress(rows([bar(place) for place in range(40)]))
    flipped = packed[:60] + bytes([packed[60] ^ 255]) + packed[61:]
    path.write_bytes({"not packed": b"open_time", "cut": packed[:-12], "flipped": flipped}[damage])

    with pytest.raises(FeedUnavailableError):
        await read(path)


@pytest.mark.parametrize("name", ["bars.csv", "bars.csv.gz"])
async def test_early_stop_closes_file(name: str, tmp_path: Path) -> None:
    path, text = tmp_path / name, rows([bar(place) for place in range(3000)])
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    first = await anext(aiter(CsvFeed(path, symbol="BTCUSDT", timeframe=Timeframe.M5)))

    assert first == bar(0)
    assert str(path) not in open_files()


def open_files() -> set[str]:
    """Return the paths of the files that this process has open."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found.add(str(link.readlink()))
    return found


class WallClock(SimClock):
    """A clock that a wait moves."""

    @override
    async def sleep(self, seconds: float) -> None:
        self.advance_to(self.now() + timedelta(seconds=seconds))


async def read_at(path: Path, clock: WallClock) -> list[FeedItem]:
    feed = CsvFeed(path, symbol="BTCUSDT", timeframe=Timeframe.M5, clock=clock)
    return [item async for item in feed]


@pytest.mark.parametrize(("ahead_s", "waited_s"), [(0, 0), (-1, 0), (3, 3), (5, 5)])
async def test_nearly_closed_bar_is_awaited(tmp_path: Path, ahead_s: int, waited_s: int) -> None:
    path = tmp_path / "bars.csv"
    path.write_bytes(rows([bar(0), bar(1)]))
    clock = WallClock(start := bar(1).close_time - timedelta(seconds=ahead_s))

    assert await read_at(path, clock) == [bar(0), bar(1)]
    assert clock.now() - start == timedelta(seconds=waited_s)


async def test_unclosed_bar_is_skipped_and_noted(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    path.write_bytes(rows([bar(0), bar(1)]))
    clock = WallClock(start := bar(1).close_time - timedelta(seconds=5.001))

    note = UnclosedBar(symbol="BTCUSDT", timeframe=Timeframe.M5, open_time=bar(1).open_time)
    assert await read_at(path, clock) == [bar(0), note]
    assert clock.now() == start


async def test_final_row_replaces_unclosed_rows(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    clock = WallClock(bar(1).open_time + timedelta(seconds=20))
    feed = aiter(StdinFeed(reader, symbol="BTCUSDT", timeframe=Timeframe.M5, clock=clock))
    sent = rows([bar(0), bar(1, "99"), bar(1, "101"), bar(1, "102")]).splitlines(keepends=True)

    os.write(writer, b"".join(sent[:4]))
    before = [await anext(feed) for _ in range(3)]
    clock.advance_to(bar(1).close_time)
    os.write(writer, sent[4])
    os.close(writer)
    after = [item async for item in feed]
    os.close(reader)

    assert before[0] == bar(0)
    assert [type(item) for item in before[1:]] == [UnclosedBar, UnclosedBar]
    assert after == [bar(1, "102")]


async def test_unclosed_row_is_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    path.write_bytes(rows([bar(0), bar(1)]))
    clock = WallClock(bar(0).open_time)

    feed = CsvFeed(path, symbol="BTCUSDT", timeframe=Timeframe.M5, clock=clock, most_bars=1)

    assert [type(item) for item in [each async for each in feed]] == [UnclosedBar, UnclosedBar]
