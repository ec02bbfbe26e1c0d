"""What the model gives: one judgement a layer, one over all, and a proposed trade."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer, model_validator


class Layer(StrEnum):
    """The layers of a technical analysis that are judged; later releases add patterns, sentiment and others."""

    TREND = "trend"
    LEVELS = "levels"
    INDICATORS = "indicators"
    RISK = "risk"
    VOLATILITY = "volatility"


class Direction(StrEnum):
    """Where the price is expected to go; neutral is a judgement, not the lack of one."""

    BULLISH = "bullish"
    BEARISH = "bearish"
    NEUTRAL = "neutral"

    @property
    def opposite(self) -> "Direction | None":
        """The direction that contradicts this one; neutral contradicts nothing."""
        return _OPPOSITES.get(self)


_OPPOSITES: Final = {Direction.BULLISH: Direction.BEARISH, Direction.BEARISH: Direction.BULLISH}

Confidence = Literal["high", "medium", "low"]

SCORE_RANGES: Final[Mapping[Layer, tuple[int, int]]] = MappingProxyType({
    Layer.TREND: (-2, 2),
    Layer.LEVELS: (0, 2),
    Layer.INDICATORS: (-2, 2),
    Layer.RISK: (-1, 1),
    Layer.VOLATILITY: (-1, 1),
})
"""How far a layer can speak for the overall direction (positive) or against it (negative)."""

MAX_FINDINGS: Final = 4
FINDING_CHARS: Final = 200
RATIONALE_CHARS: Final = 400
PRICE_PATTERN: Final = r"(0|[1-9][0-9]{0,11})(\.[0-9]{1,18})?"

_PRICE: Final = re.compile(PRICE_PATTERN)


def _digits(value: Any) -> Any:
    if isinstance(value, Decimal) or (isinstance(value, str) and _PRICE.fullmatch(value)):
        return value
    raise ValueError("allowed is a price in text of plain digits, such as '27953.83'")


def _spelled(price: Decimal) -> str:
    return f"{price:f}"  # str() would spell a small price with an exponent, which the schema refuses


Price = Annotated[Decimal, BeforeValidator(_digits), PlainSerializer(_spelled, when_used="json")]
"""A price in the quote currency, with the digits that the model wrote."""


class Finding(BaseModel, frozen=True, extra="forbid"):
    """One observation and the evidence (`E1`, `E2`, …) that it rests on."""

    text: str = Field(min_length=1, max_length=FINDING_CHARS)
    evidence_ids: tuple[str, ...] = Field(min_length=1)


class LayerJudgement(BaseModel, frozen=True, extra="forbid"):
    """What one layer says; `unavailable` means that its numbers were not given."""

    direction: Direction
    score: int
    confidence: Confidence
    findings: tuple[Finding, ...] = Field(max_length=MAX_FINDINGS)
    unavailable: bool


class Layers(BaseModel, frozen=True, extra="forbid"):
    """One judgement for each layer, every score within its range of `SCORE_RANGES`."""

    trend: LayerJudgement
    levels: LayerJudgement
    indicators: LayerJudgement
    risk: LayerJudgement
    volatility: LayerJudgement

    def by_layer(self) -> Iterator[tuple[Layer, LayerJudgement]]:
        """Give every layer with its judgement, in the order of `Layer`."""
        for layer in Layer:
            yield layer, getattr(self, layer)

    @model_validator(mode="after")
    def _scores_in_range(self) -> Self:
        for layer, judged in self.by_layer():
            least, most = SCORE_RANGES[layer]
            if not least <= judged.score <= most:
                raise ValueError(f"the score of {layer} is {judged.score}; allowed: {least} to {most}")
        return self


class Proposal(BaseModel, frozen=True, extra="forbid"):
    """A trade in the overall direction; its side, size and reward for risk are not the model's to say.

    All of it is closed at `target` with a gain, or at `stop` with a loss.
    """

    entry: Literal["market"] | Price
    stop: Price
    target: Price
    invalidation: str = Field(min_length=1, max_length=FINDING_CHARS)


class Judgement(BaseModel, frozen=True, extra="forbid"):
    """An answer that fits `cmt_assessment.v1`; what its parts must agree on is in `check_cmt_assessment`.

    A model writes in this order: first why, then where to, and only then what each layer adds to it.
    """

    rationale: str = Field(min_length=1, max_length=RATIONALE_CHARS)
    direction: Direction
    confidence: Confidence
    layers: Layers
    trade_plan: Proposal | None
