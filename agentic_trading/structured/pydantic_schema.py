"""A pydantic model as the schema of an answer, and its validators as a check."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError
from pydantic.config import ExtraValues

from agentic_trading.canonical import exact_value
from agentic_trading.llm.result import Stage, Violation
from agentic_trading.structured.outcome import UnreadableError
from agentic_trading.structured.violations import MAX_VIOLATIONS, json_path, more_broken

# An exponent, or more digits than every double holds.
_LONG_NUMBER = re.compile(r"[0-9.]{17}|[0-9][eE]")

SchemaLike = Mapping[str, Any] | type[BaseModel]
"""A schema for answers: a JSON Schema, or a pydantic model class."""


class SemanticCheck(Protocol):
    """A function that returns the violations of an accepted JSON text.

    A `ValueError` counts as a violation, so `Model.model_validate_json` works as a check. Any other exception
    means that the check failed. The answer is then rejected too.
    """

    def __call__(self, text: str, /) -> Sequence[Violation]: ...


def schema_of(schema: SchemaLike) -> Mapping[str, Any]:
    """Return the JSON Schema of a pydantic model's input, or a mapping unchanged.

    The schema of a model is cached. Do not change it.

    Raises:
        UnreadableError: With stage `schema_invalid`, if JSON Schema cannot express the model, or if `schema`
            is neither a mapping nor a model.

    """
    given: Any = schema
    if isinstance(given, Mapping):
        return given
    if isinstance(given, type) and issubclass(given, BaseModel):
        return _schema_of_model(given)
    raise _unusable(f"{given!r:.80} is neither")


def check_of_model(model: type[BaseModel]) -> SemanticCheck:
    """Return a check that runs the validators of a model on an accepted JSON text.

    A validator reports an error by `ValueError` or `AssertionError`. `violations_of` turns it into
    violations.
    """

    def check(text: str, /) -> Sequence[Violation]:
        instance_of(model, text)
        return ()

    return check


def instance_of(model: type[BaseModel], text: str, *, extra: ExtraValues | None = None) -> BaseModel:
    """Return the instance of an accepted JSON text, with exact decimals.

    Raises:
        ValidationError: If a validator rejects the text.

    """
    # `model_validate_json` would round a number to a double before a `Decimal` field or a validator gets it. A text with a
    # number that a double cannot hold is therefore validated as Python values: this number as a Decimal, others as in
    # JSON. `strict` is off because it would refuse a date in a text. The schema has checked the types already.
    if _LONG_NUMBER.search(text):
        value = exact_value(text.encode())
        as_read = _with_floats(value)
        if _has_decimal(as_read):
            return model.model_validate(as_read, strict=False, extra=extra)
    return model.model_validate_json(text, extra=extra)


def _with_floats(value: Any) -> Any:
    """Return `value` with floats in place of the Decimals that a double can hold."""
    match value:
        case Decimal():
            # A float if it is exact, because a field of type `Any` would otherwise get another type than from JSON.
            rounded = float(value)
            return rounded if Decimal(repr(rounded)) == value else value
        case dict():
            return {key: _with_floats(child) for key, child in value.items()}
        case list():
            return [_with_floats(child) for child in value]
        case _:
            return value


def _has_decimal(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_decimal, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Decimal)


def violations_of(check: SemanticCheck, text: str) -> list[Violation]:
    """Run a check on an accepted text. Does not raise.

    At most `MAX_VIOLATIONS` are described. The others are counted.
    """
    try:
        found = list(_only_violations(check(text)))
    except ValidationError as e:
        found = [
            violation_at(error["loc"], error["type"], error["msg"]) for error in e.errors(include_url=False)
        ]
    except ValueError as e:
        found = [violation_at((), "semantic", str(e))]
    except Exception as e:  # noqa: BLE001 - a failed check must not accept an answer, or lose one that was paid for
        found = [violation_at((), "check_failed", f"the check failed: {type(e).__name__}: {e}")]
    more = len(found) - MAX_VIOLATIONS
    return [*found[:MAX_VIOLATIONS], more_broken(more)] if more > 0 else found


def violation_at(location: Sequence[str | int], keyword: str, message: str) -> Violation:
    """Return a violation at a location in the format of pydantic's `loc`."""
    return Violation(path=json_path(location), keyword=keyword, message=message)


@lru_cache(maxsize=256)
def _schema_of_model(model: type[BaseModel]) -> Mapping[str, Any]:
    try:
        return model.model_json_schema()
    except Exception as e:  # the model's own code may raise anything
        raise _unusable(f"{model.__name__} has none ({str(e).partition(chr(10))[0]:.160})") from e


def _unusable(reason: str) -> UnreadableError:
    violation = Violation(
        path="$",
        keyword="schema",
        message=f"the schema cannot be used: {reason}; allowed are a JSON Schema and a pydantic model that has one",
        expected="a JSON Schema or a pydantic model",
    )
    return UnreadableError(Stage.SCHEMA_INVALID, [violation])


def _only_violations(found: Sequence[Violation]) -> Sequence[Violation]:
    for violation in found:
        if not isinstance(violation, Violation):
            raise TypeError(f"a {type(violation).__name__} is no Violation")
    return found
