"""SIGINT in the middle: an orderly end with everything on disk, and a run that goes on as if nothing had been."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.report import RunProgress, RunReport
from agentic_trading.desk.session.run import ReplayMissError, run_session
from agentic_trading.llm.runs import runs_in_log
from agentic_trading.llm.store import RunRecord
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.operate.log_check import audit_log
from agentic_trading.platform.errors import OptionError
from tests.flows.sessions import LOADED, calls_in, csv_of, decided, events_in, kept_in, options, ran

BTC = LOADED["btcusdt-5m"]


FAULTS = "malformed=10%,refusal=10%"  # a time-out would be waited for: on paper time is real


async def interrupted(out: Path, *, at: int, by: signal.Signals = signal.SIGINT, **changes: Any) -> RunReport:
    """Run until the process is told to end after so many bars."""
    return await run_session(options(out, **changes), on_progress=telling_to_end(at, by))


def telling_to_end(at: int, by: signal.Signals) -> Callable[[RunProgress], None]:
    came: list[int] = []

    def on_progress(progress: RunProgress) -> None:
        if progress.bars_done >= at and not came:
            came.append(progress.bars_done)
            signal.raise_signal(by)

    return on_progress


@pytest.mark.parametrize(
    ("at", "mode", "by"),
    [
        (1, "backtest", signal.SIGINT),
        (350, "backtest", signal.SIGTERM),
        pytest.param(350, "paper", signal.SIGINT, marks=pytest.mark.soak),
        (430, "paper", signal.SIGTERM),
    ],
)
async def test_interrupted_run_resumes_to_same_digest(
    at: int, mode: str, by: signal.Signals, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"data": ("btcusdt-5m",), "bars": 450, "mode": mode, "inject": FAULTS}
    report = await interrupted(tmp_path / "out", at=at, by=by, **asked)
    left, decided_so_far = await kept_in(report.log), decided(tmp_path / "out")

    resumed = await ran(tmp_path / "out", **asked, resume=True)
    whole = await ran(tmp_path / "whole", **asked)

    kept = await kept_in(report.log)
    assert (report.interrupted, resumed.interrupted) == (True, False)
    assert at <= report.data[0].bars <= at + 12  # bars without a question are one turn of the loop
    assert resumed.digest == whole.digest
    assert decided(tmp_path / "out") == decided(tmp_path / "whole")
    assert decided(tmp_path / "whole").startswith(decided_so_far)
    assert kept[: len(left)] == left
    runs = events_in(kept, "run.started", "run.ended")
    assert [(one.kind, one.body.get("resumed", one.body.get("interrupted"))) for one in runs] == [
        ("run.started", False),
        ("run.ended", True),
        ("run.started", True),
        ("run.ended", False),
    ]
    assert (runs[0], runs[-1]) == (kept[0], kept[-1])
    assert (await audit_log(tmp_path / "out")).verdict == "whole"
    assert len({one.interaction_id for one in calls_in(kept)}) == len(calls_in(kept)) == whole.attempts


async def test_interrupted_run_replays_identically(tmp_path: Path) -> None:
    report = await interrupted(tmp_path, at=700, inject=FAULTS)

    again = await replay(tmp_path, workers=8)

    assert again.identical
    assert again.bars == sum(each.bars for each in report.data) < 1200


async def test_run_waiting_for_bar_ends_immediately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin, os.fdopen(writer, "w") as sender:
        monkeypatch.setattr(sys, "stdin", stdin)
        sender.write("\n".join(csv_of(BTC[:30])) + "\n")
        sender.flush()

        async with asyncio.timeout(4):
            report = await interrupted(tmp_path, at=30, data=("-",), mode="paper", bars=None)
        monkeypatch.undo()

    assert report.interrupted
    assert report.data[0].bars == 30
    assert len(events_in(await kept_in(report.log), "analysis.skipped")) == 2


async def test_ended_run_cannot_be_resumed(tmp_path: Path) -> None:
    await ran(tmp_path, data=("btcusdt-5m",), bars=20)

    with pytest.raises(OptionError, match="--resume is run 1, which has "):
        await ran(tmp_path, data=("btcusdt-5m",), bars=20, resume=True)


async def test_ended_run_continues_with_more_bars(tmp_path: Path) -> None:
    await ran(tmp_path / "out", data=("btcusdt-5m",), bars=320)

    more = await ran(tmp_path / "out", data=("btcusdt-5m",), bars=400, resume=True)
    whole = await ran(tmp_path / "whole", data=("btcusdt-5m",), bars=400)

    assert more.digest == whole.digest
    assert orjson.loads((tmp_path / "out" / "run.json").read_bytes())["bars"] == 400
    with pytest.raises(OptionError, match="--resume is run 1, which has "):
        await ran(tmp_path / "out", data=("btcusdt-5m",), bars=400, resume=True)


async def test_resume_with_fewer_bars_is_refused(tmp_path: Path) -> None:
    await interrupted(tmp_path, at=330, data=("btcusdt-5m",))
    before = decided(tmp_path)

    with pytest.raises(OptionError, match=r"--bars is 20. Allowed: 33\d or more, because run 1 has used"):
        await ran(tmp_path, data=("btcusdt-5m",), bars=20, resume=True)

    assert decided(tmp_path) == before != b""


async def test_resume_without_recorded_bars_is_refused(tmp_path: Path) -> None:
    await ran(tmp_path, data=("btcusdt-5m",), bars=330)
    before = decided(tmp_path)
    (tmp_path / "bars-BTCUSDT.csv").unlink()

    with pytest.raises(OptionError, match=r"--resume is run 1, .* not all in its files"):
        await ran(tmp_path, data=("btcusdt-5m",), bars=400, resume=True)

    assert decided(tmp_path) == before != b""


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"data": ("ethusdt-5m",)}, "--data"),
        ({"mode": "paper"}, "--mode"),
        ({"inject": "timeout=5%"}, "--inject"),
        ({"seed": "2"}, "--seed"),
    ],
)
async def test_resume_with_other_inputs_is_refused(
    changes: dict[str, Any], option: str, tmp_path: Path
) -> None:
    await interrupted(tmp_path, at=5, data=("btcusdt-5m",))

    with pytest.raises(OptionError, match="because run 1 was started with it") as refused:
        await ran(tmp_path, **{"data": ("btcusdt-5m",), "resume": True, **changes})

    assert refused.value.option == option


async def test_recorded_run_resumes_only_from_recording(tmp_path: Path) -> None:
    await ran(tmp_path / "first", data=("btcusdt-5m",), bars=400)
    recording: dict[str, Any] = {
        "provider": "recorded",
        "recorded_from": tmp_path / "first",
        "data": ("btcusdt-5m",),
        "bars": 400,
    }
    await interrupted(tmp_path / "second", at=350, **recording)

    with pytest.raises(OptionError, match=r"--provider is 'rules'\. Allowed: 'recorded'"):
        await ran(tmp_path / "second", data=("btcusdt-5m",), bars=400, resume=True)
    resumed = await ran(tmp_path / "second", **recording, resume=True)

    assert decided(tmp_path / "second") == decided(tmp_path / "first")
    assert not resumed.interrupted


async def test_failed_run_records_an_end(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"data": ("btcusdt-5m",), "bars": 450}
    await ran(tmp_path / "first", data=("btcusdt-5m",), bars=400)
    with pytest.raises(ReplayMissError):
        await ran(tmp_path / "out", **asked, provider="recorded", recorded_from=tmp_path / "first")

    (run,), _ = runs_in_log(await verified(tmp_path / "out" / "interactions.jsonl"))

    assert run.ended is not None
    assert (run.ended.interrupted, run.ended.digest, run.ended.bars) == (True, None, ())
    assert run.ended.bars_done > 400
    assert (await audit_log(tmp_path / "out")).verdict == "whole"


async def verified(log: Path) -> tuple[RunRecord, ...]:
    """Return the starts and ends of runs in a log."""
    records = JsonlRecords(log)
    found = await records.verify()
    await records.aclose()
    return found.runs
