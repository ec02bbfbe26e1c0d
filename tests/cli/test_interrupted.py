"""Ctrl-C and a request to end reach the installed command in the middle: its exit code says so, and nothing is lost."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.cli.main import main
from tests.cli.conftest import Command
from tests.logging_kept import logging_kept

PROGRAM = Path(sys.executable).with_name("agentic-trading")
RUN = ["run", "--data", "btcusdt-5m", "--bars", "400", "--out"]
A_PAGE = 4096
"""The least that a pipe can hold; a session's own log has several times as much to say."""


def _by(first: signal.Signals, other: signal.Signals) -> pytest.MarkDecorator:
    """Interrupt by one signal; by the other one in `make soak`, as both take the same way after they are heard."""
    return pytest.mark.parametrize("by", [first, pytest.param(other, marks=pytest.mark.soak)])


BY_SIGINT = _by(signal.SIGINT, signal.SIGTERM)
BY_SIGTERM = _by(signal.SIGTERM, signal.SIGINT)

pytestmark = [
    pytest.mark.timeout(60),  # a program of its own takes a second to start
    pytest.mark.skipif(sys.platform != "linux", reason="needs a pipe that can be made small"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a session that nothing interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with logging_kept(), pytest.raises(SystemExit) as left:
        main([*RUN, str(folder)])
    assert not left.value.code
    return folder


@contextmanager
def started(*words: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run the installed command; one that is left running, by a test that has failed, is killed and not waited for."""
    with subprocess.Popen([PROGRAM, *words], **options) as running:
        try:
            yield running
        finally:
            running.kill()


def interrupted(by: signal.Signals, *words: str) -> tuple[int, str]:
    """Run the installed command, interrupt it in the middle, and return its exit code and what it printed.

    Its log goes into a pipe that soon is full, so that it stands still after the first answers until it was told
    to end.
    """
    with started(
        *words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pipesize=A_PAGE,
        env={"AGENTIC_LOG_LEVEL": "debug"},
    ) as running:
        assert running.stderr
        said = b""
        while b"answer_accepted" not in said:
            more = os.read(running.stderr.fileno(), 256)
            assert more, said
            said += more
        running.send_signal(by)
        printed, _ = running.communicate()
    return running.returncode, printed.decode()


@BY_SIGTERM
def test_interrupted_run_resumes_to_same_decisions(
    by: signal.Signals, whole: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "out"

    code, summary = interrupted(by, *RUN, str(out))
    left = (out / "decisions.jsonl").read_bytes()
    manifest = json.loads((out / "run.json").read_bytes())
    resumed = command(*RUN, out, "--resume")

    assert code == ExitCode.INTERRUPTED
    assert "interrupted after" in summary
    assert (manifest["interrupted"], manifest["digest"]) == (True, sha256(left).hexdigest())
    assert 0 < len(left) < len((whole / "decisions.jsonl").read_bytes())
    assert resumed.code == ExitCode.DONE
    assert (out / "decisions.jsonl").read_bytes() == (whole / "decisions.jsonl").read_bytes()
    assert command("replay", "run", out).code == ExitCode.DONE


@BY_SIGINT
def test_interrupted_replay_leaves_session_unchanged(by: signal.Signals, whole: Path) -> None:
    before = {path.name: path.read_bytes() for path in whole.iterdir()}

    ended, printed = interrupted(by, "replay", "run", str(whole))

    assert (ended, printed.strip()) == (ExitCode.INTERRUPTED, "")
    assert {path.name: path.read_bytes() for path in whole.iterdir()} == before


@BY_SIGINT
def test_signal_during_prompt_leaves_no_run(by: signal.Signals, tmp_path: Path) -> None:
    screen, terminal = pty.openpty()
    with (
        os.fdopen(terminal, "r+b", buffering=0) as shown,
        started(
            *RUN,
            str(tmp_path / "out"),
            "--provider",
            "anthropic",
            "--record",
            stdin=shown,
            stderr=shown,
            env={"ANTHROPIC_API_KEY": "sk-of-a-test"},
        ) as running,
    ):
        said = b""
        while b"Continue?" not in said:
            said += os.read(screen, 256)
        running.send_signal(by)
        code = running.wait()
        said += os.read(screen, 4096)
    os.close(screen)

    assert code == ExitCode.INTERRUPTED
    assert b"not started: no call was sent and no file was written" in said
    assert not (tmp_path / "out").exists()


@BY_SIGTERM
def test_signal_during_call_count_leaves_no_run(by: signal.Signals, tmp_path: Path) -> None:
    with started(
        *RUN,
        str(tmp_path / "out"),
        "--provider",
        "anthropic",
        "--record",
        "--yes",
        stderr=subprocess.PIPE,
        pipesize=A_PAGE,
        env={"ANTHROPIC_API_KEY": "sk-of-a-test", "AGENTIC_LOG_LEVEL": "debug"},
    ) as running:
        assert running.stderr
        said = b""
        while b"answer_accepted" not in said:  # the rules', in memory
            said += os.read(running.stderr.fileno(), 256)
        running.send_signal(by)
        _, left = running.communicate()

    assert running.returncode == ExitCode.INTERRUPTED
    assert left.endswith(b"not started: no call was sent and no file was written\n")
    assert not (tmp_path / "out").exists()
