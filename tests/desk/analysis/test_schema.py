"""The JSON Schema of an answer, published and as asked, against the values that are made of it."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentic_trading.canonical import canonical_bytes
from agentic_trading.desk.analysis.judgement import (
    ASKED_CHARS,
    CMT_ASSESSMENT_SCHEMA,
    SCORE_RANGES,
    Judgement,
    Layer,
    asked_assessment_schema,
)
from agentic_trading.structured.strict_schema import strict_schema
from tests.desk.analysis.build import answer, layer, layers, plan

ALL = frozenset(Layer)
WITHOUT_TWO = ALL - {Layer.INTERMARKET, Layer.SYSTEM}


def validator(schema: Any) -> jsonschema_rs.Validator:
    """Return a validator as the gateway uses it."""
    return jsonschema_rs.validator_for(dict(schema), validate_formats=True, offline=True)


PUBLISHED = validator(CMT_ASSESSMENT_SCHEMA)
ASKED = validator(asked_assessment_schema(ALL))


def fits_model(value: Any) -> bool:
    """Return whether a value is a judgement."""
    try:
        Judgement.model_validate(value)
    except ValidationError:
        return False
    return True


def test_published_and_asked_ids_agree() -> None:
    assert CMT_ASSESSMENT_SCHEMA["$id"] == asked_assessment_schema(ALL)["$id"] == "cmt_assessment.v2"


@pytest.mark.parametrize("asked", [ALL, WITHOUT_TWO])
def test_asked_schema_is_provider_enforceable(asked: frozenset[Layer]) -> None:
    enforced = strict_schema(canonical_bytes(dict(asked_assessment_schema(asked))), sentinel=False)

    assert enforced is not None
    assert list(enforced["properties"]) == list(Judgement.model_fields)
    asked_layers = enforced["properties"]["layers"]["properties"]
    assert list(asked_layers) == [name for name in Layer if name in asked]
    for name in asked:
        held = enforced["$defs"][asked_layers[name]["$ref"].rpartition("/")[2]]
        least, most = SCORE_RANGES[name]
        assert held["properties"]["score"]["enum"] == list(range(least, most + 1))
        assert list(held["properties"]) == held["required"] == ["finding", "evidence", "score"]


def test_asked_schema_below_2500_bytes() -> None:
    assert len(canonical_bytes(dict(asked_assessment_schema(ALL)))) < 2_500


def test_equal_layers_share_cached_schema() -> None:
    assert asked_assessment_schema(frozenset(Layer)) is asked_assessment_schema(ALL)


TEXTS = st.sampled_from(["x", "längere Sätze…", '"quoted"', "x" * ASKED_CHARS])
PRICES = st.from_regex(r"\A(0|[1-9][0-9]{0,11})(\.[0-9]{1,18})?\Z", alphabet="0123456789.")
ENTRIES = st.sampled_from(["market", "pullback"])
STOPS = st.sampled_from(["atr_1.0", "atr_1.5", "atr_2.0", "atr_3.0", "swing"])
TARGETS = st.sampled_from([f"atr_{n}.0" for n in (2, 3, 4, 6)] + [f"level_{n}" for n in (1, 2, 3, 4)])
NAMED = st.fixed_dictionaries({"entry": ENTRIES, "stop": STOPS, "target": TARGETS})
PRICED = st.fixed_dictionaries(
    {"entry": ENTRIES | PRICES, "stop": STOPS | PRICES, "target": TARGETS | PRICES},
    optional={"invalidation": TEXTS},
)
EVIDENCE = st.sampled_from([f"E{place}" for place in range(1, 10)])


def scored(name: Layer, *, more: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Return any judgement that one layer may be given."""
    optional = {"more_evidence": st.lists(EVIDENCE, min_size=1, max_size=3)} if more else {}
    required = {"finding": TEXTS, "evidence": EVIDENCE, "score": st.integers(*SCORE_RANGES[name])}
    return st.fixed_dictionaries(required, optional=optional)


def answers(
    plans: st.SearchStrategy[Any], layers: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Return any answer with such plans and layers."""
    return st.fixed_dictionaries({
        "layers": layers,
        "rationale": TEXTS,
        "direction": st.sampled_from(["bullish", "bearish", "neutral"]),
        "confidence": st.sampled_from(["high", "medium", "low"]),
        "trade_plan": plans,
    })


@given(
    answers(
        st.none() | PRICED,
        st.fixed_dictionaries({}, optional={name.value: scored(name, more=True) for name in Layer}),
    )
)
def test_schema_valid_answer_round_trips_unchanged(value: dict[str, Any]) -> None:
    assert PUBLISHED.is_valid(value)
    assert json.loads(Judgement.model_validate(value).model_dump_json(exclude_defaults=True)) == value


@given(answers(NAMED, st.fixed_dictionaries({name.value: scored(name, more=False) for name in Layer})))
def test_asked_answer_fits_published_schema(value: dict[str, Any]) -> None:
    assert ASKED.is_valid(value)
    assert PUBLISHED.is_valid(value)


@pytest.mark.parametrize(
    "value",
    [
        answer(direction="up"),
        answer(confidence="certain"),
        answer(rationale=""),
        answer(rationale="x" * 401),
        answer(total=4),
        answer(layers={"mood": layer()}),
        answer(layers=layers(trend=layer(3))),
        answer(layers=layers(levels=layer(-1))),
        answer(layers=layers(system=layer(2))),
        answer(layers=layers(trend=layer(0, ""))),
        answer(layers=layers(trend=layer(0, "E0"))),
        answer(layers=layers(trend=layer(finding=""))),
        answer(layers=layers(trend=layer(finding="x" * 1_001))),
        answer(layers=layers(trend=layer(direction="bullish"))),
        answer(trade_plan=plan(stop="1e5")),
        answer(trade_plan=plan(entry="now")),
        answer(trade_plan=plan(target="atr_1.0")),
        answer(trade_plan={**plan(), "target": None}),
        answer(trade_plan=plan(size="1")),
    ],
    ids=lambda value: None,
)
def test_schema_and_model_reject_same_values(value: dict[str, Any]) -> None:
    assert not PUBLISHED.is_valid(value)
    assert not ASKED.is_valid(value)
    assert not fits_model(value)


@pytest.mark.parametrize(
    "value",
    [
        answer(trade_plan=None),
        answer(trade_plan=plan(stop="90")),
        answer(layers={"trend": layer()}),
        answer(layers=layers(trend=layer(finding="x" * (ASKED_CHARS + 1)))),
        answer(layers=layers(trend=layer(more_evidence=["E2"]))),
    ],
    ids=["no plan", "a price", "a layer missing", "long", "more evidence"],
)
def test_asked_schema_narrower_than_published(value: dict[str, Any]) -> None:
    assert PUBLISHED.is_valid(value)
    assert not ASKED.is_valid(value)
