"""The analyst's instructions, held against what they speak of."""

from hashlib import sha256
from importlib.resources import files

from agentic_trading.desk.analysis.judgement import SCORE_RANGES, Judgement
from agentic_trading.desk.analysis.prompts import CMT_ASSESSMENT_PROMPT
from agentic_trading.desk.prompts import load_prompt


def test_the_version_is_the_head_of_the_hash_of_the_shipped_file() -> None:
    raw = (files("agentic_trading.desk.analysis") / "prompts" / "cmt_assessment.v1.md").read_bytes()

    assert CMT_ASSESSMENT_PROMPT.version == sha256(raw).hexdigest()[:16]
    assert load_prompt("agentic_trading.desk.analysis", "cmt_assessment.v1") == CMT_ASSESSMENT_PROMPT


def test_every_part_of_an_answer_is_explained() -> None:
    told = CMT_ASSESSMENT_PROMPT.text

    assert [name for name in Judgement.model_fields if f"`{name}`" not in told and name != "layers"] == []
    assert [name for name in SCORE_RANGES if name not in told] == []


def test_the_ranges_told_are_the_ranges_held() -> None:
    assert SCORE_RANGES == {
        "trend": (-2, 2), "indicators": (-2, 2), "levels": (0, 2), "risk": (-1, 1), "volatility": (-1, 1),
    }  # fmt: skip
    assert "trend and indicators: -2 to 2. levels: 0 to 2" in CMT_ASSESSMENT_PROMPT.text
    assert "risk and volatility: -1 to 1" in CMT_ASSESSMENT_PROMPT.text
