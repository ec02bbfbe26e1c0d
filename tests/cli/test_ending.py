"""A signal ends every command from its first moment, with exit code 130 and a message, whatever it waits for."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread

import pytest

from agentic_trading.cli.exits import ExitCode, ended_as_by_ctrl_c

PROGRAM = "from agentic_trading.cli.main import main; main()"
ON_A_DEAD_DISK = f"""
import pathlib, sys, threading
opened = pathlib.Path.open
def hangs(self, *words, **options):
    if self.name == "bars.csv":
        print("reads", file=sys.stderr, flush=True)
        threading.Event().wait()
    return opened(self, *words, **options)
pathlib.Path.open = hangs
{PROGRAM}
"""
"""The operating system's side of a network mount that no longer answers, for one file."""

RUN = ("run", "--data", "btcusdt-5m", "--bars", "2000", "--out", "out")
WORKER = ("worker", "--bus", "redis://127.0.0.1:1", "--ledger", "redis://127.0.0.1:1", "--provider", "rules",
          "--http", "127.0.0.1:0")  # fmt: skip
ASK = ("ask", "What was spent?", "--store", "out", "--max-cost", "1", "--provider", "rules")
ARCHIVE = ("archive", "--bus", "redis://127.0.0.1:1", "--store", "out")

pytestmark = pytest.mark.timeout(120)


def started(words: Sequence[str], folder: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *flags, "-c", PROGRAM, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("words", "module", "by"),
    [
        (RUN, "typer", signal.SIGTERM),
        pytest.param(RUN, "typer", signal.SIGINT, marks=pytest.mark.soak),
        pytest.param(RUN, "structlog", signal.SIGTERM, marks=pytest.mark.soak),
        (RUN, "structlog", signal.SIGINT),
        pytest.param(RUN, "agentic_trading.platform.config", signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param(RUN, "agentic_trading.operate.providers", signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param(WORKER, "typer", signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param(WORKER, "structlog", signal.SIGTERM, marks=pytest.mark.soak),
        (WORKER, "agentic_trading.platform.config", signal.SIGINT),
        pytest.param(ASK, "agentic_trading.platform.config", signal.SIGTERM, marks=pytest.mark.soak),
        (ARCHIVE, "structlog", signal.SIGTERM),
        (("replay", "run", "out"), "structlog", signal.SIGTERM),
    ],
)
def test_signal_during_start_exits_130_with_message(
    words: tuple[str, ...], module: str, by: signal.Signals, tmp_path: Path
) -> None:
    said = list[str]()

    with started(words, tmp_path, "-X", "importtime") as process:  # which prints each module that is imported
        assert process.stderr is not None
        while not said or not said[-1].rstrip().endswith(f" {module}"):
            said.append(process.stderr.readline())
            assert said[-1], said[-20:]
        process.send_signal(by)
        _, left = process.communicate()

    messages = [line for line in left.splitlines() if not line.startswith("import time:")]
    assert process.returncode == ExitCode.INTERRUPTED, messages
    assert any("nterrupted" in line or "stopped immediately" in line for line in messages)
    assert not any("Traceback" in line for line in messages)


@pytest.mark.soak
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_dead_disk_does_not_block_exit(by: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "bars.csv").write_text("")
    with subprocess.Popen(
        [sys.executable, "-c", ON_A_DEAD_DISK, "run", "--data", "BTCUSDT=bars.csv", "--out", "out"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline() == "reads\n"
        process.send_signal(by)
        _, said = process.communicate(timeout=60)

    assert process.returncode == ExitCode.INTERRUPTED
    assert "stopped immediately. All answers so far are on disk" in said
    assert "without waiting for a disk or a server" in said
    assert "Traceback" not in said


class InterruptedInDel:
    """Raises a signal where Python drops every exception, as it does in callbacks of the import system."""

    def __init__(self, by: signal.Signals) -> None:
        self._by = by

    def __del__(self) -> None:
        signal.raise_signal(self._by)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_dropped_by_python_is_raised_again(by: signal.Signals) -> None:
    reports = sys.unraisablehook

    def wait() -> None:
        with ended_as_by_ctrl_c():
            InterruptedInDel(by)
            Event().wait(60)

    with pytest.raises(KeyboardInterrupt):
        wait()

    assert sys.unraisablehook is reports


def test_command_on_thread_leaves_process_hook() -> None:
    hooks = list[object]()

    def command() -> None:
        with ended_as_by_ctrl_c():
            hooks.append(sys.unraisablehook)

    before = sys.unraisablehook
    thread = Thread(target=command)
    thread.start()
    thread.join()

    assert hooks == [before]


def test_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    ignoring = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {PROGRAM}"

    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-c", ignoring, "data", "list"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        while not process.stderr.readline().rstrip().endswith(" typer"):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate()

    assert process.returncode == ExitCode.DONE
    assert "btcusdt-5m" in printed
