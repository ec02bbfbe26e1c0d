"""The processes of a sandbox: killed, crashed, interrupted or closed, they are replaced, and none is left."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentic_trading.desk.planning.errors import SandboxStartError
from agentic_trading.desk.planning.sandbox import (
    Aborted,
    Sandbox,
    SandboxLimits,
    SandboxReason,
)
from tests.desk.planning.strategy_code import (
    ASSETS,
    BARS,
    ENDLESS,
    EVEN,
    job,
    panel,
    weights_of,
)

ROOT = Path(__file__).parents[3]


def processes_of(session: int | None) -> list[int]:
    """Return the processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, of, *_ = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(of) == session and state != "Z":
                found.append(int(stat.parent.name))
    return found


def has_ended(pid: int) -> bool:
    """Wait until a process has ended; False if it has not within some seconds."""
    try:
        with os.fdopen(os.pidfd_open(pid), "rb") as end:
            return bool(select.select([end], [], [], 15)[0])
    except ProcessLookupError:
        return True


def nothing_is_left_of(session: int | None) -> bool:
    return all(has_ended(pid) for pid in processes_of(session))


def test_silent_child_is_killed_and_replaced() -> None:
    with Sandbox(panel(), SandboxLimits(wall_s=1.0)) as sandbox:
        first = sandbox.pid

        outcome = sandbox.run(ENDLESS)

        assert isinstance(outcome, Aborted)
        assert (outcome.reason, outcome.message) == (
            SandboxReason.WALL,
            "no weights in time; allowed: 1 s",
        )
        assert nothing_is_left_of(first)
        assert weights_of(sandbox.run(EVEN)) == [[0.25] * ASSETS] * BARS
        assert sandbox.pid not in {None, first}


def test_detached_job_ends_with_child() -> None:
    away = job(
        "import os, signal", "os.setsid()", "signal.setitimer(signal.ITIMER_REAL, 0)", "signal.pause()"
    )
    with Sandbox(panel(), SandboxLimits(wall_s=1.0)) as sandbox:
        outcome = sandbox.run(away)  # it returns when the errors of the job have ended, thus the job

    assert isinstance(outcome, Aborted)
    assert outcome.reason is SandboxReason.WALL


def test_crashed_child_is_replaced() -> None:
    with Sandbox(panel()) as sandbox:
        pids = []
        for _ in range(2):
            assert weights_of(sandbox.run(EVEN)) == [[0.25] * ASSETS] * BARS
            assert sandbox.pid
            pids.append(sandbox.pid)
            os.kill(sandbox.pid, signal.SIGKILL)

            outcome = sandbox.run(EVEN)

            assert isinstance(outcome, Aborted)
            assert outcome.text == "crash: the process of the sandbox ended"
            assert sandbox.pid is None
    assert len(set(pids)) == 2


class CallInterruptedError(BaseException):
    """What a signal raises in the middle of a call, as Ctrl-C does."""


@pytest.fixture
def interrupt_soon() -> Iterator[Callable[[], None]]:
    def interrupt(*_: object) -> None:
        raise CallInterruptedError

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start
    signal.signal(signal.SIGUSR1, before)


def test_interrupted_call_leaves_no_answer(
    interrupt_soon: Callable[[], None],
) -> None:
    with Sandbox(panel()) as sandbox:
        first = sandbox.pid
        interrupt_soon()
        with pytest.raises(CallInterruptedError):
            sandbox.run(ENDLESS)

        assert nothing_is_left_of(first)
        assert weights_of(sandbox.run(EVEN)) == [[0.25] * ASSETS] * BARS


def test_interrupted_start_leaves_no_process(interrupt_soon: Callable[[], None], tmp_path: Path) -> None:
    stuck = tmp_path / "unshare"
    stuck.write_text(
        f'#!/bin/sh\ncase "$*" in *child.py*) echo $$ >{tmp_path}/pid; exec sleep 60;; esac\n',
        encoding="utf-8",
    )
    stuck.chmod(0o755)
    interrupt_soon()

    with pytest.raises(CallInterruptedError), Sandbox(panel(), unshare=str(stuck)):
        pass

    assert nothing_is_left_of(int((tmp_path / "pid").read_text(encoding="utf-8")))


def test_close_leaves_no_process() -> None:
    with Sandbox(panel()) as sandbox:
        pid = sandbox.pid
        assert processes_of(pid) == [pid]

    assert sandbox.pid is None
    assert nothing_is_left_of(pid)


def test_killed_parent_leaves_no_process() -> None:
    program = (
        "from agentic_trading.desk.planning.sandbox import Sandbox, SandboxLimits\n"
        "from tests.desk.planning.strategy_code import ENDLESS, panel\n"
        "with Sandbox(panel(), SandboxLimits(cpu_s=1)) as sandbox:\n"
        "    print(sandbox.pid, flush=True)\n"
        "    sandbox.run(ENDLESS)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        parent.kill()

    assert has_ended(child)
    assert nothing_is_left_of(child)


@pytest.mark.parametrize("words", ["*child.py*", "*"])
def test_hanging_start_times_out(words: str, tmp_path: Path) -> None:
    hangs = tmp_path / "unshare"
    hangs.write_text(f'#!/bin/sh\ncase "$*" in {words}) exec sleep 60;; esac\n', encoding="utf-8")
    hangs.chmod(0o755)
    prices = panel(2_000, 50)  # more than a pipe takes that nothing reads

    if words == "*":
        with Sandbox(prices, SandboxLimits(start_s=3), unshare=str(hangs)) as sandbox:
            assert sandbox.network == "not isolated"
    else:
        with (
            pytest.raises(SandboxStartError, match="no output"),
            Sandbox(prices, SandboxLimits(start_s=0.5), unshare=str(hangs)),
        ):
            pass


def test_start_failure_shows_child_output(tmp_path: Path) -> None:
    broken = tmp_path / "unshare"
    broken.write_text(
        '#!/bin/sh\ncase "$*" in *child.py*) echo no numpy here >&2; exit 3;; esac\n', encoding="utf-8"
    )
    broken.chmod(0o755)

    with (
        pytest.raises(SandboxStartError, match="no numpy here") as raised,
        Sandbox(panel(), unshare=str(broken)),
    ):
        pass

    assert raised.value.output == "no numpy here"
