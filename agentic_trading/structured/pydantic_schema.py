"""Take a pydantic model for a schema, with its own validators for a check."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from agentic_trading.llm.attempt_trace import Stage, Violation
from agentic_trading.structured.errors import UnreadableError
from agentic_trading.structured.semantic import SemanticCheck

SchemaLike = Mapping[str, Any] | type[BaseModel]
"""What an answer may be held against: a JSON Schema, or a pydantic model."""


def schema_of(schema: SchemaLike) -> Mapping[str, Any]:
    """Return the JSON Schema that `schema` is: of a model the one for what it takes, a mapping as it stands.

    A model's schema is made once; do not change it. Raises `UnreadableError` with stage `schema_invalid` for a model
    that JSON Schema cannot say (arbitrary types, types not defined yet), and for anything else.
    """
    given: Any = schema
    if isinstance(given, Mapping):
        return given
    if isinstance(given, type) and issubclass(given, BaseModel):
        return _schema_of_model(given)
    raise _unusable(f"{given!r:.80} is neither")


def check_of_model(model: type[BaseModel]) -> SemanticCheck:
    """Return the check that `model`'s own validators are; its errors come out as violations with their paths.

    They run on the accepted text as JSON. A validator says what is wrong by `ValueError` or `AssertionError`.
    """

    def check(text: str, /) -> Sequence[Violation]:
        model.model_validate_json(text)
        return ()

    return check


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
