"""Runs that share a ledger on a real server: one limit for all, outages, and a server that was set back."""

import asyncio
import shutil
from contextlib import aclosing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.session import run as session_run
from agentic_trading.desk.session.replay import replay
from agentic_trading.governance.commands import SetLimit
from agentic_trading.governance.errors import LedgerRolledBackError, LedgerUnavailableError
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import NANO
from agentic_trading.operate.budget_log import rebuild_ledger
from agentic_trading.operate.budgets import BudgetLocationOptions, execute, open_location, read_status
from agentic_trading.platform import port_adapters
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.port_adapters import boards_of, ledger_of, worker_ledger_of
from tests.flows.overseen import Overseen, rehearsal
from tests.flows.sessions import SAMPLES, calls_in, kept_in, ran
from tests.redis_server import RealServer

pytestmark = pytest.mark.timeout(60)  # real servers are started, killed and set back


async def spent_on(server: RealServer) -> Amount:
    """Return what the tenant has spent in all, as the server tells."""
    ledger = await asyncio.to_thread(ledger_of, server.url)
    async with aclosing(ledger):
        balances = await ledger.balances("default")
    (balance,) = [one for one in balances if one.scope is ScopeKind.TENANT and one.window == "none"]
    assert balance.held == Amount(0, 0, 0)
    return balance.spent


def charged(calls: list[LLMInteraction]) -> int:
    return sum(call.result.cost_nusd for call in calls)


def kinds(calls: list[LLMInteraction], workflow: str) -> set[FailureKind | None]:
    """Return how the calls of a workflow ended; None is well."""
    results = [call.result for call in calls if call.envelope.workflow == workflow]
    return {result.failure.category if result.failure else None for result in results}


async def overseen(server: RealServer, **more: Any) -> Overseen:
    ledger = await asyncio.to_thread(worker_ledger_of, server.url)
    at_moment = more.pop("at_moment", {})
    return Overseen(BudgetLocationOptions(None, server.url), at_moment, {"ledger": ledger, **more})


async def limit(server: RealServer, usd: str) -> None:
    """Have a limit of the tenant stand on the server."""
    board, statuses = await asyncio.to_thread(boards_of, server.url, Path())
    async with aclosing(board), aclosing(statuses):
        nusd = int(Decimal(usd).scaleb(9))
        await session_run.set_budget(board, "default", port_adapters.tenant_limit(nusd))


async def test_concurrent_runs_share_the_limit(own_redis: RealServer) -> None:
    await limit(own_redis, "0.15")
    runs = [await overseen(own_redis, session_id=name, workers=8) for name in ("one", "two")]

    async with asyncio.TaskGroup() as group:
        for run in runs:
            group.create_task(run.play())

    each = [calls_in(await run.evening.records()) for run in runs]
    spent = charged(each[0]) + charged(each[1])
    assert (await spent_on(own_redis)).nusd == spent
    assert 0 < spent <= 150_000_000
    for calls in each:
        assert kinds(calls, "analysis") == {None, FailureKind.BUDGET_EXHAUSTED}
    told = (await read_status(BudgetLocationOptions(None, own_redis.url), "default")).workers
    assert len(told) == 2


async def test_repeated_run_makes_separate_calls(own_redis: RealServer, tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "data": SAMPLES[:1],
        "bars": 360,
        "budget_usd": Decimal(1),
        "prices_file": rehearsal(tmp_path),
        "ledger_url": own_redis.url,
    }

    first = await ran(tmp_path / "first", **asked)
    second = await ran(tmp_path / "second", **asked)

    assert (first.no_decisions, second.no_decisions) == ({}, {})
    assert first.cost_nusd == second.cost_nusd > 0
    assert (await spent_on(own_redis)).nusd == first.cost_nusd + second.cost_nusd
    assert (await replay(tmp_path / "second", workers=8)).identical


async def test_run_never_raises_server_limits(own_redis: RealServer, tmp_path: Path) -> None:
    operators = Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=2 * NANO, tokens=9_000_000, calls=5)
    place = BudgetLocationOptions(None, own_redis.url)
    await execute(place, "default", SetLimit(operators), "")
    asked: dict[str, Any] = {"data": SAMPLES[:1], "bars": 360, "ledger_url": own_redis.url}

    with pytest.raises(OptionError, match=r"^--budget-usd is 3, and .* is set on the server"):
        await ran(tmp_path / "more", budget_usd=Decimal(3), **asked)
    with pytest.raises(OptionError, match=r"^--max-calls is 6, and .* is set on the server"):
        await ran(tmp_path / "more", max_calls=6, **asked)
    await ran(tmp_path / "less", budget_usd=Decimal(1), **asked)

    async with open_location(place) as opened:
        (limit,) = (await opened.controls.read("default")).limits
    assert limit == replace(operators, nusd=NANO)
    assert not (tmp_path / "more").exists()


async def test_server_outage_refuses_calls_and_books_charges(
    own_redis: RealServer,
) -> None:
    async def away(_run: Overseen) -> None:
        await asyncio.to_thread(own_redis.kill)

    async def back(_run: Overseen) -> None:
        await asyncio.to_thread(own_redis.start)

    await limit(own_redis, "100")
    run = await overseen(own_redis, at_moment={350: away, 500: back}, most_bars=520)

    played = await run.play()

    calls = calls_in(await played.records())
    assert kinds(calls, "execution") == {None}  # no analysis, so no order was asked for meanwhile
    assert kinds(calls, "analysis") == {FailureKind.LEDGER_UNAVAILABLE, None}
    assert (await spent_on(own_redis)).nusd == charged(calls) > 0


async def test_killed_server_refuses_later_calls(own_redis: RealServer) -> None:
    async def away(_run: Overseen) -> None:
        await asyncio.to_thread(own_redis.kill)

    await limit(own_redis, "100")
    run = await overseen(own_redis, at_moment={350: away})

    played = await run.play()

    calls = calls_in(await played.records())
    last = [call.result.failure for call in calls[-2:]]
    assert [failure.category for failure in last if failure] == [FailureKind.LEDGER_UNAVAILABLE] * 2
    with pytest.raises(LedgerUnavailableError):
        await spent_on(own_redis)


async def test_restored_snapshot_blocks_runs_until_rebuild(own_redis: RealServer, tmp_path: Path) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    asked: dict[str, Any] = {
        "data": SAMPLES[:1],
        "bars": 360,
        "budget_usd": Decimal(1),
        "prices_file": rehearsal(tmp_path),
        "ledger_url": own_redis.url,
    }
    await ran(out, **asked)
    await asyncio.to_thread(own_redis.stop)
    shutil.copytree(own_redis.append_only_files, kept)
    await asyncio.to_thread(own_redis.start)
    await ran(out, **asked)
    await asyncio.to_thread(own_redis.stop)
    shutil.rmtree(own_redis.append_only_files)
    shutil.copytree(kept, own_redis.append_only_files)
    await asyncio.to_thread(own_redis.start)

    with pytest.raises(LedgerRolledBackError, match="agentic-trading budget rebuild"):
        await ran(out, **asked)
    report = await rebuild_ledger([out / "interactions.jsonl"], own_redis.url, "default")
    again = await ran(out, **asked)

    assert again.no_decisions == {}
    assert report.calls == report.in_doubt + 2 * again.attempts
    assert (await spent_on(own_redis)).nusd == charged(calls_in(await kept_in(again.log)))


async def test_rebuild_discards_server_charges_only_on_request(own_redis: RealServer, tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "data": SAMPLES[:1],
        "bars": 360,
        "budget_usd": Decimal(1),
        "prices_file": rehearsal(tmp_path),
        "ledger_url": own_redis.url,
    }
    first, second = await ran(tmp_path / "first", **asked), await ran(tmp_path / "second", **asked)
    before = await spent_on(own_redis)

    whole = await rebuild_ledger([Path(first.log), Path(second.log)], own_redis.url, "default")
    with_both = await spent_on(own_redis)
    joined = await rebuild_ledger([Path(first.log)], own_redis.url, "default")
    with_one = await spent_on(own_redis)
    report = await rebuild_ledger([Path(first.log)], own_redis.url, "default", discard_server=True)

    assert before == with_both == with_one
    assert (whole.kept, whole.discarded, joined.discarded) == ((), (), ())
    assert len(joined.kept) == second.attempts
    assert sum(one.charged.nusd for one in joined.kept) == second.cost_nusd
    assert report.knew_nusd == before.nusd > report.charged_nusd
    assert report.kept == ()
    assert any(one.startswith("tenant default") for one in report.discarded)
