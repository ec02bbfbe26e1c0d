"""The order that everybody reads, and its two schemas: plain data, so that every environment can use it."""

import json
from typing import Any

_LEG = {
    "type": "object",
    "required": ["limit_price", "qty"],
    "additionalProperties": False,
    "properties": {
        "limit_price": {"type": "number", "exclusiveMinimum": 0},
        "qty": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
        "post_only": {"type": "boolean"},
        "note": {"type": "string", "maxLength": 120},
    },
}

PROPERTIES: dict[str, Any] = {
    "symbol": {"type": "string", "minLength": 1, "maxLength": 20},
    "side": {"enum": ["BUY", "SELL"]},
    "qty": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
    "order_type": {"enum": ["MARKET", "LIMIT", "STOP_LIMIT"]},
    "limit_price": {"type": "number", "exclusiveMinimum": 0},
    "stop_loss": {"type": "number", "exclusiveMinimum": 0},
    "take_profit": {"type": "array", "maxItems": 4, "items": {"type": "number", "exclusiveMinimum": 0}},
    "tif": {"enum": ["GTC", "IOC", "FOK"]},
    "reduce_only": {"type": "boolean"},
    "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    "legs": {"type": "array", "minItems": 1, "maxItems": 6, "items": _LEG},
    "rationale": {"type": "string", "maxLength": 2000},
    "next_action": {"enum": ["submit", "wait"]},
}

_OBJECT = {"type": "object", "additionalProperties": False, "properties": PROPERTIES}
_TICKET = {
    "symbol": {"type": "string"},
    "side": {"enum": ["BUY", "SELL"]},
    "qty": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
    "reduce_only": {"type": "boolean"},
    "stop": {"type": ["number", "null"]},
    "note": {"type": "string"},
    "tags": {"type": "array", "items": {"type": "string"}},
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "typical": {"$id": "order_typical.v1", **_OBJECT, "required": ["symbol", "side", "qty"]},
    "full": {"$id": "order_full.v1", **_OBJECT, "required": list(PROPERTIES)},
    "ticket": {
        "$id": "ticket.v1",
        "type": "object",
        "additionalProperties": False,
        "properties": _TICKET,
        "required": list(_TICKET),
    },
}
"""`typical`: 3 of 13 properties are required. `full`: all, and the last one is an enum, which no cut text has whole.
`ticket`: the small order of the slips."""

RATIONALE = (
    "The four-hour trend is up: the fast average (12) stands above the slow one (26) since Tuesday, and each pull-back "
    "was bought earlier than the last. It's the desk's #1 setup by R:R, 2.4 after fees; see https://desk.example/book?id=7 "
    'for the ladder. The book shows "iceberg" bids at 42,150 and 42,200, so the stop stands below both, not at a round '
    "number. Funding is 0.01% per 8 h: holding for three days costs less than a tick of slippage // and volume agrees. "
    "What would make this wrong: a close below 41,880 on the hour, or open interest that falls while price rises. "
    "Entries are split over four legs {near, mid, deep, last}, the smallest first, since the spread widens at the "
    "session's end; the rest of the size waits for a retest [42,310-42,360]. If the retest doesn't come within six "
    "bars, cancel what is left, and don't chase. Exits: a third at each target, the remainder trails by 1.5 ATR. "
    "Against it: the daily RSI (68) is near its high of May, the dollar index turned up at 14:00 UTC, and Friday's options "
    "(max pain 41,500) may pull the price down; half size would be a fair answer to that, too. None of these was enough: "
    "the last three such weeks ended 1.9% higher, at a draw-down of 0.8%."
)

EXPECTED: dict[str, Any] = {
    "symbol": "BTCUSDT",
    "side": "BUY",
    "qty": 1.75,
    "order_type": "LIMIT",
    "limit_price": 42500.5,
    "stop_loss": 41889.25,
    "take_profit": [43120, 43685.5, 44210.75],
    "tif": "GTC",
    "reduce_only": False,
    "confidence": 0.62,
    "legs": [
        {
            "limit_price": 42500.5,
            "qty": 0.15,
            "post_only": True,
            "note": "near: half a tick below the last trade, 'cause the queue is short",
        },
        {
            "limit_price": 42455,
            "qty": 0.35,
            "post_only": True,
            "note": "mid: under the bid at 42,460 that was refilled twice today",
        },
        {
            "limit_price": 42398.75,
            "qty": 0.5,
            "post_only": True,
            "note": 'deep: above the four-hour average, the "line in the sand"',
        },
        {
            "limit_price": 42310.1,
            "qty": 0.75,
            "post_only": False,
            "note": "last: only if leg #3 is filled, else cancel after 6 bars",
        },
    ],
    "rationale": RATIONALE,
    "next_action": "submit",
}

ORDER = json.dumps(EXPECTED)
"""2 KB as a model writes them."""


def _quoted_singly(value: Any) -> str:
    r"""Spell JSON with every string in single quotes: apostrophes become \', double quotes stand as they are."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted_singly(k)}: {_quoted_singly(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_quoted_singly, value)) + "]"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return json.dumps(value)


_INDENTED = json.dumps(EXPECTED, indent=2)
TEXTS: dict[str, str] = {
    "plain": ORDER,
    "fenced": f"```json\n{ORDER}\n```",
    "prose": f"Here is the order that you asked for:\n\n{ORDER}\n\nTell me if the size should be smaller.",
    "trailing comma": ORDER[:-1] + ",}",
    "single quotes": _quoted_singly(EXPECTED),
    "comments": _INDENTED
    .replace('"stop_loss"', '// below both bids, not at a round number\n  "stop_loss"')
    .replace('"tif"', '# good until cancelled\n  "tif"')
    .replace('"legs"', '/* the smallest first */\n  "legs"'),
    "bare keys": "{" + ", ".join(f"{key}: {json.dumps(value)}" for key, value in EXPECTED.items()) + "}",
}
"""The one order in the ways that models write it."""
