"""The feed of worker status, and its adapter for files."""

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from agentic_trading.canonical import sha256_hex
from agentic_trading.files import read_file
from agentic_trading.governance.admission import DeniedCall
from agentic_trading.governance.burn_rate import BurnRate, Forecast
from agentic_trading.governance.ledger import Balance, LedgerStatistics, QueuedReservation
from agentic_trading.governance.limits import SHORT_LIVED, UNITS, Ceiling, ScopeKind, Unit, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.llm.errors import FailureKind

Units = tuple[int, int, int]
"""Nano-dollars, tokens, calls."""


class CounterStatus(BaseModel, frozen=True):
    """One counter: ceiling, spent (including in doubt), held, in doubt, and forecast.

    `exhausted` are the units that are used up, or in which it has refused every call for five minutes.
    `exhausted_unit` is the unit that is exhausted first, if the rates of both spans lead to it.
    """

    scope: ScopeKind
    id: str
    window: Window
    window_id: str
    most: tuple[int | None, int | None, int | None]
    spent: Units
    held: Units
    in_doubt: Units
    nusd_per_hour: int | None = None
    exhausted_at: datetime | None = None
    exhausted: tuple[Unit, ...] = ()
    exhausted_unit: Unit | None = None

    @property
    def share_left(self) -> float:
        """The smallest share of a ceiling that is neither spent nor held. -1 if a unit is exhausted."""
        units = zip(self.most, self.spent, self.held, strict=True)
        shares = [
            1 - (spent + held) / most if most else 0.0 for most, spent, held in units if most is not None
        ]
        return -1.0 if self.exhausted else min(shares, default=1.0)


class QueuedStatus(BaseModel, frozen=True):
    """An attempt that waits for headroom: the amount asked for, the amount left, and its arrival."""

    reservation_id: str
    scope: ScopeKind
    id: str
    unit: Unit
    asked: int
    left: int
    priority: int
    since: datetime


class DenialStatus(BaseModel, frozen=True):
    """A refused attempt and the reason.

    `scope` to `unit` are the counter without headroom, if that is the reason.
    """

    at: datetime
    envelope_id: str
    agent: str
    workflow: str
    kind: FailureKind
    why: str
    scope: ScopeKind | None = None
    id: str = ""
    window: Window | None = None
    unit: Unit | None = None


class CallCounts(BaseModel, frozen=True):
    """Calls of one worker process since its start.

    `reserved_nusd` and `charged_nusd` are of charged calls.
    """

    admitted: int = 0
    refused: int = 0
    in_flight: int = 0
    in_doubt: int = 0
    overruns: int = 0
    reserved_nusd: int = 0
    charged_nusd: int = 0


class BudgetStatus(BaseModel, frozen=True):
    """The status of one tenant in one worker process.

    `time` is real time, `as_of` the time of the calls. `is_running` is False in the last status.
    `controls_serial` and `platform_serial` are the serials of the applied controls of the tenant and of the
    platform. An operator's command waits for them. `windows_at` is the time that selects the worker's
    windows, or None if each call has its own.
    """

    worker: str
    tenant: str
    time: datetime
    as_of: datetime
    is_running: bool
    limits_version: int
    counters: tuple[CounterStatus, ...]
    parked: tuple[QueuedStatus, ...] = ()
    refusals: tuple[DenialStatus, ...] = ()
    calls: CallCounts = CallCounts()
    controls_serial: int = 0
    platform_serial: int = 0
    windows_at: datetime | None = None


class StatusFeed(Protocol):
    """Keeps the last status of each worker and tenant.

    A status may be lost, but is never wrong.
    """

    async def publish(self, status: BudgetStatus) -> None:
        """Publish `status`, replacing the last one of its worker and tenant."""
        ...

    async def read(self, tenant: str) -> Sequence[BudgetStatus]:
        """Return the statuses of a tenant by worker. Old statuses may be missing."""
        ...

    async def tenants(self) -> Sequence[str]:
        """Return the tenants with a status, sorted.

        Tenants without a new status for 40 days may be missing.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections that were opened. Repeating is harmless."""
        ...


def counters(balances: Iterable[Balance], forecasts: Iterable[Forecast]) -> tuple[CounterStatus, ...]:
    """Return the counters with a ceiling, each with its forecast if there is one.

    A counter that has admitted no calls has only a forecast.
    """
    known = {_key(forecast.balance): forecast for forecast in forecasts}
    found = {_key(balance): balance for balance in balances}
    unopened = (forecast.balance for key, forecast in known.items() if key not in found)
    return tuple(
        counter(balance, known.get(_key(balance)))
        for balance in (*found.values(), *unopened)
        if any(most is not None for most in balance.ceiling.units)
    )


def lasting_counters(counters: Iterable[CounterStatus]) -> Sequence[CounterStatus]:
    """Return the newest window of each counter. Counters of single calls and traces are left out."""
    found = {
        (counter.scope, counter.id, counter.window): counter
        for counter in sorted(counters, key=lambda one: one.window_id)
        if counter.scope not in SHORT_LIVED
    }
    return [*found.values()]


def counter(balance: Balance, forecast: Forecast | None = None) -> CounterStatus:
    """Return the status of a counter."""
    burn: BurnRate | None = forecast.burn if forecast is not None else None
    return CounterStatus(
        scope=balance.scope,
        id=balance.id,
        window=balance.window,
        window_id=balance.window_id,
        most=balance.ceiling.units,
        spent=balance.spent.units,
        held=balance.held.units,
        in_doubt=balance.in_doubt.units,
        nusd_per_hour=burn.long.nusd if burn is not None else None,
        exhausted_at=forecast.exhausted_at if forecast is not None else None,
        exhausted=forecast.exhausted if forecast is not None else _used_up(balance),
        exhausted_unit=forecast.unit if forecast is not None and forecast.is_steady else None,
    )


def forecast_of(tenant: str, status: CounterStatus) -> Forecast:
    """Return the forecast of a reported counter. Of its rates, only the dollars are known."""
    balance = Balance(
        tenant,
        status.scope,
        status.id,
        status.window,
        status.window_id,
        Ceiling(*status.most),
        Amount(*status.spent),
        Amount(*status.held),
        Amount(*status.in_doubt),
    )
    pace = Amount(status.nusd_per_hour or 0, 0, 0)
    is_steady = status.exhausted_unit is not None
    return Forecast(
        balance,
        BurnRate(pace, pace),
        status.exhausted_at,
        status.exhausted_unit,
        is_steady=is_steady,
        exhausted=status.exhausted,
    )


def _used_up(balance: Balance) -> tuple[Unit, ...]:
    of_unit = zip(UNITS, balance.ceiling.units, balance.spent.units, strict=True)
    return tuple(unit for unit, most, spent in of_unit if most is not None and spent >= most)


def parked(queue: Iterable[QueuedReservation]) -> tuple[QueuedStatus, ...]:
    """Return the statuses of the queued requests."""
    return tuple(
        QueuedStatus(
            reservation_id=one.reservation_id,
            scope=one.held.scope,
            id=one.held.id,
            unit=one.held.unit,
            asked=one.held.asked,
            left=one.held.left,
            priority=one.priority,
            since=one.since,
        )
        for one in queue
    )


def refusals(calls: Iterable[DeniedCall], tenant: str) -> tuple[DenialStatus, ...]:
    """Return the statuses of a tenant's refused calls."""
    return tuple(_denial(one) for one in calls if one.envelope.tenant_id == tenant)


def _denial(call: DeniedCall) -> DenialStatus:
    declined = call.declined
    return DenialStatus(
        at=call.at,
        envelope_id=call.envelope.envelope_id,
        agent=call.envelope.agent_id or call.envelope.agent_type,
        workflow=str(call.envelope.workflow),
        kind=call.reason.category,
        why=call.reason.description,
        scope=declined.scope if declined is not None else None,
        id=declined.id if declined is not None else "",
        window=declined.window if declined is not None else None,
        unit=declined.unit if declined is not None else None,
    )


def call_counts(ledger: LedgerStatistics, *, admitted: int, refused: int) -> CallCounts:
    """Return the counts of a process."""
    return CallCounts(
        admitted=admitted,
        refused=refused,
        in_flight=ledger.in_flight,
        in_doubt=ledger.in_doubt - ledger.late,
        overruns=ledger.overruns,
        reserved_nusd=ledger.reserved_nusd,
        charged_nusd=ledger.charged_nusd,
    )


def _key(balance: Balance) -> tuple[ScopeKind, str, Window, str]:
    return balance.scope, balance.id, balance.window, balance.window_id


_LONGEST = 100
"""The maximum length of an escaped name. Two names and the rest must fit into 255 bytes of a file name."""


class FileStatusFeed:
    """Keeps the last statuses in `folder`, if it exists.

    Statuses that cannot be written are dropped.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parsed: dict[str, tuple[tuple[int, int, int], BudgetStatus]] = {}

    async def publish(self, status: BudgetStatus) -> None:
        """Publish `status`. It is not flushed to disk."""
        await asyncio.to_thread(self._write, status)

    async def read(self, tenant: str) -> list[BudgetStatus]:
        """Return the statuses of a tenant by worker. Invalid files are left out."""
        return await asyncio.to_thread(self._read, f"budget-{_escaped(tenant)}@")

    async def tenants(self) -> list[str]:
        """Return the tenants with a status in the folder."""
        return sorted({status.tenant for status in await asyncio.to_thread(self._read, "budget-")})

    async def aclose(self) -> None:
        """Do nothing, because no file is kept open."""

    def _write(self, status: BudgetStatus) -> None:
        path = self._folder / f"budget-{_escaped(status.tenant)}@{_escaped(status.worker)}.json"
        new = path.with_name(f"{path.name}.new")
        try:
            new.write_text(status.model_dump_json(indent=1), encoding="utf-8")
            os.replace(new, path)  # noqa: PTH105 - atomic, and named for it
        except OSError:
            with suppress(OSError):
                new.unlink(missing_ok=True)

    def _read(self, prefix: str) -> list[BudgetStatus]:
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - a path for each file takes ten times as long
        except OSError:
            return []
        wanted = [name for name in names if name.startswith(prefix) and name.endswith(".json")]
        return sorted(filter(None, map(self._status_in, wanted)), key=lambda status: status.worker)

    def _status_in(self, name: str) -> BudgetStatus | None:
        """Return the status in a file, None for an invalid one. A file is parsed again only if it was replaced."""
        path = self._folder / name
        try:
            # Before reading, so that a file that is replaced meanwhile is parsed again next time.
            now = path.stat()
            replaced = (now.st_ino, now.st_mtime_ns, now.st_size)
            known = self._parsed.get(name)
            if known is not None and known[0] == replaced:
                return known[1]
            status = BudgetStatus.model_validate_json(read_file(path))
        except (OSError, ValidationError):
            self._parsed.pop(name, None)
            return None
        self._parsed[name] = (replaced, status)
        return status


def _escaped(name: str) -> str:
    """Return a name as part of a file name. A long name is cut and ends with its hash."""
    escaped = quote(name, safe="", errors="surrogatepass")
    if len(escaped) <= _LONGEST:
        return escaped
    digest = sha256_hex(name.encode("utf-8", "surrogatepass"))[:32]
    return f"{escaped[: _LONGEST - len(digest) - 1]}+{digest}"  # escaped names have no plus


class MemoryStatusFeed:
    """Keeps the last statuses as long as the process lives."""

    def __init__(self) -> None:
        self._statuses: dict[tuple[str, str], BudgetStatus] = {}

    async def publish(self, status: BudgetStatus) -> None:
        """Publish `status`."""
        self._statuses[status.tenant, status.worker] = status

    async def read(self, tenant: str) -> list[BudgetStatus]:
        """Return the statuses of a tenant by worker."""
        return [self._statuses[key] for key in sorted(self._statuses) if key[0] == tenant]

    async def tenants(self) -> list[str]:
        """Return the tenants with a status."""
        return sorted({tenant for tenant, _ in self._statuses})

    async def aclose(self) -> None:
        """Do nothing, because no connection was opened."""
