"""The page of budgets: banners, figures, counters by tenant, refusals, waiting calls and workers."""

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance.controls_document import Halt
from agentic_trading.governance.limits import Window, limit_text
from agentic_trading.governance.status_feed import CounterStatus
from agentic_trading.monitor import budget_rows as rows
from agentic_trading.monitor.page import NotShownError, PageAnswer, PageRequest
from agentic_trading.monitor.readings import NamedView, metrics_of
from agentic_trading.monitor.sources import Sources
from agentic_trading.operate.budgets import BudgetView, uncounted_limits
from agentic_trading.operate.choices import pluralize

MOST_TENANTS: Final = 30
"""Tenants with a table. The others are folded into a list."""
MOST_ROWS: Final = 300
"""Counters on the page. Each tenant has its share of them, and at least `LEAST_ROWS`."""
LEAST_ROWS: Final = 6
MOST_FOLDED: Final = 100
MOST_BANNERS: Final = 8
MOST_LISTED: Final = 12
SAMPLED_EVERY_S: Final = 10.0
SAMPLES: Final = 61
"""The samples of ten minutes, of which each pair is a point of the line."""

_LONGEST_FIRST: Final = (Window.DAY, Window.MONTH, Window.NONE, Window.HOUR, Window.MINUTE)


@dataclass(frozen=True, slots=True)
class BudgetFigure:
    """A figure in the head of the page. `tone` is warn, bad or empty."""

    name: str
    value: str
    note: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class TenantSection:
    """The table of a tenant.

    Attributes:
        title: The tenant, and the session if there are several.
        note: The time of the session, if it is not the present.
        pending: Limits that no counter shows yet.
        rows: The counters.
        more: A text if there are more counters.
        link: The address of the page with this tenant alone, or an empty text.

    """

    title: str
    tenant: str
    note: str
    pending: tuple[str, ...]
    rows: tuple[rows.CounterRow, ...]
    more: str
    link: str


@dataclass(frozen=True, slots=True)
class FoldedTenant:
    """A tenant without a table: its fullest counter."""

    title: str
    tenant: str
    counter: str
    used: str
    tone: str


@dataclass(frozen=True, slots=True)
class BudgetsView:
    """The page, with texts that are ready to print."""

    now: str
    summary: str
    tenant: str
    can_choose: bool
    halts: tuple[str, ...]
    spent_up: tuple[str, ...]
    more_spent_up: str
    figures: tuple[BudgetFigure, ...]
    sections: tuple[TenantSection, ...]
    folded_title: str
    folded: tuple[FoldedTenant, ...]
    more_folded: str
    refusals: tuple[rows.RefusalRow, ...]
    links_calls: bool
    waiting: tuple[rows.WaitingRow, ...]
    workers: tuple[rows.WorkerRow, ...]
    shows_calls: bool


class BudgetsPage:
    """Shows the budgets of all sources, read once for all browsers.

    Args:
        sources: The sources.
        clock: The clock of ages and samples.

    """

    name = "Budgets"
    paths = ("/",)

    def __init__(self, sources: Sources, *, clock: Clock | None = None) -> None:
        self._sources = sources
        self._readings = sources.readings
        self._clock = clock or SystemClock()
        self._samples: dict[str, deque[int]] = {}
        self._sampled_at: float | None = None
        self._made: dict[str, BudgetsView] = {}
        self._making = asyncio.Lock()

    async def refresh(self) -> None:
        """Read all sources. If one fails, the others are read, and then its error is raised."""
        try:
            await self._readings.read()
        finally:
            await asyncio.to_thread(self._sample)
            self._made = {}

    async def answer(self, request: PageRequest) -> PageAnswer:
        """Return the page of all tenants, or of the one in `tenant` of the query."""
        tenant = request.query.get("tenant", "")
        if tenant and tenant not in {each.view.tenant for each in self._readings.views}:
            raise NotShownError
        async with self._making:  # once for all browsers, because a thousand tenants take long
            made = self._made
            if tenant not in made:
                made[tenant] = await asyncio.to_thread(self._page, tenant)
        return PageAnswer("agentic_trading.monitor/budgets.html.j2", made[tenant])

    async def metrics(self) -> bytes:
        """Return the metrics of the budgets as they were read last."""
        views = [each.view for each in self._readings.views]
        return await asyncio.to_thread(metrics_of, views, self._readings.read_at or self._clock.now())

    def _sample(self) -> None:
        """Keep the amounts that are spent, every ten seconds. Only counters with a line on the page are kept."""
        now = self._clock.monotonic()
        if self._sampled_at is not None and now - self._sampled_at < SAMPLED_EVERY_S:
            return
        self._sampled_at = now
        kept: dict[str, deque[int]] = {}
        for each in self._readings.views[:MOST_TENANTS]:
            for counter in each.counters[:MOST_ROWS]:
                for unit, _, spent, _, _ in rows.units_of(counter):
                    key = rows.row_key(each.name, each.view.tenant, counter, unit)
                    kept[key] = self._samples.get(key, deque(maxlen=SAMPLES))
                    kept[key].append(spent)
        self._samples = kept

    def _page(self, tenant: str) -> BudgetsView:
        every = self._readings.views
        chosen = [each for each in every if tenant in {"", each.view.tenant}]
        shown, folded = chosen[:MOST_TENANTS], chosen[MOST_TENANTS:]
        now = self._readings.read_at or self._clock.now()
        views = [each.view for each in chosen]
        is_one_source = self._readings.sources == 1
        spent_up = list(_spent_up(chosen))
        most = max(LEAST_ROWS, MOST_ROWS // max(1, len(shown)))
        workers = rows.worker_rows([("" if is_one_source else e.name, e.view) for e in chosen], now)
        running = sum(row.tone == "good" for row in workers)
        sections = [self._section(each, now, most, has_name=not is_one_source) for each in shown]
        return BudgetsView(
            now=f"{now:%Y-%m-%d %H:%M:%S} UTC"
            if self._readings.read_at
            else "The first reading is not complete",
            summary=f"{pluralize(len({v.tenant for v in views}), 'tenant')} · {_reporting(running)}",
            tenant=tenant,
            can_choose=self._sources.tenant is None and len(every) > MOST_TENANTS,
            halts=tuple(_halts(views)),
            spent_up=tuple(spent_up[:MOST_BANNERS]),
            more_spent_up=_more(len(spent_up) - MOST_BANNERS, "more counter", "have reached their limit"),
            figures=tuple(_figures(chosen, now)),
            sections=tuple(sorted(sections, key=lambda section: section.title)),
            folded_title=f"{pluralize(len(folded), 'more tenant')}, the fullest first",
            folded=tuple(_folded(each) for each in folded[:MOST_FOLDED]),
            more_folded=_more(len(folded) - MOST_FOLDED, "tenant", "are not listed. Open one by its name"),
            refusals=tuple(rows.refusal_rows(views, MOST_LISTED)),
            links_calls=self._sources.has_logs,
            waiting=tuple(rows.waiting_rows(views, now, MOST_LISTED)),
            workers=tuple(workers),
            # The calls of a worker are those of all its tenants.
            shows_calls=self._sources.tenant is None,
        )

    def _section(self, each: NamedView, now: datetime, most: int, *, has_name: bool) -> TenantSection:
        view, report = each.view, rows.newest_report(each.view)
        found = [
            self._with_line(row)
            for counter in each.counters
            for row in rows.counter_rows(each.name, view, counter, now)
        ]
        is_past = report is not None and abs(report.as_of - report.time) > timedelta(minutes=1)
        more = _more(len(found) - most, "counter", "are not shown here")
        return TenantSection(
            title=f"{each.name} · {view.tenant}" if has_name else view.tenant,
            tenant=view.tenant,
            note=f"time of the session: {report.as_of:%Y-%m-%d %H:%M} UTC" if is_past and report else "",
            pending=tuple(limit_text(limit) for limit in uncounted_limits(view)),
            rows=tuple(found[:most]),
            more=more,
            link=view.tenant if more else "",
        )

    def _with_line(self, row: rows.CounterRow) -> rows.CounterRow:
        # A smaller sum is that of a new window, which began at 0.
        samples = self._samples.get(row.key, ())
        added = [now - before if now >= before else now for before, now in pairwise(samples)]
        span = rows.span_text(timedelta(seconds=SAMPLED_EVERY_S * len(added)))
        return replace(row, spark=rows.spark_path(added), spark_text=f"spending of the last {span}")


def _reporting(running: int) -> str:
    return f"{running:,} worker reports" if running == 1 else f"{running:,} workers report"


def _more(number: int, noun: str, rest: str) -> str:
    return f"{pluralize(number, noun)} {rest}." if number > 0 else ""


def _halts(views: Iterable[BudgetView]) -> Iterator[str]:
    """Yield a text for each halt, with those of all tenants first and once."""
    every: dict[str, None] = {}
    own: dict[str, None] = {}
    for view in views:
        every |= dict.fromkeys(_halt_text(halt, "every tenant") for halt in view.platform.halts)
        own |= dict.fromkeys(_halt_text(halt, view.tenant) for halt in view.controls.halts)
    yield from every
    yield from own


def _halt_text(halt: Halt, whose: str) -> str:
    named = f"tenant {halt.id}" if halt.scope == "tenant" else f"{halt.scope} {halt.id} of {whose}"
    return f"{named}, by {halt.by} at {halt.at:%Y-%m-%d %H:%M} UTC{halt.reason_and_effect}"


def _spent_up(views: Iterable[NamedView]) -> Iterator[str]:
    for each in views:
        for counter in each.counters:
            for unit, most, spent, _, _ in rows.units_of(counter):
                if unit in counter.exhausted:
                    amounts = (
                        f"{rows.amount(unit, spent)} of {rows.amount(unit, most)} {rows.unit_name(unit)}"
                    )
                    named = rows.counter_name(counter, each.view.tenant)
                    yield (
                        f"{each.view.tenant} · {named}, {rows.window_name(counter)}: {amounts} used. "
                        "New calls in it are refused."
                    )


def _main_counters(view: NamedView) -> list[CounterStatus]:
    """Return the counters whose sum is the spending of a tenant: one scope, one window, each call once."""
    limited = [each for each in view.counters if each.most[0] is not None]
    if not limited:
        return []
    same = [each for each in limited if each.scope == limited[0].scope]
    window = min((each.window for each in same), key=_LONGEST_FIRST.index)
    return [each for each in same if each.window == window]


def _figures(views: Sequence[NamedView], now: datetime) -> Iterator[BudgetFigure]:
    counters = [counter for each in views for counter in _main_counters(each)]
    windows = Counter(rows.window_name(counter) for counter in counters)
    parts = (f"{pluralize(n, 'counter')} {_per(name)}" for name, n in windows.items())
    note = f"USD, of {' and '.join(parts)}"
    spent, held, in_doubt = (
        sum(getattr(each, name)[0] for each in counters) for name in ("spent", "held", "in_doubt")
    )
    yield BudgetFigure("spent", rows.short_usd(spent), note if counters else "USD, no limit in dollars")
    yield BudgetFigure("held by calls in flight", rows.short_usd(held), "USD")
    yield BudgetFigure(
        "in doubt, charged in full", rows.short_usd(in_doubt), "USD", "warn" if in_doubt else ""
    )
    paces = [each.nusd_per_hour for each in counters if each.nusd_per_hour is not None]
    yield BudgetFigure(
        "pace of the last hour", rows.short_usd(sum(paces)) if paces else rows.NONE, "USD an hour"
    )
    yield _first_out(views, now)


def _per(window: str) -> str:
    return "in total" if window == "total" else f"per {window}"


def _first_out(views: Iterable[NamedView], now: datetime) -> BudgetFigure:
    name, soonest = "first to run out", None
    is_running = False
    for each in views:
        report = rows.newest_report(each.view)
        if report is None or not rows.is_reporting(report, now):
            continue
        is_running = True
        for counter in each.counters:
            if (
                counter.exhausted_at is not None
                and counter.exhausted_unit is not None
                and not counter.exhausted
            ):
                rest = counter.exhausted_at - report.as_of
                if soonest is None or rest < soonest[0]:
                    soonest = rest, f"{each.view.tenant} · {rows.counter_name(counter, each.view.tenant)}"
    if soonest is None:
        return BudgetFigure(name, "none" if is_running else rows.NONE, "" if is_running else "no worker runs")
    rest, counter_text = soonest
    return BudgetFigure(
        name, f"in {rows.span_text(rest)}", counter_text, "bad" if rest < rows.SOON else "warn"
    )


def _folded(each: NamedView) -> FoldedTenant:
    tenant = each.view.tenant
    if not each.counters:
        return FoldedTenant(tenant, tenant, rows.NONE, rows.NONE, "dim")
    counter = min(each.counters, key=lambda one: one.share_left)
    used = "limit reached" if counter.exhausted else f"{1 - counter.share_left:.0%} used"
    tone = "bad" if counter.exhausted else "warn" if counter.share_left <= 1 - rows.NEARLY else ""
    named = f"{rows.counter_name(counter, tenant)}, {rows.window_name(counter)}"
    return FoldedTenant(tenant, tenant, named, used, tone)
