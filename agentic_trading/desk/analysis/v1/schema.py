"""The JSON Schema `cmt_assessment.v1`, released and therefore fixed: what an answer had to fit before v2."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, get_args

from agentic_trading.desk.analysis.judgement import PRICE_PATTERN, Confidence, Direction
from agentic_trading.desk.analysis.v1.judgement import (
    FINDING_CHARS,
    MAX_FINDINGS,
    RATIONALE_CHARS,
    SCORE_RANGES,
    LayerV1,
)

CMT_ASSESSMENT_V1: Final = "cmt_assessment.v1"
"""The schema's `$id`: it names the check that runs on the answer."""


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(limit: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": limit}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _layer(layer: LayerV1) -> dict[str, Any]:
    least, most = SCORE_RANGES[layer]
    return _object(
        direction=_ref("direction"),
        # An enum and not bounds: providers that enforce a schema drop bounds, and keep enums.
        score={"type": "integer", "enum": list(range(least, most + 1))},
        confidence=_ref("confidence"),
        findings={"type": "array", "maxItems": MAX_FINDINGS, "items": _ref("finding")},
        unavailable={"type": "boolean"},
    )


def _proposal() -> dict[str, Any]:
    proposal = _object(
        entry={"type": "string", "pattern": f"^(market|{PRICE_PATTERN})$"},
        stop=_ref("price"),
        target=_ref("price"),
        invalidation=_text(FINDING_CHARS),
    )
    return {**proposal, "type": ["object", "null"]}


def _schema() -> dict[str, Any]:
    evidence_ids = {"type": "array", "minItems": 1, "items": {"type": "string"}}
    return {
        "$id": CMT_ASSESSMENT_V1,
        "$defs": {
            "direction": {"type": "string", "enum": [direction.value for direction in Direction]},
            "confidence": {"type": "string", "enum": list(get_args(Confidence))},
            "price": {"type": "string", "pattern": f"^{PRICE_PATTERN}$"},
            "finding": _object(text=_text(FINDING_CHARS), evidence_ids=evidence_ids),
        },
        **_object(
            rationale=_text(RATIONALE_CHARS),
            direction=_ref("direction"),
            confidence=_ref("confidence"),
            layers=_object(**{layer.value: _layer(layer) for layer in LayerV1}),
            trade_plan=_proposal(),
        ),
    }


CMT_ASSESSMENT_V1_SCHEMA: Final[Mapping[str, Any]] = MappingProxyType(_schema())
