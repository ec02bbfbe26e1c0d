"""A pydantic model as the schema of an answer, and its own validators as a check of it."""

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

# Digits that a double may not hold, or an exponent; texts without either are validated as they are.
_LONG_NUMBER = re.compile(r"[0-9.]{17}|[0-9][eE]")

SchemaLike = Mapping[str, Any] | type[BaseModel]
"""What an answer may be held against: a JSON Schema, or a pydantic model."""


class SemanticCheck(Protocol):
    """Return what is wrong with an accepted JSON text, or nothing.

    A `ValueError` counts as what is wrong, so that `Model.model_validate_json` may be called in it as it is. With any
    other error the check itself failed, and the answer is not accepted either.
    """

    def __call__(self, text: str, /) -> Sequence[Violation]: ...


def schema_of(schema: SchemaLike) -> Mapping[str, Any]:
    """Return the JSON Schema: a mapping as it stands, of a model the one for its input.

    A model's schema is made once; do not change it. Raises `UnreadableError` with stage `schema_invalid` for a model
    that JSON Schema cannot express (arbitrary types, types not defined yet), and for anything else.
    """
    given: Any = schema
    if isinstance(given, Mapping):
        return given
    if isinstance(given, type) and issubclass(given, BaseModel):
        return _schema_of_model(given)
    raise _unusable(f"{given!r:.80} is neither")


def check_of_model(model: type[BaseModel]) -> SemanticCheck:
    """Return a check that runs `model`'s own validators; `violations_of` makes violations of their errors.

    They run on the accepted JSON text. A validator reports what is wrong by `ValueError` or `AssertionError`.
    """

    def check(text: str, /) -> Sequence[Violation]:
        instance_of(model, text)
        return ()

    return check


def instance_of(model: type[BaseModel], text: str, *, extra: ExtraValues | None = None) -> BaseModel:
    """Return the instance of an accepted JSON text; its validators see every decimal as it is written.

    `model_validate_json` rounds a number to a double before a `Decimal` field or a validator gets it. So a text with a
    number that no double holds is validated as Python values, in which this number is a `Decimal` and every other one
    an int or a float, as in JSON. The types are those of the schema already: `strict` would refuse a date in a text.
    Raises `ValidationError`.
    """
    if _LONG_NUMBER.search(text):
        value = exact_value(text.encode())
        as_read = _with_floats(value)
        if _has_decimal(as_read):
            return model.model_validate(as_read, strict=False, extra=extra)
    return model.model_validate_json(text, extra=extra)


def _with_floats(value: Any) -> Any:
    """Return `value` with a float in the place of every Decimal that a double holds."""
    match value:
        case Decimal():
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
    """Run `check` on an accepted text; at most `MAX_VIOLATIONS` are described, the rest counted. Raises nothing."""
    try:
        found = list(_only_violations(check(text)))
    except ValidationError as e:
        found = [
            violation_at(error["loc"], error["type"], error["msg"]) for error in e.errors(include_url=False)
        ]
    except ValueError as e:
        found = [violation_at((), "semantic", str(e))]
    except Exception as e:  # noqa: BLE001 - a check that fails must neither pass an answer nor lose one that was paid
        found = [violation_at((), "check_failed", f"the check failed: {type(e).__name__}: {e}")]
    more = len(found) - MAX_VIOLATIONS
    return [*found[:MAX_VIOLATIONS], more_broken(more)] if more > 0 else found


def violation_at(location: Sequence[str | int], keyword: str, message: str) -> Violation:
    """Return the violation at a location in an answer, given as pydantic gives `loc`."""
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
