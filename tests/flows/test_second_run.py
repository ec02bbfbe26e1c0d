"""A second run into a folder is run 2: it continues the log, and both can be played again."""

from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.report import RunReport
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from tests.flows.sessions import FAULTS, SAMPLES, calls_in, decided, kept_in, ran

ONE = {"data": SAMPLES[:1], "bars": 450}


async def verified_lines(folder: Path) -> int:
    """Return how many lines a log has whose chain is whole."""
    records = JsonlRecords(folder / "interactions.jsonl")
    verified = await records.verify()
    await records.aclose()
    assert verified.is_intact
    return verified.lines


@pytest.mark.parametrize(
    "second",
    [
        {},
        {"inject": FAULTS},
        {"data": SAMPLES[1:]},
        pytest.param({"mode": "paper"}, marks=pytest.mark.soak),
        pytest.param({"bars": 400}, marks=pytest.mark.soak),
    ],
    ids=["the same again", "with faults", "other data", "on paper", "fewer bars"],
)
async def test_second_run_continues_log_and_replays(second: dict[str, Any], tmp_path: Path) -> None:
    first = await ran(tmp_path, **ONE)
    before = (tmp_path / "interactions.jsonl").read_bytes()
    lines = await verified_lines(tmp_path)

    then = await ran(tmp_path, **{**ONE, **second})

    assert (first.run_number, then.run_number) == (1, 2)
    assert (tmp_path / "interactions.jsonl").read_bytes().startswith(before)
    assert await verified_lines(tmp_path) == len(await kept_in(tmp_path / "interactions.jsonl")) > lines
    for run, report in ((1, first), (2, then)):
        again = await replay(tmp_path, run=run, workers=8)
        assert again.identical
        assert again.digest == report.digest
        assert (again.misses, again.unused) == (0, 0)


async def test_newest_run_is_the_default(tmp_path: Path) -> None:
    await ran(tmp_path, **ONE)
    await ran(tmp_path, **{**ONE, "bars": 400})

    more = await ran(tmp_path, **ONE, resume=True)

    assert more.run_number == 2
    assert (await replay(tmp_path)).run_number == 2
    assert (await replay(tmp_path, run=1)).identical


async def test_runs_report_separate_calls_and_same_figures(tmp_path: Path) -> None:
    reports = [await ran(tmp_path, **ONE) for _ in range(2)]

    assert reports[0].attempts == reports[1].attempts
    assert reports[0].session_id != reports[1].session_id
    assert decided(tmp_path, 1) != decided(tmp_path, 2)
    assert figures(reports[0]) == figures(reports[1])
    assert len(calls_in(await kept_in(reports[0].log))) == 2 * reports[0].attempts


def figures(report: RunReport) -> dict[str, Any]:
    """Return what two runs over the same bars have in common: all but names, places and times."""
    names = {"session_id", "run_number", "decision_log", "digest", "elapsed_s", "first_fill_id"}
    return report.model_dump(exclude=names)


async def test_recording_played_twice_replays_both_runs(tmp_path: Path) -> None:
    await ran(tmp_path / "live", **ONE)
    recording = {**ONE, "provider": "recorded", "recorded_from": tmp_path / "live"}

    reports = [await ran(tmp_path / "again", **recording) for _ in range(2)]

    assert reports[0].attempts == reports[1].attempts > 0
    assert [(await replay(tmp_path / "again", run=run)).identical for run in (1, 2)] == [True, True]


async def test_session_may_replay_into_own_folder(tmp_path: Path) -> None:
    live = await ran(tmp_path, **ONE)

    again = await ran(tmp_path, **ONE, provider="recorded", recorded_from=tmp_path)

    assert again.run_number == 2
    assert figures_of_trading(again) == figures_of_trading(live)
    assert [(await replay(tmp_path, run=run)).identical for run in (1, 2)] == [True, True]


def figures_of_trading(report: RunReport) -> tuple[Any, ...]:
    return report.attempts, report.decisions, report.intents, report.orders, report.fills, report.pnl
