"""The JSON Schema `fill_strategy.v2`, and the narrower one that a question asks an answer to fit."""

from collections.abc import Collection, Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, Field

from agentic_trading.canonical import exact_value
from agentic_trading.desk.execution.strategy import (
    MOST_EVIDENCE,
    RATIONALE_CHARS,
    Confidence,
    EvidenceId,
    FillStrategy,
    FillTerms,
    closed_schema,
)

FILL_STRATEGY: Final = "fill_strategy.v2"
"""The schema's `$id`: it names the rule that answers it offline, and the check that runs on the answer."""

ASKED_CHARS: Final = 120
"""How long the rationale of an answer may be; the published schema leaves room for older answers."""

ASKED_PATTERN: Final = "^[A-Z][A-Za-z0-9_]* [A-Za-z]"
"""How the rationale of an answer begins: with words. Without it a small model writes digits and nothing else."""

ASKED_CONFIDENCES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

FillName = Literal[
    "take_now", "take_capped", "slices", "slices_slow", "wait_near", "wait_far", "at_plan", "at_plan_brief"
]

Schema = dict[str, Any]


class FillChoice(BaseModel, frozen=True, extra="forbid"):
    """The model's answer: the name of terms that code has computed, how surely, and why.

    Terms in full are those of an answer to `fill_strategy.v1`; no question asks for them any more.
    """

    evidence_ids: tuple[EvidenceId, ...] = Field(min_length=1, max_length=MOST_EVIDENCE)
    rationale: Annotated[str, Field(max_length=RATIONALE_CHARS)]
    fill: FillName | FillTerms
    confidence: Confidence

    def strategy(self, terms: FillTerms) -> FillStrategy:
        """Return the strategy that the choice of `terms` is."""
        return FillStrategy.model_validate({
            **terms.model_dump(),
            "confidence": self.confidence,
            "rationale": self.rationale,
            "evidence_ids": self.evidence_ids,
        })


def read_choice(text: str) -> FillChoice:
    """Read an answer to `fill_strategy.v2`, every number as it was written; raises pydantic's `ValidationError`."""
    return FillChoice.model_validate(exact_value(text.encode()))


def _schema(evidence_ids: Schema, rationale: Schema, fill: Schema, confidence: Schema) -> Mapping[str, Any]:
    properties = {
        "evidence_ids": {"type": "array", "minItems": 1, **evidence_ids},
        "rationale": {"type": "string", **rationale},
        "fill": fill,
        "confidence": {"type": "number", **confidence},
    }
    return MappingProxyType({
        "$id": FILL_STRATEGY,
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    })


def _named(names: Collection[str]) -> Schema:
    return {"type": "string", "enum": [*names]}


@cache
def asked_fill_schema(names: tuple[FillName, ...], evidence: int) -> Mapping[str, Any]:
    """Return what an answer must fit that may choose one of `names`, and cite E1 up to E`evidence`.

    Whatever fits it fits the published schema too, and it bears the same `$id`. Every choice in it is an enum, so
    that a decoder that enforces nothing but types and enums leaves little to go wrong; what must agree stands
    together in the terms that a name means.
    """
    return _schema(
        {"maxItems": evidence, "items": _named([f"E{place}" for place in range(1, evidence + 1)])},
        {"maxLength": ASKED_CHARS, "pattern": ASKED_PATTERN},
        _named(names),
        {"enum": [*ASKED_CONFIDENCES]},
    )


FILL_STRATEGY_SCHEMA: Final[Mapping[str, Any]] = _schema(
    {"maxItems": MOST_EVIDENCE, "items": {"type": "string", "pattern": "^E[1-9][0-9]*$"}},
    {"maxLength": RATIONALE_CHARS},
    {"anyOf": [_named(get_args(FillName)), closed_schema(FillTerms)]},
    {"minimum": 0, "maximum": 1},
)
"""The published schema: every answer of this release fits it, and every v1 answer that was brought up to v2."""
