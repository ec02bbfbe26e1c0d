"""The table of the same task in other libraries: our column is run again, the lines are counted again."""

import runpy
import subprocess
import traceback
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from benchmarks.first_call import ANSWERS, PRICE, lines_of, outcome
from benchmarks.house import ROOT

TABLE = (ROOT / "docs" / "explanation" / "performance.md").read_text(encoding="utf-8")
TASKS = ("ours_task", "instructor_task", "pydantic_ai_task")


def run_here(program: Path, env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a program in this process, which has loaded the package."""
    out = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        for name, value in env.items():
            patch.setenv(name, value)
        try:
            runpy.run_path(str(program))
        except Exception:  # noqa: BLE001 - its traceback is a result
            return subprocess.CompletedProcess([], 1, out.getvalue(), traceback.format_exc())
    return subprocess.CompletedProcess([], 0, out.getvalue(), "")


def test_own_column_matches_the_documentation() -> None:
    (_, valid), *unusable = ANSWERS.items()

    assert f"Decimal('{PRICE}')" in outcome(run_here, "ours_task", valid)
    assert f"| price of a valid answer | `{PRICE}` |" in TABLE
    for name, answer in unusable:
        assert f"| {name} | {outcome(run_here, 'ours_task', answer)} |" in TABLE


def test_documented_line_counts_match() -> None:
    assert f"| lines of code | {' | '.join(str(lines_of(task)) for task in TASKS)} |" in TABLE
