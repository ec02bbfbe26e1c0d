"""The analyst's instructions, held against what they speak of."""

from hashlib import sha256
from importlib.resources import files

from agentic_trading.desk.analysis.analyst import CMT_ASSESSMENT_PROMPT
from agentic_trading.desk.analysis.judgement import POINTING, SCORE_RANGES, Judgement, Layer
from agentic_trading.desk.prompts import load_prompt


def test_prompt_version_is_file_hash_prefix() -> None:
    raw = (files("agentic_trading.desk.analysis") / "prompts" / "cmt_assessment.v2.md").read_bytes()

    assert CMT_ASSESSMENT_PROMPT.version == sha256(raw).hexdigest()[:16]
    assert load_prompt("agentic_trading.desk.analysis", "cmt_assessment.v2") == CMT_ASSESSMENT_PROMPT


def test_prompt_explains_every_answer_field() -> None:
    text = CMT_ASSESSMENT_PROMPT.text

    assert [name for name in Judgement.model_fields if f"`{name}`" not in text and name != "layers"] == []
    assert [name for name in SCORE_RANGES if name not in text] == []


def test_prompt_separates_pointing_layers() -> None:
    pointing = ", ".join(layer for layer in Layer if layer in POINTING)
    others = ", ".join(layer for layer in Layer if layer not in POINTING)

    assert f"{pointing}: a positive score is bullish" in CMT_ASSESSMENT_PROMPT.text
    assert f"{others}: a positive score speaks for trading now" in CMT_ASSESSMENT_PROMPT.text


def test_released_prompt_version_is_pinned() -> None:
    assert load_prompt("agentic_trading.desk.analysis", "cmt_assessment.v1").version == "5b7ad76ad223aa25"
