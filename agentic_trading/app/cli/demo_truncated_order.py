"""The third act of the demo: an order that was cut off, and what becomes of it."""

from collections.abc import Iterable
from typing import Any, Final

import orjson
from rich.table import Table
from rich.text import Text

from agentic_trading.app.cli.output import heading, paragraph, print_table
from agentic_trading.canonical import exact_bytes
from agentic_trading.llm.presets import output_policy
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import Usage
from agentic_trading.structured.validation import validate
from agentic_trading.structured.engine import read
from agentic_trading.structured.outcome import Accepted, Rejected

ORDER: Final = (
    '{"symbol": "BTCUSDT", "side": "BUY", "qty": 0.15, "limit_price": 42500.5, "reduce_only": true, '
    '"stop_loss": 41200, "veto": false, "note": "Above the weekly pivot; stop below the last swing low."}'
)
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "symbol": {"type": "string"},
        "side": {"enum": ["BUY", "SELL"]},
        "qty": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
        "limit_price": {"type": "number", "exclusiveMinimum": 0},
        "reduce_only": {"type": "boolean"},
        "stop_loss": {"type": "number", "exclusiveMinimum": 0},
        "veto": {"type": "boolean"},
        "note": {"type": "string"},
    },
    "required": ["symbol", "side", "qty"],
    "additionalProperties": False,
}
CUT_AT: Final = ORDER.index("0.15") + len("0.1")
REPAIRED: Final = {"symbol": "BTCUSDT", "side": "BUY", "qty": 0.1}
"""What json-repair 0.64.5 makes of the cut order: a test compares it with what it does make."""
REPAIRED_CUTS: Final = 131
"""At how many of the places json-repair 0.64.5 makes an object of the cut order that fits the schema and is wrong."""


def a_cut_order() -> bool:
    """Cut an order at every place and read what is left; True if nothing of it is taken for an order."""
    cut = ORDER[:CUT_AT]
    outcome = _read(cut)
    cuts = range(len(ORDER))
    taken = sum(isinstance(_read(ORDER[:place]), Accepted) for place in cuts)
    repaired, repaired_cuts, source = _repaired(cut)
    lines = (
        ("the model meant", ORDER, ""),
        ("what arrived", cut, ""),
        ("json-repair reads", orjson.dumps(repaired).decode(), "red"),
        ("", "a valid order by its schema, for another quantity, without its stop", ""),
        ("this package reads", _verdict(outcome), "green"),
    )
    print_table(
        heading("Act 3: an answer that was cut off"),
        _labelled(lines),
        Text(),
        paragraph(
            f"Cut at each of its {len(cuts)} places, json-repair makes {repaired_cuts} valid orders that nobody meant "
            f"{source}; taken here: {taken}."
        ),
    )
    return taken == 0 and isinstance(_read(ORDER), Accepted) and isinstance(outcome, Rejected)


def _labelled(lines: Iterable[tuple[str, str, str]]) -> Table:
    """Return texts beside their labels, each in its style."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for label, text, style in lines:
        grid.add_row(f"  {label}", Text(text, style))
    return grid


def _read(text: str) -> Accepted | Rejected:
    response = ModelResponse(text=text, stop_reason="end_turn", usage=Usage(), model="demo")
    return read(response, SCHEMA, output_policy())


def _verdict(outcome: Accepted | Rejected) -> str:
    if isinstance(outcome, Accepted):
        return outcome.text
    return f"{outcome.trace.verdict}: {outcome.errors[0].message}"


def _repaired(cut: str) -> tuple[Any, int, str]:
    """Return what json-repair makes of the cut order and how often it fits: now if it is here, else as it was measured."""
    try:
        import json_repair
    except ImportError:
        return REPAIRED, REPAIRED_CUTS, "(version 0.64.5, measured before; it is not installed here)"
    guesses = [json_repair.loads(ORDER[:place]) for place in range(len(ORDER))]
    meant = orjson.loads(ORDER)
    wrong = [guess for guess in guesses if guess != meant and isinstance(guess, dict) and _fits(guess)]
    return json_repair.loads(cut), len(wrong), "(measured now)"


def _fits(guess: Any) -> bool:
    return not validate(orjson.loads(exact_bytes(guess)), SCHEMA)
