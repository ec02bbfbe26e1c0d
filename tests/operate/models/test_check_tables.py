"""The tables are checked against themselves: what is wrong is found, and what is old."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.operate.models.catalogue import TableFinding, check_tables
from tests.operate.models.tables import TODAY, catalogue, model_row, models_file, price_row, prices_file


def found(
    tmp_path: Path, *rows: dict[str, Any], prices: tuple[dict[str, Any], ...] | None = None
) -> list[TableFinding]:
    """Return the findings about tables with these rows beside the packaged ones."""
    book = (price_row(),) if prices is None else prices
    tables = catalogue(models_file(tmp_path, *rows), prices_file(tmp_path, *book))
    return check_tables(tables, old_after_days=90)


def test_packaged_tables_have_no_errors() -> None:
    assert [
        finding for finding in check_tables(catalogue(), old_after_days=90) if finding.weight == "wrong"
    ] == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"max_output_tokens": 40_000}, "may write 40,000 tokens into a context of 32,768"),
        ({"checked_on": "2026-12-24"}, "was checked on 2026-12-24, a day to come"),
        (
            {"training_cutoff": "2026-06-30", "retires_on": "2026-01-01"},
            "retires on 2026-01-01, before its training ended on 2026-06-30",
        ),
        (
            {"training_cutoff": "2026-11-21"},
            "was trained until 2026-11-21, after it was checked on 2026-11-20",
        ),
        ({"served_as": ["house-8b"]}, "names itself in served_as, which is for other ids"),
        ({"effort": ["low", "low"]}, "names something twice in effort"),
    ],
)
def test_contradictory_row_is_wrong(changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    assert found(tmp_path, model_row(**changes)) == [TableFinding("wrong", "openai/house-8b", text)]


def test_model_without_price_is_wrong(tmp_path: Path) -> None:
    [finding] = found(tmp_path, model_row(), prices=())

    assert (finding.weight, finding.model) == ("wrong", "openai/house-8b")
    assert "has no price" in finding.text


def test_price_without_model_is_wrong(tmp_path: Path) -> None:
    text = "has a price and no row in the table of models"

    assert found(tmp_path) == [TableFinding("wrong", "openai/house-8b", text)]


def test_future_price_check_date_is_wrong(tmp_path: Path) -> None:
    [finding] = found(tmp_path, model_row(), prices=(price_row(checked_on="2027-01-01"),))

    assert finding.text == "its price was checked on 2027-01-01, a day to come"


def test_duplicate_model_rows_are_wrong(tmp_path: Path) -> None:
    [finding] = found(tmp_path, model_row(), model_row(sampling=False))

    assert finding.text.startswith("has 2 rows in")


def test_shared_served_as_id_is_wrong(tmp_path: Path) -> None:
    other = model_row(model="house-70b", served_as=["house-8b"])

    findings = found(tmp_path, model_row(), other, prices=(price_row(), price_row(model="house-70b")))

    assert findings == [
        TableFinding("wrong", "openai/house-70b", "may be served as house-8b, which another row stands for")
    ]


def test_retired_default_is_wrong_retiring_is_noted(tmp_path: Path) -> None:
    name, row = "anthropic/claude-opus-5-5", {"provider": "anthropic", "model": "claude-opus-5-5"}

    gone = found(tmp_path, model_row(**row, retires_on="2026-11-21"), prices=())
    soon = found(tmp_path, model_row(**row, retires_on="2026-12-01"), prices=())

    assert gone == [TableFinding("wrong", name, "is the default for planning and retired on 2026-11-21")]
    assert soon == [TableFinding("note", name, "is the default for planning and retires on 2026-12-01")]


def test_old_rows_and_prices_are_noted(tmp_path: Path) -> None:
    old = "2026-08-01"

    notes = found(tmp_path, model_row(checked_on=old), prices=(price_row(checked_on=old),))

    assert notes == [
        TableFinding("note", "openai/house-8b", "its row was checked on 2026-08-01, 113 days ago"),
        TableFinding("note", "openai/house-8b", "its price was checked on 2026-08-01, 113 days ago"),
    ]


def test_only_the_named_models_are_checked() -> None:
    later = catalogue(now=datetime(2027, 11, 22, tzinfo=UTC))

    findings = check_tables(later, old_after_days=90, only=["rules/rules-1"])

    assert {finding.model for finding in findings} == {"rules/rules-1"}
    assert later.today > TODAY.date()
