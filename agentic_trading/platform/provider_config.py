"""The part of a configuration that is about providers: their names, their adapters, rows for their models."""

import operator
import re
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    JsonValue,
    NonNegativeInt,
    PositiveInt,
    StrictInt,
    StrictStr,
)

from agentic_trading.canonical import CanonicalError, canonical_bytes
from agentic_trading.governance.policy_file import NAME
from agentic_trading.governance.prices import ModelPrice, Price
from agentic_trading.llm.envelope import Effort, LLMProvider
from agentic_trading.llm.envelope_rules import close_name
from agentic_trading.llm.models import Capability, Thinking
from agentic_trading.llm.provider import MAX_ANSWER_BYTES, fault_of

SMALLEST_ANSWER_LIMIT = 1024
_PROVIDER = re.compile(r"[a-z][a-z0-9._-]{0,63}")
_LANE = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


# What a validator raises is the text of what is allowed.


def _provider_name(name: str) -> str:
    if not _PROVIDER.fullmatch(name):
        raise ValueError("a name of 1 to 64 small letters, digits and ._-, a letter in front")
    if close := close_name(name):
        raise ValueError(f"a name that is not close to a built-in one; did you mean {close}?")
    return name


def _model_name(name: str) -> str:
    provider, slash, model = name.partition("/")
    if not slash or not model:
        raise ValueError('PROVIDER/MODEL, such as "anthropic/claude-sonnet-5-5"')
    _provider_name(provider)
    return name


def _secret_name(name: str) -> str:
    if not NAME.fullmatch(name) or name.startswith("sk-"):
        raise ValueError("the name of a file or a variable with the key, never the key itself")
    return name


def _web_address(address: str) -> str:
    if fault_of(address):
        raise ValueError("http(s)://HOST[:PORT][/PATH], without user and password")
    return address


ProviderName = Annotated[StrictStr, AfterValidator(_provider_name)]
ModelName = Annotated[StrictStr, AfterValidator(_model_name)]


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")  # noqa: TRY004 - pydantic's way to refuse
    return value


_Count = Annotated[NonNegativeInt, BeforeValidator(_no_truth)]
_Positive = Annotated[PositiveInt, BeforeValidator(_no_truth)]


_Multipliers = dict[StrictStr, tuple[_Positive, _Positive]]

_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{1,12})?")


def _decimal_of_text(value: object) -> object:
    """Return a decimal in quotes as its number. An environment variable holds text only."""
    return Decimal(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else value


_Price = Annotated[Price, BeforeValidator(_decimal_of_text), BeforeValidator(_no_truth)]


class PriceConfig(BaseModel, frozen=True, extra="forbid"):
    """Nano-dollars per token, with fractions. Without a price of its own a cached input token costs `input`.

    The multipliers are those of a price file: `service_tier = { on_demand = [1, 1] }`.
    """

    input: _Price
    output: _Price
    cache_read: _Price | None = None
    cache_write_5m: _Price | None = None
    cache_write_1h: _Price | None = None
    inference_geo: _Multipliers = Field(default_factory=dict, exclude_if=operator.not_)
    speed: _Multipliers = Field(default_factory=dict, exclude_if=operator.not_)
    service_tier: _Multipliers = Field(default_factory=dict, exclude_if=operator.not_)


class ModelConfig(BaseModel, frozen=True, extra="forbid"):
    """A row for the tables: the fields of `Capability` but for the provider, and the price.

    Without a `price` here or in a file, calls are refused: what has no price is not free.
    """

    model: Annotated[StrictStr, Field(min_length=1)]
    context_tokens: _Positive
    max_output_tokens: _Positive
    price: PriceConfig | None = None
    source: Annotated[StrictStr, Field(min_length=1)]
    checked_on: date
    sampling: bool = True
    native_schema: bool = False
    holds_bounds: bool = False
    forced_tool: bool = False
    strict_tool: bool = False
    json_mode: bool = False
    most_optional: _Count | None = None
    most_unions: _Count | None = None
    thinking: tuple[Thinking, ...] = ()
    effort: tuple[Effort, ...] = ()
    served_as: tuple[str, ...] = ()
    training_cutoff: date | None = None
    retires_on: date | None = None
    overhead_tokens: _Count = 1024
    min_bytes_per_token: _Positive = 1
    logprobs: bool = False

    def capability_of(self, provider: str) -> Capability:
        """Return the row of the model at `provider`."""
        return Capability(provider=LLMProvider(provider), **self.model_dump(exclude={"price"}))

    def price_of(self, provider: str) -> ModelPrice | None:
        """Return its price since ever, or None."""
        if self.price is None:
            return None
        rates = dict.fromkeys(("cache_read", "cache_write_5m", "cache_write_1h"), self.price.input)
        return ModelPrice(
            provider=LLMProvider(provider),
            model=self.model,
            valid_from=date.min,
            source=self.source,
            checked_on=self.checked_on,
            **{**rates, **self.price.model_dump(exclude_none=True)},
        )


def _spelled(options: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    try:
        canonical_bytes(dict(options))
    except CanonicalError as e:  # the checksum of the configuration could not be made
        raise ValueError("texts, truth values, finite numbers of at most 21 digits, lists and tables") from e
    return options


def _lane(name: str) -> str:
    if name and not _LANE.fullmatch(name):
        raise ValueError("1 to 32 small letters, digits and dashes, a letter or digit in front")
    return name


def _answer_bytes(size: int) -> int:
    if not SMALLEST_ANSWER_LIMIT <= size <= MAX_ANSWER_BYTES:
        raise ValueError(
            f"{SMALLEST_ANSWER_LIMIT} to {MAX_ANSWER_BYTES} bytes: more is not sure to fit the bus"
        )
    return size


class ProviderConfig(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """One provider: the adapter that answers for it, its address, where its key is, and rows for its models.

    `adapter` is a shipped one, one that an installed package offers, or `module:factory`; left out, the provider's own
    name. `secret` names the file of the key in `secrets_folder`, or in capitals its variable; left out,
    `NAME_api_key`. With a `lane` its envelopes travel apart, and only workers that have the lane take them. An answer is read up to `max_answer_bytes`, after decompression. `options` are the adapter's.
    """

    adapter: Annotated[StrictStr, Field(min_length=1)] | None = None
    lane: Annotated[StrictStr, AfterValidator(_lane)] = ""
    base_url: Annotated[StrictStr, AfterValidator(_web_address)] | None = Field(default=None, repr=False)
    secret: Annotated[StrictStr, AfterValidator(_secret_name)] | None = None
    max_answer_bytes: Annotated[StrictInt, AfterValidator(_answer_bytes)] = MAX_ANSWER_BYTES
    options: Annotated[Mapping[str, JsonValue], AfterValidator(_spelled)] = Field(default_factory=dict)
    models: tuple[ModelConfig, ...] = ()

    def adapter_of(self, name: str) -> str:
        """Return the name of the adapter of the provider `name`."""
        return self.adapter or name

    def secret_of(self, name: str) -> str:
        """Return the name of the secret of the provider `name`."""
        return self.secret or f"{name}_api_key"


def provider_and_model(name: str) -> tuple[str, str]:
    """Return the two parts of `PROVIDER/MODEL`; a model's name may have slashes of its own."""
    provider, _, model = name.partition("/")
    return provider, model
