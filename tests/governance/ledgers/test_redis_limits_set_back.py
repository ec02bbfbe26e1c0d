"""A process that follows limits reserves nothing by older ones than it has counted by, nor before it has read them after a rebuild."""

import asyncio

import pytest
from redis.asyncio import Redis

from agentic_trading.governance.errors import LedgerUnavailableError
from agentic_trading.governance.ledger import Declined, Reservation
from agentic_trading.governance.ledgers import redis_codec
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.limits import Limit
from agentic_trading.governance.redis import LedgerKeys
from tests.governance.asking import ask, tenant
from tests.governance.ledgers.redis_ledgers import ledgers
from tests.redis_server import namespace

TENANT = ask(1).tenant
HIGH, LOW = tenant(1000), tenant(50)


def key_of(name: str) -> str:
    """Return where the server has the limits."""
    return LedgerKeys.of(name, TENANT).shared[1]


async def follow(ledger: RedisLedger, *limits: Limit, version: int) -> None:
    """Apply limits as housekeeping does."""
    await ledger.apply_limits(TENANT, limits, version=version)
    ledger.confirm_limits(TENANT, ledger.awaited_limits(TENANT))


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_codec, "within_time", lambda: asyncio.timeout(0.05))


async def test_outdated_server_limits_prevent_reservation(redis_url: str) -> None:
    name = namespace()
    async with ledgers(redis_url, name) as opens, Redis.from_url(redis_url, driver_info=None) as server:
        worker = await opens()
        await follow(worker, LOW, version=5)
        assert isinstance(await worker.reserve(ask(10, key="a")), Reservation)
        await server.delete(key_of(name))

        with pytest.raises(LedgerUnavailableError, match="older than those read before"):
            await worker.reserve(ask(10, key="b"))

        assert worker.awaited_limits(TENANT)
        await follow(worker, LOW, version=5)
        assert isinstance(await worker.reserve(ask(10, key="b")), Reservation)
        assert isinstance(await worker.reserve(ask(60, key="c")), Declined)


async def test_rebuild_elsewhere_requires_rereading_limits(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        worker, operator = await opens(), await opens()
        await follow(worker, HIGH, version=5)
        assert isinstance(await worker.reserve(ask(10, key="a")), Reservation)

        await operator.restore(TENANT, [])

        with pytest.raises(LedgerUnavailableError):
            await worker.reserve(ask(10, key="b"))
        await follow(worker, LOW, version=6)
        assert isinstance(await worker.reserve(ask(60, key="c")), Declined)


async def test_request_waits_for_limits_after_rebuild(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        worker, operator = await opens(), await opens()
        await follow(worker, LOW, version=5)
        await worker.reserve(ask(10, key="a"))
        await operator.restore(TENANT, [])
        with pytest.raises(LedgerUnavailableError):
            await worker.reserve(ask(10, key="b"))
        monkeypatch.setattr(redis_codec, "within_time", lambda: asyncio.timeout(10))

        async with asyncio.TaskGroup() as group:
            asked = group.create_task(worker.reserve(ask(10, key="b")))
            group.create_task(follow(worker, LOW, version=5))

        assert isinstance(asked.result(), Reservation)


async def test_confirmation_before_rebuild_is_ignored(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        worker, operator = await opens(), await opens()
        await follow(worker, LOW, version=5)
        await operator.restore(TENANT, [])
        with pytest.raises(LedgerUnavailableError):
            await worker.reserve(ask(10, key="a"))
        before = worker.awaited_limits(TENANT)
        await operator.restore(TENANT, [])
        await worker.checkpoint(TENANT)

        worker.confirm_limits(TENANT, before)

        with pytest.raises(LedgerUnavailableError):
            await worker.reserve(ask(10, key="c"))


async def test_reused_revision_number_rereads_limits(redis_url: str) -> None:
    """Set back to an older revision and changed there, a server has the number that a process knows, with other limits."""
    name = namespace()
    async with ledgers(redis_url, name) as opens, Redis.from_url(redis_url, driver_info=None) as server:
        process, operator = await opens(), await opens()
        await process.apply_limits(TENANT, [HIGH], version=5)
        await process.reserve(ask(10, key="a"))
        revision = await server.hget(key_of(name), "revision")

        await operator.fence(TENANT)
        await operator.apply_limits(TENANT, [LOW], version=6)
        await server.hset(key_of(name), "revision", revision)
        await operator.restore(TENANT, [])

        assert isinstance(await process.reserve(ask(60, key="b")), Declined)
