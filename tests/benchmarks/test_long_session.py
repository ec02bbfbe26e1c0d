"""The benchmark of long sessions takes its slope where memory has settled, and fails on what is promised."""

import asyncio
import os
from pathlib import Path

import pytest

from agentic_trading.app import trading
from agentic_trading.desk.market.bar import Bar
from benchmarks.long_session import JUDGED_FROM, YEAR, Memory, main, resident_mb, slope, table, write_bars


def test_the_slope_leaves_out_what_fills_once() -> None:
    samples = [(second, 100.0 + min(second, 20) * 5 + second * 0.5) for second in range(1, 101)]

    assert slope(samples, 100_000) == pytest.approx(50, rel=0.01)
    assert slope(samples[:1], 100_000) == 0


@pytest.mark.parametrize(("bars", "peak_mb", "slope_mb"), [(YEAR, 399, 39), (JUDGED_FROM - 1, 399, 900)])
def test_a_peak_and_a_slope_below_the_promise_keep_it(bars: int, peak_mb: float, slope_mb: float) -> None:
    assert Memory("run", bars, peak_mb, slope_mb, 1).is_kept


@pytest.mark.parametrize(("peak_mb", "slope_mb"), [(400, 39), (399, 40)])
def test_a_peak_or_a_slope_at_the_promise_breaks_it(peak_mb: float, slope_mb: float) -> None:
    assert not Memory("run", YEAR, peak_mb, slope_mb, 1).is_kept


def test_a_process_that_is_gone_holds_nothing() -> None:
    assert min(resident_mb(os.getpid())) > 10
    assert resident_mb(2**22 + 1) == (0, 0)


async def test_the_shipped_bars_follow_each_other_without_a_hole(tmp_path: Path) -> None:
    path = tmp_path / "BTCUSDT.csv.gz"

    await asyncio.to_thread(write_bars, path, 2_600)

    items = [item async for item in trading.file_feed(path, symbol="BTCUSDT")]
    assert len(items) == 2_600
    assert all(isinstance(item, Bar) for item in items)


def test_a_short_session_and_its_replay_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bars", "400"]) == 0

    printed = capsys.readouterr().out
    assert "run           400" in printed
    assert "replay        400" in printed
    assert "holds" in printed


def test_the_table_has_a_line_for_each_process() -> None:
    assert table([Memory("run", YEAR, 164.2, 13.04, 170)]).splitlines()[1].split() == [
        "run", "105,120", "164.2", "13.0", "170",
    ]  # fmt: skip
