"""Answers of every release, read in the form of the present one."""

from agentic_trading.desk.analysis.judgement import CMT_ASSESSMENT, Judgement
from agentic_trading.desk.analysis.v1.judgement import JudgementV1
from agentic_trading.desk.analysis.v1.schema import CMT_ASSESSMENT_V1
from agentic_trading.desk.analysis.v1.upcaster import upcast_assessment
from agentic_trading.errors import TradingError


class UnknownAssessmentVersionError(TradingError, ValueError):
    """No release asked for an answer of this form: `schema_id` names it."""

    def __init__(self, schema_id: str) -> None:
        self.schema_id = schema_id
        super().__init__(f"the schema is {schema_id!r}; allowed: {CMT_ASSESSMENT_V1} or {CMT_ASSESSMENT}")


def judgement_of(schema_id: str, text: str) -> Judgement:
    """Return the judgement in an answer to a schema; equal answers give equal judgements.

    Raises `UnknownReleaseError` for a schema that is not the analyst's, and pydantic's `ValidationError` for an answer
    that does not fit it.
    """
    if schema_id == CMT_ASSESSMENT:
        return Judgement.model_validate_json(text)
    if schema_id == CMT_ASSESSMENT_V1:
        return upcast_assessment(JudgementV1.model_validate_json(text))
    raise UnknownAssessmentVersionError(schema_id)
