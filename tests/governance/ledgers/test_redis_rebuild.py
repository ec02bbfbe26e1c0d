"""A ledger that is booked again from a log, while others use the server."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from agentic_trading.clock import SystemClock
from agentic_trading.governance.errors import LedgerRolledBackError, LedgerUnavailableError
from agentic_trading.governance.ledger import Ledger, LedgerEntry, ReservationRequest, ReservationState
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import LedgerRebuild, join
from tests.build import event
from tests.event_bodies import dispatched_body
from tests.governance.asking import AT, ask, of_tenant, refused, reserved, spend, tenant
from tests.governance.ledgers.redis_ledgers import ledgers
from tests.redis_server import namespace


async def test_interrupted_rebuild_leaves_ledger_closed(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        ledger = await opens([tenant(100)])
        flying = await reserved(ledger, ask(30))

        def breaks_off() -> Iterator[LedgerEntry]:
            yield LedgerEntry(ask(10), ReservationState.SETTLED, Amount(10, 0))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await ledger.restore("acme", breaks_off())

        with pytest.raises(LedgerRolledBackError):
            await ledger.reserve(ask(1))
        assert (await ledger.restore("acme", [])).epoch == 3
        assert await ledger.state_of(flying) is ReservationState.RESERVED
        assert (await of_tenant(ledger)).held == Amount(30, 0, 1)
        await spend(ledger, ask(70))


async def test_calls_ending_during_rebuild_are_counted(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        worker, tool = await opens([tenant(10**6)]), await opens([tenant(10**6)])
        asks = [ask(number, key=f"call-{number}") for number in range(1, 121)]
        for one in asks:
            await worker.dispatch(await reserved(worker, one))

        async def settled(some: Iterable[ReservationRequest]) -> None:
            for one in some:
                await worker.settle(one.reservation_id, one.amount)

        def broken_off() -> Iterator[LedgerEntry]:
            raise KeyboardInterrupt
            yield

        await settled(asks[:30])
        log = [LedgerEntry(one, ReservationState.SETTLED, one.amount) for one in asks[:30]]
        await tool.fence("acme")
        await settled(asks[30:60])
        with pytest.raises(KeyboardInterrupt):
            await tool.restore("acme", broken_off())
        async with asyncio.TaskGroup() as group:
            group.create_task(settled(asks[60:]))
            await tool.restore("acme", log)

        assert (await of_tenant(tool)).spent == Amount(sum(range(1, 121)), 0, 120)
        assert (await of_tenant(tool)).held == Amount(0, 0, 0)
        leases = worker._tenants.of("acme").keys.shared[4]
        assert await worker._server._redis.zcard(leases) == 0


async def test_unrecorded_recent_charge_survives_rebuild(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        ledger, tool = await opens([tenant(100)]), await opens([tenant(100)], recorded_within_s=10.0)
        recorded, late = ask(30), ask(20)
        await spend(ledger, recorded)
        await spend(ledger, late)

        await tool.restore("acme", [LedgerEntry(recorded, ReservationState.SETTLED, recorded.amount)])
        assert (await of_tenant(ledger)).spent == Amount(50, 0, 2)

        await ledger.restore("acme", [LedgerEntry(recorded, ReservationState.SETTLED, recorded.amount)])
        assert (await of_tenant(ledger)).spent == Amount(30, 0, 1)


async def test_rebuild_restarts_when_calls_ended_meanwhile(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        ledger, other = await opens([tenant(100)]), await opens([tenant(100)])
        doubtful, flying = await reserved(ledger, ask(30)), await reserved(ledger, ask(10))
        await ledger.dispatch(doubtful)
        await ledger.in_doubt(doubtful)
        of = other._tenants.of("acme")

        await other.fence("acme")
        carried = await other._steps.ids(of, "carried")
        await ledger.settle(doubtful, Amount(25, 0))
        assert (await other._steps.run(of, "rebuild", *carried, calls=carried)).word == b"AGAIN"
        await ledger.restore("acme", [])
        assert (await other._steps.run(of, "rebuild", flying, calls=(flying,))).word == b"AGAIN"

        assert await ledger.state_of(flying) is ReservationState.RESERVED
        found = await of_tenant(ledger)
        assert (found.spent, found.held, found.in_doubt) == (Amount(25, 0), Amount(10, 0), Amount(0, 0, 0))


async def test_rereserved_call_is_carried_once(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        ledger = await opens([tenant(100)], recorded_within_s=10.0)
        again = ask(30)
        await ledger.release(await reserved(ledger, again))
        await ledger.dispatch(await reserved(ledger, again))
        await ledger.fence("acme")
        carried = await ledger._steps.ids(ledger._tenants.of("acme"), "carried")
        await ledger.settle(again.reservation_id, Amount(7, 0))
        await ledger.restore("acme", [])

        assert carried == [again.reservation_id]

        assert (await of_tenant(ledger)).spent == Amount(7, 0)


async def test_expired_call_remains_in_sums_only(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        ledger = await opens([tenant(100)])
        over = ledger._tenants.of("acme").keys.with_calls([await spend(ledger, ask(30))])[-1]
        assert await ledger._server._redis.pexpire(over, 0)

        assert await ledger.entries("acme") == []
        assert (await of_tenant(ledger)).spent == Amount(30, 0, 1)


async def test_entries_are_visible_to_every_process(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        worker, tool = await opens([tenant(10**6)]), await opens()
        await worker.open()  # or each of the 300 calls would check the settings of the server
        asks = [ask(number, key=f"*[{number}]:{{a}} ü") for number in range(1, 301)]
        async with asyncio.TaskGroup() as group:
            for one in asks:
                group.create_task(spend(worker, one))
        for other in ("*", "acm", "acme2"):
            await spend(worker, ask(1, tenant=other))

        found = await tool.entries("acme")

        assert {one.request.reservation_id: one.charged for one in found} == {
            one.reservation_id: one.amount for one in asks
        }
        assert {one.request.key for one in found} == {one.key for one in asks}


async def test_call_without_window_gets_server_time(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        ledger = await opens([tenant(100)], counted=())
        await spend(ledger, ask(30))

        (found,) = await ledger.entries("acme")

        assert found.charged == Amount(30, 0)
        assert found.request.at is not None
        assert abs(found.request.at - SystemClock().now()) < timedelta(minutes=1)


async def test_entries_during_constant_rebuilds_are_refused(
    redis_url: str,
) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        ledger, *tools = [await opens([tenant(200)]) for _ in range(9)]

        async def rebuild_for_ever(tool: Ledger) -> None:
            while True:
                await tool.restore("acme", [])

        async def read_until_refused() -> None:
            while True:
                assert await ledger.entries("acme") == []

        rebuilding = [asyncio.Task(rebuild_for_ever(tool)) for tool in tools]
        with pytest.raises(LedgerUnavailableError, match="faster than its calls can be read"):
            await read_until_refused()
        for task in rebuilding:
            task.cancel()
        await asyncio.wait(rebuilding)


async def test_rebuild_drops_calls_missing_from_log(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        ledger = await opens([tenant(100)])
        await spend(ledger, ask(30))
        kept = ask(20)

        await ledger.restore("acme", [LedgerEntry(kept, ReservationState.SETTLED, kept.amount)])

        (found,) = await ledger.entries("acme")
        assert found.request.reservation_id == kept.reservation_id


async def test_interrupted_rebuild_keeps_unposted_calls(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        ledger, tool, last = (
            await opens([tenant(200)]),
            await opens([tenant(200)]),
            await opens([tenant(200)]),
        )
        settled = await spend(ledger, ask(30))
        doubtful, lost = await reserved(ledger, ask(20)), await reserved(ledger, ask(10))
        for sent in (doubtful, lost):
            await ledger.dispatch(sent)
        await ledger.in_doubt(doubtful)
        found = await ledger.checkpoint("acme")
        await tool.require_at_least("acme", replace(found, sequence=found.sequence + 9))

        for broken_off in (tool, last):
            known = await broken_off.entries("acme")
            with pytest.raises(KeyboardInterrupt):
                await broken_off.restore("acme", _breaking_off(join([], known)[0]))
            assert {one.request.reservation_id for one in known} == {settled, doubtful, lost}
        entries, _ = join([], await last.entries("acme"))
        await last.restore("acme", entries)

        total = await of_tenant(last)
        assert (total.spent, total.in_doubt, total.held) == (
            Amount(60, 0, 3),
            Amount(30, 0, 2),
            Amount(0, 0, 0),
        )
        assert len(await last.entries("acme")) == 3


async def test_rebuilt_ledger_lists_no_discarded_calls(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        ledger = await opens([tenant(200)])
        await spend(ledger, ask(30))
        for _ in range(2):
            await ledger.restore("acme", [])

        assert await ledger.entries("acme") == []


def _breaking_off(entries: Iterable[LedgerEntry]) -> Iterator[LedgerEntry]:
    """Yield the first of these."""
    yield from list(entries)[:1]
    raise KeyboardInterrupt


async def test_lost_attempt_counts_against_request_limit(redis_url: str) -> None:
    rebuild = LedgerRebuild("acme", "live")
    rebuild.read(
        event(
            "attempt.dispatched",
            body=dispatched_body("one", tenant="acme", nusd=90),
            tenant_id="acme",
            time=AT,
        )
    )
    own = (Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=120),)
    async with ledgers(redis_url, namespace()) as opens:
        ledger = await opens([tenant(1000)])

        await ledger.restore("acme", rebuild.entries())

        assert (await refused(ledger, ask(31, key="one", attempt=2, limits=own))).left == 30
        await reserved(ledger, ask(30, key="one", attempt=3, limits=own))
