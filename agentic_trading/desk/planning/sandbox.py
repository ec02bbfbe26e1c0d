"""The sandbox of generated code: a process that forks for each job.

The process has loaded numpy and the panel. Code that the gate (`allowlist.py`) has passed runs there: without
environment and files, without a network if the system has user namespaces, and under limits of memory, CPU
and time. Every outcome of code is returned as a value.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import IO, Any, Final, Literal, Self, cast, get_args

from agentic_trading.desk.planning.errors import SandboxStartError
from agentic_trading.desk.planning.panel import Days, Flags, Floats, Panel, rebalance_mask
from agentic_trading.desk.planning.params import PriceCatalyst, StrategyParams
from agentic_trading.errors import extra_named

with extra_named():
    import numpy as np

Network = Literal["isolated", "not isolated"]

CHILD: Final = Path(__file__).with_name("sandbox_child.py")
# One thread for each library, because a process with threads must not fork.
ENVIRONMENT: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""The whole environment of the child. It has no keys and no paths."""


class SandboxReason(StrEnum):
    """The reason why code ended without weights."""

    CPU = "cpu"
    MEMORY = "memory"
    WALL = "wall"
    REFUSED = "refused"
    """It did something that Python audits, such as opening a file, a socket or a process, or an import."""
    ERROR = "error"
    """It raised an error, or did not return float64 weights of the right shape."""
    CRASH = "crash"
    """Its process ended."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of a job, and of the start of a child.

    `start_s` limits the time until numpy and the panel are loaded, which takes 0.2 s on an idle machine.
    """

    cpu_s: int = 10
    memory_bytes: int = 1 << 30
    """The address space, including numpy and the panel."""
    wall_s: float = 15.0
    start_s: float = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class SandboxJob:
    """Code that defines `target_weights`, and its arguments."""

    code: str
    rebalance: Flags
    """One flag per bar of the panel."""
    catalyst: str = "none"
    bars: int | None = None
    """The number of bars to show, from the first bar on. None shows all."""
    altered_from: int | None = None
    """The first bar with altered figures, or None."""

    @classmethod
    def of(cls, code: str, params: StrategyParams, days: Days) -> Self:
        """Return the job for code that a template made from `params`."""
        rebalance = rebalance_mask(days, params.resample, getattr(params, "resample_offset", 0))
        return cls(code, rebalance, getattr(params, "catalyst_type", "none"))


@dataclass(frozen=True, slots=True, eq=False)
class Completed:
    """The weights that code returned. Their promises are checked in `promises.py`."""

    weights: Floats
    """Read-only."""
    wall_s: float
    network: Network


@dataclass(frozen=True, slots=True)
class Aborted:
    """The outcome of code without weights."""

    reason: SandboxReason
    message: str
    wall_s: float
    network: Network

    @property
    def text(self) -> str:
        """The reason and its message, on one line."""
        return f"{self.reason}: {self.message}"


class Sandbox:
    """A sandbox for code over one panel. Use it as a context manager.

    Code gets the prices with filled gaps. A call blocks until its job has ended. Jobs of several threads run
    one after the other. A child that was killed or has crashed is replaced at the next job.

    Args:
        panel: The prices.
        limits: The limits of each job.
        catalysts: Frames of fundamental catalysts by type, in the form of `panel.close`. They are copied.
        unshare: The name or path of util-linux's `unshare`, which removes the network.

    Raises:
        ValueError: If a frame has another type or shape than `panel.close`.

    """

    def __init__(
        self,
        panel: Panel,
        limits: SandboxLimits | None = None,
        *,
        catalysts: Mapping[str, Floats] = MappingProxyType({}),
        unshare: str = "unshare",
    ) -> None:
        for name, frame in catalysts.items():
            if frame.dtype != np.float64 or frame.shape != panel.close.shape:
                raise ValueError(
                    f"{name} is {frame.dtype} {frame.shape}. Allowed: float64 {panel.close.shape}, as close"
                )
        self.panel = panel
        self.catalysts = MappingProxyType({name: _kept(frame) for name, frame in catalysts.items()})
        """Read-only copies of the frames, by type."""
        self._limits = limits or SandboxLimits()
        self._unshare = unshare
        self.network: Network = "not isolated"
        self._command: list[str] = []
        self._child: _Child | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Start the child.

        Raises:
            SandboxStartError: If the child does not start in time.

        """
        isolation = _isolation(self._unshare, self._limits.start_s)
        self.network = "isolated" if isolation else "not isolated"
        self._command = [*isolation, sys.executable, "-I", str(CHILD)]
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the child and its running job."""
        with self._lock:
            self._kill()
            self._command = []

    @property
    def pid(self) -> int | None:
        """The process id of the child, which leads its own session. None without a child."""
        return self._child.process.pid if self._child else None

    def run(self, job: SandboxJob) -> Completed | Aborted:
        """Run the code of `job`. Errors of the code are returned, not raised.

        Returns:
            The weights, or an `Aborted` with the reason.

        Raises:
            ValueError: If the job does not fit the panel, or the sandbox is not open.
            SandboxStartError: If an ended child cannot be replaced.

        """
        message = self._message(job)
        with self._lock, ExitStack() as unanswered:
            child = self._child or self._start()
            unanswered.callback(self._kill)  # a late answer would otherwise be read as that of the next job
            try:
                answer = child.ask(message, within_s=self._limits.wall_s)
            except (OSError, EOFError):
                return self._stopped("crash", "the process of the sandbox ended", 0.0)
            if answer is None:
                return self._stopped("wall", "no weights in time", self._limits.wall_s)
            unanswered.pop_all()
        header, payload = answer
        if header["reason"] is not None:
            return self._stopped(header["reason"], header["text"], header["wall_s"])
        weights = np.frombuffer(payload, np.float64).reshape(header["shape"])
        return Completed(weights, header["wall_s"], self.network)

    def _stopped(self, reason: str, text: str, wall_s: float) -> Aborted:
        allowed = {
            "cpu": f"; allowed: {self._limits.cpu_s} s of CPU",
            "memory": f"; allowed: {self._limits.memory_bytes >> 20} MiB in all",
            "wall": f"; allowed: {self._limits.wall_s:g} s",
            "refused": "; allowed: arithmetic over the arguments",
        }
        return Aborted(SandboxReason(reason), text + allowed.get(reason, ""), wall_s, self.network)

    def _start(self) -> "_Child":
        if not self._command:
            raise ValueError("the sandbox is not open. Run jobs inside its `with` statement.")
        process = subprocess.Popen(  # noqa: S603 - a program that is named in this package
            self._command,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=ENVIRONMENT, cwd="/", start_new_session=True,
        )  # fmt: skip
        child = _Child(process, cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout))
        try:
            # The directory is removed once the child has entered it, so that no file can be made in it.
            with TemporaryDirectory(prefix="agentic-sandbox-") as root:
                answer = child.ask(self._setup(root), within_s=self._limits.start_s)
        except (OSError, EOFError):
            answer = None
        except BaseException:
            child.kill()
            raise
        if answer is None:
            raise SandboxStartError(child.kill())
        self._child = child
        return child

    def _setup(self, root: str) -> bytes:
        bars, assets = self.panel.close.shape
        words = {"root": root, "bars": bars, "assets": assets, "catalysts": [*self.catalysts]}
        words |= asdict(self._limits)
        frames = (self.panel.filled, self.panel.volume, *self.catalysts.values())
        return json.dumps(words).encode() + b"\n" + b"".join(frame.tobytes() for frame in frames)

    def _message(self, job: SandboxJob) -> bytes:
        """Return a job in the child's format, or raise `ValueError` if it does not fit."""
        bars, mask = len(self.panel.days), job.rebalance
        if mask.dtype != np.bool_ or mask.shape != (bars,):
            raise ValueError(f"rebalance is {mask.dtype} {mask.shape}. Allowed: bool ({bars},)")
        for name, value in (("bars", job.bars), ("altered_from", job.altered_from)):
            if value is not None and not 1 <= value <= bars:
                raise ValueError(f"{name} is {value}. Allowed: 1 to {bars}")
        catalysts = [*get_args(PriceCatalyst), *self.catalysts]
        if job.catalyst not in catalysts:
            raise ValueError(f"catalyst is {job.catalyst!r}. Allowed: {', '.join(catalysts)}")
        code = job.code.encode("utf-8", "surrogatepass")  # so that invalid text is an error of the job
        shown = {"bars": job.bars or bars, "altered_from": job.altered_from, "catalyst": job.catalyst}
        words = {"code": len(code), **shown}
        return json.dumps(words).encode() + b"\n" + code + mask.tobytes()

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()


@dataclass(frozen=True, slots=True)
class _Child:
    process: "subprocess.Popen[bytes]"
    messages: IO[bytes]
    answers: IO[bytes]

    def ask(self, message: bytes, *, within_s: float) -> tuple[dict[str, Any], bytes] | None:
        """Return the header and payload of an answer, or None if it is late.

        The child is killed if it is late. Raises `OSError` or `EOFError` if it has ended for another reason.
        """
        is_late = threading.Event()

        def end_late() -> None:
            is_late.set()
            self.end()

        timer = threading.Timer(within_s, end_late)
        timer.start()
        try:
            answer = self._answer(message)
        except (OSError, EOFError):
            if not is_late.is_set():
                raise
            return None
        finally:
            timer.cancel()
            timer.join()
        return None if is_late.is_set() else answer

    def _answer(self, message: bytes) -> tuple[dict[str, Any], bytes]:
        self.messages.write(message)
        self.messages.flush()
        line = self.answers.readline()
        header = json.loads(line) if line.endswith(b"\n") else {"bytes": 1}
        payload = self.answers.read(header["bytes"])
        if len(payload) < header["bytes"]:
            raise EOFError
        return header, payload

    def kill(self) -> str:
        """Kill the process group, reap the process, and return its error output."""
        self.end()
        return self.process.communicate()[1].decode("utf-8", "replace").strip()

    def end(self) -> None:
        """Kill the process and its running job, which are one process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _kept(frame: Floats) -> Floats:
    kept = np.array(frame)
    kept.setflags(write=False)
    return kept


def _isolation(unshare: str, within_s: float) -> list[str]:
    """Return the words before a command that remove its network, if allowed."""
    path = shutil.which(unshare)
    if path is None:
        return []
    isolation = [path, "-r", "-n"]
    try:
        subprocess.run(  # noqa: S603 - a program that the caller names
            [*isolation, sys.executable, "-I", "-S", "-c", ""], timeout=within_s,
            stdin=subprocess.DEVNULL, capture_output=True, env=ENVIRONMENT, cwd="/", check=True,
        )  # fmt: skip
    except subprocess.SubprocessError:  # it fails, or hangs
        return []
    return isolation
