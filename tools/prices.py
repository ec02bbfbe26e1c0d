"""Compare the price book with genai-prices, a public list of prices: `python -m tools.prices [FILE]`.

FILE is a price book of your own over the packaged one. The installed package is read, without network. Exit 1 if a price differs.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Final, Literal, get_args

import genai_prices
from genai_prices.data_snapshot import DataSnapshot, get_snapshot
from genai_prices.types import ModelInfo, TieredPrices
from genai_prices.types import ModelPrice as ListedPrice
from rich.console import Group, RenderableType

from agentic_trading.cli.model_tables import (
    MULTIPLIERS,
    TOKEN_CLASSES,
    multiplier_text,
    prices_in_force,
    rate_text,
)
from agentic_trading.cli.output import print_table, rows, table
from agentic_trading.clock import SystemClock
from agentic_trading.governance.prices import ModelPrice, PriceBook, short_id
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.platform.tables import load_tables

WHOLE: Final = "the model"
"""What a line is about whose model only one side has."""

PriceVerdict = Literal["equal", "differs", "missing there", "missing here"]

SOURCE = f"genai-prices {genai_prices.__version__}"

_PROVIDERS = frozenset({LLMProvider.ANTHROPIC, LLMProvider.OPENAI})  # named alike by both sides
_CLASSES = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "cache_read",
    "cache_write_mtok": "cache_write_5m",
    "cache_write_1h_mtok": "cache_write_1h",
}
_TABLES = {"processing": "service_tier", "service_tier": "service_tier", "speed": "speed"}
_PLAIN = multiplier_text(Fraction(1))


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


def compare_prices(book: PriceBook, *, at: datetime, snapshot: DataSnapshot | None = None) -> PriceComparison:
    """Compare the prices of the day of `at` with `snapshot`, by default that of the installed package.

    Providers that it does not list are left out, and so are models that it alone lists and calls deprecated.
    """
    listed = {provider.id: provider.models for provider in (snapshot or get_snapshot()).providers}
    prices = [price for price in prices_in_force(book, at=at) if price.provider in _PROVIDERS & listed.keys()]
    lines = [line for price in prices for line in _model_lines(price, listed[price.provider], at)]
    for provider in dict.fromkeys(price.provider for price in prices):
        ours = [price.model for price in prices if price.provider == provider]
        lines += [
            PriceDifference(f"{provider}/{info.id}", WHOLE, "", "listed", "missing here")
            for info in listed[provider]
            if not info.deprecated and not any(_is_same_model(model, info.id) for model in ours)
        ]
    return PriceComparison(book.id, SOURCE, tuple(lines))


def _is_same_model(ours: str, theirs: str) -> bool:
    """Whether both names mean one model; ours may have a date behind it."""
    return re.fullmatch(rf"{re.escape(theirs)}(-\d{{8}})?", ours) is not None


def _model_lines(price: ModelPrice, listed: list[ModelInfo], at: datetime) -> Iterator[PriceDifference]:
    name = f"{price.provider}/{price.model}"
    info = next((info for info in listed if info.is_match(price.model)), None)
    if info is None:
        yield PriceDifference(name, WHOLE, "priced", "", "missing there")
        return
    ours, theirs = dict(_our_parts(price)), dict(_listed_parts(info, at))
    for about in ours | theirs:
        own, other = ours.get(about, ""), theirs.get(about, "")
        if {own, other} != {_PLAIN, ""}:  # a word that changes nothing may be left out
            yield PriceDifference(name, about, own, other, _verdict(own, other))


def _verdict(ours: str, theirs: str) -> PriceVerdict:
    if not ours:
        return "missing here"
    if not theirs:
        return "missing there"
    return "equal" if ours == theirs else "differs"


def _our_parts(price: ModelPrice) -> Iterator[tuple[str, str]]:
    for over, rates in ((0, price), *((tier.over_input_tokens, tier) for tier in price.tiers)):
        for name in TOKEN_CLASSES:
            yield _about(over, name), rate_text(getattr(rates, name))
    for field in MULTIPLIERS:
        for word, ratio in getattr(price, field).items():
            yield f"{field} {word}", multiplier_text(Fraction(*ratio))


def _listed_parts(info: ModelInfo, at: datetime) -> Iterator[tuple[str, str]]:
    plain = _listed_rates(info.get_prices(at))
    for (over, name), rate in plain.items():
        yield _about(over, name), rate_text(rate)
    for variant in info.price_variants or ():
        (name, word), *more = variant.when.items()
        is_active = variant.constraint is None or variant.constraint.active(at)
        if is_active and name in _TABLES and not more:
            times = _multiplier(plain, _listed_rates(info.get_prices(at, variant.when)))
            yield f"{_TABLES[name]} {word}", "no one multiplier" if times is None else multiplier_text(times)


def _about(over: int, name: str) -> str:
    return f"over {over:,} tokens in: {name}" if over else name


def _listed_rates(price: ListedPrice) -> dict[tuple[int, str], Fraction]:
    """Return nano-USD per token by the tier's threshold (0: every request) and class."""
    rates: dict[tuple[int, str], Fraction] = {}
    tiers: dict[tuple[int, str], Fraction] = {}
    for key, name in _CLASSES.items():
        usd_per_million = getattr(price, key, None)
        if isinstance(usd_per_million, TieredPrices):
            rates[0, name] = Fraction(usd_per_million.base) * 1000
            tiers |= {(tier.start, name): Fraction(tier.price) * 1000 for tier in usd_per_million.tiers}
        elif usd_per_million is not None:
            rates[0, name] = Fraction(usd_per_million) * 1000
    return rates | tiers


def _multiplier(
    plain: Mapping[tuple[int, str], Fraction], rates: Mapping[tuple[int, str], Fraction]
) -> Fraction | None:
    """Return by how much every rate is multiplied, or None where that is not one number."""
    if plain.keys() != rates.keys():
        return None
    times = {rates[key] / rate for key, rate in plain.items() if rate}
    return times.pop() if len(times) == 1 else None


def comparison_table(found: PriceComparison) -> RenderableType:
    """Return a row for all that is not equal, and a line with the models that only the other side has."""
    beyond = [line for line in found.lines if line.about == WHOLE and line.verdict == "missing here"]
    shown = [line for line in found.lines if line.verdict != "equal" and line not in beyond]
    drawn = rows(
        table("model", "", "what", "here", "there", right=("here", "there")),
        ((line.model, line.verdict, line.about, line.ours, line.theirs) for line in shown),
    )
    note = f"USD per million tokens, and multipliers; book {short_id(found.book)}"
    models = ", ".join(line.model for line in beyond) or "no model"
    return Group(drawn, note, f"listed there and not here: {models}")


def main() -> None:
    """Print each difference and the counts."""
    parser = argparse.ArgumentParser(prog="python -m tools.prices", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="a price book of your own over the packaged one")
    book = load_tables(None, parser.parse_args().file).prices
    found = compare_prices(book, at=SystemClock().now())
    print_table(comparison_table(found))
    counts = found.counts()
    print(f"against {found.source}: {', '.join(f'{number} {verdict}' for verdict, number in counts.items())}")
    sys.exit(1 if counts["differs"] else 0)


if __name__ == "__main__":
    main()
