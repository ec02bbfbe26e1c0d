"""The JSON Schema of a v1 answer, against the values that are made of it."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentic_trading.canonical import canonical_bytes
from agentic_trading.desk.analysis.v1.judgement import SCORE_RANGES, JudgementV1, LayerV1
from agentic_trading.desk.analysis.v1.schema import CMT_ASSESSMENT_V1_SCHEMA
from agentic_trading.structured.strict_schema import strict_schema
from tests.desk.analysis.v1.build import answer, layer, layers, plan

VALIDATOR = jsonschema_rs.validator_for(dict(CMT_ASSESSMENT_V1_SCHEMA), validate_formats=True, offline=True)


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every object schema inside a schema."""
    if isinstance(schema, dict):
        if "properties" in schema and "type" in schema:
            yield schema
        for inner in schema.values():
            yield from objects(inner)


def fits_model(value: Any) -> bool:
    """Tell whether a value is a judgement."""
    try:
        JudgementV1.model_validate(value)
    except ValidationError:
        return False
    return True


def test_every_object_is_closed_and_demands_all_its_properties() -> None:
    found = list(objects(dict(CMT_ASSESSMENT_V1_SCHEMA)))

    assert len(found) == 9
    assert all(each["additionalProperties"] is False for each in found)
    assert all(each["required"] == list(each["properties"]) for each in found)


def test_its_id_names_the_rules_and_the_check() -> None:
    assert CMT_ASSESSMENT_V1_SCHEMA["$id"] == "cmt_assessment.v1"


def test_a_provider_can_hold_an_answer_to_it() -> None:
    enforced = strict_schema(canonical_bytes(dict(CMT_ASSESSMENT_V1_SCHEMA)), sentinel=False)

    assert enforced is not None
    assert list(enforced["properties"]) == list(JudgementV1.model_fields)
    for name, (least, most) in SCORE_RANGES.items():
        score = enforced["properties"]["layers"]["properties"][name]["properties"]["score"]
        assert score["enum"] == list(range(least, most + 1))


TEXTS = st.sampled_from(["x", "längere Sätze…", '"quoted"', "x" * 200])
JUDGED = st.sampled_from(["bullish", "bearish", "neutral"])
FINDINGS = st.lists(
    st.fixed_dictionaries({
        "text": TEXTS,
        "evidence_ids": st.lists(TEXTS, min_size=1, max_size=2),
    }),
    max_size=2,
)
PRICES = st.from_regex(r"\A(0|[1-9][0-9]{0,11})(\.[0-9]{1,18})?\Z", alphabet="0123456789.")
PLANS = st.fixed_dictionaries({
    "entry": st.just("market") | PRICES,
    "stop": PRICES,
    "target": PRICES,
    "invalidation": TEXTS,
})


def scored(name: LayerV1) -> st.SearchStrategy[dict[str, Any]]:
    """Return any judgement that one layer may be given."""
    return st.fixed_dictionaries({
        "direction": JUDGED,
        "score": st.integers(*SCORE_RANGES[name]),
        "confidence": st.sampled_from(["high", "medium", "low"]),
        "findings": FINDINGS,
        "unavailable": st.booleans(),
    })


ANSWERS = st.fixed_dictionaries({
    "rationale": TEXTS,
    "direction": JUDGED,
    "confidence": st.sampled_from(["high", "medium", "low"]),
    "layers": st.fixed_dictionaries({name.value: scored(name) for name in LayerV1}),
    "trade_plan": st.none() | PLANS,
})


@given(ANSWERS)
def test_what_fits_the_schema_is_a_judgement_and_is_written_back_unchanged(value: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid(value)
    assert json.loads(JudgementV1.model_validate(value).model_dump_json()) == value


@pytest.mark.parametrize(
    "value",
    [
        answer(direction="up"),
        answer(confidence="certain"),
        answer(rationale=""),
        answer(rationale="x" * 401),
        answer(total=4),
        answer(layers={"trend": layer()}),
        answer(layers=layers(trend=layer(3))),
        answer(layers=layers(levels=layer(-1))),
        answer(layers=layers(risk=layer(2))),
        answer(layers=layers(trend=layer(findings=[{"text": "no source", "evidence_ids": []}]))),
        answer(layers=layers(trend=layer(findings=[{"text": "x" * 201, "evidence_ids": ["E1"]}]))),
        answer(layers=layers(trend=layer(findings=[{"text": "five", "evidence_ids": ["E1"]}] * 5))),
        answer(trade_plan=plan(stop="1e5")),
        answer(trade_plan=plan(entry="now")),
        answer(trade_plan=plan(target="1e5")),
        answer(trade_plan={**plan(), "target": ["120", "130"]}),
        answer(trade_plan={**plan(), "target": {"price": "120", "percent": 100}}),
        answer(trade_plan={**plan(), "target": None}),
        answer(trade_plan=plan(percent=50)),
        answer(trade_plan=plan(targets=[{"price": "120", "percent": 100}])),
        answer(trade_plan=plan(size="1")),
    ],
    ids=lambda value: None,
)
def test_what_the_schema_refuses_is_no_judgement_either(value: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(value)
    assert not fits_model(value)
