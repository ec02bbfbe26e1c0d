"""Field types of records: times, ids, exact decimals, texts and open words."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Final, Generic, NoReturn, Self, TypeVar, overload

import orjson
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
"""The most that an id may have in UTF-8: ids become keys of counters, of headers and of claims."""


def long_ids(names: Iterable[str], ids: Collection[str]) -> list[str]:
    """Return what is wrong with those ids that are too long, given with their names."""
    if 4 * max(map(len, ids)) <= MAX_ID_BYTES:
        return []
    problems = []
    for name, id_ in zip(names, ids, strict=True):
        if 4 * len(id_) > MAX_ID_BYTES and (size := len(id_.encode("utf-8", "surrogatepass"))) > MAX_ID_BYTES:
            problems.append(f"{name} has {size} bytes; allowed are up to {MAX_ID_BYTES}: take a shorter one")
    return problems


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


def _refuse_change(*_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        "what an envelope or an event holds cannot be changed: its bytes and hashes would not follow;"
        " build another one, from what `canonical.to_json_value` returns of this: an object that can be changed"
    )


class _Frozen:
    """A list or object that cannot be changed; a copy of it is itself, and what was pickled is frozen again."""

    __slots__ = ()
    clear = pop = __setitem__ = __delitem__ = _refuse_change

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: object) -> Self:
        return self


class FrozenList(_Frozen, list[Any]):
    """A list that cannot be changed."""

    __slots__ = ()
    append = extend = insert = remove = sort = reverse = __iadd__ = __imul__ = _refuse_change

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self),)


class FrozenObject(_Frozen, dict[str, Any]):
    """A JSON object that cannot be changed."""

    __slots__ = ()
    popitem = setdefault = update = __ior__ = _refuse_change

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


class CanonicalObject(FrozenObject):
    """A frozen JSON object that knows its canonical bytes."""

    __slots__ = ("json",)

    def __init__(self, value: Mapping[str, Any], json: bytes) -> None:
        super().__init__(value)
        self.json = json

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self), self.json)


class UnreadObject(CanonicalObject):
    """A JSON object that was not looked at yet: what it holds is plain still. It stands in a `LazyJson` field of a `JsonModel` only.

    It has the members that libraries see: they spell and compare it, and validate a copy. Where it was read, `json` is empty.
    """

    __slots__ = ()

    def frozen(self) -> FrozenObject:
        """Return it so that it can be handed out."""
        whole = CanonicalObject(self, self.json) if self.json else FrozenObject(self)
        _freeze_below(whole)
        return whole


_FROZEN: Mapping[type, type[FrozenObject | FrozenList]] = {dict: FrozenObject, list: FrozenList}


def frozen(value: Any) -> Any:
    """Return plain JSON so that it cannot be changed, however deep; nothing else has a part of it."""
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
    """Return `value` in canonical JSON; of what was spelled before, the same bytes again."""
    known: bytes = value.json if isinstance(value, CanonicalObject) else b""
    return known or canonical_bytes(value)


def _plain(value: Any) -> Any:
    if isinstance(value, CanonicalObject):
        return value
    spelled, read = canonical_bytes_and_value(value)
    return UnreadObject(read, spelled) if type(read) is dict else frozen(read)


AS_READ: Final = object()
"""The context of a validation of what was just read from JSON: nothing else has a part of it."""

ON_RECORD: Final = object()
"""`AS_READ`, of a record that another release may have written: unknown words of `Open` fields are kept."""


def _data(value: Any, info: ValidationInfo) -> Any:
    if info.mode != "json" and info.context is not AS_READ and info.context is not ON_RECORD:
        return _plain(value)
    return UnreadObject(value, b"") if type(value) is dict else frozen(value)


def _object(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """Check that `value` is an object; the check that pydantic makes of a `dict` would copy it, without its bytes."""
    read = _data(value, info)
    return read if isinstance(read, FrozenObject) else handler(read)


def _at_once(read: Any) -> Any:
    return read.frozen() if type(read) is UnreadObject else read


@lru_cache(maxsize=256)
def _shared(spelled: bytes) -> CanonicalObject | None:
    held = frozen(orjson.loads(spelled))
    return CanonicalObject(held, spelled) if canonical_bytes(held) == spelled else None


def _schema(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """Do as `_object`, and keep equal schemas as one object, read and frozen once: calls have theirs in common."""
    shared = None
    if type(value) is dict:
        with suppress(
            CanonicalError
        ):  # of what is built it is raised again, of what is read it shows in the hashes
            spelled = canonical_bytes(value)
            shared = _shared(spelled) if len(spelled) <= _LONGEST_SHARED else None
    return _at_once(_object(value, handler, info)) if shared is None else shared


_LONGEST_SHARED: Final = 1 << 14

LazyJsonData = Annotated[Any, BeforeValidator(_data)]
"""`JsonData` that is frozen when it is first looked at: only as a field of a `JsonModel`, not within another type."""

LazyJsonObject = Annotated[dict[str, Any], WrapValidator(_object)]
"""A JSON object, likewise."""

JsonData = Annotated[LazyJsonData, AfterValidator(_at_once)]
"""Anything that JSON has; other values become what their canonical JSON reads back as."""

JsonObject = Annotated[LazyJsonObject, AfterValidator(_at_once)]
"""A JSON object, likewise."""

JsonSchema = Annotated[dict[str, Any], WrapValidator(_schema)]
"""A JSON object that many records have in common: equal ones are one object."""


def freeze_extra(model: BaseModel) -> None:
    """Freeze the fields of `model` that its class does not know."""
    object.__setattr__(model, "__pydantic_extra__", frozen(dict(model.model_extra or {})))


FrozenItems = Annotated[list[T], AfterValidator(FrozenList)]
"""A list of models or texts that cannot be changed."""


class _FrozenWhenRead:
    """A field that is frozen to the bottom when it is first looked at: the context of most calls never is."""

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
        """Make it come before the object's own dictionary."""
        raise TypeError(f"{self._name} cannot be changed")


def _is_lazy(field: FieldInfo) -> bool:
    known = [getattr(one, "func", None) for one in field.metadata]
    return (_data in known or _object in known) and _at_once not in known


class JsonModel(BaseModel, frozen=True):
    """A frozen model that may have fields of `LazyJsonData` and `LazyJsonObject`: whatever reads one gets it frozen to the bottom.

    A class derived from it has the inherited ones frozen at once: its validators and serializers come before any reader.
    """

    @classmethod
    @override
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
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
    """A frozen model that is copied by building it again: validated, and with nothing cached carried over."""

    follows: ClassVar[Mapping[str, frozenset[str]]] = {}
    """Fields that follow from others: unless it is given itself, each is computed again when one of those is replaced."""

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Build a new object with `update` applied; raises pydantic's `ValidationError` for a value that does not fit."""
        given = dict(update or {})
        stale = self._stale(given)
        kept = {name: getattr(self, name) for name in type(self).model_fields if name not in stale}
        return type(self).model_validate({**kept, **(self.model_extra or {}), **given})

    @override
    def copy(self, **options: Any) -> Self:
        """Do as `model_copy`: that of pydantic 1 carries bytes and hashes over to other fields."""
        return self.model_copy(update=options.get("update"))

    @classmethod
    @override
    def model_construct(  # type: ignore[override]  # pydantic's plugin for mypy puts a signature of its own here
        cls, _fields_set: set[str] | None = None, **values: Any
    ) -> Self:
        """Build it as any other: a message carries the object itself, and no reader would validate it."""
        return cls.model_validate(values)

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


def still_unreadable(value: Any) -> Any:
    """Return `value`, if it is text, with each lone surrogate as U+0000, which JSON does not have either."""
    return value if not isinstance(value, str) or value.isascii() else _LONE_SURROGATE.sub("\0", value)


Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
PositiveCount = Annotated[int, Field(gt=0, le=LARGEST_COUNT)]
Moment = Annotated[AwareDatetime, Field(ge=EARLIEST, le=LATEST)]
"""A time that has a spelling in UTC, wherever its clock stood."""
Text = Annotated[str, BeforeValidator(legible)]
"""Text from outside; what UTF-8 cannot spell is U+FFFD."""
AnswerText = Annotated[str, BeforeValidator(still_unreadable)]
"""Text of an answer; what UTF-8 cannot spell is U+0000, which no JSON holds raw: read again, it is refused again."""
Legible = Annotated[Any, BeforeValidator(legible)]


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
