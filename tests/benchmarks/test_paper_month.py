"""The month of paper trading has a plan of its seed, fails on each broken promise, and holds for two days."""

import asyncio
import itertools
import signal
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.session import trading
from benchmarks.paper_month import (
    QUICK,
    folder_ratio,
    main,
    memory_slope,
    more_descriptors,
    note_faults,
)
from benchmarks.paper_month_plan import MINUTE, SINGLE, START, SYMBOLS, Market, plan_of
from benchmarks.paper_month_program import MovedClock, SharedTime, clock_of
from benchmarks.paper_month_sender import HEADER, KeptRows, Sample, Session

DAY = 24 * 60
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def samples(mb_a_day: float = 0.0, folder_mb_a_day: float = 1.0) -> list[Sample]:
    return [
        Sample(day * DAY, day // 5, 90 + day * mb_a_day, 10, 5, day * folder_mb_a_day) for day in range(20)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_plan_has_the_same_events_for_every_seed(seed: int) -> None:
    plan = plan_of(QUICK, seed)

    assert Counter(stop.signal for stop in plan.stops.values()) == {signal.SIGKILL: 4, signal.SIGTERM: 1}
    assert len(plan.silences) == 6
    assert (len(plan.late), len(plan.repeated)) == (SINGLE, SINGLE)
    assert {len(plan.sent(minute)) for minute in range(QUICK)} == {0, 1, 2}
    spans = [*(span for _, span in plan.silences), *plan.outages, *plan.backlogs]
    assert all(len(plan.sent(minute)) == 2 for minute in plan.stops)
    single = {*plan.late, *plan.repeated, *plan.stops}
    assert not any(minute in span for minute in single for span in spans)
    assert not any({minute + 1} & single for minute in plan.late)


def test_plan_of_a_seed_is_always_the_same() -> None:
    assert plan_of(QUICK, 3) == plan_of(QUICK, 3)
    assert plan_of(QUICK, 3) != plan_of(QUICK, 4)


async def test_market_gives_bars_that_the_program_reads() -> None:
    market = Market(1)
    rows = [market.rows(minute) for minute in range(500)]
    for symbol in SYMBOLS:
        lines = [line.encode() for line in [HEADER, *(each[symbol] for each in rows)]]
        feed = trading.text_feed(lines, "rows", symbol=symbol, timeframe=Timeframe.M1)
        items = [item async for item in feed]
        assert [item.open_time for item in items if isinstance(item, Bar)] == [
            START + minute * MINUTE for minute in range(500)
        ]


async def test_sleep_of_moved_clock_ends_when_its_time_is_set(tmp_path: Path) -> None:
    shared = SharedTime(tmp_path / "time")
    shared.set(NOON)
    clock = MovedClock(SharedTime(tmp_path / "time"))
    assert clock.now() == NOON

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        sleeping = group.create_task(clock.sleep(20))
        shared.set(NOON + timedelta(seconds=19))
        _, pending = await asyncio.wait({sleeping}, timeout=0.05)
        assert pending == {sleeping}
        shared.set(NOON + timedelta(seconds=20))


async def test_sleep_counts_from_the_last_time_that_was_read(tmp_path: Path) -> None:
    shared = SharedTime(tmp_path / "time")
    shared.set(NOON)
    clock = MovedClock(shared)
    clock.now()
    shared.set(NOON + timedelta(hours=1))

    async with asyncio.TaskGroup() as group:
        sleeping = group.create_task(clock.sleep(3_600))
        done, _ = await asyncio.wait({sleeping}, timeout=10)
        sleeping.cancel()

    assert done == {sleeping}


def test_backtest_has_no_moved_clock(tmp_path: Path) -> None:
    shared = SharedTime(tmp_path / "time")

    assert clock_of(shared, "backtest") is None
    assert isinstance(clock_of(shared, "paper"), MovedClock)


def test_kept_rows_leave_out_a_cut_row(tmp_path: Path) -> None:
    kept = KeptRows(tmp_path / "bars.csv")
    assert kept.read() == 0
    rows = [f"{(START + minute * MINUTE).isoformat()},1,1,1,1,1\n" for minute in range(2)]
    (tmp_path / "bars.csv").write_text("open_time,open\n" + rows[0] + rows[1][:12], encoding="utf-8")
    assert kept.read() == 1
    with (tmp_path / "bars.csv").open("a", encoding="utf-8") as file:
        file.write(rows[1][12:])
    assert kept.read() == 2
    kept.close()
    assert kept.read() == 2
    assert kept.times == [START, START + MINUTE]
    kept.close()


def test_growth_is_measured_in_a_day() -> None:
    taken = samples(mb_a_day=0.4)
    assert memory_slope(taken) == pytest.approx(0.4)
    higher = [replace(each, mb=each.mb + 5 * each.start) for each in taken]
    assert memory_slope(higher) == pytest.approx(0.4)
    assert folder_ratio(samples()) == pytest.approx(1)
    slow, fast = samples()[:11], samples(folder_mb_a_day=3)[11:]
    assert folder_ratio([*slow, *fast]) > 1.5


def test_descriptors_are_compared_within_a_start() -> None:
    taken = samples()
    assert more_descriptors(taken) == 0
    grown = [replace(each, descriptors=10 + number) for number, each in enumerate(taken)]
    assert more_descriptors(grown) == 4


def test_each_wrong_count_is_a_fault(tmp_path: Path) -> None:
    session = Session(plan_of(QUICK, 1), 1, tmp_path)
    session.expected = {symbol: [START, START + 3 * MINUTE] for symbol in SYMBOLS}
    noted = {symbol: Counter({"late": 2}) for symbol in SYMBOLS}
    right: dict[str, Any] = {"bars": 2, "gaps": ["one"], "late": 2, "duplicates": 0, "unclosed": 0}

    def faults(**changed: Any) -> list[str]:
        data = [{"symbol": symbol, **right} for symbol in SYMBOLS]
        data[1] |= changed
        session.ends = [(noted, {"data": data})]
        return list(note_faults(session))

    assert faults() == []
    wrong: list[dict[str, Any]] = [{"late": 1}, {"duplicates": 1}, {"unclosed": 1}, {"bars": 3}, {"gaps": []}]
    found = list(itertools.chain.from_iterable(faults(**each) for each in wrong))
    assert len(found) == 5
    assert all(each.startswith("ETHUSDT") for each in found)


@pytest.mark.soak
def test_two_days_of_paper_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick"]) == 0

    printed = capsys.readouterr().out
    assert "6 starts" in printed
    assert "DOES NOT HOLD" not in printed
