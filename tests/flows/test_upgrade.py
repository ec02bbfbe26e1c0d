"""A fleet of release 0.1.0a1 is upgraded worker by worker, with its logs, while clients submit envelopes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.ids import random_id
from agentic_trading.llm import EnvelopeBuilder, LLMInteraction, LLMProvider
from agentic_trading.llm.stores.jsonl.segments import LogFiles
from tests import redis_server
from tests.flows.fleet import command, make_topics
from tests.gateway import START
from tests.llm.stores.jsonl_logs import records_in
from tests.worker_processes import PROGRAM, worker

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
COMMIT = "da81bc0387497c3f79b24c4b0f17700119a3b52a"
"""The commit of release 0.1.0a1."""

BATCH = 300


@dataclass(frozen=True)
class Release:
    """An installed release, with a configuration of its own."""

    name: str
    program: Path
    env: Mapping[str, str]
    config: Path

    def submit(self, envelopes: Path) -> "subprocess.Popen[str]":
        """Start to submit the envelopes of a file. It prints an outcome for each."""
        words = [str(self.program), "submit", str(envelopes), "--config", str(self.config), "--wait"]
        return subprocess.Popen(words, env=self.env, stdout=subprocess.PIPE, text=True)


def installed(folder: Path) -> tuple[Path, Mapping[str, str]]:
    """Build the wheel of 0.1.0a1 and install it. Return its command, and the environment that it needs.

    It uses the dependencies of this environment.
    """
    git = shutil.which("git")
    exists = [str(git), "cat-file", "-e", COMMIT]
    if git is None or subprocess.run(exists, cwd=ROOT, check=False, capture_output=True).returncode:
        pytest.skip(f"the history of the repository does not have commit {COMMIT:.8}")
    archive = folder / "source.zip"
    subprocess.run([git, "archive", "--output", archive, COMMIT], cwd=ROOT, check=True)
    shutil.unpack_archive(archive, folder / "source")
    pip = [sys.executable, "-m", "pip"]
    subprocess.run(
        [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, folder / "source"], check=True
    )
    (wheel,) = folder.glob("agentic_trading-0.1.0a1-*.whl")
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--target", folder / "site", wheel], check=True)
    return folder / "site" / "bin" / PROGRAM.name, {"PATH": os.defpath, "PYTHONPATH": str(folder / "site")}


def configured(folder: Path, name: str, url: str, namespace: str, more: str = "") -> Path:
    """Write the configuration of a release, whose answers name the release."""
    path = folder / f"{name}.toml"
    answers = json.dumps([json.dumps({"by": name})] * 3 * BATCH)
    path.write_text(
        f'mode = "backtest"\n[bus]\nurl = "{url}"\nnamespace = "{namespace}"\n[ledger]\nurl = "{url}"\n'
        f"[providers.scripted]\noptions.answers = {answers}\n{more}",
        encoding="utf-8",
    )
    return path


def envelopes_in(path: Path) -> set[str]:
    """Write a file of envelopes, and return their ids."""
    built = [
        EnvelopeBuilder().for_general().with_instructions("Advise.").with_context({"n": n}).with_as_of(START)
        .with_provider(LLMProvider.SCRIPTED, "scripted-1").build()
        for n in range(BATCH)
    ]  # fmt: skip
    path.write_bytes(b"".join(each.wire + b"\n" for each in built))
    return {each.envelope_id for each in built}


def outcomes_of(client: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    """Wait until a client has ended, and return its outcomes."""
    told, _ = client.communicate(timeout=60)
    assert client.returncode == 0
    return [json.loads(line) for line in told.splitlines()]


def test_upgraded_fleet_answers_each_envelope_once(
    redis: redis_server.RealServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace, logs = f"flow-{random_id()}", tmp_path / "logs"
    program, env = installed(tmp_path)
    old = Release("old", program, env, configured(tmp_path, "old", redis.url, namespace))
    segments = "[log]\nsegment_bytes = 65536\ncompress = true\n"
    new = Release(
        "new", PROGRAM, {"PATH": os.defpath}, configured(tmp_path, "new", redis.url, namespace, segments)
    )
    files = [tmp_path / f"{number}.jsonl" for number in range(4)]
    submitted = [envelopes_in(file) for file in files]
    make_topics(old.config)

    def run(release: Release, name: str) -> Any:
        return worker(logs, name, "--config", str(release.config), program=release.program, env=release.env)

    with run(old, "w2") as second:
        with run(old, "w1") as first:
            assert first.is_ready()["ready"]
            assert second.is_ready()["ready"]
            client = old.submit(files[0])
            stopped = first.ends(signal.SIGTERM)
        with run(new, "w1") as first:
            assert first.is_ready()["ready"]
            outcomes = [outcomes_of(client)]
            outcomes.append(outcomes_of(old.submit(files[1])))
            client = old.submit(files[2])
            stopped += second.ends(signal.SIGTERM)
            with run(new, "w2") as second_new:
                assert second_new.is_ready()["ready"]
                outcomes.append(outcomes_of(client))
                outcomes.append(outcomes_of(new.submit(files[3])))
                stopped += first.ends(signal.SIGTERM) + second_new.ends(signal.SIGTERM)

    assert stopped == 0
    texts = texts_in(outcomes, submitted)
    attempts = [
        record
        for name in ("w1", "w2")
        for record in records_in(logs / name / "interactions.jsonl")
        if isinstance(record, LLMInteraction)
    ]
    for attempt in attempts:
        texts[attempt.envelope.envelope_id].add(attempt.result.raw_output)
    # No envelope is answered twice: each answer names the release that has given it.
    assert len(texts) == len(attempts) == 4 * BATCH
    assert {len(found) for found in texts.values()} == {1}
    # Both releases have answered envelopes of the batch that was submitted next to each other.
    mixed = {text for envelope_id in submitted[1] for text in texts[envelope_id]}
    assert mixed == {'{"by": "old"}', '{"by": "new"}'}
    check_logs(logs, new.config)
    capsys.readouterr()


def texts_in(
    outcomes: Sequence[Sequence[dict[str, Any]]], submitted: Sequence[set[str]]
) -> dict[str, set[str]]:
    """Check that each envelope has exactly one outcome, without a failure. Return the answers by envelope."""
    texts = defaultdict[str, set[str]](set)
    for asked, told in zip(submitted, outcomes, strict=True):
        assert sorted(each["envelope_id"] for each in told) == sorted(asked)
        assert [each for each in told if each["failure"]] == []
        for each in told:
            texts[each["envelope_id"]].add(each["text"])
    return texts


def check_logs(logs: Path, config: Path) -> None:
    """Check that the logs that the old release has begun are whole, and were continued in segments."""
    for name in ("w1", "w2"):
        log = logs / name / "interactions.jsonl"
        assert command("audit", "verify", log) == ExitCode.DONE
        assert command("spend", "--store", log) == ExitCode.DONE
        assert len(LogFiles(log).sealed_firsts()) > 1
    assert command("topics", "lag", "--config", config) == ExitCode.DONE
