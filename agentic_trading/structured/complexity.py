"""Bound the work that a schema can make of checking one answer, before it is compiled."""

from typing import Any

from agentic_trading.structured.decode import MAX_DEPTH, pointer_steps

MAX_SCHEMA_BYTES = 256 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_CHECKS = 20_000  # on one way down an answer; the validator makes about ten of them a microsecond
SHALLOW = 16
_MAX_STEPS = 100_000

_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_LISTED = ("allOf", "anyOf", "oneOf")
_IN_PLACE_NAMED = ("dependentSchemas", "dependencies")
_BELOW = (
    "items", "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems", "contains",
    "propertyNames",
)  # fmt: skip
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class SchemaTooComplexError(ValueError):
    """A schema is not used, for `reason`: checking one answer against it could take too long."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def max_answer_depth(schema: Any, size: int) -> int:
    """Return how deep an answer to `schema`, of `size` bytes, may be nested to be checked in bounded time.

    Counted is how many schemas can apply on one way down an answer, references and combinations expanded: a chain
    of definitions that each refer twice to the next doubles with every one. Only a schema that refers to itself
    more than once is held to shallow answers. Raises `SchemaTooComplexError`.
    """
    if size > MAX_SCHEMA_BYTES:
        raise SchemaTooComplexError(f"it has {size} bytes; allowed are {MAX_SCHEMA_BYTES}")
    if is_deeper(schema, MAX_SCHEMA_DEPTH):
        raise SchemaTooComplexError(f"it is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    for depth in (MAX_DEPTH, SHALLOW):
        try:
            if _Count(schema).checks(schema, depth) <= MAX_CHECKS:
                return depth
        except RecursionError:
            continue
    raise SchemaTooComplexError(
        f"it expands to more than {MAX_CHECKS} checks of one value; combine fewer references"
    )


def schema_complexity(schema: Any, depth: int) -> int:
    """Return how many schemas can apply on one way down an answer of `depth` levels.

    For a schema of which `max_answer_depth` returned at least `depth`.
    """
    return _Count(schema).checks(schema, depth)


def is_deeper(value: Any, levels: int) -> bool:
    """Whether objects and arrays of `value` lie more than `levels` deep within each other."""
    level = [value]
    for _ in range(levels + 1):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True


class _Count:
    """How many schemas apply on one way down an answer; each reference is counted once for each depth."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[tuple[str, int], int] = {}
        self._left = _MAX_STEPS

    def checks(self, schema: Any, depth: int) -> int:
        """Return the checks of a value against `schema`, where the value has `depth` more levels in it."""
        if not isinstance(schema, dict) or depth < 0:
            return 0
        self._left -= 1
        if self._left < 0:
            raise SchemaTooComplexError(
                f"counting its checks takes more than {_MAX_STEPS} steps; make it smaller"
            )
        if schema is not self._root and isinstance(schema.get("$id"), str):
            raise SchemaTooComplexError(
                "it holds another schema with an $id of its own; allowed is one at the top"
            )
        total = 1
        for inner in _in_place(schema):
            total += self.checks(inner, depth)
        for reference in _references(schema):
            total += self._referred(reference, depth)
        for below in _everywhere_below(schema):
            total += self.checks(below, depth - 1)
        return total + max([self.checks(below, depth - 1) for below in _by_member(schema)], default=0)

    def _referred(self, reference: str, depth: int) -> int:
        key = (reference, depth)
        if key not in self._known:
            self._known[key] = 0  # one that comes back to itself without going deeper applies once
            self._known[key] = self.checks(self._target(reference), depth)
        return self._known[key]

    def _target(self, reference: str) -> Any:
        base, _, pointer = reference.partition("#")
        if base and base != self._root.get("$id"):
            raise SchemaTooComplexError(
                f"it refers to {reference[:80]!r}; allowed are references within it (#/...)"
            )
        if pointer and not pointer.startswith("/"):
            return _anchored(self._root, pointer)
        node = self._root
        for name in pointer_steps(pointer):
            if isinstance(node, dict):
                node = node.get(name)
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                return None  # the compiler says so
        return node


def _references(schema: dict[str, Any]) -> list[str]:
    return [schema[keyword] for keyword in _REFERENCES if isinstance(schema.get(keyword), str)]


def _in_place(schema: dict[str, Any]) -> list[Any]:
    """Return the schemas that apply to the same value."""
    inner = [schema.get(keyword) for keyword in _IN_PLACE]
    for keyword in _IN_PLACE_LISTED:
        inner += _items(schema.get(keyword))
    for keyword in _IN_PLACE_NAMED:
        inner += _values(schema.get(keyword))
    return inner


def _everywhere_below(schema: dict[str, Any]) -> list[Any]:
    """Return the schemas that may apply to any member of the value."""
    return [schema.get(keyword) for keyword in _BELOW] + _values(schema.get("patternProperties"))


def _by_member(schema: dict[str, Any]) -> list[Any]:
    """Return the schemas that apply to one member each: no way down an answer passes two of them."""
    return _values(schema.get("properties")) + _items(schema.get("prefixItems")) + _items(schema.get("items"))


def _anchored(root: Any, name: str) -> Any:
    level = [root]
    while level:
        for node in level:
            if isinstance(node, dict) and name in {node.get("$anchor"), node.get("$dynamicAnchor")}:
                return node
        level = [child for node in level for child in _values(node) + _items(node)]
    return None


def _values(node: Any) -> list[Any]:
    return list(node.values()) if isinstance(node, dict) else []


def _items(node: Any) -> list[Any]:
    return node if isinstance(node, list) else []
