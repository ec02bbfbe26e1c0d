"""An invoice as the side that answers writes it: its own price list, its own arithmetic, nothing of ours."""

import threading
from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Any

NANO_PER_MTOK = 1_000
"""Nano-dollars a token that one dollar per million tokens comes to."""


class Invoice:
    """What a stub has billed; it may be written from many threads.

    `usd_per_mtok` is the price list: model, then class of token, then dollars per million tokens as a text.
    """

    def __init__(self, usd_per_mtok: Mapping[str, Mapping[str, str]]) -> None:
        self._prices = usd_per_mtok
        self._lines: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def bill(self, call: str, model: str, tokens: Mapping[str, int], *, times: str = "1") -> None:
        """Add one line: `tokens` by class at the list's prices, `times` a surcharge, rounded up to a nano-dollar."""
        prices = self._prices[model]
        plain = sum(Fraction(prices[kind]) * count * NANO_PER_MTOK for kind, count in tokens.items())
        line = {"call": call, "model": model, "tokens": dict(tokens), "nusd": ceil(plain * Fraction(times))}
        with self._lock:
            self._lines.append(line)

    def page(self) -> dict[str, Any]:
        """Return the lines so far, in the order in which they were billed, and their sum."""
        with self._lock:
            lines = list(self._lines)
        return {"total_nusd": sum(line["nusd"] for line in lines), "lines": lines}
