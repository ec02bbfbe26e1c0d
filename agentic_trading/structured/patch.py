"""Change a value to fit its schema, if there is one way. All changes are recorded."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import orjson
from jsonschema_rs import ValidationError, Validator

from agentic_trading.canonical import exact_bytes
from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.llm.result import Fix, Violation
from agentic_trading.structured.decode import decode
from agentic_trading.structured.feedback import misspelt, near_miss
from agentic_trading.structured.outcome import UnreadableError
from agentic_trading.structured.validation import (
    MAX_ERRORS,
    CompiledSchema,
    errors_at_most,
    find_violations,
    is_deeper,
    is_too_deep,
)
from agentic_trading.structured.violations import json_path, rules_at, steps_in

_SHOWN_CHARS = 200
_MOST_WORK = 1_500_000  # about 1.5 s: the amounts passed to `_spend` are microseconds, measured on one core
_MOST_ROUNDS = 32  # a change may require another one: an object in a string in a string
_MOST_CHOICES = 32  # nested in each other
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ODD_KEY = re.compile(r"|[+0][0-9]+")
_LISTING = re.compile(r"[,;|\n]")  # separators of a list in a text
_GONE: Final = object()
_PATCHES = frozenset({"dropped", "wrapped"})
_Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class PatchedValue:
    """A value after all permitted changes.

    Attributes:
        value: The value.
        coercions: The type changes.
        patches: The dropped properties and wrapped scalars.
        violations: The rules that it still breaks. Empty if the value fits.

    """

    value: Any
    coercions: tuple[Fix, ...]
    patches: tuple[Fix, ...]
    violations: list[Violation]


def patch_value(value: Any, schema: CompiledSchema, policy: OutputPolicy, *, may_drop: bool) -> PatchedValue:
    """Return decoded JSON with every permitted change that has one possible result.

    With `policy.coerce`, a string becomes the value that it spells, if the schema requires its type: a JSON
    number, `true` or `false`, or an object. A scalar becomes a list of one item, if the schema requires a
    list and its items accept the scalar. With `policy.drop_extra` and `may_drop`, an undeclared property is
    dropped. It stays if it is protected, contains a protected one, or may misspell a protected or a declared
    one.

    Valid parts and `value` itself are never changed. Patching the result again changes nothing. A value that
    would take too long (thousands of members, or too many choices) is returned unchanged.
    """
    found = find_violations(value, schema)
    if (
        not found
        or is_too_deep(value, schema)
        or not _is_plain(value)
        or not _is_plain_schema(schema.spelling)
    ):
        return PatchedValue(value, (), (), found)
    patcher = _Patcher(schema, policy, drops=policy.drop_extra and may_drop)
    try:
        result, fixes = patcher.patch(value, schema.validator, ())
    except _TooMuchWorkError:
        return PatchedValue(value, (), (), found)
    if not fixes:
        return PatchedValue(value, (), (), found)
    patches = tuple(fix for fix in fixes if fix.kind in _PATCHES)
    coercions = tuple(fix for fix in fixes if fix.kind not in _PATCHES)
    return PatchedValue(result, coercions, patches, find_violations(result, schema))


def is_protected(key: str, policy: OutputPolicy) -> bool:
    """Return whether `key` is or contains a protected key of the policy.

    Only letters and digits count, in any case.
    """
    letters = _letters(key)
    return any(key == name or (_letters(name) or name) in letters for name in policy.protected_keys)


def protected_name(key: str, policy: OutputPolicy) -> str:
    """Return the letters and digits of a protected key, or an empty string."""
    letters = _letters(key)
    return letters if any(letters == _letters(name) for name in policy.protected_keys) else ""


def _letters(name: str) -> str:
    return _letters_of_name(name) if len(name) <= _SHOWN_CHARS else _letters_of(name)


def _letters_of(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text).casefold()
    return "".join(character for character in plain if character.isalnum())


# Long texts are not cached, because a text of a megabyte may be passed.
_letters_of_name = lru_cache(maxsize=1024)(_letters_of)


class _TooMuchWorkError(Exception):
    """Finding the permitted changes takes too long."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A new value at a place, and its fixes."""

    place: _Place
    after: Any
    fixes: Sequence[Fix]


class _Patcher:
    """Changes one value by the errors of the validator. Rounds and work are limited."""

    def __init__(self, schema: CompiledSchema, policy: OutputPolicy, *, drops: bool) -> None:
        self._schema = schema
        self._policy = policy
        self._drops = drops
        self._left = _MOST_WORK
        self._choices = 0
        self._parts: set[_Place] = set()

    def patch(self, value: Any, validator: Validator, above: _Place) -> tuple[Any, list[Fix]]:
        """Return the value at `above` after all changes, with their fixes."""
        fixes: list[Fix] = []
        for _ in range(_MOST_ROUNDS):
            changes = list(self._changes(value, self._errors(value, validator), above))
            if not changes:
                return value, fixes
            value, made = _apply(value, changes, len(above))
            fixes += [fix for change in made for fix in change.fixes]
        raise _TooMuchWorkError

    def _errors(self, value: Any, validator: Validator) -> list[ValidationError]:
        most = errors_at_most(value, self._schema)
        if most > MAX_ERRORS:
            raise _TooMuchWorkError
        self._spend(5 + most // 8)
        errors = list(validator.iter_errors(value))
        self._spend(20 * len(errors) * self._schema.weight)
        return errors

    def _spend(self, microseconds: int) -> None:
        self._left -= microseconds
        if self._left < 0:
            raise _TooMuchWorkError

    def _part(self, steps: Iterable[str | int]) -> Validator:
        place = steps_in(self._schema.schema, tuple(steps)) or ()
        if place not in self._parts:
            self._parts.add(place)
            self._spend(20 + len(self._schema.spelling) // 5)  # it may refer to all of the schema
        return self._schema.part(place)

    def _changes(self, value: Any, errors: Sequence[ValidationError], above: _Place) -> Iterator[_Change]:
        by_place: dict[_Place, list[ValidationError]] = {}
        for error in errors:
            by_place.setdefault(steps_in(value, error.instance_path) or (), []).append(error)
        for steps, here in sorted(by_place.items(), key=lambda found: len(found[0])):
            node = value
            for step in steps:
                node = node[step]
            place = above + steps
            deepest = self._schema.deepest - len(place)
            for change in self._changes_of(node, here, place):
                if change.after is _GONE or not is_deeper(change.after, deepest):
                    yield change

    def _changes_of(self, node: Any, errors: Sequence[ValidationError], place: _Place) -> Iterator[_Change]:
        choices = [error for error in errors if error.kind.name in {"anyOf", "oneOf"}]
        if choices and (change := self._chosen(node, choices[0], place)):
            yield change
        elif isinstance(node, dict):
            for error in errors:
                if self._drops and error.kind.name in {"additionalProperties", "unevaluatedProperties"}:
                    yield from self._dropped(node, error, place)
        elif self._policy.coerce and node is not None and not isinstance(node, list):
            yield from self._read(node, errors, place)
            # Never both, because a string that spells another type is not an item.
            yield from self._wrapped(node, errors, place)

    def _read(self, node: Any, errors: Sequence[ValidationError], place: _Place) -> Iterator[_Change]:
        """Yield the value that a string spells, if the schema requires it and no string."""
        spelled = _spelled_by(node) if isinstance(node, str) else None
        if spelled is None:
            return
        kind, after = spelled
        wanted = [error.kind.as_dict()["types"] for error in errors if error.kind.name == "type"]
        values = [error for error in errors if error.kind.name in {"enum", "const"}]
        if wanted:
            is_wanted = all(kind in types or (kind == "integer" and "number" in types) for types in wanted)
        else:
            is_wanted = (
                bool(values) and kind != "object" and all(self._fits(after, error) for error in values)
            )
        if is_wanted:
            name = "double_encoded" if kind == "object" else kind
            yield _Change(place, after, [_fix(name, place, node, after)])

    def _wrapped(self, node: Any, errors: Sequence[ValidationError], place: _Place) -> Iterator[_Change]:
        """Yield a list of the scalar, if the schema requires a list and accepts this one."""
        wanted = [error for error in errors if error.kind.name == "type"]
        if not wanted or not all("array" in error.kind.as_dict()["types"] for error in wanted):
            return
        if not (isinstance(node, str) and _may_be_a_list(node)) and all(
            self._fits([node], error) for error in wanted
        ):
            yield _Change(place, [node], [_fix("wrapped", place, node, [node])])

    def _fits(self, value: Any, error: ValidationError) -> bool:
        self._spend(5)
        return self._part(error.schema_path[:-1]).is_valid(value)

    def _chosen(self, node: Any, error: ValidationError, place: _Place) -> _Change | None:
        """Return the change that fits a value to a choice, if all branches give the same."""
        branches = error.kind.as_dict()["context"]
        fits_several = not all(branches)
        if fits_several or self._choices >= _MOST_CHOICES:
            return None
        validators = [self._part([*error.schema_path, index]) for index in range(len(branches))]
        self._choices += 1
        results = [self.patch(node, validator, place) for validator in validators]
        self._choices -= 1
        fitting = [
            (after, fixes)
            for (after, fixes), validator in zip(results, validators, strict=True)
            if fixes and validator.is_valid(after)
        ]
        if not isinstance(node, dict | list) and any(_takes_type(branch, error) for branch in branches):
            fitting = [(after, fixes) for after, fixes in fitting if not isinstance(after, dict | list)]
        if not fitting or any(after != fitting[0][0] for after, _ in fitting):
            return None
        after, fixes = fitting[0]
        if error.kind.name == "oneOf" and sum(validator.is_valid(after) for validator in validators) != 1:
            return None
        return _Change(place, after, fixes)

    def _dropped(self, node: dict[str, Any], error: ValidationError, place: _Place) -> Iterator[_Change]:
        declared = self._declared(error)
        own = {_letters(name) for name in declared}
        absent = [name for name in declared if name not in node]
        for key in error.kind.as_dict()["unexpected"]:
            self._spend(20 + 20 * len(absent))
            if _letters(key) in own or self._must_stay(key, node[key]):
                continue
            if misspelt(key, absent) or near_miss(key, self._policy.protected_keys):
                continue
            where = (*place, key)
            yield _Change(where, _GONE, [_fix("dropped", where, node[key], _GONE)])

    def _declared(self, error: ValidationError) -> Iterable[str]:
        """Return the names that an undeclared name may mean."""
        # The names of all branches, because it is open which branch is meant.
        if self._choices or error.kind.name == "unevaluatedProperties":
            return self._all_names
        declared: dict[str, Any] = rules_at(self._schema.schema, error.schema_path).get("properties", {})
        return declared

    @cached_property
    def _all_names(self) -> frozenset[str]:
        return frozenset(declared_names(self._schema.schema))

    def _must_stay(self, key: str, value: Any) -> bool:
        """Return whether a property is or contains a protected one, also in a text."""
        if is_protected(key, self._policy):
            return True
        self._spend(1)
        if isinstance(value, dict):
            return any(self._must_stay(inner, member) for inner, member in value.items())
        if isinstance(value, list):
            return any(self._must_stay("", item) for item in value)
        return (
            isinstance(value, str) and value.lstrip()[:1] in {"{", "["} and is_protected(value, self._policy)
        )


def _apply(value: Any, changes: Sequence[_Change], above: int) -> tuple[Any, list[_Change]]:
    """Return a copy with the outermost changes, and these changes."""
    tree: dict[str | int, Any] = {}
    made: list[_Change] = []
    for change in changes:
        steps = change.place[above:]
        if not steps:
            return change.after, [change]
        node: Any = tree
        for step in steps[:-1]:
            node = node.setdefault(step, {}) if isinstance(node, dict) else None
        if isinstance(node, dict) and steps[-1] not in node:
            node[steps[-1]] = change
            made.append(change)
    return _rebuild(value, tree), made


def _rebuild(node: Any, tree: Any) -> Any:
    if isinstance(tree, _Change):
        return tree.after
    copy = node.copy()
    for step, below in tree.items():
        copy[step] = _rebuild(node[step], below)
        if copy[step] is _GONE:
            del copy[step]
    return copy


def _spelled_by(text: str) -> tuple[str, Any] | None:
    """Return the JSON type and the value that a string spells exactly, or None."""
    if text in {"true", "false"}:
        return "boolean", text == "true"
    is_number = _NUMBER.fullmatch(text) is not None
    if not is_number and text.lstrip()[:1] != "{":
        return None
    try:
        decoded = decode(text)
    except UnreadableError:
        return None
    value = decoded.value
    if isinstance(value, int):
        return ("integer", value) if str(value) == text else None  # -0 would lose its sign
    if is_number:
        return "number", value
    return ("object", value) if not decoded.fixes and _is_plain(value) else None


def _is_plain(value: Any) -> bool:
    """Return whether the validator reports correct paths in `value`."""
    # The validator leaves out empty keys and leading zeros of numeric keys, so that a change would be made elsewhere.
    if isinstance(value, dict):
        return all(not _ODD_KEY.fullmatch(key) and _is_plain(member) for key, member in value.items())
    return not isinstance(value, list) or all(_is_plain(item) for item in value)


@lru_cache(maxsize=256)
def _is_plain_schema(schema_json: bytes) -> bool:
    return _is_plain(orjson.loads(schema_json))


def _may_be_a_list(text: str) -> bool:
    """Return whether a string may mean several items or no item.

    That is a string that is JSON or begins like it, is empty, or has a separator.
    """
    if not text.strip() or text.lstrip()[0] in '[{"' or _LISTING.search(text):
        return True
    try:
        decode(text)
    except UnreadableError:
        return False
    return True


def _takes_type(branch: Sequence[ValidationError], choice: ValidationError) -> bool:
    """Return whether a branch accepts the type of the value, but not the value."""
    return not any(
        error.kind.name == "type" and error.instance_path == choice.instance_path for error in branch
    )


def declared_names(schema: Any) -> Iterator[str]:
    """Yield every declared name in a schema, which must not be deeply nested."""
    if isinstance(schema, dict):
        properties = schema.get("properties")
        yield from properties if isinstance(properties, dict) else ()
        for inner in schema.values():
            yield from declared_names(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from declared_names(inner)


def _fix(kind: str, place: _Place, before: Any, after: Any) -> Fix:
    return Fix(kind=kind, where=json_path(place), before=_shown(before), after=_shown(after))


def _shown(value: Any) -> str:
    if value is _GONE:
        return ""
    if isinstance(value, str):
        return json.dumps(value[:_SHOWN_CHARS], ensure_ascii=False)[:_SHOWN_CHARS]
    return exact_bytes(value).decode()[:_SHOWN_CHARS]
