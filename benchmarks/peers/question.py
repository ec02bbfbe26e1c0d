"""The one question that everybody is asked, and its answer: plain data, so that every environment can read it.

It has the shape of what the trading desk asks: little context, five items of evidence with some hundred numbers,
about 3 KB together, and an answer of 1.5 KB.
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
    "decision_timeframe": "1h",
    "last_close": "42089.10",
    "atr": "342.64049",
    "prompted_by": {"kind": "structure_changed", "detail": "1h swing high taken"},
    "position": None,  # a null is common, and dear to whoever must tell it from NaN
    "limits": {"max_distance_percent": 50, "max_distance_atr": 10},
}

_TIMEFRAMES = ["5m", "15m", "1h", "4h", "1d"]

EVIDENCE: list[tuple[str, dict[str, Any]]] = [
    (
        "layers/trend",
        {
            "of": _TIMEFRAMES,
            "bars": [312, 288, 240, 180, 90],
            "direction": ["up", "up", "sideways", "up", "up"],
            "close_vs_ema_21_atr": [0.44903, 0.20409, 0.078694, 0.31127, 1.2042],
            "close_vs_sma_50_atr": [0.28773, 0.21056, -0.10933, 0.88314, 1.9921],
            "ema_21_slope_atr": [0.060726, -0.0084317, 0.008373, 0.11982, 0.20418],
            "range_width_percentile": [1.5, 12.5, 34.2, 55.1, 61.7],
            "structure": ["mixed", "mixed", "rising", "rising", "rising"],
            "swings": {"highs": ["HH HH LH", "HH LH LH", "HH HH", "HH"], "lows": ["LL HL HL", "HL LL HL", "HL"]},
            "volume_skew": [-0.026498, 0.037353, 0.11024, 0.20931, 0.01287],
        },
    ),
    (
        "layers/levels",
        {
            "above": [
                {"level": "fib_38.2", "price": 42109.622, "distance_atr": 0.099149},
                {"level": "round_above", "price": 43000.0, "distance_atr": 2.6587},  # an integral float, likewise
                {"level": "swing_high_1h", "price": 42386.71, "distance_atr": 0.90783},
            ],
            "below": [
                {"level": "fib_50.0", "price": 42024.03, "distance_atr": -0.18989},
                {"level": "pivot_p", "price": 41971.16, "distance_atr": -0.34419},
                {"level": "prior_day_close", "price": 41917.01, "distance_atr": -0.50222},
            ],
            "swings": {
                "highs": [{"price": 42672.25, "touches": 2}, {"price": 42386.71, "touches": 8, "label": "LH"}],
                "lows": [{"price": 41324.47, "touches": 2}, {"price": 41661.35, "touches": 3, "label": "HL"}],
            },
        },
    ),
    (
        "layers/indicators",
        {
            "of": _TIMEFRAMES,
            "rsi_14": [53.986, 51.361, 50.865, 58.113, 61.907],
            "adx_14": [14.927, 10.272, 19.448, 24.012, 31.775],
            "plus_di_14": [20.92, 19.842, 14.995, 27.301, 29.114],
            "minus_di_14": [18.16, 19.823, 19.974, 14.208, 11.563],
            "macd_histogram": [10.308063, 2.8533047, -4.1172006, 18.550214, 61.239407],
            "percent_b": [0.71026, 0.50068, 0.42945, 0.66102, 0.81944],
            "band_width_pct": [0.59843, 1.681, 3.1381, 5.0217, 9.8843],
            "not_available": {"market_breadth": "no source"},
        },
    ),
    (
        "layers/risk",
        {
            "long": {"stops": {"atr_1.0": 41746.46, "atr_1.5": 41575.139, "atr_2.0": 41403.819, "swing": 41661.35}},
            "short": {"stops": {"atr_1.0": 42431.74, "atr_1.5": 42603.061, "atr_2.0": 42774.381, "swing": 42386.71}},
            "reward_to_risk": {"fib_38.2": 0.049575, "round_above": 2.18146, "swing_high_1h": 0.45392},
        },
    ),
    (
        "layers/volatility",
        {
            "of": _TIMEFRAMES,
            "atr_14": [76.111298, 147.5399, 342.64049, 618.20331, 1411.0927],
            "atr_pct": [0.18083, 0.35054, 0.81408, 1.4688, 3.3526],
            "realised_20_annual_pct": [52.629, 55.589, 77.66, 61.274, 58.331],
            "regime": ["quiet", "normal", "normal", "normal", "normal"],
            "not_available": {"implied_volatility": "no source"},
        },
    ),
]
"""As a desk sends it: measures of five timeframes, rounded, as floats."""

_FINDING = {
    "type": "object",
    "required": ["text", "evidence_ids"],
    "additionalProperties": False,
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 400},
        "evidence_ids": {"type": "array", "minItems": 1, "items": {"enum": ["E1", "E2", "E3", "E4", "E5"]}},
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

DATA = json.dumps({"context": CONTEXT, "evidence": [content for _, content in EVIDENCE]}, separators=(",", ":"))
"""Context and evidence as the text that a caller would paste into a prompt."""

QUESTION = f"{DATA}\n\nAnswer with one JSON object under this JSON Schema:\n{json.dumps(SCHEMA)}"

PARSED: dict[str, Any] = json.loads(ANSWER)
