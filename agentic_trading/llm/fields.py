"""The types of fields of records: what every log and index can spell, and models that are copied by validation."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar, overload

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from typing_extensions import override

from agentic_trading.canonical import canonical_bytes, canonical_bytes_and_value

T = TypeVar("T")


class lazy_property(Generic[T]):  # noqa: N801 - a decorator, like the one that it stands in for
    """`functools.cached_property` without the lock of Python 3.11: two threads may compute the same twice.

    The first look costs less than half, and a call has nine of them.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Self | T:
        """Compute the value and leave it in the object's own dictionary, where it is found from then on."""
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


_NAME = re.compile("[a-z][a-z0-9._-]{0,63}")


class OpenName(StrEnum):
    """A set of names that others may add to: what is not among the members is kept as it is written, and equals itself.

    Such a name is no member, and not the same object each time: compare by `==`. `ValueError` is raised for what is no
    name: 1 to 64 small letters, digits and `._-`, a letter in front.
    """

    @classmethod
    @override
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            return None
        # Not remembered: names that come over a bus could fill the memory.
        name = str.__new__(cls, value)
        name._name_, name._value_ = value, value
        return name

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
        """Return what a reader takes: any name."""
        return {"type": "string", "pattern": f"^{_NAME.pattern}$", "examples": [str(one) for one in cls]}


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
    spelled, read = canonical_bytes_and_value(value)
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


class RevalidatedModel(BaseModel, frozen=True, ignored_types=(lazy_property,)):
    """A frozen model that is copied by building it again: validated, and with nothing cached carried over."""

    follows: ClassVar[Mapping[str, frozenset[str]]] = {}
    """Fields that follow from others: unless it is given itself, each is computed again when one of those is replaced."""

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Build a new object with `update` applied; raises pydantic's `ValidationError` for a value that does not fit.

        Lists and objects of plain JSON are never shared with the original, `deep` or not.
        """
        given = dict(update or {})
        stale = self._stale(given)
        kept = {name: getattr(self, name) for name in type(self).model_fields if name not in stale}
        return type(self).model_validate({**kept, **(self.model_extra or {}), **given})

    def _stale(self, update: Mapping[str, Any]) -> set[str]:
        return {name for name, sources in self.follows.items() if sources & update.keys()}


LARGEST_COUNT = 2**53
"""The largest whole number that JSON readers, Lua and SQLite all keep exact."""
EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
LATEST = datetime(9999, 12, 30, tzinfo=UTC)

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def legible(value: Any) -> Any:
    """Return `value` with each lone surrogate in its texts, however deep, as U+FFFD; nothing else is changed."""
    if isinstance(value, str):
        return value if value.isascii() else _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {legible(key): legible(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [legible(item) for item in value]
    return value


def _still_unreadable(value: Any) -> Any:
    return value if not isinstance(value, str) or value.isascii() else _LONE_SURROGATE.sub("\0", value)


Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
PositiveCount = Annotated[int, Field(gt=0, le=LARGEST_COUNT)]
Moment = Annotated[AwareDatetime, Field(ge=EARLIEST, le=LATEST)]
"""A time that has a spelling in UTC, wherever its clock stood."""
Text = Annotated[str, BeforeValidator(legible)]
"""Text from outside; what UTF-8 cannot spell is U+FFFD."""
AnswerText = Annotated[str, BeforeValidator(_still_unreadable)]
"""Text of an answer; what UTF-8 cannot spell is U+0000, which no JSON holds raw: read again, it is refused again."""
Legible = Annotated[Any, BeforeValidator(legible)]
