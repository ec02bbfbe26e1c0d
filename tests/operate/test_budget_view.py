"""Budgets of a server as a display reads them: the windows of now, and the counters with a limit."""

import asyncio
from datetime import timedelta

import pytest

from agentic_trading.cli.budget_tables import budgets
from agentic_trading.cli.output import print_table
from agentic_trading.clock import SystemClock
from agentic_trading.governance.controls_document import TenantControls
from agentic_trading.governance.errors import ControlsUnavailableError
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.status_feed import CounterStatus
from agentic_trading.operate.budgets import (
    BudgetLocationOptions,
    BudgetView,
    open_location,
    read_view,
    read_views,
)
from tests.governance.asking import ask, spend
from tests.governance.reporting import told
from tests.redis_server import RealServer

LIMITS = [Limit(ScopeKind.TENANT, ANY, window, nusd=1000) for window in (Window.MINUTE, Window.NONE)]


def test_budget_view_shows_only_current_minute(own_redis: RealServer) -> None:
    async def view() -> tuple[BudgetView, int]:
        async with open_location(BudgetLocationOptions(None, own_redis.url)) as place:
            assert place.ledger is not None
            await place.ledger.apply_limits("acme", LIMITS, version=1)
            now = SystemClock().now()
            for minute in range(60, -1, -1):
                await spend(place.ledger, ask(1, at=now - timedelta(minutes=minute), trace=f"trace-{minute}"))
            await place.statuses.publish(told(windows_at=now))
            return await read_view(place, "acme"), len(await place.ledger.balances("acme"))

    shown, all_counters = asyncio.run(view())

    assert [(one.window, one.spent[0]) for one in shown.counters] == [(Window.MINUTE, 1), (Window.NONE, 61)]
    assert all_counters > 120


def test_budget_view_without_worker_hides_ended_windows(own_redis: RealServer) -> None:
    async def view() -> list[BudgetView]:
        async with open_location(BudgetLocationOptions(None, own_redis.url)) as place:
            assert place.ledger is not None
            await place.ledger.apply_limits("acme", LIMITS, version=1)
            await spend(place.ledger, ask(1, at=SystemClock().now() - timedelta(minutes=2)))
            ended = await read_view(place, "acme")
            await place.statuses.publish(told())  # of a backtest: each call has a time of its own
            return [ended, await read_view(place, "acme")]

    ended, backtest = asyncio.run(view())

    assert [one.window for one in ended.counters] == [Window.NONE]
    assert [one.window for one in backtest.counters] == [Window.MINUTE, Window.NONE]


def test_exhausted_counter_is_shown_as_exhausted(own_redis: RealServer) -> None:
    spent, blank = (
        CounterStatus(
            scope=ScopeKind.TENANT, id="acme", window=window, window_id=window_id, most=(1000, None, None),
            spent=(0, 0, 0), held=(0, 0, 0), in_doubt=(0, 0, 0), exhausted=("nano-USD",),
        )
        for window, window_id in ((Window.NONE, ""), (Window.DAY, "2026-01-02"))
    )  # fmt: skip

    async def view() -> BudgetView:
        async with open_location(BudgetLocationOptions(None, own_redis.url)) as place:
            assert place.ledger is not None
            await place.ledger.apply_limits("acme", LIMITS[1:], version=1)
            await spend(place.ledger, ask(990))
            await place.statuses.publish(told("w-1", counters=(spent, blank)))
            await place.statuses.publish(told("w-2"))
            (found,) = await read_views(place)
            return found

    shown = asyncio.run(view())

    assert {(one.window, one.spent[0], one.exhausted) for one in shown.counters} == {
        (Window.NONE, 990, ("nano-USD",)),
        (Window.DAY, 0, ("nano-USD",)),
    }


def test_large_budget_table_shows_fullest_counters(capsys: pytest.CaptureFixture[str]) -> None:
    counters = tuple(
        CounterStatus(
            scope=ScopeKind.AGENT, id=f"agent-{number:02}", window=Window.NONE, window_id="", most=(None, None, 100),
            spent=(0, 0, number), held=(0, 0, 0), in_doubt=(0, 0, 0), exhausted=("calls",) if number == 3 else (),
        )
        for number in range(60)
    )  # fmt: skip
    controls = TenantControls()

    print_table(*budgets(BudgetView("place", "acme", controls, controls, counters, (), ())))

    lines = capsys.readouterr().out.splitlines()
    shown = [line.split()[1] for line in lines if line.startswith("agent ")]
    assert shown == ["agent-03", *(f"agent-{number}" for number in range(13, 60))]
    assert next(line for line in lines if "agent-03" in line).endswith("exhausted")
    assert any("and 12 more (--json lists all)" in line for line in lines)


def test_unreachable_server_is_not_one_without_tenants() -> None:
    async def views() -> list[BudgetView]:
        async with open_location(BudgetLocationOptions(None, "redis://127.0.0.1:1")) as place:
            return await read_views(place)

    with pytest.raises(ControlsUnavailableError):
        asyncio.run(views())
