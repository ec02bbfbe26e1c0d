"""The ledger of a tenant, made anew from logs."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path

from agentic_trading.app import wire, wire_budgets
from agentic_trading.app.folder import SessionFolder
from agentic_trading.app.options import OptionError, check_ledger_url
from agentic_trading.governance.determinism import Mode
from agentic_trading.governance.ledger import CallState, Ledger
from agentic_trading.governance.limit import ScopeKind
from agentic_trading.governance.rebuild import Rebuilding
from agentic_trading.governance.windows import Window


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a ledger was told again; amounts are in nano-dollars. `knew_nusd` is what it believed before."""

    tenant: str
    logs: tuple[str, ...]
    calls: int
    in_doubt: int
    charged_nusd: int
    in_doubt_nusd: int
    knew_nusd: int
    generation: int


async def rebuilt(
    logs: Sequence[Path], ledger_url: str | None, tenant: str, *, zone: tzinfo = UTC
) -> Rebuilt:
    """Book every call of a tenant that is on record again, on a server that forgets what it knew of them before.

    `zone` is where days and months begin, the same as for those who count there.

    Raises `OptionError` without a server, `StoreError` for a log that cannot be read, `LedgerUnavailableError`.
    """
    if not ledger_url:
        raise OptionError(
            "--ledger",
            "left out, and AGENTIC_LEDGER_URL is not set",
            "the server to rebuild, redis://HOST:PORT; budgets of a folder need no rebuilding",
        )
    check_ledger_url(ledger_url)
    readings = [await _read(log, tenant) for log in logs]
    bookings = [booking for reading in readings for booking in reading.bookings()]
    positions = [reading.position for reading in readings if reading.position is not None]
    async with aclosing(await asyncio.to_thread(wire_budgets.shared_ledger, ledger_url, zone=zone)) as ledger:
        knew_nusd = await _spent(ledger, tenant)
        if positions:
            await ledger.expect(tenant, max(positions, key=lambda one: (one.generation, one.sequence)))
        position = await ledger.restore(tenant, bookings)
    doubtful = [one for one in bookings if one.state is CallState.IN_DOUBT]
    return Rebuilt(
        tenant=tenant,
        logs=tuple(map(str, logs)),
        calls=len(bookings),
        in_doubt=len(doubtful),
        charged_nusd=sum(one.charged.nusd for one in bookings),
        in_doubt_nusd=sum(one.charged.nusd for one in doubtful),
        knew_nusd=knew_nusd,
        generation=position.generation,
    )


async def _read(log: Path, tenant: str) -> Rebuilding:
    reading = Rebuilding(tenant, await asyncio.to_thread(_mode_of, log.parent))
    async with aclosing(wire.records_of(log)) as records:
        async for entry in records.scan(0):
            reading.read(entry.record)
    return reading


async def _spent(ledger: Ledger, tenant: str) -> int:
    """Return what a server believes that a tenant has spent in all."""
    return sum(
        balance.spent.nusd
        for balance in await ledger.snapshot(tenant)
        if (balance.scope, balance.window) == (ScopeKind.TENANT, Window.NONE)
    )


def _mode_of(folder: Path) -> Mode:
    """Return the mode of a session's last run; a log that no run has made is of live calls."""
    session = SessionFolder(folder)
    return session.read_manifest().mode if session.last_run() else "live"
