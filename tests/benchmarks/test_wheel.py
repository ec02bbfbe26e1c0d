"""The job of the wheel: its versions, its message for a missing interpreter, and the problems that it must find."""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.house import ROOT
from benchmarks.wheel import (
    COMMANDS,
    Bare,
    Result,
    WheelError,
    declared_versions,
    interpreter,
    interpreters,
    problems,
)

PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def environments() -> list[Bare]:
    """Return two versions on which every command ended well."""
    good = dict.fromkeys(COMMANDS, Result(0, "d1"))
    return [Bare(version, Path(version), dict(good)) for version in ("3.11", "3.12")]


def test_lowest_declared_version_is_required() -> None:
    required = tomllib.loads(PYPROJECT)["project"]["requires-python"]

    assert f">={declared_versions(PYPROJECT)[0]}" == required


def test_declared_versions_are_sorted_by_number() -> None:
    text = '[project]\nclassifiers = ["Programming Language :: Python :: 3.10", "Programming Language :: Python :: 3.9"]'

    assert declared_versions(text) == ["3.9", "3.10"]


def test_current_interpreter_is_found() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"

    assert interpreter(version) == Path(sys.executable)


def test_missing_interpreter_error_names_remedy() -> None:
    with pytest.raises(WheelError, match=r"Python 3\.99, which is not installed.*pyenv install 3\.99"):
        interpreters(["3.99"])


def test_equal_results_are_no_problem() -> None:
    assert problems(environments()) == []


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (Result(4, error="Error: internal"), "Python 3.12: run: exit 4\nError: internal"),
        (Result(0, "d2"), "Python 3.11 and Python 3.12: run: different digests d1 and d2"),
    ],
)
def test_failure_or_different_digest_is_a_problem(result: Result, problem: str) -> None:
    first, second = environments()
    changed = replace(second, results=second.results | {"run": result})

    assert problem in problems([first, changed])


def test_missing_command_result_is_a_problem() -> None:
    first, second = environments()
    del second.results["worker"]

    assert problems([first, second]) == ["Python 3.12: worker: did not run"]
