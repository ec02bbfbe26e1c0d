"""One connection a key, for providers whose clients are made for a key."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from agentic_trading.llm.provider import Provider
from agentic_trading.llm.providers.keys import Keys

P = TypeVar("P", bound=Provider)


@dataclass(slots=True)
class _Line(Generic[P]):
    provider: P
    calls: int = 0
    is_retired: bool = False


class ClientPerKey(Generic[P]):
    """Lend the provider that was connected with a tenant's key.

    Tenants of the same key share one. When the last tenant of a key has got another, its provider is closed as soon
    as its last call has ended. `connect` runs in a thread, as it may read files; it is called once a key.
    """

    def __init__(self, keys: Keys, connect: Callable[[str], P]) -> None:
        self._keys = keys
        self._connect = connect
        self._lines: dict[str, _Line[P]] = {}
        self._key_of: dict[str, str] = {}
        self._connecting = asyncio.Lock()

    @asynccontextmanager
    async def lent(self, tenant_id: str) -> AsyncIterator[P]:
        """Lend the provider of a tenant for one call; raises what `Keys.key_of` raises."""
        key = await self._keys.key_of(tenant_id)
        line = self._lines.get(key) or await self._connected(key)
        line.calls += 1
        try:
            await self._note(tenant_id, key)
            yield line.provider
        finally:
            line.calls -= 1
            await _close_if_over(line)

    async def aclose(self) -> None:
        """Close every provider, whatever it is doing; harmless twice."""
        lines, self._lines = list(self._lines.values()), {}
        self._key_of.clear()
        for line in lines:
            await line.provider.aclose()

    async def _connected(self, key: str) -> _Line[P]:
        async with self._connecting:
            if key not in self._lines:
                self._lines[key] = _Line(await asyncio.to_thread(self._connect, key))
            return self._lines[key]

    async def _note(self, tenant_id: str, key: str) -> None:
        before = self._key_of.get(tenant_id)
        if before == key:
            return
        self._key_of[tenant_id] = key
        if before is not None and before not in self._key_of.values():
            line = self._lines.pop(before)
            line.is_retired = True
            await _close_if_over(line)


async def _close_if_over(line: _Line[P]) -> None:
    if line.is_retired and not line.calls:
        await line.provider.aclose()
