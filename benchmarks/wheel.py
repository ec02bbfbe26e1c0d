"""Check that the wheel runs on every declared Python version, with the same digests.

Run: python -m benchmarks.wheel (`make wheel`). Builds the wheel, installs it without the source tree into a bare
environment of each version in the classifiers of pyproject.toml, imports the drivers of Kafka and of Anthropic, runs the
contract suites on adapters of a user, and runs six commands there. Exits with 1 if an
interpreter is missing, a command fails, or two versions print different digests.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
READY_WITHIN_S: Final = 60.0
COMMAND_WITHIN_S: Final = 300.0
SESSION: Final = (
    "--data",
    "btcusdt-5m",
    "--bars",
    "220",
    "--provider",
    "rules",
    "--seed",
    "5",
    "--budget-usd",
    "1",
    "--json",
)
COMMANDS: Final = (
    "import drivers",
    "contract suites",
    "config check",
    "run",
    "replay run",
    "audit verify",
    "worker",
    "run --bus redis",
)
DRIVERS: Final = (
    "import agentic_trading.bus.brokers.kafka.broker, agentic_trading.llm.providers.anthropic.sdk, cramjam\n"
    "from importlib.resources import files\n"
    "for name in ('__init__.pyi', 'py.typed'): files('agentic_trading').joinpath(name).read_bytes()"
)
"""What a plain install must have: the bus on Kafka with zstd, the SDK of Anthropic, and the types of the public API."""

PAGE_OF_SUITES: Final = ROOT / "docs" / "how-to" / "write-an-adapter.md"
SUITES: Final = """\
import unittest

from agentic_trading.desk import Agent, Bar, Continuity, Desk
from agentic_trading.testing import AgentSuite, BarFeedSuite
import test_house


class HouseFeed:
    def __init__(self, bars, symbol, timeframe):
        self.bars, self.symbol, self.timeframe = bars, symbol, timeframe

    async def __aiter__(self):
        order = Continuity("house", self.symbol, self.timeframe)
        for line, bar in enumerate(self.bars, 1):
            for item in order.admit(line, bar):
                yield item


class Momentum(Agent):
    timeframe = "1h"

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        if bar.close > bar.open and not desk.position():
            desk.buy(notional=500, stop=bar.close * 98 / 100)


class Provider(test_house.TestHouseProvider, unittest.TestCase):
    pass


class Feed(BarFeedSuite, unittest.TestCase):
    def feed(self, bars):
        return HouseFeed(bars, self.symbol, self.timeframe)


class Trader(AgentSuite, unittest.TestCase):
    agent = Momentum
    bars = 150
"""
"""A user's tests of a provider, a feed and an agent, with unittest, because a plain install has no pytest."""

OUTCOMES: Final = ("decisions", "attempts_by_outcome", "orders", "fills", "fees", "equity_end")
CONFIGURATION: Final = """\
[providers.rules]

[tenants.default]
budget_usd = "25.50"
window = "day"
"""
_DECLARED: Final = re.compile(r"Programming Language :: Python :: (3\.\d+)")
_IS_USABLE: Final = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


class WheelError(Exception):
    """The job cannot start, or its wheel cannot be installed."""


def declared_versions(pyproject: str) -> list[str]:
    """Return the Python versions in the classifiers, oldest first."""
    classifiers = tomllib.loads(pyproject)["project"]["classifiers"]
    found = [match[1] for text in classifiers if (match := _DECLARED.fullmatch(text))]
    return sorted(found, key=_numbers)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def interpreter(version: str) -> Path | None:
    """Return an interpreter of this version that can make environments: from PATH, else from pyenv."""
    names = [sys.executable, shutil.which(f"python{version}"), *_from_pyenv(version)]
    return next((Path(name) for name in names if name and _answer(name, "-c", _IS_USABLE) == version), None)


def _from_pyenv(version: str) -> Iterator[str]:
    """Yield the interpreters of pyenv, newest release first."""
    installed = _answer("pyenv", "versions", "--bare").split()
    for name in sorted(installed, key=_numbers, reverse=True):
        if name == version or name.startswith(f"{version}."):
            yield str(Path(_answer("pyenv", "prefix", name), "bin", "python"))


def _answer(*command: str) -> str:
    """Return the output of a command, or an empty text if it fails."""
    try:
        ended = subprocess.run(  # noqa: S603 - pyenv or an interpreter, by fixed words
            command, capture_output=True, text=True, timeout=60, check=False
        )
    except OSError:
        return ""
    return "" if ended.returncode else ended.stdout.strip()


def interpreters(versions: Sequence[str]) -> dict[str, Path]:
    """Return one interpreter for each version; raises `WheelError` with the missing versions."""
    found = {version: interpreter(version) for version in versions}
    if missing := [version for version, path in found.items() if path is None]:
        raise WheelError(
            f"pyproject.toml declares Python {', '.join(missing)}, which is not installed with its venv module. "
            f"Checked: python{missing[0]} on PATH, and pyenv. "
            f"Install it (pyenv install {missing[0]}), or remove the classifier."
        )
    return {version: path for version, path in found.items() if path}


@dataclass(frozen=True)
class Result:
    """The exit code of a command, its digest, and its error output."""

    exit_code: int
    digest: str = ""
    error: str = ""


@dataclass
class Bare:
    """An environment of one version that holds the wheel and its dependencies, in a folder without the sources."""

    version: str
    folder: Path
    results: dict[str, Result] = field(default_factory=dict)

    @property
    def program(self) -> str:
        return str(self.folder / "env" / "bin" / "agentic-trading")

    def install(self, python: Path, wheel: Path) -> None:
        """Make the environment and install the wheel with the constraints of the repository."""
        self.folder.mkdir()
        uv = (str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet")
        for command in (
            (str(python), "-m", "venv", "--without-pip", "env"),
            (*uv, "--python", "env", "--constraint", str(ROOT / "constraints.txt"), str(wheel)),
        ):
            ended = self.run(*command)
            if ended.returncode:
                raise WheelError(f"Python {self.version}: {' '.join(command)} failed:\n{ended.stderr}")

    def run(self, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in the folder of this version."""
        return subprocess.run(  # noqa: S603 - a program of our own environment
            command,
            cwd=self.folder,
            env=clean_environment() | variables,
            capture_output=True,
            text=True,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )

    def keep(self, name: str, digest: Callable[[str], str], *arguments: str, **variables: str) -> None:
        """Run the installed program and keep its result under `name`."""
        ended = self.run(self.program, *arguments, **variables)
        found = digest(ended.stdout) if ended.returncode == 0 else ""
        self.results[name] = Result(ended.returncode, found, ended.stderr)


def clean_environment() -> dict[str, str]:
    """Return the environment without import paths and without our own settings."""
    ours = ("AGENTIC_", "PYTHON", "PYENV_", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def digest_of_text(text: str) -> str:
    """Return the hash of an output that has no times and no ids."""
    return hashlib.sha256(text.encode()).hexdigest()


def decision_digest(output: str) -> str:
    """Return the digest of a decision log from the JSON output of `run` or `replay run`."""
    return str(json.loads(output)["digest"])


def outcome_digest(output: str) -> str:
    """Return the hash of the outcomes of a run; each run over a bus has new ids, so its decision log differs."""
    found: dict[str, Any] = json.loads(output)
    return digest_of_text(json.dumps({name: found[name] for name in OUTCOMES}, sort_keys=True))


def verdict_digest(output: str) -> str:
    """Return the hash of a verdict and its number of lines; the head of a log depends on the time."""
    found: dict[str, Any] = json.loads(output)
    return digest_of_text(f"{found['verdict']} {found['lines']} {found['findings']}")


def make_sessions(bare: Bare) -> None:
    """Import the drivers, check a configuration and run a session."""
    ended = bare.run(str(bare.folder / "env" / "bin" / "python"), "-c", DRIVERS)
    bare.results["import drivers"] = Result(ended.returncode, error=ended.stderr)
    bare.results["contract suites"] = check_adapters(bare)
    (bare.folder / "wheel.toml").write_text(CONFIGURATION, encoding="utf-8")
    bare.keep("config check", digest_of_text, "config", "check", "--config", "wheel.toml")
    bare.keep("run", decision_digest, "run", *SESSION, "--out", "session")


def check_adapters(bare: Bare) -> Result:
    """Run the contract suites on a user's adapters, in the folder of this version."""
    page = re.search(
        r"<!-- file: (test_house\.py) -->\n```python\n(.*?)^```",
        PAGE_OF_SUITES.read_text("utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    assert page
    (bare.folder / page[1]).write_text(page[2], encoding="utf-8")
    (bare.folder / "test_own.py").write_text(SUITES, encoding="utf-8")
    ended = bare.run(str(bare.folder / "env" / "bin" / "python"), "-m", "unittest", "test_own")
    return Result(ended.returncode, error=ended.stderr)


def read_session(bare: Bare, other: Bare) -> None:
    """Replay and verify the session that another version recorded."""
    session = str(other.folder / "session")
    bare.keep("replay run", decision_digest, "replay", "run", session, "--json")
    bare.keep("audit verify", verdict_digest, "audit", "verify", session, "--json")


def call_worker(bare: Bare) -> None:
    """Run the same session with its calls made by a worker process, over a Redis server of this environment."""
    started = bare.run(bare.program, "services", "start", "redis", "--json")
    if started.returncode:
        raise WheelError(f"Redis cannot be started: {started.stderr}")
    try:
        url = re.search(r"redis://[\w.:/]+", started.stdout)
        assert url
        servers = {
            "AGENTIC_BUS__URL": url[0],
            "AGENTIC_BUS__NAMESPACE": "wheel",
            "AGENTIC_LEDGER_URL": url[0],
        }
        created = bare.run(bare.program, "topics", "create", **servers)
        if created.returncode:
            raise WheelError(f"Python {bare.version}: topics create failed: {created.stderr}")
        with worker(bare, servers):
            bare.keep("run --bus redis", outcome_digest, "run", *SESSION, "--out", "fleet", **servers)
    finally:
        bare.run(bare.program, "services", "stop", "redis")


@contextmanager
def worker(bare: Bare, servers: dict[str, str]) -> Iterator[None]:
    """Run a worker process, and keep its exit code after SIGTERM."""
    log = bare.folder / "worker.log"
    command = (
        bare.program,
        "worker",
        "--provider",
        "rules",
        "--package",
        "agentic-trading",
        "--mode",
        "backtest",
        "--http",
        "127.0.0.1:0",
    )
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - a program of our own environment
            command, cwd=bare.folder, env=clean_environment() | servers, stdout=output, stderr=output
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            code = process.wait(READY_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        bare.results["worker"] = Result(code, error=log.read_text(encoding="utf-8"))


def problems(environments: Sequence[Bare]) -> list[str]:
    """Return the commands that failed, and those with different digests."""
    found = []
    for bare in environments:
        for name in COMMANDS:
            result = bare.results.get(name)
            if result is None or result.exit_code:
                why = f"exit {result.exit_code}\n{result.error}" if result else "did not run"
                found.append(f"Python {bare.version}: {name}: {why}")
    for first, second in pairwise(environments):
        for name in COMMANDS:
            digests = [bare.results[name].digest for bare in (first, second) if name in bare.results]
            if len(set(digests)) > 1:
                versions = f"Python {first.version} and Python {second.version}"
                found.append(f"{versions}: {name}: different digests {' and '.join(digests)}")
    return found


def print_table(environments: Sequence[Bare]) -> None:
    """Print version, command, exit code and digest."""
    print(f"{'Python':<8}{'command':<18}{'exit':>5}  digest")
    for bare in environments:
        for name in COMMANDS:
            result = bare.results.get(name, Result(-1))
            print(f"{bare.version:<8}{name:<18}{result.exit_code:>5}  {result.digest[:16] or '-'}")


def check_wheel(folder: Path) -> list[str]:
    """Build, install and run the wheel; print the table and return the problems."""
    versions = interpreters(declared_versions((ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    build = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    )
    subprocess.run(build, check=True, cwd=folder)  # noqa: S603 - our own interpreter
    wheel = next(folder.glob("*.whl"))
    environments = [Bare(version, folder / version) for version in versions]
    others = [*environments[1:], environments[0]]
    with ThreadPoolExecutor(len(environments)) as pool:
        for step in (
            lambda bare: bare.install(versions[bare.version], wheel),
            make_sessions,
            call_worker,
        ):
            list(pool.map(step, environments))
        list(pool.map(read_session, environments, others))
    print_table(environments)
    return problems(environments)


def main() -> int:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agentic-wheel-") as folder:
        try:
            found = check_wheel(Path(folder))
        except WheelError as e:
            found = [str(e)]
    print(f"{time.monotonic() - started:.0f} s", *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
