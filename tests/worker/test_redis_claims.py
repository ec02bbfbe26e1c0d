"""Claims on a server: several processes, ends of leases, answers that are lost, and a worker that is killed at each step."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import envelope_message
from agentic_trading.bus.topic import ENVELOPES
from agentic_trading.clock import Clock, SimClock
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.worker.claim import (
    Busy,
    Claim,
    ClaimKey,
    ClaimLostError,
    ClaimStore,
    ClaimStoreUnavailableError,
    Finished,
    Spell,
)
from agentic_trading.worker.claims.memory import MemoryClaimStore
from agentic_trading.worker.claims.redis import LEASE_S, RedisClaimStore
from agentic_trading.worker.delivery import EnvelopeHandler, ProducerAcl
from agentic_trading.worker.slots import Slots, StoppableWait
from tests.gateway import GOOD, START, asking, gateway, held
from tests.redis_server import RealServer, namespace
from tests.worker.test_crashes import (
    BILLED,
    IN_DOUBT,
    STEPS,
    Fleet,
    Killed,
    Moment,
    Process,
    SharedClaims,
    charged,
    envelope_of,
)
from tests.worker.ticking import Wall

KEY = ClaimKey("acme", "e-1")


class Server:
    """Claims of several processes in one namespace of a server."""

    def __init__(self, url: str, opened: AsyncExitStack) -> None:
        self.url, self.namespace, self._opened = url, namespace(), opened

    async def process(self, name: str = "", clock: Clock | None = None) -> RedisClaimStore:
        make = partial(RedisClaimStore, self.url, name=name, namespace=self.namespace, clock=clock)
        store = await asyncio.to_thread(make)
        self._opened.push_async_callback(store.aclose)
        await store.begin()
        return store

    async def heard(self, tenant: str) -> None:
        """Wait until a lease has been renewed."""
        async with Redis.from_url(self.url) as client, asyncio.timeout(5):
            while not await client.zcount(f"{self.namespace}:{{{tenant}}}:owners", 2, "+inf"):
                pass

    async def end_leases(self) -> None:
        """Let all leases of the tenants of these tests have ended."""
        async with Redis.from_url(self.url) as client:
            for tenant in ("acme", "default"):
                owners = f"{self.namespace}:{{{tenant}}}:owners"
                names: Any = await client.zrange(owners, 0, -1)
                if names:
                    await client.zadd(owners, dict.fromkeys(names, 1))


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[Server]:
    async with AsyncExitStack() as opened:
        yield Server(redis_url, opened)


class Moved(Wall):
    """A clock that the test moves, and that wakes what is due by then."""

    def __init__(self) -> None:
        super().__init__(START)
        self._moved = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        due = self.monotonic() + seconds
        while self.monotonic() < due:
            await self._moved.wait()

    def advance(self, seconds: float) -> None:
        self.advance_to(self.now() + timedelta(seconds=seconds))
        self._moved.set()
        self._moved = asyncio.Event()


async def taken(store: ClaimStore) -> Claim:
    claim = await store.claim(KEY, "one")
    assert isinstance(claim, Claim)
    return claim


async def test_a_key_has_one_owner_among_all_processes(server: Server) -> None:
    one, two = await server.process("one"), await server.process("two")
    claim = await taken(one)
    assert await two.claim(KEY, "one") == Busy()

    await one.release(claim)
    assert isinstance(await two.claim(KEY, "one"), Claim)
    assert await one.claim(KEY, "one") == Busy()


async def test_what_a_process_holds_is_free_when_its_lease_is_over_and_it_is_fenced(server: Server) -> None:
    one, two = await server.process("one"), await server.process("two")
    stale = await taken(one)
    await one.intend(stale, 1, b"sent")
    await server.end_leases()

    claim = await taken(two)
    assert (claim.token, claim.count, dict(claim.intended)) == (stale.token + 1, 2, {1: b"sent"})
    with pytest.raises(ClaimLostError):
        await one.keep(stale, 1, lambda: b"answer")
    with pytest.raises(ClaimLostError):
        await one.finish(stale, lambda: b"last")
    await one.release(stale)
    await two.finish(claim, lambda: b"last")
    assert await one.claim(KEY, "one") == Finished(b"last")


async def test_a_process_that_begins_again_under_its_name_frees_what_it_held(server: Server) -> None:
    before, other = await server.process("one"), await server.process("two")
    await taken(before)
    assert await other.claim(KEY, "one") == Busy()

    assert (await taken(await server.process("one"))).count == 2


async def test_processes_without_a_name_do_not_end_each_other(server: Server) -> None:
    await taken(await server.process())

    assert await (await server.process()).claim(KEY, "one") == Busy()


async def test_what_a_closed_process_held_is_free(server: Server) -> None:
    one = await server.process("one")
    await taken(one)
    await one.aclose()

    assert isinstance(await (await server.process("two")).claim(KEY, "one"), Claim)


async def test_a_claim_is_not_sure_any_more_after_a_gap_in_the_lease(server: Server) -> None:
    clock = Moved()
    one = await server.process("one", clock)
    first = await taken(one)
    clock.advance(LEASE_S * 0.7)
    assert one.holds(first)
    clock.advance(LEASE_S * 0.2)
    assert not one.holds(first)

    other = ClaimKey("acme", "e-2")
    second = await one.claim(other, "two")
    assert isinstance(second, Claim)
    assert one.holds(second)
    assert not one.holds(first), "another process may have taken it meanwhile"


class Overtaken(RedisClaimStore):
    """The answer to the first thing asked comes after that to the second."""

    async def _run(self, step: str, key: ClaimKey, *given: str | bytes | int) -> Any:
        is_first = not hasattr(self, "second")
        if is_first:
            self.second = asyncio.Event()
        found = await super()._run(step, key, *given)
        if is_first:
            await self.second.wait()
        else:
            self.second.set()
        return found


async def test_claims_of_a_new_process_are_sure_in_whatever_order_their_answers_come(server: Server) -> None:
    store = await asyncio.to_thread(partial(Overtaken, server.url, namespace=server.namespace))
    server._opened.push_async_callback(store.aclose)

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(store.claim(ClaimKey("acme", f"e-{n}"), "one")) for n in range(2)]

    claims = [task.result() for task in asked]
    assert [isinstance(claim, Claim) and store.holds(claim) for claim in claims] == [True, True]


async def test_the_lease_is_renewed_while_the_process_lives(server: Server) -> None:
    clock, two = Moved(), await server.process("two")
    one = await server.process("one", clock)
    claim = await taken(one)
    for _ in range(6):
        await server.end_leases()
        clock.advance(LEASE_S / 3)
        await server.heard("acme")

    assert one.holds(claim)
    assert await two.claim(KEY, "one") == Busy()


async def test_a_claim_whose_answer_was_lost_is_given_again(server: Server) -> None:
    one = await server.process("one")
    lost = await taken(one)
    one._held.clear()  # as after a claim whose answer did not come

    again = await one.claim(KEY, "one")
    assert again == lost
    await one.finish(lost, lambda: b"")


async def test_a_server_that_is_away_is_an_error_that_says_so_and_claims_go_on_when_it_is_back(
    own_redis: RealServer,
) -> None:
    store = await asyncio.to_thread(RedisClaimStore, own_redis.url)
    await store.begin()
    claim = await taken(store)
    own_redis.kill()
    with pytest.raises(ClaimStoreUnavailableError, match="the claims cannot be reached"):
        await store.intend(claim, 1, b"sent")
    with pytest.raises(ClaimStoreUnavailableError):
        await store.claim(ClaimKey("acme", "e-2"), "two")
    with pytest.raises(ClaimStoreUnavailableError):
        await store.release(claim)
    own_redis.start()

    again = await taken(store)
    assert (again.token, again.count, dict(again.intended)) == (claim.token, claim.count, {})
    await store.intend(again, 1, b"sent")
    own_redis.kill()
    await store.aclose()


class ServerClaims(SharedClaims):
    """The claims of a fleet, on a server: each process opens them again under a name of its own."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self._current: ClaimStore | None = None

    async def of_a_process(self) -> ClaimStore:
        self._current = await self._server.process()
        return self._current

    async def claim(self, key: ClaimKey, content: str) -> Any:
        return await (self._current or await self.of_a_process()).claim(key, content)

    def holds(self, claim: Claim) -> bool:
        return self._current is not None and self._current.holds(claim)

    async def intend(self, claim: Claim, attempt: int, facts: bytes) -> None:
        assert self._current is not None
        await self._current.intend(claim, attempt, facts)

    async def keep(self, claim: Claim, attempt: int, spell: Spell) -> None:
        assert self._current is not None
        await self._current.keep(claim, attempt, spell)

    async def finish(self, claim: Claim, spell: Spell) -> None:
        assert self._current is not None
        await self._current.finish(claim, spell)

    async def release(self, claim: Claim) -> None:
        assert self._current is not None
        await self._current.release(claim)

    async def end(self) -> None:
        """Let the process that uses them have ended."""
        await self._server.end_leases()
        self._current = None


@pytest.mark.parametrize("workflow", ["analysis", "execution"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_worker_is_killed_and_another_one_takes_over_with_claims_on_a_server(
    step: str, moment: Moment, workflow: str, server: Server
) -> None:
    claims = ServerClaims(server)
    fleet = Fleet(claims=claims)
    delivery = await fleet.delivery(envelope_of(workflow))
    with pytest.raises(Killed):
        await fleet.serve(delivery, Process(step, moment))
    await claims.end()

    assert await fleet.serve(delivery, Process())

    ends_in_doubt = (step, moment) in IN_DOUBT and workflow == "execution"
    sent = [request.attempt for request in fleet.provider.requests]
    before, after = (step, moment) in BILLED, not ends_in_doubt
    assert len(sent) == len(set(sent)) == (before + after if (step, moment) in IN_DOUBT else 1)
    (final,) = await fleet.told()
    assert (final.result.actionable, final.result.in_doubt) == (not ends_in_doubt, ends_in_doubt)
    assert held(await fleet.ledger.balances("default")) == {"nusd": 0, "tokens": 0, "calls": 0}
    assert await charged(fleet) >= fleet.ledger.statistics().charged_nusd > 0


@pytest.mark.parametrize("step", [step for step in STEPS if step.startswith("claims")])
async def test_a_step_is_done_and_its_answer_is_lost_with_claims_on_a_server(
    step: str, server: Server
) -> None:
    fleet = Fleet(claims=ServerClaims(server))
    delivery = await fleet.delivery(envelope_of("execution"))
    process, is_done = Process(step, "lost"), False
    for _ in range(3):
        try:
            is_done = is_done or await fleet.serve(delivery, process)
        except ClaimStoreUnavailableError:
            continue

    assert is_done
    assert len(fleet.provider.requests) <= 1
    assert len(await fleet.told()) == 1


def test_claims_in_memory_and_on_a_server_have_the_same_steps() -> None:
    def steps(store: type) -> set[str]:
        return {name for name in vars(store) if not name.startswith("_")}

    assert steps(MemoryClaimStore) == steps(RedisClaimStore)


async def test_the_last_attempt_that_a_claim_keeps_holds_no_known_secret() -> None:
    secret = "sk-very-long-secret-0123456789"  # noqa: S105 - an example
    claims, broker = SharedClaims(), MemoryBroker()
    desk = gateway(ScriptedProvider([GOOD]), broker=broker)
    desk.recorder.redaction.add(secret)
    handler = EnvelopeHandler(
        desk.runner, desk.recorder, claims, ProducerAcl(), StoppableWait(SimClock(START))
    )
    envelope = asking(note=f"the key is {secret}").build()
    reader = await broker.subscribe([ENVELOPES[envelope.workflow]], "workers")
    await broker.publish(ENVELOPES[envelope.workflow], envelope_message(envelope))
    async with Slots(1).taken() as slot:
        assert await handler.serve(await reader.take(), slot=slot)

    (last,) = claims.last.values()
    assert secret.encode() not in last
    assert b'"redacted":true' in last
