"""Where the budgets of a tenant stand: in a session's folder, or on a server that workers share."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agentic_trading.app import wire_budgets
from agentic_trading.governance.controls_document import PLATFORM, ControlStore, TenantControls
from agentic_trading.governance.ledger import Ledger
from agentic_trading.governance.status_feed import (
    BudgetStatus,
    CounterStatus,
    QueuedStatus,
    StatusFeed,
    counters,
    parked,
)


@dataclass(frozen=True, slots=True)
class BudgetLocationOptions:
    """What a command was told of the place: a session's folder, or a server's address, which goes first."""

    folder: Path | None
    ledger_url: str | None = None

    @property
    def name(self) -> str:
        """The place for people; of an address, nothing that may be secret."""
        return wire_budgets.host_of(self.ledger_url) if self.ledger_url else str(self.folder)


@dataclass(frozen=True, slots=True)
class BudgetLocation:
    """The boards of a place, and its ledger where other processes can ask it."""

    name: str
    board: ControlStore
    statuses: StatusFeed
    ledger: Ledger | None = None


@dataclass(frozen=True, slots=True)
class BudgetView:
    """A tenant's budgets at one moment: what is ordered, for it and for all; counters; who waits; what workers tell."""

    place: str
    tenant: str
    controls: TenantControls
    platform: TenantControls
    counters: tuple[CounterStatus, ...]
    parked: tuple[QueuedStatus, ...]
    workers: tuple[BudgetStatus, ...]


@asynccontextmanager
async def budget_place(where: BudgetLocationOptions) -> AsyncGenerator[BudgetLocation]:
    """Open a place for as long as the block lasts."""
    place = await asyncio.to_thread(_opened, where)
    try:
        yield place
    finally:
        await place.board.aclose()
        await place.statuses.aclose()
        if place.ledger is not None:
            await place.ledger.aclose()


def _opened(where: BudgetLocationOptions) -> BudgetLocation:
    if where.ledger_url is None:
        return BudgetLocation(where.name, *wire_budgets.folder_boards(where.folder or Path()))
    boards = wire_budgets.shared_boards(where.ledger_url)
    return BudgetLocation(where.name, *boards, wire_budgets.shared_ledger(where.ledger_url))


async def read_status(where: BudgetLocationOptions, tenant: str) -> BudgetView:
    """Open a place, look at a tenant's budgets once, and close it; raises what `look` raises."""
    async with budget_place(where) as place:
        return await read_view(place, tenant)


async def read_view(place: BudgetLocation, tenant: str) -> BudgetView:
    """Return how a tenant stands now.

    A server's ledger is asked itself; a ledger within another process, and forecasts, are as their worker told last.
    Raises `LedgerUnavailableError` and `ControlsUnavailableError` for a server that does not answer.
    """
    controls = await place.board.read(tenant)
    platform = await place.board.read(PLATFORM)
    workers = tuple(await place.statuses.read(tenant))
    newest = max(workers, key=lambda status: status.time, default=None)
    told = newest.counters if newest is not None else ()
    if place.ledger is None:
        line = newest.parked if newest is not None else ()
        return BudgetView(place.name, tenant, controls, platform, told, line, workers)
    forecasts = {_key(one): one for one in told}
    now = tuple(
        _with_forecast(one, forecasts.get(_key(one)))
        for one in counters(await place.ledger.snapshot(tenant), ())
    )
    line = parked(await place.ledger.line(tenant))
    return BudgetView(place.name, tenant, controls, platform, now, line, workers)


def _with_forecast(counter: CounterStatus, told: CounterStatus | None) -> CounterStatus:
    if told is None:
        return counter
    forecast = {"nusd_per_hour": told.nusd_per_hour, "exhausted_at": told.exhausted_at}
    return counter.model_copy(update=forecast)


def _key(counter: CounterStatus) -> tuple[str, ...]:
    return counter.scope, counter.id, counter.window, counter.window_id
