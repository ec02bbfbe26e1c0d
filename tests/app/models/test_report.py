"""The report of a live check is a page for people and JSON for programs."""

import json
from datetime import date
from pathlib import Path

from agentic_trading.app.models.live_check import LiveCheckProof, LiveCheckRow
from agentic_trading.app.models.report import LiveReport, as_markdown, cannot_write, write_report


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
    """Return a line that came out as told."""
    fields = {"about": "effort", "told": "takes low", "seen": "low was taken", "verdict": "as told"}
    return LiveCheckRow.model_validate({**fields, "cost_nusd": 260_000, **changes})


def test_the_page_counts_verdicts_and_sums_costs() -> None:
    page = as_markdown(report(line(), line(verdict="differs"), line(verdict="not proved")))

    assert "1 as told, 1 differs, 1 not proved" in page
    assert "it cost 0.000780000 USD" in page
    assert "of at most 0.050000000" in page


def test_what_a_server_says_cannot_leave_its_cell() -> None:
    page = as_markdown(report(line(seen="a | b\n\n# c `d`")))

    assert "| a \\| b # c 'd' |" in page


def test_only_a_report_without_a_gap_is_a_proof() -> None:
    assert report(line()).proved
    assert not report(line(verdict="not proved")).proved
    assert not report(line(), stopped="no answer").proved


def test_both_files_are_written_side_by_side(tmp_path: Path) -> None:
    page, document = write_report(report(line()), tmp_path / "check.md")

    assert page.read_text(encoding="utf-8").startswith("# Models, asked live")
    assert json.loads(document.read_text(encoding="utf-8"))["proofs"][0]["lines"][0]["cost_nusd"] == 260_000


def test_a_place_that_cannot_be_written_is_found_out_beforehand(tmp_path: Path) -> None:
    (tmp_path / "folder.md").mkdir()

    assert cannot_write(tmp_path / "check.md") == ""
    assert "cannot be written" in cannot_write(tmp_path / "missing" / "check.md")
    assert "cannot be written" in cannot_write(tmp_path / "folder.md")
    assert "where the JSON goes" in cannot_write(tmp_path / "check.json")
