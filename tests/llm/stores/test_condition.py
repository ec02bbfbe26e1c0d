"""The condition of a query reads selected facts, and nothing else."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentic_trading.llm.errors import ConditionError
from agentic_trading.llm.stores.condition import COLUMNS, check_condition, matching

FACTS = "SELECT seq, cost AS cost_nusd, tenant FROM main.kept WHERE tenant = 'mine'"


def opened(path: Path) -> sqlite3.Connection:
    """Return a database with the records of two tenants."""
    db = sqlite3.connect(path, isolation_level=None, timeout=0)
    db.execute("CREATE TABLE kept (seq INTEGER PRIMARY KEY, cost, tenant)")
    db.execute("INSERT INTO kept VALUES (1, 5, 'mine'), (2, 7, 'theirs'), (3, 9, 'mine')")
    return db


def test_condition_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "db")) as db:
        assert matching(db, FACTS, "cost_nusd > 5", records=3) == [3]
        with pytest.raises(ConditionError):
            matching(db, FACTS, "seq IN (SELECT seq FROM kept)", records=3)

        assert db.execute("SELECT name FROM temp.sqlite_schema").fetchall() == []
        assert db.execute("SELECT count(*), length(randomblob(2000000)) FROM kept").fetchall() == [
            (3, 2_000_000)
        ]


@pytest.mark.parametrize("where", ["agent = 'x", "/*", "1) OR (1", "seq IN (1, 2, 3)", "cost_nusd LIKE '5'"])
def test_condition_never_selects_another_tenant(tmp_path: Path, where: str) -> None:
    with closing(opened(tmp_path / "db")) as db:
        try:
            found = matching(db, FACTS, where, records=3)
        except ConditionError:
            found = []

    assert set(found) <= {1, 3}


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ('"agnet" = 1', '"agnet" is not a field. Put texts into single quotes'),
        ('agent = "a""b"', '"a""b" is not a field. Put texts into single quotes'),
        ("agent = 'it''s' OR \"\" = ''", '"" is not a field'),
        ("rowid > 0", "it may read the fields below"),
        ("facts._rowid_ > 0 OR seq > 0", "it may read the fields below"),
        ("seq IN (SELECT oid FROM facts)", "it may read the fields below"),
    ],
)
def test_word_that_is_no_field_is_refused(where: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConditionError) as in_check:
        check_condition(where)
    with closing(opened(tmp_path / "db")) as db, pytest.raises(ConditionError) as in_query:
        matching(db, FACTS, where, records=3)

    assert reason in str(in_check.value)
    assert reason in str(in_query.value)


@pytest.mark.parametrize(
    "where",
    [
        '"SEQ" > 1',
        '"facts"."seq" > 1',
        'seq > 1 -- not "quoted"',
        '/* "quoted" */ seq > 1',
        "seq > 1 AND tenant <> 'the \"quoted\" one, it''s \"theirs\"'",
        "[seq] > 1 AND `seq` > 1",
    ],
)
def test_quoted_field_and_quotes_in_texts_are_allowed(where: str, tmp_path: Path) -> None:
    with closing(opened(tmp_path / "db")) as db:
        assert matching(db, FACTS, where, records=3) == [3]


def test_locked_database_is_no_fault_of_the_condition(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "db")) as db, closing(sqlite3.connect(tmp_path / "db")) as other:
        other.execute("BEGIN EXCLUSIVE")

        with pytest.raises(sqlite3.OperationalError, match="locked"):
            matching(db, FACTS, "1", records=3)


def test_refused_condition_names_the_allowed_fields() -> None:
    with pytest.raises(ConditionError) as e:
        check_condition("price > 1")

    assert str(e.value) == (
        "the condition 'price > 1' is refused: no such column: price. Write one SQL condition over"
        f" {', '.join(COLUMNS)}, such as: latency_ms > 8000 AND time > '2026-06-01'"
    )
