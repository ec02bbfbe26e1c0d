"""The JSON Schema `cmt_assessment.v2`, and the narrower one that a question asks an answer to fit."""

from collections.abc import Collection, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, get_args

from agentic_trading.desk.analysis.judgement import (
    EVIDENCE_PATTERN,
    FINDING_CHARS,
    PRICE_PATTERN,
    RATIONALE_CHARS,
    SCORE_RANGES,
    Confidence,
    Direction,
    EntryName,
    Layer,
    StopName,
    TargetName,
)

CMT_ASSESSMENT: Final = "cmt_assessment.v2"
"""The schema's `$id`: it names the rules that answer it offline, and the check that runs on the answer."""

ASKED_CHARS: Final = 120
"""How long a finding and the rationale of an answer may be; the published schema leaves room for older answers."""

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
    # An enum and not bounds: providers that enforce a schema drop bounds, and keep enums.
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
    """Return what an answer about `layers` must fit: all of them, short texts, and names in place of prices.

    Whatever fits it fits the published schema too, and it bears the same `$id`. Every choice in it is an enum, so
    that a decoder that enforces nothing but types and enums leaves little to go wrong.
    """
    asked = [layer for layer in Layer if layer in layers]
    names = _one_of([f"E{place}" for place, layer in enumerate(Layer, start=1) if layer in layers])
    evidence = {"$ref": "#/$defs/evidence"}  # told once: told in words, each name is a token or two
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
"""The published schema: every answer of this release fits it, and every v1 answer that was brought up to v2."""
