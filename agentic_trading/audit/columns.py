"""The columns of exported records, schema `records.v1`, and their values from the line of a record."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from agentic_trading.canonical import exact_bytes, exact_value
from agentic_trading.llm.fields import legible
from agentic_trading.llm.log_line import INTERACTION, read_line

SCHEMA: Final = "records.v1"

ColumnType = Literal["VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMPTZ", "DATE"]

_TOKENS_IN: Final = ("input_tokens", "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens")


@dataclass(frozen=True, slots=True)
class Column:
    """A column, with the places of its value in an interaction and in an event.

    A place is a path of members. If there are several, the first value counts that is neither null nor an
    empty text. Without a place, the value is null.
    """

    name: str
    type: ColumnType
    interaction: tuple[str, ...] = ()
    event: tuple[str, ...] = ()


def _both(name: str, type_: ColumnType, interaction: str, event: str = "") -> Column:
    return Column(name, type_, tuple(interaction.split()), tuple(event.split()))


RECORD_COLUMNS: Final = (
    _both("id", "VARCHAR", "interaction_id", "id"),
    Column("kind", "VARCHAR", (), ("kind",)),
    _both("time", "TIMESTAMPTZ", "stored_at", "time"),
    _both("as_of", "TIMESTAMPTZ", "envelope.as_of", "as_of"),
    _both("tenant", "VARCHAR", "envelope.tenant_id", "tenant_id"),
    _both("trace_id", "VARCHAR", "envelope.trace_id", "trace_id"),
    _both("causation_id", "VARCHAR", "envelope.causation_id", "causation_id"),
    _both("envelope_id", "VARCHAR", "envelope.envelope_id"),
    _both("parent_envelope_id", "VARCHAR", "envelope.parent_envelope_id"),
    _both("request_hash", "VARCHAR", "envelope.request_hash"),
    _both("occurrence", "BIGINT", "envelope.occurrence"),
    _both("subject", "VARCHAR", "envelope.subject", "body.subject body.symbol"),
    _both("agent", "VARCHAR", "envelope.agent_id"),
    _both("workflow", "VARCHAR", "envelope.workflow"),
    _both("prompt_version", "VARCHAR", "envelope.prompt_version"),
    _both("provider", "VARCHAR", "result.provider"),
    _both("model", "VARCHAR", "result.model envelope.model"),
    _both("attempt", "BIGINT", "result.attempt_number"),
    _both("success", "BOOLEAN", "result.success"),
    _both("actionable", "BOOLEAN", "result.actionable"),
    _both("failure", "VARCHAR", "result.failure.category", "body.reason.category"),
    _both("failure_message", "VARCHAR", "result.failure.description", "body.reason.description"),
    _both("verdict", "VARCHAR", "", "body.verdict"),
    _both("latency_ms", "DOUBLE", "result.latency_ms"),
    Column("input_tokens", "BIGINT"),
    _both("output_tokens", "BIGINT", "result.output_tokens"),
    _both("cost_nusd", "BIGINT", "result.cost_nusd"),
    _both("stop_reason", "VARCHAR", "result.stop_reason"),
    _both("served_from", "VARCHAR", "result.served_from"),
    _both("in_doubt", "BOOLEAN", "result.in_doubt"),
    _both("output_hash", "VARCHAR", "result.output_hash"),
    _both("answer", "VARCHAR", "result.raw_output"),
    _both("body", "VARCHAR", "", "body"),
)
"""The columns between `hash` and `day`."""

COLUMNS: Final[tuple[tuple[str, ColumnType], ...]] = (
    ("log", "VARCHAR"),
    ("seq", "BIGINT"),
    ("hash", "VARCHAR"),
    *((column.name, column.type) for column in RECORD_COLUMNS),
    ("day", "DATE"),
)
"""All columns and their types, in order. With lines, `line` (VARCHAR) follows."""


def typed_columns(*, with_lines: bool) -> dict[str, str]:
    """Return the types of the columns by name."""
    return {**dict(COLUMNS), **({"line": "VARCHAR"} if with_lines else {})}


def select_columns() -> str:
    """Return the SQL expressions of the columns up to `body`, for a source with `read_columns()`."""
    each = [
        "getvariable('log') AS log",
        "seq",
        "hash",
        *(f"{_expression(column)} AS {column.name}" for column in RECORD_COLUMNS),
    ]
    return ", ".join(each)


def read_columns() -> str:
    """Return the members that DuckDB reads of a line, with their types, as a SQL struct."""
    tree: dict[str, Any] = {"seq": "BIGINT", "hash": "VARCHAR"}
    for name in _TOKENS_IN:
        tree.setdefault("result", {})[name] = "BIGINT"
    for column in RECORD_COLUMNS:
        for path in (*column.interaction, *column.event):
            if path.startswith("body"):
                continue
            *folders, name = path.split(".")
            place = tree
            for folder in folders:
                place = place.setdefault(folder, {})
            place[name] = column.type
    tree["body"] = "JSON"
    members = (f"'{name}': '{_struct(of)}'" for name, of in tree.items())
    return f"{{{', '.join(members)}}}"


def _struct(of: Any) -> str:
    if isinstance(of, str):
        return of
    return f"STRUCT({', '.join(f'{name} {_struct(inner)}' for name, inner in of.items())})"


def _expression(column: Column) -> str:
    if column.name == "input_tokens":
        return f"CASE WHEN interaction_id IS NOT NULL THEN {' + '.join(f'result.{name}' for name in _TOKENS_IN)} END"
    event = _first(column.event)
    interaction = f"'{INTERACTION}'" if column.name == "kind" else _first(column.interaction)
    return f"CASE WHEN interaction_id IS NULL THEN {event} ELSE {interaction} END"


def _first(paths: tuple[str, ...]) -> str:
    values = [_value(path) for path in paths]
    if len(values) < 2:
        return values[0] if values else "NULL"
    filled = [f"nullif({value}, '')" for value in values[:-1]]
    return f"coalesce({', '.join([*filled, values[-1]])})"


def _value(path: str) -> str:
    first, _, rest = path.partition(".")
    if first != "body":
        return path
    return f"body->>'$.{rest}'" if rest else "body::VARCHAR"


def row_of(line: bytes, log: str) -> tuple[dict[str, Any], list[str]]:
    """Return the values of all columns of a line, and the names of columns with another value than the line.

    Use it for a line that DuckDB refuses. Half surrogate pairs and bytes that are not UTF-8 become U+FFFD, a
    number that does not fit its column becomes null, and of a repeated member the last one counts. `line` is
    null if it is not UTF-8. The values are plain JSON.

    Raises:
        ValueError: If the line is not a record.

    """
    chained = read_line(line)
    text = line.rstrip(b"\n").decode("utf-8", "replace")
    exact = exact_value(text.encode())
    fields = legible(exact)
    found: dict[str, Any] = {"log": log, "seq": chained.seq, "hash": chained.hash}
    for column in RECORD_COLUMNS:
        found[column.name] = _fitting(_value_in(fields, column), column.type)
    changed = [column.name for column in RECORD_COLUMNS if _is_changed(exact, column, found[column.name])]
    found["day"] = _day_of(found["time"])
    is_text = text.encode() == line.rstrip(b"\n")
    found["line"] = text if is_text else None
    return found, changed if is_text else [*changed, "line"]


def _value_in(fields: Mapping[str, Any], column: Column) -> Any:
    is_interaction = fields.get("interaction_id") is not None
    if column.name == "kind" and is_interaction:
        return INTERACTION
    if column.name == "input_tokens":
        counts = [_member(fields, f"result.{name}") for name in _TOKENS_IN]
        return sum(counts) if is_interaction and all(type(count) is int for count in counts) else None
    values = [_member(fields, path) for path in (column.interaction if is_interaction else column.event)]
    return next((value for value in values[:-1] if value not in (None, "")), values[-1] if values else None)


def _member(fields: Any, path: str) -> Any:
    for name in path.split("."):
        fields = fields.get(name) if isinstance(fields, dict) else None
    return fields


def _is_changed(exact: Mapping[str, Any], column: Column, value: Any) -> bool:
    original = _value_in(exact, column)
    if column.type == "DOUBLE" and value is not None:
        return False
    if isinstance(original, str) or column.type != "VARCHAR":
        return bool(original != value)
    return original is not None and legible(original) != original


def _fitting(value: Any, type_: ColumnType) -> Any:
    """Return a decoded value as the plain JSON of a column, or None if it does not fit."""
    if value is None:
        return None
    match type_:
        case "VARCHAR":
            return value if isinstance(value, str) else exact_bytes(value).decode()
        case "BIGINT":
            return value if type(value) is int and -(2**63) <= value < 2**63 else None
        case "DOUBLE":
            return float(value) if not isinstance(value, bool | str | dict | list) else None
        case "BOOLEAN":
            return value if isinstance(value, bool) else None
        case _:
            return value if isinstance(value, str) and _day_of(value) is not None else None


def _day_of(time: Any) -> str | None:
    try:
        return (
            datetime.fromisoformat(time).astimezone(UTC).date().isoformat() if isinstance(time, str) else None
        )
    except (ValueError, OverflowError):
        return None
