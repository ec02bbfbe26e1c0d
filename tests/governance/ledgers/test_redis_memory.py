"""What a server is left with, what it is asked to remember of processes, and how much it takes to look at it."""

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import timedelta

import pytest
from typing_extensions import override

from agentic_trading.governance.errors import LedgerRolledBackError
from agentic_trading.governance.ledger import LedgerCheckpoint, LedgerEntry, ReservationState
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.ledgers.scripts.redis import ScriptServer
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from tests.governance.asking import AT, ask, of_tenant, refused, reserved, select, spend, tenant
from tests.governance.ledgers.redis_ledgers import Opening, ledgers
from tests.redis_server import namespace

MOMENTS = timedelta(milliseconds=1)


@pytest.fixture
async def opens(redis_url: str) -> AsyncIterator[Opening]:
    async with ledgers(redis_url, namespace()) as opening:
        yield opening


async def keys(ledger: RedisLedger) -> list[bytes]:
    """Return all that is on the server in the ledger's namespace."""
    found: list[bytes] = await ledger._server._redis.keys(f"{ledger._tenants._namespace}:*")
    return found


async def copied(ledger: RedisLedger) -> dict[bytes, bytes]:
    """Copy all of the ledger, as a copy of the server's file would."""
    return {key: await ledger._server._redis.dump(key) for key in await keys(ledger)}


async def set_back(ledger: RedisLedger, to: dict[bytes, bytes]) -> None:
    """Put a copy in the place of what there is."""
    server = ledger._server._redis
    await server.delete(*await keys(ledger))
    for key, value in to.items():
        await server.restore(key, 0, value)


async def test_reads_and_refusals_leave_no_keys(opens: Opening) -> None:
    ledger = await opens([tenant(10)])

    for name in ("stranger", "another"):
        id_ = ask(1, tenant=name).reservation_id
        assert await ledger.checkpoint(name) == LedgerCheckpoint(0, "", 0)
        assert await ledger.state_of(id_) is None
        assert await ledger.waiting(name) == []
        assert await ledger.balances(name) == []
        assert await ledger.balances(name, limited=True) == []
        await refused(ledger, ask(11, tenant=name))
    await ledger.expire_leases()

    gc.collect()  # handled errors (an unknown script, redis-py's handshake) are in cycles with their frames since Python 3.12
    assert await keys(ledger) == []
    assert (ledger._tenants.begun(), len(ledger._tenants._others)) == ((), 0)


async def test_checkpoint_read_closes_emptied_ledger(opens: Opening) -> None:
    ledger, newcomer = await opens([tenant(10)]), await opens([tenant(10)])
    await spend(ledger, ask(1))
    await set_back(ledger, {})
    await ledger.checkpoint("acme")

    with pytest.raises(LedgerRolledBackError):
        await newcomer.reserve(ask(1))

    assert (await newcomer.restore("acme", [])).epoch == 1
    with pytest.raises(LedgerRolledBackError):
        await ledger.reserve(ask(1))


async def test_rollback_is_detected_after_new_steps(opens: Opening) -> None:
    ledger, newcomer = await opens([tenant(1000)]), await opens([tenant(1000)])
    await spend(ledger, ask(10))
    older = await copied(ledger)
    for _ in range(3):
        await spend(ledger, ask(100))
    await set_back(ledger, older)
    for _ in range(6):
        await spend(newcomer, ask(1))

    with pytest.raises(LedgerRolledBackError):
        await ledger.reserve(ask(900))
    with pytest.raises(LedgerRolledBackError):
        await newcomer.reserve(ask(1))


async def test_processes_continue_after_healthy_rebuild(opens: Opening) -> None:
    ledger, other = await opens([tenant(1000)]), await opens([tenant(1000)])
    await spend(ledger, ask(10))
    for _ in range(5):
        await spend(other, ask(10))
    await ledger.restore("acme", [LedgerEntry(ask(60), ReservationState.SETTLED, Amount(60, 0))])

    await spend(other, ask(10))
    await spend(ledger, ask(10))

    assert (await of_tenant(ledger)).spent.nusd == 60 + 10 + 10


async def test_only_latest_processes_are_remembered(opens: Opening) -> None:
    ledger, newcomer = await opens([tenant(1000)]), await opens([tenant(1000)])
    await spend(ledger, ask(10))
    older = await copied(ledger)
    server, meta = ledger._server._redis, newcomer._tenants.of("acme").keys.shared[0]
    await server.hset(meta, mapping={f"by process-{number}": 4 + number for number in range(300)})
    await server.hset(meta, "sequence", 400)
    await newcomer.expire_leases()
    assert await server.hlen(meta) > 300
    await ledger.expire_leases()

    assert await server.hlen(meta) < 100
    assert await server.hget(meta, "by process-299")
    assert await server.hget(meta, "forgotten") == b"239"
    await spend(ledger, ask(10))  # not remembered, and not taken for one that lost its steps
    await set_back(ledger, older)
    await server.hset(meta, "sequence", 500)
    with pytest.raises(LedgerRolledBackError):
        await ledger.reserve(ask(1))


async def test_rebuild_deletes_lost_in_flight_calls(opens: Opening) -> None:
    ledger = await opens([tenant(100)])
    flying = await reserved(ledger, ask(10))
    await ledger.require_at_least("acme", LedgerCheckpoint(5, "lost", 1))

    await ledger.restore("acme", [])

    assert not [key for key in await keys(ledger) if flying.encode() in key]
    assert ledger.statistics().in_flight == 0


async def test_healthy_rebuild_keeps_reservations_and_limits(opens: Opening) -> None:
    ledger = await opens([Limit(ScopeKind.AGENT, ANY, Window.DAY, nusd=100)])
    flying = await reserved(ledger, ask(80, agent="flies"))
    await spend(ledger, ask(80, agent="done"))

    await ledger.restore("acme", [])

    (found,) = await ledger.balances("acme", limited=True)
    assert (found.id, found.held, found.spent) == ("flies", Amount(80, 0), Amount(0, 0, 0))
    assert ledger.statistics().in_flight == 1
    await ledger.dispatch(flying)
    await ledger.in_doubt(flying)
    assert (await ledger.settle(flying, Amount(7, 0))).late
    (found,) = await ledger.balances("acme", limited=True)
    assert (found.held, found.spent, found.in_doubt) == (Amount(0, 0, 0), Amount(7, 0), Amount(0, 0, 0))


async def test_overlapping_rebuild_keeps_ledger_closed(opens: Opening) -> None:
    ledger, other = await opens([tenant(100)]), await opens([tenant(100)])
    await spend(ledger, ask(10))
    begun = asyncio.Event()
    waits = asyncio.Event()

    async def second() -> None:
        await begun.wait()
        tenant_ = other._tenants.of("acme")
        await other.fence("acme")
        await other._steps.run(tenant_, "rebuild")
        waits.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(second())
        of = ledger._tenants.of("acme")
        first = await ledger._steps.run(of, "rebuild")
        begun.set()
        await waits.wait()
        await ledger._steps.run(of, "look")
        await ledger._steps.run(of, "open", first.epoch)

    with pytest.raises(LedgerRolledBackError):
        await ledger.reserve(ask(1))


async def test_limited_balances_omit_traces(opens: Opening) -> None:
    limits = [tenant(10**9), Limit(ScopeKind.AGENT, ANY, Window.DAY, nusd=100)]
    ledger = await opens(limits)

    async def work(first: int) -> None:
        for number in range(first, 600, 20):
            await spend(ledger, ask(number % 50, agent=f"agent\n{number}", trace=f"trace-{number}"))

    async with asyncio.TaskGroup() as group:
        for first in range(20):
            group.create_task(work(first))

    found = await ledger.balances("acme", limited=True)
    every = await ledger.balances("acme")

    agents = select(found, ScopeKind.AGENT, "agent\n599", Window.DAY)
    assert ([one.spent.nusd for one in agents], len(found)) == ([49], 601)
    assert len(every) == len({(one.scope, one.id, one.window, one.window_id) for one in every}) > 1_800
    assert (await of_tenant(ledger)).spent.calls == 600


class Rehashing(ScriptServer):
    """A server whose hash grows while it is read: it may give a field twice."""

    @override
    async def pages(self, key: str) -> AsyncGenerator[list[tuple[bytes, bytes]]]:
        async for page in super().pages(key):
            yield page
            yield page


async def test_duplicate_server_field_is_shown_once(opens: Opening) -> None:
    ledger = await opens([tenant(100)])
    await spend(ledger, ask(10))
    once = await ledger.balances("acme")
    ledger._server.__class__ = Rehashing

    assert await ledger.balances("acme") == once


async def test_forgotten_counter_leaves_the_index(opens: Opening) -> None:
    limits = [Limit(ScopeKind.AGENT, ANY, Window.DAY, nusd=100)]
    ledger = await opens(limits, keep=MOMENTS, call_keep=MOMENTS, counted=())
    await spend(ledger, ask(1, agent="rests"))
    await spend(ledger, ask(1, agent="goes on"))
    await reserved(ledger, ask(1, agent="goes on", at=AT + timedelta(days=1)))

    async with asyncio.timeout(4):
        while len(await ledger.balances("acme")) > 1:
            await ledger.expire_leases()
            await asyncio.sleep(0.01)

    index = ledger._tenants.of("acme").keys.index
    assert await ledger._server._redis.zrange(index, 0, -1) == [b"agent/day/goes on"]
    assert [one.id for one in await ledger.balances("acme", limited=True)] == ["goes on"]
