"""A session that ends in an error ends in order: what was asked and recorded is kept, and the error is the user's."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.errors import BarFormatError
from agentic_trading.desk.market.feed import FeedItem
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.session_run import SessionObserver, SessionResult, play_session
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from tests.flows.sessions import LOADED, evening, lines_of, stage, store_of

BTC = LOADED["btcusdt-5m"][:340]


class SlowStore(MemoryInteractionStore):
    """Takes as long for an event as a disk does, counted in turns of the loop."""

    async def record(self, event: Event) -> int:
        for _ in range(200):
            await asyncio.sleep(0)
        return await super().record(event)


class FullStore(MemoryInteractionStore):
    """Cannot keep the second attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._attempts = 0

    async def store(self, interaction: LLMInteraction) -> int:
        self._attempts += 1
        if self._attempts == 2:
            raise StoreError(Path("log"), "cannot be written (no space); free some")
        return await super().store(interaction)


class EndsBadly:
    """Bars, and then something that is none."""

    symbol = "BTCUSDT"
    timeframe = trading.BASE

    def __init__(self, bars: Sequence[Bar], error: Exception) -> None:
        self._bars = bars
        self._error = error

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        for bar in self._bars:
            yield bar
        raise self._error


async def test_bad_bar_keeps_earlier_records() -> None:
    store, lines, played = SlowStore(), list[bytes](), SessionResult()
    error = BarFormatError("bars", 341, "close", "x", "a number")
    set_up = stage(bars={"btcusdt-5m": BTC}, store=store, feeds=[EndsBadly(BTC, error)])

    async def after_moment(_moment: TimeSlice, new: Sequence[bytes]) -> None:
        lines.extend(new)

    with pytest.raises(BarFormatError) as raised:
        await play_session(set_up, played, SessionObserver(after_moment))

    kept = {entry.record.id for entry in [e async for e in store.scan()] if isinstance(entry.record, Event)}
    decided = {line["id"] for line in lines_of(b"\n".join(lines)) if line["kind"] != "call"}
    assert raised.value is error
    assert decided
    assert kept >= decided
    assert played.bars_done == len(BTC)
    assert played.account is not None


async def test_full_log_ends_session_with_error() -> None:
    store = FullStore()

    with pytest.raises(StoreError, match="no space"):
        await evening(bars={"btcusdt-5m": LOADED["btcusdt-5m"]}, store=store, most_bars=500)

    assert len([e async for e in store.scan() if isinstance(e.record, LLMInteraction)]) == 1


async def test_observer_error_is_not_hidden() -> None:
    async def broken(_moment: TimeSlice, _lines: Sequence[bytes]) -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        await play_session(stage(most_bars=3), SessionResult(), SessionObserver(broken))


async def test_slice_is_announced_before_processing() -> None:
    happened: list[tuple[str, int]] = []
    set_up = stage(bars={"btcusdt-5m": BTC})

    async def before(moment: TimeSlice) -> None:
        happened.append(("before", len([e async for e in store_of(set_up).scan()])))
        assert set_up.clock.now() < moment.at

    async def after(moment: TimeSlice, _lines: Sequence[bytes]) -> None:
        happened.append(("after", len(moment.bars)))

    await play_session(set_up, SessionResult(), SessionObserver(after, before))

    assert [what for what, _ in happened] == ["before", "after"] * len(BTC)
