"""What came back: a judgement, or why there is none."""

from typing import Any

import pytest

from agentic_trading.desk.analysis.analyst import read_result
from agentic_trading.desk.analysis.judgement import Judgement
from agentic_trading.desk.analysis.rules import cmt_assessment_rule
from agentic_trading.llm.errors import FailureKind, FailureReason
from tests.build import result
from tests.desk.analysis.build import layer, question

ASKED = question()
TEXT = cmt_assessment_rule(ASKED)
GIVEN = Judgement.model_validate_json(TEXT).model_dump(mode="json", exclude_defaults=True)


def test_an_accepted_answer_is_the_judgement_in_it() -> None:
    read = read_result(ASKED, result(parsed_output=GIVEN, raw_output=TEXT))

    assert read == Judgement.model_validate_json(TEXT)


def test_a_failure_is_handed_on_as_it_is() -> None:
    failure = FailureReason(category=FailureKind.TIMEOUT, description="no answer in 60 s", recoverable=True)

    assert read_result(ASKED, result(success=False, failure=failure, parsed_output=GIVEN)) == failure


@pytest.mark.parametrize(
    ("changes", "category"),
    [
        ({"validation_passed": False, "parsed_output": {}}, FailureKind.PARSING_ERROR),
        ({"in_doubt": True}, FailureKind.PARSING_ERROR),
        ({"actionable": False}, FailureKind.PARSING_ERROR),
        ({"success": False, "error": "out of memory"}, FailureKind.INTERNAL_ERROR),
    ],
)
def test_what_may_not_be_acted_on_is_no_judgement(changes: dict[str, Any], category: FailureKind) -> None:
    read = read_result(ASKED, result(**{"parsed_output": GIVEN, **changes}))

    assert isinstance(read, FailureReason)
    assert read.category is category


def test_the_reason_says_what_the_result_says_of_itself() -> None:
    read = read_result(ASKED, result(success=False, error="out of memory", validation_errors=["no JSON"]))

    assert isinstance(read, FailureReason)
    assert read.technical_details == "out of memory; no JSON"


def test_an_answer_that_a_worker_let_through_unchecked_is_refused_here() -> None:
    forged = {**GIVEN, "layers": {**GIVEN["layers"], "trend": layer(0, "E99")}}

    read = read_result(ASKED, result(parsed_output=forged))

    assert isinstance(read, FailureReason)
    assert read.category is FailureKind.PARSING_ERROR
    assert "E99" in read.technical_details
