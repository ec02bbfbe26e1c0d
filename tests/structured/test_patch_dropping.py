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

    def test_it_goes_and_is_on_record(self) -> None:
        result = change({"side": "BUY", "mood": {"now": "calm"}}, CLOSED)

        assert result.value == {"side": "BUY"}
        (fix,) = result.patches
        assert (fix.kind, fix.where, fix.before, fix.after) == ("dropped", "$.mood", '{"now":"calm"}', "")
        assert result.violations == []

    @pytest.mark.parametrize(
        "key",
        ["veto", "VETO", "veto ", "reduce_only", "reduceOnly", "Reduce-Only", "Stop-Loss", "stop_loss_pct", "hardStopLoss", "kill switch", "\uff36\uff25\uff34\uff2f"],
    )  # fmt: skip
    def test_a_protected_one_stays_however_it_is_written(self, key: str) -> None:
        value = {"side": "BUY", key: True}

        result = change(value, CLOSED)

        assert is_protected(key, ALL)
        assert result.value == value
        assert [v.keyword for v in result.violations] == ["additionalProperties"]

    @pytest.mark.parametrize(
        "key", ["v\u0435to", "vetto", "vet0", "stop", "SL", "stoppLoss", "reduce", "reduced_only", "kill"]
    )
    def test_one_that_may_be_a_protected_one_misspelt_stays(self, key: str) -> None:
        value = {"side": "BUY", key: True}

        assert not is_protected(key, ALL)
        assert change(value, CLOSED).value == value

    @pytest.mark.parametrize(
        "key", ["note", "rationale", "stop_price", "verdict", "risk", "score", "\u6b62\u640d"]
    )
    def test_one_that_is_only_a_little_like_a_protected_one_goes(self, key: str) -> None:
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
    def test_one_that_holds_a_protected_one_stays(self, holder: Any) -> None:
        value = {"side": "BUY", "mood": holder}

        assert change(value, CLOSED).value == value

    def test_one_that_only_speaks_of_a_protected_one_goes(self) -> None:
        assert change({"mood": "no veto from me", "list": ["veto", 1, None]}, CLOSED).value == {}

    @pytest.mark.parametrize("key", ["sides", "Side", "s_ide", "qty", "quantiy", "reasoning", "leg", "LEGS"])
    def test_one_that_may_be_a_misspelt_declared_one_stays(self, key: str) -> None:
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
    def test_key_that_merely_contains_a_declared_name_is_dropped(self, declared: str, key: str) -> None:
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
    def test_key_that_contains_a_declared_name_and_little_more_stays(self, declared: str, key: str) -> None:
        schema = {"properties": {"a": INTEGER, declared: STRING}, "additionalProperties": False}

        assert change({"a": 1, key: "x"}, schema).value == {"a": 1, key: "x"}

    def test_key_that_misspells_another_declared_name_stays(self) -> None:
        schema = {"properties": {"n": INTEGER, "notes": STRING}, "additionalProperties": False}

        assert change({"note": "x"}, schema).value == {"note": "x"}

    @given(NAMES, NAMES, NAMES)
    def test_declared_name_within_a_longer_key_never_keeps_it(
        self, name: str, before: str, behind: str
    ) -> None:
        key = f"{before}_{name}_{behind}"
        assume(len(before + behind) > 3 and not is_protected(key, ALL))
        assume(not near_miss(key, ALL.protected_keys))

        schema = {"properties": {name: STRING}, "additionalProperties": False}

        assert change({key: "x"}, schema).value == {}

    def test_one_that_is_like_a_declared_one_that_is_there_goes(self) -> None:
        value = {"reason": "trend", "reasoning": "long"}

        assert change(value, CLOSED).value == {"reason": "trend"}

    def test_another_spelling_of_a_declared_one_stays_beside_it(self) -> None:
        value = {"quantity": 1, "Quantity": 100}

        assert change(value, CLOSED).value == value

    def test_a_list_keeps_all_its_items(self) -> None:
        legs = {"type": "array", "items": {**CLOSED, "required": ["side"]}, "maxItems": 1}
        value = {"x": [{"side": "BUY", "zz": 1}, {"yy": 2}]}

        result = change(value, {"properties": {"x": legs}})

        assert result.value == {"x": [{"side": "BUY"}, {}]}
        assert {v.keyword for v in result.violations} == {"maxItems", "required"}

    def test_one_beside_unevaluated_properties_is_held_against_every_name(self) -> None:
        schema = {"allOf": [{"properties": {"quantity": INTEGER}}], "unevaluatedProperties": False}

        assert change({"quantiti": 5}, schema).value == {"quantiti": 5}
        assert change({"mood": 5}, schema).value == {}

    def test_within_a_choice_a_name_of_another_branch_may_be_meant(self) -> None:
        one = {"properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": False}
        other = {"properties": {"a": INTEGER, "comment": STRING}, "additionalProperties": False}
        value = {"a": 1, "coment": "x"}

        assert at_x(value, {"oneOf": [one, other]}) == value
        assert at_x(value, {"anyOf": [one, other]}) == value
        assert at_x({"a": 1, "zz": "x"}, {"anyOf": [one, NULL]}) == {"a": 1}

    @pytest.mark.parametrize(("policy", "may_drop"), [(COERCE, True), (ALL, False), (DROP, False)])
    def test_none_goes_where_that_is_not_allowed(self, policy: OutputPolicy, may_drop: bool) -> None:  # noqa: FBT001 - a parameter of the test
        value = {"side": "BUY", "mood": 1}

        assert change(value, CLOSED, policy, may_drop=may_drop).value == value

    def test_a_protected_name_without_letters_protects_itself_alone(self) -> None:
        policy = ALL.model_copy(update={"protected_keys": ("--",)})

        assert [is_protected(key, policy) for key in ("--", "mood", "-")] == [True, False, False]

    def test_dropping_alone_coerces_nothing(self) -> None:
        assert change({"quantity": "5", "mood": 1}, CLOSED, DROP).value == {"quantity": "5"}
