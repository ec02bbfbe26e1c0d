"""The import contracts hold, and each of them bites: a breach of every one is planted in a copy."""

import ast
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINTER = Path(sys.executable).parent / "lint-imports"

pytestmark = pytest.mark.timeout(60)  # the linter reads the whole package, in a process of its own


@dataclass(frozen=True, slots=True)
class Breach:
    """A file that breaks a contract, and what the linter must say about it."""

    contract: str
    path: str
    code: str
    says: str


UP = "Imports point down, and not sideways"
DESK = "The desk: commands over session over agents over exchange over market"
APART = "The gateway never imports the desk"
BUS = "Who asks does not know who works"
ADAPTERS = "Only the wiring and the front door of llm name adapters"

BREACHES = {
    "upwards": Breach(
        UP, "llm/x_up.py", "import agentic_trading.worker", "llm.x_up -> agentic_trading.worker"
    ),
    "upwards, inside a function": Breach(
        UP,
        "bus/x_late.py",
        "def f():\n    import agentic_trading.operate",
        "bus.x_late -> agentic_trading.operate",
    ),
    "upwards, for types": Breach(
        UP,
        "canonical.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import agentic_trading.llm",
        "agentic_trading.canonical -> agentic_trading.llm",
    ),
    "sideways": Breach(
        UP,
        "governance/x_side.py",
        "import agentic_trading.structured",
        "governance.x_side -> agentic_trading.structured",
    ),
    "a package without a place": Breach(UP, "misfit/__init__.py", "", "agentic_trading.misfit"),
    "the market knows the session": Breach(
        DESK,
        "desk/market/x_up.py",
        "import agentic_trading.desk.session.trading_session",
        "x_up -> agentic_trading.desk.session.trading_session",
    ),
    "a ring": Breach(
        "No rings between siblings",
        "llm/x_ring.py",
        "import agentic_trading.llm.x_up\n",
        "agentic_trading.llm",
    ),
    "the gateway knows the desk": Breach(
        APART, "worker/x_desk.py", "import agentic_trading.desk", "worker.x_desk -> agentic_trading.desk"
    ),
    "the platform knows the desk": Breach(
        APART, "platform/x_desk.py", "import agentic_trading.desk", "platform.x_desk -> agentic_trading.desk"
    ),
    "the desk uses the suites for users": Breach(
        UP,
        "desk/market/x_suite.py",
        "import agentic_trading.testing.suite",
        "x_suite -> agentic_trading.testing.suite",
    ),
    "the operators' actions know the desk": Breach(
        APART,
        "operate/x_desk.py",
        "import agentic_trading.desk.session",
        "operate.x_desk -> agentic_trading.desk.session",
    ),
    "a command of the gateway knows the desk": Breach(
        APART,
        "cli/x_desk.py",
        "def f():\n    import agentic_trading.desk.cli.run",
        "cli.x_desk -> agentic_trading.desk.cli.run",
    ),
    "an action knows the command line": Breach(
        UP, "operate/x_cli.py", "import agentic_trading.cli", "operate.x_cli -> agentic_trading.cli"
    ),
    "the session knows its commands": Breach(
        DESK,
        "desk/session/x_cli.py",
        "import agentic_trading.desk.cli.run",
        "session.x_cli -> agentic_trading.desk.cli.run",
    ),
    "the session prints": Breach(
        "Of the desk, only its commands know the command line",
        "desk/session/x_print.py",
        "import agentic_trading.cli.output",
        "session.x_print -> agentic_trading.cli.output",
    ),
    "a client knows the worker": Breach(
        BUS,
        "client/x_worker.py",
        "import agentic_trading.worker",
        "client.x_worker -> agentic_trading.worker",
    ),
    "the desk knows the budget": Breach(
        BUS,
        "desk/planning/x_money.py",
        "import agentic_trading.governance",
        "planning.x_money -> agentic_trading.governance",
    ),
    "the worker names a store": Breach(
        ADAPTERS,
        "worker/x_store.py",
        "import agentic_trading.llm.stores.memory",
        "worker.x_store -> agentic_trading.llm.stores.memory",
    ),
    "a module of llm names a store": Breach(
        ADAPTERS,
        "llm/x_store.py",
        "import agentic_trading.llm.stores.memory",
        "llm.x_store -> agentic_trading.llm.stores.memory",
    ),
    "the reader waits": Breach(
        "Structured output does no I/O",
        "structured/x_wait.py",
        "import asyncio",
        "structured.x_wait -> asyncio",
    ),
    "the sandbox knows us": Breach(
        "The child of the sandbox is a program of its own",
        "desk/planning/sandbox_child.py",
        "import agentic_trading.ids",
        "sandbox_child -> agentic_trading.ids",
    ),
    "anthropic by the window": Breach(
        "anthropic has one door", "worker/x_sdk.py", "import anthropic", "worker.x_sdk -> anthropic"
    ),
    "aiohttp by the window": Breach(
        "aiohttp has one door for each side", "worker/x_http.py", "import aiohttp", "worker.x_http -> aiohttp"
    ),
    "openai by the window": Breach(
        "openai is an oracle of the tests", "worker/y_sdk.py", "import openai", "worker.y_sdk -> openai"
    ),
    "aiokafka by the window": Breach(
        "aiokafka has one door", "worker/x_kafka.py", "import aiokafka", "worker.x_kafka -> aiokafka"
    ),
    "a session needs numpy": Breach(
        "Only planning needs numpy, which is an extra",
        "desk/x_array.py",
        "import numpy",
        "desk.x_array -> numpy",
    ),
    "a command loads pydantic": Breach(
        "A command loads nothing heavy to be listed",
        "cli/budget.py",
        "import pydantic",
        "cli.budget -> pydantic",
    ),
    "redis under another name": Breach(
        "redis only in adapters named redis.py",
        "governance/x_cache.py",
        "import redis.asyncio",
        "governance.x_cache -> redis",
    ),
}
RING_BACK = "import agentic_trading.llm.x_ring\n"


def lint(root: Path) -> str:
    """Run the linter over the package in `root` and return what it says, one breach a line."""
    run = subprocess.run(
        [LINTER, "--no-cache"],
        cwd=root,
        env={"PYTHONPATH": str(root), "COLUMNS": "400", "PATH": ""},
        capture_output=True,
        check=False,
        text=True,
        encoding="utf-8",
    )
    return run.stdout + run.stderr


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the linter's report on a copy of the package in which every breach is planted."""
    root = tmp_path_factory.mktemp("breached")
    shutil.copy(ROOT / "pyproject.toml", root)
    package = root / "agentic_trading"
    shutil.copytree(ROOT / "agentic_trading", package, ignore=shutil.ignore_patterns("__pycache__", "data"))
    for breach in BREACHES.values():
        path = package / breach.path
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{breach.code}\n")
    with (package / "llm/x_up.py").open("a", encoding="utf-8") as file:
        file.write(RING_BACK)
    return lint(root)


def test_every_contract_is_kept() -> None:
    report = lint(ROOT)

    assert " 0 broken." in report, report


@pytest.mark.parametrize("name", BREACHES)
def test_planted_breach_is_caught(name: str, report: str) -> None:
    breach = BREACHES[name]
    said = report.split("Broken contracts", 1)[-1]

    assert f"{breach.contract} BROKEN" in report, report
    assert breach.says in said, said


def test_every_contract_has_a_planted_breach(report: str) -> None:
    assert " 0 kept, " in report, report


def desk_modules_named_in(package: Path) -> list[str]:
    """Return the strings outside `desk` that are names of its modules, which the linter does not see."""
    named = re.compile(r"(agentic_trading\.)?desk(\.\w+)+(:\w+)?")
    paths = [path for path in sorted(package.rglob("*.py")) if path.relative_to(package).parts[0] != "desk"]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    return [
        f"{path.relative_to(package)}: {node.value}"
        for path, text in texts.items()
        if "desk." in text  # only these are parsed
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and named.fullmatch(node.value)
    ]


def test_gateway_names_no_desk_module_in_strings() -> None:
    assert desk_modules_named_in(ROOT / "agentic_trading") == []


def test_desk_import_by_string_is_found(tmp_path: Path) -> None:
    (tmp_path / "cli").mkdir()
    late = "from importlib import import_module\nimport_module('agentic_trading.desk.session')\n"
    (tmp_path / "cli" / "x_late.py").write_text(late, encoding="utf-8")

    assert desk_modules_named_in(tmp_path) == ["cli/x_late.py: agentic_trading.desk.session"]
