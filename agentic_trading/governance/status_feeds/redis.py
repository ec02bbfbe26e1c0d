"""Statuses on a Redis server, where every worker of a fleet tells its own; each is gone a minute after its last one."""

from importlib.resources import files
from typing import Any

from pydantic import ValidationError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from agentic_trading.governance.redis import pool_of, tag, within_time
from agentic_trading.governance.status_feed import BudgetStatus

_KEPT_MS = 60_000


class RedisStatusFeed:
    """Keeps what was told last; what cannot be told now is not told, and what cannot be read is not there.

    A worker that has told nothing for a minute, by the server's clock, is left out, and forgotten by the next one that
    tells. Reads files when it is made: do not make it on the event loop.
    """

    def __init__(self, url: str, *, namespace: str = "agentic") -> None:
        self._namespace = namespace
        self._redis: Any = Redis.from_pool(pool_of(url))
        self._tell, self._told = (self._redis.register_script(_script(name)) for name in ("tell", "read"))

    async def publish(self, status: BudgetStatus) -> None:
        """Tell `status`."""
        facts: list[str | int] = [status.worker, status.model_dump_json(), _KEPT_MS]
        try:
            async with within_time():
                await self._tell(keys=self._keys(status.tenant), args=facts)
        except (RedisError, OSError):
            return

    async def read(self, tenant: str) -> list[BudgetStatus]:
        """Return what was told of a tenant, by worker."""
        try:
            async with within_time():
                told = iter(await self._told(keys=self._keys(tenant), args=[_KEPT_MS]))
        except (RedisError, OSError):
            return []
        found = []
        for _, status in sorted(zip(told, told, strict=True)):
            try:
                found.append(BudgetStatus.model_validate_json(status))
            except ValidationError:
                continue
        return found

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    def _keys(self, tenant: str) -> tuple[str, str]:
        name = f"{tag(self._namespace, tenant)}:statuses"
        return name, f"{name}:at"


def _script(name: str) -> str:
    return (files(__package__) / "scripts" / f"{name}.lua").read_text("utf-8")
