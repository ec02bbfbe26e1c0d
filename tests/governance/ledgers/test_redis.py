"""The ledger on a real server: what several processes share, and what it asks of the server."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from typing_extensions import override

from agentic_trading.clock import SystemClock
from agentic_trading.governance.errors import (
    ClosedWindowError,
    LedgerUnavailableError,
)
from agentic_trading.governance.ledger import Blocked, Reservation, ReservationState
from agentic_trading.governance.ledgers.redis import RedisLedger, RedisQueuedRequest
from agentic_trading.governance.ledgers.redis_codec import RedisSteps, RedisTenantState
from agentic_trading.governance.limits import ANY, LARGEST, Ceiling, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.redis import ScriptReply
from agentic_trading.ids import fraction
from tests.contracts.ledger_opening import in_line
from tests.governance.asking import (
    AT,
    ask,
    balance,
    held,
    of_tenant,
    refused,
    reserved,
    select,
    spend,
    tenant,
)
from tests.governance.ledgers.redis_ledgers import Opening, ledgers
from tests.redis_server import namespace

MOMENTS = timedelta(milliseconds=1)


@pytest.fixture
async def opens(redis_url: str) -> AsyncIterator[Opening]:
    async with ledgers(redis_url, namespace()) as opening:
        yield opening


class Jumping(SystemClock):
    """A clock that jumps a day ahead with each look."""

    def __init__(self) -> None:
        self.looks = 0

    @override
    def now(self) -> datetime:
        raise AssertionError("the ledger's time is the server's")

    @override
    def monotonic(self) -> float:
        self.looks += 1
        return super().monotonic() + 86_400 * (self.looks % 3)


async def test_processes_share_counters_and_calls(opens: Opening) -> None:
    one, other = await opens([tenant(100)]), await opens([tenant(100)])
    wanted = ask(60)
    id_ = await reserved(one, wanted)

    assert (await refused(other, ask(101))).left == 100
    assert (await held(other, ask(50))).left == 40
    assert await other.reserve(wanted) == Reservation(id_, wanted.amount)
    await other.dispatch(id_)
    await one.settle(id_, Amount(45, 0))
    assert (await of_tenant(other)).spent == Amount(45, 0, 1)


async def test_processes_share_a_queue(opens: Opening) -> None:
    one, other = await opens([tenant(100)]), await opens([tenant(100)])
    first = await reserved(one, ask(100))
    order: list[str] = []

    async def wait(ledger: RedisLedger, key: str, priority: int) -> None:
        answer = await ledger.wait_for_reservation(ask(60, key=key, priority=priority))
        assert isinstance(answer, Reservation)
        order.append(key)
        await one.release(answer.id)

    came = [(other, "first", 0), (one, "second", 0), (other, "third", 0), (one, "urgent", 3600)]
    async with asyncio.timeout(4), asyncio.TaskGroup() as group:
        for place, (ledger, key, priority) in enumerate(came, start=1):
            group.create_task(wait(ledger, key, priority))
            await in_line(one, place)
        await one.release(first)

    assert order == ["urgent", "first", "second", "third"]


async def test_waiter_is_notified_without_polling(opens: Opening) -> None:
    one, other = await opens([tenant(100)]), await opens([tenant(100)], look_s=3600)
    first = await reserved(one, ask(100))

    async with asyncio.timeout(4), asyncio.TaskGroup() as group:
        waits = [group.create_task(other.wait_for_reservation(ask(30))) for _ in range(3)]
        await in_line(one, 3)
        await one.release(first)

    assert all(isinstance(done.result(), Reservation) for done in waits)


async def test_concurrent_waiters_lose_no_calls(opens: Opening) -> None:
    limits = [
        tenant(300),
        Limit(ScopeKind.AGENT, ANY, Window.NONE, tokens=120),
        Limit(ScopeKind.TRACE, ANY, Window.NONE, calls=90),
    ]
    processes = [await opens(limits, look_s=3600) for _ in range(2)]
    charges: list[int] = []

    async def work(number: int) -> None:
        ledger, chance = processes[number % 2], partial(fraction, "waits", number)
        nusd, tokens = 1 + int(100 * chance("nusd")), int(60 * chance("tokens"))
        agent, trace = f"agent-{number % 3}", f"trace-{number % 2}"
        wanted = ask(nusd, tokens=tokens, priority=number % 3, agent=agent, trace=trace)
        answer = await ledger.wait_for_reservation(wanted)
        if isinstance(answer, Reservation):
            await ledger.dispatch(answer.id)
            charges.append(1 + int(4 * chance("used")))
            await ledger.settle(answer.id, Amount(charges[-1], 1))

    async with asyncio.timeout(15), asyncio.TaskGroup() as group:
        for number in range(64):
            group.create_task(work(number))

    found = await of_tenant(processes[0])
    assert (found.spent.nusd, found.held) == (sum(charges), Amount(0, 0, 0))
    assert len(charges) > 40
    assert await processes[0].waiting("acme") == []


async def test_waiter_of_killed_process_is_skipped(opens: Opening) -> None:
    one, other = await opens([tenant(100)], look_s=0.001), await opens([tenant(100)])
    first = await reserved(other, ask(100))
    await one.look(ask(60, key="dead"), RedisQueuedRequest("nobody hears"))
    await other.release(first)

    async with asyncio.timeout(4):
        while isinstance(answer := await other.reserve(ask(60)), Blocked):  # noqa: ASYNC110 - the server is asked
            await asyncio.sleep(0.01)

    assert isinstance(answer, Reservation)
    for number in range(3):
        await one.look(ask(60, key=f"dead again {number}"), RedisQueuedRequest("nobody hears"))
    async with asyncio.timeout(4):
        while await other.waiting("acme"):  # noqa: ASYNC110 - the server is asked
            await asyncio.sleep(0.01)
    await other.expire_leases()
    queue = other._tenants.of("acme").keys.shared[5:7]
    assert await other._server._redis.exists(*queue) == 0


async def test_unacknowledged_expiry_reaches_other_process(opens: Opening) -> None:
    one, other = [await opens([tenant(100)], reserved_lease_s=lease_s) for lease_s in (0, 60)]
    unsent, silent = await reserved(one, ask(10)), await reserved(one, ask(20))
    await one.dispatch(silent, lease_s=0)
    lost = await one.expire_leases()
    await other.checkpoint("acme")

    found = await other.expire_leases()

    assert {expired.reservation_id for expired in found} == {unsent, silent}
    assert sorted(found, key=repr) == sorted(lost, key=repr)
    assert (other.statistics().released, other.statistics().in_doubt) == (0, 0)
    assert await one.expire_leases() == []
    for expired in found:
        await other.acknowledge_expired(expired.reservation_id)
    assert await one._server._redis.exists(one._tenants.of("acme").keys.shared[9]) == 0


async def test_changed_limit_binds_other_processes(opens: Opening) -> None:
    one, other = await opens([tenant(100)]), await opens([tenant(100)])
    await spend(one, ask(60))

    await other.apply_limits("acme", [tenant(70)], version=1)

    assert (await refused(one, ask(11))).left == 10
    assert (await of_tenant(one)).ceiling == Ceiling(nusd=70)
    assert isinstance(await one.reserve(ask(100, tenant="not adopted for")), Reservation)


async def test_raised_limit_serves_remote_waiter(opens: Opening) -> None:
    one, other = await opens([tenant(100)]), await opens([tenant(100)], look_s=3600)
    await reserved(one, ask(80))

    async with asyncio.timeout(4), asyncio.TaskGroup() as group:
        waits = group.create_task(other.wait_for_reservation(ask(90)))
        await in_line(one, 1)
        await one.apply_limits("acme", [tenant(200)], version=1)

    assert isinstance(waits.result(), Reservation)


async def test_request_limit_is_counted_across_processes(opens: Opening) -> None:
    one, other = await opens(), await opens()
    own = (Limit(ScopeKind.AGENT, ANY, Window.HOUR, calls=2),)
    await spend(one, ask())
    await spend(one, ask(limits=own))

    await spend(other, ask())

    assert (await refused(one, ask(limits=own))).left == 0
    assert (await balance(other, ScopeKind.AGENT, "agent-1", Window.HOUR)).spent.calls == 2


async def test_window_follows_the_server_clock(opens: Opening) -> None:
    steady, jumping = await opens([tenant(100, window=Window.MINUTE)]), await opens(clock=Jumping())
    before = await _server_minute(steady)
    await spend(steady, ask(1, at=None))

    for _ in range(5):
        await spend(jumping, ask(1, at=None))

    after = await _server_minute(steady)
    days = {one.window_id for one in await steady.balances("acme") if one.window is Window.DAY}
    minutes = select(await steady.balances("acme"), ScopeKind.TENANT, "acme", Window.MINUTE)
    assert {one.window_id for one in minutes} <= {before, after}
    assert days <= {before[:10], after[:10]}


async def _server_minute(ledger: RedisLedger) -> str:
    await ledger.open()
    seconds, _ = await ledger._server._redis.time()
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M}+0000"


async def test_ids_accept_any_characters(opens: Opening) -> None:
    ledger = await opens([Limit(ScopeKind.AGENT, ANY, Window.NONE, nusd=100)])
    for name in ("a/b", "a\nb", "a%0Ab", "{x}", "ü:日本", " ", "a\x00b"):
        wanted = ask(60, key=f"key {name}", agent=name, tenant=f"tenant {name}", workflow=name, trace=name)
        await spend(ledger, wanted)

        assert (await refused(ledger, ask(41, agent=name, tenant=f"tenant {name}"))).id == name
        found = select(await ledger.balances(f"tenant {name}"), ScopeKind.AGENT, name, Window.NONE)
        assert [one.spent.nusd for one in found] == [60]


async def test_request_without_scopes_is_remembered(opens: Opening) -> None:
    ledger = await opens()
    bare = ask(5)
    wanted = type(bare)("bare", 1, {}, Amount(5, 0))

    id_ = await reserved(ledger, wanted)
    await ledger.dispatch(id_)
    await ledger.settle(id_, Amount(4, 0))

    assert await ledger.state_of(id_) is ReservationState.SETTLED
    assert await ledger.balances("") == []


async def test_sums_are_exact_up_to_maximum(opens: Opening) -> None:
    ledger = await opens()
    await spend(ledger, ask(LARGEST - 1))

    assert (await refused(ledger, ask(2))).left == 1
    await spend(ledger, ask(1))
    assert (await of_tenant(ledger)).spent.nusd == LARGEST


async def test_ten_thousand_scopes_do_not_drift(opens: Opening) -> None:
    kinds = (ScopeKind.TRACE, ScopeKind.AGENT, ScopeKind.WORKFLOW, ScopeKind.CALL)
    ledger = await opens([tenant(10**12)], counted=[(kind, Window.NONE) for kind in kinds])
    numbers = iter(range(2_500))

    async def work() -> None:
        for number in numbers:
            name = f"scope-{number}"
            wanted = ask(1_000 + number, trace=name, agent=name, workflow=name)
            await reserved(ledger, wanted)
            if number % 10 == 0:
                await ledger.dispatch(wanted.reservation_id)
                await ledger.settle(wanted.reservation_id, Amount(number, 0))

    async with asyncio.TaskGroup() as group:
        for _ in range(64):
            group.create_task(work())

    found = await ledger.balances("acme")
    spent = sum(range(0, 2_500, 10))
    left = sum(1_000 + number for number in range(2_500) if number % 10)
    for kind in (*kinds, ScopeKind.TENANT):
        of_kind = [one for one in found if one.scope is kind]
        assert len(of_kind) == (1 if kind is ScopeKind.TENANT else 2_500)
        assert sum(one.spent.nusd for one in of_kind) == spent
        assert sum(one.held.nusd for one in of_kind) == left


async def test_idle_counters_are_dropped_after_window(opens: Opening) -> None:
    ledger = await opens([tenant(100, window=Window.DAY)], keep=MOMENTS, call_keep=MOMENTS)
    for number in range(40):
        await spend(ledger, ask(1, agent=f"agent-{number}", workflow=f"workflow-{number}"))
    done = await spend(ledger, ask(20))
    flying = await reserved(ledger, ask(10, at=AT + timedelta(days=1), agent="other"))

    async with asyncio.timeout(4):
        while select(await ledger.balances("acme"), ScopeKind.TENANT, "acme", Window.DAY, "2026-01-02"):
            await ledger.expire_leases()
            await asyncio.sleep(0.01)

    assert await ledger.state_of(done) is None
    with pytest.raises(ClosedWindowError, match="2026-02-01T00:00:00"):
        await ledger.reserve(ask(1))
    with pytest.raises(ClosedWindowError):
        await ledger.wait_for_reservation(ask(1))
    day = await balance(ledger, ScopeKind.TENANT, "acme", Window.DAY, "2026-01-03")
    assert day.held == Amount(10, 0, 1)
    await ledger.release(flying)
    assert (await of_tenant(ledger)).spent == Amount(60, 0, 41)


async def test_cancelled_waiter_holds_no_budget(opens: Opening) -> None:
    ledger = await opens([tenant(100)])
    await reserved(ledger, ask(80))

    for nusd in (20, 90):
        for turns in range(40):
            async with asyncio.TaskGroup() as group:
                leaving = group.create_task(ledger.wait_for_reservation(ask(nusd)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                leaving.cancel()
            if not leaving.cancelled():
                answer = leaving.result()
                assert isinstance(answer, Reservation)
                await ledger.release(answer.id)

    assert (await of_tenant(ledger)).held == Amount(80, 0, 1)
    assert (await ledger.waiting("acme"), ledger.statistics().waiting) == ([], 0)


async def test_cancelled_reserve_can_be_repeated(opens: Opening) -> None:
    ledger = await opens([tenant(100)])
    wanted = ask(80)

    for turns in range(12):
        async with asyncio.TaskGroup() as group:
            leaving = group.create_task(ledger.reserve(wanted))
            for _ in range(turns):
                await asyncio.sleep(0)
            leaving.cancel()

    await reserved(ledger, wanted)
    assert (await of_tenant(ledger)).held == Amount(80, 0, 1)


class Pestered(RedisSteps):
    """Somebody changes the limits just before each ask."""

    version = 0

    @override
    async def run(
        self, tenant: RedisTenantState, script: str, *args: object, calls: Sequence[str] = ()
    ) -> ScriptReply:
        if script == "reserve":
            self.version += 1
            await super().run(tenant, "apply_limits", self.version, "[]")
        return await super().run(tenant, script, *args, calls=calls)


async def test_rapidly_changing_limits_are_an_outage(opens: Opening) -> None:
    ledger = await opens()
    ledger._steps.__class__ = Pestered

    with pytest.raises(LedgerUnavailableError, match="change faster"):
        await ledger.reserve(ask(1))
