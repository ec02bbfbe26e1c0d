"""A program in the background: ready when it says so, found by its process id, and never another's process ended."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentic_trading.services.local import HOST, PORTS, Daemon, ServiceError, free_port, is_free, program

WAITS = (sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)")


def is_ready(printed: str) -> bool:
    return "ready" in printed


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon("waiter", tmp_path / "place")
    yield made
    made.kill()


def found_again(daemon: Daemon) -> Daemon:
    """Return it as another process sees it."""
    return Daemon(daemon.name, daemon.folder)


def test_started_daemon_can_be_found(daemon: Daemon) -> None:
    daemon.start(WAITS, is_ready, within_s=10)

    assert daemon.pid is not None
    assert found_again(daemon).pid == daemon.pid
    assert "ready" in daemon.tail()


def test_suspended_daemon_can_be_stopped(daemon: Daemon) -> None:
    daemon.start(WAITS, is_ready, within_s=10)
    daemon.send(signal.SIGSTOP)

    assert found_again(daemon).stop(within_s=5)
    assert daemon.pid is None
    assert not daemon.stop()


def test_unresponsive_daemon_is_killed(daemon: Daemon) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    daemon.start((sys.executable, "-c", deaf), is_ready, within_s=10)

    assert daemon.stop(within_s=0.1)
    assert daemon.pid is None


def test_second_start_is_refused(daemon: Daemon) -> None:
    daemon.start(WAITS, is_ready, within_s=10)

    with pytest.raises(ServiceError, match="already running with process id"):
        found_again(daemon).start(WAITS, is_ready, within_s=10)


@pytest.mark.parametrize(
    "source", ["raise SystemExit('no disk')", "print('no disk', flush=True); import time; time.sleep(60)"]
)
def test_unready_daemon_is_ended_with_output(daemon: Daemon, source: str) -> None:
    with pytest.raises(ServiceError, match=r"did not start within 0\.5 s(?s:.*)no disk"):
        daemon.start((sys.executable, "-c", source), is_ready, within_s=0.5)

    assert daemon.pid is None


def test_reused_process_id_is_not_ended(daemon: Daemon) -> None:
    daemon.folder.mkdir()
    note = daemon.folder / "waiter.pid"
    note.write_text(
        json.dumps({"pid": os.getpid(), "begun": "before the machine was started"}), encoding="utf-8"
    )

    assert daemon.pid is None
    assert not daemon.stop()


@pytest.mark.parametrize(
    "text", ["", "12", "{}", '{"pid": "x", "begun": ""}', '{"pid": 999999999, "begun": ""}']
)
def test_invalid_pid_file_is_ignored(daemon: Daemon, text: str) -> None:
    daemon.folder.mkdir()
    (daemon.folder / "waiter.pid").write_text(text, encoding="utf-8")

    assert daemon.pid is None


@pytest.mark.skipif(not Path("/usr/bin/setpriv").exists(), reason="setpriv of util-linux is not installed")
def test_daemon_ends_with_the_starter(tmp_path: Path) -> None:
    source = f"""
import os, sys
from pathlib import Path
from agentic_trading.services.local import Daemon
daemon = Daemon("waiter", Path({str(tmp_path)!r}), ends_with_starter=True)
daemon.start({WAITS!r}, lambda printed: "ready" in printed, within_s=10)
print(daemon.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)

    with suppress(ProcessLookupError):  # it may be gone already
        ended = os.pidfd_open(int(done.stdout))
        select.select([ended], [], [], 5)
        os.close(ended)
    assert Daemon("waiter", tmp_path).pid is None


def test_free_ports_are_free_and_distinct() -> None:
    first = free_port()
    second = free_port([first])

    assert first != second
    assert first in PORTS
    assert is_free(second)
    assert HOST == "127.0.0.1"


def test_missing_program_is_named() -> None:
    with pytest.raises(ServiceError, match=r"kafka: acme or acme2 is not on PATH\. Install it"):
        program("kafka", "acme", "acme2")
