"""What genai-prices says that a model costs: the data in the installed package, nothing from a network."""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

import genai_prices
from genai_prices.data_snapshot import DataSnapshot, get_snapshot
from genai_prices.types import ModelInfo, TieredPrices
from genai_prices.types import ModelPrice as TheirPrice

from agentic_trading.app.prices.listing import Listing
from agentic_trading.llm.envelope import LLMProvider

SOURCE = f"genai-prices {genai_prices.__version__}"

LISTED = frozenset({LLMProvider.ANTHROPIC, LLMProvider.OPENAI})
"""Providers that both sides know, under the same names."""

_CLASSES = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "cache_read",
    "cache_write_mtok": "cache_write_5m",
    "cache_write_1h_mtok": "cache_write_1h",
}
_TABLES = {"processing": "service_tier", "service_tier": "service_tier", "speed": "speed"}

_Rates = dict[tuple[int, str], Fraction]


class GenaiPrices:
    """The prices of `snapshot`, by default those that the package carries."""

    source = SOURCE

    def __init__(self, snapshot: DataSnapshot | None = None) -> None:
        self._snapshot = snapshot or get_snapshot()

    def listing(self, provider: LLMProvider, model: str, *, at: datetime) -> Listing | None:
        """Return the price of a model on the day of `at`, or None where it is not listed."""
        found = next((info for info in self._models(provider) if info.is_match(model)), None)
        return None if found is None else _listing(found, at)

    def models(self, provider: LLMProvider) -> tuple[str, ...]:
        """Return the names of all models of a provider that are not past their time."""
        return tuple(info.id for info in self._models(provider) if not info.deprecated)

    def _models(self, provider: LLMProvider) -> list[ModelInfo]:
        of_name = (each.models for each in self._snapshot.providers if each.id == provider)
        return next(of_name, []) if provider in LISTED else []


def _listing(info: ModelInfo, at: datetime) -> Listing:
    plain = dict(_rates(info.get_prices(at)))
    times: dict[tuple[str, str], Fraction | None] = {}
    for variant in info.price_variants or ():
        (name, word), *more = variant.when.items()
        is_active = variant.constraint is None or variant.constraint.active(at)
        if is_active and name in _TABLES and not more:
            times[_TABLES[name], word] = _multiplier(plain, dict(_rates(info.get_prices(at, variant.when))))
    return Listing(plain, times)


def _rates(price: TheirPrice) -> Iterator[tuple[tuple[int, str], Fraction]]:
    listed = {name: told for key, name in _CLASSES.items() if (told := getattr(price, key, None)) is not None}
    for name, told in listed.items():
        yield (0, name), _per_token(told.base if isinstance(told, TieredPrices) else told)
    for name, told in listed.items():
        for tier in told.tiers if isinstance(told, TieredPrices) else ():
            yield (tier.start, name), _per_token(tier.price)


def _per_token(usd_per_million: Decimal) -> Fraction:
    return Fraction(usd_per_million) * 1000


def _multiplier(plain: _Rates, rates: _Rates) -> Fraction | None:
    """Return by how much every rate is multiplied, or None where that is not one number."""
    if plain.keys() != rates.keys():
        return None
    times = {rates[key] / rate for key, rate in plain.items() if rate}
    return times.pop() if len(times) == 1 else None
