"""Names that were used once leave nothing on a server; what counts against a ceiling stays, however long it rests."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from agentic_trading.governance.ledger import LedgerEntry, ReservationState
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from tests.governance.asking import ask, balance, of_tenant, refused, reserved, select, spend, tenant
from tests.governance.ledgers.redis_ledgers import Opening, ledgers
from tests.redis_server import namespace

MOMENTS = timedelta(milliseconds=1)
DAYS = timedelta(days=40)
NAMES = 300
TOTAL_OF_EACH = Limit(ScopeKind.AGENT, ANY, Window.NONE, nusd=100)
TOTAL_OF_ONE = Limit(ScopeKind.AGENT, "agent-7", Window.NONE, nusd=100)


@pytest.fixture
async def opens(redis_url: str) -> AsyncIterator[Opening]:
    async with ledgers(redis_url, namespace()) as opening:
        yield opening


async def use_once(ledger: RedisLedger, names: int = NAMES) -> None:
    """Spend a little under so many names of agents, principals, traces and calls; their windows have ended long ago."""

    async def work(first: int) -> None:
        for number in range(first, names, 20):
            agent, sender, trace = f"agent-{number}", f"principal-{number}", f"trace-{number}"
            await spend(ledger, ask(1, agent=agent, principal=sender, trace=trace))

    async with asyncio.TaskGroup() as group:
        for first in range(20):
            group.create_task(work(first))


async def sizes(ledger: RedisLedger) -> dict[str, int]:
    """Return how much each of the tenant's keys holds; a call is a key of its own."""
    redis: Any = ledger._server._redis
    names = ledger._tenants.of("acme").keys.shared
    _, _, counters, ends, leases, _, _, index, _, _ = names
    found = {"calls": len([key async for key in redis.scan_iter(f"{ledger._tenants._namespace}:*:call:*")])}
    found["counters"] = await redis.hlen(counters)
    return found | {key.rpartition(":")[2]: await redis.zcard(key) for key in (ends, leases, index)}


async def test_single_use_names_are_dropped(opens: Opening) -> None:
    ledger = await opens([tenant(10**9)], keep=MOMENTS, call_keep=MOMENTS)
    await use_once(ledger)

    async with asyncio.timeout(4):
        while (await sizes(ledger))["ends"]:
            await ledger.expire_leases()
            await asyncio.sleep(0.01)

    # totals of the tenant and of its workflow, which are few, are kept for ever
    assert await sizes(ledger) == {"calls": 0, "counters": 2, "ends": 0, "leases": 0, "index": 2}
    assert (await of_tenant(ledger)).spent.nusd == NAMES


async def test_totals_and_calls_get_expiry_times(opens: Opening) -> None:
    call_keep = timedelta(days=8)
    ledger = await opens([tenant(10**9)], keep=DAYS, call_keep=call_keep)
    await use_once(ledger, 20)
    redis: Any = ledger._server._redis
    seconds, _ = await redis.time()

    ends = dict(await redis.zrange(ledger._tenants.of("acme").keys.shared[3], 0, -1, withscores=True))
    ttls = [await redis.pttl(key) async for key in redis.scan_iter(f"{ledger._tenants._namespace}:*:call:*")]

    totals = [at for name, at in ends.items() if name.startswith((b"agent/none/", b"principal/none/"))]
    least, most = DAYS.total_seconds(), DAYS.total_seconds() * 9 / 8
    assert len(totals) == 40
    assert all(least - 60 <= at / 1000 - seconds <= most + 60 for at in totals)
    assert len(ttls) == 20
    assert all(0 < ttl <= call_keep.total_seconds() * 1000 for ttl in ttls)


@pytest.mark.parametrize("limit", [TOTAL_OF_EACH, TOTAL_OF_ONE])
async def test_limited_total_is_never_dropped(opens: Opening, limit: Limit) -> None:
    ledger = await opens([tenant(10**9), limit], keep=MOMENTS, call_keep=MOMENTS)
    await use_once(ledger, 40)
    await spend(ledger, ask(99, agent="agent-7"))

    async with asyncio.timeout(4):
        while (await sizes(ledger))["ends"]:
            await ledger.expire_leases()
            await asyncio.sleep(0.01)

    assert (await refused(ledger, ask(1, at=None, agent="agent-7"))).left == 0
    kept = [one for one in await ledger.balances("acme") if one.scope is ScopeKind.AGENT]
    assert len(kept) == (40 if limit is TOTAL_OF_EACH else 1)


async def test_total_limited_later_is_not_dropped(opens: Opening) -> None:
    ledger, other = await opens([], keep=MOMENTS, call_keep=MOMENTS), await opens([])
    await spend(ledger, ask(100, agent="agent-7"))
    await spend(ledger, ask(100, agent="rests"))
    await other.apply_limits("acme", [TOTAL_OF_ONE], version=1)  # the one that sweeps does not know of it

    async with asyncio.timeout(4):
        while (await sizes(ledger))["ends"]:
            await ledger.expire_leases()
            await asyncio.sleep(0.01)

    assert (await refused(ledger, ask(1, at=None, agent="agent-7"))).left == 0
    assert select(await ledger.balances("acme"), ScopeKind.AGENT, "rests", Window.NONE) == []


async def test_total_limited_by_request_is_kept(opens: Opening) -> None:
    ledger = await opens([], keep=DAYS, call_keep=MOMENTS)
    await spend(ledger, ask(60, agent="agent-7"))
    await spend(ledger, ask(40, agent="agent-7", limits=(TOTAL_OF_EACH,)))
    redis: Any = ledger._server._redis
    ends = ledger._tenants.of("acme").keys.shared[3]
    await redis.zadd(ends, {"agent/none//agent-7": 1})  # as when 40 days have passed

    await ledger.expire_leases()

    assert (await refused(ledger, ask(1, at=None, agent="agent-7", limits=(TOTAL_OF_EACH,)))).left == 0


async def test_name_in_flight_is_kept(opens: Opening) -> None:
    ledger = await opens([], keep=MOMENTS, call_keep=MOMENTS)
    flying = await reserved(ledger, ask(100, agent="flies"))
    for _ in range(20):
        await ledger.expire_leases()

    assert (await balance(ledger, ScopeKind.AGENT, "flies", Window.NONE)).held.nusd == 100
    await ledger.release(flying)


async def test_rebuild_counts_dropped_totals(opens: Opening) -> None:
    ledger = await opens([tenant(10**9)], keep=MOMENTS, call_keep=MOMENTS)
    wanted = ask(100, agent="agent-7")
    await spend(ledger, wanted)
    async with asyncio.timeout(4):
        while (await sizes(ledger))["ends"]:
            await ledger.expire_leases()
            await asyncio.sleep(0.01)

    await ledger.apply_limits("acme", [tenant(10**9), TOTAL_OF_ONE], version=1)
    await ledger.restore("acme", [LedgerEntry(wanted, ReservationState.SETTLED, wanted.amount)])

    assert (await refused(ledger, ask(1, at=None, agent="agent-7"))).left == 0
    assert (await of_tenant(ledger)).spent.nusd == 100
