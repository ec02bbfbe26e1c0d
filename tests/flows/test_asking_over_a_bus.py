"""A question whose calls are made by workers of a bus: the same answer as in one process, paid once however often it is killed."""

import json
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from agentic_trading.cli.exits import ExitCode
from tests import kafka_server
from tests.flows.dying_call import run_program
from tests.flows.fleet import (
    KAFKA_IN_SOAK,
    NO_KEYS,
    ON_BOTH,
    attempts_in,
    command,
    make_topics,
    records_in,
    sent_by,
)
from tests.forked import ended
from tests.redis_server import RealServer
from tests.worker_processes import CLOCK, WITHIN_S, RunningWorker, worker

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)
QUESTION = "Why did spend rise?"
CALLS = 5
"""One for the question, three for its parts, one that joins them."""
BY_RULES = ("--max-cost", "1", "--provider", "rules")


@pytest.fixture(scope="module")
def asked_about(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a session; tests ask about copies of it."""
    folder = tmp_path_factory.mktemp("asked") / "session"
    assert command("run", "--data", "btcusdt-5m", "--bars", "300", "--out", folder) == ExitCode.DONE
    return folder


@pytest.fixture
def session(asked_about: Path, tmp_path: Path) -> Path:
    """Return the folder of a session that may be written to."""
    return shutil.copytree(asked_about, tmp_path / "session")


def asked(session: Path) -> list[str]:
    """Return the envelopes that were requested over a bus, each as often as that was put on record."""
    return [
        record["body"]["envelope"]["envelope_id"]
        for record in records_in(session)
        if record.get("kind") == "call.requested"
    ]


def trace_in(session: Path) -> str:
    found = [one["trace_id"] for one in records_in(session) if one.get("kind") == "recursion.frame_opened"]
    return str(found[0])


def until(file: Path, says: str) -> str:
    """Wait until a file says it, and return all that it says."""
    pause, end = threading.Event(), CLOCK.monotonic() + WITHIN_S
    while says not in (said := file.read_text("utf-8") if file.exists() else ""):
        assert CLOCK.monotonic() < end, said
        pause.wait(0.02)
    return said


def page(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


@KAFKA_IN_SOAK
def test_bus_answer_matches_in_process_answer(
    config: Path,
    fleet: tuple[RunningWorker, RunningWorker],
    session: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone = shutil.copytree(session, tmp_path / "alone")
    assert command("ask", QUESTION, "--store", alone, *BY_RULES, "--json") == ExitCode.DONE
    here = page(capsys)

    code = command("ask", QUESTION, "--store", session, *BY_RULES, "--config", config, "--json")

    said = capsys.readouterr()
    elsewhere = json.loads(said.out)
    assert code == ExitCode.DONE
    assert elsewhere["conclusion"] == here["conclusion"]
    assert [frame["state"] for frame in elsewhere["frames"]] == ["concluded"] * 4
    assert "make the calls" in said.err
    assert len(asked(session)) == CALLS
    sent = [*sent_by(tmp_path / "logs" / "w1"), *sent_by(tmp_path / "logs" / "w2")]
    assert len(sent) == CALLS
    assert set(sent) < set(attempts_in(session))
    assert command("audit", "verify", session) == ExitCode.DONE
    assert command("replay", "run", session) == ExitCode.DONE
    assert [running.ends() for running in fleet] == [0, 0]


@pytest.mark.soak
@ON_BOTH
def test_killed_question_pays_each_call_once(
    config: Path,
    fleet: tuple[RunningWorker, RunningWorker],
    session: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bus = "kafka" if "kafka:" in config.read_text("utf-8") else "redis"
    words = ("ask", "--store", str(session), "--config", str(config))
    steps = [
        ("requested", 1), (f"published to {bus}", 1), ("received", 1), ("replied", 1), (f"published to {bus}", 3),
        ("requested", 2), ("on_record", 1), ("received", 1),
    ]  # fmt: skip

    for number, step in enumerate(steps):
        asking = ("--resume", trace_in(session)) if number else (QUESTION, *BY_RULES)
        killed = ended(run_program, (*words, *asking), (*step, ""), folder=tmp_path, env=NO_KEYS)
        assert killed.code == -signal.SIGKILL, (step, killed.out, killed.err)
    code = command(*words, "--resume", trace_in(session), "--json")

    shown = page(capsys)
    assert code == ExitCode.DONE
    assert [frame["state"] for frame in shown["frames"]] == ["concluded"] * 4
    sent = [*sent_by(tmp_path / "logs" / "w1"), *sent_by(tmp_path / "logs" / "w2")]
    assert len(set(sent)) == len(sent) == CALLS
    assert len(asked(session)) == len(set(asked(session))) == CALLS
    assert [running.ends() for running in fleet] == [0, 0]


@pytest.mark.parametrize("bus", ["redis"], indirect=True)
def test_forgotten_answer_is_read_from_worker_logs(
    config: Path, redis: RealServer, session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topics(config)
    words = ("ask", "--store", str(session), "--config", str(config))
    with worker(tmp_path / "logs", "w1", "--config", str(config)) as first:
        first.is_ready()
        asking = (*words, QUESTION, *BY_RULES)
        killed = ended(run_program, asking, ("replied", 2, ""), folder=tmp_path, env=NO_KEYS)
        assert first.ends() == 0
    with Redis.from_url(redis.url) as server:  # as it is after 15 minutes
        assert server.delete(*server.scan_iter("*:last:*")) == 2

    with worker(tmp_path / "logs", "w2", "--config", str(config)) as second:
        second.is_ready()
        resumed = (*words, "--resume", trace_in(session))
        lost = command(*resumed)
        said = capsys.readouterr().err
        found = command(*resumed, "--answers-from", tmp_path / "logs" / "w1")

    assert (killed.code, lost, found) == (-signal.SIGKILL, ExitCode.BAD_INPUT, ExitCode.DONE)
    assert "Pass logs of workers or an archive that have the answer (--answers-from)" in said
    sent = [*sent_by(tmp_path / "logs" / "w1"), *sent_by(tmp_path / "logs" / "w2")]
    assert len(set(sent)) == len(sent) == CALLS


@pytest.mark.parametrize("bus", ["redis"], indirect=True)
def test_question_resumes_only_on_original_bus(
    config: Path, session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = shutil.copytree(session, tmp_path / "alone")
    make_topics(config)
    on_the_bus = ("--config", str(config))
    asking = ("ask", QUESTION, "--store", str(session), *BY_RULES, *on_the_bus)
    ended(run_program, asking, ("requested", 1, ""), folder=tmp_path, env=NO_KEYS)
    command("ask", QUESTION, "--store", alone, *BY_RULES)
    capsys.readouterr()

    without_it = command("ask", "--store", session, "--resume", trace_in(session))
    over_it = command("ask", "--store", alone, "--resume", trace_in(alone), "--bus", "redis://127.0.0.1:1/0")
    said = capsys.readouterr().err
    in_a_process = command("ask", "--store", alone, "--resume", trace_in(alone), *on_the_bus)

    assert [without_it, over_it, in_a_process] == [ExitCode.BAD_INPUT, ExitCode.BAD_INPUT, ExitCode.DONE]
    assert (
        "--bus is missing, but the trace has calls on a bus. Allowed: the bus where the trace began" in said
    )
    assert "--bus is given, but the trace began in a local process" in said


@pytest.mark.parametrize("bus", ["redis"], indirect=True)
def test_concurrent_resume_is_refused_by_log_lock(
    config: Path, session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topics(config)
    words = ("ask", "--store", str(session), "--config", str(config))
    ended(run_program, (*words, QUESTION, *BY_RULES), ("requested", 1, ""), folder=tmp_path, env=NO_KEYS)
    resumed = (*words, "--resume", trace_in(session), "--json")

    with ThreadPoolExecutor() as threads:
        (tmp_path / "first").mkdir()
        first = threads.submit(ended, run_program, resumed, None, folder=tmp_path / "first", env=NO_KEYS)
        said = until(tmp_path / "first" / "said.err", "make the calls")
        second = ended(run_program, resumed, None, folder=tmp_path, env=NO_KEYS)
        with worker(tmp_path / "logs", "w1", "--config", str(config)):
            went_on = first.result()

    assert second.code == ExitCode.LOG_UNUSABLE, said
    assert "another process writes to it" in second.err
    assert (went_on.code, json.loads(went_on.out)["outcome"]) == (ExitCode.DONE, "concluded")
    assert len(sent_by(tmp_path / "logs" / "w1")) == CALLS
    capsys.readouterr()
