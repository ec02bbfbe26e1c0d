"""The context and the layers of a question, as written into an envelope and as read back."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, Self

from pydantic import BaseModel, Field

from agentic_trading.desk.analysis.judgement import Layer
from agentic_trading.desk.exchange import Position
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.layers.features import UNSOURCED
from agentic_trading.llm.envelope import LLMEnvelope

NOT_AVAILABLE: Final = "not_available"
"""Where the content of a layer names what is missing, each with its reason."""

LAYER_SOURCES: Final[Mapping[str, Layer]] = MappingProxyType({f"layers/{layer}": layer for layer in Layer})
"""The source that an evidence item of each layer bears."""


class TradeLimits(BaseModel, frozen=True):
    """How far a proposed trade may reach.

    No price further from the last close than `max_distance_atr` times the ATR, no stop or target further
    from the entry than `max_distance_percent` of it.
    """

    max_distance_percent: int = Field(default=50, ge=1, le=50)
    max_distance_atr: int = Field(default=10, ge=1)


class QuestionReason(BaseModel, frozen=True):
    """Why the question is asked now."""

    kind: str
    detail: str


class Context(BaseModel, frozen=True):
    """What holds for the whole question.

    `timeframes` are those of a row of the evidence, shortest first. `last_close` is exact; `atr` is that of the
    decision timeframe, in units of price, rounded as in the evidence. Without an open position there is no
    `position` in the envelope.
    """

    symbol: str
    decision_timeframe: Timeframe
    timeframes: tuple[Timeframe, ...]
    last_close: Decimal = Field(gt=0)
    atr: Decimal = Field(gt=0)
    prompted_by: QuestionReason
    position: Position | None = None
    limits: TradeLimits


@dataclass(frozen=True, slots=True)
class LayerEvidence:
    """The evidence of one layer, and the name by which an answer may cite it."""

    name: str
    content: Any


def evidence_names(envelope: LLMEnvelope) -> tuple[str, ...]:
    """Return the names by which an answer may cite the evidence: `E1`, `E2`, … in order of place."""
    return tuple(f"E{place}" for place, _ in enumerate(envelope.retrieved_evidence, start=1))


def evidence_by_layer(envelope: LLMEnvelope) -> dict[Layer, LayerEvidence]:
    """Return the evidence of each layer that has any."""
    named = zip(evidence_names(envelope), envelope.retrieved_evidence, strict=True)
    return {
        LAYER_SOURCES[item.source]: LayerEvidence(name, item.content)
        for name, item in named
        if item.source in LAYER_SOURCES
    }


def is_available(content: Any) -> bool:
    """Return whether the content of a layer holds anything but what is missing."""
    return bool(content) and set(content) != {NOT_AVAILABLE}


def available_layers(envelope: LLMEnvelope) -> frozenset[Layer]:
    """Return the layers whose numbers an envelope gives."""
    given = evidence_by_layer(envelope)
    return frozenset(layer for layer, evidence in given.items() if is_available(evidence.content))


def not_available(envelope: LLMEnvelope) -> dict[Layer, dict[str, str]]:
    """Return what is missing, by layer, each with its reason; a layer without evidence says `evidence`.

    What this desk has no source for is in it always, though an envelope spends no words on it.
    """
    given = evidence_by_layer(envelope)
    missing = {
        layer: {
            **(given[layer].content.get(NOT_AVAILABLE, {}) if layer in given else {"evidence": "not given"}),
            **UNSOURCED.get(layer, {}),
        }
        for layer in Layer
    }
    return {layer: reasons for layer, reasons in missing.items() if reasons}


@dataclass(frozen=True, slots=True)
class QuestionFeatures:
    """What an envelope of the analyst gives; a measure that is not available is None."""

    context: Context
    evidence: Mapping[Layer, LayerEvidence]

    @classmethod
    def of(cls, envelope: LLMEnvelope) -> Self:
        """Read an envelope; raises pydantic's `ValidationError` if its context is not the analyst's."""
        return cls(Context.model_validate(envelope.context), evidence_by_layer(envelope))

    def content(self, layer: Layer) -> Mapping[str, Any]:
        """Return the evidence of a layer; nothing where it is missing."""
        return self.evidence[layer].content if layer in self.evidence else {}

    def row(self, layer: Layer, measure: str) -> list[Any]:
        """Return a measure on the decision timeframe and those above it, shortest first, as far as it is given."""
        frames, decision = self.context.timeframes, self.context.decision_timeframe
        row: list[Any] = self.content(layer).get(measure, [])
        return row[frames.index(decision) :] if decision in frames else []

    def here(self, layer: Layer, measure: str) -> Any:
        """Return a measure on the decision timeframe."""
        return next(iter(self.row(layer, measure)), None)
