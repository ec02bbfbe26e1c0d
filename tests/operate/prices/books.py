"""Builders for tests of price books: a row of which a test says only what matters, a book of such, another list."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from genai_prices.data_snapshot import DataSnapshot
from genai_prices.types import ClauseStartsWith, ModelInfo, Provider
from genai_prices.types import ModelPrice as ListedPrice

from agentic_trading.governance.prices import ModelPrice, PriceBook
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


def listed(name: str = "claude-a", *, prices: ListedPrice | None = None, **fields: Any) -> ModelInfo:
    """Return a model as genai-prices lists it: at the rates of `price()`, in dollars per million tokens."""
    usd = {"input": "2", "output": "10", "cache_read": "0.2", "cache_write": "2.5", "cache_write_1h": "4"}
    plain = ListedPrice(**{f"{each}_mtok": Decimal(rate) for each, rate in usd.items()})
    return ModelInfo(id=name, match=ClauseStartsWith(starts_with=name), prices=prices or plain, **fields)


def snapshot(*models: ModelInfo) -> DataSnapshot:
    """Return the data of genai-prices with these models of Anthropic alone."""
    provider = Provider(id="anthropic", name="A", api_pattern="https://a", models=list(models))
    return DataSnapshot([provider], from_auto_update=False)


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
