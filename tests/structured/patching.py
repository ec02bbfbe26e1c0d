"""Builders for tests of what may be changed: policies, small schemas, and one call."""

from typing import Any

from agentic_trading.canonical import canonical_bytes, exact_bytes
from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.structured.patch import PatchedValue, patch_value
from agentic_trading.structured.validation import compile_schema

ALL = OutputPolicy(mode="reask", decode="lossless", coerce=True, drop_extra=True)
COERCE = OutputPolicy(mode="reask", decode="lossless", coerce=True, drop_extra=False)
DROP = OutputPolicy(mode="reask", decode="lossless", coerce=False, drop_extra=True)
NOTHING = OutputPolicy(mode="reask", decode="lossless", coerce=False, drop_extra=False)

INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
STRING = {"type": "string"}
BOOLEAN = {"type": "boolean"}
NULL = {"type": "null"}
STRINGS = {"type": "array", "items": STRING}
PLAN = {
    "type": "object",
    "properties": {"stop": NUMBER, "legs": {"type": "array", "items": INTEGER}},
    "required": ["stop"],
    "additionalProperties": False,
}

CLOSED = {
    "properties": {"side": STRING, "quantity": INTEGER, "reason": STRING, "legs": {"type": "array"}},
    "additionalProperties": False,
}


def change(
    value: Any, schema: dict[str, Any], policy: OutputPolicy = ALL, *, may_drop: bool = True
) -> PatchedValue:
    """Change `value` so that it fits `schema`."""
    return patch_value(value, compile_schema(canonical_bytes(schema)), policy, may_drop=may_drop)


def at_x(value: Any, schema: dict[str, Any], policy: OutputPolicy = ALL, **definitions: Any) -> Any:
    """Return what becomes of `{"x": value}` where `x` has `schema`."""
    result = change({"x": value}, {"properties": {"x": schema}, "$defs": definitions}, policy)
    return result.value["x"]


def same(first: Any, second: Any) -> bool:
    """Whether two values are equal in type and digits too: 1 is not 1.0, and neither is true."""
    return exact_bytes(first) == exact_bytes(second)
