"""`agent new`: the written agent and its test pass every check, and no file is overwritten."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from tests.cli.conftest import Command

BIN = Path(sys.executable).parent


def ended(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of the environment in a folder, with the package as an installed one."""
    return subprocess.run(
        [str(BIN / words[0]), *words[1:]], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.timeout(300)
def test_written_agent_passes_its_next_commands_and_linters(tmp_path: Path, command: Command) -> None:
    made = command("agent", "new", "mean-reversion", "--folder", "own")
    folder = tmp_path / "own"

    assert made.code == ExitCode.DONE, made.err
    assert sorted(path.name for path in folder.iterdir()) == ["mean_reversion.py", "test_mean_reversion.py"]
    moved, *following = made.out.partition("Next\n")[2].strip().splitlines()
    assert moved == "cd own"
    assert [line.strip() for line in following] == [
        "agentic-trading agent check mean_reversion:MeanReversion",
        "python -m pytest test_mean_reversion.py",
    ]
    for words in (
        *(line.split() for line in following),
        ["ruff", "check", "--isolated", "."],
        ["ruff", "format", "--isolated", "--check", "."],
    ):
        result = ended(folder, *words)
        assert result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"


@pytest.mark.soak
def test_written_agent_passes_the_strict_types(tmp_path: Path, command: Command) -> None:
    assert command("agent", "new", "mean-reversion", "--folder", "own").code == ExitCode.DONE

    result = ended(tmp_path / "own", "mypy", "--strict", ".")

    assert result.returncode == 0, result.stdout + result.stderr


def test_written_agent_is_short_and_uses_public_names(tmp_path: Path, command: Command) -> None:
    command("agent", "new", "Momentum")
    texts = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}

    lines = [line for line in texts["momentum.py"].splitlines() if line.strip() and '"""' not in line]
    assert len(lines) <= 22
    assert "class Momentum(Agent):" in texts["momentum.py"]
    imported = {
        node.module for text in texts.values() for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)
    }  # fmt: skip
    assert imported == {"agentic_trading.desk", "pydantic"}


@pytest.mark.parametrize("existing", ["momentum.py", "test_momentum.py"])
def test_existing_file_is_kept(existing: str, tmp_path: Path, command: Command) -> None:
    (tmp_path / existing).write_text("mine", encoding="utf-8")

    refused = command("agent", "new", "momentum")

    assert refused.code == ExitCode.BAD_INPUT
    assert f"{existing} exists" in refused.err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {existing: "mine"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("json", "a module json is installed"),
        ("pydantic", "a module pydantic is installed"),
        ("agentic_trading", "a module agentic_trading is installed"),
        ("class", "words of ASCII letters and digits"),
        ("2nd", "words of ASCII letters and digits"),
        ("../up", "words of ASCII letters and digits"),
        ("ünder", "words of ASCII letters and digits"),
        ("verdict", "but not Agent"),
        ("true", "but not Agent"),
        ("", "words of ASCII letters and digits"),
    ],
)
def test_unusable_name_is_refused(name: str, message: str, tmp_path: Path, command: Command) -> None:
    refused = command("agent", "new", name)

    assert refused.code == ExitCode.BAD_INPUT
    assert message in refused.err
    assert list(tmp_path.iterdir()) == []


def test_unusable_folder_is_refused(tmp_path: Path, command: Command) -> None:
    (tmp_path / "file").touch()

    refused = command("agent", "new", "momentum", "--folder", "file")

    assert refused.code == ExitCode.BAD_INPUT
    assert "--folder is file" in refused.err
