"""Check all that a configuration names: adapters, keys, tables, policy and principals."""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import get_args

from agentic_trading.bus.errors import SigningKeyError
from agentic_trading.bus.signing import read_keys
from agentic_trading.bus.topic import largest_answer
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance.errors import PolicyError
from agentic_trading.governance.policy import Policy
from agentic_trading.governance.prices import PriceBook
from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.models import Capabilities, TableError
from agentic_trading.platform import adapters
from agentic_trading.platform.config import SMALLEST_ANSWER_LIMIT, PlatformConfig, provider_and_model
from agentic_trading.platform.errors import ConfigError, ConfigProblem
from agentic_trading.platform.port_adapters import bus_settings_of
from agentic_trading.platform.settings import secret_variable
from agentic_trading.platform.signing_keys import signing_keys_of
from agentic_trading.platform.tables import tables_of


async def check_platform(config: PlatformConfig, clock: Clock | None = None) -> list[ConfigProblem]:
    """Return all problems that would keep a platform from opening with `config`.

    Args:
        config: The configuration.
        clock: The clock for models that have retired. None means the system clock.

    """
    factories, problems = await asyncio.to_thread(_factories, config)
    try:
        capabilities, prices = await asyncio.to_thread(tables_of, config, factories)
    except ConfigError as e:
        problems += e.problems
        capabilities, prices = await asyncio.to_thread(_shipped)
    except TableError as e:
        place = next(
            (name for name in ("models_file", "prices_file") if getattr(config, name) == e.path), "providers"
        )
        problems.append(_problem(config, place, str(e), "a table with valid rows"))
        capabilities, prices = await asyncio.to_thread(_shipped)
    else:
        problems += model_problems(config, capabilities, prices, (clock or SystemClock()).now())
    for name, factory in factories.items():
        problems += await _check_provider(config, name, factory, capabilities)
    problems += await asyncio.to_thread(_function_problems, config)
    problems += answer_problems(config, config.bus.max_message_bytes)
    problems += await asyncio.to_thread(_bus_problems, config)
    problems += await asyncio.to_thread(lambda: list(principal_problems(config)))
    folder = config.secrets_folder
    if folder is not None and not await asyncio.to_thread(folder.is_dir):
        problems.append(
            _problem(config, "secrets_folder", f"{folder}, which is not a folder", "a folder with keys")
        )
    return problems


def _function_problems(config: PlatformConfig) -> list[ConfigProblem]:
    """Return the checks and rules of packages that cannot be loaded."""
    problems: list[ConfigProblem] = []
    for table in get_args(adapters.Table):
        try:
            adapters.functions_of(config, table)
        except ConfigError as e:
            problems += e.problems
    return problems


def _bus_problems(config: PlatformConfig) -> Sequence[ConfigProblem]:
    """Return problems of the bus files. Does not connect."""
    if config.bus.url is not None:
        try:
            bus_settings_of(config)
        except ConfigError as e:
            return e.problems
    return ()


def _shipped() -> tuple[Capabilities, PriceBook]:
    return Capabilities.load(), PriceBook.load()


def _factories(config: PlatformConfig) -> tuple[dict[str, adapters.Factory], list[ConfigProblem]]:
    factories: dict[str, adapters.Factory] = {}
    problems: list[ConfigProblem] = []
    for name, row in config.providers.items():
        try:
            factories[name] = adapters.factory_of(
                name, row, origin=config.origin_of(f"providers.{name}.adapter")
            )
        except ConfigError as e:
            problems += e.problems
    return factories, problems


async def _check_provider(
    config: PlatformConfig, name: str, factory: adapters.Factory, capabilities: Capabilities
) -> list[ConfigProblem]:
    """Create a provider and close it. If it needs a key, look for the key of each tenant."""
    try:
        provider = await asyncio.to_thread(adapters.configured_provider, config, name, factory, capabilities)
    except ConfigError as e:
        return list(e.problems)
    problems: list[ConfigProblem] = []
    place, adapter = f"providers.{name}.adapter", config.providers[name].adapter_of(name)
    try:
        with adapters.explained(config.origin_of(place), place, adapter, "closed"):
            await provider.aclose()
    except ConfigError as e:
        problems += e.problems
    return problems + await key_problems(config, name, factory, config.tenant_ids)


async def key_problems(
    config: PlatformConfig, name: str, factory: adapters.Factory, tenants: Iterable[str]
) -> list[ConfigProblem]:
    """Return the tenants without a usable key, for a shipped adapter that needs one."""
    problems = []
    if isinstance(factory, adapters.ShippedAdapter) and factory.needs_key(config.providers[name]):
        keys = adapters.keys_of(config, name, factory)
        for tenant in tenants:
            try:
                await keys.key_of(tenant)
            except ProviderError as e:
                secret = config.providers[name].secret_of(name)
                found = f"without a usable key ({e.message.partition('; allowed')[0]})"
                allowed = (
                    f"a key in this variable, or in a file {secret} of secrets_folder (AGENTIC_SECRETS_DIR)"
                )
                problems.append(
                    ConfigProblem(secret_variable(secret), f"providers.{name}.secret", found, allowed)
                )
    return problems


def model_problems(
    config: PlatformConfig, capabilities: Capabilities, prices: PriceBook, now: datetime
) -> Iterator[ConfigProblem]:
    """Yield problems of the models that workflows and fallbacks name."""
    named = [(f"models.{workflow}", model) for workflow, model in config.models.items()]
    named += [
        (f"fallback.{workflow}.to", model) for workflow, row in config.fallback.items() for model in row.to
    ]
    for place, name in named:
        provider, model = provider_and_model(name)
        if provider not in config.providers:
            allowed = ", ".join(config.providers) or "none: no provider is configured"
            yield _problem(config, place, f"{name}, whose provider is not configured", allowed)
            continue
        row = next((row for row in capabilities if (row.provider, row.model) == (provider, model)), None)
        if row is None:
            yield _problem(
                config, place, f"{name}, which is not in the table of models", _known(capabilities, provider)
            )
        elif row.retires_on is not None and row.retires_on < now.astimezone(UTC).date():
            found = f"{name}, which retired on {row.retires_on}"
            yield _problem(config, place, found, _known(capabilities, provider))
        elif not any((price.provider, price.model) == (provider, model) for price in prices):
            yield _problem(
                config,
                place,
                f"{name}, which has no price",
                "a model with a price in its row or in prices_file",
            )


def answer_problems(
    config: PlatformConfig, max_message_bytes: int, handed_in: Collection[str] = ()
) -> Iterator[ConfigProblem]:
    """Yield the providers, except those in `handed_in`, whose answers may be too large."""
    most = largest_answer(max_message_bytes)
    for name, row in config.providers.items():
        if name not in handed_in and row.max_answer_bytes > most:
            place = f"providers.{name}.max_answer_bytes"
            found = f"{row.max_answer_bytes}, but messages of the bus have at most {max_message_bytes} bytes"
            allowed = f"{SMALLEST_ANSWER_LIMIT} to {most}, or a bus with larger messages"
            if most < SMALLEST_ANSWER_LIMIT:
                allowed = f"a bus with messages of {SMALLEST_ANSWER_LIMIT} bytes or more"
            yield _problem(config, place, found, allowed)


def _known(capabilities: Capabilities, provider: str) -> str:
    known = [row.model for row in capabilities if row.provider == provider]
    return ", ".join([*known, f"a row in [[providers.{provider}.models]], with a price"])


def principal_problems(config: PlatformConfig) -> Iterator[ConfigProblem]:
    """Yield problems of the policy, the principals' keys, and `sign_as`."""
    policy = None
    if config.policy is not None:
        try:
            policy = Policy.load(config.policy)
        except PolicyError as e:
            yield _problem(config, "policy", str(e), "a valid policy")
            return
    try:
        if config.principals_folder is not None:
            signing_keys_of(config.principals_folder, policy)
    except SigningKeyError as e:
        yield _problem(config, "principals_folder", str(e), "a folder with a key for each principal")
        return
    known: dict[str, object] | None = None
    if policy is not None and policy.principals is not None:
        known = dict(policy.principals)
    elif config.principals_folder is not None:
        known = dict(read_keys(config.principals_folder))
    if known is not None and config.sign_as not in known:
        found = repr(config.sign_as) if config.sign_as else "not set, but principals are configured"
        yield _problem(config, "sign_as", found, ", ".join(known) or "none")


def _problem(config: PlatformConfig, place: str, found: str, allowed: str) -> ConfigProblem:
    return ConfigProblem(config.origin_of(place), place, found, allowed)
