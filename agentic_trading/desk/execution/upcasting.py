"""Answers of every release, read in the form of the present one."""

from agentic_trading.desk.execution.strategy import (
    FILL_STRATEGY,
    FILL_STRATEGY_V1,
    FillChoice,
    FillStrategy,
    FillTerms,
    read_choice,
    read_strategy,
)
from agentic_trading.errors import TradingError


class UnknownFillStrategyVersionError(TradingError, ValueError):
    """No release asked for an answer of this form: `schema_id` names it."""

    def __init__(self, schema_id: str) -> None:
        self.schema_id = schema_id
        super().__init__(f"the schema is {schema_id!r}; allowed: {FILL_STRATEGY_V1} or {FILL_STRATEGY}")


def choice_of(schema_id: str, text: str) -> FillChoice:
    """Return the choice in an answer to a schema; equal answers give equal choices.

    Raises `UnknownReleaseError` for a schema that is not the execution agent's, and pydantic's `ValidationError` for an
    answer that does not fit it.
    """
    if schema_id == FILL_STRATEGY:
        return read_choice(text)
    if schema_id == FILL_STRATEGY_V1:
        return upcast_fill_strategy(read_strategy(text))
    raise UnknownFillStrategyVersionError(schema_id)


def upcast_fill_strategy(old: FillStrategy) -> FillChoice:
    """Return a v1 answer in the form of v2: its terms in full, as no name says what they were."""
    terms = FillTerms.model_validate(old.model_dump(include=set(FillTerms.model_fields)))
    return FillChoice(
        evidence_ids=old.evidence_ids, rationale=old.rationale, fill=terms, confidence=old.confidence
    )
