"""The report of a live check: what it proves, and what it cost."""

from datetime import date
from typing import get_args

import pytest

from agentic_trading.cli.model_tables import live_check_table
from agentic_trading.cli.output import print_table
from agentic_trading.operate.models.live_check import LiveCheckProof, LiveCheckRow, LiveReport, LiveVerdict


def report(*lines: LiveCheckRow, stopped: str = "") -> LiveReport:
    """Return a report on one model."""
    return LiveReport(
        version="0.1.0",
        checked_on=date(2026, 11, 22),
        address="the provider's own",
        price_book="list@1",
        max_nusd=50_000_000,
        proofs=(LiveCheckProof(model="anthropic/m", lines=lines, stopped=stopped),),
    )


def line(**changes: object) -> LiveCheckRow:
    """Return a line that came out as the table says."""
    fields = {"about": "effort", "told": "takes low", "seen": "low was taken", "verdict": "as told"}
    return LiveCheckRow.model_validate({**fields, "cost_nusd": 260_000, **changes})


def test_report_table_has_verdicts_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(live_check_table(report(line(), line(verdict="differs"), line(verdict="not proved"))))

    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{verdict} 0.000260000" in shown for verdict in get_args(LiveVerdict))
    assert "0.000780000 of at most 0.050000000 USD by price book list@1" in shown


def test_server_text_is_escaped_in_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(live_check_table(report(line(seen="a\n[bold]b\x1b[2J"))))

    assert "a\\n[bold]b\\x1b[2J" in capsys.readouterr().out


def test_only_complete_report_is_a_proof() -> None:
    assert report(line()).proved
    assert not report(line(verdict="not proved")).proved
    assert not report(line(), stopped="no answer").proved
