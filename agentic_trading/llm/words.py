"""Vocabularies of stored models: closed where we write, open where a record is read."""

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from agentic_trading.llm.fields import ON_RECORD

T = TypeVar("T")


class UnknownWord(str):
    """A word of a record that this release does not know; it equals the text, and no member of the vocabulary."""

    __slots__ = ()


class _OpenOnRecord:
    """Lets a closed vocabulary keep unknown words of records, and refuse them everywhere else."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        closed = handler(source)
        unknown = core_schema.with_info_plain_validator_function(
            _unknown_word, serialization=core_schema.to_string_ser_schema()
        )
        words = handler.resolve_ref_schema(closed)
        known: Iterable[object] = words.get("expected") or words.get("members") or ()
        *others, last = [*(repr(str(word)) for word in known)] or [""]
        if not last:  # of words or values, such as prices: the first error says what is allowed
            return core_schema.union_schema([closed, unknown], mode="left_to_right")
        return core_schema.union_schema(
            [closed, unknown],
            mode="left_to_right",
            custom_error_type="enum" if "members" in words else "literal_error",
            custom_error_context={"expected": f"{', '.join(others)} or {last}" if others else last},
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema of what may be written."""
        return handler(schema["choices"][0])


def is_unknown(word: object) -> bool:
    """Whether a word of a record is not known to this release."""
    return type(word) is UnknownWord


def _unknown_word(value: Any, info: ValidationInfo) -> UnknownWord:
    if type(value) is UnknownWord:  # a copy of a record
        return value
    if info.context is ON_RECORD and type(value) is str:
        return UnknownWord(value)
    raise ValueError("not a known word")


Open = Annotated[T, _OpenOnRecord()]
"""A `Literal` or an enum that is written as it stands, and keeps any word when it is read from a record.

A newer release may have added one. mypy sees the closed type: a reader must not treat an unknown word as a known one.
"""
