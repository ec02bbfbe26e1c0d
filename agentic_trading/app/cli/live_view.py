"""A live view of budgets in a terminal; where nobody looks, one after the other."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from rich.console import Console, Group
from rich.live import Live

from agentic_trading.app.budget.location import BudgetLocation, BudgetLocationOptions, budget_place, read_view
from agentic_trading.app.cli.budget_tables import budgets
from agentic_trading.app.cli.output import console, paragraph, print_table
from agentic_trading.clock import SystemClock
from agentic_trading.governance.errors import ControlError, LedgerError

_LOOK_EVERY_S = 0.25


async def watch(where: BudgetLocationOptions, tenant: str, *, seconds: float | None) -> None:
    """Draw a tenant's budgets as they are now, for so many seconds or until Ctrl-C; a server that is away is waited for.

    Into a pipe or a file each view is printed that differs from the one before.
    """
    out = console()
    async with aclosing(_views(where, tenant, seconds)) as views:
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
            print_table(view)


async def _views(where: BudgetLocationOptions, tenant: str, seconds: float | None) -> AsyncGenerator[Group]:
    clock = SystemClock()
    started = clock.monotonic()
    async with budget_place(where) as place:
        while seconds is None or clock.monotonic() - started < seconds:
            yield await _view(place, tenant)
            await asyncio.sleep(_LOOK_EVERY_S)


async def _view(place: BudgetLocation, tenant: str) -> Group:
    try:
        return Group(*budgets(await read_view(place, tenant)))
    except (LedgerError, ControlError) as e:
        return Group(paragraph(f"{place.name}: {e}", "red"))
