"""Tables of budgets, denials, queued requests and workers, and the lookup of the place of the budgets."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agentic_trading.cancellation import run_async
from agentic_trading.cli import output
from agentic_trading.cli.exits import ExitCode, say, stop
from agentic_trading.cli.options import log_of
from agentic_trading.cli.settings import configured, start
from agentic_trading.clock import SystemClock
from agentic_trading.governance import limits as limit_types
from agentic_trading.governance.commands import AddHalt, OperatorCommand
from agentic_trading.governance.controls_document import TenantControls
from agentic_trading.governance.errors import ControlError, LedgerError
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import KeptCharge
from agentic_trading.governance.status_feed import (
    BudgetStatus,
    CallCounts,
    CounterStatus,
    DenialStatus,
    QueuedStatus,
)
from agentic_trading.llm.event import PLATFORM
from agentic_trading.operate import budgets as budget_api
from agentic_trading.operate.budget_log import BudgetEvent, LedgerRebuildReport
from agentic_trading.operate.choices import check_ledger_url
from agentic_trading.operate.lines import format_time, printable, usd
from agentic_trading.operate.operator_commands import command_values, execute_acknowledged, live_place
from agentic_trading.platform.errors import OptionError


def execute_and_print(
    wanted: OperatorCommand,
    tenant: str,
    why: str,
    store: Path | None,
    ledger: str | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Execute a command, and print the new controls and the workers that acknowledged them.

    A halt ends with an error unless every running worker, and at least one, acknowledged it.
    """
    where = command_location_of(store, ledger)
    config = None if force else configured()
    controls, reach = run_async(execute_acknowledged(where, tenant, wanted, why, config=config))
    if as_json:
        output.show_json(command_values(controls, reach))
    else:
        found = [("place", reach.place), ("reached", reach.text)]
        output.print_table(*controls_table(where.name, tenant, controls), output.facts(found))
    if isinstance(wanted, AddHalt) and not reach.is_complete:
        stop(ExitCode.FOUND_WRONG, reach.problem)


def command_location_of(store: Path | None, ledger: str | None) -> budget_api.BudgetLocationOptions:
    """Return the place that the options name, or the only live place.

    Raises `OptionError` if there is no live place or more than one, and the errors of `location_of`.
    """
    if store is not None or ledger is not None:
        return location_of(store, ledger)
    settings, config = start(), configured()
    if config.ledger.url is not None:
        check_ledger_url(config.ledger.url)
    named = log_of(None) if settings.store is not None else None
    return live_place(config, settings.runs, named)


def location_of(store: Path | None, ledger: str | None) -> budget_api.BudgetLocationOptions:
    """Return the place to read, from the options or the configuration. `store` overrides a configured server.

    Raises:
        OptionError: If there is no place, or the URL is wrong.
        ConfigError: If the configuration is wrong.

    """
    url = ledger or (None if store is not None else configured().ledger.url)
    if not url:
        log = log_of(store)
        return budget_api.BudgetLocationOptions(log.parent, log=log)
    check_ledger_url(url)
    if (
        store is None and start().store is None
    ):  # no log, because the newest session may be one of another server
        return budget_api.BudgetLocationOptions(None, url)
    with suppress(OptionError):  # without a log, names are only looked up elsewhere
        return budget_api.BudgetLocationOptions(None, url, log_of(store))
    return budget_api.BudgetLocationOptions(None, url)


_MOST_ROWS = 12
_MOST_COUNTERS = 48
_MOST_TENANTS = 24
_NUMBERS = ("limit", "spent", "held", "in doubt", "left", "per hour")


def controls_table(place: str, tenant: str, controls: TenantControls) -> list[RenderableType]:
    """Return the limits and halts that operators have set for a tenant."""
    title = "of all tenants" if tenant == PLATFORM else f"of tenant {tenant}"
    lines = [("limit", limit_types.limit_text(limit)) for limit in controls.limits]
    lines += [
        (
            "HALTED",
            f"{halt.scope} {halt.id} by {halt.by} at {format_time(halt.at)}"
            + (f": {halt.why}" if halt.why else ""),
        )
        for halt in controls.halts
    ]
    return [
        output.heading(f"Controls {title} · {place} · version {controls.version}"),
        output.facts(lines or [("none", "")]),
    ]


def budgets(view: budget_api.BudgetView) -> list[RenderableType]:
    """Return the current budgets of a tenant."""
    parts: list[RenderableType] = [output.heading(f"Budgets of {view.tenant} · {view.place}"), *_halts(view)]
    if view.counters:
        parts += [_counters(view.counters), *_more(len(view.counters), _MOST_COUNTERS)]
    else:
        parts.append(output.paragraph("No worker has reported a limited counter yet."))
    parts += _not_counted_yet(view)
    if view.parked:
        parts += [output.heading(f"Queued for headroom: {len(view.parked)}"), _queued(view.parked)]
        parts += _more(len(view.parked), _MOST_ROWS)
    parts += _refused(view.workers)
    parts += _workers(view.workers)
    return parts


def history_table(found: Sequence[BudgetEvent], tenant: str) -> list[RenderableType]:
    """Return a table of budget events."""
    if not found:
        return [output.paragraph(f"No budget events of tenant {tenant}.")]
    columns: dict[str, Callable[[BudgetEvent], str]] = {
        "time": lambda one: " to ".join(dict.fromkeys(map(format_time, (one.first, one.last)))),
        "event": lambda one: one.what,
        "scope": lambda one: one.subject,
        "count": lambda one: f"{one.times:,}",
        "charged": lambda one: f"{usd(one.nusd)} USD" if one.nusd else "",
        "reason": lambda one: one.why,
    }
    return [
        output.heading(f"Budget events of tenant {tenant}"),
        output.listing(found, columns, right=("count", "charged")),
    ]


_NO_LIMITS = "none on the server or in these logs. Calls run without a limit until `budget set`."


def rebuild_lines(report: LedgerRebuildReport) -> list[RenderableType]:
    """Return the result of a rebuild."""
    lines = [
        *(("from", log) for log in report.logs),
        ("before", f"{usd(report.knew_nusd)} USD spent"),
        *(
            ("wrong snapshot", f"{log}: the ledger was rebuilt from all its lines")
            for log in report.differing
        ),
        *(("discarded", one) for one in report.discarded),
        *_kept(report.kept),
        ("calls", f"{report.calls:,}, {report.in_doubt:,} of them in doubt"),
        (
            "charged",
            f"{usd(report.charged_nusd)} USD, {usd(report.in_doubt_nusd)} USD of it in doubt",
        ),
        *(("restored", one) for one in report.restored),
        ("limits", "; ".join(report.limits) or _NO_LIMITS),
        *([("halts", "; ".join(report.halts))] if report.halts else []),
        ("epoch", f"{report.generation} (calls can run again)"),
    ]
    return [output.heading(f"Rebuilt the ledger of {report.tenant}"), output.facts(lines)]


def _kept(kept: Sequence[KeptCharge]) -> Iterator[tuple[str, str]]:
    """Yield the charges that no log explains, with the amount in the logs."""
    for one in kept[:_MOST_ROWS]:
        yield "kept", f"{one.reservation_id}: {_charge(one.charged)} (in the logs: {_charge(one.logged)})"
    if len(kept) > _MOST_ROWS:
        yield "kept", f"and {len(kept) - _MOST_ROWS:,} more (--json lists all)"


def _charge(amount: Amount) -> str:
    given = [
        limit_types.amount_text(value, unit)
        for unit, value in zip(limit_types.UNITS, amount.units, strict=True)
        if value
    ]
    return ", ".join(given) or "nothing"


def _halts(view: budget_api.BudgetView) -> Iterator[RenderableType]:
    for tenant, controls in ((PLATFORM, view.platform), (view.tenant, view.controls)):
        for halt in controls.halts:
            whose = "every tenant's " if tenant == PLATFORM else ""
            why = halt.reason_and_effect
            halted = f"{whose}{halt.scope} {halt.id}, by {halt.by} at {format_time(halt.at)}{why}"
            yield Text(f"  HALTED: {printable(halted)}", style="bold red")


def _not_counted_yet(view: budget_api.BudgetView) -> Iterator[RenderableType]:
    if waiting := budget_api.uncounted_limits(view):
        yield output.heading("Set, not counted yet")
        yield output.facts(("limit", limit_types.limit_text(limit)) for limit in waiting)


def _more(number: int, shown: int) -> Iterator[RenderableType]:
    if number > shown:
        yield output.paragraph(f"and {number - shown:,} more (--json lists all)")


def _counters(counters: Sequence[CounterStatus]) -> Table:
    return output.rows(
        output.table("scope", "window", "unit", *_NUMBERS, "exhausted at", right=_NUMBERS),
        (row for counter in _fullest(counters) for row in _counter_rows(counter)),
    )


def _fullest(counters: Sequence[CounterStatus]) -> list[CounterStatus]:
    """Return the counters in order. If there are too many, keep those with the smallest share left."""
    if len(counters) <= _MOST_COUNTERS:
        return list(counters)
    fullest = sorted(range(len(counters)), key=lambda number: counters[number].share_left)
    return [counters[number] for number in sorted(fullest[:_MOST_COUNTERS])]


def _counter_rows(counter: CounterStatus) -> Iterator[tuple[str, ...]]:
    window = "total" if counter.window is limit_types.Window.NONE else counter.window_id
    units = zip(limit_types.UNITS, counter.most, counter.spent, counter.held, counter.in_doubt, strict=True)
    for unit, most, spent, held, in_doubt in units:
        if most is not None:
            is_money = unit == "nano-USD"
            amounts = (most, spent, held, in_doubt, max(0, most - spent - held))
            pace = counter.nusd_per_hour if is_money else None
            yield (
                f"{counter.scope} {counter.id}",
                window,
                "USD" if is_money else unit,
                *(_amount(unit, each) for each in amounts),
                "" if pace is None else _amount(unit, pace),
                _exhausted(counter, unit),
            )


def _exhausted(counter: CounterStatus, unit: limit_types.Unit) -> str:
    if unit in counter.exhausted:
        return "exhausted"
    return format_time(counter.exhausted_at) if counter.exhausted_at is not None else ""


def _queued(requests: Sequence[QueuedStatus]) -> Table:
    columns: dict[str, Callable[[QueuedStatus], str]] = {
        "reservation": lambda one: one.reservation_id,
        "since": lambda one: f"{one.since:%H:%M:%S}",
        "priority": lambda one: str(one.priority),
        "requested": lambda one: _amount(one.unit, one.asked),
        "left": lambda one: _amount(one.unit, one.left),
        "counter": lambda one: f"{one.scope} {one.id}",
    }
    return output.listing(requests[:_MOST_ROWS], columns, right=("priority", "requested", "left"))


def _refused(workers: Sequence[BudgetStatus]) -> Iterator[RenderableType]:
    refusals = sorted((one for worker in workers for one in worker.refusals), key=lambda one: one.at)
    if refusals:
        yield output.heading("Latest denials")
        columns: dict[str, Callable[[DenialStatus], str]] = {
            "time": lambda one: format_time(one.at),
            "agent": lambda one: one.agent,
            "workflow": lambda one: one.workflow,
            "kind": lambda one: str(one.kind),
            "reason": lambda one: one.why,
        }
        yield output.listing(refusals[-_MOST_ROWS:], columns)


def _workers(workers: Sequence[BudgetStatus]) -> Iterator[RenderableType]:
    if not workers:
        return
    numbers: dict[str, Callable[[BudgetStatus], str]] = {
        "admitted": lambda one: f"{one.calls.admitted:,}",
        "refused": lambda one: f"{one.calls.refused:,}",
        "in flight": lambda one: f"{one.calls.in_flight:,}",
        "in doubt": lambda one: f"{one.calls.in_doubt:,}",
        "reserved / charged": lambda one: _reserved_share(one.calls),
    }
    columns: dict[str, Callable[[BudgetStatus], str]] = {
        "worker": lambda one: one.worker if one.is_running else f"{one.worker} (ended)",
        "reported at": lambda one: f"{one.time:%Y-%m-%d %H:%M:%S}",
        "session time": lambda one: format_time(one.as_of),
        **numbers,
    }
    yield output.heading("Workers")
    yield output.listing(workers, columns, right=numbers)


def _reserved_share(calls: CallCounts) -> str:
    return f"{calls.reserved_nusd / calls.charged_nusd:.2f}" if calls.charged_nusd else "-"


def _amount(unit: limit_types.Unit, value: int) -> str:
    return usd(value) if unit == "nano-USD" else f"{value:,}"


_LOOK_EVERY_S = 0.25


async def watch(
    where: budget_api.BudgetLocationOptions,
    tenant: str,
    *,
    seconds: float | None,
    on_alert: str | None = None,
) -> None:
    """Draw the budgets of a tenant, or of all tenants (`*`), for `seconds` or until Ctrl-C.

    If the server is unreachable, the error is shown and the reading is repeated. In a pipe or a file, a view
    is printed when it has changed. `on_alert` is a command that is run for each new warning. Raises
    `OptionError` if it cannot be run.
    """
    alert_command = None if on_alert is None else await asyncio.to_thread(budget_api.AlertCommand, on_alert)
    out = output.console()
    async with aclosing(_views(where, tenant, seconds, alert_command)) as views:
        if out.is_terminal:
            await _draw(out, views)
        else:
            await _print(out, views)


async def _draw(out: Console, views: AsyncGenerator[Group]) -> None:
    with Live(console=out, auto_refresh=False) as live:
        async for view in views:
            live.update(view, refresh=True)


async def _print(out: Console, views: AsyncGenerator[Group]) -> None:
    before = ""
    async for view in views:
        with out.capture() as drawn:
            out.print(view)
        if drawn.get() != before:
            before = drawn.get()
            output.print_table(view)


async def _views(
    where: budget_api.BudgetLocationOptions,
    tenant: str,
    seconds: float | None,
    alert_command: budget_api.AlertCommand | None,
) -> AsyncGenerator[Group]:
    clock = SystemClock()
    started = clock.monotonic()
    async with budget_api.open_location(where) as place:
        while seconds is None or clock.monotonic() - started < seconds:
            yield await _view(place, tenant, alert_command)
            await asyncio.sleep(_LOOK_EVERY_S)


async def read_budgets(where: budget_api.BudgetLocationOptions, tenant: str) -> list[budget_api.BudgetView]:
    """Return the budgets at a place of a tenant, or of all tenants that workers have reported (`*`)."""
    async with budget_api.open_location(where) as place:
        return await _read(place, tenant)


async def _read(place: budget_api.BudgetLocation, tenant: str) -> list[budget_api.BudgetView]:
    return (
        await budget_api.read_views(place)
        if tenant == PLATFORM
        else [await budget_api.read_view(place, tenant)]
    )


def all_budgets(views: Sequence[budget_api.BudgetView], place: str) -> list[RenderableType]:
    """Return the budgets of several tenants in sequence."""
    if not views:
        return [output.paragraph(f"No worker has reported a tenant at {place}.")]
    parts = [part for view in views[:_MOST_TENANTS] for part in budgets(view)]
    return [*parts, *_more(len(views), _MOST_TENANTS)]


async def _view(
    place: budget_api.BudgetLocation, tenant: str, alert_command: budget_api.AlertCommand | None
) -> Group:
    try:
        found = await _read(place, tenant)
    except (LedgerError, ControlError) as e:
        return Group(output.paragraph(f"{place.name}: {e}", "red"))
    if alert_command is not None:
        for problem in await alert_command.note(found):
            say(f"Warning: {problem}", err=True)
    return Group(*(all_budgets(found, place.name) if tenant == PLATFORM else budgets(found[0])))
