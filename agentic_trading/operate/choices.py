"""Choices that several commands share: providers, budget limits, and a model of your own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final
from urllib.parse import urlsplit

from agentic_trading.clock import SystemClock
from agentic_trading.llm.envelope import DEFAULT_TENANT, EnvelopeWorkflow, LLMProvider
from agentic_trading.platform.config import (
    ModelConfig,
    PlatformConfig,
    ProviderConfig,
    provider_and_model,
)
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.urls import redis_address

HOSTED: Final = tuple(
    provider.value
    for provider in LLMProvider
    if provider not in {LLMProvider.LOCAL, LLMProvider.RULES, LLMProvider.SCRIPTED}
)
"""Shipped providers that are reached over a network."""


MODELS: Final = (*HOSTED, LLMProvider.LOCAL.value)
"""Shipped providers with a model. Calls take time and may cost money."""


CONFIGURED: Final = "config"
"""Value of `--provider` for the models of the configuration, each with its fallback."""


WITHOUT_MODEL: Final = (LLMProvider.RULES.value, "recorded")


PROVIDERS: Final = (*WITHOUT_MODEL, *MODELS, CONFIGURED)
"""Values of `--provider`, in addition to the providers of the configuration."""


def own_model_row(model: str, price: str | None, context: int | None) -> ModelConfig | None:
    """Return the row of a model described by `--price` and `--context`, or None without both.

    The row promises little: a temperature, and no schema that the server enforces.

    Raises:
        OptionError: If the price is invalid, or one of model, price and context is missing.

    """
    if price is None and context is None:
        return None
    if not model:
        raise OptionError("--model", "left out", "the name of the model on your server")
    if price is None:
        raise OptionError("--price", "left out, and --context is given", _PRICE)
    if context is None:
        allowed = "how many tokens prompt and answer may have together, such as 32768"
        raise OptionError("--context", "left out, and --price is given", allowed)
    try:
        per_million = [Decimal(part.strip()) for part in price.split(",")]
        rates = dict(zip(("input", "output"), (each * 1000 for each in per_million), strict=True))
        row = {"model": model, "context_tokens": context, "max_output_tokens": context, "price": rates}
        checked = {"source": "--price and --context", "checked_on": SystemClock().now().date()}
        return ModelConfig.model_validate({**row, **checked})
    except (ArithmeticError, ValueError) as e:
        raise OptionError("--price", repr(price), _PRICE) from e


_PRICE: Final = "IN,OUT: US dollars per million tokens of prompt and answer, such as 0,0 or 0.15,0.6"


def with_model(config: PlatformConfig, provider: str, row: ModelConfig | None) -> PlatformConfig:
    """Return a configuration in which `provider` has the model of `row`.

    The row replaces one with the same name.

    Raises:
        OptionError: If the provider has no models of its own.

    """
    if row is not None and provider in (*WITHOUT_MODEL, LLMProvider.LOCAL, CONFIGURED, ""):
        allowed = f"the price of a model of --provider {listed(HOSTED)}, or of a configured one"
        raise OptionError("--price", "given", allowed)
    if row is None or provider not in config.providers:
        return config
    served = config.providers[provider]
    others = tuple(other for other in served.models if other.model != row.model)
    changed = served.model_copy(update={"models": (*others, row)})
    return config.model_copy(update={"providers": {**config.providers, provider: changed}})


def listed(names: Sequence[str]) -> str:
    """Return at least two names as a list: `a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def check_ledger_url(url: str) -> None:
    """Raise `OptionError` for an invalid URL of a ledger. The URL is not shown."""
    try:
        redis_address(url)
    except ValueError as e:
        raise OptionError("--ledger", "not the URL of a ledger", str(e)) from e


WORKFLOWS: Final = (EnvelopeWorkflow.ANALYSIS, EnvelopeWorkflow.EXECUTION)
"""The default workflows of a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOptions:
    """The provider of a session's calls.

    Attributes:
        config: The configuration.
        provider: The provider of every call. `CONFIGURED` means the models of the configuration, each with
            its fallback.
        model: The model. Empty means the provider's default.

    """

    config: PlatformConfig = field(default_factory=lambda: PlatformConfig(mode="backtest"))
    provider: str = "rules"
    model: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether workers in other processes make the calls."""
        return self.config.bus.url is not None

    @property
    def tenant(self) -> str:
        """The only tenant of the configuration, or `default`."""
        tenants = self.config.tenant_ids
        return tenants[0] if len(tenants) == 1 else DEFAULT_TENANT

    @property
    def workflows(self) -> tuple[EnvelopeWorkflow, ...]:
        """The workflows that call models."""
        return WORKFLOWS

    @property
    def asks_models(self) -> bool:
        """Whether calls take time and may cost money."""
        return self.provider not in WITHOUT_MODEL

    @property
    def asked(self) -> Mapping[str, ProviderConfig]:
        """The providers that may be called, by name. With `CONFIGURED`, those of a model or fallback."""
        rows = self.config.providers
        if self.provider == CONFIGURED:
            models, fallback = self.config.models, self.config.fallback
            named = [models[workflow] for workflow in self.workflows if workflow in models]
            named += [name for each in self.workflows if each in fallback for name in fallback[each].to]
            names = dict.fromkeys(provider_and_model(name)[0] for name in named)
            return {name: rows[name] for name in names if name in rows}
        return {self.provider: rows.get(self.provider, ProviderConfig())} if self.asks_models else {}


LEAST_BUDGET_USD = Decimal("1e-9")


MOST_BUDGET_USD = 9_000_000
"""In nano-dollars below 2^53, so that every JSON reader keeps it exact."""


def pluralize(number: int, noun: str) -> str:
    """Return a count with its noun: `1 bar`, `2,576 bars`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def host_of(url: str) -> str:
    """Return a URL without its secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or parts.path}" + (f":{parts.port}" if parts.port else "")
