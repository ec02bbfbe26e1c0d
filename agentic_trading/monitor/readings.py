"""The budgets of all sources as they were read last, for all pages, and their metrics."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.errors import TradingError
from agentic_trading.governance.controls_document import HaltScope
from agentic_trading.governance.status_feed import BudgetStatus, CounterStatus
from agentic_trading.llm.event import PLATFORM
from agentic_trading.monitor.budget_rows import is_reporting, newest_report, shown_counters
from agentic_trading.operate.budgets import BudgetLocation, BudgetView, read_view, reporting_tenants
from agentic_trading.platform.metrics import budget_samples, metrics_text
from agentic_trading.worker.housekeeping import BudgetReports


@dataclass(frozen=True, slots=True)
class BudgetSource:
    """A place of budgets.

    Attributes:
        name: The name of the session, or an empty text for a server.
        location: The open place.

    """

    name: str
    location: BudgetLocation


@dataclass(frozen=True, slots=True)
class NamedView:
    """The budgets of a tenant.

    Attributes:
        name: The name of its session, or an empty text for a server.
        view: The budgets.
        counters: Its counters in the order of the page.
        share_left: The smallest share that is left in one of them.

    """

    name: str
    view: BudgetView
    counters: tuple[CounterStatus, ...]
    share_left: float


def named_view(name: str, view: BudgetView) -> NamedView:
    """Return the budgets of a tenant with their source, and in order."""
    counters = tuple(shown_counters(view))
    return NamedView(name, view, counters, min((each.share_left for each in counters), default=1.0))


class BudgetReadings:
    """Reads the budgets of sources.

    Args:
        sources: Returns the places of budgets.
        tenant: The only tenant to read. None means all that workers have reported.
        clock: The clock of `read_at`.

    Attributes:
        views: The budgets of each tenant, the fullest first.
        read_at: The time of the last reading, or None before the first.

    """

    def __init__(
        self,
        sources: Callable[[], Awaitable[Sequence[BudgetSource]]],
        tenant: str | None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._find = sources
        self._tenant = tenant
        self._clock = clock or SystemClock()
        self._by_source: dict[str, list[NamedView]] = {}
        self.views: Sequence[NamedView] = ()
        self.read_at: datetime | None = None

    @property
    def sources(self) -> int:
        """The number of places with budgets."""
        return len(self._by_source)

    async def read(self) -> None:
        """Read all places. If one fails, the others are read, and then its error is raised."""
        failed: list[TradingError] = []
        sources = await self._find()
        for source in sources:
            try:
                found = [await read_view(source.location, tenant) for tenant in await self._tenants(source)]
            except TradingError as e:
                failed.append(e)
            else:
                self._by_source[source.name] = await asyncio.to_thread(_named, source.name, found)
        if not sources or len(failed) < len(sources):
            self.read_at = self._clock.now()
        every = [view for views in self._by_source.values() for view in views]
        self.views = sorted(every, key=lambda one: (one.share_left, one.name, one.view.tenant))
        if failed:
            raise failed[0]

    async def _tenants(self, source: BudgetSource) -> Sequence[str]:
        return await reporting_tenants(source.location) if self._tenant is None else [self._tenant]


def _named(name: str, views: Sequence[BudgetView]) -> list[NamedView]:
    return [named_view(name, view) for view in views]


REFUSED: Final = "agentic_budget_refused"
"""The only metric of budgets that a dashboard leaves out, because each worker counts its own refusals."""


def metrics_of(views: Iterable[BudgetView], now: datetime) -> bytes:
    """Return the metrics of budgets in the Prometheus text format. Blocks for thousands of counters.

    Several sessions may have a tenant with the same name. The one that reported last counts. Halted entries
    also count in the others, if they run.
    """
    in_order = sorted(views, key=_reported_at)
    newest = {view.tenant: view for view in in_order}
    # A session halts its own entries, so that the newest one does not show the halts of the others.
    halts: Counter[tuple[str, HaltScope]] = Counter(
        (view.tenant, halt.scope)
        for view in in_order
        if view is not newest[view.tenant] and any(is_reporting(status, now) for status in view.workers)
        for halt in view.controls.halts
        if halt.scope is HaltScope.ENTRIES and newest[view.tenant].controls.halt(halt.scope, halt.id) is None
    )
    for view in newest.values():
        halts.update((view.tenant, halt.scope) for halt in view.controls.halts)
        halts |= Counter((PLATFORM, halt.scope) for halt in view.platform.halts)
    reporting = {
        tenant: sum(is_reporting(status, now) for status in view.workers) for tenant, view in newest.items()
    }
    reports = BudgetReports([_status(view, now) for view in newest.values()], {}, _every_scope(halts, newest))
    samples = budget_samples(reports, reporting)
    return metrics_text({name: values for name, values in samples.items() if name != REFUSED})


def _every_scope(
    halts: Counter[tuple[str, HaltScope]], tenants: Iterable[str]
) -> dict[tuple[str, HaltScope], int]:
    """Return the number of halts by tenant and scope, with 0 for the other scopes."""
    return {(tenant, scope): halts[tenant, scope] for tenant in (PLATFORM, *tenants) for scope in HaltScope}


def _reported_at(view: BudgetView) -> datetime:
    report = newest_report(view)
    return report.time if report is not None else datetime.min.replace(tzinfo=UTC)


def _status(view: BudgetView, now: datetime) -> BudgetStatus:
    """Return the last report of a tenant, with its counters of this moment."""
    report = newest_report(view) or BudgetStatus(
        worker="", tenant=view.tenant, time=now, as_of=now, is_running=False, limits_version=0, counters=()
    )
    return report.model_copy(update={"counters": view.counters, "parked": view.parked})
