"""A run read from its record has the figures of its report, also if it is not complete."""

import shutil
import signal
from decimal import Decimal
from pathlib import Path
from threading import Thread

import pytest

from agentic_trading.desk.instrument import ZERO
from agentic_trading.desk.report.figures import round_trips
from agentic_trading.desk.report.record import RunOnRecord, cost_by, read_run
from agentic_trading.desk.session.report import RunProgress, RunReport
from agentic_trading.desk.session.run import run_session
from agentic_trading.llm.errors import StoreError
from agentic_trading.operate.session_folder import SessionFolder
from agentic_trading.platform.errors import OptionError
from tests.flows.sessions import options, ran

pytestmark = pytest.mark.timeout(180)  # whole sessions are run, one of 50 stocks

ONE = {"data": ("btcusdt-5m",), "bars": 700}
STOPPED_AFTER = 620


def comparable(report: RunReport) -> RunReport:
    """Return a report without the wall time, which no record has."""
    return report.model_copy(update={"elapsed_s": 0.0})


def check_sums(run: RunOnRecord) -> None:
    """Check that the parts of a page add up to its totals."""
    assert sum((trip.pnl for trip in round_trips(run)), ZERO) == run.report.pnl
    assert run.points[-1].equity == run.report.equity_end
    assert run.points[-1].market_now - run.report.equity_start == run.report.market_now_pnl
    held = run.points[-1].held - run.report.equity_start
    assert held.quantize(Decimal("0.01")) == run.report.buy_and_hold_pnl
    assert sum(cost_by(run.attempts, "trace_id").values()) == run.report.cost_nusd


@pytest.mark.parametrize("name", ["recorded", "faults", "two symbols", "portfolio"])
def test_recorded_run_equals_its_report(
    name: str, reports: dict[str, RunReport], runs: dict[str, RunOnRecord]
) -> None:
    report, run = reports[name], runs[name]

    assert run.report == comparable(report)
    assert report.fills > 0
    assert run.log.verdict == "whole"
    check_sums(run)


async def test_interrupted_run_equals_its_report(tmp_path: Path) -> None:
    def stop(progress: RunProgress) -> None:
        if progress.bars_done == STOPPED_AFTER:
            signal.raise_signal(signal.SIGINT)

    report = await run_session(options(tmp_path, **ONE), on_progress=stop)
    run = await read_run(tmp_path)

    assert report.interrupted
    assert run.report == comparable(report)
    check_sums(run)


async def test_resumed_run_equals_its_report(tmp_path: Path) -> None:
    await ran(tmp_path, **ONE | {"bars": 500})
    report = await ran(tmp_path, **ONE, resume=True)

    run = await read_run(tmp_path)

    assert run.report == comparable(report)
    assert run.manifest.starts == 2
    check_sums(run)


async def test_runs_of_one_folder_are_apart(tmp_path: Path) -> None:
    first = await ran(tmp_path, **ONE | {"bars": 500})
    second = await ran(tmp_path, **ONE)

    assert (await read_run(tmp_path, run=1)).report == comparable(first)
    assert (await read_run(tmp_path)).report == comparable(second)
    with pytest.raises(OptionError, match="a run from 1 to 2"):
        await read_run(tmp_path, run=3)


async def test_growing_run_is_read_to_complete_slice(tmp_path: Path) -> None:
    folder, copied = tmp_path / "run", tmp_path / "copied"

    def copy(progress: RunProgress) -> None:
        if progress.bars_done == STOPPED_AFTER:
            # The run waits for it, so that the copy is of one moment.
            copying = Thread(target=shutil.copytree, args=(folder, copied))
            copying.start()
            copying.join()

    report = await run_session(options(folder, **ONE, mode="paper"), on_progress=copy)
    growing, whole = await read_run(copied), await read_run(folder)

    assert growing.log.verdict == "cut off"
    assert growing.manifest.digest is None
    assert 0 < len(growing.points) < len(whole.points)
    assert list(growing.points) == list(whole.points[: len(growing.points)])
    assert list(growing.decisions) == list(whole.decisions[: len(growing.decisions)])
    assert sum((trip.pnl for trip in round_trips(growing)), ZERO) == growing.report.pnl
    assert whole.report == comparable(report)


@pytest.mark.parametrize("line", [40, 150])
async def test_broken_log_is_read_to_broken_line(line: int, faulty: RunOnRecord, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(faulty.folder.path, tmp_path / "broken"))
    log = SessionFolder(broken).log
    lines = log.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"trace_id":"', b'"trace_id":"x', 1)
    log.write_bytes(b"".join(lines))

    run = await read_run(broken)

    assert (run.log.verdict, run.log.lines) == ("broken", line)
    assert 0 < len(run.points) < len(faulty.points)
    assert list(run.points) == list(faulty.points[: len(run.points)])


async def test_run_without_complete_slice_has_no_points(folder: Path, tmp_path: Path) -> None:
    killed = Path(shutil.copytree(folder, tmp_path / "killed"))
    log = SessionFolder(killed).log
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))

    run = await read_run(killed)

    assert (run.points, run.fills, run.report.attempts) == ([], [], 0)
    assert run.report.performance is None


async def test_missing_bars_are_an_error(folder: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(folder, tmp_path / "bare"))
    SessionFolder(bare).bars(1, "BTCUSDT").unlink()

    with pytest.raises(StoreError, match=r"bars-BTCUSDT\.csv.* is not there\. Replays and reports need"):
        await read_run(bare)
