"""Field types of records: times, ids, exact decimals, texts and open words."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Final, Generic, NoReturn, Self, TypeVar, overload

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema
from typing_extensions import override

from agentic_trading.canonical import CanonicalError, canonical_bytes, canonical_bytes_and_value

T = TypeVar("T")

MAX_ID_BYTES = 256
"""The maximum length of an id in UTF-8.

Ids become keys of counters, headers and claims.
"""


def long_ids(names: Iterable[str], ids: Collection[str]) -> list[str]:
    """Return a problem for each id that is too long."""
    # A character has at most four bytes in UTF-8, so that short ids need no encoding.
    if 4 * max(map(len, ids)) <= MAX_ID_BYTES:
        return []
    problems = []
    for name, id_ in zip(names, ids, strict=True):
        if 4 * len(id_) > MAX_ID_BYTES and (size := len(id_.encode("utf-8", "surrogatepass"))) > MAX_ID_BYTES:
            problems.append(f"{name} has {size} bytes; allowed are up to {MAX_ID_BYTES}: take a shorter one")
    return problems


class lazy_property(Generic[T]):  # noqa: N801 - a decorator, like the one that it stands in for
    """`functools.cached_property` without the lock of Python 3.11.

    Two threads may compute the same value twice. The first access takes less than half the time, and a call
    has nine.
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
        """Compute the value and store it in the instance's `__dict__`."""
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


_NAME = re.compile("[a-z][a-z0-9._-]{0,63}")


class OpenName(StrEnum):
    """A set of names that users may extend. Other names are kept as they are written.

    Such a name is not a member and not the same object each time: compare with `==`.

    Raises:
        ValueError: If the name is not 1 to 64 lower-case letters, digits and `._-`, starting with a letter.

    """

    @classmethod
    @override
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            return None
        # Not remembered, because names that come over a bus would fill the memory.
        name = str.__new__(cls, value)
        name._name_, name._value_ = value, value
        return name

    @override
    def __reduce_ex__(self, _protocol: Any) -> tuple[type[Self], tuple[str]]:
        # Python 3.11.2 looks up the name among the members when it unpickles.
        return type(self), (self.value,)

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
        """Return a schema that accepts any name."""
        return {"type": "string", "pattern": f"^{_NAME.pattern}$", "examples": [str(one) for one in cls]}


def _refuse_change(*_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        "an envelope or event cannot be changed, because its bytes and hashes would no longer match."
        " Build another one: `canonical.to_json_value` returns a copy of this value that can be changed"
    )


class _Frozen:
    """An immutable list or object.

    A copy is the object itself, and unpickling freezes again.
    """

    __slots__ = ()
    clear = pop = __setitem__ = __delitem__ = _refuse_change

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: object) -> Self:
        return self


class FrozenList(_Frozen, list[Any]):
    """An immutable list."""

    __slots__ = ()
    append = extend = insert = remove = sort = reverse = __iadd__ = __imul__ = _refuse_change

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self),)


class FrozenObject(_Frozen, dict[str, Any]):
    """An immutable JSON object."""

    __slots__ = ()
    popitem = setdefault = update = __ior__ = _refuse_change

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


class CanonicalObject(FrozenObject):
    """An immutable JSON object with its canonical bytes."""

    __slots__ = ("json",)

    def __init__(self, value: Mapping[str, Any], json: bytes) -> None:
        super().__init__(value)
        self.json = json

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self), self.json)


class UnreadObject(CanonicalObject):
    """A JSON object in a `LazyJson` field of a `JsonModel` that was not read yet.

    Its content is still mutable. Libraries see its members: they serialize, compare and copy them. `json` is
    empty if the object was read from JSON.
    """

    __slots__ = ()

    def frozen(self) -> FrozenObject:
        """Return the object frozen, so that a reader may have it."""
        whole = CanonicalObject(self, self.json) if self.json else FrozenObject(self)
        _freeze_below(whole)
        return whole


_FROZEN: Mapping[type, type[FrozenObject | FrozenList]] = {dict: FrozenObject, list: FrozenList}


def frozen(value: Any) -> Any:
    """Return plain JSON, immutable at every depth.

    The value must not be shared with others.
    """
    if type(value) not in _FROZEN:
        return value
    whole = _FROZEN[type(value)](value)
    _freeze_below(whole)
    return whole


def _freeze_below(whole: FrozenObject | FrozenList) -> None:
    held: list[Any] = [whole]
    for parent in held:  # it grows by each child that is frozen
        is_object = isinstance(parent, dict)
        put = dict.__setitem__ if is_object else list.__setitem__
        for place, item in parent.items() if is_object else enumerate(parent):
            if type(item) in _FROZEN:
                child = _FROZEN[type(item)](item)
                put(parent, place, child)
                held.append(child)


def json_of(value: Any) -> bytes:
    """Return `value` in canonical JSON. Bytes that are known are not computed again."""
    known: bytes = value.json if isinstance(value, CanonicalObject) else b""
    return known or canonical_bytes(value)


def _plain(value: Any) -> Any:
    if isinstance(value, CanonicalObject):
        return value
    spelled, read = canonical_bytes_and_value(value)
    return UnreadObject(read, spelled) if type(read) is dict else frozen(read)


AS_READ: Final = object()
"""The validation context for values that were just read from JSON and are unshared."""

ON_RECORD: Final = object()
"""Like `AS_READ`, for a record that another release may have written.

Unknown words of `Open` fields are kept.
"""


def _data(value: Any, info: ValidationInfo) -> Any:
    if info.mode != "json" and info.context is not AS_READ and info.context is not ON_RECORD:
        return _plain(value)
    return UnreadObject(value, b"") if type(value) is dict else frozen(value)


def _object(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """Check that `value` is an object, without the copy that pydantic's own check makes."""
    read = _data(value, info)
    return read if isinstance(read, FrozenObject) else handler(read)


def _at_once(read: Any) -> Any:
    return read.frozen() if type(read) is UnreadObject else read


@lru_cache(maxsize=256)
def _shared(spelled: bytes) -> CanonicalObject | None:
    # Read back, so that the shared object has no part in common with the caller's. With `json`, because orjson
    # rounds integers from 2^64 on.
    held = frozen(json.loads(spelled))
    return CanonicalObject(held, spelled) if canonical_bytes(held) == spelled else None


def _schema(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """Do the same as `_object`, but return one shared object for equal schemas."""
    shared = None
    if type(value) is dict:
        # Suppressed, because `_object` raises it again. A value that was read raises nothing, but its hashes
        # differ.
        with suppress(CanonicalError):
            spelled = canonical_bytes(value)
            shared = _shared(spelled) if len(spelled) <= _LONGEST_SHARED else None
    return _at_once(_object(value, handler, info)) if shared is None else shared


_LONGEST_SHARED: Final = 1 << 14

LazyJsonData = Annotated[Any, BeforeValidator(_data)]
"""`JsonData` that is frozen at the first access.

Use it only as a field of a `JsonModel`, not within another type.
"""

LazyJsonObject = Annotated[dict[str, Any], WrapValidator(_object)]
"""A JSON object that is frozen at the first access. See `LazyJsonData`."""

JsonData = Annotated[LazyJsonData, AfterValidator(_at_once)]
"""Any JSON value. Other values become the value of their canonical JSON."""

JsonObject = Annotated[LazyJsonObject, AfterValidator(_at_once)]
"""A JSON object. See `JsonData`."""

JsonSchema = Annotated[dict[str, Any], WrapValidator(_schema)]
"""A JSON object that many records share: equal objects are kept once."""


def freeze_extra(model: BaseModel) -> None:
    """Freeze the fields of `model` that its class does not define."""
    object.__setattr__(model, "__pydantic_extra__", frozen(dict(model.model_extra or {})))


FrozenItems = Annotated[list[T], AfterValidator(FrozenList)]
"""An immutable list of models or texts."""


class _FrozenWhenRead:
    """A field that is frozen at the first access: the context of most calls is never read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        if instance is None or self._name not in instance.__dict__:
            raise AttributeError(f"{owner.__name__} has no attribute {self._name!r}")  # as of any other field
        held = instance.__dict__[self._name]
        if type(held) is UnreadObject:
            held = instance.__dict__[self._name] = held.frozen()
        return held

    def __set__(self, instance: object, value: object) -> None:
        """Refuse the assignment.

        With this method, the descriptor takes precedence over the instance's `__dict__`.
        """
        raise TypeError(f"{self._name} cannot be changed")


def _is_lazy(field: FieldInfo) -> bool:
    known = [getattr(one, "func", None) for one in field.metadata]
    return (_data in known or _object in known) and _at_once not in known


class JsonModel(BaseModel, frozen=True):
    """A frozen model whose lazy JSON fields are frozen at the first access.

    Lazy fields have the type `LazyJsonData` or `LazyJsonObject`. A subclass freezes inherited fields at once,
    because its validators and serializers see them first.
    """

    @classmethod
    @override
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # A validator or serializer of a subclass would see the value before it is frozen. One that sorts a
        # list in place would change the object and not its hash (decision 49).
        for name, field in cls.__pydantic_fields__.items():
            if _is_lazy(field) and name not in get_annotations(cls):
                field.metadata = [*field.metadata, AfterValidator(_at_once)]
        return handler(source)

    @classmethod
    @override
    def __pydantic_init_subclass__(cls, **_options: Any) -> None:
        for name, field in cls.model_fields.items():
            if _is_lazy(field):
                setattr(cls, name, _FrozenWhenRead(name))

    @override
    def __iter__(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]  # as pydantic's own
        """Yield each field with its value."""
        return (
            (name, getattr(self, name) if type(value) is UnreadObject else value)
            for name, value in super().__iter__()
        )


class RevalidatedModel(JsonModel, frozen=True, ignored_types=(lazy_property,)):
    """A frozen model whose copies are validated and have no cached values."""

    follows: ClassVar[Mapping[str, frozenset[str]]] = {}
    """Fields that are computed from others.

    A copy computes them again if one of these is replaced.
    """

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Build a new object with `update` applied.

        Raises:
            ValidationError: A `ValueError` of pydantic, if a value does not fit.

        """
        given = dict(update or {})
        stale = self._stale(given)
        kept = {name: getattr(self, name) for name in type(self).model_fields if name not in stale}
        return type(self).model_validate({**kept, **(self.model_extra or {}), **given})

    @override
    def copy(self, **options: Any) -> Self:
        """Return `model_copy`, because pydantic 1's method would copy outdated bytes and hashes."""
        return self.model_copy(update=options.get("update"))

    @classmethod
    @override
    def model_construct(  # type: ignore[override]  # pydantic's plugin for mypy puts a signature of its own here
        cls, _fields_set: set[str] | None = None, **values: Any
    ) -> Self:
        """Validate too, because messages carry the object itself and no reader validates it."""
        return cls.model_validate(values)

    def _stale(self, update: Mapping[str, Any]) -> set[str]:
        return {name for name, sources in self.follows.items() if sources & update.keys()}


LARGEST_COUNT = 2**53
"""The largest whole number that JSON readers, Lua and SQLite keep exact."""
EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
LATEST = datetime(9999, 12, 30, tzinfo=UTC)

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def legible(value: Any) -> Any:
    """Return `value` with U+FFFD for each lone surrogate in its texts, at every depth."""
    if isinstance(value, str):
        return value if value.isascii() else _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {legible(key): legible(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [legible(item) for item in value]
    return value


def still_unreadable(value: Any) -> Any:
    """Return `value` with U+0000 for each lone surrogate if it is text.

    Neither is valid in JSON, so the text stays invalid.
    """
    return value if not isinstance(value, str) or value.isascii() else _LONE_SURROGATE.sub("\0", value)


Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
PositiveCount = Annotated[int, Field(gt=0, le=LARGEST_COUNT)]
Moment = Annotated[AwareDatetime, Field(ge=EARLIEST, le=LATEST)]
"""A time that can be written in UTC, whatever its time zone."""
Text = Annotated[str, BeforeValidator(legible)]
"""Text from outside. Characters that UTF-8 cannot encode become U+FFFD."""
AnswerText = Annotated[str, BeforeValidator(still_unreadable)]
"""Text of an answer. Characters that UTF-8 cannot encode become U+0000.

U+0000 is never valid in JSON, so that the text is rejected again when it is read again.
"""
Legible = Annotated[Any, BeforeValidator(legible)]


class UnknownWord(str):
    """A word of a record that this release does not define.

    It equals the text, and no member.
    """

    __slots__ = ()


class _OpenOnRecord:
    """Makes a closed vocabulary keep unknown words of records, and refuse them elsewhere."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        closed = handler(source)
        unknown = core_schema.with_info_plain_validator_function(
            _unknown_word, serialization=core_schema.to_string_ser_schema()
        )
        words = handler.resolve_ref_schema(closed)
        known: Iterable[object] = words.get("expected") or words.get("members") or ()
        *others, last = [*(repr(str(word)) for word in known)] or [""]
        # Of words mixed with values, such as prices, pydantic's own error already lists the allowed ones.
        if not last:
            return core_schema.union_schema([closed, unknown], mode="left_to_right")
        return core_schema.union_schema(
            [closed, unknown],
            mode="left_to_right",
            custom_error_type="enum" if "members" in words else "literal_error",
            custom_error_context={"expected": f"{', '.join(others)} or {last}" if others else last},
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema of the words that may be written."""
        return handler(schema["choices"][0])


def is_unknown(word: object) -> bool:
    """Return whether a word of a record is unknown to this release."""
    return type(word) is UnknownWord


def _unknown_word(value: Any, info: ValidationInfo) -> UnknownWord:
    if type(value) is UnknownWord:  # a copy of a record
        return value
    if info.context is ON_RECORD and type(value) is str:
        return UnknownWord(value)
    raise ValueError("not a known word")


Open = Annotated[T, _OpenOnRecord()]
"""A `Literal` or an enum that keeps unknown words when a record is read.

A newer release may have added one. When you write, only known words are allowed. mypy sees the closed type:
do not treat an unknown word as a known one.
"""
