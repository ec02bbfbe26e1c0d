"""What holds of every change, whatever the value, the schema and the policy are."""

import copy
from collections.abc import Iterator
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.canonical import canonical_bytes, exact_bytes
from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.structured.patch import PatchedValue, patch_value
from agentic_trading.structured.validation import compile_schema, find_violations
from tests.structured.patching import (
    ALL,
    BOOLEAN,
    COERCE,
    DROP,
    INTEGER,
    NOTHING,
    NULL,
    NUMBER,
    STRING,
    at_x,
    same,
)

_SCALARS: list[dict[str, Any]] = [
    INTEGER,
    NUMBER,
    STRING,
    BOOLEAN,
    NULL,
    {"enum": ["BUY", 5, True]},
    {"type": "number", "maximum": 10},
    {"type": ["integer", "null"]},
    {"type": "string", "maxLength": 2},
]


def _schemas() -> st.SearchStrategy[dict[str, Any]]:
    def larger(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        objects = st.builds(
            lambda properties, required, closed: {
                "type": "object",
                "properties": properties,
                "required": sorted(set(required) & set(properties)),
                **({"additionalProperties": False} if closed else {}),
            },
            st.dictionaries(st.sampled_from(["a", "b", "qty", "quantity"]), inner, max_size=3),
            st.lists(st.sampled_from(["a", "b"])),
            st.booleans(),
        )
        choices = st.builds(
            lambda keyword, branches: {keyword: branches},
            st.sampled_from(["anyOf", "oneOf", "allOf"]),
            st.lists(inner, min_size=1, max_size=3),
        )
        lists = st.builds(lambda items: {"type": "array", "items": items}, inner)
        return st.one_of(objects, choices, lists)

    return st.recursive(st.sampled_from(_SCALARS), larger, max_leaves=6)


_TEXTS = st.sampled_from(["5", "42", "0.10", "true", "false", "null", "x", "BUY", " 5 ", "1,000", '{"a": "5"}', '{"a": 1, "b": {"qty": "7"}}', "[1]", "a, b"])  # fmt: skip
_LEAVES = st.one_of(
    _TEXTS,
    st.none(),
    st.booleans(),
    st.integers(-20, 20),
    st.decimals(-20, 20, places=2),
    st.text(max_size=3),
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "qty", "quantity", "veto", "mood"]), inner, max_size=4),
    ),
    max_leaves=8,
)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the scalars of a value."""
    if isinstance(value, dict):
        for member in value.values():
            yield from leaves(member)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def spelled_leaves(value: Any) -> set[bytes]:
    """Return the scalars of a value, and of every document that a string in it is, as JSON."""
    found: set[bytes] = set()
    for leaf in leaves(value):
        found.add(exact_bytes(leaf))
        if isinstance(leaf, str):
            try:
                inner = orjson.loads(leaf)
            except orjson.JSONDecodeError:
                continue
            found |= spelled_leaves(inner) if isinstance(inner, dict) else {leaf.encode()}
    return found


class TestRules:
    """What holds for every value, schema and policy."""

    @given(_VALUES, _schemas(), st.sampled_from([ALL, COERCE, DROP]), st.booleans())
    def test_patching_is_truthful_and_idempotent(
        self,
        value: Any,
        schema: dict[str, Any],
        policy: OutputPolicy,
        may_drop: bool,  # noqa: FBT001 - drawn
    ) -> None:
        wanted = compile_schema(canonical_bytes({"properties": {"x": schema}}))
        whole = {"x": value}
        before = copy.deepcopy(whole)

        result = patch_value(whole, wanted, policy, may_drop=may_drop)

        assert same(whole, before)
        assert result.violations == find_violations(result.value, wanted)
        if not find_violations(whole, wanted):
            assert result.value is whole
        if not (result.coercions or result.patches):
            assert same(result.value, whole)
        assert spelled_leaves(result.value) <= spelled_leaves(whole)
        again = patch_value(result.value, wanted, policy, may_drop=may_drop)
        assert same(again.value, result.value)
        assert (again.coercions, again.patches) == ((), ())

    @given(_VALUES, _schemas())
    def test_disabled_patching_equals_plain_check(self, value: Any, schema: dict[str, Any]) -> None:
        wanted = compile_schema(canonical_bytes({"properties": {"x": schema}}))
        whole = {"x": value}

        for policy, may_drop in ((NOTHING, True), (DROP, False)):
            result = patch_value(whole, wanted, policy, may_drop=may_drop)

            assert result == PatchedValue(whole, (), (), find_violations(whole, wanted))

    @given(_VALUES, _schemas())
    def test_protected_property_is_never_dropped(self, value: Any, schema: dict[str, Any]) -> None:
        wanted = compile_schema(canonical_bytes({"properties": {"x": schema}}))

        result = patch_value({"x": value}, wanted, ALL, may_drop=True)

        assert exact_bytes(result.value).count(b'"veto":') >= exact_bytes({"x": value}).count(b'"veto":')


def test_value_fitting_several_branches_is_unchanged() -> None:
    text = {"type": "string", "minLength": 1}

    assert at_x("5", {"oneOf": [STRING, text, INTEGER]}) == "5"


def test_null_is_not_wrapped_in_list() -> None:
    assert at_x(None, {"type": "array", "items": NULL}) is None


def test_enum_object_is_not_decoded() -> None:
    assert at_x('{"a": 1}', {"enum": [{"a": 1}, "x"]}) == '{"a": 1}'
