"""Workers in processes of their own, on a real Kafka and a real Redis: a session, envelopes from a file, health, and the end."""

import json
import re
import signal
from pathlib import Path

import pytest
from redis import Redis

from agentic_trading.cli.exits import ExitCode
from agentic_trading.llm import EnvelopeBuilder, LLMProvider
from tests import kafka_server, redis_server
from tests.flows.dying_call import run_program
from tests.flows.fleet import (
    KAFKA_IN_SOAK,
    NO_KEYS,
    ON_BOTH,
    REDIS_IN_SOAK,
    attempts_in,
    command,
    make_topics,
    sent_by,
)
from tests.forked import ended
from tests.gateway import START
from tests.own_package import install_acme
from tests.worker_processes import PROGRAM, RunningWorker, worker

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)
UUID = re.compile(r"[\da-f]{8}-[\da-f]{4}-[\da-f]{4}-[\da-f]{4}-[\da-f]{12}")


def anonymous(log: Path) -> list[str]:
    """Return a decision log with its ids numbered as they come: those of a run are made from a name of its own."""
    numbers: dict[str, str] = {}
    lines = log.read_text("utf-8").splitlines()
    return [
        UUID.sub(lambda found: numbers.setdefault(found[0], f"id-{len(numbers)}"), line) for line in lines
    ]


@REDIS_IN_SOAK
def test_distributed_session_matches_local_decisions(
    config: Path,
    fleet: tuple[RunningWorker, RunningWorker],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("run", "--data", "btcusdt-5m", "--bars", "300", "--provider", "rules")

    assert (
        command(*words, "--config", config, "--budget-usd", "5", "--out", tmp_path / "apart") == ExitCode.DONE
    )
    assert command(*words, "--out", tmp_path / "here") == ExitCode.DONE

    assert anonymous(tmp_path / "apart" / "decisions.jsonl") == anonymous(
        tmp_path / "here" / "decisions.jsonl"
    )
    assert command("replay", "run", tmp_path / "apart") == ExitCode.DONE
    finished = [running.metrics()['agentic_deliveries_total{end="finished"}'] for running in fleet]
    assert sum(finished) > 5
    assert [running.ends() for running in fleet] == [0, 0]
    for name in ("w1", "w2"):
        assert command("audit", "verify", tmp_path / "logs" / name / "interactions.jsonl") == ExitCode.DONE
    capsys.readouterr()


@pytest.mark.soak
@ON_BOTH
def test_killed_distributed_session_pays_calls_once(
    config: Path,
    fleet: tuple[RunningWorker, RunningWorker],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("run", "--data", "btcusdt-5m", "--bars", "372", "--provider", "rules")
    apart = (*words, "--config", str(config), "--budget-usd", "5", "--out", str(tmp_path / "apart"))
    bus = "kafka" if "kafka:" in config.read_text("utf-8") else "redis"
    steps = [
        ("requested", 1), (f"published to {bus}", 3), ("on_record", 1), ("received", 1), ("decided", 350),
        ("requested", 2), (f"published to {bus}", 60), ("received", 2), ("on_record", 1),
    ]  # fmt: skip

    assert command(*words, "--out", tmp_path / "here") == ExitCode.DONE
    for number, (step, times) in enumerate(steps):
        resume = ["--resume"] if number else []
        killed = ended(run_program, (*apart, *resume), (step, times, ""), folder=tmp_path, env=NO_KEYS)
        assert killed.code == -signal.SIGKILL, (step, killed.out, killed.err)
    assert command(*apart, "--resume") == ExitCode.DONE

    assert anonymous(tmp_path / "apart" / "decisions.jsonl") == anonymous(
        tmp_path / "here" / "decisions.jsonl"
    )
    assert command("replay", "run", tmp_path / "apart") == ExitCode.DONE
    assert command("audit", "verify", tmp_path / "apart") == ExitCode.DONE
    sent = [*sent_by(tmp_path / "logs" / "w1"), *sent_by(tmp_path / "logs" / "w2")]
    received = attempts_in(tmp_path / "apart")
    assert sorted(sent) == sorted(received)
    assert len(set(sent)) == len(sent) > 5
    assert [running.ends() for running in fleet] == [0, 0]
    capsys.readouterr()


@pytest.mark.soak
@pytest.mark.parametrize("bus", ["redis"], indirect=True)
def test_forgotten_answer_is_read_from_worker_logs(
    config: Path, redis: redis_server.RealServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topics(config)
    words = ("run", "--data", "btcusdt-5m", "--bars", "300", "--provider", "rules")
    apart = (*words, "--config", str(config), "--budget-usd", "5", "--out", str(tmp_path / "apart"))
    with worker(tmp_path / "logs", "w1", "--config", str(config)) as first:
        first.is_ready()
        killed = ended(run_program, apart, ("replied", 2, ""), folder=tmp_path, env=NO_KEYS)
        assert first.ends() == 0
    with Redis.from_url(redis.url) as server:  # as it is after 15 minutes
        assert server.delete(*server.scan_iter("*:last:*")) == 2

    with worker(tmp_path / "logs", "w2", "--config", str(config)) as second:
        second.is_ready()
        lost = command(*apart, "--resume")
        said = capsys.readouterr().err
        found = command(*apart, "--resume", "--answers-from", tmp_path / "logs" / "w1")

    assert command(*words, "--out", tmp_path / "here") == ExitCode.DONE
    assert (killed.code, lost, found) == (-signal.SIGKILL, ExitCode.BAD_INPUT, ExitCode.DONE)
    assert "this log has no answer: dead letter: taken_elsewhere" in said
    assert anonymous(tmp_path / "apart" / "decisions.jsonl") == anonymous(
        tmp_path / "here" / "decisions.jsonl"
    )
    sent = [*sent_by(tmp_path / "logs" / "w1"), *sent_by(tmp_path / "logs" / "w2")]
    assert sorted(sent) == sorted(attempts_in(tmp_path / "apart"))
    capsys.readouterr()


@pytest.mark.parametrize("bus", ["redis"], indirect=True)
def test_session_resumes_only_on_original_bus(
    config: Path, redis: redis_server.RealServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("run", "--data", "btcusdt-5m", "--bars", "300", "--provider", "rules", "--budget-usd", "5")
    resumed = (*words, "--out", tmp_path / "apart", "--resume")
    other = tmp_path / "other.toml"
    elsewhere = redis.url.removesuffix("/0") + "/1"
    other.write_text(re.sub('flow-[^"]+', "elsewhere", config.read_text("utf-8")), encoding="utf-8")
    make_topics(config)
    dying = (*words, "--out", str(tmp_path / "apart"), "--config", str(config))
    ended(run_program, dying, ("requested", 1, ""), folder=tmp_path, env=NO_KEYS)

    codes = [
        command(*resumed, "--config", other),
        command(*resumed, "--config", config, "--bus", elsewhere),
        command(*resumed, "--config", config, "--ledger", elsewhere),
        command(*resumed),
    ]

    said = capsys.readouterr().err
    assert codes == [ExitCode.BAD_INPUT] * 4
    assert "bus.namespace is 'elsewhere'. Allowed: 'flow-" in said
    assert f"--bus is '{elsewhere}'. Allowed: '{redis.url}', because run 1 was started with it" in said
    assert f"--ledger is '{elsewhere}'. Allowed: '{redis.url}'" in said
    assert f"--bus is 'left out'. Allowed: '{redis.url}'" in said


@KAFKA_IN_SOAK
def test_file_envelopes_are_answered_or_named(
    config: Path,
    fleet: tuple[RunningWorker, RunningWorker],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    built = [
        EnvelopeBuilder().for_general().with_instructions("Advise.").with_context({"n": n}).with_as_of(START)
        .with_provider(LLMProvider.SCRIPTED, "scripted-1").build()
        for n in range(4)
    ]  # fmt: skip
    file = tmp_path / "envelopes.jsonl"
    file.write_bytes(b"\n".join([*(each.wire for each in built), b"{}x", b"", built[0].wire[:-20] + b'0"}']))

    code = command("submit", file, "--config", config, "--wait")

    said = capsys.readouterr()
    outcomes = [json.loads(line) for line in said.out.splitlines()]
    assert code == ExitCode.FOUND_WRONG
    assert {each["envelope_id"] for each in outcomes} == {each.envelope_id for each in built}
    assert [(each["failure"], each["text"]) for each in outcomes] == [(None, "{}")] * 4
    assert "line 5: the line: Invalid JSON" in said.err
    assert "line 7: " in said.err
    assert (
        "submitted 4, 4 answered, 0 of them failed. 2 lines were not envelopes and were skipped" in said.err
    )


def test_waiting_worker_serves_once_topics_exist(config: Path, tmp_path: Path) -> None:
    with worker(tmp_path / "logs", "w1", "--config", str(config)) as running:
        running.waits_for("worker_waits")
        waiting = running.health()
        make_topics(config)
        ready = running.is_ready()
        code = running.ends(signal.SIGINT)

    assert (waiting["state"], waiting["ready"]) == ("starting", False)
    assert "Run agentic-trading topics create" in waiting["problems"]["start"]
    assert ready == {"state": "serving", "ready": True, "problems": {}}
    assert code == 0
    assert "w1 has stopped" in running.text


def test_worker_without_redis_is_not_ready(
    config: Path, redis: redis_server.RealServer, tmp_path: Path
) -> None:
    make_topics(config)
    with worker(tmp_path / "logs", "w1", "--config", str(config)) as running:
        running.is_ready()
        before = running.metrics()
        redis.kill()
        away, figures = running.health(), running.metrics()
        running.waits_for("worker_not_ready .*part=ledger")
        redis.start()
        running.is_ready()
        running.waits_for("worker_ready")
        code = running.ends()

    is_problem = 'agentic_worker_problem{part="ledger"}'
    assert (away["state"], list(away["problems"])) == ("serving", ["ledger"])
    assert (before["agentic_worker_ready"], before[is_problem]) == (1, 0)
    assert (figures["agentic_worker_serving"], figures["agentic_worker_ready"], figures[is_problem]) == (
        1,
        0,
        1,
    )
    assert figures["agentic_log_disk_free_bytes"] > 0
    assert code == 0


def test_duplicate_worker_name_is_refused(config: Path, tmp_path: Path) -> None:
    make_topics(config)
    words = ("--config", str(config))
    with worker(tmp_path / "logs", "w1", *words) as running:
        running.is_ready()
        with worker(tmp_path / "logs2", "w1", *words, "--store", str(tmp_path / "logs")) as second:
            code = second.process.wait(30)

    assert code == ExitCode.LOG_UNUSABLE
    assert "another process writes to it" in second.text


@pytest.mark.soak
def test_worker_waits_for_name_held_elsewhere(config: Path, tmp_path: Path) -> None:
    make_topics(config)
    words = ("--config", str(config))
    with worker(tmp_path / "logs", "w1", *words) as running:
        running.is_ready()
        with worker(tmp_path / "elsewhere", "w1", *words) as second:
            second.waits_for("worker_waits .*with another log")
            waiting = second.health()
            running.ends()
            ready = second.is_ready()

    assert (waiting["state"], waiting["ready"]) == ("starting", False)
    assert "w1' is in use by a worker on " in waiting["problems"]["start"]
    assert "Choose another name for one of the two" in waiting["problems"]["start"]
    assert ready["ready"]


BLOCKED = "import sys\nsys.modules['agentic_trading.desk'] = None\n"
"""A `sitecustomize` with which a process cannot import the desk."""
ORDER = {
    "$id": "acme_order.v1",
    "type": "object",
    "properties": {"size": {"type": "integer"}},
    "required": ["size"],
}


@pytest.mark.parametrize("bus", ["redis"], indirect=True)
@pytest.mark.parametrize("is_named", [True, False])
def test_worker_runs_named_check_without_desk(
    bus: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    is_named: bool,
) -> None:
    site = install_acme(tmp_path / "site")
    (site / "sitecustomize.py").write_text(BLOCKED, encoding="utf-8")
    config, file = tmp_path / "acme.toml", tmp_path / "envelope.jsonl"
    config.write_text(
        f'mode = "backtest"\n[bus]\nurl = "{bus}"\nnamespace = "acme"\n[ledger]\nurl = "{bus}"\n[providers.scripted]\n'
        """options.answers = ['{"size": 500}', '{"size": 50}']\n"""
        + ('[checks]\n"acme_order.v1" = "acme-desk"\n' if is_named else ""),
        encoding="utf-8",
    )
    asked = EnvelopeBuilder().for_general().with_instructions("Choose a size.").with_output_schema(ORDER)
    file.write_bytes(asked.with_as_of(START).with_provider(LLMProvider.SCRIPTED, "scripted-1").build().wire)
    make_topics(config)
    monkeypatch.setenv("PYTHONPATH", str(site))

    with worker(tmp_path / "logs", "w1", "--config", str(config), program=PROGRAM) as running:
        running.is_ready()
        command("submit", file, "--config", config, "--wait")
        said, code = running.text, running.ends()

    outcome = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert f"w1: schemas with a check: {'acme_order.v1 (acme-desk)' if is_named else 'none'}" in said
    assert code == 0
    if is_named:
        assert outcome["text"] == '{"size": 50}'
    else:
        assert '"acme_order.v1" = "acme-desk" to [checks]' in json.dumps(outcome).replace('\\"', '"')
