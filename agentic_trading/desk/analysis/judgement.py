"""A model's answer: one judgement per layer, one over all, and a choice of trade."""

import re
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer, model_validator

from agentic_trading.llm.fields import Open


class Layer(StrEnum):
    """The nine layers of a technical analysis, in order."""

    TREND = "trend"
    LEVELS = "levels"
    PATTERNS = "patterns"
    INDICATORS = "indicators"
    SENTIMENT = "sentiment"
    RISK = "risk"
    VOLATILITY = "volatility"
    INTERMARKET = "intermarket"
    SYSTEM = "system"


class Direction(StrEnum):
    """The expected direction of the price. Neutral is a judgement, not a missing one."""

    BULLISH = "bullish"
    BEARISH = "bearish"
    NEUTRAL = "neutral"

    @property
    def sign(self) -> int:
        """1 for bullish, -1 for bearish, 0 for neutral."""
        return _SIGNS[self]


_SIGNS: Final = {Direction.BULLISH: 1, Direction.BEARISH: -1, Direction.NEUTRAL: 0}

Confidence = Literal["high", "medium", "low"]

POINTING: Final = frozenset({
    Layer.TREND,
    Layer.PATTERNS,
    Layer.INDICATORS,
    Layer.SENTIMENT,
    Layer.INTERMARKET,
})
"""Layers with a direction: a positive score is bullish. Other layers score for or against trading now."""

SCORE_RANGES: Final[Mapping[Layer, tuple[int, int]]] = MappingProxyType({
    Layer.TREND: (-2, 2),
    Layer.LEVELS: (0, 2),
    Layer.PATTERNS: (-2, 2),
    Layer.INDICATORS: (-2, 2),
    Layer.SENTIMENT: (-1, 1),
    Layer.RISK: (-1, 1),
    Layer.VOLATILITY: (-1, 1),
    Layer.INTERMARKET: (-1, 1),
    Layer.SYSTEM: (-1, 1),
})
"""The lowest and the highest score of each layer."""

FINDING_CHARS: Final = 1_000
RATIONALE_CHARS: Final = 400
EVIDENCE_PATTERN: Final = r"E[1-9][0-9]?"
PRICE_PATTERN: Final = r"(0|[1-9][0-9]{0,11})(\.[0-9]{1,18})?"

EntryName = Literal["market", "pullback"]
StopName = Literal["atr_1.0", "atr_1.5", "atr_2.0", "atr_3.0", "swing"]
TargetName = Literal["atr_2.0", "atr_3.0", "atr_4.0", "atr_6.0", "level_1", "level_2", "level_3", "level_4"]

_PRICE: Final = re.compile(PRICE_PATTERN)


def _digits(value: Any) -> Any:
    if isinstance(value, Decimal) or (isinstance(value, str) and _PRICE.fullmatch(value)):
        return value
    raise ValueError("allowed is a price in text of plain digits, such as '27953.83'")


def _spelled(price: Decimal) -> str:
    return f"{price:f}"  # str() would write a small price with an exponent, which the schema refuses


Price = Annotated[Decimal, BeforeValidator(_digits), PlainSerializer(_spelled, when_used="json")]
"""A price in the quote currency, with the digits of the answer."""


class LayerJudgement(BaseModel, frozen=True, extra="forbid"):
    """The judgement of one layer: a finding, its evidence, and a score in its range.

    `more_evidence` is further evidence. A question does not ask for it.
    """

    finding: str = Field(min_length=1, max_length=FINDING_CHARS)
    evidence: str = Field(pattern=f"^{EVIDENCE_PATTERN}$")
    score: int
    more_evidence: tuple[Annotated[str, Field(pattern=f"^{EVIDENCE_PATTERN}$")], ...] = ()

    @property
    def cited(self) -> tuple[str, ...]:
        """All evidence of the finding."""
        return (self.evidence, *self.more_evidence)


class TradeProposal(BaseModel, frozen=True, extra="forbid"):
    """A trade in the overall direction, by names of candidates or by prices.

    Code decides its side, size and reward for risk. The whole position is closed at `target` with a gain, or
    at `stop` with a loss.
    """

    entry: Open[EntryName | Price]
    stop: Open[StopName | Price]
    target: Open[TargetName | Price]
    invalidation: str | None = Field(default=None, min_length=1, max_length=200)


class Judgement(BaseModel, frozen=True, extra="forbid"):
    """An answer that fits `cmt_assessment.v2`.

    A model writes in this order: the layers, their summary, and a possible trade. `layers` has only layers
    that were asked for. The plan of a neutral answer is not used. `check_cmt_assessment` checks that the
    parts agree.
    """

    layers: Mapping[Open[Layer], LayerJudgement]
    rationale: str = Field(min_length=1, max_length=RATIONALE_CHARS)
    direction: Open[Direction]
    confidence: Open[Confidence]
    trade_plan: TradeProposal | None

    def by_layer(self) -> Iterator[tuple[Layer, LayerJudgement]]:
        """Yield every judged layer, in the order of `Layer`."""
        for layer in Layer:
            if layer in self.layers:
                yield layer, self.layers[layer]

    @model_validator(mode="after")
    def _scores_in_range(self) -> Self:
        for layer, judged in self.by_layer():
            least, most = SCORE_RANGES[layer]
            if not least <= judged.score <= most:
                raise ValueError(f"the score of {layer} is {judged.score}; allowed: {least} to {most}")
        return self


CMT_ASSESSMENT: Final = "cmt_assessment.v2"
"""The schema's `$id`. It names the rules that answer offline, and the check of the answer."""

ASKED_CHARS: Final = 120
"""The maximum length of texts that are asked for. The published schema allows more."""

Schema = dict[str, Any]


def _object(required: Mapping[str, Any], **optional: Any) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def _text(limit: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": limit}


def _one_of(values: Collection[Any]) -> Schema:
    return {"type": "string", "enum": list(values)}


def _score_name(layer: Layer) -> str:
    least, most = SCORE_RANGES[layer]
    return f"from_{least}_to_{most}".replace("-", "minus_")


def _layer(layer: Layer, finding: Schema, evidence: Schema, **optional: Any) -> Schema:
    least, most = SCORE_RANGES[layer]
    # An enum, because providers that enforce a schema drop bounds and keep enums.
    score = {"type": "integer", "enum": list(range(least, most + 1))}
    return _object({"finding": finding, "evidence": evidence, "score": score}, **optional)


def _schema(layers: Schema, defs: Schema, rationale: Schema, plan: Schema) -> Mapping[str, Any]:
    whole = _object({
        "layers": layers,
        "rationale": rationale,
        "direction": _one_of([direction.value for direction in Direction]),
        "confidence": _one_of(get_args(Confidence)),
        "trade_plan": plan,
    })
    return MappingProxyType({"$id": CMT_ASSESSMENT, "$defs": defs, **whole})


def _published() -> Mapping[str, Any]:
    evidence = {"type": "string", "pattern": f"^{EVIDENCE_PATTERN}$"}
    more = {"type": "array", "items": evidence}
    defs = {
        _score_name(layer): _layer(layer, _text(FINDING_CHARS), evidence, more_evidence=more)
        for layer in Layer
    }
    layers = _object({}, **{layer.value: {"$ref": f"#/$defs/{_score_name(layer)}"} for layer in Layer})
    plan = _object(
        {"entry": _priced(EntryName), "stop": _priced(StopName), "target": _priced(TargetName)},
        invalidation={**_text(200), "type": ["string", "null"]},
    )
    return _schema(layers, defs, _text(RATIONALE_CHARS), {**plan, "type": ["object", "null"]})


def _priced(names: Any) -> Schema:
    listed = "|".join(name.replace(".", r"\.") for name in get_args(names))
    return {"type": "string", "pattern": f"^({listed}|{PRICE_PATTERN})$"}


@cache
def asked_assessment_schema(layers: frozenset[Layer]) -> Mapping[str, Any]:
    """Return the schema of an answer about `layers`, with short texts and price names.

    An answer that fits it also fits the published schema, which has the same `$id`.
    """
    # Every choice is an enum, because some decoders enforce only types and enums.
    asked = [layer for layer in Layer if layer in layers]
    names = _one_of([f"E{place}" for place, layer in enumerate(Layer, start=1) if layer in layers])
    # Evidence names are defined once, because each name would otherwise cost a token or two per layer.
    evidence = {"$ref": "#/$defs/evidence"}
    defs = {_score_name(layer): _layer(layer, _text(ASKED_CHARS), evidence) for layer in asked}
    defs["evidence"] = names
    refs = {layer.value: {"$ref": f"#/$defs/{_score_name(layer)}"} for layer in asked}
    plan = _object({
        "entry": _one_of(get_args(EntryName)),
        "stop": _one_of(get_args(StopName)),
        "target": _one_of(get_args(TargetName)),
    })
    return _schema(_object(refs), defs, _text(ASKED_CHARS), plan)


CMT_ASSESSMENT_SCHEMA: Final = _published()
"""The published schema. Every answer to a question of the analyst fits it."""

CMT_RESPONSE_SCHEMA: Final = CMT_ASSESSMENT_SCHEMA
"""Another name of `CMT_ASSESSMENT_SCHEMA`, from the first design."""
