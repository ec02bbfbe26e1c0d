"""Generated code in its sandbox: what it gets, what comes back, and what ends it."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentic_trading.desk.planning.panel import Floats
from agentic_trading.desk.planning.sandbox import (
    ENVIRONMENT,
    Aborted,
    Completed,
    Sandbox,
    SandboxJob,
    SandboxLimits,
    SandboxReason,
)
from tests.desk.planning.strategy_code import (
    ASSETS,
    BARS,
    ENDLESS,
    EVEN,
    events,
    every,
    job,
    panel,
    weights_of,
)

QUICK = SandboxLimits(cpu_s=1)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(panel(), QUICK, catalysts={"earnings": events()}) as sandbox:
        yield sandbox


def test_weights_return_bit_for_bit(sandbox: Sandbox) -> None:
    given = panel()
    code = job("return close / 3 + volume * 0.1 + catalyst + rebalance[:, None]", catalyst="earnings")

    outcome = sandbox.run(code)

    assert isinstance(outcome, Completed)
    wanted = given.close / 3 + given.volume * 0.1 + events() + every(5)[:, None]
    assert outcome.weights.tobytes() == wanted.tobytes()
    assert not outcome.weights.flags.writeable
    assert 0 < outcome.wall_s < 5


@pytest.mark.parametrize("catalyst", ["none", "volume"])
def test_trading_catalyst_has_zero_frame(catalyst: str, sandbox: Sandbox) -> None:
    assert weights_of(sandbox.run(job("return catalyst", catalyst=catalyst))) == [[0.0] * ASSETS] * BARS


def test_cut_shows_first_bars_only(sandbox: Sandbox) -> None:
    outcome = sandbox.run(job("return close + rebalance.shape[0]", bars=17))

    assert weights_of(outcome) == (panel().close[:17] + 17).tolist()


def test_altered_bars_differ_only_after_cut(sandbox: Sandbox) -> None:
    given = panel()

    for name, frame in (("close", given.close), ("volume", given.volume)):
        outcome = sandbox.run(job(f"return {name} * 1.0", altered_from=40))
        assert isinstance(outcome, Completed)
        assert (outcome.weights[:40] == frame[:40]).all()
        assert (outcome.weights[40:] != frame[40:]).all()
    outcome = sandbox.run(job("return close * 0 + rebalance[:, None]", altered_from=40))
    assert isinstance(outcome, Completed)
    assert ((outcome.weights[:, 0] == 1) == every(5)).tolist() == [True] * 40 + [False] * 20


ENDED = {
    "an endless loop": (ENDLESS, SandboxReason.CPU, "ended by SIGXCPU; allowed: 1 s of CPU"),
    "a loop that ignores the signal": (
        job("import signal", "signal.signal(signal.SIGXCPU, signal.SIG_IGN)", "while True:", "    pass"),
        SandboxReason.CPU,
        "ended by SIGKILL; allowed: 1 s of CPU",
    ),
    "a large array": (
        job("return np.zeros((100000, 100000))"),
        SandboxReason.MEMORY,
        "Unable to allocate 74.5 GiB for an array with shape (100000, 100000) and data type float64; allowed: 1024 MiB in all",
    ),
    "a string of bytes too large": (
        job("bytes(10**12)"), SandboxReason.MEMORY, "out of memory; allowed: 1024 MiB in all"
    ),
    "writing to an input": (
        job("close[0, 0] = 1.0", "return close"),
        SandboxReason.ERROR,
        "line 5: ValueError: assignment destination is read-only",
    ),
    "writing to an altered input": (
        job("close[0, 0] = 1.0", "return close", altered_from=3),
        SandboxReason.ERROR,
        "line 5: ValueError: assignment destination is read-only",
    ),
    "dividing an int by zero": (job("1 // 0"), SandboxReason.ERROR, "line 5: ZeroDivisionError: integer division or modulo by zero"),
    "an exit": (job("raise SystemExit"), SandboxReason.ERROR, "line 5: SystemExit: "),
    "no python": (SandboxJob("return (", every(5)), SandboxReason.ERROR, "SyntaxError: '(' was never closed (strategy, line 1)"),
    "no text": (
        SandboxJob("'\ud800'", every(5)), SandboxReason.ERROR,
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xed in position 1: invalid continuation byte",
    ),
    "no function": (SandboxJob("", every(5)), SandboxReason.ERROR, "KeyError: 'target_weights'"),
    "no array": (job("return 1"), SandboxReason.ERROR, "returned int; allowed: float64 (60, 4)"),
    "another shape": (
        job("return close[1:]"), SandboxReason.ERROR, "returned float64 (59, 4); allowed: float64 (60, 4)"
    ),
    "another dtype": (
        job("return close > 0"), SandboxReason.ERROR, "returned bool (60, 4); allowed: float64 (60, 4)"
    ),
    "a file": (
        job("open('/etc/passwd')"), SandboxReason.REFUSED, "open '/etc/passwd'; allowed: arithmetic over the arguments"
    ),
    "a refusal that is caught": (
        job("try:", "    open('/etc/passwd')", "except BaseException:", "    return close"),
        SandboxReason.REFUSED,
        "open '/etc/passwd'; allowed: arithmetic over the arguments",
    ),
    "a refusal without a way out": (
        job("import os", "os._exit = print", "open('/etc/passwd')"),
        SandboxReason.REFUSED,
        "open '/etc/passwd'; allowed: arithmetic over the arguments",
    ),
    "a socket": (
        job("import _socket", "_socket.socket()"),
        SandboxReason.REFUSED,
        "import '_socket'; allowed: arithmetic over the arguments",
    ),
    "an import": (
        job("import random"), SandboxReason.REFUSED, "import 'random'; allowed: arithmetic over the arguments"
    ),
    "a late import within numpy": (
        job("np.testing"), SandboxReason.REFUSED, "import 'numpy.testing'; allowed: arithmetic over the arguments"
    ),
    "a program": (
        job("import os", "os.system('true')"), SandboxReason.REFUSED, "os.system; allowed: arithmetic over the arguments"
    ),
    "a process": (job("import os", "os.fork()"), SandboxReason.REFUSED, "os.fork; allowed: arithmetic over the arguments"),
    "code of its own": (job("eval('1')"), SandboxReason.REFUSED, "compile; allowed: arithmetic over the arguments"),
    "the memory of the process": (
        job("import ctypes", "ctypes.string_at(0)"),
        SandboxReason.REFUSED,
        "ctypes.string_at; allowed: arithmetic over the arguments",
    ),
    "a crash": (job("import os", "os.abort()"), SandboxReason.CRASH, "ended by SIGABRT"),
    "a named pipe": (
        job("import os", "os.mkfifo('/tmp/sandbox-pipe')"),
        SandboxReason.REFUSED,
        "os.mkfifo '/tmp/sandbox-pipe'; allowed: arithmetic over the arguments",
    ),
    "a node": (
        job("import posix", "posix.mknod('/tmp/sandbox-node')"),
        SandboxReason.REFUSED,
        "os.mknod '/tmp/sandbox-node'; allowed: arithmetic over the arguments",
    ),
    "a question about a path": (
        job("import os", "return close * os.path.exists('/etc/passwd')"),
        SandboxReason.REFUSED,
        "os.stat '/etc/passwd'; allowed: arithmetic over the arguments",
    ),
    "access to a path": (
        job("import os", "return close * os.access('/etc/passwd', 0)"),
        SandboxReason.REFUSED,
        "os.access '/etc/passwd'; allowed: arithmetic over the arguments",
    ),
    "an end as after weights": (job("import os", "os._exit(64)"), SandboxReason.CRASH, "ended with exit code 64"),
    "an end without an answer": (job("import os", "os._exit(0)"), SandboxReason.CRASH, "ended with exit code 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDED)
def test_stopped_code_leaves_child_serving(name: str, sandbox: Sandbox) -> None:
    code, reason, message = ENDED[name]
    before = sandbox.pid

    outcome = sandbox.run(code)

    assert isinstance(outcome, Aborted)
    assert (outcome.reason, outcome.message) == (reason, message)
    assert outcome.text == f"{reason}: {message}"
    assert weights_of(sandbox.run(EVEN)) == [[0.25] * ASSETS] * BARS
    assert sandbox.pid == before


def test_first_bars_are_independent_copies(sandbox: Sandbox) -> None:
    outcome = sandbox.run(
        job("raise ValueError([each.base is None for each in (close, volume, catalyst, rebalance)])", bars=5)
    )

    assert isinstance(outcome, Aborted)
    assert outcome.message == "line 5: ValueError: [True, True, True, True]"


@pytest.mark.parametrize(
    "call",
    ["found['stat']('/etc/passwd')", "found['mkfifo']('/sandbox-pipe', dir_fd=None)", "found['stat']('etc')"],
)
def test_root_directory_is_empty_and_unwritable(call: str, sandbox: Sandbox) -> None:
    """Functions that Python does not audit, from a second copy of their module, where they are not replaced."""
    if sandbox.network != "isolated" and os.getuid():
        pytest.skip("without user namespaces only root may change its root directory")
    code = job(
        "import sys",
        "found = vars(sys.modules['_imp'].create_builtin(sys.modules['posix'].__spec__))",
        call,
        "return close",
    )

    outcome = sandbox.run(code)

    assert isinstance(outcome, Aborted)
    assert outcome.message.startswith("line 7: FileNotFoundError")


def test_os_path_support_sets_are_empty(sandbox: Sandbox) -> None:
    """They keep the functions that are replaced, where no root directory hides the paths."""
    names = [name for name in dir(os) if name.startswith("supports_") and isinstance(getattr(os, name), set)]
    sets = ", ".join(f"os.{name}" for name in names)

    outcome = sandbox.run(job("import os", f"return close * sum(map(len, ({sets})))"))

    assert isinstance(outcome, Completed)
    assert not outcome.weights.any()


def test_arithmetic_warnings_do_not_end_code(sandbox: Sandbox) -> None:
    outcome = sandbox.run(job("return np.sqrt(-close) / 0 + np.mean(close[:0])"))

    assert isinstance(outcome, Completed)
    assert np.isnan(outcome.weights).all()


def test_message_is_truncated_to_kilobyte(sandbox: Sandbox) -> None:
    outcome = sandbox.run(job("raise ValueError('é' * 2000)"))

    assert isinstance(outcome, Aborted)
    assert outcome.message.startswith("line 5: ValueError: éééé")
    assert len(outcome.message.encode()) <= 1030


def test_child_has_minimal_environment_and_modules(sandbox: Sandbox) -> None:
    look = job(
        "import os, sys",
        "ours = [name for name in sys.modules if name.startswith('agentic')]",
        "raise ValueError(sorted(set(os.environ) - {'LC_CTYPE'}), ours)",  # which Python itself sets
    )

    outcome = sandbox.run(look)

    assert isinstance(outcome, Aborted)
    assert outcome.message == f"line 7: ValueError: ({sorted(ENVIRONMENT)}, [])"
    assert Path(f"/proc/{sandbox.pid}/cwd").readlink() == Path("/")


def test_threads_receive_own_answers(sandbox: Sandbox) -> None:
    def run(number: int) -> float:
        return weights_of(sandbox.run(job(f"return np.full(close.shape, {number} * 1.0)")))[0][0]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(12))) == [float(number) for number in range(12)]


def test_network_isolation_matches_namespace(sandbox: Sandbox) -> None:
    own, of_child = (Path(f"/proc/{pid}/ns/net").readlink() for pid in ("self", sandbox.pid))

    assert (sandbox.network == "isolated") == (own != of_child)
    outcome = sandbox.run(EVEN)
    assert outcome.network == sandbox.network


@pytest.mark.parametrize("unshare", ["no-such-program", "false"])
def test_unisolated_sandbox_still_runs(unshare: str) -> None:
    with Sandbox(panel(), QUICK, unshare=unshare) as sandbox:
        outcome = sandbox.run(EVEN)
        refused = sandbox.run(job("open('/etc/passwd')"))

    assert weights_of(outcome) == [[0.25] * ASSETS] * BARS
    assert isinstance(refused, Aborted)
    assert outcome.network == refused.network == "not isolated"


@pytest.mark.parametrize(
    ("wrong", "form"),
    [(events()[1:], r"float64 \(59, 4\)"), (events() > 0, r"bool \(60, 4\)")],
)
def test_mismatched_frame_is_rejected(wrong: Floats, form: str) -> None:
    with pytest.raises(ValueError, match=rf"earnings is {form}\. Allowed: float64 \(60, 4\), as close"):
        Sandbox(panel(), catalysts={"earnings": wrong})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rebalance": every(5, BARS - 1)}, r"rebalance is bool \(59,\)\. Allowed: bool \(60,\)"),
        ({"rebalance": every(5).astype(int)}, r"rebalance is int64 \(60,\)\. Allowed: bool \(60,\)"),
        ({"bars": BARS + 1}, r"bars is 61\. Allowed: 1 to 60"),
        ({"bars": 0}, r"bars is 0\. Allowed: 1 to 60"),
        ({"altered_from": 0}, r"altered_from is 0\. Allowed: 1 to 60"),
        ({"catalyst": "revenue"}, r"catalyst is 'revenue'\. Allowed: none, volume, earnings"),
    ],
)
def test_mismatched_job_is_rejected(wrong: dict[str, Any], message: str, sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match=message):
        sandbox.run(job("return close", **wrong))


def test_closed_sandbox_runs_no_code() -> None:
    sandbox = Sandbox(panel())
    for _ in range(2):
        with pytest.raises(ValueError, match="the sandbox is not open"):
            sandbox.run(EVEN)
        with sandbox:
            assert weights_of(sandbox.run(EVEN)) == [[0.25] * ASSETS] * BARS
