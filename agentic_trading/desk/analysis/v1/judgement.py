"""What a model gave under `cmt_assessment.v1`: five layers, scored for or against the overall direction."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal, Self

from pydantic import BaseModel, Field, model_validator

from agentic_trading.desk.analysis.judgement import Confidence, Direction, Price


class LayerV1(StrEnum):
    """The five layers that were judged."""

    TREND = "trend"
    LEVELS = "levels"
    INDICATORS = "indicators"
    RISK = "risk"
    VOLATILITY = "volatility"


SCORE_RANGES: Final[Mapping[LayerV1, tuple[int, int]]] = MappingProxyType({
    LayerV1.TREND: (-2, 2),
    LayerV1.LEVELS: (0, 2),
    LayerV1.INDICATORS: (-2, 2),
    LayerV1.RISK: (-1, 1),
    LayerV1.VOLATILITY: (-1, 1),
})
"""How far a layer can speak for the overall direction (positive) or against it (negative)."""

MAX_FINDINGS: Final = 4
FINDING_CHARS: Final = 200
RATIONALE_CHARS: Final = 400


class FindingV1(BaseModel, frozen=True, extra="forbid"):
    """One observation and the evidence (`E1`, `E2`, …) that it rests on."""

    text: str = Field(min_length=1, max_length=FINDING_CHARS)
    evidence_ids: tuple[str, ...] = Field(min_length=1)


class LayerJudgementV1(BaseModel, frozen=True, extra="forbid"):
    """What one layer says; `unavailable` means that its numbers were not given."""

    direction: Direction
    score: int
    confidence: Confidence
    findings: tuple[FindingV1, ...] = Field(max_length=MAX_FINDINGS)
    unavailable: bool


class Layers(BaseModel, frozen=True, extra="forbid"):
    """One judgement for each layer, every score within its range of `SCORE_RANGES`."""

    trend: LayerJudgementV1
    levels: LayerJudgementV1
    indicators: LayerJudgementV1
    risk: LayerJudgementV1
    volatility: LayerJudgementV1

    def by_layer(self) -> Iterator[tuple[LayerV1, LayerJudgementV1]]:
        """Give every layer with its judgement, in the order of `Layer`."""
        for layer in LayerV1:
            yield layer, getattr(self, layer)

    @model_validator(mode="after")
    def _scores_in_range(self) -> Self:
        for layer, judged in self.by_layer():
            least, most = SCORE_RANGES[layer]
            if not least <= judged.score <= most:
                raise ValueError(f"the score of {layer} is {judged.score}; allowed: {least} to {most}")
        return self


class TradeProposalV1(BaseModel, frozen=True, extra="forbid"):
    """A trade in the overall direction; its side, size and reward for risk are not the model's to say.

    All of it is closed at `target` with a gain, or at `stop` with a loss.
    """

    entry: Literal["market"] | Price
    stop: Price
    target: Price
    invalidation: str = Field(min_length=1, max_length=FINDING_CHARS)


class JudgementV1(BaseModel, frozen=True, extra="forbid"):
    """An answer that fits `cmt_assessment.v1`; what its parts must agree on is in `check_cmt_assessment`.

    A model writes in this order: first why, then where to, and only then what each layer adds to it.
    """

    rationale: str = Field(min_length=1, max_length=RATIONALE_CHARS)
    direction: Direction
    confidence: Confidence
    layers: Layers
    trade_plan: TradeProposalV1 | None
