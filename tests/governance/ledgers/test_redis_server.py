"""What the ledger asks of its server, and of who makes it."""

import asyncio
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest

from agentic_trading.governance.errors import (
    LedgerSettingsError,
    LedgerUnavailableError,
    ReservationRequestError,
)
from agentic_trading.governance.ledger import Declined, LedgerEntry, Reservation, ReservationState
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.redis import LedgerKeys
from tests.governance.asking import ask, reserved, spend, tenant
from tests.governance.ledgers.redis_ledgers import ledgers
from tests.redis_server import SAFE, RealServer, namespace, own_server, servers


@pytest.mark.parametrize(
    ("setting", "unsafe", "safe"),
    [
        ("appendonly", "no", "yes"), ("appendfsync", "everysec", "always"),
        ("no-appendfsync-on-rewrite", "yes", "no"), ("maxmemory-policy", "allkeys-lru", "noeviction"),
    ],
)  # fmt: skip
async def test_server_with_unsafe_setting_is_refused(
    own_redis: RealServer, setting: str, unsafe: str, safe: str
) -> None:
    async with ledgers(own_redis.url, namespace()) as opens:
        ledger, trusting = await opens(), await opens(is_checked_elsewhere=True)
        await ledger._server._redis.config_set(setting, unsafe)

        with pytest.raises(LedgerSettingsError) as e:
            await ledger.reserve(ask(1))
        assert (e.value.setting, e.value.found, e.value.allowed) == (setting, unsafe, safe)
        assert isinstance(await trusting.reserve(ask(1)), Reservation)


async def test_server_with_unreadable_settings_is_refused() -> None:
    with own_server(servers()[-1], options=(*SAFE, "--rename-command", "CONFIG", "")) as server:
        async with ledgers(server.url, namespace()) as opens:
            ledger, trusting = await opens(), await opens(is_checked_elsewhere=True)

            with pytest.raises(LedgerSettingsError, match="CONFIG"):
                await ledger.open()
            assert isinstance(await trusting.reserve(ask(1)), Reservation)


async def test_full_server_memory_is_an_outage(
    own_redis: RealServer,
) -> None:
    async with ledgers(own_redis.url, namespace()) as opens:
        ledger = await opens()
        at_first = await ledger.checkpoint("acme")
        await ledger._server._redis.config_set("maxmemory", "1")

        with pytest.raises(
            LedgerUnavailableError, match=r"its memory is full: writes fail until maxmemory \(1 bytes\)"
        ):
            await ledger.checkpoint("acme")
        await ledger._server._redis.config_set("maxmemory", "0")
        assert await ledger.checkpoint("acme") == at_first


async def test_process_with_other_timezone_is_refused(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        zone = ZoneInfo("America/New_York")
        ledger, other, newcomer = await opens([tenant(100)]), await opens(zone=zone), await opens(zone=zone)
        await other.checkpoint("acme")
        done = await spend(ledger, ask(60))

        for step in (
            other.reserve(ask(60)),
            other.wait_for_reservation(ask(60)),
            newcomer.checkpoint("acme"),
        ):
            with pytest.raises(
                LedgerSettingsError, match=r"'UTC'. Allowed: America/New_York, .*AGENTIC_ZONE"
            ):
                await step
        await ledger.checkpoint("acme")

        await other.restore("acme", await other.entries("acme"))
        assert await other.state_of(done) is ReservationState.SETTLED
        await spend(other, ask(40))
        with pytest.raises(LedgerSettingsError, match=r"'America/New_York'\. Allowed: UTC"):
            await ledger.reserve(ask(1))
        meta = LedgerKeys.of(ledger._tenants._namespace, "acme").meta
        await ledger._server._redis.hdel(meta, "zone")  # a ledger of an older release has none
        await spend(ledger, ask(0))
        with pytest.raises(LedgerSettingsError):
            await other.reserve(ask(0))


async def test_a_refused_connection_fails_at_once(own_redis: RealServer) -> None:
    own_redis.kill()
    async with ledgers(own_redis.url, namespace()) as opens:
        ledger = await opens()

        async with asyncio.timeout(1):
            with pytest.raises(LedgerUnavailableError):
                await ledger.reserve(ask(1))
            with pytest.raises(LedgerUnavailableError):
                await ledger.wait_for_reservation(ask(1))


async def test_broken_tenant_key_fails_single_caller(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        ledger = await opens()
        await reserved(ledger, ask(1))
        broken = LedgerKeys.of(ledger._tenants._namespace, "broken").shared[0]
        await ledger._server._redis.set(broken, "no ledger")

        async with asyncio.TaskGroup() as group:
            good = group.create_task(ledger.reserve(ask(1)))
            with pytest.raises(
                LedgerUnavailableError, match=r"WRONGTYPE.*begin with .*`agentic:\{`.*budget rebuild"
            ):
                await ledger.reserve(ask(1, tenant="broken"))

        assert isinstance(good.result(), Reservation)


async def test_restored_entry_needs_a_timestamp(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        ledger = await opens()

        with pytest.raises(ReservationRequestError, match="without a time"):
            await ledger.restore(
                "acme", [LedgerEntry(ask(1, at=None), ReservationState.SETTLED, Amount(1, 0))]
            )


def test_call_retention_cannot_exceed_counter_retention() -> None:
    with pytest.raises(ValueError, match="Allowed: more than 0, up to"):
        RedisLedger("redis://localhost", keep=timedelta(days=1), call_keep=timedelta(days=2))


async def test_closing_twice_is_harmless(redis_url: str) -> None:
    async with ledgers(redis_url, namespace()) as opens:
        ledger = await opens([tenant(100)])
        assert isinstance(await ledger.wait_for_reservation(ask(101)), Declined)

        await ledger.aclose()
        await ledger.aclose()
