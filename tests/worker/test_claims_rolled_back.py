"""Claims on a server that was set back to an older file: nothing is claimed until the ledger has been rebuilt."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest
import structlog

from agentic_trading.governance.errors import LedgerRolledBackError, LedgerUnavailableError
from agentic_trading.governance.ledger import LedgerCheckpoint
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.worker.claim import (
    Claim,
    ClaimKey,
    ClaimsRolledBackError,
    ClaimStore,
    ClaimStoreUnavailableError,
    Finished,
)
from agentic_trading.worker.claims.redis import LEASE_S
from tests.governance.asking import ask, spend, tenant
from tests.redis_server import RealServer
from tests.worker.claims_on_server import KEY, Moved, Server, taken

OTHER = ClaimKey("acme", "e-2")
THIRD = ClaimKey("acme", "e-3")


@pytest.fixture
async def server(own_redis: RealServer) -> AsyncIterator[Server]:
    async with AsyncExitStack() as opened:
        yield Server(own_redis.url, opened)


async def claimed(store: ClaimStore, key: ClaimKey) -> Claim:
    """Claim a key; after the server was restarted the first step on an old connection fails."""
    while True:
        try:
            found = await store.claim(key, "one")
        except ClaimsRolledBackError:
            raise
        except ClaimStoreUnavailableError:
            continue
        assert isinstance(found, Claim)
        return found


async def opened_ledger(server: Server) -> RedisLedger:
    return await asyncio.to_thread(RedisLedger, server.url, [tenant(100)], namespace=server.namespace)


async def come_to(ledger: RedisLedger) -> LedgerCheckpoint:
    """Return how far the ledger has come; after a restart of the server the first step fails, as `claimed` says."""
    while True:
        try:
            return await ledger.checkpoint("acme")
        except LedgerUnavailableError:
            continue


async def finished_and_forgotten(
    server: Server, own_redis: RealServer, store: ClaimStore, older: Path
) -> Claim:
    """Finish one envelope and begin another, both of which the server then forgets; return the claim of the latter."""
    await store.release(await taken(store))
    await asyncio.to_thread(own_redis.copy, older)
    await store.finish(await claimed(store, KEY), lambda: b"last")
    begun = await claimed(store, OTHER)
    await store.intend(begun, 1, b"sent")
    await asyncio.to_thread(own_redis.set_back, older)
    return begun


async def test_claims_stay_closed_until_ledger_rebuild(
    server: Server, own_redis: RealServer, tmp_path: Path
) -> None:
    one = await server.process("one")
    begun = await finished_and_forgotten(server, own_redis, one, tmp_path / "older")

    with pytest.raises(ClaimsRolledBackError, match="budget rebuild") as e:
        await claimed(one, KEY)
    assert (e.value.tenant, e.value.known, e.value.found) == ("acme", "epoch 1, step 6", "epoch 1, step 2")
    for store in (one, await server.process("two")):
        with pytest.raises(ClaimsRolledBackError):
            await store.claim(THIRD, "one")
    for step in (
        one.intend(begun, 1, b"sent"),
        one.keep(begun, 1, lambda: b"answer"),
        one.finish(begun, lambda: b"last"),
        one.release(begun),
    ):
        with pytest.raises(ClaimsRolledBackError):
            await step

    async with aclosing(await opened_ledger(server)) as ledger:
        with pytest.raises(LedgerRolledBackError):
            await ledger.reserve(ask(1))
        await ledger.restore("acme", [])
    again = await claimed(one, OTHER)
    assert again.token > begun.token, "a claim of before must not pass for a new one"
    await one.finish(again, lambda: b"last")
    assert await one.claim(OTHER, "one") == Finished(b"last")


async def test_restored_newer_snapshot_reopens_claims(
    server: Server, own_redis: RealServer, tmp_path: Path
) -> None:
    one = await server.process("one")
    await one.release(await taken(one))
    await asyncio.to_thread(own_redis.copy, tmp_path / "older")
    await one.finish(await claimed(one, KEY), lambda: b"last")
    await asyncio.to_thread(own_redis.copy, tmp_path / "newer")
    await asyncio.to_thread(own_redis.set_back, tmp_path / "older")
    with pytest.raises(ClaimsRolledBackError):
        await claimed(one, OTHER)

    await asyncio.to_thread(own_redis.set_back, tmp_path / "newer")
    await claimed(one, OTHER)
    assert await one.claim(KEY, "one") == Finished(b"last")


async def test_ledger_rollback_closes_claims(server: Server, own_redis: RealServer, tmp_path: Path) -> None:
    one = await server.process("one")
    async with aclosing(await opened_ledger(server)) as ledger:
        await spend(ledger, ask(30))
        await asyncio.to_thread(own_redis.copy, tmp_path / "older")
        await claimed(one, KEY)
        on_record = await come_to(ledger)
        await asyncio.to_thread(own_redis.set_back, tmp_path / "older")

        newcomer, after_a_restart = await server.process("two"), await opened_ledger(server)
        async with aclosing(after_a_restart):
            await after_a_restart.require_at_least("acme", on_record)
            await after_a_restart.checkpoint("acme")
        with pytest.raises(ClaimsRolledBackError):
            await newcomer.claim(KEY, "one")


async def test_idle_process_detects_rollback_on_renewal(
    server: Server, own_redis: RealServer, tmp_path: Path
) -> None:
    clock = Moved()
    one = await server.process("one", clock)
    await asyncio.to_thread(own_redis.copy, tmp_path / "older")
    claim = await claimed(one, KEY)
    assert one.holds(claim)
    await asyncio.to_thread(own_redis.set_back, tmp_path / "older")

    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(5):
            while not [entry for entry in logs if entry["event"] == "claims_rolled_back"]:
                clock.advance(LEASE_S / 30)
                await asyncio.sleep(0)
    assert not one.holds(claim)


async def test_rebuild_blocks_claims_and_sends_only(
    server: Server,
) -> None:
    one = await server.process("one")
    begun, other = await taken(one), await claimed(one, OTHER)
    async with aclosing(await opened_ledger(server)) as ledger:
        await ledger.fence("acme")

        with pytest.raises(ClaimsRolledBackError, match="booked again"):
            await one.claim(THIRD, "one")
        with pytest.raises(ClaimsRolledBackError):
            await one.intend(other, 1, b"sent")
        await one.intend(other, 1, b"")
        await one.keep(begun, 1, lambda: b"answer")
        await one.finish(begun, lambda: b"last")
        await ledger.restore("acme", [])

    assert await one.claim(KEY, "one") == Finished(b"last")
    await one.intend(other, 1, b"sent")
