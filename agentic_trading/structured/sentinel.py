"""The last property of an answer that must be whole: asked for, and taken off again."""

from typing import Any

from agentic_trading.llm.limits import SENTINEL_NAME, SENTINEL_VALUE
from agentic_trading.llm.attempt_trace import Stage, Violation
from agentic_trading.structured.errors import UnreadableError


def add_sentinel(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` with one more required property, its last."""
    properties = {**schema.get("properties", {}), SENTINEL_NAME: {"enum": [SENTINEL_VALUE]}}
    required = [*schema.get("required", []), SENTINEL_NAME]
    return {**schema, "properties": properties, "required": required}


def check_sentinel_is_free(schema: dict[str, Any]) -> None:
    """Raise `UnreadableError` (`schema_invalid`) if the schema has a property of that name itself."""
    if SENTINEL_NAME in schema.get("properties", {}):
        message = (
            f"the name {SENTINEL_NAME!r} is needed for the sign that the answer is whole; choose another"
        )
        violation = Violation(path=f"$.properties.{SENTINEL_NAME}", keyword="sentinel", message=message)
        raise UnreadableError(Stage.SCHEMA_INVALID, [violation])


def without_sentinel(value: dict[str, Any]) -> dict[str, Any]:
    """Return `value` without the sentinel.

    Raises `UnreadableError`: `truncated` if there is none (the answer was cut), `schema_validation` if it has
    another value than the one that was asked for.
    """
    path = f"$.{SENTINEL_NAME}"
    if SENTINEL_NAME not in value:
        missing = Violation(path=path, keyword="sentinel", message="is missing: the answer was cut")
        raise UnreadableError(Stage.TRUNCATED, [missing])
    if value[SENTINEL_NAME] != SENTINEL_VALUE:
        wrong = Violation(
            path=path, keyword="enum", message="is not the agreed value", allowed=[SENTINEL_VALUE]
        )
        raise UnreadableError(Stage.SCHEMA_VALIDATION, [wrong])
    return {name: member for name, member in value.items() if name != SENTINEL_NAME}
