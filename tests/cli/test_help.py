"""The help is quick, the documents keep up with it, and the shell can complete."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from typer.core import TyperGroup

from agentic_trading import __version__
from agentic_trading.cli.exits import ExitCode
from agentic_trading.platform.config import RunMode
from tests.cli.conftest import Command
from tests.whole_program import whole_program

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
HEAVY = {"aiokafka", "anthropic", "numpy", "orjson", "pydantic", "redis", "rich", "structlog"}
MODULES_OF_HELP = 300
"""With 265 it takes 0.25 s of CPU. Modules are counted, because a time depends on the load of the machine."""
MEASURE = """
import json, sys
from agentic_trading.cli.main import main
try:
    main(["--help"])
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def commands() -> Iterator[tuple[str, ...]]:
    """Yield the words of every command and group."""
    root = whole_program()
    yield ()
    for name, inner in root.commands.items():
        yield (name,)
        if isinstance(inner, TyperGroup):
            yield from ((name, below) for below in inner.commands)


every_command = pytest.mark.parametrize("words", list(commands()), ids=" ".join)


def test_help_loads_few_light_modules() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, check=True, text=True)
    loaded = json.loads(done.stderr)

    assert len(loaded) < MODULES_OF_HELP
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()


def test_platform_import_loads_no_vendor_or_driver() -> None:
    """Both are part of the core, and are loaded when they are used."""
    code = "import sys, agentic_trading.llm, agentic_trading.platform; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout

    roots = {name.partition(".")[0] for name in loaded.split()}
    assert roots & {"aiokafka", "anthropic", "cramjam", "httpx2"} == set()


def test_light_commands_contract_names_help_modules() -> None:
    listing = "import sys, agentic_trading.cli.commands, agentic_trading.cli.main; print(*[m for m in sys.modules if '.cli.' in m and 'agentic' in m])"
    loaded = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, check=True, text=True
    ).stdout
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]

    [light] = [contract for contract in contracts if contract["id"] == "light-commands"]
    assert sorted(loaded.split()) == sorted(light["source_modules"])


@every_command
def test_every_flag_is_documented(words: tuple[str, ...], command: Command) -> None:
    told = command(*words, "--help")

    assert told.code == ExitCode.DONE
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", told.out))
    assert flags <= set(re.findall(r"--[a-z][a-z-]*", DOCUMENT))


@every_command
def test_group_commands_fit_80_columns(
    words: tuple[str, ...], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    lines = command(*words, "--help").out.splitlines()

    assert [line for line in lines if len(line) > 80] == []
    commands = lines.index("Commands:") + 1 if "Commands:" in lines else len(lines)
    assert [line for line in lines[commands:] if line.endswith("...")] == []


@every_command
def test_arguments_are_named_like_options(words: tuple[str, ...], command: Command) -> None:
    assert re.findall(r"<[a-z\[\]]+>", command(*words, "--help").out) == []


@every_command
def test_every_command_is_documented(words: tuple[str, ...]) -> None:
    assert f"`{' '.join(words)}" in DOCUMENT or f"agentic-trading {' '.join(words)}" in DOCUMENT


def test_documented_exit_codes_match(command: Command) -> None:
    table = dict(re.findall(r"^\| (\d+) \| (.*) \|$", DOCUMENT, re.MULTILINE))

    assert {int(code): meaning for code, meaning in table.items()} == {c.value: c.meaning for c in ExitCode}
    told = " ".join(command("--help").out.split())
    assert all(code.meaning in told for code in ExitCode)


def test_run_help_lists_the_modes(command: Command) -> None:
    told = command("run", "--help").out

    assert f"<{'|'.join(get_args(RunMode))}>" in told


def test_unknown_provider_error_lists_allowed_names(command: Command) -> None:
    ended = command("run", "--data", "btcusdt-5m", "--provider", "acme")

    assert ended.code == ExitCode.BAD_INPUT
    assert "--provider is 'acme'. Allowed: rules, recorded, anthropic, openai, local or config" in ended.err


def test_version_is_printed(command: Command) -> None:
    assert command("--version").out == f"{__version__}\n"


def test_missing_command_exits_with_usage(command: Command) -> None:
    ended = command()

    assert ended.code == ExitCode.BAD_INPUT
    assert "Usage: agentic-trading" in ended.out + ended.err


def test_shell_completes_sample_names() -> None:
    asked = {
        "_AGENTIC_TRADING_COMPLETE": "complete_bash",
        "COMP_WORDS": "agentic-trading run --data b",
        "COMP_CWORD": "3",
    }
    start = "from agentic_trading.cli.main import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, check=True, text=True, env=asked
    )

    assert done.stdout.split() == ["btcusdt-5m"]
