"""A model's answer on the standard input of `parse`."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, Ended

PROGRAM = Path(sys.executable).parent / "agentic-trading"
ORDER = {
    "type": "object",
    "properties": {"side": {"enum": ["BUY", "SELL"]}, "qty": {"type": "number", "exclusiveMinimum": 0}},
    "required": ["side", "qty"],
    "additionalProperties": False,
}
GOOD = '{"side": "BUY", "qty": 0.10}'

Piped = Callable[..., Ended]


def piping(command: Command, monkeypatch: pytest.MonkeyPatch) -> Piped:
    """Return a function that pipes a text or bytes into `parse`; order.json and the folder schemas are there then."""
    Path("schemas").mkdir()
    for file in (Path("order.json"), Path("schemas/order.json")):
        file.write_text(json.dumps(ORDER), encoding="utf-8")

    def piped(raw: str | bytes, *words: object) -> Ended:
        content = raw if isinstance(raw, bytes) else raw.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        return command("parse", *words)

    return piped


def records(*members: dict[str, Any]) -> str:
    """Return records, one a line."""
    return "".join(f"{json.dumps(each)}\n" for each in members)
