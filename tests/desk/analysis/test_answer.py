"""What came back: a judgement, or why there is none."""

from functools import cache
from typing import Any

import pytest

from agentic_trading.desk.analysis.analyst import read_result
from agentic_trading.desk.analysis.judgement import Judgement
from agentic_trading.desk.analysis.rules import cmt_assessment_rule
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason
from tests.build import result
from tests.desk.analysis.build import layer, question


@cache  # the market behind it takes a second
def asked() -> LLMEnvelope:
    """Return the question."""
    return question()


def text() -> str:
    """Return the answer of the rules."""
    return cmt_assessment_rule(asked())


def given() -> dict[str, Any]:
    """Return the judgement in the answer of the rules."""
    return Judgement.model_validate_json(text()).model_dump(mode="json", exclude_defaults=True)


def test_accepted_answer_is_read_as_judgement() -> None:
    read = read_result(asked(), result(parsed_output=given(), raw_output=text()))

    assert read == Judgement.model_validate_json(text())


def test_failure_is_returned_unchanged() -> None:
    failure = FailureReason(category=FailureKind.TIMEOUT, description="no answer in 60 s", recoverable=True)

    assert read_result(asked(), result(success=False, failure=failure, parsed_output=given())) == failure


@pytest.mark.parametrize(
    ("changes", "category"),
    [
        ({"validation_passed": False, "parsed_output": {}}, FailureKind.PARSING_ERROR),
        ({"in_doubt": True}, FailureKind.PARSING_ERROR),
        ({"actionable": False}, FailureKind.PARSING_ERROR),
        ({"success": False, "error": "out of memory"}, FailureKind.INTERNAL_ERROR),
    ],
)
def test_unactionable_result_is_no_judgement(changes: dict[str, Any], category: FailureKind) -> None:
    read = read_result(asked(), result(**{"parsed_output": given(), **changes}))

    assert isinstance(read, FailureReason)
    assert read.category is category


def test_failure_details_include_error_and_violations() -> None:
    read = read_result(asked(), result(success=False, error="out of memory", validation_errors=["no JSON"]))

    assert isinstance(read, FailureReason)
    assert read.technical_details == "out of memory; no JSON"


def test_answer_citing_unknown_evidence_is_rejected() -> None:
    forged = {**given(), "layers": {**given()["layers"], "trend": layer(0, "E99")}}

    read = read_result(asked(), result(parsed_output=forged))

    assert isinstance(read, FailureReason)
    assert read.category is FailureKind.PARSING_ERROR
    assert "E99" in read.technical_details
