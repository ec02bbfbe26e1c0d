"""Strategies for schemas: any keyword beside any other, strings that try to break out."""

from typing import Any

from hypothesis import strategies as st

HOSTILE = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from([
    '"',
    "\n",
    "\u2028",
    '"}',
    "} // x",
    "```",
    "\\",
    "a\r\nb",
    "\x00",
    "*/",
    " | ",
    "é",
    "\U0001f600",
])


NAMES = st.sampled_from(["a", "b", "$ref", "type", "enum", "a/b", "~", "", "é\u2028"])
NUMBERS = st.integers(-5, 5) | st.sampled_from([0.5, 1e-7, 1e15])
SIZES = st.integers(0, 5)
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | NAMES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2), max_leaves=4
)  # fmt: skip
REFERENCES = st.sampled_from([
    "#",
    "#/$defs/a",
    "#/$defs/b",
    "#/properties/a",
    "#/$defs/a~1b",
    "#/$defs/a/items",
])
KINDS = st.sampled_from(["string", "number", "integer", "boolean", "null", "array", "object"])


def schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return schemas with up to four of the keywords, around `inner` ones."""
    named, some = st.dictionaries(NAMES, inner, max_size=3), st.lists(inner, min_size=1, max_size=3)
    values: dict[str, st.SearchStrategy[Any]] = {
        "type": KINDS | st.lists(KINDS, min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3, unique_by=repr),
        "const": VALUES,
        **dict.fromkeys(BOUNDS, NUMBERS),
        "multipleOf": st.sampled_from([1, 0.01]),
        **dict.fromkeys(
            ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"], SIZES
        ),
        "pattern": st.sampled_from(["^a", '"\u2028']),
        "format": st.sampled_from(["date-time", "\n"]),
        "properties": named,
        "required": st.lists(NAMES, max_size=3, unique=True),
        **dict.fromkeys(
            ["additionalProperties", "propertyNames", "items", "not", "if", "then", "contains"], inner
        ),
        **dict.fromkeys(["anyOf", "oneOf", "allOf", "prefixItems"], some),
        "uniqueItems": st.booleans(),
        "$ref": REFERENCES,
        "description": HOSTILE,
    }
    keywords = st.lists(st.sampled_from(sorted(values)), max_size=4, unique=True)
    return keywords.flatmap(
        lambda chosen: st.fixed_dictionaries({keyword: values[keyword] for keyword in chosen})
    )


INNER: st.SearchStrategy[Any] = st.recursive(st.booleans() | st.just({}), schemas_of, max_leaves=6)
WHOLE = st.builds(
    lambda top, definitions: {**top, "$defs": definitions},
    schemas_of(INNER),
    st.fixed_dictionaries({"a": schemas_of(INNER), "b": INNER, "a/b": INNER}),
)
