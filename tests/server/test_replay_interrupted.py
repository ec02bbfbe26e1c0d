"""`replay run FOLDER -- COMMAND` on the record of a killed server, and stopped by a signal."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from tests.server.conftest import started
from tests.server.test_replay_command import GATEWAY_AGENT, python, replayed
from tests.stubs.running import page_of

pytestmark = pytest.mark.timeout(120)

AGENT = """
import sys
import openai

with openai.OpenAI(max_retries=0) as client:
    for text in sys.argv[1:]:
        message = [{"role": "user", "content": text}]
        try:
            print(client.chat.completions.create(model="gpt", messages=message).choices[0].message.content)
        except openai.APIError as e:
            print("failed:", e)
"""

WAITING_AGENT = f"""{GATEWAY_AGENT}
import subprocess, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def killed_in_a_call(place: Path, vendor: str, hold: str, keys: dict[str, str]) -> str:
    """Kill `serve` while the third call of a program runs. Return the output of the program."""
    (place / "agent.py").write_text(AGENT)
    with started(place, "--store", "log") as (url, server):
        before = len(page_of(vendor, "/requests")["requests"])
        words = [
            "/usr/bin/env",
            *(f"{name}={text}" for name, text in keys.items()),
            f"OPENAI_BASE_URL={url}/v1",
        ]
        words += [sys.executable, "agent.py", "one", "two", f"@{hold} three"]
        with subprocess.Popen(words, cwd=place, stdout=subprocess.PIPE, text=True) as program:
            while len(page_of(vendor, "/requests")["requests"]) < before + 3:
                assert program.poll() is None
            server.kill()
            server.wait(30)
            page_of(vendor, f"/release/{hold}")
            return program.communicate(timeout=60)[0]


@pytest.fixture
def keys(place: Path) -> dict[str, str]:
    return {"OPENAI_API_KEY": (place / "secret.txt").read_text()}


def test_the_call_in_flight_at_the_kill_of_a_server_is_named(
    place: Path, vendor: str, keys: dict[str, str]
) -> None:
    first = killed_in_a_call(place, vendor, "hold_killed", keys)
    assert "failed: Connection error." in first

    asked = [sys.executable, "agent.py", "one", "two", "@hold_killed three"]
    refused = replayed(place, "log", "--", *asked, **keys)
    again = replayed(place, "log", "--allow-incomplete", "--json", "--", *asked, **keys)

    assert refused.returncode == ExitCode.LOG_UNUSABLE
    assert "its process was killed or still runs" in refused.stderr
    assert again.returncode == ExitCode.FOUND_WRONG
    report = json.loads(again.stdout)
    assert (report["recorded"], report["matched"], report["misses"], report["interrupted"]) == (2, 2, 1, 1)
    (named,) = report["unanswered"]
    assert named.startswith("agent 'trader-1', request rk1:")
    assert "attempt 1 to openai/stub-large. Its process was killed" in named
    assert report["missed"] == [f"asked again, and has no recorded answer: {named}"]
    assert first.splitlines()[0] in again.stderr


def test_a_record_that_a_second_server_continued_is_replayed_as_a_whole(
    place: Path, vendor: str, keys: dict[str, str]
) -> None:
    killed_in_a_call(place, vendor, "hold_continued", keys)
    with started(place, "--store", "log") as (url, server):
        rest = ["@hold_continued three", "four"]
        assert python(place, "agent.py", *rest, OPENAI_BASE_URL=f"{url}/v1", **keys).returncode == 0
        server.ends()

    both = [sys.executable, "agent.py", "one", "two", *rest]
    again = replayed(place, "log", "--", *both, **keys)

    assert again.returncode == ExitCode.DONE, again.stdout + again.stderr
    shown = " ".join(again.stdout.split())
    assert " identical record " in shown
    assert "4 recorded · 4 matched" in shown
    assert "interrupted 1 recorded without an answer interrupted agent 'trader-1', request rk1:" in shown


@contextmanager
def waiting(place: Path, *words: str, **variables: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Start a replay whose program waits. Yield the process, and the id of a process of its program."""
    program = str(Path(sys.executable).with_name("agentic-trading"))
    named = [f"{name}={text}" for name, text in variables.items()]
    with subprocess.Popen(
        ["/usr/bin/env", *named, program, "replay", "run", *words],
        cwd=place, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.strip().isdecimal())
            yield process, int(line)
        finally:
            process.kill()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process without a parent that waits for it stays in the table as `Z`.
    return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGTERM])
def test_a_signal_ends_a_program_of_gateways_and_its_processes(tmp_path: Path, number: int) -> None:
    (tmp_path / "agent.py").write_text(GATEWAY_AGENT)
    assert python(tmp_path, "agent.py", "log", "a", "b").returncode == 0
    (tmp_path / "waiting.py").write_text(WAITING_AGENT)

    with waiting(tmp_path, "log", "--", sys.executable, "waiting.py", "log", "a") as (replay, child):
        replay.send_signal(number)
        out, err = replay.communicate(timeout=60)

    assert replay.returncode == ExitCode.INTERRUPTED
    assert out.startswith("interrupted\n")
    assert "2 recorded · 1 matched" in " ".join(out.split())
    assert "Interrupted. 1 of 2 recorded attempts were made again." in err
    assert not is_running(child)


@pytest.mark.soak
def test_a_signal_ends_the_program_of_sdks_and_their_server(place: Path, keys: dict[str, str]) -> None:
    (place / "agent.py").write_text(AGENT)
    with started(place, "--store", "log") as (url, server):
        python(place, "agent.py", "one", "two", OPENAI_BASE_URL=f"{url}/v1", **keys)
        server.ends()
    # It ignores SIGTERM, so that only SIGKILL ends it.
    stubborn = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    (place / "waiting.py").write_text(f"{AGENT}\n{stubborn}print(os.getpid(), flush=True)\ntime.sleep(60)\n")

    with waiting(place, "log", "--", sys.executable, "waiting.py", "one", **keys) as (replay, program):
        replay.send_signal(signal.SIGTERM)
        out, err = replay.communicate(timeout=60)

    assert replay.returncode == ExitCode.INTERRUPTED
    assert "2 recorded · 1 matched" in " ".join(out.split())
    assert "Interrupted. 1 of 2 recorded attempts were made again." in err
    assert not is_running(program)


@pytest.mark.soak
def test_ctrl_c_in_a_terminal_lets_the_program_end_by_itself(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(GATEWAY_AGENT)
    assert python(tmp_path, "agent.py", "log", "a", "b").returncode == 0
    patient = "\nimport time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('saved')\n"
    (tmp_path / "patient.py").write_text(GATEWAY_AGENT + patient)
    program = str(Path(sys.executable).with_name("agentic-trading"))
    words = [program, "replay", "run", "log", "--", sys.executable, "patient.py", "log", "a"]

    terminal, inner = pty.openpty()
    with subprocess.Popen(
        words, cwd=tmp_path, stdin=inner, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as replay:  # fmt: skip
        try:
            assert replay.stdout is not None
            assert any(line == "ready\n" for line in replay.stdout)
            os.killpg(replay.pid, signal.SIGINT)  # as a terminal does, to all processes in front
            out, err = replay.communicate(timeout=60)
        finally:
            replay.kill()
            os.close(inner)
            os.close(terminal)

    assert replay.returncode == ExitCode.INTERRUPTED
    assert "saved\n" in out
    assert "Interrupted. 1 of 2 recorded attempts were made again." in err
