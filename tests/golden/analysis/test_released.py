"""Answers of every release are read for ever: as what they were, and in the form of today."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.canonical import sha256_hex
from agentic_trading.desk.analysis.judgement import CMT_ASSESSMENT_SCHEMA, Direction, Judgement, Layer
from agentic_trading.desk.analysis.upcasting import UnknownAssessmentVersionError, judgement_of
from agentic_trading.desk.analysis.v1.judgement import JudgementV1
from agentic_trading.desk.analysis.v1.upcaster import upcast_assessment
from tests.desk.analysis.v1.test_v1_schema import ANSWERS

HERE = Path(__file__).parent
SCHEMAS = HERE.parents[2] / "schemas"
V1 = (HERE / "cmt-answer.v1.json").read_text(encoding="utf-8")
V1_AS_V2 = (HERE / "cmt-answer.v1-as-v2.json").read_text(encoding="utf-8")
SHA256_OF_V1 = "447f06fb7f637443fc51f9a1e99f0cd334d0b95adc1216fe5551576b5395ed74"


def test_the_first_answer_is_read_as_what_it_was() -> None:
    assert json.loads(JudgementV1.model_validate_json(V1).model_dump_json()) == json.loads(V1)


def test_the_first_answer_is_read_in_the_form_of_today() -> None:
    read = judgement_of("cmt_assessment.v1", V1)

    assert read == Judgement.model_validate_json(V1_AS_V2) == judgement_of("cmt_assessment.v2", V1_AS_V2)
    assert json.loads(read.model_dump_json(exclude_defaults=True)) == json.loads(V1_AS_V2)


def test_a_released_schema_does_not_change() -> None:
    assert sha256_hex((SCHEMAS / "cmt_assessment.v1.json").read_bytes()) == SHA256_OF_V1


def citing(value: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Let every finding of an answer cite what a question may have given, as an accepted one did."""
    for judged in value["layers"].values():
        for finding in judged["findings"]:
            finding["evidence_ids"] = names
    return value


@given(st.builds(citing, ANSWERS, st.lists(st.sampled_from(["E1", "E2", "E3", "E4", "E5"]), min_size=1)))
def test_every_answer_of_the_first_release_has_a_form_of_today(value: dict[str, Any]) -> None:
    old = JudgementV1.model_validate(value)

    new = upcast_assessment(old)

    text = new.model_dump_json(exclude_defaults=True)
    assert judgement_of("cmt_assessment.v2", text) == new
    assert (new.rationale, new.direction, new.confidence) == (old.rationale, old.direction, old.confidence)


def test_a_score_for_a_bearish_direction_becomes_a_bearish_score() -> None:
    old = JudgementV1.model_validate_json(V1)

    new = upcast_assessment(old)

    assert old.direction is Direction.BEARISH
    assert new.layers[Layer.TREND].score == -old.layers.trend.score == -2
    assert new.layers[Layer.LEVELS].score == old.layers.levels.score
    assert Layer.PATTERNS not in new.layers


def test_the_form_of_today_fits_the_published_schema() -> None:
    assert jsonschema_rs.is_valid(dict(CMT_ASSESSMENT_SCHEMA), json.loads(V1_AS_V2))


def test_an_answer_of_no_release_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        UnknownAssessmentVersionError, match=r"allowed: cmt_assessment\.v1 or cmt_assessment\.v2"
    ) as refused:
        judgement_of("fill_strategy.v1", "{}")

    assert refused.value.schema_id == "fill_strategy.v1"
