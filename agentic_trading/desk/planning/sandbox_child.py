"""The child process of the sandbox: runs each job in a fork, under limits.

`sandbox.py` starts it by path, under `python -I`. It imports nothing of this package, so that its code cannot
reach the package, and so that it starts fast. It reads a line of JSON and the bytes that the line announces,
and answers in the same form. Weights are sent as bytes, never as a pickle. Jobs share one block of memory
with it, but neither its input nor its output.
"""

import ctypes
import json
import mmap
import os
import posix
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any, BinaryIO, Final, NoReturn

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

FUNCTION: Final = "target_weights"
PR_SET_PDEATHSIG: Final = 1
"""The option of prctl(2) for the signal that a process gets when its parent ends."""

RAN, MEMORY, REFUSED, ERROR, CRASH = range(64, 69)
"""Exit codes of a job. Python does not use them itself."""

REASON_BY_EXIT: Final = {MEMORY: "memory", REFUSED: "refused", ERROR: "error"}
TEXT_BYTES: Final = 1024
"""The maximum size of a job's message, which is at the start of the shared block. The weights follow it."""

NONCE_BYTES: Final = 16
"""The size of a job's nonce, which is at the end of the shared block."""

UNAUDITED: Final = (
    "access", "chroot", "getcwd", "getcwdb", "lstat", "mkfifo", "mknod", "pathconf", "readlink", "stat", "statvfs",
)  # fmt: skip
"""Functions of `os` about paths that Python does not audit."""

KEPT_IN: Final = ("supports_dir_fd", "supports_effective_ids", "supports_fd", "supports_follow_symlinks")
"""Sets of `os` that contain these functions."""


class Server:
    """A server that has the panel and the limits, and runs one job after the other."""

    def __init__(self, source: BinaryIO, answers: BinaryIO) -> None:
        self._source = source
        self._answers = answers
        setup = json.loads(source.readline())
        self._shape: tuple[int, int] = (setup["bars"], setup["assets"])
        self._cpu_s: int = setup["cpu_s"]
        self._wall_s: float = setup["wall_s"]
        self._memory_bytes: int = setup["memory_bytes"]
        self._close, self._volume = self._read_frame(), self._read_frame()
        self._catalysts = {name: self._read_frame() for name in setup["catalysts"]}
        self._shared = mmap.mmap(-1, TEXT_BYTES + self._close.nbytes + NONCE_BYTES)
        self._libc = ctypes.CDLL(None)
        self._weights: Floats = np.frombuffer(
            self._shared, np.float64, count=self._close.size, offset=TEXT_BYTES
        )
        enter_root(setup["root"])

    def serve(self) -> None:
        """Answer jobs until the input ends, because the parent has closed it or has ended."""
        self._answer({})
        while line := self._source.readline():
            job = json.loads(line)
            code = self._source.read(job["code"])
            rebalance = np.frombuffer(self._source.read(self._shape[0]), np.bool_)
            self._shared[:TEXT_BYTES] = bytes(TEXT_BYTES)
            self._shared[-NONCE_BYTES:] = bytes(NONCE_BYTES)
            nonce = os.urandom(NONCE_BYTES)
            start = time.monotonic()
            pid = os.fork()
            if pid == 0:
                self._work(job, code, rebalance, nonce)
            _, status, usage = os.wait4(pid, 0)
            wall_s = time.monotonic() - start
            reason = self._reason(status, usage.ru_utime + usage.ru_stime)
            # Code may exit with `RAN` itself. Without the nonce, the weights would be those of the last job.
            if reason is None and self._shared[-NONCE_BYTES:] != nonce:
                reason = "crash"
            if reason is None:
                shape = (job["bars"], self._shape[1])
                weights = self._weights[: shape[0] * shape[1]].tobytes()
                self._answer({"reason": None, "shape": shape, "wall_s": wall_s}, weights)
            else:
                text = self._shared[:TEXT_BYTES].rstrip(b"\0").decode("utf-8", "replace")
                self._answer({"reason": reason, "text": text or end_of(status), "wall_s": wall_s})

    def _answer(self, header: dict[str, Any], payload: bytes = b"") -> None:
        self._answers.write(json.dumps({**header, "bytes": len(payload)}).encode() + b"\n" + payload)
        self._answers.flush()

    def _reason(self, status: int, cpu_s: float) -> str | None:
        """Return why a job ended without weights, or None if it has weights."""
        if not os.WIFSIGNALED(status):
            code = os.WEXITSTATUS(status)
            return None if code == RAN else REASON_BY_EXIT.get(code, "crash")
        by = os.WTERMSIG(status)
        if by == signal.SIGXCPU or (by == signal.SIGKILL and cpu_s >= self._cpu_s):
            return "cpu"
        return "crash"

    def _work(
        self,
        job: dict[str, Any],
        code: bytes,
        rebalance: Flags,
        nonce: bytes,
        leave: Callable[[int], NoReturn] = os._exit,
    ) -> NoReturn:
        """Run the job in this fork, and end the process."""
        # `leave` is bound before the code runs, because code could replace `os._exit`.
        end = CRASH
        try:
            self._limit()
            arguments = self._arguments(job, rebalance)
            end = self._call(code, arguments)
            if end == RAN:
                self._shared[-NONCE_BYTES:] = nonce
        except MemoryError as e:
            end = self._end(MEMORY, str(e) or "out of memory")
        except BaseException as e:  # noqa: BLE001 - any error of generated code is the outcome of its job
            end = self._end(ERROR, described(e))
        finally:
            leave(end)

    def _call(self, code: bytes, arguments: list[npt.NDArray[Any]]) -> int:
        namespace: dict[str, Any] = {"__name__": "strategy", "__builtins__": __builtins__}
        module = FunctionType(compile(code.decode(), "strategy", "exec", dont_inherit=True), namespace)
        for name in UNAUDITED:
            refused = partial(self._refuse_call, f"os.{name}")
            setattr(os, name, refused)
            setattr(posix, name, refused)
        for name in KEPT_IN:
            getattr(os, name).clear()
        sys.addaudithook(self._refuse)
        shape = arguments[0].shape
        module()
        weights = namespace[FUNCTION](*arguments)
        if type(weights) is not np.ndarray or weights.dtype != np.float64 or weights.shape != shape:
            return self._end(ERROR, f"returned {form_of(weights)}; allowed: float64 {shape}")
        np.copyto(self._weights[: weights.size].reshape(shape), weights)
        return RAN

    def _refuse(
        self, event: str, arguments: tuple[object, ...], leave: Callable[[int], NoReturn] = os._exit
    ) -> None:
        """End the job at its first audited event."""
        # All events are refused, because arithmetic over arrays has none.
        of = f" {arguments[0][:200]!r}" if arguments and isinstance(arguments[0], str) else ""
        leave(self._end(REFUSED, event + of))

    def _refuse_call(self, event: str, *arguments: object, **_: object) -> NoReturn:
        self._refuse(event, arguments)
        raise PermissionError(event)  # not reached, because the job has ended

    def _end(self, code: int, text: str) -> int:
        said = text.encode("utf-8", "replace")[:TEXT_BYTES]
        self._shared[: len(said)] = said
        return code

    def _limit(self) -> None:
        if sys.platform == "linux":
            self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # also works in another session
        os.chdir("/")  # otherwise the working directory would stay outside the new root
        os.closerange(0, 2)  # stderr stays open, so that a parent that kills it sees when it has ended
        signal.setitimer(signal.ITIMER_REAL, self._wall_s + 1)  # ends the job if the parent cannot kill it
        for limit, value in (
            (resource.RLIMIT_AS, self._memory_bytes),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_NOFILE, 0),
            (resource.RLIMIT_NPROC, 0),  # does not stop root from forking
        ):
            resource.setrlimit(limit, (value, value))
        resource.setrlimit(resource.RLIMIT_CPU, (self._cpu_s, self._cpu_s + 1))

    def _arguments(self, job: dict[str, Any], rebalance: Flags) -> list[npt.NDArray[Any]]:
        """Return the function's arguments: the first bars, altered from `altered_from` on."""
        bars, altered_from = job["bars"], job["altered_from"]
        catalyst = self._catalysts.get(job["catalyst"])
        frames = [self._close, self._volume, np.zeros(self._shape) if catalyst is None else catalyst]
        if altered_from is not None:
            frames = [altered(frame, altered_from) for frame in frames]
            rebalance = np.concatenate((rebalance[:altered_from], ~rebalance[altered_from:]))
        # Copies, because a view of the first bars would share its memory with the later bars.
        arguments = [frame[:bars].copy() for frame in (*frames, rebalance)]
        for argument in arguments:
            argument.flags.writeable = False
        return arguments

    def _read_frame(self) -> Floats:
        count = self._shape[0] * self._shape[1]
        return np.frombuffer(self._source.read(8 * count), np.float64).reshape(self._shape)


def enter_root(folder: str) -> None:
    """Make an empty folder the root directory of this process.

    Only root may do so, also the root of a user namespace. The parent then removes the folder, so that no
    file can be made in it. Each job makes it its working directory.
    """
    # Not an error, because the functions of `UNAUDITED` and the audited functions are refused in any case.
    with suppress(PermissionError):
        os.chroot(folder)


def altered(frame: Floats, start: int) -> Floats:
    """Return a copy of `frame` with other values from row `start` on.

    They differ in time, assets and scale.
    """
    changed = frame.copy()
    changed[start:] = 1.0 + 1.25 * np.roll(frame[start:][::-1], 1, axis=1)
    return changed


def form_of(value: object) -> str:
    """Return the type of a wrong value. For an array, return its dtype and shape."""
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def described(e: BaseException) -> str:
    """Return an error with the line of the code that raised it."""
    trace = e.__traceback__
    depth = 0
    while trace is not None and depth < 2:  # `_work`, `_call`, then the code
        trace, depth = trace.tb_next, depth + 1
    line = f"line {trace.tb_lineno}: " if trace is not None else ""
    return f"{line}{type(e).__name__}: {e}"


def end_of(status: int) -> str:
    """Return how a process without a message ended."""
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # printing a warning would import and open files, which is refused
    np.seterr(all="ignore")
    Server(sys.stdin.buffer, sys.stdout.buffer).serve()
