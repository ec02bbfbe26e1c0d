"""The benchmark of long sessions takes its slope where memory has settled, and fails on what is promised."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.session import trading
from benchmarks.long_session import (
    JUDGED_FROM,
    PACE_FROM,
    YEAR,
    Cost,
    Sample,
    cpu_of,
    holds,
    main,
    minutes_hold,
    pace,
    resident_mb,
    slope,
    table,
    write_bars,
)
from benchmarks.peers.contender import ROOT


def samples(mb: Callable[[int], float], cpu_s: Callable[[int], float]) -> list[Sample]:
    return [Sample(second, mb(second), cpu_s(second)) for second in range(1, 101)]


def test_slope_ignores_initial_growth() -> None:
    taken = samples(lambda second: 100.0 + min(second, 20) * 5 + second * 0.5, float)

    assert slope(taken, 100_000) == pytest.approx(50, rel=0.01)
    assert slope(taken[:1], 100_000) == 0


def test_pace_compares_last_and_first_quarter() -> None:
    assert pace(samples(float, lambda second: 5 + second * 0.3)) == pytest.approx(1)
    assert pace(samples(float, lambda second: second + 2 * max(0, second - 75))) == pytest.approx(3, rel=0.05)
    assert pace(samples(float, float)[:5]) == 0


@pytest.mark.parametrize(
    ("bars", "peak_mb", "slope_mb", "steady"),
    [
        (YEAR, 249, 39, 1.2),
        (JUDGED_FROM - 1, 249, 900, 1.2),
        (PACE_FROM - 1, 249, 900, 9),
        (5 * YEAR, 399, 39, 1.2),
    ],
)
def test_cost_below_limit_keeps_promise(bars: int, peak_mb: float, slope_mb: float, steady: float) -> None:
    assert Cost("run", bars, peak_mb, slope_mb, 1, steady).is_kept


@pytest.mark.parametrize(
    ("bars", "peak_mb", "slope_mb", "steady"),
    [(YEAR, 250, 39, 1), (YEAR, 249, 40, 1), (YEAR, 249, 39, 1.21), (5 * YEAR, 400, 39, 1)],
)
def test_cost_at_limit_breaks_promise(bars: int, peak_mb: float, slope_mb: float, steady: float) -> None:
    assert not Cost("run", bars, peak_mb, slope_mb, 1, steady).is_kept


def test_ended_process_measures_as_zero() -> None:
    assert min(resident_mb(os.getpid())) > 10
    assert cpu_of(os.getpid()) > 0
    assert (*resident_mb(2**22 + 1), cpu_of(2**22 + 1)) == (0, 0, 0)


async def test_generated_bars_have_no_gap(tmp_path: Path) -> None:
    path = tmp_path / "BTCUSDT.csv.gz"

    await asyncio.to_thread(write_bars, path, 2_600)

    items = [item async for item in trading.file_feed(path, symbol="BTCUSDT")]
    assert len(items) == 2_600
    assert all(isinstance(item, Bar) for item in items)


@pytest.mark.soak
def test_short_session_and_replay_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bars", "400", "--before", str(ROOT)]) == 0

    printed = capsys.readouterr().out
    for name in ("run", "replay", "run, before", "replay, before"):
        assert f"{name:<14}      400" in printed
    assert "holds" in printed
    assert "of the CPU before" in printed


def test_table_has_a_line_per_process() -> None:
    assert table([Cost("run", YEAR, 164.2, 13.04, 42.0, 1.0432)]).splitlines()[1].split() == [
        "run", "105,120", "164.2", "13.0", "42.0", "400", "1.04",
    ]  # fmt: skip


@pytest.mark.soak
def test_long_replay_pace_is_checked_against_short(capsys: pytest.CaptureFixture[str]) -> None:
    short, *long = (
        Cost("replay", bars, 90, 9, cpu_s) for bars, cpu_s in ((YEAR // 4, 10.0), (YEAR, 47.9), (YEAR, 48.1))
    )

    assert [holds([short, each]) for each in long] == [True, False]
    assert capsys.readouterr().out.count("DOES NOT HOLD") == 1


@pytest.mark.parametrize(
    ("cpu_s", "peak_mb", "kept"), [(13.0, 120.0, True), (13.1, 120.0, False), (13.0, 121.0, False)]
)
def test_month_of_minutes_is_limited_beside_make_run(cpu_s: float, peak_mb: float, *, kept: bool) -> None:
    minutes = Cost("minutes", 1_000, peak_mb, 0, cpu_s)
    replayed = Cost("their replay", 1_000, 100, 0, 1)

    assert minutes_hold([minutes, replayed, Cost("make run", 100, 110, 0, 1)]) is kept
    assert minutes_hold([replayed, minutes, Cost("make run", 100, 110, 0, 1)]) is (peak_mb <= 120)
