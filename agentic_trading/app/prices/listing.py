"""What a price says, taken apart so that it can be held against another one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from agentic_trading.governance.prices import ModelPrice, Rates, Ratio

CLASSES = tuple(Rates.model_fields)
"""The classes of tokens that have a price, in the order of a row."""

MULTIPLIERS = ("inference_geo", "speed", "service_tier")
"""The reported words that have a multiplier, in the order of a row."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The price of one model on one day.

    `rates` are nano-USD per token by threshold (0: every request) and class; `times` multipliers by table and word,
    None for a word whose classes are not all multiplied alike.
    """

    rates: Mapping[tuple[int, str], Fraction]
    times: Mapping[tuple[str, str], Fraction | None]

    def spelled(self) -> Iterator[tuple[str, str]]:
        """Give every part of the price and its amount, as people read them; rates in USD per million tokens."""
        for (over, name), rate in self.rates.items():
            yield (f"over {over:,} tokens in: {name}" if over else name), spelled_rate(rate)
        for (table, word), times in self.times.items():
            yield f"{table} {word}", "no one multiplier" if times is None else spelled_times(times)


def listing_of(price: ModelPrice) -> Listing:
    """Return what a row of the price book says."""
    steps: list[tuple[int, Rates]] = [(0, price), *((tier.over_input_tokens, tier) for tier in price.tiers)]
    words: dict[tuple[str, str], Ratio] = {
        (table, word): ratio for table in MULTIPLIERS for word, ratio in getattr(price, table).items()
    }
    return Listing(
        {(over, name): Fraction(getattr(rates, name)) for over, rates in steps for name in CLASSES},
        {key: Fraction(*ratio) for key, ratio in words.items()},
    )


def spelled_rate(nusd_per_token: Fraction | int) -> str:
    """Spell nano-USD per token as USD per million tokens."""
    return _decimal(Fraction(nusd_per_token) / 1000)


def spelled_times(times: Fraction) -> str:
    """Spell a multiplier."""
    return f"x{_decimal(times)}"


def _decimal(number: Fraction) -> str:
    return f"{(Decimal(number.numerator) / number.denominator).normalize():f}"


PLAIN = spelled_times(Fraction(1))
"""The multiplier that changes nothing: a source may leave the word out that has it."""
