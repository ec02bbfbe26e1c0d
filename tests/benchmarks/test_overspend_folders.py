"""Folder runs are judged by the invoice: by what passes the limit, and by what the books do not show."""

import pytest

from benchmarks.overspend_folders import print_folders, problems_of
from tests.flows.killed_runs import LIMIT_NUSD, KilledRun


def a_run(mode: str = "paper", *, invoice: int = LIMIT_NUSD, spent: int = LIMIT_NUSD) -> KilledRun:
    return KilledRun(mode, kills=5, calls=6, invoice=invoice, spent=spent, spend=spent)


def test_booked_bill_within_limit_is_accepted() -> None:
    assert problems_of([a_run(), a_run(invoice=0)]) == []


def test_overspend_or_missing_nano_dollar_is_reported() -> None:
    over = a_run(invoice=LIMIT_NUSD + 1, spent=LIMIT_NUSD + 1)

    assert problems_of([a_run(), over]) == ["1 of 2 folders overspent, by up to 0.000000001 USD"]
    assert problems_of([a_run(spent=LIMIT_NUSD - 1)]) == [
        "the books of 1 lack up to 0.000000001 USD of the invoice"
    ]


def test_each_mode_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_folders([a_run("backtest"), a_run("paper"), a_run("paper")])

    rows = capsys.readouterr().out.splitlines()[-2:]
    assert [row.split()[:3] for row in rows] == [["backtest", "1", "5"], ["paper", "2", "10"]]
