"""The one question that everybody is asked, and its answer: plain data, so that every environment can read it.

It has the shape of the contract's example of an analysis: a little context, three items of evidence, the first one
candles, with some hundred numbers; 3 KB together, and an answer of 1.5 KB.
"""

import json
from typing import Any

INSTRUCTIONS = (
    "Judge the market from the evidence. Say which way it goes, how sure you are, and why; "
    "cite evidence by its id. Do not compute totals: they are computed for you."
)

CONTEXT: dict[str, Any] = {
    "symbol": "BTCUSDT",
    "timeframes": ["5m", "15m", "1h", "4h", "1d"],
    "regime": "trending_up",
    "portfolio_exposure_pct": 0.15,
    "position": None,  # a null is common, and dear to whoever must tell it from NaN
    "limits": {"max_distance_percent": 50, "max_distance_atr": 10},
}

EVIDENCE: list[tuple[str, dict[str, Any]]] = [
    (
        "candle_history",
        {
            "timeframe": "1h",
            "candles": [
                {
                    "t": f"2026-01-02T{hour:02}:00:00Z",
                    "open": 42_500.0 + 12.5 * hour,  # every other one is integral: spelled 42500, not 42500.0
                    "high": 42_561.35 + 12.5 * hour,
                    "low": 42_448.2 + 12.5 * hour,
                    "close": 42_512.75 + 12.5 * hour,
                    "volume": round(1_317.375 + 41.131 * hour, 3),
                }
                for hour in range(15)
            ],
        },
    ),
    (
        "indicator_values",
        {
            "of": ["5m", "15m", "1h", "4h", "1d"],
            "rsi_14": [53.986, 51.361, 62.3, 58.113, 61.907],
            "adx_14": [14.927, 10.272, 27.448, 24.012, 31.775],
            "atr_14": [76.111298, 147.5399, 342.64049, 618.20331, 1411.0927],
            "ema_12": [42_681.07, 42_660.93, 42_611.35, 42_417.6, 41_876.9],
            "macd_histogram": [10.308063, 2.8533047, -4.1172006, 18.550214, 61.239407],
            "band_width_pct": [0.59843, 1.681, 3.1381, 5.0217, 9.8843],
        },
    ),
    (
        "smc_confluence",
        {
            "order_blocks": [
                {"price": 42_200.5, "type": "bullish", "touches": 3},
                {"price": 42_910.25, "type": "bearish", "touches": 1},
            ],
            "fvg": [{"start": 42_300.1, "end": 42_480.4}, {"start": 42_752.3, "end": 42_790.8}],
            "liquidity": {"above": [42_899.9, 43_105.5], "below": [42_011.2, 41_760.5]},
        },
    ),
]

_FINDING = {
    "type": "object",
    "required": ["text", "evidence_ids"],
    "additionalProperties": False,
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 400},
        "evidence_ids": {"type": "array", "minItems": 1, "items": {"enum": ["E1", "E2", "E3"]}},
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
"evidence_ids": ["E3"]},
    {"text": "Volume rises with each advance and falls with each pause, which is what a trend that is joined, and not \
sold into, looks like; nothing in the bars speaks against it, and the last one closed in its upper third.", \
"evidence_ids": ["E1", "E2"]}
  ]
}"""

DATA = json.dumps(
    {"context": CONTEXT, "evidence": [content for _, content in EVIDENCE]}, separators=(",", ":")
)
"""Context and evidence as the text that a caller would paste into a prompt."""

QUESTION = f"{DATA}\n\nAnswer with one JSON object under this JSON Schema:\n{json.dumps(SCHEMA)}"

PARSED: dict[str, Any] = json.loads(ANSWER)
