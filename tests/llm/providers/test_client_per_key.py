"""A connection is made once a key, shared by its tenants, and closed when no tenant has the key any more."""

import asyncio

import pytest

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import Provider
from agentic_trading.llm.providers.keys import ClientPerKey
from agentic_trading.llm.providers.offline import ScriptedProvider


class Handed:
    """Keys that a test hands out and exchanges."""

    def __init__(self, **key_of: str) -> None:
        self.now = key_of

    async def key_of(self, tenant_id: str) -> str:
        if tenant_id not in self.now:
            raise ProviderError(FailureKind.AUTH_ERROR, "no key", sent=False)
        return self.now[tenant_id]


class Connected(ScriptedProvider):
    """A provider that knows its key, and whether it was closed."""

    def __init__(self, key: str) -> None:
        super().__init__([])
        self.key = key
        self.closed = 0

    async def aclose(self) -> None:
        self.closed += 1


@pytest.fixture
def made() -> list[Connected]:
    """Return what has been connected."""
    return []


def by_key(keys: Handed, made: list[Connected]) -> ClientPerKey[Provider]:
    """Return providers by key, which are noted as they are made."""

    def connect(key: str) -> Provider:
        made.append(Connected(key))
        return made[-1]

    return ClientPerKey(keys, connect)


async def used(pool: ClientPerKey[Provider], tenant: str) -> str:
    """Use the provider of a tenant once; returns whose key it had."""
    async with pool.lend(tenant) as provider:
        assert isinstance(provider, Connected)
        assert not provider.closed
        return provider.key


async def test_tenants_with_same_key_share_connection(made: list[Connected]) -> None:
    pool = by_key(Handed(a="k1", b="k1", c="k2"), made)

    assert [await used(pool, tenant) for tenant in "abca"] == ["k1", "k1", "k2", "k1"]
    assert [one.key for one in made] == ["k1", "k2"]


async def test_concurrent_calls_connect_once(made: list[Connected]) -> None:
    pool = by_key(Handed(a="k1"), made)

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(used(pool, "a"))

    assert len(made) == 1


async def test_key_change_closes_old_connection(made: list[Connected]) -> None:
    keys = Handed(a="k1")
    pool = by_key(keys, made)
    await used(pool, "a")

    keys.now["a"] = "k2"

    assert await used(pool, "a") == "k2"
    assert [one.closed for one in made] == [1, 0]


async def test_connection_stays_open_during_call(made: list[Connected]) -> None:
    keys = Handed(a="k1")
    pool = by_key(keys, made)

    async with pool.lend("a"):
        keys.now["a"] = "k2"
        await used(pool, "a")
        assert made[0].closed == 0

    assert made[0].closed == 1


async def test_shared_key_connection_stays_open(made: list[Connected]) -> None:
    keys = Handed(a="k1", b="k1")
    pool = by_key(keys, made)
    await used(pool, "a")
    await used(pool, "b")

    keys.now["a"] = "k2"
    await used(pool, "a")

    assert made[0].closed == 0
    assert await used(pool, "b") == "k1"


async def test_missing_key_opens_no_connection(made: list[Connected]) -> None:
    with pytest.raises(ProviderError):
        await used(by_key(Handed(), made), "a")

    assert made == []


async def test_close_closes_each_connection_once(made: list[Connected]) -> None:
    pool = by_key(Handed(a="k1", b="k2"), made)
    await used(pool, "a")
    await used(pool, "b")

    await pool.aclose()
    await pool.aclose()

    assert [one.closed for one in made] == [1, 1]
