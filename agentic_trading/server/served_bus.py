"""The gateway of a server whose workers are other processes on a bus."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from agentic_trading.bus.errors import BusError
from agentic_trading.bus.topic import Broker, Topic, topics_with
from agentic_trading.client.call_log import CallLog
from agentic_trading.client.gateway import StructuredGateway
from agentic_trading.clock import SystemClock
from agentic_trading.governance.errors import ControlsUnavailableError, LedgerUnavailableError
from agentic_trading.governance.status_feed import StatusFeed
from agentic_trading.ids import random_id
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.event import PLATFORM, Event, check_event
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.runs import run_on_record
from agentic_trading.llm.store import Records
from agentic_trading.platform import port_adapters
from agentic_trading.platform.clients import Clients, bus_problems, followed_keys
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.errors import ConfigError
from agentic_trading.platform.metrics import bus_samples, http_samples, metrics_text
from agentic_trading.platform.platform import run_started
from agentic_trading.platform.port_adapters import Log, PortStack
from agentic_trading.platform.tables import LoadedFiles
from agentic_trading.platform.workers import reporting_to
from agentic_trading.server import errors
from agentic_trading.server.api_keys import ApiKey, ApiKeys
from agentic_trading.server.errors import RequestError
from agentic_trading.server.shared_calls import SharedCalls
from agentic_trading.structured.prompts import verbatim_cap
from agentic_trading.worker.claim import ClaimKey, ClaimStore, ClaimStoreUnavailableError


@dataclass(frozen=True, slots=True)
class ServedBus:
    """A bus as the server sees it, with a client for each principal of its keys.

    The workers make the calls and have the budgets. This log has the calls of this server, and the events of its
    agents.
    """

    keys: ApiKeys
    zone: ZoneInfo
    models_by_name: Sequence[str]
    clients: Mapping[str, StructuredGateway]
    broker: Broker
    log: Log
    shared: SharedCalls
    statuses: StatusFeed
    config: PlatformConfig
    capabilities: Capabilities

    def headers(self, envelope: LLMEnvelope) -> Mapping[str, str]:  # noqa: ARG002 - no replay is served from a bus
        """Return no headers beside those of the call."""
        return {}

    def models(self, key: ApiKey) -> Sequence[str]:
        """Return the names of the models that a key may use."""
        return tuple(key.models) or self.models_by_name

    def gateway(self, key: ApiKey) -> StructuredGateway:
        """Return the client of a key's principal. Raises `RequestError` for a principal of a newer key."""
        return client_of(self.clients, key)

    async def count_tokens(self, envelope: LLMEnvelope, key: ApiKey) -> int:  # noqa: ARG002 - no provider is here
        """Raise `RequestError`, because only workers have a provider, and the bus carries only calls."""
        why = "a server on a bus has no provider that counts tokens. Allowed: a server without --bus"
        raise RequestError(errors.NO_PROVIDER, why)

    async def keep(self, event: Event) -> None:
        """Write an event to the log. It returns when the event is durable."""
        check_event(event)
        redaction = self.config.redaction
        await self.log.record(redaction.record(event) if redaction.known else event)

    @property
    def records(self) -> Records:
        """The queries of the log."""
        return port_adapters.records_in(self.log)

    @property
    def taps(self) -> None:
        """No client gets events as they come, because workers have them in other processes."""

    @property
    def secrets(self) -> Redaction:
        """The secrets that no client may read."""
        return self.config.redaction

    def output_cap(self, envelope: LLMEnvelope, choices: int) -> int:
        """Return the most output tokens of an attempt with so many answers, by its budget and its model."""
        try:
            capability = self.capabilities.of(envelope.provider, envelope.model)
        except UnknownModelError:
            return envelope.budget.max_output_tokens
        return verbatim_cap(envelope, capability, choices)

    async def problems(self) -> Mapping[str, str]:
        """Return the reason for each part that cannot be used now."""
        found = {} if self.keys.problem is None else {"api_keys": self.keys.problem}
        try:
            await self.broker.check(_topics(self.config))
        except BusError as e:
            found["bus"] = str(e)
        try:
            await _check_claims(self.shared.claims)
        except ClaimStoreUnavailableError as e:
            found["ledger"] = str(e)
        return found

    async def metrics(self, requests: Mapping[tuple[str, str, str], int]) -> bytes:
        """Return the metrics of the requests and of the bus. Those of calls and budgets are at the workers."""
        try:
            reporting = await reporting_to(self.statuses, self.config.tenant_ids)
        except ControlsUnavailableError:
            reporting = {}
        parts = http_samples(requests), bus_samples(self.broker.statistics(), reporting)
        return await asyncio.to_thread(metrics_text, *parts)


def client_of(clients: Mapping[str, StructuredGateway], key: ApiKey) -> StructuredGateway:
    """Return the client of a key's principal. Raises `RequestError` for a principal of a newer key."""
    found = clients.get(key.principal)
    if found is None:
        why = f"the principal {key.principal!r} of the key {key.name} was added after the start. Restart the server"
        raise RequestError(errors.NEW_PRINCIPAL, why)
    return found


def client_names(config: PlatformConfig, keys: ApiKeys) -> Sequence[str]:
    """Return the principals of the clients of a server. An empty one is that of the configuration."""
    # A key without a principal acts as the configuration does. Where messages are signed, there may be none.
    is_own = bool(config.sign_as) or config.principals_folder is None
    return [name for name in sorted(keys.principals | {""}) if name or is_own]


@asynccontextmanager
async def served_bus(
    config: PlatformConfig, folder: Path, keys: ApiKeys, models: Sequence[str]
) -> AsyncGenerator[ServedBus]:
    """Open a log and the clients of a bus.

    Args:
        config: The configuration, with the URLs of the bus and of its ledger.
        folder: The folder of the log.
        keys: The API keys. They are followed while the block runs.
        models: The names of the models for keys without aliases.

    Raises:
        ConfigError: While opening, if a setting is missing or a principal has no key.
        StoreError: While opening, if the log cannot be used.
        BusError: While opening, if the bus cannot be used.
        LedgerUnavailableError: While opening, if the Redis of the ledger cannot be used.

    """
    # Without the adapters of the providers, because they run in the workers.
    files = await asyncio.to_thread(LoadedFiles.read, config, frozenset(config.providers), None)
    if problems := [*bus_problems(config, files.policy)]:
        raise ConfigError(problems)
    async with PortStack() as opened:
        if files.signing is not None:
            await opened.enter(followed_keys(config, files.signing))
        broker = await opened.make(partial(port_adapters.broker_of, config))
        await broker.check(_topics(config))
        claims = await opened.make(partial(port_adapters.claims_of, config))
        try:
            await _check_claims(claims)
        except ClaimStoreUnavailableError as e:
            raise LedgerUnavailableError(str(e), is_sent=False) from e
        controls, statuses = await asyncio.to_thread(port_adapters.boards_of, config.ledger.url, None)
        opened.keep(controls)
        opened.keep(statuses)
        log = opened.keep(await port_adapters.opened_log(folder, config))
        await opened.enter(run_on_record(log, run_started(config), event_id=random_id()))
        await opened.enter(keys.followed())
        shared = SharedCalls(claims, SystemClock())
        call_log = CallLog(log, SystemClock(), config.redaction, agreed=shared.agreed)
        made = Clients(config, broker, files.signing, call_log)
        clients = {
            name: await opened.enter(made.client(f"http-{name}", sign_as=name))
            for name in client_names(config, keys)
        }
        yield ServedBus(
            keys, files.zone, models, clients, broker, log, shared, statuses, config, files.tables.capabilities
        )  # fmt: skip


def _topics(config: PlatformConfig) -> list[Topic[Any]]:
    return topics_with(sorted({row.lane for row in config.providers.values()} - {""}))


async def _check_claims(claims: ClaimStore) -> None:
    """Ask the store now whether it answers. Raises `ClaimStoreUnavailableError`."""
    await claims.frozen(ClaimKey(PLATFORM, "readyz"))
