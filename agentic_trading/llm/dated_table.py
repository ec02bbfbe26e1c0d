"""Dated tables in JSON files: rows that are checked one by one when they are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from agentic_trading.canonical import canonical_bytes, sha256_hex
from agentic_trading.llm.errors import LLMError

Row = TypeVar("Row", bound=BaseModel)


class TableError(LLMError, ValueError):
    """A table cannot be used: `path` is the file, `row` counts from 1 (0: the file itself), `field` is what is wrong."""

    def __init__(self, path: Path, row: int, field: str, reason: str) -> None:
        self.path = path
        self.row = row
        self.field = field
        self.reason = reason
        where = f"{path}, row {row}" if row else str(path)
        super().__init__(f"{where}, {field}: {reason}" if field else f"{where}: {reason}")


@dataclass(frozen=True, slots=True)
class DatedTable(Generic[Row]):
    """The rows of a file in their order, what else stands in it, and the SHA-256 of its bytes."""

    path: Path
    rows: tuple[Row, ...]
    head: Mapping[str, Any]
    sha256: str


def read_table(path: Path, row_type: type[Row]) -> DatedTable[Row]:
    """Read the table at `path`: a JSON object whose `rows` are objects.

    If it names a `sha256`, that must be the hash of its rows. Raises `TableError` for a file that cannot be read, JSON
    that is none, the first row that does not fit, and rows that are not those of the hash.
    """
    try:
        raw = path.read_bytes()
        table = orjson.loads(raw)
    except OSError as e:
        raise TableError(path, 0, "", f"cannot be read ({e.strerror}); allowed is a JSON file") from e
    except orjson.JSONDecodeError as e:
        raise TableError(path, 0, "", f"is not JSON ({e}); allowed is an object with rows") from e
    if not isinstance(table, dict) or not isinstance(table.get("rows"), list):
        raise TableError(path, 0, "rows", "is not there or no list; allowed is a list of objects")
    spelled = table.pop("rows")
    rows = tuple(_row(path, number, fields, row_type) for number, fields in enumerate(spelled, start=1))
    if "sha256" in table:
        _check_hash(path, table["sha256"], sha256_of_rows(spelled))
    return DatedTable(path, rows, table, sha256_hex(raw))


def sha256_of_rows(rows: Sequence[object]) -> str:
    """Return the hash that a table of these rows may name: SHA-256 over their canonical JSON."""
    return sha256_hex(canonical_bytes(rows))


def _check_hash(path: Path, named: object, computed: str) -> None:
    if named != computed:
        reason = f"is {named!r}, but the hash of the rows is {computed!r}; allowed is that one, or none"
        raise TableError(path, 0, "sha256", reason)


def _row(path: Path, number: int, fields: object, row_type: type[Row]) -> Row:
    try:
        return row_type.model_validate_json(orjson.dumps(fields))
    except ValidationError as e:
        first = e.errors()[0]
        field = ".".join(map(str, first["loc"])) or "row"
        reason = (
            f"{first['msg']} (was {first['input']!r:.80}); the fields are {', '.join(row_type.model_fields)}"
        )
        raise TableError(path, number, field, reason) from e
