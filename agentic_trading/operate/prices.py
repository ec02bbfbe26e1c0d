"""What a price book holds on a day, each part of a price as text, and where another list of prices differs."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Literal, get_args

from agentic_trading.governance.prices import ModelPrice, PriceBook, Rates
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.platform.errors import OptionError

TOKEN_CLASSES = tuple(Rates.model_fields)
"""The classes of tokens that have a price, in the order of a row."""

MULTIPLIERS = ("inference_geo", "speed", "service_tier")
"""The fields of a row that hold a multiplier for each word of a usage report."""


WHOLE = "the model"
"""What a line is about whose model only one side has."""

PriceVerdict = Literal["equal", "differs", "missing there", "missing here"]


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


@dataclass(frozen=True, slots=True)
class PriceDifference:
    """One class or multiplier of a model on both sides: USD per million tokens, or times; empty if missing."""

    model: str
    about: str
    ours: str
    theirs: str
    verdict: PriceVerdict


@dataclass(frozen=True, slots=True)
class PriceComparison:
    """The book with the id `book` against all that `source` lists of the same models and providers."""

    book: str
    source: str
    lines: tuple[PriceDifference, ...]

    def counts(self) -> dict[PriceVerdict, int]:
        """Return how many lines have each verdict."""
        verdicts = [line.verdict for line in self.lines]
        return {verdict: verdicts.count(verdict) for verdict in get_args(PriceVerdict)}


def rate_text(nusd_per_token: Fraction | int) -> str:
    """Return nano-USD per token as USD per million tokens."""
    return _decimal(Fraction(nusd_per_token) / 1000)


def multiplier_text(times: Fraction) -> str:
    """Return a multiplier as `x1.1`."""
    return f"x{_decimal(times)}"


def _decimal(number: Fraction) -> str:
    return f"{(Decimal(number.numerator) / number.denominator).normalize():f}"
