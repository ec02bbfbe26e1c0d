"""The configuration of a platform: providers, models, prices, tenants, bus and ledger."""

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import parse_qsl, unquote, urlsplit
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    JsonValue,
    ModelWrapValidatorHandler,
    NonNegativeInt,
    PlainSerializer,
    PositiveInt,
    PrivateAttr,
    SecretStr,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails
from typing_extensions import override

from agentic_trading.bus.topic import MAX_MESSAGE_BYTES
from agentic_trading.canonical import CanonicalError, canonical_bytes, sha256_hex
from agentic_trading.client.fallback import FALLBACK_KINDS, FALLS_BACK_ON
from agentic_trading.governance.limits import LARGEST, Window
from agentic_trading.governance.policy import NAME
from agentic_trading.governance.prices import ModelPrice, Price
from agentic_trading.llm.envelope import DEFAULT_TENANT, Effort, EnvelopeWorkflow, LLMProvider
from agentic_trading.llm.envelope_rules import close_name
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.models import Capability, Thinking
from agentic_trading.llm.provider import MAX_ANSWER_BYTES, fault_of
from agentic_trading.llm.redaction import Redaction
from agentic_trading.platform.errors import (
    ConfigError,
    ConfigProblem,
    allowed_text,
    found_text,
    nearest_origin,
)
from agentic_trading.structured.feedback import near_miss

SMALLEST_ANSWER_LIMIT = 1024
_PROVIDER = re.compile(r"[a-z][a-z0-9._-]{0,63}")
_LANE = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


# The message of a validator's error is the text of the allowed values.


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


MOST_CONCURRENT: Final = 256

_KAFKA = re.compile(r"kafka://[\w.\[\]:-]+:\d{1,5}(,[\w.\[\]:-]+:\d{1,5})*", re.ASCII)
_TLS_FILES: Final = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_USD = re.compile(r"[0-9]{1,7}(\.[0-9]{1,9})?")


def _tenant(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError("1 to 128 letters, digits and ._@-, no dot or dash in front")
    return name


def _usd(value: Any) -> Decimal:
    """Return dollars exactly as written; a float is refused, as it is not the amount that was written."""
    text = str(value) if isinstance(value, Decimal) or type(value) is int else value
    if isinstance(text, str) and _USD.fullmatch(text) and Decimal(text) * NANO <= LARGEST:
        return Decimal(text)
    is_amount = isinstance(value, float) and 0 <= value < LARGEST // NANO
    example = f"{value:.9f}".rstrip("0").rstrip(".") if is_amount else "25"
    raise ValueError(
        f'dollars as text, such as "{example}", up to "{LARGEST // NANO}", nine decimals at most'
    )


def redis_address(address: str) -> str:
    """Return the address of a Redis as it is; raises `ValueError` with what is allowed, for anything else."""
    try:
        parts = urlsplit(address)
        options = {
            name
            for name, _ in parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        }
        place = parts.path if parts.scheme == "unix" else parts.hostname
        is_one = parts.scheme in {"redis", "rediss", "unix"} and bool(place) and parts.port != 0
        is_one &= options <= (_TLS_FILES if parts.scheme == "rediss" else frozenset())
    except ValueError:  # a port that is no number
        is_one = False
    if not is_one:
        files = ", ".join(sorted(_TLS_FILES))
        raise ValueError(
            f"redis://HOST:PORT, rediss://HOST:PORT or unix://PATH, behind a ? only {files} of rediss"
        )
    return address


def _bus_address(address: str) -> str:
    if _KAFKA.fullmatch(address):
        return address
    with suppress(ValueError):
        place = urlsplit(redis_address(address))
        if not place.query and (place.scheme == "unix" or (place.path.strip("/") or "0").isdecimal()):
            return address
    raise ValueError(
        "kafka://HOST:PORT, several with commas between, redis://HOST:PORT, rediss://HOST:PORT or unix://PATH"
    )


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError) as e:
        raise ValueError("the name of a time zone, such as UTC or America/New_York") from e
    return name


def _path(value: Any) -> Any:
    if value == "":
        raise ValueError("a path, . for the working directory")
    return value


def _concurrency(number: int) -> int:
    if not 1 <= number <= MOST_CONCURRENT:
        raise ValueError(f"1 to {MOST_CONCURRENT}")
    return number


def _repairable(kind: FailureKind) -> FailureKind:
    if kind not in FALLBACK_KINDS:
        raise ValueError(f"failures that another model may not have: {', '.join(sorted(FALLBACK_KINDS))}")
    return kind


def _may_fall_back(workflow: EnvelopeWorkflow) -> EnvelopeWorkflow:
    if workflow is EnvelopeWorkflow.EXECUTION:
        raise ValueError(
            "analysis, planning or general: an execution is bound to its model, and never falls back"
        )
    return workflow


def _package(name: str) -> str:
    if not name.strip():
        raise ValueError("the name of an installed package, such as agentic-trading")
    return name


PackageName = Annotated[StrictStr, AfterValidator(_package)]
TenantId = Annotated[StrictStr, AfterValidator(_tenant)]
PathValue = Annotated[Path, BeforeValidator(_path)]
Usd = Annotated[Decimal, BeforeValidator(_usd), PlainSerializer(lambda usd: f"{usd:f}", when_used="json")]


class LedgerConfig(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """Where budgets are counted: on the server at `url`, which workers share; without one, in this process."""

    url: Annotated[StrictStr, AfterValidator(redis_address)] | None = Field(default=None, repr=False)


class BusConfig(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """The bus: on the servers at `url`, which clients and workers share; without one, within this process.

    Buses of different `namespace` on the same servers know nothing of each other. Connections are encrypted once one of the
    files or `username` is given (to a Redis, by `rediss://`): `ca_file` has the authorities, the system's if left out, `certificate_file` and `key_file` are this client's own,
    and the password of `username` is all that stands in `password_file`.
    """

    url: Annotated[StrictStr, AfterValidator(_bus_address)] | None = Field(default=None, repr=False)
    namespace: Annotated[StrictStr, AfterValidator(lambda name: name and _tenant(name))] = ""
    max_message_bytes: Annotated[StrictInt, Field(ge=4096, le=1 << 24)] = MAX_MESSAGE_BYTES
    ca_file: PathValue | None = None
    certificate_file: PathValue | None = None
    key_file: PathValue | None = None
    username: StrictStr = ""
    password_file: PathValue | None = None

    @property
    def is_on_kafka(self) -> bool:
        """Whether its servers are a Kafka; else they are a Redis, if there are any."""
        return self.url is not None and self.url.startswith("kafka:")

    @property
    def is_encrypted(self) -> bool:
        """Whether connections are encrypted."""
        return bool(self.username or self.ca_file or self.certificate_file)


class FallbackConfig(BaseModel, frozen=True, extra="forbid"):
    """Which models are asked, in this order, when a call of a workflow fails for a reason among `on`."""

    to: Annotated[tuple[ModelName, ...], Field(min_length=1)]
    on: tuple[Annotated[FailureKind, AfterValidator(_repairable)], ...] = tuple(sorted(FALLS_BACK_ON))


class TenantConfig(BaseModel, frozen=True, extra="forbid"):
    """A tenant that is served, and the limit that stands for it until an operator sets another one.

    `provider_keys` is `own` where its calls may be sent with keys of its own alone, from `secrets_folder/ID`.
    """

    budget_usd: Usd | None = None
    window: Window = Window.NONE
    calls: Annotated[StrictInt, Field(ge=0, le=LARGEST)] | None = None
    provider_keys: Literal["own", "shared"] = "shared"


@dataclass(frozen=True, slots=True)
class LoadedFrom:
    """What is known beside the values of a loaded configuration and is no part of it: two of them are equal.

    `origins` says where each value is from, by its place; the place of a table ends in a dot. `secrets` are keys
    that the environment had, by provider. `redaction` knows them, and what else is secret.
    """

    origins: Mapping[str, str] | None = field(default=None, compare=False)
    secrets: Mapping[str, SecretStr] = field(default_factory=dict, compare=False, repr=False)
    redaction: Redaction = field(default_factory=Redaction, compare=False)


class PlatformConfig(BaseModel, frozen=True, extra="forbid"):
    """Everything that a platform is made from; making one reads no file and no environment.

    `folder` holds the log, or that of each `name` in a folder below it; None keeps it in memory. `durability` None is that of the mode.
    Workers take envelopes of `workflows`, and finish them when they are on the log's stream, or in the store of this machine
    (`ack_after`; None is the stream of a Kafka, and no stream on a Redis). `models` says which model an agent asks, by workflow. `checks` and `rules` name an
    installed package by schema `$id`: its check, or its rule for the provider `rules`, is loaded. Without `tenants` there is one, `default`, without a limit.
    Raises `ConfigError` that names every problem. `load_config` makes one from a file and the environment.
    """

    name: Annotated[StrictStr, AfterValidator(lambda name: name and _tenant(name))] = ""
    folder: PathValue | None = None
    mode: Literal["backtest", "paper"] = "paper"
    durability: Literal["group", "relaxed"] | None = None
    concurrency: Annotated[StrictInt, AfterValidator(_concurrency)] = 4
    workflows: Annotated[tuple[EnvelopeWorkflow, ...], Field(min_length=1)] = tuple(EnvelopeWorkflow)
    ack_after: Literal["stream", "store"] | None = None
    zone: Annotated[StrictStr, AfterValidator(_zone)] = "UTC"
    models_file: PathValue | None = None
    prices_file: PathValue | None = None
    weights_folder: PathValue | None = None
    policy: PathValue | None = None
    principals_folder: PathValue | None = None
    sign_as: Annotated[StrictStr, AfterValidator(lambda name: name and _tenant(name))] = ""
    secrets_folder: PathValue | None = None
    ledger: LedgerConfig = LedgerConfig()
    bus: BusConfig = BusConfig()
    models: Mapping[EnvelopeWorkflow, ModelName] = Field(default_factory=dict)
    providers: Mapping[ProviderName, ProviderConfig] = Field(default_factory=dict)
    fallback: Mapping[Annotated[EnvelopeWorkflow, AfterValidator(_may_fall_back)], FallbackConfig] = Field(
        default_factory=dict
    )
    tenants: Mapping[TenantId, TenantConfig] = Field(default_factory=dict)
    checks: Mapping[StrictStr, PackageName] = Field(default_factory=dict)
    rules: Mapping[StrictStr, PackageName] = Field(default_factory=dict)
    _loaded: LoadedFrom = PrivateAttr(default_factory=LoadedFrom)

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Raise one `ConfigError` for all problems, within a value and between values."""
        origins = (info.context.origins if isinstance(info.context, LoadedFrom) else None) or {}
        try:
            config = handler(value)
        except ValidationError as e:
            raise ConfigError(_problems(e.errors(include_url=False), origins)) from None
        if problems := list(_cross_problems(config, origins)):
            raise ConfigError(problems)
        return config

    @override
    def model_post_init(self, context: Any, /) -> None:
        """Keep where the values are from, and the keys that were found with them."""
        if isinstance(context, LoadedFrom):
            self._loaded = context
        keys = (key.get_secret_value().strip() for key in self._loaded.secrets.values())
        passwords = [urlsplit(url or "").password or "" for url in (self.ledger.url, self.bus.url)]
        self._loaded.redaction.add(*keys, *passwords, *map(unquote, passwords))

    def origin_of(self, place: str) -> str:
        """Return where the value at a place such as `ledger.url` is from.

        That is a file, a variable, `argument` or `default`; `code` for a configuration that was not loaded.
        """
        origins = self._loaded.origins
        if origins is None:
            return "code"
        while place:
            if origin := origins.get(place):
                return origin
            place = place.rpartition(".")[0]
        return "default"

    @property
    def is_loaded(self) -> bool:
        """Whether it was loaded from a file and the environment."""
        return self._loaded.origins is not None

    def secret_of(self, provider: str) -> SecretStr | None:
        """Return the key that the environment had for a provider, if this was loaded and it had one."""
        return self._loaded.secrets.get(provider)

    @property
    def redaction(self) -> Redaction:
        """What takes secrets out: it knows those of this configuration and of its copies, and each key that was handed out."""
        return self._loaded.redaction

    @property
    def tenant_ids(self) -> tuple[str, ...]:
        """The tenants that are served."""
        return tuple(self.tenants) or (DEFAULT_TENANT,)

    def public_values(self) -> dict[str, Any]:
        """Return the whole tree as JSON values, `PlatformConfig` again when handed back; a password in an address is hidden."""
        values = self.model_dump(mode="json")
        for table in ("ledger", "bus"):
            if (url := values[table]["url"]) is not None:
                values[table]["url"] = without_password(url)
        return values

    @property
    def config_sha256(self) -> str:
        """The SHA-256 over the canonical JSON of the whole tree, without secrets."""
        values = self.public_values()
        named = {name: values.pop(name) for name in ("checks", "rules")}
        return sha256_hex(canonical_bytes(values | {name: table for name, table in named.items() if table}))


def without_password(url: str) -> str:
    """Return an address with a mark in place of user and password."""
    parts = urlsplit(url)
    _, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"…@{host}").geturl() if at else url


_TABLES: Final[Mapping[tuple[str, ...], type[BaseModel]]] = MappingProxyType({
    (): PlatformConfig,
    ("ledger",): LedgerConfig,
    ("bus",): BusConfig,
    ("providers", "*"): ProviderConfig,
    ("providers", "*", "models", "*"): ModelConfig,
    ("providers", "*", "models", "*", "price"): PriceConfig,
    ("fallback", "*"): FallbackConfig,
    ("tenants", "*"): TenantConfig,
})
_NAMED: Final = frozenset({
    ("checks",),
    ("rules",),
    ("providers",),
    ("providers", "*", "models"),
    ("fallback",),
    ("tenants",),
})


def keys_at(place: Sequence[str | int]) -> list[str]:
    """Return the keys that a table at `place` may have; none where it is no table, or one with names of its own."""
    pattern: tuple[str, ...] = ()
    for part in place:
        pattern = (*pattern, "*" if pattern in _NAMED else str(part))
    table = _TABLES.get(pattern)
    return list(table.model_fields) if table is not None else []


def _problems(errors: Sequence[ErrorDetails], origins: Mapping[str, str]) -> Iterator[ConfigProblem]:
    for error in errors:
        parts = [str(part) for part in error["loc"] if part != "[key]"]
        place = ".".join(parts)
        match error["type"]:
            case "extra_forbidden":
                keys = keys_at(parts[:-1])
                near = near_miss(parts[-1], keys)
                yield _problem(
                    origins, place, "no key", ", ".join(keys) + (f"; did you mean {near}?" if near else "")
                )
            case "missing":
                yield _problem(origins, place, "left out", f"a value for {parts[-1]}")
            case "too_short" if any(error["loc"] == other["loc"][:-1] for other in errors):
                continue  # its items are wrong, and counted as absent
            case _:
                yield _problem(origins, place, found_text(parts, error["input"]), allowed_text(error))


def _cross_problems(config: PlatformConfig, origins: Mapping[str, str]) -> Iterator[ConfigProblem]:
    """Yield what is wrong between values that are right by themselves."""
    for tenant, row in config.tenants.items():
        if row.provider_keys == "own" and config.secrets_folder is None:
            found, allowed = '"own", and no folder has keys', 'a secrets_folder beside it, or "shared"'
            yield _problem(origins, f"tenants.{tenant}.provider_keys", found, allowed)
    for provider, served in config.providers.items():
        names = [model.model for model in served.models]
        for name in sorted({name for name in names if names.count(name) > 1}):
            found = f"a list with {names.count(name)} rows for {name}"
            yield _problem(origins, f"providers.{provider}.models", found, "one row a model")
    bus, is_on_redis = config.bus, config.bus.url is not None and not config.bus.is_on_kafka
    waits, cert = f'"{config.ack_after}", and the bus is within this process', bus.certificate_file
    is_plain, plain = (bus.url or "").startswith("redis:"), "given, and redis:// encrypts nothing"
    for is_wrong, place, value, instead in (
        (config.ack_after and bus.url is None, "ack_after", waits, "left out, or a bus.url beside it"),
        (bool(bus.username) != bool(bus.password_file), "bus.password_file", bus.password_file, "both or neither, with bus.username"),
        (cert and is_on_redis, "bus.certificate_file", f"{cert}, and the bus is on Redis", "left out, or a bus on Kafka"),
        (is_plain and (bus.ca_file or bus.username), "bus.url", plain, "rediss://HOST:PORT, to which both belong"),
        (bus.key_file and not cert, "bus.key_file", bus.key_file, "one together with its bus.certificate_file"),
    ):  # fmt: skip
        if is_wrong:
            yield _problem(origins, place, str(value), instead)


def _problem(origins: Mapping[str, str], place: str, found: str, allowed: str) -> ConfigProblem:
    return ConfigProblem(nearest_origin(origins, place) or "PlatformConfig", place, found, allowed)


RunMode = Literal["backtest", "paper"]


BACKTEST_APART: Final = (
    "a bus.namespace for backtests (AGENTIC_BUS__NAMESPACE): their workers take an envelope's as_of for the present, "
    "and would run live envelopes of a shared bus whose deadline is over"
)
