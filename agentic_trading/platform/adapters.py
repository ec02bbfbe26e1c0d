"""The adapters of providers by the names in a configuration. Other modules do not name adapters."""

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module, invalidate_caches
from importlib.metadata import EntryPoint
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final, Literal, cast, get_args

from agentic_trading import plugins
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.errors import require_extra
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.models import (
    Capabilities,
    find_weights,
)
from agentic_trading.llm.provider import Provider
from agentic_trading.llm.providers.hosted import BillUnit
from agentic_trading.llm.providers.keys import Keys, KnownKeys, OneKey, SecretsFolder
from agentic_trading.llm.providers.offline import Rule, RulesProvider, ScriptedProvider
from agentic_trading.platform.config import PlatformConfig, ProviderConfig
from agentic_trading.platform.errors import ConfigError, ConfigProblem
from agentic_trading.platform.settings import secret_variable

GROUP: Final = "agentic_trading.providers"
"""The group of entry points in which packages offer adapters. Ours are there too."""

Rules = Mapping[str, Rule]
"""Functions of the provider `rules`, by schema `$id`. Each takes the envelope."""

_ASKED: Final = ("complete", "count_tokens", "aclose")

_CLIENTS: Final = (
    "AsyncAnthropic", "AsyncAnthropicAWS", "AsyncAnthropicBedrock", "AsyncAnthropicFoundry",
    "AsyncAnthropicGoogleCloud", "AsyncAnthropicVertex",
)  # fmt: skip
"""Classes of the Anthropic SDK. The first one sends a key. The others use the sign-in of a cloud."""


@dataclass(frozen=True, slots=True)
class ProviderContext:
    """The inputs of an adapter.

    Attributes:
        name: The provider's name.
        config: Its configuration.
        keys: The source of keys. It is asked for the key of a tenant before each request.
        capabilities: The table of models.
        clock: The clock.
        weights_folder: The folder with weights of local models.
        rules: Functions of the application for the provider `rules`, by schema `$id`.

    """

    name: str
    config: ProviderConfig
    keys: Keys
    capabilities: Capabilities
    clock: Clock = field(default_factory=SystemClock)
    weights_folder: Path | None = None
    rules: Rules = field(default_factory=dict)

    @property
    def adapter(self) -> str:
        """The adapter's name: the configured one, or the provider's name."""
        return self.config.adapter_of(self.name)


Factory = Callable[[ProviderContext], Provider]
"""Create a provider. If a factory has a function `models`, its `ModelConfig` rows are added to the tables."""


@dataclass(frozen=True, slots=True)
class ShippedAdapter:
    """A shipped adapter.

    Attributes:
        make: Creates the provider.
        options: The allowed options.
        package: The package of `EXTRAS` that it needs. Empty if it needs none.
        needs_key: Whether it needs a key, given its configuration.

    """

    make: Factory
    options: frozenset[str] = frozenset()
    package: str = ""
    needs_key: Callable[[ProviderConfig], bool] = lambda _: False

    def __call__(self, context: ProviderContext) -> Provider:
        """Create the provider.

        Raises `MissingExtraError` without its package, and `ValueError` for an unknown option.
        """
        self.require_installed()
        unknown = sorted(set(context.config.options) - self.options)
        if unknown:
            allowed = ", ".join(sorted(self.options)) or "none"
            raise ValueError(f"unknown option {', '.join(unknown)}. Allowed options: {allowed}")
        return self.make(context)

    def require_installed(self) -> None:
        """Raise `MissingExtraError` if its package is not installed. Does not import it."""
        if self.package:
            require_extra(self.package)


def _anthropic(context: ProviderContext) -> Provider:
    from agentic_trading.llm.providers.anthropic.provider import AnthropicProvider

    ttl = _option(context, "stable_prefix_ttl", "5m", among=("", "5m", "1h"))
    return AnthropicProvider(
        context.keys,
        base_url=context.config.base_url,
        stable_prefix_ttl=ttl,
        clock=context.clock,
        max_answer_bytes=context.config.max_answer_bytes,
        proxy=_proxy(context),
    )


def _anthropic_sdk(context: ProviderContext) -> Provider:
    from agentic_trading.llm.providers.anthropic.provider import AnthropicSdkProvider

    arguments = context.config.options.get("arguments", {})
    if not isinstance(arguments, Mapping):
        raise ValueError("option arguments must be a table")  # noqa: TRY004 - as for any other option
    if any(word in name for name in arguments for word in ("key", "token", "secret")):
        raise ValueError("option arguments contains a secret. Put it into an environment variable of the SDK")
    return AnthropicSdkProvider(
        context.keys,
        client=_option(context, "client", _CLIENTS[0], among=_CLIENTS),
        arguments=arguments,
        base_url=context.config.base_url,
        stable_prefix_ttl=_option(context, "stable_prefix_ttl", "5m", among=("", "5m", "1h")),
        clock=context.clock,
        max_answer_bytes=context.config.max_answer_bytes,
    )


def _openai(context: ProviderContext) -> Provider:
    from agentic_trading.llm.providers.openai.provider import OpenAIProvider

    return OpenAIProvider(
        context.keys,
        base_url=context.config.base_url,
        capabilities=context.capabilities,
        clock=context.clock,
        max_answer_bytes=context.config.max_answer_bytes,
        proxy=_proxy(context),
        bill_unit=_option(context, "bill", "", among=("", *get_args(BillUnit))) or None,
    )


def _local(context: ProviderContext) -> Provider:
    from agentic_trading.llm.providers.local import MODEL, LocalProvider

    if context.weights_folder is None:
        raise ValueError("weights_folder is not set. Set it to the folder with the model's weights")
    model = str(context.config.options.get("model", MODEL))
    return LocalProvider(find_weights(context.weights_folder, model), model=model)


def _rules(context: ProviderContext) -> Provider:
    return RulesProvider(context.rules, unnamed_functions("rules", context.rules))


def _scripted(context: ProviderContext) -> Provider:
    answers = context.config.options.get("answers", [])
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise ValueError("option answers must be a list of texts")
    return ScriptedProvider(map(str, answers))


def _option(context: ProviderContext, name: str, default: str, *, among: tuple[str, ...]) -> Any:
    value = context.config.options.get(name, default)
    if value not in among:
        raise ValueError(f"option {name} must be one of {', '.join(map(repr, among))}")
    return value


def _proxy(context: ProviderContext) -> str | None:
    proxy = context.config.options.get("proxy")
    if proxy is None or isinstance(proxy, str):
        return proxy
    raise ValueError("option proxy must be a URL")


def _always(_config: ProviderConfig) -> bool:
    return True


def _where_no_other_sign_in(config: ProviderConfig) -> bool:
    return config.options.get("client", _CLIENTS[0]) == _CLIENTS[0]


def _at_the_vendor(config: ProviderConfig) -> bool:
    # A server of your own may need no key.
    return config.base_url is None


ANTHROPIC: Final = ShippedAdapter(_anthropic, frozenset({"proxy", "stable_prefix_ttl"}), needs_key=_always)
ANTHROPIC_SDK: Final = ShippedAdapter(
    _anthropic_sdk,
    frozenset({"arguments", "client", "stable_prefix_ttl"}),
    needs_key=_where_no_other_sign_in,
)
OPENAI: Final = ShippedAdapter(_openai, frozenset({"bill", "proxy"}), needs_key=_at_the_vendor)
LOCAL: Final = ShippedAdapter(_local, frozenset({"model"}), package="xllamacpp")
RULES: Final = ShippedAdapter(_rules)
SCRIPTED: Final = ShippedAdapter(_scripted, frozenset({"answers"}))


def factory_of(name: str, config: ProviderConfig, *, origin: str = "code") -> Factory:
    """Load the adapter of the provider `name`: an entry point of `GROUP`, or `module:factory`.

    A module is installed or in the working directory. Other adapters are not loaded. Blocks, because it reads
    files.

    Raises:
        ConfigError: If the adapter does not exist, is offered by two packages, or cannot be imported.

    """
    adapter = config.adapter_of(name)
    with explained(origin, f"providers.{name}.adapter", adapter):
        module, colon, attribute = adapter.partition(":")
        if colon:
            made: Any = imported_module(module)
            for part in attribute.split("."):
                made = getattr(made, part)
        else:
            made = _entry_point(origin, name, adapter).load()
    if not callable(made):
        raise _wrong(
            origin, name, f"{adapter}, which cannot be called", "a function or class that returns a Provider"
        )
    return cast("Factory", made)


def imported_module(name: str) -> ModuleType:
    """Return a module that is installed or in the working directory."""
    try:
        return import_module(name)
    except ModuleNotFoundError as e:
        folder = str(Path.cwd())
        if e.name != name.partition(".")[0] or folder in sys.path:
            raise
    # A console script does not have the working directory on its path. The folder is appended, so that
    # its modules never replace installed ones.
    sys.path.append(folder)
    invalidate_caches()
    try:
        return import_module(name)
    except ModuleNotFoundError:
        sys.path.remove(folder)
        raise


def provider_of(
    context: ProviderContext, factory: Factory | None = None, *, origin: str = "code"
) -> Provider:
    """Create the provider of a context. Does not send anything. Blocks, because it reads files.

    Args:
        context: The inputs of the adapter.
        factory: The adapter. None loads the one named in the context.
        origin: The origin of the adapter's name, for messages.

    Raises:
        ConfigError: If the provider cannot be created, or does not have the methods of a `Provider`.

    """
    make = factory or factory_of(context.name, context.config, origin=origin)
    with explained(origin, f"providers.{context.name}.adapter", context.adapter):
        made = make(context)
    lacks = [method for method in _ASKED if not callable(getattr(made, method, None))]
    if lacks:
        found = f"{context.adapter}, which makes a {type(made).__name__} without {', '.join(lacks)}"
        raise _wrong(origin, context.name, found, f"a factory of a Provider, with {', '.join(_ASKED)}")
    return made


def configured_provider(
    config: PlatformConfig,
    name: str,
    factory: Factory,
    capabilities: Capabilities,
    *,
    clock: Clock | None = None,
    rules: Rules = MappingProxyType({}),
) -> Provider:
    """Create the provider `name` of a configuration. Blocks and raises as `provider_of` does."""
    context = ProviderContext(
        name=name,
        config=config.providers[name],
        keys=keys_of(config, name, factory),
        capabilities=capabilities,
        clock=clock or SystemClock(),
        weights_folder=config.weights_folder,
        rules=rules,
    )
    return provider_of(context, factory, origin=config.origin_of(f"providers.{name}.adapter"))


Table = Literal["checks", "rules"]
"""A table of the configuration that names packages by schema `$id`.

Its group of entry points has the same name.
"""


def functions_of(config: PlatformConfig, table: Table) -> dict[str, Any]:
    """Return the functions named in `[checks]` or `[rules]`, by schema `$id`.

    Blocks, because it imports packages.

    Raises:
        ConfigError: If a package is not installed, has no function for the schema, or cannot be imported.

    """
    functions: dict[str, Any] = {}
    problems = []
    for schema_id, package in getattr(config, table).items():
        offers = [offer for offer in plugins.offers(_group(table)) if offer.name == schema_id]
        try:
            functions[schema_id] = _function_in(package, offers)
        except plugins.OfferError as e:
            found, allowed = f"{package!r}, but {e}", "a package whose function can be imported"
        except LookupError:
            found = f"{package!r}, which is not installed or has no function for this schema"
            allowed = ", ".join(map(plugins.package_of, offers)) or (
                f"a package with an entry point {schema_id} in the group {_group(table)}"
            )
        else:
            continue
        place = f"{table}.{schema_id}"
        problems.append(ConfigProblem(config.origin_of(place), place, found, allowed))
    if problems:
        raise ConfigError(problems)
    return functions


def _group(table: Table) -> str:
    return f"agentic_trading.{table}"


def _function_in(package: str, offers: Sequence[EntryPoint]) -> Any:
    """Return the function of a package.

    Raises `LookupError` if the package has none of these entry points.
    """
    name = plugins.normalized(package)
    offer = {plugins.package_of(offer): offer for offer in offers}[name]
    function = plugins.loaded(offer)
    if not callable(function):
        raise plugins.OfferError(offer, "is not a function")
    return function


def functions_in(packages: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return `[checks]` and `[rules]` with all functions of these packages. Blocks.

    Raises:
        ConfigError: If a package has no function, or if two packages have one for the same schema.

    """
    names = {plugins.normalized(package) for package in packages}
    tables: dict[str, dict[str, str]] = {}
    problems, known = [], set()
    for table in get_args(Table) if packages else ():
        for offer in plugins.offers(_group(table)):
            known.add(package := plugins.package_of(offer))
            if package in names:
                first = tables.setdefault(table, {}).setdefault(offer.name, package)
                if first != package:
                    found = f"{package}, which has {offer.name} of [{table}] like {first}"
                    allowed = f"one of the two, or a line for {offer.name} in [{table}] of the configuration"
                    problems.append(ConfigProblem("--package", "", found, allowed))
    for name in sorted(names - known):
        found = f"{name!r}, which is not installed or has no check and no rule"
        problems.append(ConfigProblem("--package", "", found, ", ".join(sorted(known))))
    if problems:
        raise ConfigError(problems)
    return tables


def unnamed_functions(table: Table, named: Collection[str]) -> dict[str, str]:
    """Return the missing lines of `[checks]` or `[rules]`, by schema `$id`. Blocks.

    Each is for an installed function that is not in `named`.
    """
    lines = defaultdict[str, list[str]](list)
    for offer in plugins.offers(_group(table)):
        if offer.name not in named:
            lines[offer.name].append(f'"{offer.name}" = "{plugins.package_of(offer)}"')
    return {schema_id: f"{' or '.join(found)} to [{table}]" for schema_id, found in lines.items()}


def is_live(name: str, config: ProviderConfig) -> bool:
    """Whether a provider uses a network or takes real time."""
    return config.adapter_of(name) not in {LLMProvider.RULES, LLMProvider.SCRIPTED}


def _entry_point(origin: str, name: str, adapter: str) -> EntryPoint:
    offered = plugins.offers(GROUP)
    found = [offer for offer in offered if offer.name == adapter]
    if len(found) == 1:
        return found[0]
    if found:
        was = f"{adapter}, which {' and '.join(map(plugins.package_of, found))} offer"
        raise _wrong(origin, name, was, "module:factory, to choose one of them")
    known = ", ".join(offer.name for offer in offered) or "none, because agentic-trading is not installed"
    raise _wrong(
        origin, name, f"{adapter!r}, which no installed package offers", f"{known}, or module:factory"
    )


@contextmanager
def explained(origin: str, place: str, adapter: str, what: str = "created") -> Iterator[None]:
    """Raise errors in an adapter's code as `ConfigError`."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as e:  # because code of other packages runs here, and may raise anything
        allowed = "an adapter that can be imported, created, and closed"
        if isinstance(e, ModuleNotFoundError):
            allowed += f", from an installed package or the working directory {Path.cwd()}"
        found = f"{adapter}, which cannot be {what} ({type(e).__name__}: {e})"
        raise ConfigError([ConfigProblem(origin, place, found, allowed)]) from e


def _wrong(origin: str, name: str, found: str, allowed: str) -> ConfigError:
    return ConfigError([ConfigProblem(origin, f"providers.{name}.adapter", found, allowed)])


class MissingKey:
    """A missing key. The error is raised when a key is requested, because some adapters need none."""

    def __init__(self, name: str, secret: str, *, reads_environment: bool = True) -> None:
        self._name = name
        variable = f"{secret_variable(secret)}, or " if reads_environment else ""
        self._places = f"{variable}a file {secret} in secrets_folder"

    async def key_of(self, tenant_id: str) -> str:
        """Raise `ProviderError` of kind `auth_error`."""
        places = self._places
        message = f"provider {self._name} has no key for tenant {tenant_id!r}; allowed is one in {places}"
        raise ProviderError(FailureKind.AUTH_ERROR, message, sent=False)


def keys_of(config: PlatformConfig, name: str, factory: Factory | None = None) -> Keys:
    """Return the source of a provider's keys.

    Keys are read from `secrets_folder`, or from the environment variable of the provider's secret. A tenant
    whose `provider_keys` are `own` gets no shared key.
    """
    provider = config.providers[name]
    secret, key = provider.secret_of(name), config.secret_of(name)
    is_free = isinstance(factory, ShippedAdapter) and not factory.needs_key(provider)
    missing = MissingKey(name, secret, reads_environment=config.is_loaded)
    # `OneKey` refuses an empty key, so a server that would accept any key gets a placeholder.
    one = OneKey(key.get_secret_value() if key else "none") if key or is_free else missing
    if config.secrets_folder is None:
        return KnownKeys(one, config.redaction)
    own = frozenset(tenant for tenant, row in config.tenants.items() if row.provider_keys == "own")
    keys = SecretsFolder(config.secrets_folder, secret, one, own=own)
    return KnownKeys(keys, config.redaction)
