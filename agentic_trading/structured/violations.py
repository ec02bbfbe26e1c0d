"""Describe broken rules: the place, the value, and the values that would pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from jsonschema_rs import ValidationError

from agentic_trading.llm.result import Violation
from agentic_trading.structured.decode import member_path, pointer_steps
from agentic_trading.structured.feedback import misspelt, nearest_number, nearest_option, plain_number

MAX_VIOLATIONS = 20
_SHOWN_CHARS = 200
_SHOWN_OPTIONS = 50
# A constant distinguishes branches; a member with a choice of values does so only where there is none.
_CONSTANT = frozenset({"const"})
_CONSTANT_OR_CHOICE = frozenset({"const", "enum"})
_FOLLOWED = 8  # references and choices from one schema into the next

_Branch = Sequence[ValidationError]


@dataclass(frozen=True, slots=True)
class _Case:
    """A broken rule: its path, the validator's facts, the value and the schema."""

    path: str
    facts: dict[str, Any]
    actual: Any
    rules: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Hint:
    expected: Any = None
    allowed: Any = None
    suggestion: Any = None


def describe_violations(error: ValidationError, root: Any, schema: Any) -> Iterator[Violation]:
    """Yield the violations behind one error of the validator, for a model to act on.

    A missing or undeclared property has its own path. If the type of the value, or the constants of its
    members, leave only one branch of an `anyOf` or `oneOf`, the errors of that branch are described.

    Args:
        error: The error.
        root: The whole value. Its numbers are exact, those of the error are rounded.
        schema: The schema.

    """
    case = _case(error, root, schema)
    match error.kind.name:
        case "required":
            yield _missing(case, schema)
        case "additionalProperties" | "unevaluatedProperties" as keyword:
            for name in case.facts["unexpected"]:
                yield _undeclared(case, keyword, name)
        case "anyOf" | "oneOf" as keyword:
            yield from _choice(error, case, root, schema)
        case keyword:
            yield _violation(error, case, _HINTS.get(keyword, _no_hint)(case))


def rules_broken(error: ValidationError) -> int:
    """Return the minimum number of violations behind one error."""
    if error.kind.name in {"additionalProperties", "unevaluatedProperties"}:
        return len(error.kind.as_dict()["unexpected"])
    return 1


def more_broken(count: int) -> Violation:
    """Return the violation that stands for `count` more broken rules."""
    return Violation(path="$", keyword="more", message=f"{count} more rules are broken")


def json_path(steps: Sequence[str | int]) -> str:
    """Return `steps` as a JSON path: `$.legs[0].qty`."""
    path = "$"
    for step in steps:
        path = f"{path}[{step}]" if isinstance(step, int) else member_path(path, step)
    return path


def short_value(value: Any) -> Any:
    """Return a short form of `value` that does not change in a log."""
    match value:
        case None | bool() | float():
            return value
        case str():
            return value if len(value) <= _SHOWN_CHARS else f"{value[:_SHOWN_CHARS]}…"
        case int() | Decimal():
            return plain_number(value)
        case dict():
            return f"an object with {len(value)} properties"
        case list():
            return f"an array of {len(value)} items"
        case _:
            return f"{value!r:.{_SHOWN_CHARS}}"


def _case(error: ValidationError, root: Any, schema: Any) -> _Case:
    steps = steps_in(root, error.instance_path)
    path = json_path(error.instance_path if steps is None else steps)
    actual = error.instance if steps is None else _at(root, steps)
    return _Case(path, error.kind.as_dict(), actual, rules_at(schema, error.schema_path))


def _choice(error: ValidationError, case: _Case, root: Any, schema: Any) -> Iterator[Violation]:
    branches, place = case.facts["context"], error.instance_path
    fitting = _of_this_type(branches, place)
    if branch := _meant(fitting, place, _CONSTANT):
        yield from _all_of(branch, root, schema)
    elif missing := _missing_tag(fitting, place, root, schema):
        yield missing
    elif branch := _meant(fitting, place, _CONSTANT_OR_CHOICE):
        yield from _all_of(branch, root, schema)
    elif tags := _tags_of_all(fitting, place):
        tag = _case(tags[0], root, schema)
        yield _violation(tags[0], tag, _any_of(tags, tag.actual))
    else:
        firsts = [branch[0] for branch in branches if branch]
        about = [first for first in firsts if first.instance_path == place]
        yield _violation(error, case, _any_of(about, case.actual))


def _all_of(branch: _Branch, root: Any, schema: Any) -> Iterator[Violation]:
    for error in branch:
        yield from describe_violations(error, root, schema)


def _violation(error: ValidationError, case: _Case, hint: _Hint) -> Violation:
    return Violation(
        path=case.path,
        keyword=error.kind.name,
        message=error.message[:_SHOWN_CHARS],
        expected=hint.expected,
        actual=short_value(case.actual),
        allowed=hint.allowed,
        suggestion=hint.suggestion,
    )


def _missing(case: _Case, schema: Any, tags: Sequence[Any] = ()) -> Violation:
    name = case.facts["property"]
    kinds, options = _form(_at_or_none(case.rules, ["properties", name]), schema)
    return Violation(
        path=member_path(case.path, name),
        keyword="required",
        message="is required and missing",
        expected=" or ".join(kinds) or "a value",
        allowed=_listed(tags or options),
    )


def _undeclared(case: _Case, keyword: str, name: str) -> Violation:
    declared = case.rules.get("properties")
    names = list(declared or ())[:_SHOWN_OPTIONS]
    return Violation(
        path=member_path(case.path, name),
        keyword=keyword,
        message="is not a property of the schema",
        expected="no such property",
        allowed=names if declared is not None else None,
        suggestion=misspelt(name, [option for option in names if option not in case.actual])
        or misspelt(name, names),
    )


def _form(form: Any, schema: Any, left: int = _FOLLOWED) -> tuple[list[str], list[Any]]:
    """Return the types and values of a schema, through references and branches."""
    if not isinstance(form, dict) or not left:
        return [], []
    if isinstance(reference := form.get("$ref"), str) and reference.startswith("#/"):
        return _form(_at_or_none(schema, pointer_steps(reference)), schema, left - 1)
    kinds = [form["type"]] if isinstance(form.get("type"), str) else list(form.get("type", ()))
    options = [form["const"]] if "const" in form else list(form.get("enum", ()))
    branches = [_form(branch, schema, left - 1) for branch in form.get("anyOf") or form.get("oneOf") or ()]
    kinds += [kind for of_branch, _ in branches for kind in of_branch if kind not in kinds]
    if all(values or of_branch == ["null"] for of_branch, values in branches):
        options += [option for _, values in branches for option in values]
    return list(dict.fromkeys(kinds)), options


def _of_this_type(branches: Sequence[_Branch], place: Sequence[str | int]) -> list[_Branch]:
    return [branch for branch in branches if not any(_is_other_type(error, place) for error in branch)]


def _is_other_type(error: ValidationError, place: Sequence[str | int]) -> bool:
    return error.kind.name == "type" and list(error.instance_path) == list(place)


def _meant(fitting: Sequence[_Branch], place: Sequence[str | int], keywords: frozenset[str]) -> _Branch:
    """Return the errors of the only branch that has the value's type and no wrong tag."""
    meant = fitting
    if len(fitting) > 1:
        meant = [branch for branch in fitting if not _tags(branch, place, keywords)]
    return meant[0] if len(meant) == 1 else ()


def _tags(branch: _Branch, place: Sequence[str | int], keywords: frozenset[str]) -> list[ValidationError]:
    """Return the errors of members that must be a certain value. They select a branch."""
    return [
        error
        for error in branch
        if error.kind.name in keywords and len(error.instance_path) == len(place) + 1
    ]


def _tags_of_all(fitting: Sequence[_Branch], place: Sequence[str | int]) -> list[ValidationError]:
    """Return the errors of the one member that has a wrong value in every branch."""
    for keywords in (_CONSTANT, _CONSTANT_OR_CHOICE):
        tags = [_tags(branch, place, keywords) for branch in fitting]
        if all(tags) and len({found[0].instance_path[-1] for found in tags}) == 1:
            return [found[0] for found in tags]
    return []


def _missing_tag(
    fitting: Sequence[_Branch], place: Sequence[str | int], root: Any, schema: Any
) -> Violation | None:
    """Return the violation for a missing member that is a constant in every branch."""
    cases: dict[str, list[_Case]] = {}
    for error in (error for branch in fitting for error in branch):
        if error.kind.name == "required" and list(error.instance_path) == list(place):
            case = _case(error, root, schema)
            cases.setdefault(case.facts["property"], []).append(case)
    for name, found in cases.items():
        members = [_at_or_none(case.rules, ["properties", name]) for case in found]
        tags = [member["const"] for member in members if isinstance(member, dict) and "const" in member]
        if len(tags) == len(fitting):
            return _missing(found[0], schema, tags)
    return None


def rules_at(schema: Any, schema_path: Sequence[str | int]) -> dict[str, Any]:
    """Return the schema around the last keyword of `schema_path`, or an empty one."""
    steps = steps_in(schema, schema_path[:-1])
    rules = None if steps is None else _at(schema, steps)
    return rules if isinstance(rules, dict) else {}


def steps_in(root: Any, path: Sequence[str | int]) -> tuple[str | int, ...] | None:
    """Return `path` with the keys as they are in `root`, or None if it has no target."""
    # The validator gives a key of digits as a number ("01" as 1), so that it must be looked up as text.
    steps: list[str | int] = []
    node = root
    for step in path:
        true_step = str(step) if isinstance(node, dict) else step
        try:
            node = node[true_step]
        except (KeyError, IndexError, TypeError):
            return None
        steps.append(true_step)
    return tuple(steps)


def _at(root: Any, steps: Sequence[str | int]) -> Any:
    node = root
    for step in steps:
        node = node[step]
    return node


def _at_or_none(root: Any, steps: Sequence[str | int]) -> Any:
    with suppress(KeyError, IndexError, TypeError):
        return _at(root, steps)
    return None


def _listed(options: Sequence[Any]) -> list[Any] | None:
    return [short_value(option) for option in options[:_SHOWN_OPTIONS]] or None


def _no_hint(_case: _Case) -> _Hint:
    return _Hint()


def _type(case: _Case) -> _Hint:
    return _Hint(expected=" or ".join(sorted(case.facts["types"])))


def _options(case: _Case) -> _Hint:
    options = case.facts["options"]
    return _Hint(allowed=_listed(options), suggestion=nearest_option(case.actual, options))


def _constant(case: _Case) -> _Hint:
    value = short_value(case.facts["expected_value"])
    return _Hint(allowed=[value], suggestion=value)


def _any_of(errors: Sequence[ValidationError], actual: Any) -> _Hint:
    facts = [error.kind.as_dict() for error in errors]
    kinds = dict.fromkeys(kind for fact in facts for kind in fact.get("types", ()))
    options = [option for fact in facts for option in _options_of(fact)]
    return _Hint(" or ".join(kinds) or None, _listed(options), nearest_option(actual, options))


def _options_of(facts: dict[str, Any]) -> list[Any]:
    return [facts["expected_value"]] if "expected_value" in facts else facts.get("options", [])


def _bound(sign: str) -> Callable[[_Case], _Hint]:
    def hint(case: _Case) -> _Hint:
        return _Hint(
            allowed=f"{sign} {short_value(case.facts['limit'])}",
            suggestion=nearest_number(case.actual, case.rules),
        )

    return hint


def _size(sign: str, unit: str) -> Callable[[_Case], _Hint]:
    def hint(case: _Case) -> _Hint:
        return _Hint(allowed=f"{sign} {case.facts['limit']} {unit}")

    return hint


def _multiple(case: _Case) -> _Hint:
    unit = short_value(case.facts["multiple_of"])
    return _Hint(allowed=f"multiples of {unit}", suggestion=nearest_number(case.actual, case.rules))


def _named(fact: str) -> Callable[[_Case], _Hint]:
    """Return a hint with a fact of the rule."""

    # From the schema if the validator gave up a pattern, because its error then has no pattern.
    def hint(case: _Case) -> _Hint:
        return _Hint(expected=short_value(case.facts.get(fact, case.rules.get(fact))))

    return hint


_HINTS: dict[str, Callable[[_Case], _Hint]] = {
    "type": _type,
    "enum": _options,
    "const": _constant,
    "minimum": _bound(">="),
    "maximum": _bound("<="),
    "exclusiveMinimum": _bound(">"),
    "exclusiveMaximum": _bound("<"),
    "minLength": _size("at least", "characters"),
    "maxLength": _size("at most", "characters"),
    "minItems": _size("at least", "items"),
    "maxItems": _size("at most", "items"),
    "minProperties": _size("at least", "properties"),
    "maxProperties": _size("at most", "properties"),
    "multipleOf": _multiple,
    "format": _named("format"),
    "pattern": _named("pattern"),
}
