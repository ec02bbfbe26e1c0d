"""Agents of users on every path of a session: stocks, standard input, a bus, filling by a model, configured rules, and kills."""

import asyncio
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.desk import Agent
from agentic_trading.desk.session.options import RunOptions, load_run_config
from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.run import run_session
from agentic_trading.operate.session_folder import SessionFolder
from tests.desk.agents.trading import Asking, Filling, Holding, Rotating, named, ran_with
from tests.flows import dying_run
from tests.flows.fleet import command, make_topics, priced_model, sent_by
from tests.flows.sessions import LOADED, calls_in, csv_of, decided, kept_in, lines_of
from tests.flows.test_paper import send, stdin_is_a_pipe
from tests.forked import ended
from tests.worker_processes import RunningWorker, worker

BTC = LOADED["btcusdt-5m"]
ONE: dict[str, Any] = {"data": ("btcusdt-5m",)}

pytestmark = pytest.mark.timeout(120)


async def replays_of(out: Path, agent: type[Agent]) -> list[bool]:
    """Return whether replays with 1 and with 8 workers are identical."""
    return [(await replay(out, workers=workers, agent=await named(agent))).identical for workers in (1, 8)]


async def test_own_agent_holds_stocks(tmp_path: Path) -> None:
    report = await ran_with(tmp_path, Holding, data=("sp500-sample",), bars=61)

    assert len(report.data) == 50
    assert report.fills >= 3
    assert report.decisions["agent"] == {"accepted": report.attempts}
    assert len(report.open_positions) == 3
    assert await replays_of(tmp_path, Holding) == [True, True]


async def test_bars_on_standard_input_give_the_decisions_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "btcusdt.csv"
    await asyncio.to_thread(file.write_text, "\n".join(csv_of(BTC[:200])), encoding="utf-8")
    paper: dict[str, Any] = {"mode": "paper", "bars": None}
    from_file = await ran_with(tmp_path / "file", Asking, data=(str(file),), **paper)

    with stdin_is_a_pipe() as writer:
        sending = Thread(
            target=send, args=(writer, "".join(f"{row}\n" for row in csv_of(BTC[:200])).encode())
        )
        sending.start()
        try:
            streamed = await ran_with(tmp_path / "stream", Asking, data=("-",), **paper)
        finally:
            sys.stdin.close()
            sending.join()

    assert streamed.fills > 0
    assert streamed.digest == from_file.digest
    assert await replays_of(tmp_path / "stream", Asking) == [True, True]


async def test_model_fills_the_orders_of_an_own_agent(tmp_path: Path) -> None:
    report = await ran_with(tmp_path, Filling, **ONE)
    plain = await ran_with(tmp_path / "plain", Asking, **ONE)

    assert report.fills > 0
    asked = [
        {call.envelope.workflow for call in calls_in(await kept_in(each.log))} for each in (report, plain)
    ]
    assert asked == [{"analysis", "execution"}, {"analysis"}]
    assert await replays_of(tmp_path, Filling) == [True, True]


ROW = """[[providers.mine.models]]
model = "rules-1"
price = { input = 10, output = 100 }
context_tokens = 200000
max_output_tokens = 16000
source = "a test"
checked_on = 2026-11-22
"""
RULES = '[models]\nanalysis = "{name}/rules-1"\n\n[providers.{name}]\n{adapter}'


@pytest.mark.parametrize(
    ("name", "adapter", "inject"),
    [("rules", "", ""), ("mine", f'adapter = "rules"\n{ROW}', ""), ("rules", "", "refusal=100%")],
)
async def test_configured_rules_use_the_offline_answers(
    name: str, adapter: str, inject: str, tmp_path: Path
) -> None:
    file = tmp_path / "desk.toml"
    await asyncio.to_thread(file.write_text, RULES.format(name=name, adapter=adapter), encoding="utf-8")
    config = await asyncio.to_thread(load_run_config, file)
    options = RunOptions(
        config=config, provider="config", out=tmp_path / "out", bars=150, agent=await named(Asking), inject=inject, **ONE
    )  # fmt: skip

    report = await run_session(options, on_progress=lambda _progress: None)

    lines = [line for line in lines_of(decided(tmp_path / "out")) if line["kind"] == "call"]
    assert lines
    if inject:
        assert report.decisions == {}
    else:
        assert {json.dumps(line["answer"]) for line in lines} == {'{"side": "long", "strength": 0.5}'}
    assert await replays_of(tmp_path / "out", Asking) == [True, True]


OWN = priced_model("analysis", "tests.desk.agents.trading:answering")


@pytest.fixture
def own_fleet(config: Path, tmp_path: Path) -> Iterator[tuple[RunningWorker, RunningWorker]]:
    """Give two workers whose provider answers the agent."""
    config.write_text(OWN + config.read_text("utf-8").replace('mode = "backtest"', ""), encoding="utf-8")
    config.write_text('mode = "backtest"\n' + config.read_text("utf-8"), encoding="utf-8")
    make_topics(config)
    words = ("--config", str(config))
    with worker(tmp_path / "logs", "w1", *words) as one, worker(tmp_path / "logs", "w2", *words) as other:
        one.is_ready()
        other.is_ready()
        yield one, other


def calls_over_bus(config: Path, out: Path, agent: str, *, bars: int) -> list[Mapping[str, Any]]:
    """Run an agent whose questions go over the bus. Return the calls of its decision log."""
    code = command(
        "run", "--data", "btcusdt-5m", "--bars", bars, "--config", config, "--agent", agent, "--budget-usd", 1,
        "--record", "--yes", "--out", out,
    )  # fmt: skip

    assert code == ExitCode.DONE
    return [line for line in lines_of(decided(out)) if line["kind"] == "call"]


@pytest.mark.parametrize("bus", ["redis"], indirect=True)
def test_workers_of_a_bus_answer_an_own_agent(
    config: Path, own_fleet: tuple[RunningWorker, RunningWorker], tmp_path: Path
) -> None:
    out, agent = tmp_path / "session", "tests.desk.agents.trading:Asking"

    calls = calls_over_bus(config, out, agent, bars=150)

    assert {line["verdict"] for line in calls} == {"accepted"}
    sent = [*sent_by(tmp_path / "logs" / "w1"), *sent_by(tmp_path / "logs" / "w2")]
    assert len(sent) == len(calls) > 0
    assert any(line["kind"] == "order.filled" for line in lines_of(decided(out)))
    assert command("replay", "run", out, "--agent", agent) == ExitCode.DONE
    assert [running.ends() for running in own_fleet] == [0, 0]


@pytest.mark.parametrize("bus", ["redis"], indirect=True)
def test_replay_of_a_bus_run_repeats_answers_that_the_client_has_rejected(
    config: Path, own_fleet: tuple[RunningWorker, RunningWorker], tmp_path: Path
) -> None:
    """Workers of a bus have no class of the user, so that they do not ask again."""
    out, agent = tmp_path / "session", "tests.desk.agents.trading:Doubting"

    calls = calls_over_bus(config, out, agent, bars=60)

    assert {(line["verdict"], line["attempts"]) for line in calls} == {("parsing_error", 1)}
    assert command("replay", "run", out, "--agent", agent) == ExitCode.DONE
    assert [running.ends() for running in own_fleet] == [0, 0]


@pytest.mark.parametrize("agent", [Asking, Rotating, Filling])
async def test_twice_killed_run_ends_with_the_same_decision_log(agent: type[Agent], tmp_path: Path) -> None:
    terms: dict[str, Any] = {
        "data": ("btcusdt-5m", "ethusdt-5m"),
        "bars": 300,
        "inject": "malformed=20%,refusal=10%",
    }
    out, own = tmp_path / "killed", await named(agent)
    for bar, resume in ((190, False), (410, True)):
        options = {**terms, "out": out, "agent": own, "resume": resume}
        killed = await asyncio.to_thread(
            ended, dying_run.main, {"options": options, "bar": bar}, folder=tmp_path
        )
        assert killed.code == -signal.SIGKILL, killed.err

    report = await ran_with(out, agent, **terms, resume=True)
    whole = await ran_with(tmp_path / "whole", agent, **terms)

    assert decided(out) == decided(tmp_path / "whole")
    assert (report.digest, report.fills) == (whole.digest, whole.fills)
    manifest = await asyncio.to_thread(SessionFolder(out).read_manifest)
    assert manifest.starts == 3
    assert await replays_of(out, agent) == [True, True]
