"""The one question that everybody is asked, and its answer: plain data, so that every environment can read it."""

from typing import Any

INSTRUCTIONS = (
    "Judge the market from the bars and the evidence. Say which way it goes, how sure you are, and why; "
    "cite evidence by its id. Do not compute totals: they are computed for you."
)

BARS: list[dict[str, Any]] = [
    {
        "t": f"2026-01-02T{minute // 60:02}:{minute % 60:02}:00Z",
        "o": 42_000.5 + minute,
        "h": 42_012.25 + minute,
        "l": 41_991.75 + minute,
        "c": 42_004.1 + minute,
        "v": round(17.375 + minute * 0.731, 3),
    }
    for minute in range(0, 120, 5)
]

CONTEXT: dict[str, Any] = {
    "symbol": "BTCUSDT",
    "timeframe": "5m",
    "last_close": "42089.10",
    "position": None,  # a null is common, and dear to whoever must tell it from NaN
    "limits": {"max_distance_percent": 50, "max_distance_atr": 10},
    "bars": BARS,
}

EVIDENCE: list[tuple[str, dict[str, Any]]] = [
    ("layers/trend", {"ema_20": 42_011.35, "ema_50": 41_876.9, "adx_14": 27.4, "slope": 0.0123, "side": "up"}),
    ("layers/momentum", {"rsi_14": 62.3, "macd": 41.2, "macd_signal": 36.75, "crossed": True, "bars_ago": 3}),
    ("layers/volatility", {"atr_14": 45.02, "band_width": 0.0174, "squeeze": False, "percentile": 63}),
    ("layers/levels", {"support": ["41890.00", "41760.50"], "resistance": ["42150.00"], "pivot": "42010.40"}),
]

_FINDING = {
    "type": "object",
    "required": ["text", "evidence_ids"],
    "additionalProperties": False,
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 400},
        "evidence_ids": {"type": "array", "minItems": 1, "items": {"enum": ["E1", "E2", "E3", "E4"]}},
    },
}

SCHEMA: dict[str, Any] = {
    "$id": "bench_assessment.v1",
    "type": "object",
    "required": ["rationale", "direction", "confidence", "score", "stop", "findings"],
    "additionalProperties": False,
    "properties": {
        "rationale": {"type": "string", "minLength": 1, "maxLength": 1000},
        "direction": {"enum": ["long", "short", "none"]},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "score": {"type": "integer", "minimum": -5, "maximum": 5},
        "stop": {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?$"},
        "findings": {"type": "array", "minItems": 1, "maxItems": 8, "items": _FINDING},
    },
}

ANSWER = """{
  "rationale": "The five-minute chart makes higher highs and higher lows since midnight, the fast average stands above \
the slow one and the distance between them grows, while the directional index says that the move has strength. \
Momentum agrees, without being stretched; bands have opened, but volatility is not at an extreme. Price stands in the \
middle between the last support and the next resistance, so that the reward still pays for the risk.",
  "direction": "long",
  "confidence": 0.62,
  "score": 3,
  "stop": "41889.50",
  "findings": [
    {"text": "The fast average stands above the slow one, and both rise: the trend of this timeframe is up.", \
"evidence_ids": ["E1"]},
    {"text": "The directional index is above 25, which is where a trend is taken for one and not for noise.", \
"evidence_ids": ["E1", "E3"]},
    {"text": "RSI is above 60 and below 70; MACD crossed its signal three bars ago and has moved away from it since.", \
"evidence_ids": ["E2"]},
    {"text": "Band width is in its sixty-third percentile: no squeeze is left to break out of, and none is near.", \
"evidence_ids": ["E3"]},
    {"text": "The next resistance is further away than the stop below the nearest support, by a factor of two.", \
"evidence_ids": ["E4"]},
    {"text": "Volume rises with each advance and falls with each pause, which is what a trend that is joined, and not \
sold into, looks like; nothing in the bars speaks against it, and the last one closed in its upper third.", \
"evidence_ids": ["E1", "E2"]}
  ]
}"""
