"""The condition of a query: SQL of a user over the facts of selected records, and over nothing else."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Final

from agentic_trading.ids import random_key
from agentic_trading.llm.errors import ConditionError
from agentic_trading.llm.facts import Fact

COLUMNS: Final = tuple(field.name for field in fields(Fact))
"""The fields that a condition may name."""

_ALLOWED_FUNCTIONS: Final = frozenset({
    "abs", "avg", "coalesce", "count", "date", "datetime", "glob", "hex", "ifnull", "iif", "instr",
    "julianday", "length", "like", "lower", "ltrim", "max", "min", "nullif", "round", "rtrim",
    "strftime", "substr", "substring", "sum", "time", "total", "trim", "typeof", "unixepoch",
    "upper",
})  # fmt: skip
_REFUSED: Final = (
    None,  # of the sqlite3 module: several statements, or a parameter without a value
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_NOMEM,
)
_QUOTED: Final = re.compile(
    r"""'[^']*'|--[^\n]*|/\*.*?(?:\*/|\Z)|\[[^\]]*(?:\]|\Z)|`[^`]*`|"(?P<word>(?:[^"]|"")*)\"""", re.DOTALL
)
"""Texts, comments and names in quotes, so that only a double quote outside of them begins a word."""
_MAX_BYTES: Final = 1_000_000  # of the statement, and of each text that it makes
_TICK: Final = 100_000
_STEPS: Final = 20_000_000
_STEPS_A_RECORD: Final = 1_000


def matching(db: sqlite3.Connection, facts: str, where: str, *, records: int) -> list[int]:
    """Return the numbers of the facts that meet a condition, in ascending order.

    The condition can read the view `facts` and nothing else, and has a limit of steps that grows with the log.

    Args:
        db: The database.
        facts: A SELECT of the selected facts, whose columns are those of `Fact`. It has no parameters.
        where: The condition.
        records: The number of records in the database.

    Raises:
        ConditionError: If the condition is wrong, reads anything else, or needs too many steps.

    """
    for word in _quoted_words(where):
        if word.lower() not in (*COLUMNS, "facts"):
            raise ConditionError(where, f'"{word}" is not a field. Put texts into single quotes', COLUMNS)
    try:
        # SQLite merges a view into the query that reads it, and then reports reads that no column needs as
        # those of the user. A view with a limit is not merged, so that every other read is found.
        with _views(db, f"{facts} LIMIT -1") as view, _guarded(db, view, records, is_merged=False):
            # A text that closes the parentheses around it does not fit into one pair and into two.
            for condition in (f"(\n{where}\n)", f"((\n{where}\n))"):
                db.execute(f"EXPLAIN SELECT seq FROM facts WHERE {condition}").close()  # noqa: S608 - guarded
        with _views(db, facts) as view, _guarded(db, view, records, is_merged=True):
            return [seq for (seq,) in db.execute(f"SELECT seq FROM facts WHERE (\n{where}\n) ORDER BY seq")]  # noqa: S608 - guarded
    except (sqlite3.Error, sqlite3.Warning, ValueError) as e:
        if getattr(e, "sqlite_errorcode", None) not in _REFUSED:
            raise
        raise ConditionError(where, _reason_of(e), COLUMNS) from e


def check_condition(where: str) -> None:
    """Raise `ConditionError` if the condition is wrong, whatever the log contains."""
    db = sqlite3.connect(":memory:")
    try:
        matching(
            db, f"SELECT {', '.join(f'NULL AS {name}' for name in COLUMNS)} WHERE FALSE", where, records=0
        )
    finally:
        db.close()


def _quoted_words(where: str) -> Iterator[str]:
    """Yield the words in double quotes: SQLite takes one that is no field for a text."""
    for found in _QUOTED.finditer(where):
        if found["word"] is not None:
            yield found["word"]


@contextmanager
def _views(db: sqlite3.Connection, facts: str) -> Iterator[str]:
    """Make the view `facts`, and yield the name of the view that reads the tables."""
    # A user can give any name to a query of his own, and SQLite reports the reads in it under this name. A
    # random name cannot be guessed.
    view = f"facts_{random_key().decode()}"
    db.execute(f'CREATE TEMP VIEW "{view}" AS {facts}')
    db.execute(f'CREATE TEMP VIEW facts AS SELECT * FROM "{view}"')  # noqa: S608 - the name from above
    try:
        yield view
    finally:
        db.execute("DROP VIEW temp.facts")
        db.execute(f'DROP VIEW temp."{view}"')


@contextmanager
def _guarded(db: sqlite3.Connection, view: str, records: int, *, is_merged: bool) -> Iterator[None]:
    def authorize(
        action: int, name: str | None, inner: str | None, _: str | None, through: str | None
    ) -> int:
        match action:
            case sqlite3.SQLITE_SELECT:
                is_allowed = True
            case sqlite3.SQLITE_FUNCTION:
                is_allowed = through == view or (inner or "").lower() in _ALLOWED_FUNCTIONS
            case sqlite3.SQLITE_READ:
                # A view has no rowid. SQLite reads it as NULL, and selects nothing.
                is_fact = name in {"facts", view} and inner != "ROWID"
                is_allowed = through == view or is_fact or (is_merged and inner == "")
            case _:
                is_allowed = False
        return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY

    ticks = iter(range((_STEPS + records * _STEPS_A_RECORD) // _TICK))
    length = db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_BYTES)
    db.set_authorizer(authorize)
    db.set_progress_handler(lambda: next(ticks, None) is None, _TICK)
    try:
        yield
    finally:
        db.set_authorizer(None)
        db.set_progress_handler(None, 0)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, length)


def _reason_of(e: Exception) -> str:
    match getattr(e, "sqlite_errorcode", None):
        case sqlite3.SQLITE_AUTH:
            return "it may read the fields below and use common functions, and nothing else"
        case sqlite3.SQLITE_INTERRUPT:
            return "it needs too many steps"
        case _:
            return str(e)
