"""The CSV files have every row of the record."""

import csv
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from agentic_trading.desk.report.export import write_csv
from agentic_trading.desk.report.record import RunOnRecord
from agentic_trading.llm.errors import StoreError

pytestmark = pytest.mark.timeout(180)  # whole sessions are run, one of 50 stocks


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_files_have_rows_of_record(faulty: RunOnRecord, tmp_path: Path) -> None:
    written = write_csv(faulty, tmp_path / "out")

    assert [path.name for path in written] == ["equity.csv", "fills.csv", "decisions.csv", "calls.csv"]
    equity, fills, decisions, calls = map(table, written)
    assert [Decimal(row["equity"]) for row in equity] == [point.equity for point in faulty.points]
    assert equity[-1]["time"] == "2023-03-23T03:00:00Z"
    assert Decimal(equity[-1]["inference_usd"]) == Decimal(faulty.report.cost_nusd) / 10**9
    assert Decimal(equity[0]["inference_usd"]) == 0
    assert [row["fill_id"] for row in fills] == [each.event_id for each in faulty.fills]
    assert sum(Decimal(row["fee"]) for row in fills) == faulty.report.fees
    assert [row["verdict"] for row in decisions] == [each.verdict for each in faulty.decisions]
    assert sum(int(row["cost_nusd"]) for row in calls) == faulty.report.cost_nusd
    assert {row["outcome"] for row in calls} == set(faulty.report.attempts_by_outcome)


def test_undated_calls_count_from_the_start(faulty: RunOnRecord, tmp_path: Path) -> None:
    undated = replace(faulty, attempts=[replace(each, as_of=None) for each in faulty.attempts])

    equity, *_ = map(table, write_csv(undated, tmp_path))

    assert Decimal(equity[0]["inference_usd"]) == Decimal(faulty.report.cost_nusd) / 10**9


def test_file_in_place_of_folder_is_an_error(faulty: RunOnRecord, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("", encoding="utf-8")

    with pytest.raises(StoreError, match=r"cannot be written .*\. Choose another --csv"):
        write_csv(faulty, taken)
