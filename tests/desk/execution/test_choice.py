"""What a question asks an answer to fit: narrower than what is published, and in a form that providers enforce."""

import json
from typing import Any

import jsonschema_rs
import pytest

from agentic_trading.canonical import canonical_bytes
from agentic_trading.desk.execution.strategy import FILL_STRATEGY_SCHEMA, asked_fill_schema, read_choice
from agentic_trading.structured.schema import prompt_schema
from agentic_trading.structured.strict_schema import strict_schema
from tests.desk.execution.asked import asked, chosen_text

ASKED = asked_fill_schema(("take_now", "slices"), 3)
NARROW = jsonschema_rs.validator_for(dict(ASKED))
PUBLISHED = jsonschema_rs.validator_for(dict(FILL_STRATEGY_SCHEMA))


def test_asked_and_published_ids_agree() -> None:
    assert ASKED["$id"] == FILL_STRATEGY_SCHEMA["$id"] == "fill_strategy.v2"


def test_asked_answer_fits_both_schemas() -> None:
    answer = json.loads(chosen_text("slices", evidence_ids=["E1", "E3"]))

    assert NARROW.is_valid(answer)
    assert PUBLISHED.is_valid(answer)
    assert read_choice(json.dumps(answer)).fill == "slices"


@pytest.mark.parametrize(
    "change",
    [
        {"fill": "at_plan"},
        {"evidence_ids": ["E4"]},
        {"evidence_ids": []},
        {"evidence_ids": ["E1", "E2", "E3", "E1"]},
        {"rationale": ""},
        {"rationale": "0000 0000"},
        {"rationale": "So " + "x" * 118},
        {"confidence": 0.55},
        {"slices": 10},
    ],
)
def test_unasked_answer_does_not_fit(change: dict[str, Any]) -> None:
    assert not NARROW.is_valid(json.loads(chosen_text(**{"fill": "slices", **change})))


@pytest.mark.parametrize("bounds", [True, False])
def test_schema_has_strict_and_prompt_form(bounds: bool) -> None:  # noqa: FBT001 - by place
    schema = asked().output_schema_json

    enforced = strict_schema(schema, sentinel=True, bounds=bounds)
    prompt = prompt_schema(schema, sentinel=True)

    assert enforced is not None
    assert list(enforced["properties"]) == ["evidence_ids", "rationale", "fill", "confidence", "end"]
    assert enforced["properties"]["fill"]["enum"][0] == "take_now"
    assert list(json.loads(prompt)["properties"])[-1] == "end"


def test_asked_schema_is_small_and_cached() -> None:
    assert len(canonical_bytes(dict(ASKED))) < 600
    assert asked_fill_schema(("take_now", "slices"), 3) is ASKED
