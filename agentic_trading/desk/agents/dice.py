"""Drawn answers that fit a schema: the answers of an agent without rules of its own."""

import re
from collections.abc import Mapping
from typing import Any, Final

from agentic_trading.ids import fraction
from agentic_trading.llm.errors import FailureKind, ProviderError

_TEXT: Final = "drawn"
_ITEMS_MOST: Final = 3
_DEPTH_MOST: Final = 16
_WORDS: Final = re.compile(r"\^?\(?(?:\?:)?([\w -]+(?:\|[\w -]+)*)\)?\$?")
"""A pattern of alternative words, such as `^(long|short)$`."""


def dice(schema: Mapping[str, Any], seed: str) -> Any:
    """Return a value that fits the types, enums and bounds of a JSON Schema.

    Equal arguments give equal values. A pattern may be one of words, such as `^(long|short)$`. A format and a
    rule between fields may be broken. The answer is then rejected like any other.

    Raises:
        ProviderError: If there is another pattern.

    """
    return _drawn(schema, schema, (seed,))


def _drawn(node: Mapping[str, Any], root: Mapping[str, Any], path: tuple[str | int, ...]) -> Any:
    if "const" in node:
        return node["const"]
    if "enum" in node:
        return _one_of(node["enum"], path)
    if len(path) > _DEPTH_MOST:
        return None
    if "$ref" in node:
        return _drawn(_target(root, str(node["$ref"])), root, (*path, "ref"))
    if choices := node.get("anyOf") or node.get("oneOf"):
        return _drawn(_one_of(choices, path), root, (*path, "choice"))
    return _of_type(node, root, path)


def _of_type(node: Mapping[str, Any], root: Mapping[str, Any], path: tuple[str | int, ...]) -> Any:
    kind = node.get("type", "object")
    match _one_of(kind, path) if isinstance(kind, list) else kind:
        case "object":
            return {name: _drawn(each, root, (*path, name)) for name, each in _properties(node)}
        case "array":
            items = node.get("items", {})
            return [_drawn(items, root, (*path, place)) for place in range(_count(node, path))]
        case "boolean":
            return fraction(*path) < 1 / 2
        case "integer" | "number" as number:
            return _number(node, path, is_whole=number == "integer")
        case "null":
            return None
        case _:
            return _text(node, path)


def _text(node: Mapping[str, Any], path: tuple[str | int, ...]) -> str:
    if "pattern" in node:
        return _word(str(node["pattern"]), path)
    text = _TEXT.ljust(int(node.get("minLength", 0)), ".")
    return text[: int(node.get("maxLength", len(text)))]


def _word(pattern: str, path: tuple[str | int, ...]) -> str:
    found = _WORDS.fullmatch(pattern)
    if found is None:
        # Refused, because a text that does not fit would look like a fault of the agent.
        message = (
            f"no text is drawn for the pattern {pattern!r} of {_field(path)}. Use an enum or words such as "
            "^(long|short)$, override `offline` of the agent, or use a model with --provider"
        )
        raise ProviderError(FailureKind.INVALID_REQUEST, message, sent=False)
    word: str = _one_of(found[1].split("|"), path)
    return word


def _field(path: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in path[1:] if part not in {"ref", "choice"}) or "the answer"


def _count(node: Mapping[str, Any], path: tuple[str | int, ...]) -> int:
    least = int(node.get("minItems", 0))
    most = max(least, min(int(node.get("maxItems", _ITEMS_MOST)), _ITEMS_MOST))
    return least + int(fraction(*path, "count") * (most - least + 1))


def _properties(node: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return list(node.get("properties", {}).items())


def _one_of(choices: Any, path: tuple[str | int, ...]) -> Any:
    return choices[int(fraction(*path, "of") * len(choices))]


def _target(root: Mapping[str, Any], pointer: str) -> Mapping[str, Any]:
    found: Any = root
    for part in pointer.removeprefix("#/").split("/"):
        found = found[part]
    return dict(found)


def _number(node: Mapping[str, Any], path: tuple[str | int, ...], *, is_whole: bool) -> int | float:
    """Return a number within the bounds, in steps of 1 or of a thousandth of the range."""
    low = float(node.get("minimum", node.get("exclusiveMinimum", 0)))
    high = float(node.get("maximum", node.get("exclusiveMaximum", low + 1)))
    if is_whole:
        first = int(low) + ("exclusiveMinimum" in node)
        last = int(high) - ("exclusiveMaximum" in node)
        return first + int(fraction(*path) * (last - first + 1))
    # From 1 to 999 thousandths, so that an exclusive bound is never drawn.
    return round(low + (1 + int(fraction(*path) * 999)) / 1_000 * (high - low), 9)
