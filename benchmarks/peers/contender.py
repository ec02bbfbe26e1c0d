"""The side that measures: processes that are asked for rounds, each in an environment of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peers.rounds import Round

ROOT = Path(__file__).parents[2]
PEERS = Path(__file__).parent
INSTALL_S = 180
"""How long the installation of a peer may take."""
_LEAN = {"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false", "PYTHONHASHSEED": "0"}


class UnavailableError(Exception):
    """A contender cannot be measured here; `reason` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Contender:
    """A process that runs rounds: `module` of this repository, in the environment of `python`."""

    def __init__(self, module: str, python: Path) -> None:
        self._module = module
        self._python = python

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603 - a program of this repository
            [self._python, "-m", self._module],
            cwd=ROOT,
            env={**os.environ, **_LEAN},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the process end, which it does when nothing more is asked of it."""
        self._process.communicate()

    def round(self, way: str, count: int) -> Round:
        """Run `count` calls; raises `UnavailableError` if the process has died."""
        told = self._asked(f"{way} {count}\n")
        if not told:
            last = self._process.communicate()[1].strip().rpartition("\n")[2]
            raise UnavailableError(f"it broke: {last:.120}")
        return Round(**json.loads(told))

    def _asked(self, line: str) -> str:
        if self._process.stdin is None or self._process.stdout is None:
            return ""
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            return ""
        return self._process.stdout.readline()


def peer(name: str) -> Contender:
    """Return the peer in folder `name`, its environment made or renewed if what it is made from asks for that.

    It is made from `requirements.txt`, what the peer is, and `constraints.txt`, the versions of all that this needs.
    Raises `UnavailableError` where it cannot be installed.
    """
    folder = PEERS / name
    ready, python = folder / ".venv" / "ready", folder / ".venv" / "bin" / "python"
    changed = max((folder / pins).stat().st_mtime for pins in ("requirements.txt", "constraints.txt"))
    if not ready.exists() or ready.stat().st_mtime < changed:
        _install(folder)
        ready.touch()
    return Contender(f"benchmarks.peers.{name}.peer", python)


def versions(name: str) -> str:
    """Return what the peer in folder `name` is made of."""
    return ", ".join((PEERS / name / "requirements.txt").read_text(encoding="utf-8").split())


def _install(folder: Path) -> None:
    print(f"Installing {folder.name} ...", file=sys.stderr)
    make = [sys.executable, "-m", "venv", "--clear", ".venv"]
    pip = [".venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        for command in (make, [*pip, "--requirement", "requirements.txt", "--constraint", "constraints.txt"]):
            subprocess.run(  # noqa: S603 - both are named above
                command, check=True, capture_output=True, text=True, timeout=INSTALL_S, cwd=folder
            )
    except subprocess.CalledProcessError as e:
        last = e.stderr.strip().rpartition("\n")[2]
        raise UnavailableError(f"cannot be installed: {last:.120}") from e
    except subprocess.TimeoutExpired as e:
        raise UnavailableError(f"cannot be installed within {INSTALL_S} s") from e
