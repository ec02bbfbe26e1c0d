"""The analyst's instructions, held against what they speak of."""

from hashlib import sha256
from importlib.resources import files

from agentic_trading.desk.analysis.analyst import CMT_ASSESSMENT_PROMPT
from agentic_trading.desk.analysis.judgement import POINTING, SCORE_RANGES, Judgement, Layer
from agentic_trading.desk.prompts import load_prompt


def test_the_version_is_the_head_of_the_hash_of_the_shipped_file() -> None:
    raw = (files("agentic_trading.desk.analysis") / "prompts" / "cmt_assessment.v2.md").read_bytes()

    assert CMT_ASSESSMENT_PROMPT.version == sha256(raw).hexdigest()[:16]
    assert load_prompt("agentic_trading.desk.analysis", "cmt_assessment.v2") == CMT_ASSESSMENT_PROMPT


def test_every_part_of_an_answer_is_explained() -> None:
    text = CMT_ASSESSMENT_PROMPT.text

    assert [name for name in Judgement.model_fields if f"`{name}`" not in text and name != "layers"] == []
    assert [name for name in SCORE_RANGES if name not in text] == []


def test_the_layers_that_point_are_kept_apart_from_those_that_do_not() -> None:
    pointing = ", ".join(layer for layer in Layer if layer in POINTING)
    others = ", ".join(layer for layer in Layer if layer not in POINTING)

    assert f"{pointing}: a positive score is bullish" in CMT_ASSESSMENT_PROMPT.text
    assert f"{others}: a positive score speaks for trading now" in CMT_ASSESSMENT_PROMPT.text


def test_a_released_prompt_is_not_edited() -> None:
    assert load_prompt("agentic_trading.desk.analysis", "cmt_assessment.v1").version == "5b7ad76ad223aa25"
