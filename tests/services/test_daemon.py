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


def test_what_was_started_runs_and_can_be_found_again(daemon: Daemon) -> None:
    daemon.start(WAITS, is_ready, within_s=10)

    assert daemon.pid is not None
    assert found_again(daemon).pid == daemon.pid
    assert "ready" in daemon.tail()


def test_it_is_stopped_by_its_process_id_also_where_it_was_stopped_short(daemon: Daemon) -> None:
    daemon.start(WAITS, is_ready, within_s=10)
    daemon.send(signal.SIGSTOP)

    assert found_again(daemon).stop(within_s=5)
    assert daemon.pid is None
    assert not daemon.stop()


def test_what_does_not_hear_is_ended_by_force(daemon: Daemon) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    daemon.start((sys.executable, "-c", deaf), is_ready, within_s=10)

    assert daemon.stop(within_s=0.1)
    assert daemon.pid is None


def test_two_are_not_started_in_one_place(daemon: Daemon) -> None:
    daemon.start(WAITS, is_ready, within_s=10)

    with pytest.raises(ServiceError, match="already running with process id"):
        found_again(daemon).start(WAITS, is_ready, within_s=10)


@pytest.mark.parametrize(
    "source", ["raise SystemExit('no disk')", "print('no disk', flush=True); import time; time.sleep(60)"]
)
def test_what_does_not_get_ready_is_ended_and_its_last_words_are_shown(daemon: Daemon, source: str) -> None:
    with pytest.raises(ServiceError, match=r"did not start within 0\.5 s(?s:.*)no disk"):
        daemon.start((sys.executable, "-c", source), is_ready, within_s=0.5)

    assert daemon.pid is None


def test_a_process_that_has_its_number_by_now_is_not_ended(daemon: Daemon) -> None:
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
def test_a_note_that_names_no_process_is_as_none(daemon: Daemon, text: str) -> None:
    daemon.folder.mkdir()
    (daemon.folder / "waiter.pid").write_text(text, encoding="utf-8")

    assert daemon.pid is None


@pytest.mark.skipif(not Path("/usr/bin/setpriv").exists(), reason="setpriv of util-linux is not installed")
def test_what_ends_with_its_starter_does(tmp_path: Path) -> None:
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


def test_a_free_port_is_free_and_no_one_of_those_taken() -> None:
    first = free_port()
    second = free_port([first])

    assert first != second
    assert first in PORTS
    assert is_free(second)
    assert HOST == "127.0.0.1"


def test_a_program_that_is_not_installed_is_named() -> None:
    with pytest.raises(ServiceError, match=r"kafka: acme or acme2 is not on PATH\. Install it"):
        program("kafka", "acme", "acme2")
