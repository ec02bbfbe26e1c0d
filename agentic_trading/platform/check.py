"""Whether all that a configuration names can be had: adapters, keys, tables, policy, principals; nothing is sent."""

import asyncio
from collections.abc import Iterator
from datetime import UTC

from agentic_trading.bus.errors import SigningKeyError
from agentic_trading.bus.signing import read_keys
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance.errors import PolicyError
from agentic_trading.governance.policy import Policy
from agentic_trading.governance.prices import PriceBook
from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.models import Capabilities, TableError
from agentic_trading.platform import adapters
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.errors import ConfigError, ConfigProblem
from agentic_trading.platform.provider_config import provider_and_model


async def check_platform(config: PlatformConfig, clock: Clock | None = None) -> list[ConfigProblem]:
    """Return everything that keeps a platform from being made from `config`; `clock` says what has retired."""
    factories, problems = await asyncio.to_thread(_factories, config)
    try:
        capabilities, prices = await asyncio.to_thread(adapters.tables_of, config, factories)
    except TableError as e:
        place = next(
            (name for name in ("models_file", "prices_file") if getattr(config, name) == e.path), "providers"
        )
        problems.append(_problem(config, place, str(e), "a table whose rows are right"))
        capabilities, prices = await asyncio.to_thread(_shipped)
    else:
        problems += _check_models(config, capabilities, prices, clock or SystemClock())
    for name, factory in factories.items():
        problems += await _check_provider(config, name, factory, capabilities)
    return problems + await asyncio.to_thread(lambda: list(_check_principals(config)))


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
    """Make a provider and close it; for one of ours that cannot ask without, look for the key of each tenant."""
    place = f"providers.{name}"
    keys, row = adapters.keys_of(config, name, factory), config.providers[name]
    context = adapters.ProviderContext(name, row, keys, capabilities, weights_folder=config.weights_folder)
    origin = config.origin_of(f"{place}.adapter")
    try:
        provider = await asyncio.to_thread(adapters.provider_of, context, factory, origin=origin)
    except ConfigError as e:
        return list(e.problems)
    await provider.aclose()
    problems = []
    if isinstance(factory, adapters.ShippedAdapter) and factory.needs_key(row):
        for tenant in config.tenant_ids:
            try:
                await keys.key_of(tenant)
            except ProviderError as e:
                problems.append(_problem(config, f"{place}.secret", f"without a key ({e.message})", "a key"))
    return problems


def _check_models(
    config: PlatformConfig, capabilities: Capabilities, prices: PriceBook, clock: Clock
) -> Iterator[ConfigProblem]:
    """Yield what is wrong with the models that workflows and fallbacks name."""
    named = [(f"models.{workflow}", model) for workflow, model in config.models.items()]
    named += [
        (f"fallback.{workflow}.to", model) for workflow, row in config.fallback.items() for model in row.to
    ]
    now = clock.now()
    for place, name in named:
        provider, model = provider_and_model(name)
        if provider not in config.providers:
            allowed = ", ".join(config.providers) or "none: no provider is configured"
            yield _problem(config, place, f"{name}, whose provider is not configured", allowed)
            continue
        row = next((row for row in capabilities if (row.provider, row.model) == (provider, model)), None)
        if row is None:
            yield _problem(config, place, f"{name}, which is in no table", _known(capabilities, provider))
        elif row.retires_on is not None and row.retires_on < now.astimezone(UTC).date():
            found = f"{name}, which retired on {row.retires_on}"
            yield _problem(config, place, found, _known(capabilities, provider))
        elif not any((price.provider, price.model) == (provider, model) for price in prices):
            yield _problem(
                config, place, f"{name}, which has no price", "a price in its row, or in prices_file"
            )


def _known(capabilities: Capabilities, provider: str) -> str:
    known = [row.model for row in capabilities if row.provider == provider]
    return ", ".join([*known, f"a row in [[providers.{provider}.models]], with a price"])


def _check_principals(config: PlatformConfig) -> Iterator[ConfigProblem]:
    """Yield what is wrong with the policy and the keys of principals, and with the one that clients sign as."""
    policy = None
    if config.policy is not None:
        try:
            policy = Policy.load(config.policy)
        except PolicyError as e:
            yield _problem(config, "policy", str(e), "a policy that can be read")
            return
    try:
        adapters.verifier_of(config.principals_folder, policy)
    except SigningKeyError as e:
        yield _problem(config, "principals_folder", str(e), "a folder with a key for each principal")
        return
    known: dict[str, object] | None = None
    if policy is not None and policy.principals is not None:
        known = dict(policy.principals)
    elif config.principals_folder is not None:
        known = dict(read_keys(config.principals_folder))
    if known is not None and config.sign_as and config.sign_as not in known:
        yield _problem(config, "sign_as", repr(config.sign_as), ", ".join(known) or "none")


def _problem(config: PlatformConfig, place: str, found: str, allowed: str) -> ConfigProblem:
    return ConfigProblem(config.origin_of(place), place, found, allowed)
