"""Clients of a bus. Each has a name, a principal that signs its messages, and fallback models."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, MutableMapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final

from agentic_trading.bus.signing import Signer
from agentic_trading.bus.topic import Broker
from agentic_trading.client.call_log import CallLog, EarlierCalls
from agentic_trading.client.fallback import Alternative, FallbackByWorkflow, FallbackGateway
from agentic_trading.client.gateway import GatewayClient, StructuredGateway
from agentic_trading.client.sync_gateway import gateway_context
from agentic_trading.clock import SystemClock
from agentic_trading.governance.policy import Policy
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.fields import MAX_ID_BYTES, long_ids
from agentic_trading.llm.store import InteractionStore
from agentic_trading.platform import port_adapters
from agentic_trading.platform.config import PlatformConfig, provider_and_model
from agentic_trading.platform.errors import ConfigError, ConfigProblem
from agentic_trading.platform.port_adapters import PortStack
from agentic_trading.platform.signing_keys import PrincipalKeys, signing_keys_in
from agentic_trading.structured.pydantic_schema import SemanticCheck

NOTHING_SIGNED: Final = "the configured sign_as. To sign messages, set principals_folder"


class Clients:
    """Opens clients of one broker, as configured. Names of open clients are unique."""

    def __init__(
        self,
        config: PlatformConfig,
        broker: Broker,
        signing: PrincipalKeys | None,
        call_log: CallLog | None = None,
        call_checks: MutableMapping[str, SemanticCheck] | None = None,
    ) -> None:
        self._config = config
        self._broker = broker
        self._signing = signing
        self._call_log = call_log
        # On a shared bus any worker may take a call. Its answer would otherwise depend on the worker.
        self._call_checks = call_checks if config.bus.url is None else None
        self._names: set[str] = set()
        self._lanes = MappingProxyType({name: row.lane for name, row in config.providers.items() if row.lane})

    @asynccontextmanager
    async def client(self, name: str, *, sign_as: str = "") -> AsyncGenerator[StructuredGateway]:
        """Open a client.

        Args:
            name: The client's name in logs.
            sign_as: The principal. Empty means that of the configuration.

        Raises:
            ConfigError: If the name is taken or too long, or if the principal has no key.

        """
        if long_ids(["client"], [name]):
            found, allowed = f"a name of {len(name.encode())} bytes", f"a name of up to {MAX_ID_BYTES} bytes"
            raise _problem("client", found, allowed)
        signer = self._signer(sign_as or self._config.sign_as)
        if name in self._names:
            raise _problem(
                "client", f"{name!r}, which another open client has", "a different name for each client"
            )
        self._names.add(name)
        try:
            # Backtest workers use `as_of` as the time, so a deadline by the wall clock would end the wait at once.
            made = GatewayClient(
                self._broker,
                name=name,
                signer=signer,
                redaction=self._config.redaction,
                lanes=self._lanes,
                call_log=self._call_log,
                call_checks=self._call_checks,
                clock=SystemClock()
                if self._config.bus.url is not None and self._config.mode == "paper"
                else None,
            )
            async with made as client:
                yield self._with_fallback(client) if self._config.fallback else client
        finally:
            self._names.discard(name)

    def _with_fallback(self, client: GatewayClient) -> StructuredGateway:
        by_workflow = {}
        for workflow, row in self._config.fallback.items():
            named = map(provider_and_model, row.to)
            others = [Alternative(LLMProvider(provider), model) for provider, model in named]
            by_workflow[workflow] = FallbackGateway(client, others, on=frozenset(row.on))
        return FallbackByWorkflow(client, by_workflow)

    def _signer(self, principal: str) -> Signer | None:
        """Return the signer of a principal, or None if messages are not signed."""
        if self._signing is None:
            if principal != self._config.sign_as:
                raise _problem("sign_as", f"{principal!r}, but messages are not signed", NOTHING_SIGNED)
            return None
        if principal not in self._signing.principals:
            known = ", ".join(sorted(self._signing.principals))
            was = repr(principal) if principal else "not set, but messages are signed"
            raise _problem("sign_as", was, known)
        return self._signing.signer(principal)


@gateway_context
@asynccontextmanager
async def remote_gateway(
    config: PlatformConfig,
    *,
    name: str = "client",
    store: InteractionStore | None = None,
    earlier: EarlierCalls | None = None,
) -> AsyncGenerator[StructuredGateway]:
    """Open a gateway whose workers are other processes on the bus of `config`.

    A client needs no ledger and no provider. From the configuration it uses the bus, the lanes of providers,
    the fallback, the policy, and the principal with its key. Open it with `async with`, or with `sync()` in
    scripts and notebooks.

    Args:
        config: The configuration. It must set `bus.url`.
        name: The client's name in logs.
        store: A local log. It keeps each call before it is published, its attempts, and events.
        earlier: The calls of earlier clients of `store`, for example of one that was killed. They are not
            asked again.

    Raises:
        ConfigError: While opening, if `bus.url` is not set, or if a name, file or principal is invalid.
        PolicyError: While opening, if the policy cannot be read.
        SigningKeyError: While opening, if a signing key cannot be read.
        BusError: While opening, if the bus cannot be used.

    Example:
        config = PlatformConfig(bus=BusConfig(url="redis://127.0.0.1:6379"))
        async with remote_gateway(config) as gateway:
            answer = await gateway.ask(envelope)

    """
    if config.bus.url is None:
        raise ConfigError([
            ConfigProblem(config.origin_of("bus.url"), "bus.url", "not set", "the URL of a bus")
        ])
    async with PortStack() as opened:
        signing = await asyncio.to_thread(_signing_of, config)
        if signing is not None:
            await opened.enter(followed_keys(config, signing))
        broker = opened.keep(await asyncio.to_thread(port_adapters.broker_of, config))
        known = EarlierCalls() if earlier is None else earlier
        call_log = None if store is None else CallLog(store, SystemClock(), config.redaction, known)
        yield await opened.enter(Clients(config, broker, signing, call_log).client(name))


@asynccontextmanager
async def followed_keys(config: PlatformConfig, signing: PrincipalKeys) -> AsyncGenerator[None]:
    """Reload and redact the principals' keys when their folder changes, while the block runs."""

    def redact() -> None:
        config.redaction.add(*signing.secrets)

    redact()
    async with signing.followed(SystemClock(), redact):
        yield


def bus_problems(config: PlatformConfig, policy: Policy | None) -> Iterator[ConfigProblem]:
    """Yield missing settings of workers on a shared bus."""
    if config.bus.url is None:
        return
    if config.ledger.url is None:
        found = "not set, but the bus is shared"
        allowed = "the Redis with the ledger and claims of all workers on this bus"
        yield ConfigProblem(config.origin_of("ledger.url"), "ledger.url", found, allowed)
    if policy is not None and policy.principals is not None and config.principals_folder is None:
        found = "not set, but the policy names principals and the bus is shared"
        allowed = "a folder with the keys of these principals"
        yield ConfigProblem(config.origin_of("principals_folder"), "principals_folder", found, allowed)


def _signing_of(config: PlatformConfig) -> PrincipalKeys | None:
    """Return the principals' keys of a configuration, or None. Blocks, because it reads files."""
    policy = Policy.load(config.policy) if config.policy is not None else None
    return signing_keys_in(config.principals_folder, policy)


def _problem(place: str, found: str, allowed: str) -> ConfigError:
    return ConfigError([ConfigProblem("code", place, found, allowed)])
