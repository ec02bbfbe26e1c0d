"""Claims of several processes on a server, and of a fleet there."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any

from redis.asyncio import Redis

from agentic_trading.clock import Clock
from agentic_trading.worker.claim import Claim, ClaimKey, ClaimStore, Spell
from agentic_trading.worker.claims.redis import RedisClaimStore
from tests.gateway import START
from tests.redis_server import namespace
from tests.worker.test_crashes import SharedClaims
from tests.worker.ticking import Wall

KEY = ClaimKey("acme", "e-1")


class Server:
    """Claims of several processes in one namespace of a server."""

    def __init__(self, url: str, opened: AsyncExitStack) -> None:
        self.url, self.namespace, self._opened = url, namespace(), opened

    async def process(
        self, name: str = "", clock: Clock | None = None, *, log_id: str | None = None
    ) -> RedisClaimStore:
        """Begin a process; its log has an id of its name if none is given."""
        make = partial(
            RedisClaimStore,
            self.url,
            name=name,
            log_id=name if log_id is None else log_id,
            host=f"host-of-{log_id}",
            namespace=self.namespace,
            clock=clock,
        )
        store = await asyncio.to_thread(make)
        self._opened.push_async_callback(store.aclose)
        await store.begin()
        return store

    async def heard(self, tenant: str) -> None:
        """Wait until a lease has been renewed."""
        async with asyncio.timeout(5):
            while not await self.leases_of(tenant):  # noqa: ASYNC110 - the server is asked
                await asyncio.sleep(0.01)

    async def leases_of(self, tenant: str) -> int:
        """Return how many leases were begun or renewed since `end_leases`."""
        async with Redis.from_url(self.url) as client:
            count: int = await client.zcount(f"{self.namespace}:{{{tenant}}}:owners", 2, "+inf")
            return count

    @property
    def name_keys(self) -> str:
        """The pattern of the keys of taken names."""
        return f"{self.namespace}:worker:*"

    async def forget_names(self) -> None:
        """Let the leases of all names have ended."""
        async with Redis.from_url(self.url) as client:
            await client.delete(*await client.keys(self.name_keys))

    async def end_leases(self) -> None:
        """Let all leases of the tenants of these tests have ended, and all claims have been taken before that."""
        async with Redis.from_url(self.url) as client:
            for tenant in ("acme", "default"):
                for key in ("owners", "open"):
                    name = f"{self.namespace}:{{{tenant}}}:{key}"
                    members: Any = await client.zrange(name, 0, -1)
                    if members:
                        await client.zadd(name, dict.fromkeys(members, 1))


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
