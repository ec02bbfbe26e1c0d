"""Sessions on the hours of an exchange: gaps, the copy of the hours, replay, and resume."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.market.calendar import COLUMNS
from agentic_trading.desk.market.errors import UnknownCalendarError
from agentic_trading.desk.market.feed import Gap
from agentic_trading.desk.session.replay import recorded_feed, replay
from agentic_trading.errors import MissingExtraError
from agentic_trading.llm.errors import StoreError
from agentic_trading.operate.session_folder import SessionFolder
from agentic_trading.platform.errors import OptionError
from tests.desk.agents.trading import Asking, named, ran_with
from tests.flows.sessions import decided, lines_of

HEADER = "open_time,open,high,low,close,volume"
PAUSE = "1 bar missing from 2024-11-25 15:30 to 2024-11-25 16:00"
"""The only gap of the file: a bar of half an hour on the first day. The second day closes early."""


@pytest.fixture
def stocks(tmp_path: Path) -> Path:
    """Return a file with bars of half an hour of a stock of New York, over five trading days."""
    days = {"25": 13, "26": 13, "27": 13, "29": 7}
    opens = [
        f"2024-11-{day}T{14 + half // 2}:{'30' if half % 2 else '00'}:00Z"
        for day, bars in days.items()
        for half in range(1, bars + 1)
    ]
    opens.remove("2024-11-25T15:30:00Z")
    rows = [
        f"{each},{100 + at}.0,{103 + at}.0,{99 + at}.0,{101 + at}.5,1000" for at, each in enumerate(opens)
    ]
    path = tmp_path / "AAPL-30m.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    return path


def terms(stocks: Path, **changes: Any) -> dict[str, Any]:
    return {"data": (str(stocks),), "bars": None, "calendar": "XNYS", **changes}


async def test_only_bars_in_hours_of_exchange_are_missing(stocks: Path, tmp_path: Path) -> None:
    always = await ran_with(tmp_path / "always", Asking, **terms(stocks, calendar=""))
    report = await ran_with(tmp_path / "hours", Asking, **terms(stocks))

    assert len(always.data[0].gaps) == 4
    assert report.data[0].gaps == [PAUSE]
    assert report.data[0].bars == 45
    assert decided(tmp_path / "hours")


async def test_replay_reads_the_kept_hours_without_the_package(
    stocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    await ran_with(out, Asking, **terms(stocks))
    folder = SessionFolder(out)
    manifest = await asyncio.to_thread(folder.read_manifest)
    rows = (await asyncio.to_thread(folder.calendar(1).read_text, "utf-8")).splitlines()
    monkeypatch.setitem(sys.modules, "exchange_calendars", None)

    for workers in (1, 8):
        again = await replay(out, workers=workers, agent=await named(Asking))
        assert (again.identical, again.misses, again.unused) == (True, 0, 0)
    feed = await recorded_feed(folder, manifest, manifest.data[0])
    assert [item.missing async for item in feed if isinstance(item, Gap)] == [1]
    assert (manifest.version, manifest.calendar) == (3, "XNYS")
    assert rows[0] == COLUMNS
    assert rows[1] == "2024-11-18,2024-11-18T14:30:00Z,2024-11-18T21:00:00Z"
    assert "2024-11-29,2024-11-29T14:30:00Z,2024-11-29T18:00:00Z" in rows


async def test_resumed_run_equals_whole_one(stocks: Path, tmp_path: Path) -> None:
    await ran_with(tmp_path / "whole", Asking, **terms(stocks))
    await ran_with(tmp_path / "parts", Asking, **terms(stocks, bars=20))
    resumed = await ran_with(tmp_path / "parts", Asking, **terms(stocks, resume=True))

    assert resumed.data[0].gaps == [PAUSE]
    assert lines_of(decided(tmp_path / "parts")) == lines_of(decided(tmp_path / "whole"))
    with pytest.raises(OptionError, match="--calendar"):
        await ran_with(tmp_path / "parts", Asking, **terms(stocks, resume=True, calendar="XLON"))


async def test_unusable_calendar_is_refused(
    stocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownCalendarError, match="'NEW YORK'"):
        await ran_with(tmp_path / "a", Asking, **terms(stocks, calendar="NEW YORK"))
    with pytest.raises(OptionError, match=r"--calendar.*sp500-sample has a calendar"):
        await ran_with(tmp_path / "b", Asking, data=("sp500-sample",), calendar="XNYS")
    monkeypatch.setitem(sys.modules, "exchange_calendars", None)
    with pytest.raises(MissingExtraError, match=r"agentic-trading\[calendars\]"):
        await ran_with(tmp_path / "c", Asking, **terms(stocks))
    assert [name for name in "abc" if (tmp_path / name).exists()] == []


@pytest.mark.parametrize("text", [None, "day\n", f"{COLUMNS}\n2024-11-25,x,y\n"])
async def test_damaged_hours_are_an_error(text: str | None, stocks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    await ran_with(out, Asking, **terms(stocks))
    path = SessionFolder(out).calendar(1)
    await asyncio.to_thread(path.unlink if text is None else lambda: path.write_text(text, encoding="utf-8"))

    with pytest.raises(StoreError, match="is not the calendar of the run"):
        await replay(out, workers=1, agent=await named(Asking))
