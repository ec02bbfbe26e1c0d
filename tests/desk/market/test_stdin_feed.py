"""The stream feed gives a bar as soon as its line has ended and never holds up the loop."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.bar_rows import LONGEST_LINE_BYTES
from agentic_trading.desk.market.errors import BarFormatError
from agentic_trading.desk.market.feed import FeedItem
from agentic_trading.desk.market.feeds import StdinFeed
from tests.desk.market.bars import bar, rows


class Pipe:
    """Both ends of a pipe; the writing one may be closed early."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def write(self, data: bytes) -> None:
        assert os.write(self._writer, data) == len(data)

    def end(self) -> None:
        os.close(self._writer)
        self._writer = -1

    def close(self) -> None:
        if self._writer >= 0:
            self.end()
        os.close(self.reader)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    opened = Pipe()
    yield opened
    opened.close()


@pytest.fixture
def nowhere() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_RDONLY)
    yield fd
    os.close(fd)


def feed(fd: int) -> StdinFeed:
    return StdinFeed(fd, symbol="BTCUSDT", timeframe=Timeframe.M5)


async def next_of(items: AsyncIterator[FeedItem]) -> FeedItem:
    return await anext(items)


def stream(pipe: Pipe) -> AsyncIterator[FeedItem]:
    return aiter(feed(pipe.reader))


async def test_bar_arrives_before_stream_ends(pipe: Pipe) -> None:
    items = stream(pipe)

    pipe.write(rows([bar(0)]))
    first = await anext(items)
    pipe.write(bar(1).model_dump_json().encode() + b"\n")
    second = await anext(items)

    assert (first, second) == (bar(0), bar(1))


async def test_line_may_arrive_in_pieces(pipe: Pipe) -> None:
    items = stream(pipe)
    text = bar(0).model_dump_json().encode()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(next_of(items), name="next bar")
        for piece in (text[:10], text[10:60], text[60:] + b"\n"):
            pipe.write(piece)
            await asyncio.sleep(0)

    assert waiting.result() == bar(0)


async def test_last_line_needs_no_newline(pipe: Pipe) -> None:
    pipe.write(rows([bar(0), bar(1)]).rstrip())
    pipe.end()

    assert [item async for item in feed(pipe.reader)] == [bar(0), bar(1)]


async def test_waiting_leaves_event_loop_free(pipe: Pipe) -> None:
    items = stream(pipe)
    turns = 0

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(next_of(items), name="next bar")
        for _ in range(100):
            await asyncio.sleep(0)
            turns += not waiting.done()
        pipe.write(rows([bar(0)]))

    assert turns == 100
    assert waiting.result() == bar(0)


async def test_cancelled_wait_loses_no_bar(pipe: Pipe) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await anext(stream(pipe))

    pipe.write(rows([bar(0)]))
    assert await anext(stream(pipe)) == bar(0)


async def test_descriptor_stays_in_blocking_mode(pipe: Pipe) -> None:
    pipe.write(rows([bar(0)]))
    pipe.end()

    assert [item async for item in feed(pipe.reader)]
    assert os.get_blocking(pipe.reader)


async def test_file_descriptor_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    bars = [bar(place) for place in range(1_500)]
    path.write_bytes(rows(bars))

    with path.open("rb", buffering=0) as file:
        read = [item async for item in feed(file.fileno())]

    assert read == bars


async def test_empty_stream_yields_no_items(nowhere: int) -> None:
    assert [item async for item in feed(nowhere)] == []


async def test_error_line_counts_from_stream_start(pipe: Pipe) -> None:
    items = stream(pipe)

    pipe.write(rows([bar(0)]))
    assert isinstance(await anext(items), Bar)
    pipe.write(b"\nnot a bar\n")

    with pytest.raises(BarFormatError) as refused:
        await anext(items)
    assert (refused.value.source, refused.value.line) == ("stdin", 4)


@pytest.mark.parametrize("ended", [False, True])
async def test_overlong_line_is_rejected(tmp_path: Path, *, ended: bool) -> None:
    path = tmp_path / "bars.csv"
    path.write_bytes(b"# " + b"1" * LONGEST_LINE_BYTES + (b"\n" if ended else b"1" * LONGEST_LINE_BYTES))

    with path.open("rb", buffering=0) as file, pytest.raises(BarFormatError) as refused:
        assert [item async for item in feed(file.fileno())]

    assert refused.value.line == 1
    assert str(LONGEST_LINE_BYTES) in refused.value.allowed
