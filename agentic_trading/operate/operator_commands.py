"""Operator commands: check names, find live places, and wait for acknowledgement."""

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.errors import TradingError
from agentic_trading.governance.commands import (
    AddHalt,
    OperatorCommand,
    SetLimit,
    execute_command,
    validate_command,
)
from agentic_trading.governance.controls_document import HaltScope, TenantControls
from agentic_trading.governance.errors import CommandError, LedgerError
from agentic_trading.governance.ledger import Balance
from agentic_trading.governance.limits import ANY, ScopeKind, agent_of
from agentic_trading.governance.policy import Principal, read_policy
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.status_feed import BudgetStatus, CounterStatus
from agentic_trading.llm.envelope import DEFAULT_TENANT, LLMEnvelope
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.event import PLATFORM
from agentic_trading.llm.facts import RecordQuery
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.log_line import INTERACTION
from agentic_trading.llm.store import LOG_NAME
from agentic_trading.operate.budgets import BudgetLocation, BudgetLocationOptions, open_location
from agentic_trading.operate.choices import host_of
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.port_adapters import LogRecords, records_of
from agentic_trading.platform.settings import user_name
from agentic_trading.platform.tables import TableLayers


def live_place(config: PlatformConfig, runs: Path, named: Path | None) -> BudgetLocationOptions:
    """Return the one place whose budgets are in use.

    A place is the ledger of the configuration, or a folder in which a process runs with its own budgets: in
    `runs`, the folder of the configuration, or that of the log `named` by the environment. Without a live
    place it is the folder of `named`.

    Raises:
        OptionError: If there is none or more than one. The error lists the places.

    """
    # A halt at the wrong place would stop nothing, so the place is never guessed among several.
    url = config.ledger.url
    logs = {log.resolve(): log for log in _logs(config, runs, named)}
    found = [BudgetLocationOptions(log.parent, log=log) for log in logs.values() if is_running(log.parent)]
    if url is not None:
        found.insert(0, BudgetLocationOptions(None, url, named))
    if not found and named is not None:
        return BudgetLocationOptions(named.parent, log=named)
    if len(found) == 1:
        return found[0]
    allowed = "--store PATH for the folder of a session, or --ledger URL for a server"
    if not found:
        state = f"left out, and no session runs below {runs}, and no ledger is configured"
        raise OptionError("the place", state, allowed)
    options = ", ".join(
        f"--store {one.folder}" if one.ledger_url is None else f"--ledger {host_of(one.ledger_url)}"
        for one in found
    )
    raise OptionError("the place", f"left out, and {len(found)} places are live", f"one of {options}")


def is_running(folder: Path) -> bool:
    """Whether a process with its own budgets runs in a folder."""
    return _reports_running(folder) and is_locked(folder)


def _logs(config: PlatformConfig, runs: Path, named: Path | None) -> Iterator[Path]:
    yield from sorted(runs.glob(f"*/{LOG_NAME}"))
    if config.folder is not None:
        yield config.folder / config.name / LOG_NAME
    if named is not None:
        yield named


def _reports_running(folder: Path) -> bool:
    """Whether the last report of a process in a folder is not its end."""
    for path in folder.glob("budget-*.json"):
        with suppress(OSError, ValidationError):
            if BudgetStatus.model_validate_json(path.read_bytes()).is_running:
                return True
    return False


def is_locked(folder: Path) -> bool:
    """Whether a process has locked the log in a folder."""
    log = folder / LOG_NAME
    for _ in range(_LOOKS):
        try:
            handle = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.path.samestat(log.stat(), os.fstat(handle)):
                return False
        except BlockingIOError:
            return True
        except FileNotFoundError:
            continue
        finally:
            os.close(handle)
    return False


_LOOKS = 100
"""While a segment is sealed, its name changes: the log is looked for again."""

_NEAREST = 5
_WILD = frozenset("*?[")

Scope = HaltScope | ScopeKind


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The known names at a place, from several sources. The slowest source is read last.

    Earlier commands are not a source, because a name in them may be a typing error. For the same reason, a
    counter counts only if calls were booked in it.
    """

    place: BudgetLocation
    log: Path | None
    config: PlatformConfig

    async def require_for(self, tenant: str, command: OperatorCommand) -> str:
        """Return the source of the names in a halt or a new limit. Empty if no name is needed.

        Raises:
            CommandError: If a name is unknown. The error lists the nearest names.

        """
        match command:
            case AddHalt(scope, id_):
                named: tuple[Scope, str] = scope, id_
            case SetLimit(limit):
                named = limit.scope, limit.id
            case _:  # a removed halt or limit exists already
                return ""
        of_tenant = await self._require(tenant, HaltScope.TENANT, tenant)
        return await self._require(tenant, *named) or of_tenant

    async def _require(self, tenant: str, scope: Scope, name: str) -> str:
        """Return the source of a name. Empty for `*` and workflows, which are always known."""
        if name == ANY or scope == "workflow":
            return ""
        known: set[str] = set()
        async with aclosing(self._sources(tenant, scope, name)) as sources:
            async for source, names in sources:
                known |= {spelling for each in names for spelling in _spellings(scope, each)}
                if name in known:
                    return source
        nearest = get_close_matches(name, sorted(known), n=_NEAREST, cutoff=0.0)
        unknown = f"no worker, policy, configuration, table of models, ledger or log here knows this {scope}"
        raise CommandError(f"{scope} {name}", unknown, ", ".join([*nearest, "or --force for one to come"]))

    async def _sources(self, tenant: str, scope: Scope, name: str) -> AsyncGenerator[tuple[str, set[str]]]:
        tenants = [tenant] if tenant != PLATFORM else await self.place.statuses.tenants()
        statuses = [status for each in tenants for status in await self.place.statuses.read(each)]
        yield "workers' reports", set(_reported(scope, statuses))
        if scope == "tenant":
            yield "workers' reports", set(await self.place.statuses.tenants())
        for source, names_of in (("the configuration", self._configured), ("the policy", self._in_policy)):
            with suppress(TradingError):  # because a broken file must not prevent a halt
                yield source, await asyncio.to_thread(names_of, scope)
        if self.place.ledger is not None:
            for is_limited in (
                True,
                False,
            ):  # very many calls and traces are read only if nothing else knows the name
                with suppress(LedgerError):
                    ledger = self.place.ledger
                    balances = [
                        one for each in tenants for one in await ledger.balances(each, limited=is_limited)
                    ]
                    yield "the ledger", {one.id for one in balances if one.scope == scope and _is_used(one)}
        logged: set[str] = set()
        if self.log is not None:
            with suppress(StoreError):  # because a broken log must not prevent a halt
                logged = await _in_log(self.log, None if tenant == PLATFORM else tenant, scope, name)
        yield "the log", logged
        if scope == "tenant" and not self.config.tenants and not logged:
            yield "the configuration", {DEFAULT_TENANT}

    def _configured(self, scope: Scope) -> set[str]:
        config = self.config
        match str(scope):
            case "tenant":
                return set(config.tenants)
            case "principal":
                keys = config.principals_folder
                folders = () if keys is None or not keys.is_dir() else keys.iterdir()
                return {config.sign_as, *(path.name for path in folders)} - {""}
            case "model":
                rows = TableLayers.read(config, {}).tables().capabilities
                return {f"{row.provider}/{row.model}" for row in rows} | {
                    f"{name}/{ANY}" for name in config.providers
                }
            case _:
                return set()

    def _in_policy(self, scope: Scope) -> set[str]:
        if self.config.policy is None:
            return set()
        principals = read_policy(self.config.policy).principals or {}
        if scope == "principal":
            return set(principals)
        return {name for one in principals.values() for name in _named(one, scope) if not _WILD & set(name)}


def _named(principal: Principal, scope: Scope) -> Sequence[str]:
    match str(scope):
        case "tenant":
            return principal.tenants
        case "agent":
            return principal.agents
        case "model":
            return principal.models
        case _:
            return ()


def _reported(scope: Scope, statuses: Iterable[BudgetStatus]) -> Iterable[str]:
    for status in statuses:
        if scope == "tenant":
            yield status.tenant
        yield from (one.id for one in status.counters if str(one.scope) == scope and _is_used(one))
        for denial in status.refusals:
            if scope in {"agent", "workflow"}:
                yield getattr(denial, scope)
            elif denial.scope is not None and str(denial.scope) == scope:
                yield denial.id


def _is_used(counter: Balance | CounterStatus) -> bool:
    """Whether a call was booked. A counter without calls has a limit only, which an operator has named."""
    return any(any(_units(amount)) for amount in (counter.spent, counter.held))


def _units(amount: Amount | tuple[int, int, int]) -> tuple[int, int, int]:
    return amount.units if isinstance(amount, Amount) else amount


def _spellings(scope: Scope, name: str) -> Iterable[str]:
    """Return the accepted forms of a name. A model may be named without its provider."""
    if scope != "model":
        return (name,) if name else ()
    provider, _, model = name.partition("/")
    return (model or provider, name, f"{provider}/{ANY}")


async def _in_log(log: Path, tenant: str | None, scope: Scope, name: str) -> set[str]:
    """Return the names of a kind in a log, of one tenant or of all.

    Of traces and calls, this is only `name` if the log has it. Otherwise every call is read for its names.
    """
    async with aclosing(records_of(log)) as records:
        match str(scope):
            case "tenant":
                return {row.key[0] for row in await records.spend("tenant")}
            case "model":
                return {"/".join(row.key) for row in await records.spend("provider", "model", tenant=tenant)}
            case "agent":
                ids = {row.key[0] for row in await records.spend("agent", tenant=tenant)} - {""}
                # These are read, because a call without an id is known by its type, which the index does not have.
                unnamed = RecordQuery(kind=(INTERACTION,), agent=("",))
                return ids | {agent_of(one) for one in await _calls(records, unnamed, tenant)}
            case "trace":
                # Looked up first, because a command in an emergency must not wait until a long log is read.
                if await records.count(RecordQuery(kind=(INTERACTION,), trace_id=name), tenant=tenant):
                    return {name}
                return {one.trace_id for one in await _calls(records, _ANY_CALL, tenant)}
            case "call":
                attempts = await records.by_envelope(name, tenant=tenant)
                if any(one.envelope.idempotency_key == name for one in attempts):
                    return {name}
                return {one.idempotency_key for one in await _calls(records, _ANY_CALL, tenant)}
            case _:  # because no record of a call names its sender
                return set()


_ANY_CALL = RecordQuery(kind=(INTERACTION,))


async def _calls(records: LogRecords, query: RecordQuery, tenant: str | None) -> list[LLMEnvelope]:
    """Return the envelopes of the selected attempts."""
    async with aclosing(records.entries(query, tenant=tenant)) as entries:
        return [entry.record.envelope async for entry in entries if isinstance(entry.record, LLMInteraction)]


ACKNOWLEDGED_WITHIN_S = 3.0
"""Workers apply a command within a second, and report it within another half second."""

_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class CommandReach:
    """The workers of a place that a command has reached.

    Attributes:
        place: The place as text.
        known_from: The source of the name in the command. Empty if no name was checked.
        acknowledged: Names of workers that have acknowledged the command.
        missing: Names of running workers that have not.
        in_flight: The calls in flight of the workers, as last reported.

    """

    place: str
    known_from: str
    acknowledged: tuple[str, ...]
    missing: tuple[str, ...]
    in_flight: int

    @property
    def is_complete(self) -> bool:
        """Whether a worker runs, and all running workers have acknowledged the command."""
        return bool(self.acknowledged) and not self.missing

    @property
    def text(self) -> str:
        """The reach as text."""
        known = f" (the name is in {self.known_from})" if self.known_from else ""
        if not self.acknowledged and not self.missing:
            return f"no worker runs here{known}"
        workers = (
            f"{len(self.acknowledged):,} of {len(self.acknowledged) + len(self.missing):,} running workers"
        )
        return f"acknowledged by {workers}, with {self.in_flight:,} calls in flight{known}"

    @property
    def problem(self) -> str:
        """The reason why a halt cannot be relied on yet."""
        if not self.acknowledged and not self.missing:
            return (
                f"the halt is set at {self.place}, but no running process acknowledged it: no worker reports there."
                " Name the place where it runs with --store or --ledger. A worker that starts there obeys the halt"
            )
        return (
            f"the halt is set at {self.place}, but {', '.join(self.missing)} did not acknowledge it within"
            f" {ACKNOWLEDGED_WITHIN_S:g} s: its process has ended without a report, or hangs. End it if it still runs"
        )


async def execute_acknowledged(
    where: BudgetLocationOptions,
    tenant: str,
    wanted: OperatorCommand,
    why: str,
    *,
    config: PlatformConfig | None = None,
    clock: Clock | None = None,
) -> tuple[TenantControls, CommandReach]:
    """Apply a command at a place, and wait until the running workers have acknowledged it.

    Args:
        where: The place.
        tenant: The tenant, or `*` for all.
        wanted: The command.
        why: A reason, kept with the command.
        config: If given, the names in a halt or a new limit must be known at the place.
        clock: The clock of the wait.

    Returns:
        The new controls, and the workers that have acknowledged them within three seconds.

    Raises:
        CommandError: If the command changes nothing, is not allowed, or contains an unknown name.
        ControlError: If the controls cannot be used.

    """
    async with open_location(where) as place:
        validate_command(tenant, wanted)
        await place.controls.read(tenant)  # first, so that unreadable controls are the reported error
        known_from = ""
        if config is not None:
            known_from = await KnownNames(place, where.log, config).require_for(tenant, wanted)
        controls = await execute_command(
            place.controls, tenant, wanted, by=user_name(), why=why, at=SystemClock().now()
        )
        reach = await _acknowledged(place, where, tenant, known_from, clock or SystemClock())
        return controls, reach


def command_values(controls: TenantControls, reach: CommandReach) -> dict[str, Any]:
    """Return the place, the controls and the reach as JSON values."""
    reached = {name: value for name, value in asdict(reach).items() if name != "place"}
    return {"place": reach.place, **controls.model_dump(mode="json"), "reached": reached}


async def _acknowledged(
    place: BudgetLocation, where: BudgetLocationOptions, tenant: str, known_from: str, clock: Clock
) -> CommandReach:
    """Wait until all running workers have applied the controls, or the time limit is over."""
    started = clock.monotonic()
    while True:
        serial = (await place.controls.read(tenant)).serial
        has_process = where.folder is None or await asyncio.to_thread(is_locked, where.folder)
        reports = await _reports(place, tenant)
        done = [one for one in reports if _has_applied(one, tenant, serial)]  # it may have ended since
        waiting = [one for one in reports if one not in done and one.is_running and has_process]
        has_begun = where.folder is not None and has_process and not reports  # its first report comes soon
        is_over = clock.monotonic() - started >= ACKNOWLEDGED_WITHIN_S
        if is_over or not (waiting or has_begun):
            break
        await clock.sleep(_LOOK_EVERY_S)
    names, missing = (tuple(_name(one, tenant) for one in those) for those in (done, waiting))
    in_flight = sum(one.calls.in_flight for one in (*done, *waiting) if one.is_running)
    return CommandReach(place.name, known_from, names, missing, in_flight)


async def _reports(place: BudgetLocation, tenant: str) -> Sequence[BudgetStatus]:
    tenants = [tenant] if tenant != PLATFORM else await place.statuses.tenants()
    return [status for each in tenants for status in await place.statuses.read(each)]


def _has_applied(status: BudgetStatus, tenant: str, serial: int) -> bool:
    return (status.platform_serial if tenant == PLATFORM else status.controls_serial) == serial


def _name(status: BudgetStatus, tenant: str) -> str:
    return status.worker if tenant != PLATFORM else f"{status.worker} ({status.tenant})"
