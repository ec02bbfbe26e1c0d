"""The ledger of a tenant, made anew from logs."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path

from agentic_trading.app import wire, wire_budgets
from agentic_trading.app.session_folder import SessionFolder
from agentic_trading.app.options import OptionError, check_ledger_url
from agentic_trading.governance.determinism import ClockMode
from agentic_trading.governance.ledger import ReservationState, Ledger
from agentic_trading.governance.limit import ScopeKind
from agentic_trading.governance.rebuild import LedgerRebuild
from agentic_trading.governance.windows import Window


@dataclass(frozen=True, slots=True)
class LedgerRebuildReport:
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
) -> LedgerRebuildReport:
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
    calls = LedgerRebuild(tenant, "live")
    readings = [_Reading(log, await asyncio.to_thread(_mode_of, log.parent)) for log in logs]
    for reading in readings:  # so that a log that cannot be read closes no ledger
        await reading.go_on(calls)
    async with aclosing(await asyncio.to_thread(wire_budgets.shared_ledger, ledger_url, zone=zone)) as ledger:
        knew_nusd = await _spent(ledger, tenant)
        await ledger.shut(tenant)
        for reading in readings:  # what comes on record later has just ended, and that the ledger remembers
            await reading.go_on(calls)
        bookings = calls.bookings()
        if calls.position is not None:
            await ledger.expect(tenant, calls.position)
        position = await ledger.restore(tenant, bookings)
    doubtful = [one for one in bookings if one.state is ReservationState.IN_DOUBT]
    return LedgerRebuildReport(
        tenant=tenant,
        logs=tuple(map(str, logs)),
        calls=len(bookings),
        in_doubt=len(doubtful),
        charged_nusd=sum(one.charged.nusd for one in bookings),
        in_doubt_nusd=sum(one.charged.nusd for one in doubtful),
        knew_nusd=knew_nusd,
        generation=position.generation,
    )


@dataclass(slots=True)
class _Reading:
    """A log that is read as far as it has been written, and further when it has grown."""

    log: Path
    mode: ClockMode
    last: int = 0

    async def go_on(self, calls: LedgerRebuild) -> None:
        """Tell `calls` what has come on record since."""
        calls.mode = self.mode
        async with aclosing(wire.records_of(self.log)) as records:
            async for entry in records.scan(self.last):
                calls.read(entry.record)
                self.last = entry.seq


async def _spent(ledger: Ledger, tenant: str) -> int:
    """Return what a server believes that a tenant has spent in all."""
    return sum(
        balance.spent.nusd
        for balance in await ledger.snapshot(tenant)
        if (balance.scope, balance.window) == (ScopeKind.TENANT, Window.NONE)
    )


def _mode_of(folder: Path) -> ClockMode:
    """Return the mode of a session's last run; a log that no run has made is of live calls."""
    session = SessionFolder(folder)
    return session.read_manifest().mode if session.last_run() else "live"
