"""Claims on a server: several processes, ends of leases, answers that are lost, and a worker that is killed at each step."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import envelope_message
from agentic_trading.bus.topic import ENVELOPES
from agentic_trading.clock import SimClock
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.worker.attempt_result import LOST
from agentic_trading.worker.claim import (
    Busy,
    Claim,
    ClaimKey,
    ClaimLostError,
    ClaimStore,
    ClaimStoreUnavailableError,
    Finished,
)
from agentic_trading.worker.claims.memory import MemoryClaimStore
from agentic_trading.worker.claims.redis import LEASE_S, RedisClaimStore
from agentic_trading.worker.delivery import EnvelopeHandler, ProducerAcl
from agentic_trading.worker.slots import Slots, StoppableWait
from tests.contracts import claim_promises as promises
from tests.gateway import GOOD, OF_ANY_AGE, START, asking, gateway
from tests.redis_server import RealServer
from tests.worker.claims_on_server import KEY, Moved, Server, ServerClaims, taken
from tests.worker.test_crashes import (
    Fleet,
    Killed,
    Process,
    SharedClaims,
    charged,
    envelope_of,
)

LEFT_AFTER: dict[str, list[Callable[[ClaimStore, Claim], Awaitable[None]]]] = {
    "claimed": [],
    "intended": [
        lambda store, claim: store.intend(claim, 1, b"sent"),
        lambda store, claim: store.keep(claim, 1, lambda: b"answer"),
        lambda store, claim: store.intend(claim, 2, b"sent"),
    ],
    "kept": [
        lambda store, claim: store.intend(claim, 1, b"sent"),
        lambda store, claim: store.keep(claim, 1, lambda: b"answer"),
    ],
    "": [lambda store, claim: store.finish(claim, bytes)],
}


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[Server]:
    async with AsyncExitStack() as opened:
        yield Server(redis_url, opened)


async def test_key_has_single_owner_across_processes(server: Server) -> None:
    one, two = await server.process("one"), await server.process("two")
    claim = await taken(one)
    assert await two.claim(KEY, "one") == Busy()

    await one.release(claim)
    assert isinstance(await two.claim(KEY, "one"), Claim)
    assert await one.claim(KEY, "one") == Busy()


async def test_expired_claim_is_free_and_fenced(server: Server) -> None:
    one, two = await server.process("one"), await server.process("two")
    stale = await taken(one)
    await one.intend(stale, 1, b"sent")
    await server.end_leases()

    claim = await taken(two)
    assert claim.token > stale.token
    assert (claim.count, dict(claim.intended)) == (2, {1: b"sent"})
    with pytest.raises(ClaimLostError):
        await one.keep(stale, 1, lambda: b"answer")
    with pytest.raises(ClaimLostError):
        await one.finish(stale, lambda: b"last")
    await one.release(stale)
    await two.finish(claim, lambda: b"last")
    assert await one.claim(KEY, "one") == Finished(b"last")


async def test_closed_process_frees_claims(server: Server) -> None:
    one = await server.process("one")
    await taken(one)
    await one.aclose()

    assert isinstance(await (await server.process("two")).claim(KEY, "one"), Claim)


async def test_lease_gap_makes_claim_uncertain(server: Server) -> None:
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


async def test_claims_hold_despite_reordered_answers(server: Server) -> None:
    store = await asyncio.to_thread(partial(Overtaken, server.url, namespace=server.namespace))
    server._opened.push_async_callback(store.aclose)

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(store.claim(ClaimKey("acme", f"e-{n}"), "one")) for n in range(2)]

    claims = [task.result() for task in asked]
    assert [isinstance(claim, Claim) and store.holds(claim) for claim in claims] == [True, True]


async def test_lease_is_renewed_while_process_lives(server: Server) -> None:
    clock, two = Moved(), await server.process("two")
    one = await server.process("one", clock)
    claim = await taken(one)
    for _ in range(6):
        await server.end_leases()
        clock.advance(LEASE_S / 3)
        await server.heard("acme")

    assert one.holds(claim)
    assert await two.claim(KEY, "one") == Busy()


async def test_idle_tenant_lease_is_not_renewed(
    server: Server,
) -> None:
    clock, other = Moved(), ClaimKey("default", "e-1")
    one = await server.process("one", clock)
    kept = await taken(one)
    released = await promises.taken(one, other)
    await one.release(released)
    for _ in range(3):
        await server.end_leases()
        clock.advance(LEASE_S / 3)
        await server.heard("acme")

    assert await server.leases_of("default") == 0
    assert one.holds(kept)
    again = await promises.taken(one, other)
    assert [one.holds(claim) for claim in (again, released)] == [True, False]


async def test_owner_key_expires_after_several_leases(
    server: Server,
) -> None:
    await taken(await server.process())
    make = partial(RedisClaimStore, server.url, namespace=server.namespace, lease_s=0.5)
    async with aclosing(await asyncio.to_thread(make)) as shorter, Redis.from_url(server.url) as client:
        assert await shorter.claim(KEY, "one") == Busy()
        left_ms = await client.pttl(f"{server.namespace}:{{acme}}:owners")

    assert LEASE_S < left_ms / 1000 <= 4 * LEASE_S, "a shorter lease ends no longer one"


class SideBySide(RedisClaimStore):
    """Two renewals go on when both have begun."""

    async def _run(self, step: str, key: ClaimKey, *given: str | bytes | int) -> Any:
        self.both = getattr(self, "both", None) or asyncio.Barrier(2)
        if step == "renew":
            await self.both.wait()
        return await super()._run(step, key, *given)


@pytest.mark.timeout(5)
async def test_tenant_leases_are_renewed_concurrently(server: Server) -> None:
    clock = Moved()
    make = partial(SideBySide, server.url, namespace=server.namespace, clock=clock)
    async with aclosing(await asyncio.to_thread(make)) as one:
        await one.begin()
        for tenant in ("acme", "default"):
            await promises.taken(one, ClaimKey(tenant, "e-1"))
        await server.end_leases()
        clock.advance(LEASE_S / 3)
        for tenant in ("acme", "default"):
            await server.heard(tenant)


async def test_claim_with_lost_answer_is_reissued(server: Server) -> None:
    one = await server.process("one")
    lost = await taken(one)
    one._held.clear()  # as after a claim whose answer did not come

    again = await one.claim(KEY, "one")
    assert again == lost
    await one.finish(lost, lambda: b"")


async def test_abandoned_claims_are_listed_by_state(server: Server) -> None:
    one, two = await server.process("one"), await server.process("two")
    claims = [
        await promises.taken(one, ClaimKey("acme", f"e-{number}")) for number in range(1, len(LEFT_AFTER) + 1)
    ]
    for claim, steps in zip(claims, LEFT_AFTER.values(), strict=True):
        for step in steps:
            await step(one, claim)
    assert await two.left("acme") == [], "its owner lives, or it was just taken"
    await server.end_leases()

    held = await promises.taken(two, ClaimKey("acme", "e-9"))
    assert [one.state for one in await two.left("acme")] == [state for state in LEFT_AFTER if state]
    assert await two.left("other") == []
    assert two.holds(held)


async def test_server_outage_raises_and_claims_continue(
    own_redis: RealServer,
) -> None:
    store = await asyncio.to_thread(RedisClaimStore, own_redis.url)
    await store.begin()
    claim = await taken(store)
    own_redis.kill()
    with pytest.raises(ClaimStoreUnavailableError, match="The claim store is unreachable"):
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


@pytest.mark.parametrize("workflow", ["analysis", "execution"])
@pytest.mark.parametrize("step", ["ledger.reserve", "ledger.dispatch", "provider.complete"])
async def test_takeover_does_not_send_expired_envelope(step: str, workflow: str, server: Server) -> None:
    claims = ServerClaims(server)
    fleet = Fleet(claims=claims)
    delivery = await fleet.delivery(envelope_of(workflow, deadline=START + timedelta(minutes=1)))
    with pytest.raises(Killed):
        await fleet.serve(delivery, Process(step, "after"))
    await claims.end()

    assert await fleet.serve(delivery, Process(), at=START + timedelta(minutes=2))

    assert len(fleet.provider.requests) == (step == "provider.complete")
    (final,) = await fleet.told()
    is_in_doubt = workflow == "execution" and step != "ledger.reserve"
    assert final.result.in_doubt is is_in_doubt
    assert final.result.failure is not None
    assert final.result.failure.category == (LOST.category if is_in_doubt else FailureKind.EXPIRED)
    assert charged(await fleet.records()) >= fleet.ledger.statistics().charged_nusd


def test_memory_and_redis_claims_share_methods() -> None:
    def steps(store: type) -> set[str]:
        return {name for name in vars(store) if not name.startswith("_")}

    assert steps(MemoryClaimStore) == steps(RedisClaimStore)


async def test_kept_attempt_contains_no_secret() -> None:
    secret = "sk-very-long-secret-0123456789"  # noqa: S105 - an example
    claims, broker = SharedClaims(), MemoryBroker()
    desk = gateway(ScriptedProvider([GOOD]), broker=broker)
    desk.recorder.redaction.add(secret)
    handler = EnvelopeHandler(
        desk.runner, desk.recorder, claims, ProducerAcl(), StoppableWait(SimClock(START)), age=OF_ANY_AGE
    )
    envelope = asking(note=f"the key is {secret}").build()
    reader = await broker.subscribe([ENVELOPES[envelope.workflow]], "workers")
    await broker.publish(ENVELOPES[envelope.workflow], envelope_message(envelope))
    async with Slots(1).taken() as slot:
        assert await handler.serve(await reader.take(), slot=slot)

    (last,) = claims.last.values()
    assert secret.encode() not in last
    assert b'"redacted":true' in last
