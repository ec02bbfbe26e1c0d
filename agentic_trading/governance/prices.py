"""Prices of models by day, and the maximum cost of a call."""

import json
from bisect import bisect_right, insort
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, Self
from unicodedata import is_normalized, normalize

from pydantic import BaseModel, Field, PlainSerializer, PlainValidator, PositiveInt

from agentic_trading.canonical import members_of, sha256_hex
from agentic_trading.governance.errors import UnknownPriceError
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.fields import json_of
from agentic_trading.llm.models import Capability, DatedTable, TableError, read_table
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.result import Usage
from agentic_trading.llm.verbatim import unescaped

PACKAGED_PRICES = Path(str(files("agentic_trading.llm") / "prices.json"))

Ratio = tuple[PositiveInt, PositiveInt]
"""A multiplier as numerator and denominator: 11/10 is exact, 1.1 is not."""

SHORT_DIGITS = 12
"""The number of digits of a book's hash that are shown to people."""

_PLAIN: Ratio = (1, 1)
_PLAIN_WORDS = frozenset({"default", "standard"})


_MOST_DIGITS = 15
"""A decimal with this many digits survives conversion to a float, as TOML and JSON readers do it."""

_MOST_PLACES = 12

_ALLOWED_PRICE = (
    f"a number from 0 of at most {_MOST_DIGITS} digits, {_MOST_PLACES} of them after the point, such as 2.8"
)


def _price(value: Any) -> int | Decimal:
    """Return a price as an int, or as an exact Decimal if it has a fraction. Raises `ValueError`."""
    if type(value) is int and value >= 0:
        return value
    # The repr of a float is the shortest decimal that reads back as it, so that this is the number in the
    # file.
    number = Decimal(repr(value)) if type(value) is float else value
    if not isinstance(number, Decimal) or not number.is_finite() or number < 0:
        raise ValueError(_ALLOWED_PRICE)
    _, digits, exponent = number.as_tuple()
    if len(digits) > _MOST_DIGITS or not -_MOST_PLACES <= int(exponent) <= _MOST_DIGITS:
        raise ValueError(_ALLOWED_PRICE)
    return int(number) if number == int(number) else number.normalize()


def _price_as_json(price: int | Decimal) -> int | float:
    return price if isinstance(price, int) else float(price)


Price = Annotated[
    int | Decimal,
    PlainValidator(_price, json_schema_input_type=float),
    PlainSerializer(_price_as_json, return_type=int | float, when_used="json"),
]
"""Nano-dollars per token: 2.8 is 0.0028 dollars per million tokens. Never a float."""


class Rates(BaseModel, frozen=True, extra="forbid"):
    """Nano-dollars per token of each class."""

    input: Price
    output: Price
    cache_read: Price
    cache_write_5m: Price
    cache_write_1h: Price

    @property
    def dearest_input(self) -> int | Decimal:
        """The highest rate that an input token may be billed at."""
        return max(self.input, self.cache_read, self.cache_write_5m, self.cache_write_1h)

    @cached_property
    def scaled(self) -> "ScaledRates":
        """The rates as integers, in units of a nano-dollar divided by `per_nusd`."""
        prices = (self.input, self.output, self.cache_read, self.cache_write_5m, self.cache_write_1h)
        per_nusd = 10 ** max(map(_places, prices))
        units = [int(price * per_nusd) for price in prices]
        return ScaledRates(units[0], units[1], units[2], units[3], units[4], per_nusd)


def _places(price: int | Decimal) -> int:
    """Return the number of decimal places of a price."""
    return 0 if isinstance(price, int) else max(0, -int(price.as_tuple().exponent))


@dataclass(frozen=True, slots=True)
class ScaledRates:
    """Rates as integers, computed once per row."""

    input: int
    output: int
    cache_read: int
    cache_write_5m: int
    cache_write_1h: int
    per_nusd: int


class Tier(Rates, frozen=True, extra="forbid"):
    """The rates of a request whose whole input, cached or not, exceeds `over_input_tokens`.

    They apply to all its tokens.
    """

    over_input_tokens: PositiveInt


@dataclass(frozen=True, slots=True)
class WorstPrice:
    """The highest rates that a request may be billed at.

    `multiplier` converts their units to nano-dollars.
    """

    input: int
    output: int
    multiplier: Ratio

    def cost_nusd(self, input_tokens: int, output_tokens: int) -> int:
        """Return the maximum cost of these tokens in nano-dollars, rounded up once."""
        over, under = self.multiplier
        return -(-(input_tokens * self.input + output_tokens * self.output) * over // under)


class ModelPrice(Rates, frozen=True, extra="forbid"):
    """The price of one model from `valid_from` (UTC day).

    Each multiplier table lists every word with a price.
    """

    provider: LLMProvider
    model: Annotated[str, Field(min_length=1)]
    valid_from: date
    tiers: tuple[Tier, ...] = ()
    inference_geo: dict[str, Ratio] = Field(default_factory=dict)
    speed: dict[str, Ratio] = Field(default_factory=dict)
    service_tier: dict[str, Ratio] = Field(default_factory=dict)
    source: Annotated[str, Field(min_length=1)]
    checked_on: date

    @property
    def is_free(self) -> bool:
        """Whether every token costs 0."""
        return not any(rates.dearest_input or rates.output for rates in (self, *self.tiers))

    def at(self, input_tokens: int) -> Rates:
        """Return the rates of a request with this number of input tokens in total."""
        rates: Rates = self
        for tier in self.tiers:
            if input_tokens > tier.over_input_tokens:
                rates = tier
        return rates

    def worst(self, input_tokens: int) -> WorstPrice:
        """Return the highest rates and multiplier of a request with at most this number of input tokens."""
        reached = sum(input_tokens > tier.over_input_tokens for tier in self.tiers)
        return self._worst_by_tier[reached]

    @cached_property
    def _worst_by_tier(self) -> tuple[WorstPrice, ...]:
        """The worst price for each number of tiers that may be reached."""
        # A longer request may be billed as a shorter one, so that the tiers below count as well.
        reachable: list[tuple[Rates, ...]] = [
            (self, *self.tiers[:reached]) for reached in range(len(self.tiers) + 1)
        ]
        unasked = {word: ratio for word, ratio in self.speed.items() if word in _PLAIN_WORDS}
        per_nusd = max(rates.scaled.per_nusd for rates in reachable[-1])
        dearest = map(_dearest, (self.inference_geo, self.service_tier, unasked))
        multiplier = _product((1, per_nusd), *dearest)
        return tuple(
            WorstPrice(
                input=int(per_nusd * max(rates.dearest_input for rates in tiers)),
                output=int(per_nusd * max(rates.output for rates in tiers)),
                multiplier=multiplier,
            )
            for tiers in reachable
        )

    def multiplier(self, field: str, value: str) -> Ratio:
        """Return the multiplier for a word of a usage report.

        An empty word has the plain price. If the row has no table of words, the words `default` and
        `standard` have the plain price too.

        Raises:
            UnknownPriceError: If the word has no price.

        """
        table: dict[str, Ratio] = getattr(self, field)
        if not value or (not table and value in _PLAIN_WORDS):
            return _PLAIN
        try:
            return table[value]
        except KeyError:
            raise UnknownPriceError(f"{self.provider}/{self.model}", field, value, sorted(table)) from None


class PriceBook:
    """Prices from one or more files.

    If several files contain a model, only the last one is used for it. Iterating yields the prices in the
    order of the files. Those of one model are in order of their first day.

    Example:
        ```python
        book = PriceBook.load()
        usage = Usage(input_tokens=1_000, output_tokens=200)
        nusd = book.cost_nusd(LLMProvider.ANTHROPIC, "claude-haiku-5-5", usage, at=datetime.now(UTC))
        ```

    """

    def __init__(self, *tables: DatedTable[ModelPrice]) -> None:
        self.name = "+".join(map(_name, tables))
        self.sha256 = (
            tables[0].sha256 if len(tables) == 1 else sha256_hex(*(t.sha256.encode() for t in tables))
        )
        self._prices: dict[tuple[LLMProvider, str], list[ModelPrice]] = {}
        for table in tables:
            self._prices |= _by_model(table)

    @classmethod
    def load(cls, path: Path | None = None, *extra: Path) -> Self:
        """Read the book at `path` (default: the packaged one), then the `extra` books.

        Raises:
            TableError: If a file is invalid, with file, row and field.

        """
        return cls(*(read_table(book, ModelPrice) for book in (path or PACKAGED_PRICES, *extra)))

    @property
    def id(self) -> str:
        """The name and the full hash.

        Results keep it, so that their cost can be computed again.
        """
        return f"{self.name}@{self.sha256}"

    def is_named(self, book_id: str) -> bool:
        """Whether `book_id` identifies this book, by its full or its shortened hash."""
        name, _, digits = book_id.rpartition("@")
        return name == self.name and len(digits) >= SHORT_DIGITS and self.sha256.startswith(digits)

    def __iter__(self) -> Iterator[ModelPrice]:
        return chain.from_iterable(self._prices.values())

    def price(self, provider: LLMProvider, model: str, *, at: datetime) -> ModelPrice:
        """Return the price of `model` on the UTC day of `at`.

        The first price also applies to all days before it.

        Raises:
            UnknownModelError: If the model has no price. It is never free.

        """
        try:
            prices = self._prices[provider, model]
        except KeyError:
            known = [f"{provider}/{model}" for provider, model in self._prices]
            raise UnknownModelError(f"{provider}/{model}", "price book", known) from None
        if len(prices) == 1:
            return prices[0]
        later = bisect_right(prices, at.astimezone(UTC).date(), key=_valid_from)
        return prices[max(0, later - 1)]

    def rates(self, provider: LLMProvider, model: str, *, at: datetime, input_tokens: int = 0) -> Rates:
        """Return nano-dollars per token of each class for a request with `input_tokens` in total.

        Raises:
            UnknownModelError: If the model has no price.

        """
        return self.price(provider, model, at=at).at(input_tokens)

    def cost_nusd(self, provider: LLMProvider, model: str, usage: Usage, *, at: datetime) -> int:
        """Return the cost of `usage` in nano-dollars, rounded up once.

        The tier depends on all input tokens, cached or not. Thinking is part of the output.

        Raises:
            UnknownModelError: If the model has no price.
            UnknownPriceError: If a word of the usage has no price.

        """
        price = self.price(provider, model, at=at)
        rates = price.at(usage.total_input_tokens).scaled
        plain = (
            usage.input_tokens * rates.input
            + usage.output_tokens * rates.output
            + usage.cache_read_tokens * rates.cache_read
            + usage.cache_write_5m_tokens * rates.cache_write_5m
            + usage.cache_write_1h_tokens * rates.cache_write_1h
        )
        over, under = _product(
            price.multiplier("inference_geo", usage.inference_geo),
            price.multiplier("speed", usage.speed),
            price.multiplier("service_tier", usage.service_tier),
        )
        return -(-plain * over // (under * rates.per_nusd))

    def worst(self, provider: LLMProvider, model: str, *, at: datetime, input_tokens: int) -> WorstPrice:
        """Return the highest price of a request with at most `input_tokens`, at the plain speed.

        Region and service tier are the provider's choice, so the dearest of both counts. Requests never ask
        for another speed. If one is reported, it is charged, even above the reservation.

        Raises:
            UnknownModelError: If the model has no price.

        """
        return self.price(provider, model, at=at).worst(input_tokens)


def short_id(book_id: str) -> str:
    """Return the id of a book for people, with the first twelve digits of its hash."""
    name, at, digits = book_id.rpartition("@")
    return f"{name}{at}{digits[:SHORT_DIGITS]}" if at else book_id


def _product(*ratios: Ratio) -> Ratio:
    over, under = 1, 1
    for ratio in ratios:
        over, under = over * ratio[0], under * ratio[1]
    return over, under


def _dearest(table: dict[str, Ratio]) -> Ratio:
    return max((_PLAIN, *table.values()), key=lambda ratio: Fraction(*ratio))


def _name(table: DatedTable[ModelPrice]) -> str:
    name = table.head.get("name")
    if not isinstance(name, str) or not name:
        raise TableError(table.path, 0, "name", "is missing. Set the name of the book")
    return name


def _by_model(table: DatedTable[ModelPrice]) -> dict[tuple[LLMProvider, str], list[ModelPrice]]:
    prices: dict[tuple[LLMProvider, str], list[ModelPrice]] = {}
    for row, price in enumerate(table.rows, start=1):
        dated = prices.setdefault((price.provider, price.model), [])
        thresholds = [tier.over_input_tokens for tier in price.tiers]
        if thresholds != sorted(set(thresholds)):
            raise TableError(table.path, row, "tiers", "are not in rising order of over_input_tokens")
        if any(price.valid_from == other.valid_from for other in dated):
            raise TableError(
                table.path, row, "valid_from", "is used twice for the model. Allowed: one price per day"
            )
        insort(dated, price, key=_valid_from)
    return prices


def _valid_from(price: ModelPrice) -> date:
    return price.valid_from


UNMETERED: Final = "usage=unknown"
"""The word of an answer whose token counts are unknown."""


def charged_models(asked: str, served: str, served_as: Collection[str]) -> frozenset[str]:
    """Return the models whose prices count: the requested one, and the served one if it is not an alias."""
    return frozenset({asked, served} if served and served not in served_as else {asked})


def cost_of(
    usage: Usage,
    prices: PriceBook,
    provider: LLMProvider,
    models: Collection[str],
    *,
    at: datetime,
    reserved_nusd: int,
) -> tuple[int, str]:
    """Return the cost in nano-dollars, and the word without a price, such as `service_tier=on_demand`.

    The cost is the highest of the prices of `models` and the server's own bill. If a word or a model has no
    price, or if the token counts are unknown, it is at least the whole reservation.
    """
    # The highest wins, because a charge below the invoice would let the budget be exceeded (decision 51).
    costs, unpriced = [usage.bill_nusd or 0], ""
    if usage.unmetered:
        return max(*costs, reserved_nusd), UNMETERED
    for model in sorted(models):
        try:
            costs.append(prices.cost_nusd(provider, model, usage, at=at))
        except UnknownPriceError as e:
            costs.append(reserved_nusd)
            unpriced = unpriced or f"{e.field}={e.value}"
        except UnknownModelError:
            costs.append(reserved_nusd)
            unpriced = unpriced or f"served_as={model}"
    return max(costs), unpriced


def price_advice(model: str, unpriced: str) -> str:
    """Return advice on how to add a price for a word such as `service_tier=on_demand`."""
    if unpriced == UNMETERED:
        return f"make the server of {model} report prompt and completion tokens. `unmetered` of a result has the reason"
    field, _, word = unpriced.partition("=")
    if field == "served_as":
        return f"add {word!r} to served_as of {model}, if that is the same model, or a price for {word!r}"
    return (
        f"add {field} = {{ {json.dumps(word)} = [1, 1] }} with the right multiplier to the price of {model}"
    )


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of nano-dollars, of input plus output tokens, and of calls.

    Never negative.
    """

    nusd: int
    tokens: int
    calls: int = 1

    def __post_init__(self) -> None:
        """Raises `ValueError` for a negative value, because it would be a credit."""
        if self.nusd < 0 or self.tokens < 0 or self.calls < 0:
            raise ValueError(f"{self} has a negative value. Allowed: 0 and above")

    @property
    def units(self) -> tuple[int, int, int]:
        """Nano-dollars, tokens, calls."""
        return self.nusd, self.tokens, self.calls


NOTHING = Amount(0, 0, 0)


def bound(
    request: ModelRequest,
    capability: Capability,
    book: PriceBook,
    *,
    at: datetime,
    input_tokens: int | None = None,
) -> Amount:
    """Return an upper bound for every usage within the request's caps.

    Input is bounded by the UTF-8 bytes of the request (or by `input_tokens`, the provider's own count) plus
    the model's overhead. Output is bounded by the cap, which includes thinking. Both are priced at the
    dearest class, tier and multiplier. The bound assumes that a token covers at least
    `capability.min_bytes_per_token` bytes.

    Raises:
        UnknownModelError: If the model has no price.

    """
    inward = (
        input_bound(request, capability)
        if input_tokens is None
        else input_tokens + capability.overhead_tokens
    )
    worst = book.worst(capability.provider, capability.model, at=at, input_tokens=inward)
    return Amount(worst.cost_nusd(inward, request.max_tokens), inward + request.max_tokens)


_TOOL_FRAME_BYTES = 128
_TOOL_FIELDS = frozenset({"tools", "functions"})
_TWICE = _TOOL_FIELDS | {"response_format", "text", "output_config", "output_format"}
"""The fields of a client's own request that have tools or a schema."""
_TWICE_WRITTEN = (*(f'"{name}"' for name in sorted(_TWICE)), "\\u")
"""The texts of which a request with such a field has one: its name, or an escape, which can be part of a name."""


def input_bound(request: ModelRequest, capability: Capability) -> int:
    """Return the maximum number of input tokens of the request."""
    # An enforced schema counts twice, because it is sent as a response format or tool, and described in the
    # prompt. The same is true for tools, which also get a frame. The model's overhead covers the frame and
    # the name of the answer's tool.
    if request.transport == "verbatim":
        size = _most_bytes(request.system) + _verbatim_bytes(request.user)
    else:
        size = _most_bytes(request.system) + _most_bytes(request.user)
    if request.response_schema is not None:
        size += 2 * len(json_of(request.response_schema))
    for tool in request.tools:
        size += 2 * len(json_of(tool.model_dump())) + _TOOL_FRAME_BYTES
    return -(-size // capability.min_bytes_per_token) + capability.overhead_tokens


def _verbatim_bytes(body: str) -> int:
    """Return the bytes of a client's own request, by the rules of our own requests."""
    # The model reads the characters, however the client wrote them: an escape has 6 bytes, but what it
    # stands for may have 33. Texts inside of it may be shown as they are written, so that the larger counts.
    return max(_bytes_with_frames(written) for written in {body, unescaped(body)})


def _bytes_with_frames(body: str) -> int:
    size = _most_bytes(body)
    if not any(text in body for text in _TWICE_WRITTEN):
        return size  # because parsing takes longer than a search
    for name, value in members_of(body):
        if name in _TWICE:
            size += _most_bytes(value)
        if name in _TOOL_FIELDS and value.startswith("["):
            size += _TOOL_FRAME_BYTES * sum(1 for _ in members_of(value))
    return size


def _most_bytes(text: str) -> int:
    """Return the UTF-8 bytes of `text`, or of its NFKC form if that has more."""
    # Tokenizers may normalize before they count, as the one that Anthropic has published. U+FDFA would then
    # have 33 bytes instead of 3.
    if text.isascii():
        return len(text)
    return max(
        _utf8_length(text), 0 if is_normalized("NFKC", text) else _utf8_length(normalize("NFKC", text))
    )


def _utf8_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
