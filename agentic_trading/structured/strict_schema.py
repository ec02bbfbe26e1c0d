"""The form of a JSON Schema that providers enforce, and the choice of a transport."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from agentic_trading.canonical import canonical_bytes
from agentic_trading.llm.envelope import LLMEnvelope, ResponseFormat
from agentic_trading.llm.fields import CanonicalObject
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import Transport
from agentic_trading.structured import schema as schemas

# The keywords that constrained decoders enforce. All others go into the description and are checked here.
_ENFORCED = frozenset(
    {"type", "properties", "required", "items", "enum", "const", "anyOf", "allOf", "$ref", "$defs", "definitions",
     "description", "additionalProperties"}
)  # fmt: skip
# The further keywords of a grammar engine (LLGuidance, found by running it: docs/explanation/decisions/0011-local-model.md).
_BOUNDS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern",
     "minItems", "maxItems"}
)  # fmt: skip
# Look-around, flags, word borders and back references in a pattern.
_NO_GRAMMAR = re.compile(r"\(\?(?!:)|\\[bB1-9]")
_WITHOUT_STRICT_FORM = (
    "patternProperties", "prefixItems", "unevaluatedProperties", "unevaluatedItems", "additionalItems",
    "dependentSchemas", "dependencies", "if", "not",
)  # fmt: skip
_SAYS_SOMETHING = frozenset({"type", "enum", "const", "anyOf", "oneOf", "allOf"})
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_NOT_OFFERED = "the model does not offer it"


@dataclass(frozen=True, slots=True)
class TransportChoice:
    """A transport, and the reason for skipping each better one (`native_schema: …`)."""

    transport: Transport
    passed_over: tuple[str, ...] = ()


_WITHOUT_SCHEMA: Mapping[ResponseFormat, TransportChoice] = {
    ResponseFormat.TEXT: TransportChoice("text"),
    ResponseFormat.VERBATIM: TransportChoice("verbatim"),
}


def choice_for(envelope: LLMEnvelope, capability: Capability) -> TransportChoice:
    """Return the best transport that model and schema allow.

    The order is native schema, strict tool, JSON mode, prompt.
    """
    if (choice := _WITHOUT_SCHEMA.get(envelope.response_format)) is not None:
        return choice
    return _choice(
        envelope.output_schema_json,
        native_schema=capability.native_schema,
        strict_tool=capability.strict_tool,
        json_mode=capability.json_mode,
        most_optional=capability.most_optional,
        most_unions=capability.most_unions,
    )


@lru_cache(maxsize=256)
def _choice(
    schema_json: bytes,
    *,
    native_schema: bool,
    strict_tool: bool,
    json_mode: bool,
    most_optional: int | None,
    most_unions: int | None,
) -> TransportChoice:
    problem = strict_problem(schema_json, most_optional=most_optional, most_unions=most_unions)
    ways: list[tuple[Transport, str | None]] = [
        ("native_schema", problem if native_schema else _NOT_OFFERED),
        ("strict_tool", problem if strict_tool else _NOT_OFFERED),
        ("json_mode", None if json_mode else _NOT_OFFERED),
    ]
    passed_over: list[str] = []
    for transport, reason in ways:
        if reason is None:
            return TransportChoice(transport, tuple(passed_over))
        passed_over.append(f"{transport}: {reason}")
    return TransportChoice("prompted", tuple(passed_over))


def unenforced_transport(envelope: LLMEnvelope, capability: Capability) -> Transport:
    """Return the transport of an answer whose schema is not enforced."""
    if (choice := _WITHOUT_SCHEMA.get(envelope.response_format)) is not None:
        return choice.transport
    return "json_mode" if capability.json_mode else "prompted"


@dataclass(frozen=True, slots=True)
class NoStrictForm:
    """The reason for a schema without an enforceable form."""

    reason: str


def strict_schema(schema_json: bytes, *, sentinel: bool, bounds: bool = False) -> CanonicalObject | None:
    """Return the form of a schema that providers enforce, or None.

    Objects are closed. `oneOf` becomes `anyOf`, and branches of a `discriminator` are selected by the
    constant of their tag. Formats go into the description, and so do bounds, lengths and patterns unless
    `bounds` is set: the provider then enforces them. Open maps, tuples, conditions, recursion and invalid
    schemas have no such form.

    The result is shared. Do not change it.
    """
    form = _form(schema_json, sentinel=sentinel, bounds=bounds)
    return None if isinstance(form, NoStrictForm) else form


@lru_cache(maxsize=256)
def strict_problem(
    schema_json: bytes, *, most_optional: int | None = None, most_unions: int | None = None
) -> str | None:
    """Return the reason why a provider would not enforce the schema, or None.

    `most_optional` and `most_unions` are the limits of the provider (`Capability`). A property is optional if
    it is not required. It is a union if its own schema has `anyOf` or several types. Both are counted in
    every object that is not behind a reference, as Anthropic was observed to count (pydantic-ai 2.68,
    `_anthropic_schema_limits.py`).
    """
    form = _form(schema_json, sentinel=False, bounds=False)
    if isinstance(form, NoStrictForm):
        return form.reason
    objects = list(_objects_in_place(form))
    optional = sum(name not in node.get("required", ()) for node in objects for name in node["properties"])
    if most_optional is not None and optional > most_optional:
        return f"{optional} optional properties; the provider takes {most_optional}"
    unions = sum(_is_union(child) for node in objects for child in node["properties"].values())
    if most_unions is not None and unions > most_unions:
        return f"{unions} properties of several types; the provider takes {most_unions}"
    return None


@lru_cache(maxsize=256)
def _form(schema_json: bytes, *, sentinel: bool, bounds: bool) -> CanonicalObject | NoStrictForm:
    schema = schemas.requested_schema(schema_json, sentinel=False)
    if schema is None:
        return NoStrictForm("the schema is broken")
    reason = _problem(schema)
    if reason is not None:
        return NoStrictForm(reason)
    whole = schemas.add_sentinel(schema) if sentinel else schema
    strict = _Strict(whole, _ENFORCED | _BOUNDS if bounds else _ENFORCED).of(whole)
    return CanonicalObject(strict, canonical_bytes(strict))


def _problem(schema: schemas.Schema) -> str | None:
    if schema.get("type") != "object":
        return "#: is not plainly an object"
    defined = _definitions(schema)
    for place, node in schemas.subschemas(schema):
        reason = _problem_of(node, defined) if isinstance(node, dict) else None
        if reason is not None:
            return f"{place}: {reason}"
    return "a definition refers to itself" if _is_recursive(defined) else None


def _problem_of(node: schemas.Schema, defined: Mapping[str, Any]) -> str | None:
    for keyword in _WITHOUT_STRICT_FORM:
        if keyword in node:
            return f"{keyword} cannot be enforced"
    for place, child in schemas.children(node):
        if isinstance(child, bool) and place != "/additionalProperties":
            return f"{place[1:]} allows {'anything' if child else 'nothing'}"
    if "anyOf" in node and "oneOf" in node:
        return "anyOf beside oneOf cannot be enforced"
    if "$ref" in node:
        return None if node["$ref"] in defined else f"refers to {node['$ref']!r:.80}, not to a definition"
    return _too_open(node)


def _too_open(node: schemas.Schema) -> str | None:
    if "object" in schemas.types_of(node) and (reason := _open_object(node)) is not None:
        return reason
    if "array" in schemas.types_of(node) and not isinstance(node.get("items"), dict):
        return "an array of anything"
    return "allows anything" if _SAYS_SOMETHING.isdisjoint(node) else None


def _open_object(node: schemas.Schema) -> str | None:
    if "properties" not in node or node.get("additionalProperties", False) is not False:
        return "an open object"
    undeclared = [name for name in node.get("required", ()) if name not in node["properties"]]
    return f"requires {undeclared[0]!r:.80} and does not declare it" if undeclared else None


def _definitions(schema: schemas.Schema) -> dict[str, Any]:
    return {
        f"#/{keyword}/{name}": child
        for keyword in ("$defs", "definitions")
        for name, child in schema.get(keyword, {}).items()
    }


def _is_recursive(named: Mapping[str, Any]) -> bool:
    """Return whether a definition refers to itself, directly or through others."""
    uses = {
        name: {
            node["$ref"] for _, node in schemas.subschemas(child) if isinstance(node, dict) and "$ref" in node
        }
        for name, child in named.items()
    }
    users: dict[str, list[str]] = {name: [] for name in named}
    for name, used in uses.items():
        for other in used:
            users[other].append(name)
    # Definitions without references are removed until none or a cycle is left.
    harmless = [name for name, used in uses.items() if not used]
    for name in harmless:  # grows while it is walked
        for user in users[name]:
            uses[user].discard(name)
            if not uses[user]:
                harmless.append(user)
    return len(harmless) < len(named)


def _with_type(schema: schemas.Schema) -> schemas.Schema:
    """Add the type of constants."""
    # Added because providers require a type in every schema.
    if "type" in schema or {"enum", "const"}.isdisjoint(schema):
        return schema
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    types = {_TYPES.get(type(value), "") for value in values}
    return {"type": types.pop(), **schema} if len(types) == 1 and "" not in types else schema


class _Strict:
    """Makes the strict form of the schemas in `root`. Keeps the `enforced` keywords."""

    def __init__(self, root: schemas.Schema, enforced: frozenset[str]) -> None:
        self._root = root
        self._enforced = enforced

    def of(self, schema: schemas.Schema) -> schemas.Schema:
        """Return the strict form of one schema of the root."""
        tagged = self._tagged(schema) if "discriminator" in schema else schema
        strict = schemas.map_children(_with_type(tagged), self.of)
        if "oneOf" in strict:
            strict["anyOf"] = strict.pop("oneOf")
        unenforced = [
            f"{keyword}: {orjson.dumps(strict.pop(keyword)).decode()}"
            for keyword in [*strict]
            if keyword not in self._enforced or (keyword == "pattern" and _NO_GRAMMAR.search(strict[keyword]))
        ]
        if unenforced:
            words = [strict.get("description", ""), f"({', '.join(unenforced)})"]
            strict["description"] = " ".join(filter(None, words))
        if "object" in schemas.types_of(strict):
            strict["additionalProperties"] = False
        return strict

    def _tagged(self, schema: schemas.Schema) -> schemas.Schema:
        """Return a choice with the constant of a required tag in each branch."""
        rest = {keyword: value for keyword, value in schema.items() if keyword != "discriminator"}
        discriminator = schema["discriminator"]
        tag = discriminator.get("propertyName") if isinstance(discriminator, Mapping) else None
        if not isinstance(tag, str):
            return rest
        mapping = discriminator.get("mapping")
        targets = mapping if isinstance(mapping, Mapping) else {}
        for keyword in ("oneOf", "anyOf"):
            if keyword in rest:
                rest[keyword] = [self._with_tag(branch, tag, targets) for branch in rest[keyword]]
        return rest

    def _with_tag(self, branch: schemas.Schema, tag: str, targets: Mapping[str, Any]) -> schemas.Schema:
        reference = branch.get("$ref")
        node = branch if reference is None else schemas.resolve_reference(self._root, reference)
        tagged = node.get("properties", {}).get(tag)
        if tagged is None:
            return branch
        values = [value for value, target in targets.items() if target == reference]
        if values and {"const", "enum"}.isdisjoint(tagged):
            tagged = {**tagged, "const": values[0]} if len(values) == 1 else {**tagged, "enum": values}
        elif tag in node.get("required", ()):
            return branch
        required = list(dict.fromkeys([*node.get("required", ()), tag]))
        return {**node, "properties": {**node["properties"], tag: tagged}, "required": required}


def _objects_in_place(schema: Mapping[str, Any]) -> Iterator[schemas.Schema]:
    """Yield every object of a strict form that is not behind a reference."""
    for place, node in schemas.subschemas(dict(schema)):
        if (
            isinstance(node, dict)
            and "properties" in node
            and not place.startswith(("#/$defs/", "#/definitions/"))
        ):
            yield node


def _is_union(schema: Any) -> bool:
    return "anyOf" in schema or isinstance(schema.get("type"), list)
