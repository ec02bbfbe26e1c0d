"""The context and the layers of a question, written to and read from an envelope."""

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
"""The key of a layer's content that names missing figures, each with its reason."""

LAYER_SOURCES: Final[Mapping[str, Layer]] = MappingProxyType({f"layers/{layer}": layer for layer in Layer})
"""The layer of each evidence source."""


class TradeLimits(BaseModel, frozen=True):
    """The limits of a proposed trade's prices.

    Attributes:
        max_distance_percent: The maximum distance of a stop or target from the entry, in percent of the
            entry.
        max_distance_atr: The maximum distance of any price from the last close, in multiples of the ATR.

    """

    max_distance_percent: int = Field(default=50, ge=1, le=50)
    max_distance_atr: int = Field(default=10, ge=1)


class QuestionReason(BaseModel, frozen=True):
    """The reason for a question."""

    kind: str
    detail: str


class Context(BaseModel, frozen=True):
    """The facts that hold for a whole question.

    Attributes:
        timeframes: The timeframes of a row of the evidence, shortest first.
        last_close: The exact last close.
        atr: The ATR of the decision timeframe in units of price, rounded as in the evidence.
        position: The open position. Without one the envelope has no `position`.

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
    """The evidence of one layer, and the name that an answer cites it by."""

    name: str
    content: Any


def evidence_names(envelope: LLMEnvelope) -> tuple[str, ...]:
    """Return the names that an answer cites evidence by: `E1`, `E2`, … in order."""
    return tuple(f"E{place}" for place, _ in enumerate(envelope.retrieved_evidence, start=1))


def evidence_by_layer(envelope: LLMEnvelope) -> dict[Layer, LayerEvidence]:
    """Return the evidence of each layer that has evidence."""
    named = zip(evidence_names(envelope), envelope.retrieved_evidence, strict=True)
    return {
        LAYER_SOURCES[item.source]: LayerEvidence(name, item.content)
        for name, item in named
        if item.source in LAYER_SOURCES
    }


def is_available(content: Any) -> bool:
    """Return whether the content of a layer has more than missing figures."""
    return bool(content) and set(content) != {NOT_AVAILABLE}


def available_layers(envelope: LLMEnvelope) -> frozenset[Layer]:
    """Return the layers with numbers in an envelope."""
    given = evidence_by_layer(envelope)
    return frozenset(layer for layer, evidence in given.items() if is_available(evidence.content))


def not_available(envelope: LLMEnvelope) -> dict[Layer, dict[str, str]]:
    """Return the missing figures by layer, each with its reason.

    A layer without evidence has the figure `evidence`. Figures without a source on this desk are always
    included.
    """
    given = evidence_by_layer(envelope)
    # Envelopes leave out the figures without a source, because the prompt names them once.
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
    """The features of an analyst's envelope. A measure that is not available is None."""

    context: Context
    evidence: Mapping[Layer, LayerEvidence]

    @classmethod
    def of(cls, envelope: LLMEnvelope) -> Self:
        """Read an envelope.

        Raises:
            pydantic.ValidationError: If the context is not the analyst's.

        """
        return cls(Context.model_validate(envelope.context), evidence_by_layer(envelope))

    def content(self, layer: Layer) -> Mapping[str, Any]:
        """Return the evidence of a layer, or an empty mapping."""
        return self.evidence[layer].content if layer in self.evidence else {}

    def row(self, layer: Layer, measure: str) -> list[Any]:
        """Return the values of a measure, shortest timeframe first.

        They begin with the decision timeframe and end with the last timeframe that has the measure.
        """
        frames, decision = self.context.timeframes, self.context.decision_timeframe
        row: list[Any] = self.content(layer).get(measure, [])
        return row[frames.index(decision) :] if decision in frames else []

    def here(self, layer: Layer, measure: str) -> Any:
        """Return a measure on the decision timeframe."""
        return next(iter(self.row(layer, measure)), None)
