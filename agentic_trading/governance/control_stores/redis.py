"""Controls and worker status on Redis."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Any, Final

from pydantic import ValidationError
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from agentic_trading.governance.control_stores.file import read_stored, stored
from agentic_trading.governance.controls_document import TenantControls
from agentic_trading.governance.errors import ControlsUnavailableError, ControlsUnreadableError
from agentic_trading.governance.redis import tag
from agentic_trading.governance.status_feed import BudgetStatus
from agentic_trading.llm.event import PLATFORM
from agentic_trading.redis import failure_text, pool_of, within_time

_KEPT_MS = 60_000
_TENANT_KEPT_MS = 40 * 24 * 3_600_000


class RedisStatusFeed:
    """Keeps the last statuses.

    Write errors are dropped, and unreadable statuses are left out. A worker that has published no status for
    a minute, by the server's clock, is left out. It is removed when another worker publishes. Create the feed
    outside of the event loop, because it reads its scripts.
    """

    def __init__(self, url: str, *, namespace: str = "agentic") -> None:
        self._namespace = namespace
        self._redis: Any = Redis.from_pool(pool_of(url))
        self._publish, self._read, self._enter = (
            self._redis.register_script(_script(name)) for name in ("publish", "read", "enter")
        )

    async def publish(self, status: BudgetStatus) -> None:
        """Publish `status`."""
        arguments: list[str | int] = [status.worker, status.model_dump_json(), _KEPT_MS]
        try:
            async with within_time():
                await self._publish(keys=self._keys(status.tenant), args=arguments)
                await self._enter(keys=[self._index], args=[status.tenant, _TENANT_KEPT_MS])
        except (RedisError, OSError):
            return

    async def read(self, tenant: str) -> list[BudgetStatus]:
        """Return the statuses of a tenant by worker."""
        try:
            async with within_time():
                worker_then_status = iter(await self._read(keys=self._keys(tenant), args=[_KEPT_MS]))
        except (RedisError, OSError):
            return []
        statuses = []
        for _, status in sorted(zip(worker_then_status, worker_then_status, strict=True)):
            try:
                statuses.append(BudgetStatus.model_validate_json(status))
            except ValidationError:
                continue
        return statuses

    async def tenants(self) -> list[str]:
        """Return the tenants with a status within the last 40 days."""
        try:
            async with within_time():
                found = await self._redis.zrange(self._index, 0, -1)
        except (RedisError, OSError):
            return []
        return sorted(tenant.decode("utf-8", "surrogatepass") for tenant in found)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    @property
    def _index(self) -> str:
        return f"{tag(self._namespace, PLATFORM)}:tenants"

    def _keys(self, tenant: str) -> tuple[str, str]:
        name = f"{tag(self._namespace, tenant)}:statuses"
        return name, f"{name}:at"


def _script(name: str) -> str:
    return (files(__package__) / "scripts" / f"{name}.lua").read_text("utf-8")


_FOREIGN: Final = -1


class RedisControlStore:
    """Controls in one hash per tenant, under the tenant's hash tag.

    Connecting and answering may take two seconds each. Written controls survive a crash of the server if it
    syncs its append-only file before it answers (`appendfsync always`). Create the store outside of the event
    loop, because it reads its script.
    """

    def __init__(self, url: str, *, namespace: str = "agentic") -> None:
        self._redis: Any = Redis.from_pool(pool_of(url))
        self._script = self._redis.register_script(
            (files(__package__) / "scripts" / "replace.lua").read_text("utf-8")
        )
        self._namespace = namespace

    async def read(self, tenant: str) -> TenantControls:
        """Return the content of the tenant's hash."""
        key = self._key(tenant)
        async with _reaching(key):
            fields = await self._redis.hgetall(key)
        if not fields:
            return TenantControls()
        controls = read_stored(fields.get(b"document", b""), key)
        if fields.get(b"version") != str(controls.version).encode():
            raise ControlsUnreadableError(key, "its version differs from the version in its document")
        return controls

    async def replace(self, tenant: str, controls: TenantControls) -> bool:
        """Replace the tenant's hash atomically, unless another writer has done so since."""
        key = self._key(tenant)
        async with _reaching(key):
            answer = await self._script(keys=[key], args=[controls.version, stored(controls)])
        if answer == _FOREIGN:
            raise ControlsUnreadableError(key, "it has no version")
        return bool(answer)

    async def now(self) -> datetime:
        """Return the server's time, because clocks of operators differ."""
        async with _reaching("its clock"):
            seconds, micros = await self._redis.time()
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=micros)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    def _key(self, tenant: str) -> str:
        return f"{tag(self._namespace, tenant)}:controls"


@asynccontextmanager
async def _reaching(key: str) -> AsyncGenerator[None]:
    try:
        async with within_time():
            yield
    except ResponseError as e:
        if str(e).startswith("WRONGTYPE"):
            raise ControlsUnreadableError(key, "it is not a hash") from e
        raise ControlsUnavailableError(f"{key} on the Redis of the ledger", str(e)) from e
    except (RedisError, OSError) as e:
        raise ControlsUnavailableError(f"{key} on the Redis of the ledger", failure_text(e)) from e
