"""What a run asks of budgets: its limit, in the controls where operators see and change it, and what it has spent."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

from agentic_trading.clock import SystemClock
from agentic_trading.desk.session.options import RunOptions
from agentic_trading.desk.session.run_setup import PreparedRun
from agentic_trading.governance.commands import SetLimit, execute_command
from agentic_trading.governance.controls_document import ControlStore, TenantControls
from agentic_trading.governance.controls_merge import CommandHistory
from agentic_trading.governance.ledger import Ledger
from agentic_trading.governance.limits import Limit, ScopeKind, limit_text
from agentic_trading.governance.rebuild import LedgerRebuild, require_not_behind
from agentic_trading.llm.limits import NANO
from agentic_trading.operate.choices import host_of
from agentic_trading.platform import restart
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.port_adapters import Log, boards_of, ledger_of


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


async def refuse_unusable_server(options: RunOptions) -> None:
    """Raise `OptionError` for a shared server that has no budget where none was given, or a smaller one than was.

    Raises what the server's adapters raise where it is away or may forget; nothing is written, here or there.
    """
    url = options.config.ledger.url
    if url is None:
        return
    async with AsyncExitStack() as stack:
        controls, statuses = await asyncio.to_thread(boards_of, url, options.out)
        ledger = await asyncio.to_thread(lambda: ledger_of(url, zone=ZoneInfo(options.config.zone)))
        for port in (controls, statuses, ledger):
            await stack.enter_async_context(aclosing(port))
        document = await controls.read(options.tenant)
        if not options.budget_is_given and not has_limits(document.limits):
            raise OptionError(
                "--budget-usd",
                f"left out, and {host_of(url)} has no limit on tenant {options.tenant}",
                "an amount, or a limit that is set there: agentic-trading budget set tenant '*' --usd X",
            )
        _wanted_on_server(options, document)
        await ledger.checkpoint(options.tenant)


@dataclass(frozen=True, slots=True)
class RunBudget:
    """Puts what a run may spend, and what it has spent, in place when its platform opens."""

    options: RunOptions
    opened: PreparedRun
    store: Log

    async def restore(self, ledger: Ledger, controls: ControlStore | None) -> None:
        """Set the run's limit where operators see it and can change it, and restore what is spent.

        What no option says of a limit that stands is kept in a run that goes on, and on a shared server; one of an operator
        where the budget is that of the configuration. On a server a run may ask for less: raises `OptionError` for more,
        and `LedgerRolledBackError` if the ledger is behind what the log has seen of it.
        """
        options, tenant = self.options, self.options.tenant
        if controls is None:
            raise RuntimeError("a run's folder or server has controls")
        if options.config.ledger.url is not None:
            await self._require_checkpoint(ledger, controls)
            wanted = _wanted_on_server(options, await controls.read(tenant))
            if wanted is not None:
                await set_budget(controls, tenant, wanted)
            return
        if options.budget_usd is None and options.budget_is_given and options.max_calls is None:
            await restart.seed_limit(tenant, options.tenant_row, ledger, controls)
        else:
            await set_budget(controls, tenant, self._wanted(await controls.read(tenant)))
        if self.opened.earlier is not None:
            await ledger.restore(tenant, self.opened.earlier.bookings)

    def _wanted(self, document: TenantControls) -> Limit:
        """Return the limit of a run in a folder of its own."""
        options, limit = self.options, self.options.limit
        present = document.limit(limit.scope, limit.id, limit.window)
        if present is None or self.opened.earlier is None:
            return limit
        if options.budget_is_given:
            return replace(present, nusd=limit.nusd, calls=limit.calls)
        return present if options.max_calls is None else replace(present, calls=options.max_calls)

    async def _require_checkpoint(self, ledger: Ledger, controls: ControlStore) -> None:
        """Require the ledger to be as far as the log has seen it, and put back commands that only the log has.

        Raises `LedgerRolledBackError`.
        """
        rebuild, commands = LedgerRebuild(self.options.tenant, self.options.mode), CommandHistory()
        async with aclosing(self.store.scan()) as entries:
            async for entry in entries:
                rebuild.read(entry.record)
                commands.read(entry.record)
        await require_not_behind(rebuild, ledger, SystemClock().now())
        await restart.restore_commands(commands, controls, [self.options.tenant])


def _wanted_on_server(options: RunOptions, document: TenantControls) -> Limit | None:
    """Return the limit that a run sets for all workers of a server, None where it asks for none.

    Raises `OptionError` for more than the one that an operator has set there.
    """
    if not options.budget_is_given and options.max_calls is None:
        return None
    limit = options.limit
    present = document.limit(limit.scope, limit.id, limit.window)
    if present is None:
        return limit if options.budget_is_given else replace(limit, nusd=None)
    limit = replace(
        present,
        nusd=limit.nusd if options.budget_is_given else present.nusd,
        calls=present.calls if limit.calls is None else limit.calls,
    )
    asked = {"--budget-usd": (limit.nusd, present.nusd), "--max-calls": (limit.calls, present.calls)}
    for option, (more, most) in asked.items():
        if more is not None and most is not None and more > most:
            was = f"{more / NANO:g}" if option == "--budget-usd" else f"{more}"
            raise OptionError(
                option,
                f"{was}, and {limit_text(present)} is set on the server",
                "as much or less; `agentic-trading budget set` raises it for all workers",
            )
    return limit
