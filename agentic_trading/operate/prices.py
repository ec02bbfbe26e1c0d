"""The contents of a price book on a day, and each part of a price as text."""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from agentic_trading.governance.prices import ModelPrice, PriceBook, Rates
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.platform.errors import OptionError

TOKEN_CLASSES = tuple(Rates.model_fields)
"""The classes of tokens that have a price, in the order of a row."""

MULTIPLIERS = ("inference_geo", "speed", "service_tier")
"""The fields of a row that hold a multiplier for each word of a usage report."""


def prices_in_force(book: PriceBook, *, at: datetime) -> Iterator[ModelPrice]:
    """Give the price of every model on the day of `at`, in the order of the book."""
    for provider, model in dict.fromkeys((price.provider, price.model) for price in book):
        yield book.price(provider, model, at=at)


def select_prices(book: PriceBook, model: str = "", provider: str = "", *, at: datetime) -> list[ModelPrice]:
    """Return the prices of the day of `at`: those of `model` (or `provider/model`), of `provider`, or all.

    Raises `OptionError` for a provider that has no price, `UnknownModelError` for a model that has none.
    """
    prices = list(prices_in_force(book, at=at))
    of_provider = [price for price in prices if provider in {"", price.provider}]
    if not of_provider:
        allowed = ", ".join(dict.fromkeys(str(price.provider) for price in prices))
        raise OptionError("--provider", f"{provider!r}, which has no price", allowed)
    found = [price for price in of_provider if model in {"", price.model, f"{price.provider}/{price.model}"}]
    if not found:
        known = [f"{price.provider}/{price.model}" for price in of_provider]
        raise UnknownModelError(model, "price book", known)
    return found


def rate_text(nusd_per_token: Fraction | int) -> str:
    """Return nano-USD per token as USD per million tokens."""
    return _decimal(Fraction(nusd_per_token) / 1000)


def multiplier_text(times: Fraction) -> str:
    """Return a multiplier as `x1.1`."""
    return f"x{_decimal(times)}"


def _decimal(number: Fraction) -> str:
    return f"{(Decimal(number.numerator) / number.denominator).normalize():f}"
