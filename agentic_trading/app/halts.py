"""Halts by name: one that nothing at a place knows is refused, and one that was executed says what it reached."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, assert_never

from agentic_trading.app.budgets import BudgetLocation, BudgetLocationOptions, open_location
from agentic_trading.app.trading import records_of
from agentic_trading.clock import SystemClock
from agentic_trading.governance.commands import AddHalt, RemoveHalt, execute_command, validate_command
from agentic_trading.governance.controls_document import HaltScope, TenantControls
from agentic_trading.governance.errors import CommandError, LedgerError
from agentic_trading.governance.limits import ANY, agent_of
from agentic_trading.governance.policy_file import Principal, read_policy
from agentic_trading.llm.envelope import DEFAULT_TENANT
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.event import PLATFORM
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.settings import user_name
from agentic_trading.platform.tables import TableLayers

_NEAREST = 5
_WILD = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class HaltReach:
    """What knows the name of a halt (empty: nothing was asked), and the workers that follow, as they last reported."""

    known_from: str
    workers: int
    in_flight: int

    @property
    def text(self) -> str:
        """What it says to an operator."""
        known = f"; the name is known from {self.known_from}" if self.known_from else ""
        calls = f"{self.workers:,} with {self.in_flight:,} calls in flight" if self.workers else "none"
        return f"workers that run here, as they last reported: {calls}{known}"


async def execute_halt(
    where: BudgetLocationOptions,
    tenant: str,
    wanted: AddHalt | RemoveHalt,
    why: str,
    *,
    config: PlatformConfig | None = None,
) -> tuple[TenantControls, HaltReach]:
    """Halt or resume at a place; return its controls, and what was reached: workers follow within a second.

    With a `config`, a halt has to name what something there knows, or the configuration. Raises `CommandError` for a command that changes
    nothing or is not allowed, `ControlError` for controls that cannot be used.
    """
    async with open_location(where) as place:
        validate_command(tenant, wanted)
        known_from = ""
        if isinstance(wanted, AddHalt) and config is not None:
            names = _NamesAt(place, where.log, config)
            known_from = await names.require(tenant, HaltScope.TENANT, tenant)
            known_from = await names.require(tenant, wanted.scope, wanted.id) or known_from
        controls = await execute_command(
            place.controls, tenant, wanted, by=user_name(), why=why, at=SystemClock().now()
        )
        workers = [one for one in await place.statuses.read(tenant) if one.is_running]
        return controls, HaltReach(known_from, len(workers), sum(one.calls.in_flight for one in workers))


def halt_values(controls: TenantControls, reach: HaltReach) -> dict[str, Any]:
    """Return the controls and what was reached, for JSON."""
    return {**controls.model_dump(mode="json"), "reached": asdict(reach)}


@dataclass(frozen=True, slots=True)
class _NamesAt:
    """The names that something at a place knows; what takes longest is asked last."""

    place: BudgetLocation
    log: Path | None
    config: PlatformConfig

    async def require(self, tenant: str, scope: HaltScope, name: str) -> str:
        """Return what knows a name, nothing for `*` and workflows, which are all known.

        Raises `CommandError` with the nearest names if nothing does.
        """
        if name == ANY or scope is HaltScope.WORKFLOW:
            return ""
        known: set[str] = set()
        async with aclosing(self._sources(tenant, scope)) as sources:
            async for source, names in sources:
                known |= {spelling for each in names for spelling in _spellings(scope, each)}
                if name in known:
                    return source
        nearest = get_close_matches(name, sorted(known), n=_NEAREST, cutoff=0.0)
        unknown = f"no worker, command, policy, configuration, table of models or log here knows this {scope}"
        raise CommandError(f"{scope} {name}", unknown, ", ".join([*nearest, "or --force for one to come"]))

    async def _sources(self, tenant: str, scope: HaltScope) -> AsyncGenerator[tuple[str, set[str]]]:
        controls, statuses = await self.place.controls.read(tenant), await self.place.statuses.read(tenant)
        yield (
            "workers' reports",
            {
                name
                for status in statuses
                for name in (
                    *([tenant] if scope is HaltScope.TENANT else []),
                    *(one.id for one in status.counters if str(one.scope) == scope),
                    *(getattr(one, scope, "") for one in status.refusals),
                )
            },
        )
        commanded = [(str(limit.scope), limit.id) for limit in controls.limits]
        commanded += [(str(halt.scope), halt.id) for halt in controls.halts]
        commanded += [(action.scope, action.id) for action in controls.actions]
        yield "earlier commands", {name for kind, name in commanded if kind == scope}
        yield "the configuration", await asyncio.to_thread(self._configured, scope)
        yield "the policy", await asyncio.to_thread(self._in_policy, scope)
        if self.place.ledger is not None:
            with suppress(LedgerError):
                balances = await self.place.ledger.balances(tenant)
                yield "the ledger", {one.id for one in balances if str(one.scope) == scope}
        logged: set[str] = set()
        if self.log is not None:
            with suppress(StoreError):  # a log that is broken knows no name
                logged = await _in_log(self.log, None if tenant == PLATFORM else tenant, scope)
        yield "the log", logged
        if scope is HaltScope.TENANT and not self.config.tenants and not logged:
            yield "the configuration", {DEFAULT_TENANT}

    def _configured(self, scope: HaltScope) -> set[str]:
        if scope is HaltScope.TENANT:
            return set(self.config.tenants)
        if scope is not HaltScope.MODEL:
            return set()
        rows = TableLayers.read(self.config, {}).tables().capabilities
        return {f"{row.provider}/{row.model}" for row in rows} | {
            f"{name}/{ANY}" for name in self.config.providers
        }

    def _in_policy(self, scope: HaltScope) -> set[str]:
        if self.config.policy is None:
            return set()
        principals = (read_policy(self.config.policy).principals or {}).values()
        return {name for one in principals for name in _named(one, scope) if not _WILD & set(name)}


def _named(principal: Principal, scope: HaltScope) -> tuple[str, ...]:
    match scope:
        case HaltScope.TENANT:
            return principal.tenants
        case HaltScope.AGENT:
            return principal.agents
        case HaltScope.MODEL:
            return principal.models
        case HaltScope.WORKFLOW:
            return ()
        case _:
            assert_never(scope)


def _spellings(scope: HaltScope, name: str) -> Iterable[str]:
    """Return what a halt may call a name: a model by itself, with its provider, or all of that provider's."""
    if scope is not HaltScope.MODEL:
        return (name,) if name else ()
    provider, _, model = name.partition("/")
    return (model or provider, name, f"{provider}/{ANY}")


async def _in_log(log: Path, tenant: str | None, scope: HaltScope) -> set[str]:
    """Return the tenants of a log, or the agents or models of one of them, of all where none is given."""
    async with aclosing(records_of(log)) as records:
        if scope is HaltScope.TENANT:
            return {row.key[0] for row in await records.spend("tenant")}
        if scope is HaltScope.MODEL:
            return {"/".join(row.key) for row in await records.spend("provider", "model", tenant=tenant)}
        agents = {row.key[0] for row in await records.spend("agent", tenant=tenant)}
        if "" in agents:  # a call without an id is known by its type, which the index does not have
            async with aclosing(records.scan()) as entries:
                async for entry in entries:
                    call = entry.record
                    if isinstance(call, LLMInteraction) and tenant in {None, call.envelope.tenant_id}:
                        agents.add(agent_of(call.envelope))
        return agents
