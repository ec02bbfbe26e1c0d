"""The server that keeps the ledger: runs its scripts, and says who of those that wait is called."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from agentic_trading.clock import Clock
from agentic_trading.governance.errors import LedgerSettingsError, LedgerUnavailableError
from agentic_trading.governance.ledgers.tasks import Tasks

CONNECT_S: Final = 2.0
ANSWER_S: Final = 2.0
SAFE: Final[Mapping[str, str]] = MappingProxyType({
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
})
"""The settings with which a server keeps what it has acknowledged."""

_CONNECTIONS: Final = 8
_BUNDLES: Final = 2
_BUNDLE: Final = 64
_PAGE: Final = 250
_LISTEN_S: Final = 1.0

_PIECES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    "reserve": ("ledger", "counters", "line"),
    "dispatch": ("ledger",),
    "end": ("ledger", "counters", "line", "calls"),
    "leave": ("ledger", "line"),
    "due": ("ledger",),
    "expire": ("ledger", "counters", "line", "calls"),
    "forget": ("ledger", "counters", "line"),
    "adopt": ("ledger", "line"),
    "count": ("ledger",),
    "look": ("ledger",),
    "waiting": ("ledger", "line"),
    "shut": ("ledger",),
    "rebuild": ("ledger", "counters", "line", "calls"),
    "book": ("ledger", "counters", "line", "calls"),
    "open": ("ledger", "line"),
})  # fmt: skip

_Asked = tuple[list[Any], asyncio.Future[Sequence[Any]]]


class ScriptServer:
    """The server: what it cannot do, for whatever reason, is a `LedgerUnavailableError`."""

    def __init__(self, url: str) -> None:
        """Read the scripts; no connection is made before it is needed."""
        self._scripts = _scripts()
        self._pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=ANSWER_S,
            socket_connect_timeout=CONNECT_S,
            socket_timeout=ANSWER_S,
            retry=Retry(NoBackoff(), 0),
            driver_info=None,  # it would be read from disk for each connection, on the loop
        )
        self._redis: Any = Redis.from_pool(self._pool)
        self._asked: deque[_Asked] = deque()
        self._sending = 0
        self._tasks = Tasks()

    async def check(self) -> None:
        """Raise `LedgerSettingsError` for a server that may forget what it has acknowledged."""
        with _reaching():
            try:
                found = await self._redis.config_get(*SAFE)
            except ResponseError as e:
                raise LedgerSettingsError(
                    "CONFIG", str(e), "to let it be read, or to check it elsewhere"
                ) from e
        for setting, safe in SAFE.items():
            value = found.get(setting) or found.get(setting.encode()) or b""
            value = value.decode() if isinstance(value, bytes) else value
            if value != safe:
                raise LedgerSettingsError(setting, value, safe)

    async def run(self, name: str, keys: Sequence[str], facts: Sequence[Any]) -> Sequence[Any]:
        """Run a script; those asked for at once travel together, each with an answer of its own.

        Who is cancelled does not know whether it was run.
        """
        script = self._scripts[name]
        try:
            return await self._ask("EVALSHA", script.sha, keys, facts)
        except NoScriptError:  # the server has forgotten it
            return await self._ask("EVAL", script.source, keys, facts)

    async def _ask(
        self, command: str, script: str, keys: Sequence[str], facts: Sequence[Any]
    ) -> Sequence[Any]:
        words = (command, script, len(keys), *keys, *facts)
        answer: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()
        self._asked.append(([word.encode() if isinstance(word, str) else word for word in words], answer))
        if self._sending < _BUNDLES:
            self._sending += 1
            _ = await self._tasks.start(self._send(), name="bundle")
        return await answer

    async def _send(self) -> None:
        """Send what was asked for, bundle by bundle, until nothing is left."""
        try:
            while self._asked:
                bundle = [self._asked.popleft() for _ in range(min(len(self._asked), _BUNDLE))]
                for (_, answer), found in zip(bundle, await self._answers(bundle), strict=True):
                    if answer.done():  # whoever asked was cancelled
                        continue
                    if isinstance(found, Exception):
                        answer.set_exception(found)
                    else:
                        answer.set_result(found)
        finally:
            self._sending -= 1

    async def _answers(self, bundle: Sequence[_Asked]) -> Sequence[Any]:
        pipeline = self._redis.pipeline(transaction=False)
        for words, _ in bundle:
            pipeline.execute_command(*words)
        try:
            found: Sequence[Any] = await pipeline.execute(raise_on_error=False)
        except Exception as e:  # noqa: BLE001 - handed to all who asked
            with suppress(RedisError, OSError):
                await self._pool.disconnect(
                    inuse_connections=False
                )  # the others are as dead: do not try each
            return [_unavailable(e)] * len(bundle)
        return [one if isinstance(one, NoScriptError) else _unavailable(one) for one in found]

    async def pages(self, key: str) -> AsyncGenerator[list[tuple[bytes, bytes]]]:
        """Yield all of a hash, page by page, so that a large one keeps nobody waiting; some of it perhaps twice."""
        cursor = -1
        while cursor:
            with _reaching():
                cursor, page = await self._redis.hscan(key, max(cursor, 0), count=_PAGE)
            yield list(page.items())

    async def values(self, key: str, names: Sequence[str]) -> AsyncGenerator[list[tuple[bytes, bytes]]]:
        """Yield what a hash has of these names, page by page."""
        for start in range(0, len(names), _PAGE):
            page = [name.encode() for name in names[start : start + _PAGE]]
            with _reaching():
                found = await self._redis.hmget(key, page)
            yield [(name, value) for name, value in zip(page, found, strict=True) if value is not None]

    async def members(self, key: str, prefix: str) -> list[str]:
        """Return the members of an index that begin so, in their order."""
        found: list[str] = []
        after, end = f"[{prefix}".encode(), f"({prefix}".encode() + b"\xff"
        while True:
            with _reaching():
                page = await self._redis.zrangebylex(key, after, end, start=0, num=_PAGE)
            found += [member.decode() for member in page]
            if len(page) < _PAGE:
                return found
            after = b"(" + page[-1]

    async def calls(self, namespace: str, clock: Clock) -> AsyncGenerator[tuple[str, str]]:
        """Yield who is called, in the lines of all tenants; listen again after the server was away.

        A call for nobody says that somebody listens.
        """
        pattern = _literal(namespace) + ":{*}:ledger:line"
        while True:
            with suppress(RedisError, OSError):
                async with self._redis.pubsub() as listener:
                    await listener.psubscribe(pattern)
                    while True:
                        message = await listener.get_message(timeout=_LISTEN_S)
                        if message is None or message["type"] == "psubscribe":
                            yield "", ""
                        else:
                            yield message["channel"].decode(), message["data"].decode()
            await clock.sleep(_LISTEN_S)

    async def aclose(self) -> None:
        """Close the connections after the last answer; harmless twice."""
        await self._tasks.aclose()
        await self._redis.aclose()


def _literal(text: str) -> str:
    """Return a pattern for just this text."""
    return "".join(f"\\{char}" if char in "*?[]^\\" else char for char in text)


@contextmanager
def _reaching() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as e:
        raise LedgerUnavailableError(f"{type(e).__name__}: {e}") from e


def _unavailable(found: Any) -> Any:
    """Return an answer, or the ledger's error for the server's."""
    if not isinstance(found, RedisError | OSError):
        return found
    error = LedgerUnavailableError(f"{type(found).__name__}: {found}")
    error.__cause__ = found
    return error


@dataclass(frozen=True, slots=True)
class _Script:
    """What a server runs in one piece, and the SHA-1 by which it knows it."""

    source: str
    sha: str


def _scripts() -> dict[str, _Script]:
    """Return all of them by name; reads files."""
    folder = files(__package__)
    found = {}
    for name, pieces in _PIECES.items():
        source = "\n".join((folder / f"{piece}.lua").read_text("utf-8") for piece in (*pieces, name))
        found[name] = _Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())
    return found
