"""What a run asks of budgets: its limit, in the controls where operators see and change it, and what it has spent."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from datetime import UTC, timedelta, tzinfo
from urllib.parse import urlsplit

from agentic_trading.app.options import OptionError, RunOptions
from agentic_trading.app.run_setup import PreparedRun
from agentic_trading.app.trading import Log
from agentic_trading.clock import SystemClock
from agentic_trading.governance.commands import SetLimit, execute_command
from agentic_trading.governance.controls_document import ControlStore
from agentic_trading.governance.ledger import Ledger
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window, limit_text
from agentic_trading.governance.rebuild import LedgerRebuild, rollback_error
from agentic_trading.llm.limits import NANO
from agentic_trading.platform import restart
from agentic_trading.platform.adapters import boards_of, ledger_of


def tenant_limit(budget_nusd: int, max_calls: int | None = None) -> Limit:
    """Return the limit that `--budget-usd` and `--max-calls` mean: on what each tenant spends in total."""
    return Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=budget_nusd, calls=max_calls)


def budget_ledger(budget_nusd: int, *, max_calls: int | None = None, zone: tzinfo = UTC) -> MemoryLedger:
    """Return a ledger that lets a tenant spend `budget_nusd` and make `max_calls` in all; a pool serves one tenant."""
    return MemoryLedger([tenant_limit(budget_nusd, max_calls)], zone=zone)


def totals_ledger() -> MemoryLedger:
    """Return a ledger without limits that counts what every scope has spent in all, and forgets nothing."""
    return MemoryLedger(keep=timedelta(days=36_500), counted=[(scope, Window.NONE) for scope in ScopeKind])


async def set_budget(controls: ControlStore, tenant: str, limit: Limit) -> None:
    """Set a limit in the controls, if it is not set already."""
    present = (await controls.read(tenant)).limit(limit.scope, limit.id, limit.window)
    if present != limit:
        await execute_command(
            controls, tenant, SetLimit(limit), by="run", why="--budget-usd", at=SystemClock().now()
        )


def has_limits(limits: Sequence[Limit]) -> bool:
    """Whether a tenant as a whole has a limit on its money."""
    return any(limit.scope is ScopeKind.TENANT and limit.nusd is not None for limit in limits)


def host_of(url: str) -> str:
    """Return an address without its secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or parts.path}" + (f":{parts.port}" if parts.port else "")


async def refuse_unusable_server(options: RunOptions) -> None:
    """Raise `OptionError` for a shared server that has no budget where none was given, or a smaller one than was.

    Raises what the server's adapters raise where it is away or may forget; nothing is written, here or there.
    """
    url = options.config.ledger.url
    if url is None:
        return
    async with AsyncExitStack() as stack:
        controls, statuses = await asyncio.to_thread(boards_of, url, options.out)
        ledger = await asyncio.to_thread(ledger_of, url)
        for port in (controls, statuses, ledger):
            await stack.enter_async_context(aclosing(port))
        document = await controls.read(options.tenant)
        if not options.budget_is_given and not has_limits(document.limits):
            raise OptionError(
                "--budget-usd",
                f"left out, and {host_of(url)} has no limit on tenant {options.tenant}",
                "an amount, or a limit that is set there: agentic-trading budget set tenant '*' --usd X",
            )
        limit = options.limit
        _refuse_to_raise(options, document.limit(limit.scope, limit.id, limit.window))
        await ledger.checkpoint(options.tenant)


@dataclass(frozen=True, slots=True)
class RunBudget:
    """Puts what a run may spend, and what it has spent, in place when its platform opens."""

    options: RunOptions
    opened: PreparedRun
    store: Log

    async def restore(self, ledger: Ledger, controls: ControlStore | None) -> None:
        """Set the run's limit where operators see it and can change it, and restore what is spent.

        A limit that stands is kept where no budget was given to a run that goes on, and on a shared server; one of an
        operator where the budget is that of the configuration. On a server a run may ask for less: raises `OptionError`
        for more, and `LedgerRolledBackError` if the ledger is behind what the log has seen of it.
        """
        options, tenant, limit = self.options, self.options.tenant, self.options.limit
        if controls is None:
            raise RuntimeError("a run's folder or server has controls")
        present = (await controls.read(tenant)).limit(limit.scope, limit.id, limit.window)
        if options.config.ledger.url is not None:
            await self._require_checkpoint(ledger)
            _refuse_to_raise(options, present)
        if options.budget_usd is None and options.budget_is_given and options.max_calls is None:
            await restart.seed_limit(tenant, options.tenant_row, ledger, controls)
        elif options.budget_is_given or (options.config.ledger.url is None and self._is_to_be_set(present)):
            await set_budget(controls, tenant, limit)
        if options.config.ledger.url is None and self.opened.earlier is not None:
            await ledger.restore(tenant, self.opened.earlier.bookings)

    def _is_to_be_set(self, present: Limit | None) -> bool:
        return present is None or self.opened.earlier is None

    async def _require_checkpoint(self, ledger: Ledger) -> None:
        """Require the ledger to be as far as the log has seen it; raises `LedgerRolledBackError`."""
        tenant = self.options.tenant
        rebuild = LedgerRebuild(tenant, self.options.mode)
        async with aclosing(self.store.scan()) as entries:
            async for entry in entries:
                rebuild.read(entry.record)
        if rebuild.checkpoint is not None:
            await ledger.require_at_least(tenant, rebuild.checkpoint)
            found = await ledger.checkpoint(tenant)
            if (gone := rollback_error(tenant, rebuild.checkpoint, found)) is not None:
                raise gone


def _refuse_to_raise(options: RunOptions, present: Limit | None) -> None:
    """Raise `OptionError` for a budget above the one that an operator has set for all workers of the server."""
    limit = options.limit
    if not options.budget_is_given or present is None or present.nusd is None or limit.nusd is None:
        return
    if limit.nusd > present.nusd:
        raise OptionError(
            "--budget-usd",
            f"{limit.nusd / NANO:g}, and {limit_text(present)} is set on the server",
            "as much or less; `agentic-trading budget set` raises it for all workers",
        )
