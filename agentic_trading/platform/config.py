"""The configuration of a platform: providers, models, prices, tenants, bus and ledger."""

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import unquote, urlsplit
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
    StrictBool,
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
from agentic_trading.llm.sealed_command import SealedCommand
from agentic_trading.platform.errors import (
    ConfigError,
    ConfigProblem,
    allowed_text,
    found_text,
    nearest_origin,
)
from agentic_trading.platform.urls import bus_address, redis_address, without_password
from agentic_trading.structured.feedback import near_miss
from agentic_trading.trading_limits import Economics, LossLimits

SMALLEST_ANSWER_LIMIT = 1024
_PROVIDER = re.compile(r"[a-z][a-z0-9._-]{0,63}")
_LANE = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


# A validator raises the text of the allowed values, so that `allowed_text` can make every message.


def _provider_name(name: str) -> str:
    if not _PROVIDER.fullmatch(name):
        raise ValueError("1 to 64 lowercase letters, digits, and ._-, starting with a letter")
    if close := close_name(name):
        raise ValueError(f"a name that does not resemble a built-in one. Did you mean {close}?")
    return name


def _model_name(name: str) -> str:
    provider, slash, model = name.partition("/")
    if not slash or not model:
        raise ValueError('PROVIDER/MODEL, such as "anthropic/claude-sonnet-5-5"')
    _provider_name(provider)
    return name


def _secret_name(name: str) -> str:
    # Vendors' keys start with sk-. A pasted key would be printed by `config show`.
    if not NAME.fullmatch(name) or name.startswith("sk-"):
        raise ValueError("the name of the file or variable that contains the key, not the key itself")
    return name


def _web_address(address: str) -> str:
    if fault_of(address):
        raise ValueError("http(s)://HOST[:PORT][/PATH], without user and password")
    return address


ProviderName = Annotated[StrictStr, AfterValidator(_provider_name)]
ModelName = Annotated[StrictStr, AfterValidator(_model_name)]


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number, not true or false")  # noqa: TRY004 - pydantic's way to refuse
    return value


_Count = Annotated[NonNegativeInt, BeforeValidator(_no_truth)]
_Positive = Annotated[PositiveInt, BeforeValidator(_no_truth)]


_Multipliers = dict[StrictStr, tuple[_Positive, _Positive]]

_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{1,12})?")


def _decimal_of_text(value: object) -> object:
    """Return a decimal number in quotes as a `Decimal`. Environment variables hold only text."""
    return Decimal(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else value


_Price = Annotated[Price, BeforeValidator(_decimal_of_text), BeforeValidator(_no_truth)]


class PriceConfig(BaseModel, frozen=True, extra="forbid"):
    """The price of a model, in nano-dollars per token. Fractions are allowed.

    Attributes:
        input: Price of an uncached input token.
        output: Price of an output token.
        cache_read: Price of an input token read from the cache. None means the price of `input`.
        cache_write_5m, cache_write_1h: Price of an input token written to the cache for 5 minutes or 1 hour.
            None means the price of `input`.
        inference_geo, speed, service_tier: Multipliers as in a price file, for example `{"on_demand": (1,
            1)}`.

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
    """A model of a provider: the fields of `Capability` without `provider`, and a price.

    Calls to a model without a price are refused, because an unknown price is not zero.

    Attributes:
        price: The price. None takes it from `prices_file`, the adapter, or the shipped table.
        source: Where the facts of this row are documented.
        checked_on: The day on which they were checked.

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
        """Return the capability row of the model at `provider`."""
        return Capability(provider=LLMProvider(provider), **self.model_dump(exclude={"price"}))

    def price_of(self, provider: str) -> ModelPrice | None:
        """Return the price of the model at `provider`, without a first day, or None."""
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
    except CanonicalError as e:  # because `config_sha256` could not be computed
        raise ValueError("text, booleans, finite numbers of at most 21 digits, lists, and tables") from e
    return options


def _lane(name: str) -> str:
    if name and not _LANE.fullmatch(name):
        raise ValueError("1 to 32 lowercase letters, digits, and dashes, starting with a letter or digit")
    return name


def _answer_bytes(size: int) -> int:
    if not SMALLEST_ANSWER_LIMIT <= size <= MAX_ANSWER_BYTES:
        raise ValueError(
            f"{SMALLEST_ANSWER_LIMIT} to {MAX_ANSWER_BYTES} bytes. A larger answer may not fit on the bus"
        )
    return size


class ProviderConfig(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """A provider: its adapter, URL, key and models.

    Attributes:
        adapter: A shipped adapter, an entry point, or `module:factory`. None means the provider's name.
        lane: The lane of its envelopes. A lane has its own topics, read only by workers with this lane.
        base_url: The URL of the server, without user and password. None means the vendor's.
        secret: The name of its key: a file in `secrets_folder`, or in capitals a variable. None means
            `NAME_api_key`.
        max_answer_bytes: The most bytes read of an answer, after decompression. A longer answer is cut off.
        options: Options of the adapter.
        models: Rows for the tables of models and prices. They take precedence over shipped rows.

    """

    adapter: Annotated[StrictStr, Field(min_length=1)] | None = None
    lane: Annotated[StrictStr, AfterValidator(_lane)] = ""
    base_url: Annotated[StrictStr, AfterValidator(_web_address)] | None = Field(default=None, repr=False)
    secret: Annotated[StrictStr, AfterValidator(_secret_name)] | None = None
    max_answer_bytes: Annotated[StrictInt, AfterValidator(_answer_bytes)] = MAX_ANSWER_BYTES
    options: Annotated[Mapping[str, JsonValue], AfterValidator(_spelled)] = Field(default_factory=dict)
    models: tuple[ModelConfig, ...] = ()

    def adapter_of(self, name: str) -> str:
        """Return the adapter's name for the provider `name`."""
        return self.adapter or name

    def secret_of(self, name: str) -> str:
        """Return the name of the secret for the provider `name`."""
        return self.secret or f"{name}_api_key"


def provider_and_model(name: str) -> tuple[str, str]:
    """Return the two parts of `PROVIDER/MODEL`. The name of the model may contain slashes."""
    provider, _, model = name.partition("/")
    return provider, model


MOST_CONCURRENT: Final = 256

_USD = re.compile(r"[0-9]{1,7}(\.[0-9]{1,9})?")


def _tenant(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError("1 to 128 letters, digits, and ._@-, not starting with a dot or dash")
    return name


def _usd(value: Any) -> Decimal:
    # A float is refused because it is not exactly the amount that was written: 0.1 has no exact float.
    text = str(value) if isinstance(value, Decimal) or type(value) is int else value
    if isinstance(text, str) and _USD.fullmatch(text) and Decimal(text) * NANO <= LARGEST:
        return Decimal(text)
    is_amount = isinstance(value, float) and 0 <= value < LARGEST // NANO
    example = f"{value:.9f}".rstrip("0").rstrip(".") if is_amount else "25"
    raise ValueError(
        f'dollars as text, such as "{example}", up to "{LARGEST // NANO}", with at most nine decimals'
    )


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError) as e:
        raise ValueError("the name of a time zone, such as UTC or America/New_York") from e
    return name


def _path(value: Any) -> Any:
    if value == "":
        raise ValueError("a path. Use . for the working directory")
    return value


_LEAST_SEGMENT_BYTES: Final = 64 << 10


def _concurrency(number: int) -> int:
    if not 1 <= number <= MOST_CONCURRENT:
        raise ValueError(f"1 to {MOST_CONCURRENT}")
    return number


def _segment_bytes(number: int) -> int:
    if number < _LEAST_SEGMENT_BYTES:
        raise ValueError(f"{_LEAST_SEGMENT_BYTES} or more")
    return number


def _sealed_command(text: str) -> str:
    SealedCommand.parse(text)
    return text


def _repairable(kind: FailureKind) -> FailureKind:
    if kind not in FALLBACK_KINDS:
        raise ValueError(f"a failure that another model may not have: {', '.join(sorted(FALLBACK_KINDS))}")
    return kind


def _may_fall_back(workflow: EnvelopeWorkflow) -> EnvelopeWorkflow:
    if workflow is EnvelopeWorkflow.EXECUTION:
        raise ValueError(
            "analysis, planning, or general. Executions are bound to their model and never fall back"
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
    """The ledger that counts budgets.

    Attributes:
        url: The Redis of a ledger that workers share. None keeps the ledger in this process.

    """

    url: Annotated[StrictStr, AfterValidator(redis_address)] | None = Field(default=None, repr=False)


class LogConfig(BaseModel, frozen=True, extra="forbid"):
    """The segments of logs.

    Attributes:
        segment_bytes: The size from which a segment is sealed, at least 65536. A segment of 4 MiB is also sealed
            at the end of a UTC day.
        compress: Compress sealed segments with zstd, to about a seventh of their size. A query then reads them
            three times slower.
        checkpoint_file: Append the end of the log to this file at every seal, every 60 seconds, and on closing.
            Several logs can share it. Keep it where the writers of the log cannot change it.
        sealed_command: Run this program for each sealed segment, in order, until it exits with 0. `{path}` is the
            segment, then the file of seals. `{log}` is the hash of the log's first line. No shell is used.

    """

    segment_bytes: Annotated[StrictInt, AfterValidator(_segment_bytes)] = 64 << 20
    compress: StrictBool = False
    checkpoint_file: PathValue | None = None
    sealed_command: Annotated[StrictStr, AfterValidator(_sealed_command)] | None = None


class BusConfig(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """The message bus between clients and workers.

    Connections to Kafka are encrypted if `ca_file`, `certificate_file` or `username` is set, and to Redis if
    the URL starts with `rediss://`.

    Attributes:
        url: The Kafka or Redis that clients and workers share. None keeps the bus in this process.
        namespace: Separates buses on the same servers. Empty means no prefix on Kafka, and `agentic` on
            Redis.
        max_message_bytes: Size limit of a message. Topics with room for several records allow a multiple of
            it.
        ca_file: Trusted certificate authorities. None means those of the system.
        certificate_file: The client certificate, for Kafka.
        key_file: The private key of the client certificate, unless it is in `certificate_file`.
        username: The user name: for SCRAM-SHA-512 on Kafka, or of the ACL on Redis.
        password_file: A file that contains only the password.

    """

    url: Annotated[StrictStr, AfterValidator(bus_address)] | None = Field(default=None, repr=False)
    namespace: Annotated[StrictStr, AfterValidator(lambda name: name and _tenant(name))] = ""
    max_message_bytes: Annotated[StrictInt, Field(ge=4096, le=1 << 24)] = MAX_MESSAGE_BYTES
    ca_file: PathValue | None = None
    certificate_file: PathValue | None = None
    key_file: PathValue | None = None
    username: StrictStr = ""
    password_file: PathValue | None = None

    @property
    def is_on_kafka(self) -> bool:
        """Whether the bus is a Kafka. If false, it is a Redis or in this process."""
        return self.url is not None and self.url.startswith("kafka:")

    @property
    def is_encrypted(self) -> bool:
        """Whether connections are encrypted because of a certificate file or a user name."""
        return bool(self.username or self.ca_file or self.certificate_file)


class FallbackConfig(BaseModel, frozen=True, extra="forbid"):
    """Other models for a workflow, called in order if a call fails.

    Attributes:
        to: The models, as `PROVIDER/MODEL`.
        on: The failures that cause a fallback.

    """

    to: Annotated[tuple[ModelName, ...], Field(min_length=1)]
    on: tuple[Annotated[FailureKind, AfterValidator(_repairable)], ...] = tuple(sorted(FALLS_BACK_ON))


class TenantConfig(BaseModel, frozen=True, extra="forbid"):
    """A tenant and its budget. A limit that an operator sets in the same place takes precedence.

    Attributes:
        budget_usd: The most US dollars that the tenant may spend per window, as `Decimal`, int, or text.
        window: The window in which spending adds up. `none` never resets.
        calls: The most calls per window.
        provider_keys: `own` uses only keys from `secrets_folder/TENANT`. `shared` also uses shared keys.

    """

    budget_usd: Usd | None = None
    window: Window = Window.NONE
    calls: Annotated[StrictInt, Field(ge=0, le=LARGEST)] | None = None
    provider_keys: Literal["own", "shared"] = "shared"


@dataclass(frozen=True, slots=True)
class LoadedFrom:
    """The sources of a loaded configuration. They do not take part in comparisons.

    Attributes:
        origins: The source of each value by place. The place of a table ends in a dot. None: not loaded.
        secrets: Keys found in the environment, by provider.
        redaction: The secrets to remove from records.

    """

    origins: Mapping[str, str] | None = field(default=None, compare=False)
    secrets: Mapping[str, SecretStr] = field(default_factory=dict, compare=False, repr=False)
    redaction: Redaction = field(default_factory=Redaction, compare=False)


class PlatformConfig(BaseModel, frozen=True, extra="forbid"):
    """The configuration of a platform. Creating one reads no file and no environment variable.

    Use `load_config` to read a file and the environment.

    Attributes:
        name: The name of this gateway. Its log is in `folder/name`, or in `folder` without a name.
        folder: The folder of the logs. None keeps the log in memory.
        mode: `paper` or `backtest`. Worker processes of a backtest use `as_of` as the current time.
        durability: `group`: records are on disk before an answer is given. `relaxed`: they are written later.
            None means `relaxed` for a backtest without a shared bus, otherwise `group`.
        concurrency: Concurrent calls, 1 to 256. Executions have as many slots in addition.
        workflows: The workflows whose envelopes workers take.
        ack_after: When a worker finishes an envelope: when its records are on the log's stream (`stream`), or
            in the log of this machine (`store`). None means `stream` on Kafka. On Redis it means `store`,
            without a stream.
        zone: The time zone in which days and months of budgets begin, and days of loss limits.
        models_file, prices_file: Tables of models and prices, in addition to the shipped ones.
        weights_folder: The folder with weights of local models. `load_config` has a default.
        policy: The policy file: permissions and rates.
        principals_folder: The folder with the signing keys of principals.
        sign_as: The principal of clients in this process.
        secrets_folder: The folder with provider keys.
        log: The segments of logs.
        ledger, bus: The ledger and the bus.
        models: The model that an agent calls, as `PROVIDER/MODEL`, by workflow.
        providers: The providers, by name.
        fallback: Other models for failed calls, by workflow. Not allowed for executions.
        tenants: The tenants, by id. Empty means one tenant, `default`, without a limit.
        risk, economics: The limits of trading sessions: on losses, and on the cost of questions.
        checks, rules: The package whose check, or rule for the provider `rules`, is loaded, by schema `$id`.

    Raises:
        ConfigError: If a value is invalid. The error lists all problems.

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
    log: LogConfig = LogConfig()
    ledger: LedgerConfig = LedgerConfig()
    bus: BusConfig = BusConfig()
    models: Mapping[EnvelopeWorkflow, ModelName] = Field(default_factory=dict)
    providers: Mapping[ProviderName, ProviderConfig] = Field(default_factory=dict)
    fallback: Mapping[Annotated[EnvelopeWorkflow, AfterValidator(_may_fall_back)], FallbackConfig] = Field(
        default_factory=dict
    )
    tenants: Mapping[TenantId, TenantConfig] = Field(default_factory=dict)
    risk: LossLimits = LossLimits()
    economics: Economics = Economics()
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
        """Keep the sources of the values, and register secrets for redaction."""
        if isinstance(context, LoadedFrom):
            self._loaded = context
        keys = (key.get_secret_value().strip() for key in self._loaded.secrets.values())
        passwords = [urlsplit(url or "").password or "" for url in (self.ledger.url, self.bus.url)]
        self._loaded.redaction.add(*keys, *passwords, *map(unquote, passwords))

    def origin_of(self, place: str) -> str:
        """Return the source of the value at a place such as `ledger.url`.

        That is a file, a variable, an option, `argument` or `default`. It is `code` if the configuration was
        not loaded.
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
        """Whether the configuration was loaded from a file and the environment."""
        return self._loaded.origins is not None

    def secret_of(self, provider: str) -> SecretStr | None:
        """Return the key of a provider from the environment, or None."""
        return self._loaded.secrets.get(provider)

    @property
    def redaction(self) -> Redaction:
        """The secrets to remove from records, shared with copies. Keys are added when they are used."""
        return self._loaded.redaction

    @property
    def tenant_ids(self) -> tuple[str, ...]:
        """The ids of the tenants."""
        return tuple(self.tenants) or (DEFAULT_TENANT,)

    def public_values(self) -> dict[str, Any]:
        """Return all values as JSON values, without passwords. `PlatformConfig` accepts the result."""
        values = self.model_dump(mode="json")
        for table in ("ledger", "bus"):
            if (url := values[table]["url"]) is not None:
                values[table]["url"] = without_password(url)
        return values

    @property
    def config_sha256(self) -> str:
        """The SHA-256 of the canonical JSON of all values, without secrets."""
        values = self.public_values()
        # Empty tables are left out, so that configurations without them keep the hash of earlier releases.
        named = {name: values.pop(name) for name in ("checks", "rules", "log", "risk", "economics")}
        named |= {"risk": self.risk.on_record, "economics": self.economics.on_record}
        if self.log == LogConfig():
            named["log"] = {}
        return sha256_hex(canonical_bytes(values | {name: table for name, table in named.items() if table}))


_TABLES: Final[Mapping[tuple[str, ...], type[BaseModel]]] = MappingProxyType({
    (): PlatformConfig,
    ("log",): LogConfig,
    ("ledger",): LedgerConfig,
    ("bus",): BusConfig,
    ("providers", "*"): ProviderConfig,
    ("providers", "*", "models", "*"): ModelConfig,
    ("providers", "*", "models", "*", "price"): PriceConfig,
    ("fallback", "*"): FallbackConfig,
    ("risk",): LossLimits,
    ("economics",): Economics,
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
    """Return the allowed keys of the table at `place`. Empty for other values and tables with free names."""
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
                    origins,
                    place,
                    "an unknown key",
                    ", ".join(keys) + (f". Did you mean {near}?" if near else ""),
                )
            case "missing":
                yield _problem(origins, place, "missing", f"a value for {parts[-1]}")
            case "too_short" if any(error["loc"] == other["loc"][:-1] for other in errors):
                continue  # because pydantic counts items with an error as absent
            case _:
                yield _problem(origins, place, found_text(parts, error["input"]), allowed_text(error))


def _cross_problems(config: PlatformConfig, origins: Mapping[str, str]) -> Iterator[ConfigProblem]:
    """Yield problems between values that are valid alone."""
    for tenant, row in config.tenants.items():
        if row.provider_keys == "own" and config.secrets_folder is None:
            found, allowed = (
                '"own", but secrets_folder is not set',
                '"shared", or "own" with a secrets_folder',
            )
            yield _problem(origins, f"tenants.{tenant}.provider_keys", found, allowed)
    for provider, served in config.providers.items():
        names = [model.model for model in served.models]
        for name in sorted({name for name in names if names.count(name) > 1}):
            found = f"a list with {names.count(name)} rows for {name}"
            yield _problem(origins, f"providers.{provider}.models", found, "one row per model")
    bus, is_on_redis = config.bus, config.bus.url is not None and not config.bus.is_on_kafka
    waits, cert = f'"{config.ack_after}", but bus.url is not set', bus.certificate_file
    is_plain, plain = (bus.url or "").startswith("redis:"), "a redis:// URL, which is not encrypted"
    for is_wrong, place, value, instead in (
        (config.ack_after and bus.url is None, "ack_after", waits, "no value, or a value together with bus.url"),
        (bool(bus.username) != bool(bus.password_file), "bus.password_file", bus.password_file, "both bus.password_file and bus.username, or neither"),
        (cert and is_on_redis, "bus.certificate_file", f"{cert}, but the bus is on Redis", "no value, or a bus on Kafka"),
        (is_plain and (bus.ca_file or bus.username), "bus.url", plain, "rediss://HOST:PORT, if bus.ca_file or bus.username is set"),
        (bus.key_file and not cert, "bus.key_file", bus.key_file, "a file together with bus.certificate_file"),
    ):  # fmt: skip
        if is_wrong:
            yield _problem(origins, place, str(value), instead)


def _problem(origins: Mapping[str, str], place: str, found: str, allowed: str) -> ConfigProblem:
    return ConfigProblem(nearest_origin(origins, place) or "PlatformConfig", place, found, allowed)


RunMode = Literal["backtest", "paper"]


BACKTEST_APART: Final = (
    "a bus.namespace for backtests (AGENTIC_BUS__NAMESPACE). Their workers use as_of as the current time. "
    "On a live bus they would run envelopes whose deadline has passed"
)
