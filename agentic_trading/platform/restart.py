"""Continue after a restart: lock the folder, restore spending, and set configured limits."""

import fcntl
import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from weakref import WeakSet

from agentic_trading.clock import SystemClock
from agentic_trading.governance.commands import RemoveLimit, SetLimit, execute_command
from agentic_trading.governance.controls_document import AppliedCommand, ControlStore, TenantControls
from agentic_trading.governance.controls_merge import CommandHistory, restore_controls
from agentic_trading.governance.errors import CommandError
from agentic_trading.governance.ledger import Ledger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, ceiling_text, limited_text
from agentic_trading.governance.rebuild import LedgerRebuild, LostAttempt, require_not_behind
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.event import PLATFORM
from agentic_trading.llm.facts import RecordQuery
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.store import InteractionStore
from agentic_trading.logger import get_logger
from agentic_trading.platform.config import PlatformConfig, TenantConfig
from agentic_trading.platform.ledger_snapshots import LedgerRebuilds, tenant_of_record
from agentic_trading.platform.port_adapters import LogRecords, file_log_of
from agentic_trading.worker.response_cache import ResponseCache

log = get_logger()

CONFIG: Final = "config"
"""The author of the limits in `[tenants]`. Limits by operators have other authors, and are not changed."""


@dataclass(frozen=True, slots=True)
class CarriedOn:
    """The state of a platform after a restart.

    Attributes:
        unended: The attempts without a recorded end, by reservation id. With a shared ledger, other workers
            may have ended them.
        rebuilds: The ledgers as the log gives them. None if the log is not a file.

    """

    unended: Mapping[str, LostAttempt]
    rebuilds: LedgerRebuilds | None = None


async def carry_on(
    config: PlatformConfig,
    ledger: Ledger,
    store: InteractionStore,
    cache: ResponseCache,
    controls: ControlStore | None,
    *,
    restores: bool = True,
) -> CarriedOn:
    """Restore the state of a platform from its log, and set the configured limits.

    This restores a ledger of this process, and operator commands that `controls` has lost. A shared ledger is
    not restored, but must not be behind the log. Of a log in a file, only the newest snapshot and the lines
    after it are read. Any other log is read whole, and its answers of level `recorded` go to the cache.

    Args:
        config: The configuration.
        ledger: The ledger.
        store: The log.
        cache: The response cache.
        controls: The store of operator commands.
        restores: Whether to restore or check the ledger. False leaves it unchanged.

    Raises:
        LedgerRolledBackError: If a shared ledger is behind the log.
        LedgerUnavailableError: If a shared ledger is unreachable.
        StoreError: If the log cannot be read.

    """
    log_file, rebuilds = file_log_of(store), None
    if log_file is None:
        commands, by_tenant = await _whole_log(config, store, cache)
    else:
        commands = await recorded_commands(log_file.records)
        rebuilds = LedgerRebuilds(
            log_file.path, log_file.records, config.tenant_ids, config.mode, config.zone
        )
        by_tenant = (await rebuilds.open()).by_tenant
    unended: dict[str, LostAttempt] = {}
    for tenant, rebuild in by_tenant.items():
        unended |= rebuild.lost()
        if not restores:
            continue
        if config.ledger.url is None:
            await ledger.restore(tenant, rebuild.entries())
        else:
            await require_not_behind(rebuild, ledger, SystemClock().now())
    if controls is not None:
        await restore_commands(commands, controls, config.tenant_ids)
    await seed_limits(config, ledger, controls)
    return CarriedOn(unended, rebuilds)


async def _whole_log(
    config: PlatformConfig, store: InteractionStore, cache: ResponseCache
) -> tuple[CommandHistory, Mapping[str, LedgerRebuild]]:
    answers: list[LLMInteraction] = []
    commands = CommandHistory()
    rebuilds = {tenant: LedgerRebuild(tenant, config.mode) for tenant in config.tenant_ids}
    async with aclosing(store.scan()) as entries:
        async for entry in entries:
            commands.read(entry.record)
            if (rebuild := rebuilds.get(tenant_of_record(entry.record))) is not None:
                rebuild.read(entry.record)
                if isinstance(entry.record, LLMInteraction) and entry.record.envelope.is_cacheable:
                    answers.append(entry.record)
    cache.fill(answers)
    return commands, rebuilds


async def recorded_commands(records: LogRecords) -> CommandHistory:
    """Return the operator commands in a log, found by its index. Raises `StoreError` if it cannot be read."""
    commands = CommandHistory()
    async with aclosing(records.entries(RecordQuery(kind=(AppliedCommand.KIND,)))) as entries:
        async for entry in entries:
            commands.read(entry.record)
    return commands


async def restore_commands(commands: CommandHistory, controls: ControlStore, tenants: Iterable[str]) -> None:
    """Restore operator commands that `controls` has lost, for these tenants and the platform."""
    for tenant in (PLATFORM, *tenants):
        restored = await restore_controls(controls, tenant, [commands.of(tenant)])
        if restored.changes:
            log.error("controls_rolled_back", tenant=tenant, restored=list(restored.changes))


async def seed_limits(config: PlatformConfig, ledger: Ledger, controls: ControlStore | None) -> None:
    """Set the limits of `[tenants]`, except where an operator has changed them.

    With controls in a folder, limits of an earlier configuration are removed.
    """
    for tenant in config.tenant_ids:
        row = config.tenants.get(tenant, TenantConfig())
        # On a server, a limit that is not ours may belong to the configuration of another platform. Removing it
        # would lift that platform's limit.
        if controls is not None and config.ledger.url is None:
            await _remove_stale(tenant, row, controls)
        await seed_limit(tenant, row, ledger, controls)


async def _remove_stale(tenant: str, row: TenantConfig, controls: ControlStore) -> None:
    document = await controls.read(tenant)
    kept = row.window if row.budget_usd is not None or row.calls is not None else None
    for limit in document.limits:
        is_of_a_row = limit.scope is ScopeKind.TENANT and limit.id == ANY and limit.window != kept
        if is_of_a_row and not _is_an_operators(document, limit, limit):
            gone = RemoveLimit(limit.scope, limit.id, limit.window)
            why = "no longer in the configuration"
            await execute_command(controls, tenant, gone, by=CONFIG, why=why, at=SystemClock().now())


async def seed_limit(tenant: str, row: TenantConfig, ledger: Ledger, controls: ControlStore | None) -> None:
    """Set the limit of a tenant, unless an operator has set or removed one in the same place."""
    if row.budget_usd is None and row.calls is None:
        return
    nusd = None if row.budget_usd is None else int(row.budget_usd * NANO)
    limit = Limit(ScopeKind.TENANT, ANY, row.window, nusd=nusd, calls=row.calls)
    if controls is None:
        await ledger.apply_limits(tenant, [limit], version=1)
        return
    document = await controls.read(tenant)
    present = document.limit(limit.scope, limit.id, limit.window)
    if present == limit:
        return
    if _is_an_operators(document, limit, present):
        stands = "no limit" if present is None else ceiling_text(present.ceiling)
        log.warning(
            "limit_of_operator_stands", tenant=tenant, stands=stands, config=ceiling_text(limit.ceiling)
        )
        return
    if present is not None:
        was, now = ceiling_text(present.ceiling), ceiling_text(limit.ceiling)
        log.warning("limit_of_configuration_replaced", tenant=tenant, was=was, now=now)
    try:
        why = "[tenants] of the configuration"
        await execute_command(controls, tenant, SetLimit(limit), by=CONFIG, why=why, at=SystemClock().now())
    except CommandError:
        if (await controls.read(tenant)).limit(limit.scope, limit.id, limit.window) != limit:
            raise  # unless another platform has set the same limit just now


def _is_an_operators(document: TenantControls, limit: Limit, present: Limit | None) -> bool:
    """Whether the last command in the place of a limit is an operator's."""
    subject = limited_text(limit.scope, limit.id, limit.window)
    by = [action.by for action in document.actions if action.subject == subject]
    return by[-1] != CONFIG if by else present is not None


_TAKEN_LOGS: Final[WeakSet[InteractionStore]] = WeakSet()


@asynccontextmanager
async def taken_log(store: InteractionStore) -> AsyncGenerator[None]:
    """Lock a log for one platform of this process. Raises `StoreError` if another one has it open."""
    if store in _TAKEN_LOGS:
        name = getattr(store, "path", Path("the log"))
        raise StoreError(name, "another platform is open on it. Close it, or give both the same [ledger] url")
    _TAKEN_LOGS.add(store)
    try:
        yield
    finally:
        _TAKEN_LOGS.discard(store)


class TakenFolder:
    """A locked folder: for one platform, or for all platforms that share a ledger."""

    def __init__(self, folder: Path, *, is_shared: bool) -> None:
        """Lock the folder. Raises `StoreError` if it cannot be created or is locked."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(folder, os.O_RDONLY)
        except OSError as e:
            raise StoreError(folder, f"cannot be used ({e.strerror}). Choose another folder") from e
        try:
            fcntl.flock(self._handle, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as e:
            os.close(self._handle)
            why = "another platform is open in it. Close it, or give both the same [ledger] url and different names"
            raise StoreError(folder, why) from e

    async def aclose(self) -> None:
        """Unlock the folder. Call it once."""
        os.close(self._handle)
