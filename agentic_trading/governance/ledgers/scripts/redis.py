"""The server of the ledger: it runs scripts, and reports which queued requests it wakes."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from agentic_trading.clock import Clock
from agentic_trading.governance.errors import LedgerSettingsError, LedgerUnavailableError
from agentic_trading.governance.redis import BundledScripts, Script, sequence_script
from agentic_trading.redis import failure_text, is_refused, pool_of, unsafe_setting, within_time

_PAGE: Final = 250
_SCANNED: Final = 1000
_LISTEN_S: Final = 1.0

_PIECES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    "reserve": ("ledger", "counters", "queue"),
    "dispatch": ("ledger",),
    "end": ("ledger", "counters", "queue", "calls"),
    "leave": ("ledger", "queue"),
    "due": ("ledger",),
    "carried": ("ledger",),
    "acknowledge": ("ledger",),
    "expire": ("ledger", "counters", "queue", "calls"),
    "forget": ("ledger", "counters", "queue"),
    "apply_limits": ("ledger", "queue"),
    "count": ("ledger",),
    "look": ("ledger",),
    "waiting": ("ledger", "queue"),
    "fence": ("ledger",),
    "rebuild": ("ledger", "counters", "queue", "calls"),
    "book": ("ledger", "counters", "queue", "calls"),
    "open": ("ledger", "queue"),
})  # fmt: skip


class ScriptServer:
    """The connection to the server. Every failure is a `LedgerUnavailableError`."""

    def __init__(self, url: str) -> None:
        """Reads the scripts. Connects on first use."""
        self._scripts = _scripts()
        pool: Any = pool_of(url, connections=12)  # it has hardly any types
        self._redis: Any = Redis.from_pool(pool)
        self._bundles = BundledScripts(pool, _unavailable)

    async def check(self) -> None:
        """Raise `LedgerSettingsError` if the server may lose acknowledged writes."""
        async with _reaching():
            try:
                unsafe = await unsafe_setting(self._redis)
            except ResponseError as e:
                raise LedgerSettingsError(
                    "CONFIG", str(e), "to let it be read, or to check it elsewhere"
                ) from e
        if unsafe is not None:
            raise LedgerSettingsError(*unsafe)

    async def require_room(self) -> None:
        """Raise `LedgerUnavailableError` if the server's memory is full.

        Passes if it does not report its memory.
        """
        memory: Mapping[str, int] = {}
        async with _reaching():
            # A server that does not allow INFO is trusted, because this check is only an early warning.
            with suppress(ResponseError):
                memory = await self._redis.info("memory")
        most, used = memory.get("maxmemory", 0), memory.get("used_memory", 0)
        # A full server still answers reads, so that a worker would report ready and then fail each
        # reservation.
        if 0 < most < used - memory.get("mem_not_counted_for_evict", 0):
            why = f"its memory is full: writes fail until maxmemory ({most} bytes) is raised"
            raise LedgerUnavailableError(why, is_sent=False)

    async def run(self, name: str, keys: Sequence[str], facts: Sequence[Any]) -> Sequence[Any]:
        """Run a script.

        Scripts that run at the same time are sent together, and each gets its own answer. If cancelled, the
        script may have run. Later scripts run after it.
        """
        answer: Sequence[Any] = await self._bundles.run(self._scripts[name], keys, facts)
        return answer

    async def pages(self, key: str) -> AsyncGenerator[list[tuple[bytes, bytes]]]:
        """Yield a whole hash, page by page, so that it blocks no other step.

        Entries may repeat.
        """
        cursor = -1
        while cursor:
            async with _reaching():
                cursor, page = await self._redis.hscan(key, max(cursor, 0), count=_PAGE)
            yield list(page.items())

    async def hashes(self, prefix: str, fields: Sequence[str]) -> AsyncGenerator[list[tuple[str, list[Any]]]]:
        """Yield fields of all hashes whose key starts with `prefix`, by the rest of the key.

        They may repeat. Scans all keys of the server, page by page, so that it blocks no other step.
        """
        cursor = -1
        while cursor:
            async with _reaching():
                cursor, keys = await self._redis.scan(
                    max(cursor, 0), match=_literal(prefix) + "*", count=_SCANNED
                )
                pipeline = self._redis.pipeline(transaction=False)
                for key in keys:
                    pipeline.hmget(key, fields)
                found = await pipeline.execute()
            names = (key.decode().removeprefix(prefix) for key in keys)
            yield list(zip(names, found, strict=True))

    async def values(self, key: str, names: Sequence[str]) -> AsyncGenerator[list[tuple[bytes, bytes]]]:
        """Yield the named entries of a hash, page by page."""
        for start in range(0, len(names), _PAGE):
            page = [name.encode() for name in names[start : start + _PAGE]]
            async with _reaching():
                found = await self._redis.hmget(key, page)
            yield [(name, value) for name, value in zip(page, found, strict=True) if value is not None]

    async def members(self, key: str, prefix: str) -> list[str]:
        """Return the members of an index with this prefix, in order."""
        found: list[str] = []
        after, end = f"[{prefix}".encode(), f"({prefix}".encode() + b"\xff"
        while True:
            async with _reaching():
                page = await self._redis.zrangebylex(key, after, end, start=0, num=_PAGE)
            found += [member.decode() for member in page]
            if len(page) < _PAGE:
                return found
            after = b"(" + page[-1]

    async def wake_ups(self, namespace: str, clock: Clock) -> AsyncGenerator[tuple[str, str]]:
        """Yield wake-ups of the queues of all tenants.

        Reconnects after the server was away. An empty wake-up means that it is listening. A wake-up of
        everything means that listening has just begun, so earlier wake-ups may have been missed.
        """
        pattern = _literal(namespace) + ":{*}:ledger:line"
        while True:
            with suppress(RedisError, OSError):
                async with self._redis.pubsub() as listener:
                    async with within_time():
                        await listener.psubscribe(pattern)
                    while True:
                        async with within_time():  # it may have to connect again
                            message = await listener.get_message(timeout=_LISTEN_S)
                        yield _woken(message)
            await clock.sleep(_LISTEN_S)

    async def aclose(self) -> None:
        """Close the connections after the last answer. Repeating is harmless.

        If cancelled, queued scripts fail.
        """
        try:
            await self._bundles.aclose()
        finally:
            await self._redis.aclose()


def _woken(message: Any) -> tuple[str, str]:
    """Return the queue and the places of a message."""
    if message is None:
        return "", ""
    if message["type"] == "psubscribe":
        return "*", "*"
    return message["channel"].decode(), message["data"].decode()


def _literal(text: str) -> str:
    """Escape a text for a glob pattern."""
    return "".join(f"\\{char}" if char in "*?[]^\\" else char for char in text)


@asynccontextmanager
async def _reaching() -> AsyncGenerator[None]:
    try:
        async with within_time():
            yield
    except (RedisError, OSError) as e:
        raise LedgerUnavailableError(failure_text(e), is_sent=not is_refused(e)) from e


def _unavailable(e: Exception) -> LedgerUnavailableError:
    """Return the ledger's error for an error of the server."""
    why = failure_text(e)
    if "WRONGTYPE" in why:
        why += (
            ". Another program has written to one of its keys, which begin with its namespace and a brace "
            "(`agentic:{`). Move that key away, then run `agentic-trading budget rebuild`"
        )
    error = LedgerUnavailableError(why, is_sent=not is_refused(e))
    error.__cause__ = e
    return error


def _scripts() -> dict[str, Script]:
    """Return all scripts by name. Reads files."""
    folder = files(__package__)
    found = {}
    for name, pieces in _PIECES.items():
        read = ((folder / f"{piece}.lua").read_text("utf-8") for piece in (*pieces, name))
        source = "\n".join((sequence_script(), *read))
        found[name] = Script.of(source)
    return found
