"""The price book compared with genai-prices, a public list of prices: the installed package is read, no network."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from fractions import Fraction

from agentic_trading.errors import extra_named
from agentic_trading.governance.prices import ModelPrice, PriceBook
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.operate.prices import (
    MULTIPLIERS,
    TOKEN_CLASSES,
    WHOLE,
    PriceComparison,
    PriceDifference,
    PriceVerdict,
    multiplier_text,
    prices_in_force,
    rate_text,
)

with extra_named():
    import genai_prices
    from genai_prices.data_snapshot import DataSnapshot, get_snapshot
    from genai_prices.types import ModelInfo, TieredPrices
    from genai_prices.types import ModelPrice as ListedPrice

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
    for table in MULTIPLIERS:
        for word, ratio in getattr(price, table).items():
            yield f"{table} {word}", multiplier_text(Fraction(*ratio))


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
