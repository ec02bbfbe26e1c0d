"""What came back for a question: a judgement to act on, or why there is none."""

from agentic_trading.canonical import exact_bytes
from agentic_trading.desk.analysis.check import check_cmt_assessment
from agentic_trading.desk.analysis.judgement import Judgement
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.failure import FailureKind, FailureReason
from agentic_trading.llm.result import LLMResult


def read_result(envelope: LLMEnvelope, result: LLMResult) -> Judgement | FailureReason:
    """Return the judgement in the last result for `envelope`, or the reason why there is none to act on.

    Only an actionable result is read, and its rules are checked here once more: a worker that was not
    given the check would have let the answer through.
    """
    if result.failure is not None:
        return result.failure
    if not result.actionable:
        return _not_actionable(result)
    text = exact_bytes(result.parsed_output).decode()
    violations = check_cmt_assessment(envelope, text)
    if violations:
        return FailureReason(
            category=FailureKind.PARSING_ERROR,
            description=f"the answer breaks {len(violations)} rules of the assessment",
            technical_details="; ".join(f"{v.path}: {v.message}" for v in violations),
        )
    return Judgement.model_validate_json(text)


def _not_actionable(result: LLMResult) -> FailureReason:
    details = [*([result.error] if result.error else []), *result.validation_errors]
    return FailureReason(
        category=FailureKind.PARSING_ERROR if result.success else FailureKind.INTERNAL_ERROR,
        description="the call gave no answer that may be acted on",
        technical_details="; ".join(details),
    )
