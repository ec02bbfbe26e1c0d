"""The table of the same task in other libraries: our column is run again, the lines are counted again."""

import sys

from benchmarks.first_call import ANSWERS, PRICE, lines_of, outcome
from benchmarks.house import ROOT

TABLE = (ROOT / "docs" / "explanation" / "performance.md").read_text(encoding="utf-8")
TASKS = ("ours_task", "instructor_task", "pydantic_ai_task")


def test_own_column_matches_the_documentation() -> None:
    (_, valid), *unusable = ANSWERS.items()

    assert f"Decimal('{PRICE}')" in outcome(sys.executable, "ours_task", valid)
    assert f"| price of a valid answer | `{PRICE}` |" in TABLE
    for name, answer in unusable:
        assert f"| {name} | {outcome(sys.executable, 'ours_task', answer)} |" in TABLE


def test_documented_line_counts_match() -> None:
    assert f"| lines of code | {' | '.join(str(lines_of(task)) for task in TASKS)} |" in TABLE
