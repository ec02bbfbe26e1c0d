"""Plain JSON inside a model: apart from the caller's data, and spelled once."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator

from agentic_trading.canonical import canonical_bytes, spelled_and_read


class CanonicalObject(dict[str, Any]):
    """A JSON object that knows its canonical bytes. It is not to be changed."""

    __slots__ = ("json",)

    def __init__(self, value: Mapping[str, Any], json: bytes) -> None:
        super().__init__(value)
        self.json = json


def json_of(value: Any) -> bytes:
    """Return `value` in canonical JSON; of what was spelled before, the same bytes again."""
    return value.json if type(value) is CanonicalObject else canonical_bytes(value)


def _plain(value: Any) -> Any:
    spelled, read = spelled_and_read(value)
    return CanonicalObject(read, spelled) if type(read) is dict else read


def _data(value: Any, info: ValidationInfo) -> Any:
    return value if info.mode == "json" else _plain(value)


def _object(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """Check that `value` is an object; the check that pydantic makes of a `dict` would copy it, without its bytes."""
    if info.mode == "json":
        return handler(value)
    read = _plain(value)
    return read if type(read) is CanonicalObject else handler(read)


JsonData = Annotated[Any, BeforeValidator(_data)]
"""Anything that JSON has; other values become what their canonical JSON reads back as."""

JsonObject = Annotated[dict[str, Any], WrapValidator(_object)]
"""A JSON object, likewise."""
