"""Builders for tests of price books: a row of which a test says only what matters, a book of such, another source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

from agentic_trading.app.prices.listing import Listing
from agentic_trading.governance.prices import ModelPrice, PriceBook
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.models import DatedTable
from tests.build import interaction

TODAY = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)

SENT = datetime(2026, 11, 21, 12, tzinfo=UTC)
"""When `call()` was sent: a day of the packaged book."""

_PACKAGED = PriceBook.load()

RATES = {"input": 2000, "output": 10_000, "cache_read": 200, "cache_write_5m": 2500, "cache_write_1h": 4000}


def price(**changes: Any) -> ModelPrice:
    """Return a price; `changes` are fields of `ModelPrice`."""
    whose = {"provider": "anthropic", "model": "claude-a", "valid_from": "2026-01-01"}
    return ModelPrice.model_validate(
        RATES | whose | {"source": "a test", "checked_on": "2026-01-02"} | changes
    )


def book(*prices: ModelPrice) -> PriceBook:
    """Return a book of these prices."""
    return PriceBook(DatedTable(Path("own.json"), prices, {"name": "own"}, "0" * 64))


def listed(**rates: int) -> Listing:
    """Return what another source lists: the rates of `price()` but for these."""
    return Listing({(0, name): Fraction(rate) for name, rate in (RATES | rates).items()}, {})


@dataclass(frozen=True, slots=True)
class Listings:
    """A source that lists models of one provider."""

    listings: Mapping[str, Listing]
    source: str = "another list 1.0"
    of: LLMProvider = field(default=LLMProvider.ANTHROPIC)

    def listing(self, provider: LLMProvider, model: str, *, at: datetime) -> Listing | None:
        return self.listings.get(model) if provider == self.of else None

    def models(self, provider: LLMProvider) -> tuple[str, ...]:
        return tuple(self.listings) if provider == self.of else ()


def call(**changes: Any) -> LLMInteraction:
    """Return a call that read 1000 tokens from the cache of claude-sonnet-5-5, priced on 21 November 2026."""
    fields = {
        "price_book": _PACKAGED.id,
        "dispatched_at": SENT,
        "model_requested": "claude-sonnet-5-5",
        "cost_nusd": 100_000,
        "cache_read_tokens": 1000,
        "input_tokens": 0,
        "output_tokens": 0,
    }
    return interaction(**{**fields, **changes})
