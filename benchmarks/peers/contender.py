"""The side that measures: processes that are asked, each in an environment of its own."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from benchmarks.peers.rounds import Round

ROOT = Path(__file__).parents[2]
PEERS = Path(__file__).parent
INSTALL_S = 900
"""How long the installation of a peer may take."""
LEAN = {
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "BAML_LOG": "off",
    "DO_NOT_TRACK": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RUST_BACKTRACE": "0",
    "PYTHONHASHSEED": "0",
}


class UnavailableError(Exception):
    """A contender cannot be measured here; `reason` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Measured(Protocol):
    """What runs rounds of calls and says what they took."""

    def round(self, way: str, count: int) -> Round:
        """Run `count` calls; raises `UnavailableError` if it cannot go on."""
        ...


class Program:
    """A process that answers each line of its input with one line."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._command = command

    def __enter__(self) -> Self:
        self._told = tempfile.TemporaryFile("w+", encoding="utf-8")  # a full pipe would stop who warns a lot
        self._process = subprocess.Popen(  # noqa: S603 - a program of this repository
            self._command,
            cwd=ROOT,
            env={**os.environ, **LEAN},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._told,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the process end, which it does when nothing more is asked of it."""
        self._process.communicate()
        self._told.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def ask(self, line: str) -> str:
        """Return the answer to `line`; raises `UnavailableError` if the process has died."""
        told = self._asked(line + "\n")
        if not told:
            self._process.communicate()
            self._told.seek(0)
            last = self._told.read().strip().rpartition("\n")[2]
            raise UnavailableError(f"it broke: {last:.120}")
        return told

    def take(self, step: str, **arguments: Any) -> Any:
        """Return the result of a step; raises `UnavailableError` if the process has died."""
        return json.loads(self.ask(json.dumps({"step": step, **arguments})))

    def _asked(self, line: str) -> str:
        if self._process.stdin is None or self._process.stdout is None:
            return ""
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            return ""
        return self._process.stdout.readline()


class Contender(Program):
    """A process that runs rounds: `module` of this repository, in the environment of `python`."""

    def __init__(self, module: str, python: Path) -> None:
        super().__init__([python, "-m", module])

    def round(self, way: str, count: int) -> Round:
        """Run `count` calls; raises `UnavailableError` if the process has died."""
        return Round(**json.loads(self.ask(f"{way} {count}")))


def peer(name: str) -> Contender:
    """Return the peer in folder `name`, its environment made or renewed if what it is made from asks for that.

    It is made from `requirements.txt`, what the peer is, and `constraints.txt`, the versions of all that this needs.
    Raises `UnavailableError` where it cannot be installed.
    """
    return Contender(f"benchmarks.peers.{name}.peer", environment(name))


def node_peer(name: str) -> Program:
    """Return the peer in folder `name` that is made from `package.json` and runs on Node.

    Raises `UnavailableError` where it cannot be installed.
    """
    node_modules(name)
    return Program(["node", PEERS / name / "peer.mjs"])


def node_modules(name: str) -> Path:
    """Return the packages of folder `name`, made or renewed as for `node_peer`."""
    folder = PEERS / name
    if not is_ready(name):
        _install(folder, [["npm", "install", "--silent", "--no-audit", "--no-fund"]])
        (folder / "node_modules" / "ready").touch()
    return folder / "node_modules"


def environment(name: str) -> Path:
    """Return the Python of the environment of folder `name`, made or renewed as for `peer`."""
    folder = PEERS / name
    if not is_ready(name):
        make = [sys.executable, "-m", "venv", "--clear", ".venv"]
        pip = [".venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pins = ["--requirement", "requirements.txt", "--constraint", "constraints.txt"]
        _install(folder, [make, [*pip, *pins]])
        (folder / ".venv" / "ready").touch()
    return folder / ".venv" / "bin" / "python"


def is_ready(name: str) -> bool:
    """Whether the environment of folder `name` is there, and as new as what it is made from."""
    folder = PEERS / name
    made = [
        folder / of
        for of in ("requirements.txt", "constraints.txt", "package.json")
        if (folder / of).exists()
    ]
    ready = folder / ("node_modules" if (folder / "package.json").exists() else ".venv") / "ready"
    return ready.exists() and ready.stat().st_mtime >= max(one.stat().st_mtime for one in made)


def versions(name: str) -> str:
    """Return what the peer in folder `name` is made of."""
    folder = PEERS / name
    if (folder / "package.json").exists():
        needs = json.loads((folder / "package.json").read_text(encoding="utf-8"))["dependencies"]
        return ", ".join(f"{package} {version}" for package, version in needs.items())
    return ", ".join((folder / "requirements.txt").read_text(encoding="utf-8").split())


def _install(folder: Path, commands: Sequence[Sequence[str]]) -> None:
    print(f"Installing {folder.name} ...", file=sys.stderr)
    try:
        for command in commands:
            subprocess.run(  # noqa: S603 - they are named above
                command, check=True, capture_output=True, text=True, timeout=INSTALL_S, cwd=folder
            )
    except FileNotFoundError as e:
        raise UnavailableError(f"cannot be installed: there is no {e.filename}") from e
    except subprocess.CalledProcessError as e:
        last = e.stderr.strip().rpartition("\n")[2]
        raise UnavailableError(f"cannot be installed: {last:.120}") from e
    except subprocess.TimeoutExpired as e:
        raise UnavailableError(f"cannot be installed within {INSTALL_S} s") from e
