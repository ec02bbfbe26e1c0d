"""Render a JSON Schema for a prompt, short like a TypeScript type, with all rules."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, Literal, assert_never

import orjson

from agentic_trading.structured import schema as schemas
from agentic_trading.structured.feedback import number_bounds

SHORT_NOTE = 60
"""Maximum length of a description that is kept."""
# Longer, because without a unit 0.5 may be a fraction or a percentage.
NOTE_WITH_UNIT = 120
"""The same for a description with a unit or a sign."""

_UNIT = re.compile(
    r"[%$€£¥‰]|\b(?:per ?cent|percentage|fraction|share|ratio|bps?|basis points?|pips?|ticks?|lots?|contracts?|coins?"
    r"|shares|dollars?|cents?|usd[tc]?|eur|gbp|jpy|btc|eth|utc|iso|epoch|unix|time ?zone|milliseconds?|ms|seconds?"
    r"|minutes?|hours?|days?|weeks?|months?|years?|bars?|tokens?|positive|negative|sign(?:ed)?|above"
    r"|below)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SchemaPhrase:
    """The text of one schema, and the descriptions for the end of its line."""

    text: str
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        return f"{self.text}{_comment(self.notes)}"


def text_rules(node: schemas.Schema) -> list[str]:
    rules = size_rules(node.get("minLength"), node.get("maxLength"), "character", "characters")
    if "pattern" in node:
        rules.append(f"matching {json_text(node['pattern'])}")
    if "format" in node:
        rules.append(f"format {json_text(node['format'])}")
    return rules


def number_rules(node: schemas.Schema) -> list[str]:
    least, most, above, below = number_bounds(node)
    if None not in (least, most) and above is below is None:
        rules = [f"{json_text(least)} to {json_text(most)}"]
    else:
        signs = ((">=", least), (">", above), ("<=", most), ("<", below))
        rules = [f"{sign} {json_text(bound)}" for sign, bound in signs if bound is not None]
    if "multipleOf" in node:
        rules.append(f"multiple of {json_text(node['multipleOf'])}")
    return rules


def size_rules(least: int | None, most: int | None, one: str, many: str) -> list[str]:
    if least is None and most is None:
        return []
    if least == most:
        return [f"exactly {least} {one if least == 1 else many}"]
    if least is not None and most is not None:
        return [f"{least} to {most} {many}"]
    words, count = ("at least", least) if most is None else ("at most", most)
    return [f"{words} {count} {one if count == 1 else many}"]


def with_rules(text: str, rules: list[str]) -> str:
    return f"{text} ({', '.join(rules)})" if rules else text


def either(pieces: Iterable[SchemaPhrase]) -> SchemaPhrase:
    branches = list(pieces)
    return SchemaPhrase(
        " | ".join(piece.text for piece in branches),
        tuple(note for piece in branches for note in piece.notes),
    )


def object_text(members: list[tuple[str, SchemaPhrase]], *, spread: bool) -> str:
    """Return an object on one line, or one line per member.

    The second form is for members with descriptions or with several lines.
    """
    is_short = not any(piece.notes or "\n" in piece.text for _, piece in members)
    if not members or (is_short and not spread):
        return f"{{{', '.join(f'{name}: {piece.text}' for name, piece in members)}}}"
    ends = [","] * (len(members) - 1) + [""]
    lines = [
        f"{name}: {piece.text}{end}{_comment(piece.notes)}"
        for (name, piece), end in zip(members, ends, strict=True)
    ]
    inner = "\n".join(lines).replace("\n", "\n ")  # strings have no raw line end in them
    return f"{{\n {inner}\n}}"


def with_note(node: Any, piece: SchemaPhrase) -> SchemaPhrase:
    """Return `piece` with the description of `node`, if it is short enough."""
    description = node.get("description") if isinstance(node, dict) else None
    if not isinstance(description, str):
        return piece
    note = " ".join("".join(char if char.isprintable() else " " for char in description).split())
    most = NOTE_WITH_UNIT if _UNIT.search(note) else SHORT_NOTE
    return SchemaPhrase(piece.text, (note, *piece.notes)) if 0 < len(note) <= most else piece


def _comment(notes: tuple[str, ...]) -> str:
    return f" // {'; '.join(dict.fromkeys(notes))}" if notes else ""


def literal(value: Any) -> str:
    return f"exactly {json_text(value)}" if isinstance(value, dict | list) else json_text(value)


def json_text(value: Any) -> str:
    return escape_control(orjson.dumps(value).decode())


def escape_control(text: str) -> str:
    """Return JSON with escapes for characters that could end a line or are invisible."""
    if text.isprintable():
        return text
    # An escape is valid everywhere, because such characters are in strings only.
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


_BY_TYPE = frozenset({"type"}.union(*schemas.RULES_OF_TYPE.values()))
_BEYOND_WORDS = frozenset(
    {"allOf", "not", "if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies",
     "patternProperties", "contains", "minContains", "maxContains", "unevaluatedProperties", "unevaluatedItems",
     "contentEncoding", "contentMediaType", "contentSchema"}
)  # fmt: skip
_CHOICES = frozenset({"$ref", "anyOf", "oneOf", "enum", "const"})
_RULES = _BY_TYPE | _BEYOND_WORDS | _CHOICES
_BY_OTHER_MEANS = ("$dynamicRef", "$recursiveRef")
_DEFINITION = re.compile(r"#/(?:\$defs|definitions)/([^/~%]+)")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_COMPARED = 50
_MOST_INLINED = 8  # deeper definitions get a name, so that a chain of definitions does not nest without end
_Form = Literal["any", "never", "reference", "any_of", "one_of", "options", "types", "schema"]
_FORM_OF: dict[frozenset[str], _Form] = {
    frozenset(): "any",
    frozenset({"$ref"}): "reference",
    frozenset({"anyOf"}): "any_of",
    frozenset({"oneOf"}): "one_of",
    frozenset({"enum"}): "options",
    frozenset({"const"}): "options",
    frozenset({"type", "enum"}): "options",
    frozenset({"type", "const"}): "options",
}


@lru_cache(maxsize=256)
def render_schema(schema_json: bytes, *, sentinel: bool) -> str:
    """Return the short form of a schema, with properties in the order of writing.

    It contains every rule for an answer. A part without a short form is written as `JSON Schema {…}`. The
    whole schema is written so if it has references other than `#/…`, or if its short form is more than twice
    as long. An invalid schema is returned unchanged, because no answer to it is accepted. Equal schemas give
    equal texts.
    """
    schema = schemas.requested_schema(schema_json, sentinel=False)
    if schema is None:
        return schema_json.decode()
    whole = f"JSON Schema {escape_control(schemas.prompt_schema(schema_json, sentinel=sentinel))}"
    try:
        text = _Renderer(schema).text(sentinel=sentinel)
    except LookupError:
        return whole
    return text if len(text) <= 2 * len(whole) else whole


class _Renderer:
    """Renders one schema. Referenced definitions come last."""

    def __init__(self, root: schemas.Schema) -> None:
        self._root = root
        self._uses, self._is_closed = _survey(root)
        self._names: dict[str, str] = {}
        self._pending: list[str] = []

    def text(self, *, sentinel: bool) -> str:
        """Return the whole text."""
        lines = ["// no other properties"] if self._is_closed else []
        top = schemas.add_sentinel(self._root) if sentinel else self._root
        if top.get("type") == "object" and self._uses["#"] > 1 and not sentinel:
            lines.append(self._named("#"))
        else:
            lines.append(self._top(top).line)
        lines += (self._definition(reference) for reference in self._pending)  # grows meanwhile
        return "\n".join(lines)

    def _definition(self, reference: str) -> str:
        return f"{self._names[reference]} = {self._piece(schemas.resolve_reference(self._root, reference), 0).line}"

    def _top(self, schema: schemas.Schema) -> SchemaPhrase:
        # Only the object is rendered, because an answer is an object even if its schema allows more.
        if _form(schema) in ("any", "types"):
            return with_note(schema, self._object(schema, 0, spread=True))
        return self._piece(schema, 0)

    def _piece(self, node: Any, nesting: int) -> SchemaPhrase:
        form = _form(node)
        match form:
            case "any" | "never":
                piece = SchemaPhrase(form)
            case "reference":
                piece = self._referred(node["$ref"], nesting)
            case "any_of":
                piece = either(self._piece(branch, nesting) for branch in node["anyOf"])
            case "one_of":
                piece = self._one_of(node["oneOf"], nesting)
            case "options":
                piece = SchemaPhrase(" | ".join(map(literal, schemas.allowed_values(node))))
            case "types":
                piece = either(self._of_type(name, node, nesting) for name in schemas.allowed_types(node))
            case "schema":
                return self._as_schema(node)
            case _:
                assert_never(form)
        return with_note(node, piece)

    def _as_schema(self, node: schemas.Schema) -> SchemaPhrase:
        for _, inner in schemas.subschemas(node):
            if isinstance(inner, dict) and "$ref" in inner:
                self._named(inner["$ref"])
        return SchemaPhrase(f"JSON Schema {json_text(node)}")

    def _referred(self, reference: str, nesting: int) -> SchemaPhrase:
        is_inlined = (
            self._uses[reference] == 1
            and nesting < _MOST_INLINED
            and reference not in self._names
            and _DEFINITION.fullmatch(reference)
        )
        if is_inlined:
            return self._piece(schemas.resolve_reference(self._root, reference), nesting + 1)
        return SchemaPhrase(self._named(reference))

    def _named(self, reference: str) -> str:
        """Return the name of a definition, and render it later."""
        if reference not in self._names:
            self._names[reference] = _name(reference, self._root)
            self._pending.append(reference)
        return self._names[reference]

    def _one_of(self, branches: list[Any], nesting: int) -> SchemaPhrase:
        choice = either(self._piece(branch, nesting) for branch in branches)
        if self._exclude_each_other(branches):
            return choice
        return SchemaPhrase(f"exactly one of ({choice.text})", choice.notes)

    def _exclude_each_other(self, branches: list[Any]) -> bool:
        """Return whether types, constants and tags show that no value fits two branches."""
        if len(branches) > _MOST_COMPARED:
            return False
        facts = [schemas.constraints_of(self._resolved(branch)) for branch in branches]
        return all(schemas.differ(one, other) for one, other in combinations(facts, 2))

    def _resolved(self, node: Any) -> schemas.Schema:
        for _ in range(_MOST_INLINED):
            if not isinstance(node, dict) or "$ref" not in node:
                break
            node = schemas.resolve_reference(self._root, node["$ref"])
        return node if isinstance(node, dict) else {}

    def _of_type(self, name: str, node: schemas.Schema, nesting: int) -> SchemaPhrase:
        match name:
            case "object":
                return self._object(node, nesting)
            case "array":
                return self._array(node, nesting)
            case "string":
                return SchemaPhrase(with_rules(name, text_rules(node)))
            case "number" | "integer":
                return SchemaPhrase(with_rules(name, number_rules(node)))
            case _:
                return SchemaPhrase(name)

    def _object(self, node: schemas.Schema, nesting: int, *, spread: bool = False) -> SchemaPhrase:
        properties, required = node.get("properties", {}), dict.fromkeys(node.get("required", ()))
        rest = node.get("additionalProperties")
        unnamed = True if rest is None else rest
        members = [
            (json_text(name) + ("" if name in required else "?"), self._piece(child, nesting))
            for name, child in properties.items()
        ]
        members += [
            (json_text(name), self._piece(unnamed, nesting)) for name in required if name not in properties
        ]
        if rest is not None and rest is not False:
            members.append(("...", self._piece(rest, nesting)))
        rules = size_rules(node.get("minProperties"), node.get("maxProperties"), "property", "properties")
        if "propertyNames" in node:
            rules.append(f"names: {self._piece(node['propertyNames'], nesting).text}")
        if rest is False and not self._is_closed:
            rules.append("no other properties")
        is_anything = not members and rest is None
        return SchemaPhrase(
            with_rules("object" if is_anything else object_text(members, spread=spread), rules)
        )

    def _array(self, node: schemas.Schema, nesting: int) -> SchemaPhrase:
        items = node.get("items", True)
        listed = isinstance(items, list)
        first = items if listed else node.get("prefixItems", [])
        rest = node.get("additionalItems", True) if listed else items
        places = [self._piece(child, nesting) for child in first]
        texts = [f"{place}: {piece.text}" for place, piece in enumerate(places)]
        if rest is not False:
            places.append(self._piece(rest, nesting))
            texts.append(f"...: {places[-1].text}" if first else places[-1].text)
        rules = size_rules(node.get("minItems"), node.get("maxItems"), "item", "items")
        if node.get("uniqueItems"):
            rules.append("no two equal")
        return SchemaPhrase(
            with_rules(f"[{', '.join(texts)}]", rules),
            tuple(note for piece in places for note in piece.notes),
        )


def _name(reference: str, root: schemas.Schema) -> str:
    """Return `#leg` for a definition, or the quoted pointer for other places or names."""
    if reference == "#":
        return "#"
    definition = _DEFINITION.fullmatch(reference)
    is_plain = definition is not None and _PLAIN_NAME.fullmatch(definition[1])
    if (
        definition is None
        or not is_plain
        or (definition[1] in root.get("$defs", {}) and "/definitions/" in reference)
    ):
        return f"#{json_text(reference[1:])}"
    return f"#{definition[1]}"


def _survey(root: schemas.Schema) -> tuple[Counter[str], bool]:
    """Return the uses of each reference, and whether every object declares its extras."""
    uses = Counter({"#": 1})
    is_closed = "additionalProperties" in root or _form(root) != "any"
    waiting = ["#"]
    while waiting:
        for node, times in _rendered_schemas(schemas.resolve_reference(root, waiting.pop())):
            is_closed = is_closed and (
                "object" not in schemas.allowed_types(node) or "additionalProperties" in node
            )
            if "$ref" in node:
                if node["$ref"] not in uses:
                    waiting.append(node["$ref"])
                uses[node["$ref"]] += times
    return uses, is_closed


def _rendered_schemas(node: Any, times: int = 1) -> Iterator[tuple[schemas.Schema, int]]:
    """Yield the schemas that the text is made of, with the number of their uses."""
    if not isinstance(node, dict):
        return
    for keyword in _BY_OTHER_MEANS:
        if keyword in node:
            raise LookupError(keyword)
    # A part written as JSON counts twice, because it refers to definitions by name.
    again = 2 if _form(node) == "schema" else times
    yield node, again
    for place, child in schemas.children(node):
        if not place.startswith(("/$defs/", "/definitions/")):
            yield from _rendered_schemas(child, again)


def _form(node: Any) -> _Form:
    if isinstance(node, bool):
        return "any" if node else "never"
    rules = frozenset(node) & _RULES
    if rules in _FORM_OF:
        form = _FORM_OF[rules]
        return "schema" if form == "options" and not schemas.allowed_values(node) else form
    return "types" if rules <= _BY_TYPE else "schema"
