"""Orders of an operator come from another process in the middle of a run, and hold within a second."""

import asyncio
from datetime import timedelta
from decimal import Decimal
from itertools import groupby
from pathlib import Path

import pytest

from agentic_trading.desk.session.replay import replay
from agentic_trading.llm.errors import FailureKind
from agentic_trading.operate.budgets import (
    BudgetLocationOptions,
    halt_command,
    limit_command,
    read_status,
    resume_command,
)
from agentic_trading.platform import port_adapters
from tests.flows.overseen import Overseen, Waiting, agentic_trading, rehearsal
from tests.flows.sessions import SAMPLES, calls_in, events_in, kept_in, ran

pytestmark = pytest.mark.timeout(60)  # a program of its own takes a second to start

A_SECOND = timedelta(seconds=1)
AFTER_THE_FIRST_CALLS = 360
NOBODY = {"agent": None, "workflow": None, "model": None}


async def test_halt_cancels_running_and_refuses_new_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules, out = Waiting(monkeypatch, 3), tmp_path / "out"
    async with asyncio.TaskGroup() as group:
        run = group.create_task(
            ran(out, data=SAMPLES[:1], bars=420, mode="paper", prices_file=rehearsal(tmp_path))
        )
        await rules.is_asked.wait()
        await agentic_trading("halt", "--store", out, "--why", "it trembles")
    records = await kept_in(out / "interactions.jsonl")
    report, calls = run.result(), calls_in(records)

    ended, *after = [call.result for call in calls[2:]]
    (action,) = [event for event in events_in(records, "operator.commanded") if event.body["kind"] == "halt"]
    assert rules.begun == 3
    assert rules.cancelled_at is not None
    assert rules.cancelled_at - action.time < A_SECOND
    assert (action.body["after"], action.body["why"]) == ("halted", "it trembles")
    assert ended.failure is not None
    assert (ended.failure.category, ended.in_doubt) == (FailureKind.HALTED, True)
    assert ended.cost_nusd == ended.reserved_nusd > 0
    assert "it trembles" in ended.failure.description
    assert after
    assert {one.failure.category for one in after if one.failure} == {FailureKind.HALTED}
    assert all(one.dispatched_at is None and one.cost_nusd == 0 for one in after)
    assert report.no_decisions["analysis"] == {"halted": 1 + len(after)}
    monkeypatch.undo()
    assert (await replay(out, workers=8)).identical


async def test_parked_call_resumes_with_raised_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, out = Waiting(monkeypatch, 1, 2), tmp_path / "out"

    async def somebody_is_parked() -> None:
        while not (await read_status(BudgetLocationOptions(out), "default")).parked:  # noqa: ASYNC110 - told twice a second
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        run = group.create_task(
            ran(out, bars=360, mode="paper", budget_usd=Decimal("0.06"), prices_file=rehearsal(tmp_path))
        )
        await rules.is_asked.wait()
        rules.is_asked.clear()
        await somebody_is_parked()
        told = await agentic_trading("budget", "show", "--store", out)
        await agentic_trading("budget", "set", "tenant", "*", "--usd", "5", "--store", out)
        await rules.is_asked.wait()  # the second one, while the first is still under way
        rules.may_answer.set()
    report = run.result()

    actions = events_in(await kept_in(report.log), "operator.commanded")
    assert "Queued for headroom: 1" in told
    assert [action.body["after"] for action in actions] == ["0.06 USD", "5 USD"]
    assert report.no_decisions == {}
    monkeypatch.undo()
    assert (await replay(out, workers=8)).identical


async def test_raised_limit_ends_budget_refusals(tmp_path: Path) -> None:
    async def more(session: Overseen) -> None:
        await session.order(
            limit_command("tenant", "*", "none", usd="5", tokens=None, calls=None, remove=False)
        )

    session = Overseen(
        BudgetLocationOptions(tmp_path),
        {AFTER_THE_FIRST_CALLS: more},
        {"ledger": port_adapters.budget_ledger(60_000_000), "workers": 1},
    )
    played = await session.play()

    results = [call.result for call in calls_in(await played.records())]
    kinds = [result.failure.category if result.failure else None for result in results]
    assert FailureKind.BUDGET_EXHAUSTED in kinds
    assert kinds[-1] is None
    refusals = [number for number, kind in enumerate(kinds) if kind is FailureKind.BUDGET_EXHAUSTED]
    assert None not in kinds[refusals[0] : refusals[-1]]


async def test_halt_refuses_calls_until_resume(tmp_path: Path) -> None:
    async def halt(session: Overseen) -> None:
        await session.order(halt_command("default", **NOBODY))

    async def resume(session: Overseen) -> None:
        await session.order(resume_command("default", **NOBODY))

    session = Overseen(
        BudgetLocationOptions(tmp_path), {AFTER_THE_FIRST_CALLS: halt, AFTER_THE_FIRST_CALLS + 30: resume}
    )
    played = await session.play()

    results = [call.result for call in calls_in(await played.records())]
    halts = [bool(one.failure and one.failure.category is FailureKind.HALTED) for one in results]
    assert [is_halted for is_halted, _ in groupby(halts)] == [False, True, False]
    assert [
        (event.body["kind"], event.body["after"])
        for event in events_in(await played.records(), "operator.commanded")
    ] == [("halt", "halted"), ("resume", "running")]


@pytest.mark.parametrize(
    ("scope", "stopped"),
    [
        ({"workflow": "execution"}, {"execution"}),
        ({"agent": "cmt-analyst"}, {"analysis"}),
        ({"model": "scripted/*"}, {"analysis"}),
        ({"model": "somebody/else"}, set[str]()),
    ],
)
async def test_halt_stops_only_the_given_scope(
    scope: dict[str, str], stopped: set[str], tmp_path: Path
) -> None:
    async def halt(session: Overseen) -> None:
        await session.order(halt_command("default", **{**NOBODY, **scope}))

    played = await Overseen(BudgetLocationOptions(tmp_path), {1: halt}, {"most_bars": 480}).play()

    calls = calls_in(await played.records())
    refused = {
        call.envelope.workflow
        for call in calls
        if call.result.failure and call.result.failure.category is FailureKind.HALTED
    }
    assert refused == stopped
    assert all(call.result.failure for call in calls if call.envelope.workflow in stopped)
