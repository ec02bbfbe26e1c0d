"""Operator commands from Python: halt, resume, set limits, read budgets, and read logs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from agentic_trading.audit.logs import has_log
from agentic_trading.audit.spend import SpendReport, spend_report
from agentic_trading.audit.verify import ReadableLog
from agentic_trading.governance.commands import OperatorCommand
from agentic_trading.governance.rebuild import LedgerRebuild
from agentic_trading.llm.envelope import DEFAULT_TENANT
from agentic_trading.llm.store import LOG_NAME, Records, SpendKey
from agentic_trading.operate import budgets, choices
from agentic_trading.operate.operator_commands import CommandReach, execute_acknowledged
from agentic_trading.platform.config import RunMode
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.port_adapters import records_of

Place = Path | str
"""The folder of a gateway's log, or the URL of its ledger (`redis://…`)."""


class OpenLog(Records, ReadableLog, Protocol):
    """A log open for reading: queries, and every record in order."""


async def halt(
    place: Place,
    why: str,
    *,
    tenant: str = DEFAULT_TENANT,
    agent: str | None = None,
    workflow: str | None = None,
    model: str | None = None,
) -> CommandReach:
    """Halt a tenant, or one of its agents, workflows or models, and wait until the workers acknowledge it.

    Args:
        place: The folder of the log, or the URL of the ledger.
        why: A reason, kept with the halt.
        tenant: The tenant, or `*` for all.
        agent: The agent to halt. Give at most one of agent, workflow and model.
        workflow: The workflow to halt.
        model: The model to halt, as `provider/model`.

    Returns:
        The workers that acknowledged the halt. You can rely on it if `is_complete`. Otherwise `problem` is
        the reason.

    Raises:
        OptionError: If the place has no log, or an argument is invalid.
        CommandError: If the halt changes nothing or is not allowed.
        ControlError: If the controls cannot be used.

    """
    return await _execute(
        place, tenant, budgets.halt_command(tenant, agent=agent, workflow=workflow, model=model), why
    )


async def resume(
    place: Place,
    why: str,
    *,
    tenant: str = DEFAULT_TENANT,
    agent: str | None = None,
    workflow: str | None = None,
    model: str | None = None,
) -> CommandReach:
    """Lift a halt of the same scope. Arguments, result and errors are those of `halt`."""
    return await _execute(
        place, tenant, budgets.resume_command(tenant, agent=agent, workflow=workflow, model=model), why
    )


async def set_limit(
    place: Place,
    scope: str,
    scope_id: str,
    *,
    per: str,
    why: str,
    usd: str | None = None,
    tokens: int | None = None,
    calls: int | None = None,
    tenant: str = DEFAULT_TENANT,
    remove: bool = False,
) -> CommandReach:
    """Set or remove a limit, and wait until the workers acknowledge it.

    Args:
        place: The folder of the log, or the URL of the ledger.
        scope: The kind of scope: agent, workflow, principal, tenant, trace or call.
        scope_id: The id of the scope, or `*` for each of them.
        per: The window: minute, hour, day, month or none.
        why: A reason, kept with the limit.
        usd: The most US dollars, as decimal text.
        tokens: The most tokens.
        calls: The most calls.
        tenant: The tenant of the limit.
        remove: Whether to remove the limit. Then give no ceiling.

    Returns:
        The workers that acknowledged the limit.

    Raises:
        OptionError: If the place has no log, or an argument is invalid.
        CommandError: If the command changes nothing or is not allowed.
        ControlError: If the controls cannot be used.

    """
    wanted = budgets.limit_command(scope, scope_id, per, usd=usd, tokens=tokens, calls=calls, remove=remove)
    return await _execute(place, tenant, wanted, why)


async def status(place: Place, *, tenant: str = DEFAULT_TENANT) -> budgets.BudgetView:
    """Return the limits, counters, halts and workers of a tenant.

    Raises the errors of `halt` for the place.
    """
    return await budgets.read_status(await asyncio.to_thread(_location, place), tenant)


@asynccontextmanager
async def open_log(folder: Place) -> AsyncGenerator[OpenLog]:
    """Open the log in a folder for reading, also while a gateway writes to it.

    Raises:
        OptionError: If the folder has no log.

    """
    records = records_of(await asyncio.to_thread(_log, folder))
    try:
        yield records
    finally:
        await records.aclose()


async def spend(folder: Place, *by: SpendKey, tenant: str | None = None) -> SpendReport:
    """Return the cost of the calls in a folder's log.

    It is summed by keys such as `tenant`, `agent` and `model`.
    """
    async with open_log(folder) as records:
        return await spend_report(records, *by, tenant=tenant)


async def rebuild(folder: Place, *, tenant: str = DEFAULT_TENANT, mode: RunMode = "paper") -> LedgerRebuild:
    """Return the reservations of a tenant, rebuilt from the log in a folder."""
    rebuilt = LedgerRebuild(tenant, mode)
    async with open_log(folder) as records:
        async for entry in records.scan():
            rebuilt.read(entry.record)
    return rebuilt


async def _execute(place: Place, tenant: str, wanted: OperatorCommand, why: str) -> CommandReach:
    where = await asyncio.to_thread(_location, place)
    _, reach = await execute_acknowledged(where, tenant, wanted, why)
    return reach


def _location(place: Place) -> budgets.BudgetLocationOptions:
    if isinstance(place, str) and "://" in place:
        choices.check_ledger_url(place)
        return budgets.BudgetLocationOptions(None, place)
    log = _log(place)
    return budgets.BudgetLocationOptions(log.parent, log=log)


def _log(folder: Place) -> Path:
    """Return the log in a folder."""
    log = Path(folder) / LOG_NAME
    # A halt in a folder without a log would stop nothing.
    if not has_log(log):
        allowed = f"a folder with {LOG_NAME}, such as that of a gateway or a session"
        raise OptionError("the place", f"{folder}, without a log", allowed)
    return log
