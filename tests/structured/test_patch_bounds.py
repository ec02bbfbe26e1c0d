"""The work that changing a value makes is bounded, whatever the value and the schema are."""

from typing import Any

import orjson
import pytest

from tests.structured.patching import (
    INTEGER,
    NULL,
    change,
)


@pytest.mark.timeout(30)  # a hang: 8 s were measured under coverage, beside two other processes
class TestBounds:
    """Work is bounded, whatever the value and the schema are."""

    def test_ten_thousand_places_are_changed(self) -> None:
        schema = {"properties": {"x": {"type": "array", "items": {"anyOf": [INTEGER, NULL]}}}}

        result = change({"x": ["5" * 60] * 10_000}, schema)

        assert len(result.coercions) == 10_000
        assert result.violations == []

    @pytest.mark.parametrize("item", ["1", {"a": "1"}, '{"a":1}'])
    def test_megabyte_value_is_left_unchanged(self, item: Any) -> None:
        size = len(orjson.dumps(item)) + 1
        value = {"x": [item] * ((1 << 20) // size)}
        schema = {
            "properties": {"x": {"type": "array", "items": {"type": "object", "properties": {"a": INTEGER}}}}
        }

        result = change(value, schema)

        assert result.value is value
        assert result.violations != []

    def test_decoded_strings_count_towards_limit(self) -> None:
        many = orjson.dumps({"a": [1] * 20_000, "b": "5"}).decode()
        schema = {"additionalProperties": {"type": "object", "properties": {"b": INTEGER}}}
        value = {"x": many, "y": many}

        assert change(value, schema).value is value

    def test_large_choice_reports_size_violation(self) -> None:
        branches = [
            {"type": "object", "properties": {"k": {"const": i}, "x": {"items": INTEGER}}} for i in range(300)
        ]
        value = {"x": {"k": "no", "x": ["1"] * 5000}}

        result = change(value, {"properties": {"x": {"anyOf": branches}}})

        assert result.value is value
        assert [v.keyword for v in result.violations] == ["size"]

    def test_unfittable_branches_are_left_unchanged(self) -> None:
        branches = [
            {"type": "object", "properties": {"k": {"const": i}, "x": {"items": INTEGER}}} for i in range(60)
        ]
        value = {"x": {"k": "no", "x": ["1"] * 500}}

        result = change(value, {"properties": {"x": {"anyOf": branches}}})

        assert result.value is value
        assert result.violations[0].path == "$.x.k"

    def test_nested_choices_are_followed_to_depth(self) -> None:
        node = {"anyOf": [{"type": "object", "properties": {"c": {"$ref": "#/$defs/node"}}}, INTEGER]}
        schema = {"properties": {"x": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}

        def nested(depth: int, leaf: Any) -> Any:
            for _ in range(depth):
                leaf = {"c": leaf}
            return {"x": leaf}

        assert change(nested(20, "5"), schema).value == nested(20, 5)
        assert change(nested(100, "5"), schema).value == nested(100, "5")

    def test_long_change_chain_is_abandoned(self) -> None:
        def rule(i: int) -> dict[str, Any]:
            return {
                "if": {"properties": {f"p{i}": INTEGER}, "required": [f"p{i}"]},
                "then": {"properties": {f"p{i + 1}": INTEGER}},
            }

        schema = {"properties": {"p0": INTEGER}, "allOf": [rule(i) for i in range(40)]}
        value = {f"p{i}": "1" for i in range(41)}
        short = {f"p{i}": "1" for i in range(20)}

        assert change(value, schema).value is value
        assert change(short, schema).value == {f"p{i}": 1 for i in range(20)}

    def test_value_beyond_schema_depth_is_unchanged(self) -> None:
        costly = {"properties": {"a": {"$ref": "#"}, "v": INTEGER}, "allOf": [{}] * 200}
        value: Any = {"v": "1"}
        for _ in range(20):
            value = {"a": value}

        result = change(value, costly)

        assert result.value is value
        assert [v.keyword for v in result.violations] == ["depth"]
