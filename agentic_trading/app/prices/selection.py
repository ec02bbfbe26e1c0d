"""Which prices of a book are meant."""

from datetime import datetime

from agentic_trading.app.options import OptionError
from agentic_trading.app.prices.comparison import in_force
from agentic_trading.governance.prices import ModelPrice, PriceBook
from agentic_trading.llm.errors import UnknownModelError


def select_prices(book: PriceBook, model: str = "", provider: str = "", *, at: datetime) -> list[ModelPrice]:
    """Return the prices of the day of `at`: those of `model` (or `provider/model`), of `provider`, or all.

    Raises `OptionError` for a provider that has no price, `UnknownModelError` for a model that has none.
    """
    prices = list(in_force(book, at=at))
    of_provider = [price for price in prices if provider in {"", price.provider}]
    if not of_provider:
        allowed = ", ".join(dict.fromkeys(str(price.provider) for price in prices))
        raise OptionError("--provider", f"{provider!r}, which has no price", allowed)
    found = [price for price in of_provider if model in {"", price.model, f"{price.provider}/{price.model}"}]
    if not found:
        known = [f"{price.provider}/{price.model}" for price in of_provider]
        raise UnknownModelError(model, "price book", known)
    return found
