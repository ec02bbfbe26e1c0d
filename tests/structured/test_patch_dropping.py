"""An undeclared property goes where that is allowed, unless it may matter."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.structured.feedback import near_miss
from agentic_trading.structured.patch import is_protected
from tests.structured.patching import (
    ALL,
    CLOSED,
    COERCE,
    DROP,
    INTEGER,
    NULL,
    STRING,
    at_x,
    change,
)

NAMES = st.text(st.sampled_from("abcdefgh"), min_size=1, max_size=8)


class TestUndeclaredProperties:
    """One that was not asked for goes, unless it may matter."""

    def test_undeclared_property_is_dropped_with_record(self) -> None:
        result = change({"side": "BUY", "mood": {"now": "calm"}}, CLOSED)

        assert result.value == {"side": "BUY"}
        (fix,) = result.patches
        assert (fix.kind, fix.where, fix.before, fix.after) == ("dropped", "$.mood", '{"now":"calm"}', "")
        assert result.violations == []

    @pytest.mark.parametrize(
        "key",
        ["veto", "VETO", "veto ", "reduce_only", "reduceOnly", "Reduce-Only", "Stop-Loss", "stop_loss_pct", "hardStopLoss", "kill switch", "\uff36\uff25\uff34\uff2f"],
    )  # fmt: skip
    def test_protected_property_stays_in_any_spelling(self, key: str) -> None:
        value = {"side": "BUY", key: True}

        result = change(value, CLOSED)

        assert is_protected(key, ALL)
        assert result.value == value
        assert [v.keyword for v in result.violations] == ["additionalProperties"]

    @pytest.mark.parametrize(
        "key", ["v\u0435to", "vetto", "vet0", "stop", "SL", "stoppLoss", "reduce", "reduced_only", "kill"]
    )
    def test_misspelt_protected_property_stays(self, key: str) -> None:
        value = {"side": "BUY", key: True}

        assert not is_protected(key, ALL)
        assert change(value, CLOSED).value == value

    @pytest.mark.parametrize(
        "key", ["note", "rationale", "stop_price", "verdict", "risk", "score", "\u6b62\u640d"]
    )
    def test_slightly_similar_property_is_dropped(self, key: str) -> None:
        assert change({"side": "BUY", key: 1}, CLOSED).value == {"side": "BUY"}

    @pytest.mark.parametrize(
        "holder",
        [
            {"veto": True},
            {"a": [{"stopLoss": 1}]},
            '{"veto": true}',
            ' [{"reduce_only": true}]',
            [["x", {"kill_switch": 1}]],
        ],
    )
    def test_property_containing_protected_key_stays(self, holder: Any) -> None:
        value = {"side": "BUY", "mood": holder}

        assert change(value, CLOSED).value == value

    def test_property_mentioning_protected_key_is_dropped(self) -> None:
        assert change({"mood": "no veto from me", "list": ["veto", 1, None]}, CLOSED).value == {}

    @pytest.mark.parametrize("key", ["sides", "Side", "s_ide", "qty", "quantiy", "reasoning", "leg", "LEGS"])
    def test_misspelt_declared_property_stays(self, key: str) -> None:
        assert change({key: "x"}, CLOSED).value == {key: "x"}

    @pytest.mark.parametrize(
        ("declared", "key"),
        [
            ("n", "note"),
            ("no", "notional"),
            ("id", "idea"),
            ("price", "price_reason"),
            ("price", "entryPrice"),
            ("side", "sidenote"),
            ("confidence", "Confidence-Level"),
            ("qty", "qty comment"),
        ],
    )
    def test_key_containing_declared_name_is_dropped(self, declared: str, key: str) -> None:
        schema = {"properties": {"a": INTEGER, declared: STRING}, "additionalProperties": False}

        assert change({"a": 1, key: "x"}, schema).value == {"a": 1}
        assert change({"a": 1, key: "x"}, {**schema, "required": [declared]}).violations

    @pytest.mark.parametrize(
        ("declared", "key"),
        [
            ("price", "price_usd"),
            ("vol", "volume"),
            ("quantity", "qty"),
            ("qty", "quantity"),
            ("confidence", "conf"),
            ("id", "ID"),
            ("n", "N"),
            ("legs", "my legs"),
        ],
    )
    def test_key_barely_longer_than_declared_stays(self, declared: str, key: str) -> None:
        schema = {"properties": {"a": INTEGER, declared: STRING}, "additionalProperties": False}

        assert change({"a": 1, key: "x"}, schema).value == {"a": 1, key: "x"}

    def test_key_misspelling_another_declared_name_stays(self) -> None:
        schema = {"properties": {"n": INTEGER, "notes": STRING}, "additionalProperties": False}

        assert change({"note": "x"}, schema).value == {"note": "x"}

    @given(NAMES, NAMES, NAMES)
    def test_any_longer_declared_key_is_dropped(self, name: str, before: str, behind: str) -> None:
        key = f"{before}_{name}_{behind}"
        assume(len(before + behind) > 3 and not is_protected(key, ALL))
        assume(not near_miss(key, ALL.protected_keys))

        schema = {"properties": {name: STRING}, "additionalProperties": False}

        assert change({key: "x"}, schema).value == {}

    def test_key_like_present_property_is_dropped(self) -> None:
        value = {"reason": "trend", "reasoning": "long"}

        assert change(value, CLOSED).value == {"reason": "trend"}

    def test_alternate_spelling_of_present_key_stays(self) -> None:
        value = {"quantity": 1, "Quantity": 100}

        assert change(value, CLOSED).value == value

    def test_list_items_are_never_dropped(self) -> None:
        legs = {"type": "array", "items": {**CLOSED, "required": ["side"]}, "maxItems": 1}
        value = {"x": [{"side": "BUY", "zz": 1}, {"yy": 2}]}

        result = change(value, {"properties": {"x": legs}})

        assert result.value == {"x": [{"side": "BUY"}, {}]}
        assert {v.keyword for v in result.violations} == {"maxItems", "required"}

    def test_unevaluated_property_is_checked_against_all(self) -> None:
        schema = {"allOf": [{"properties": {"quantity": INTEGER}}], "unevaluatedProperties": False}

        assert change({"quantiti": 5}, schema).value == {"quantiti": 5}
        assert change({"mood": 5}, schema).value == {}

    def test_misspelt_name_of_another_branch_stays(self) -> None:
        one = {"properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": False}
        other = {"properties": {"a": INTEGER, "comment": STRING}, "additionalProperties": False}
        value = {"a": 1, "coment": "x"}

        assert at_x(value, {"oneOf": [one, other]}) == value
        assert at_x(value, {"anyOf": [one, other]}) == value
        assert at_x({"a": 1, "zz": "x"}, {"anyOf": [one, NULL]}) == {"a": 1}

    @pytest.mark.parametrize(("policy", "may_drop"), [(COERCE, True), (ALL, False), (DROP, False)])
    def test_disallowed_dropping_keeps_property(self, policy: OutputPolicy, may_drop: bool) -> None:  # noqa: FBT001 - a parameter of the test
        value = {"side": "BUY", "mood": 1}

        assert change(value, CLOSED, policy, may_drop=may_drop).value == value

    def test_letterless_protected_name_matches_exactly(self) -> None:
        policy = ALL.model_copy(update={"protected_keys": ("--",)})

        assert [is_protected(key, policy) for key in ("--", "mood", "-")] == [True, False, False]

    def test_drop_policy_makes_no_coercion(self) -> None:
        assert change({"quantity": "5", "mood": 1}, CLOSED, DROP).value == {"quantity": "5"}
