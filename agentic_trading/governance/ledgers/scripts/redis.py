"""The server that keeps the ledger: it runs scripts, and reports which queued requests it wakes."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from hiredis import pack_command
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from agentic_trading.cancellation import OwnedTasks
from agentic_trading.clock import Clock
from agentic_trading.governance.errors import LedgerSettingsError, LedgerUnavailableError
from agentic_trading.governance.redis import sequence_script
from agentic_trading.redis import pool_of, unsafe_setting, within_time

_BUNDLES: Final = 6
"""While the answers of one are read, the server works on another."""
_BUNDLE: Final = 12
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

_Waiting = tuple[bytes, asyncio.Future[Sequence[Any]]]


class ScriptServer:
    """The server; whatever fails there is a `LedgerUnavailableError`."""

    def __init__(self, url: str) -> None:
        """Read the scripts; no connection is made before it is needed."""
        self._scripts = _scripts()
        self._pool: Any = pool_of(url, connections=12)  # it has hardly any types
        self._redis: Any = Redis.from_pool(self._pool)
        self._waiting: deque[_Waiting] = deque()
        self._sending = 0
        self._tasks = OwnedTasks()

    async def check(self) -> None:
        """Raise `LedgerSettingsError` for a server that may forget what it has acknowledged."""
        async with _reaching():
            try:
                unsafe = await unsafe_setting(self._redis)
            except ResponseError as e:
                raise LedgerSettingsError(
                    "CONFIG", str(e), "to let it be read, or to check it elsewhere"
                ) from e
        if unsafe is not None:
            raise LedgerSettingsError(*unsafe)

    async def run(self, name: str, keys: Sequence[str], facts: Sequence[Any]) -> Sequence[Any]:
        """Run a script; those run at once travel together, each with an answer of its own.

        Cancelled, it is not known whether it was run.
        """
        script = self._scripts[name]
        try:
            return await self._execute("EVALSHA", script.sha, keys, facts)
        except NoScriptError:  # the server has forgotten it
            return await self._execute("EVAL", script.source, keys, facts)

    async def _execute(
        self, command: str, script: str, keys: Sequence[str], facts: Sequence[Any]
    ) -> Sequence[Any]:
        packed = pack_command((command, script, len(keys), *keys, *facts))
        answer: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((packed, answer))
        if self._sending < _BUNDLES:
            self._sending += 1
            _ = self._tasks.start(self._send(), name="bundle")
        return await answer

    async def _send(self) -> None:
        """Send what is queued, bundle by bundle, until nothing is left; every caller gets an answer."""
        bundle: list[_Waiting] = []
        try:
            while self._waiting:
                bundle = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BUNDLE))]
                for (_, answer), found in zip(bundle, await self._answers(bundle), strict=True):
                    _hand_over(answer, found)
        finally:
            self._sending -= 1
            _refuse(bundle, _closed())

    async def _answers(self, bundle: Sequence[_Waiting]) -> Sequence[Any]:
        try:
            async with within_time():
                return await self._exchanged(bundle)
        except Exception as e:  # noqa: BLE001 - handed to every caller
            error = _unavailable(e)
        with suppress(RedisError, OSError):  # the others are as dead: do not try each
            await self._pool.disconnect(inuse_connections=False)
        if isinstance(error.__cause__, TimeoutError | RedisTimeoutError):
            # What was queued meanwhile need not wait as long, one bundle after the other.
            _refuse(self._waiting, error)
            self._waiting.clear()
        return [error] * len(bundle)

    async def _exchanged(self, bundle: Sequence[_Waiting]) -> Sequence[Any]:
        """Send a bundle and read its answers; a connection on which that fails is closed by the library."""
        connection = await self._pool.get_connection()
        try:
            await connection.send_packed_command([packed for packed, _ in bundle])
            return [await _answer(connection) for _ in bundle]
        finally:
            await self._pool.release(connection)

    async def pages(self, key: str) -> AsyncGenerator[list[tuple[bytes, bytes]]]:
        """Yield all of a hash, page by page, so that a large one blocks no other step; some of it perhaps twice."""
        cursor = -1
        while cursor:
            async with _reaching():
                cursor, page = await self._redis.hscan(key, max(cursor, 0), count=_PAGE)
            yield list(page.items())

    async def hashes(self, prefix: str, fields: Sequence[str]) -> AsyncGenerator[list[tuple[str, list[Any]]]]:
        """Yield these fields of all hashes whose key begins so, by the rest of the key; some of them perhaps twice.

        Goes over all keys of the server, page by page, so that it blocks no other step.
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
        """Yield what a hash has of these names, page by page."""
        for start in range(0, len(names), _PAGE):
            page = [name.encode() for name in names[start : start + _PAGE]]
            async with _reaching():
                found = await self._redis.hmget(key, page)
            yield [(name, value) for name, value in zip(page, found, strict=True) if value is not None]

    async def members(self, key: str, prefix: str) -> list[str]:
        """Return the members of an index that begin so, in their order."""
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
        """Yield which requests are woken, in the queues of all tenants; listen again after the server was away.

        A wake-up of none says that it listens; one of all in every queue that it begins now, perhaps again: wake-ups may
        have been missed.
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
        """Close the connections after the last answer; harmless twice. Cancelled, it fails what is still queued."""
        try:
            await self._tasks.aclose()
        finally:
            _refuse(self._waiting, _closed())
            self._waiting.clear()
            await self._redis.aclose()


def _woken(message: Any) -> tuple[str, str]:
    """Return the queue and the places that a message is about: none without a message, all where listening begins."""
    if message is None:
        return "", ""
    if message["type"] == "psubscribe":
        return "*", "*"
    return message["channel"].decode(), message["data"].decode()


def _literal(text: str) -> str:
    """Return a pattern for just this text."""
    return "".join(f"\\{char}" if char in "*?[]^\\" else char for char in text)


@asynccontextmanager
async def _reaching() -> AsyncGenerator[None]:
    try:
        async with within_time():
            yield
    except (RedisError, OSError) as e:
        raise LedgerUnavailableError(f"{type(e).__name__}: {e}") from e


def _hand_over(answer: asyncio.Future[Sequence[Any]], found: Any) -> None:
    """Hand the answer to its caller, unless that was cancelled."""
    if answer.done():
        return
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)


def _closed() -> LedgerUnavailableError:
    return LedgerUnavailableError("it was closed before the answer came")


def _refuse(waiting: Iterable[_Waiting], error: LedgerUnavailableError) -> None:
    for _, answer in waiting:
        _hand_over(answer, error)


async def _answer(connection: Any) -> Any:
    """Return the next answer, or the error that it is; the time for it is that of its bundle."""
    try:
        return await connection.read_response()
    except NoScriptError as e:
        return e
    except ResponseError as e:
        return _unavailable(e)


def _unavailable(e: Exception) -> LedgerUnavailableError:
    """Return the ledger's error for the server's."""
    why = f"{type(e).__name__}: {e}"
    if "WRONGTYPE" in why:
        why += (
            "; another program has written under one of its keys, which begin with its namespace and a brace (`agentic:{`): "
            "move that away, and book the logs by `agentic-trading budget rebuild`"
        )
    error = LedgerUnavailableError(why)
    error.__cause__ = e
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
        read = ((folder / f"{piece}.lua").read_text("utf-8") for piece in (*pieces, name))
        source = "\n".join((sequence_script(), *read))
        found[name] = _Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())
    return found
