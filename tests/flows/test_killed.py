"""A run that is killed goes on where it was: the same digest, nothing asked or kept twice, nothing lost."""

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.canonical import utc_text
from agentic_trading.desk.session.replay import NoDigestError, replay
from agentic_trading.desk.session.report import RunReport
from agentic_trading.llm.event import Event
from agentic_trading.llm.store import Record
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.operate.log_check import audit_log
from tests.flows import dying_run
from tests.flows.sessions import (
    BARS,
    FAULTS,
    LOADED,
    SAMPLES,
    calls_in,
    csv_of,
    decided,
    events_in,
    kept_in,
    lines_of,
    on_standard_input,
    ran,
    rows_in,
)
from tests.forked import ended

BTC = LOADED["btcusdt-5m"]
ONE: dict[str, Any] = {"data": SAMPLES[:1], "bars": 450, "mode": "paper"}
STREAM: dict[str, Any] = {"data": ("-",), "mode": "paper", "bars": None}

pytestmark = [pytest.mark.timeout(60), pytest.mark.soak]  # a program of its own takes a second to start


def kill(out: Path, *, stdin: str = "", when: dict[str, Any], **changes: Any) -> None:
    """Run a session in a process of its own until it is killed."""
    options = {"data": SAMPLES, "bars": BARS, "out": out, **changes}
    run = ended(dying_run.main, {"options": options, **when}, folder=out.parent, stdin=stdin)
    assert run.code == -signal.SIGKILL, run.err


async def checked(out: Path) -> list[Record]:
    """Return the records of a log that is whole and holds nothing twice."""
    records = JsonlRecords(out / "interactions.jsonl")
    verified = await records.verify()
    await records.aclose()
    kept = await kept_in(out / "interactions.jsonl")
    ids = Counter(r.id if isinstance(r, Event) else r.interaction_id for r in kept)
    assert verified.is_intact
    assert verified.lines == len(kept)
    assert ids.most_common(1)[0][1] == 1
    return kept


def course_of(out: Path) -> list[tuple[str, str]]:
    """Return when a run has decided what, without the ids, which follow from the attempt that was answered."""
    return [(line["as_of"], line["kind"]) for line in lines_of(decided(out))]


def outcome(report: RunReport) -> dict[str, Any]:
    """Return what a report says of the session itself."""
    return report.model_dump(exclude={"log", "decision_log", "elapsed_s"})


@pytest.mark.parametrize(
    ("bar", "data"), [(2, SAMPLES), (700, SAMPLES), (340, SAMPLES[:1]), (449, SAMPLES[:1])]
)
async def test_killed_backtest_resumes_to_same_outcome(
    bar: int, data: tuple[str, ...], tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"data": data, "bars": 450, "inject": FAULTS}
    kill(tmp_path / "killed", when={"bar": bar}, **asked)
    with pytest.raises(NoDigestError, match=r"run 1 did not end\. Finish it with `run --resume"):
        await replay(tmp_path / "killed")
    [no_end] = (await audit_log(tmp_path / "killed")).findings
    played = await replay(tmp_path / "killed", allow_incomplete=True)

    resumed = await ran(tmp_path / "killed", **asked, resume=True)
    whole = await ran(tmp_path / "whole", **asked)

    assert outcome(resumed) == outcome(whole)
    assert decided(tmp_path / "killed") == decided(tmp_path / "whole")
    runs = events_in(await checked(tmp_path / "killed"), "run.started", "run.ended")
    assert [(one.kind, one.body.get("start_number")) for one in runs] == [
        ("run.started", 1),
        ("run.started", 2),
        ("run.ended", None),
    ]
    assert "without the end of run 1: its process was killed or still runs" in str(no_end)
    assert played.warnings == (str(no_end),)
    assert (await audit_log(tmp_path / "killed")).verdict == "whole"
    assert (await replay(tmp_path / "killed", workers=8)).identical


@pytest.mark.parametrize(
    ("call", "workflow"), [(1, "analysis"), (5, "analysis"), (1, "execution"), (2, "execution")]
)
async def test_killed_paper_run_retries_except_orders(call: int, workflow: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"data": SAMPLES, "bars": 450, "mode": "paper"}
    kill(tmp_path / "killed", when={"call": call, "workflow": workflow}, **asked)
    left = await kept_in(tmp_path / "killed" / "interactions.jsonl")
    answered = {one.interaction_id for one in calls_in(left)}

    resumed = await ran(tmp_path / "killed", **asked, resume=True)
    whole = await ran(tmp_path / "whole", **asked)

    kept = await checked(tmp_path / "killed")
    lost = [one for one in calls_in(kept) if one.result.in_doubt]
    assert {str(one.envelope.workflow) for one in lost} == {workflow}
    assert {one.result.next_step for one in lost} == {"final" if workflow == "execution" else "retry"}
    goes_on = course_of(tmp_path / "killed") == course_of(tmp_path / "whole")
    assert goes_on is (workflow != "execution")
    assert (await replay(tmp_path / "killed")).digest == resumed.digest != whole.digest
    assert sum(one.envelope.workflow == workflow for one in calls_in(left)) == call - 1
    assert answered < {one.interaction_id for one in calls_in(kept)}
    assert kept[: len(left)] == left
    dispatched = {event.body["reservation_id"] for event in events_in(kept, "attempt.dispatched")}
    assert dispatched == {one.result.reservation_id for one in calls_in(kept)}


async def test_run_killed_twice_still_resumes(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    kill(out, when={"bar": 400}, **ONE)
    fed = rows_in(out / "bars-BTCUSDT.csv")

    kill(out, when={"bar": 340}, **ONE, resume=True)
    with pytest.raises(NoDigestError):
        await replay(out)
    still_there = rows_in(out / "bars-BTCUSDT.csv")
    resumed = await ran(out, **ONE, resume=True)
    whole = await ran(tmp_path / "whole", **ONE)

    assert still_there == fed
    assert len(fed) == 1 + 396  # nothing was asked or recorded after the last close of an hour
    assert resumed.digest == whole.digest
    await checked(out)


async def test_killed_stream_resumes_without_losing_bars(tmp_path: Path) -> None:
    rows = csv_of(BTC[:400])
    with on_standard_input(tmp_path / "all.csv", rows):
        whole = await ran(tmp_path / "whole", **STREAM)
    calls = [line for line in lines_of(decided(tmp_path / "whole")) if line["kind"] == "call"]
    sent = 1 + [utc_text(bar.close_time) for bar in BTC].index(calls[1]["as_of"])

    stdin = "".join(f"{row}\n" for row in rows[: sent + 1])
    kill(tmp_path / "killed", stdin=stdin, when={"call": 2, "workflow": "analysis"}, **STREAM)
    with on_standard_input(tmp_path / "rest.csv", rows[sent + 1 :]):
        resumed = await ran(tmp_path / "killed", resume=True, **STREAM)

    assert course_of(tmp_path / "killed") == course_of(tmp_path / "whole")
    assert (await replay(tmp_path / "killed")).digest == resumed.digest
    assert resumed.data == whole.data
    assert rows_in(tmp_path / "killed" / "bars-BTCUSDT.csv") == rows


async def test_torn_line_is_set_aside_on_resume(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    kill(out, when={"bar": 400}, **ONE)
    log = out / "interactions.jsonl"
    tear(log)

    resumed = await ran(out, **ONE, resume=True)
    whole = await ran(tmp_path / "whole", **ONE)

    assert resumed.digest == whole.digest
    assert list(out.glob("interactions.jsonl.torn-*"))
    await checked(out)


def tear(log: Path) -> None:
    """Cut the last line of a log in its middle."""
    content = log.read_bytes()
    last = content.rindex(b"\n", 0, -1) + 1
    log.write_bytes(content[: (last + len(content)) // 2])
