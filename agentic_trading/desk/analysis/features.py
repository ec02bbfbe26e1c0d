"""The numbers of a question, read back from its envelope."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from agentic_trading.desk.analysis.context import Context, LayerEvidence, evidence_by_layer
from agentic_trading.desk.analysis.judgement import Layer
from agentic_trading.llm.envelope import LLMEnvelope


@dataclass(frozen=True, slots=True)
class QuestionFeatures:
    """What an envelope of the analyst tells; a measure that is not available is None."""

    context: Context
    evidence: Mapping[Layer, LayerEvidence]

    @classmethod
    def of(cls, envelope: LLMEnvelope) -> Self:
        """Read an envelope; raises pydantic's `ValidationError` if its context is not the analyst's."""
        return cls(Context.model_validate(envelope.context), evidence_by_layer(envelope))

    def told(self, layer: Layer) -> Mapping[str, Any]:
        """Return what is told of a layer; nothing where its evidence is missing."""
        return self.evidence[layer].content if layer in self.evidence else {}

    def row(self, layer: Layer, measure: str) -> list[Any]:
        """Return a measure on the decision timeframe and those above it, shortest first, as far as it is told."""
        frames, decision = self.context.timeframes, self.context.decision_timeframe
        row: list[Any] = self.told(layer).get(measure, [])
        return row[frames.index(decision) :] if decision in frames else []

    def here(self, layer: Layer, measure: str) -> Any:
        """Return a measure on the decision timeframe."""
        return next(iter(self.row(layer, measure)), None)
