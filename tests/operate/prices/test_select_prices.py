"""Prices are selected by model and provider."""

import pytest

from agentic_trading.cli.model_tables import select_prices
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.platform.errors import OptionError
from tests.operate.prices.books import TODAY, book, price

BOOK = book(price(), price(model="claude-b"), price(provider="local"))


@pytest.mark.parametrize(
    ("model", "provider", "found"),
    [
        ("", "", ["anthropic/claude-a", "anthropic/claude-b", "local/claude-a"]),
        ("", "local", ["local/claude-a"]),
        ("claude-a", "", ["anthropic/claude-a", "local/claude-a"]),
        ("local/claude-a", "", ["local/claude-a"]),
        ("claude-a", "anthropic", ["anthropic/claude-a"]),
    ],
)
def test_prices_match_model_and_provider(model: str, provider: str, found: list[str]) -> None:
    prices = select_prices(BOOK, model, provider, at=TODAY)

    assert [f"{price.provider}/{price.model}" for price in prices] == found


def test_missing_price_error_lists_known_names() -> None:
    with pytest.raises(OptionError, match="Allowed: anthropic, local"):
        select_prices(BOOK, provider="acme", at=TODAY)
    with pytest.raises(UnknownModelError, match="known are anthropic/claude-a"):
        select_prices(BOOK, "claude-c", at=TODAY)
