"""The price book held against another source, class by class."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from agentic_trading.app.prices.listing import PLAIN, Listing, listing_of
from agentic_trading.governance.prices import ModelPrice, PriceBook
from agentic_trading.llm.envelope import LLMProvider

PriceVerdict = Literal["equal", "differs", "missing there", "missing here"]

VERDICTS: tuple[PriceVerdict, ...] = ("equal", "differs", "missing there", "missing here")

WHOLE = "the model"
"""What a line is about that tells of a model which only one side has."""


class PriceSource(Protocol):
    """Another list of prices."""

    @property
    def source(self) -> str:
        """Its name with its version."""
        ...

    def listing(self, provider: LLMProvider, model: str, *, at: datetime) -> Listing | None:
        """Return the price of a model on the day of `at`, or None where it is not listed."""
        ...

    def models(self, provider: LLMProvider) -> tuple[str, ...]:
        """Return the names of the models of a provider; none for one that is not listed at all."""
        ...


@dataclass(frozen=True, slots=True)
class PriceDifference:
    """One class or multiplier of a model, as both sides spell it: USD per million tokens, or times; empty if missing."""

    model: str
    about: str
    ours: str
    theirs: str
    verdict: PriceVerdict


@dataclass(frozen=True, slots=True)
class PriceComparison:
    """All of a book against all that `source` knows of the same models and providers."""

    book: str
    source: str
    lines: tuple[PriceDifference, ...]

    @property
    def differs(self) -> bool:
        """Whether anything that both sides know is told differently."""
        return any(line.verdict == "differs" for line in self.lines)

    def counts(self) -> dict[PriceVerdict, int]:
        """Return how many lines have each verdict."""
        return {verdict: sum(line.verdict == verdict for line in self.lines) for verdict in VERDICTS}


def compared(book: PriceBook, source: PriceSource, *, at: datetime) -> PriceComparison:
    """Hold the prices of the day of `at` against those of `source`; providers that it does not list are left out."""
    prices = [price for price in in_force(book, at=at) if source.models(price.provider)]
    lines = [line for price in prices for line in _of_model(price, source, at)]
    lines += [
        PriceDifference(f"{provider}/{model}", WHOLE, "", "listed", "missing here")
        for provider in dict.fromkeys(price.provider for price in prices)
        for model in source.models(provider)
        if not any(_is_named(price, provider, model) for price in prices)
    ]
    return PriceComparison(book.id, source.source, tuple(lines))


def in_force(book: PriceBook, *, at: datetime) -> Iterator[ModelPrice]:
    """Give the price of every model on the day of `at`, in the order of the book."""
    for provider, model in dict.fromkeys((price.provider, price.model) for price in book):
        yield book.price(provider, model, at=at)


def _is_named(price: ModelPrice, provider: LLMProvider, model: str) -> bool:
    """Whether a source means the model of `price` by these names; ours may have a date behind it."""
    dated = re.fullmatch(rf"{re.escape(model)}(-\d{{8}})?", price.model)
    return dated is not None and price.provider == provider


def _of_model(price: ModelPrice, source: PriceSource, at: datetime) -> Iterator[PriceDifference]:
    name = f"{price.provider}/{price.model}"
    listing = source.listing(price.provider, price.model, at=at)
    if listing is None:
        yield PriceDifference(name, WHOLE, "priced", "", "missing there")
        return
    ours, theirs = dict(listing_of(price).spelled()), dict(listing.spelled())
    for about in ours | theirs:
        own, other = ours.get(about, ""), theirs.get(about, "")
        if {own, other} != {PLAIN, ""}:
            yield PriceDifference(name, about, own, other, _verdict(own, other))


def _verdict(ours: str, theirs: str) -> PriceVerdict:
    if not ours:
        return "missing here"
    if not theirs:
        return "missing there"
    return "equal" if ours == theirs else "differs"
