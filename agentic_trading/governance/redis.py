"""Tenant state on a Redis server: keys, sequence checks, and running scripts.

Each step of a tenant's ledger and claims advances one sequence. A server that was set back to an older file,
or emptied, is behind the sequence that a process has seen. The first step that finds this closes ledger and
claims of the tenant for all processes, until a rebuild begins the next epoch.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

from hiredis import pack_command
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from agentic_trading.cancellation import OwnedTasks, run_shielded
from agentic_trading.governance.ledger import LedgerCheckpoint
from agentic_trading.governance.limiter import Deployment
from agentic_trading.redis import within_time

_BUNDLES: Final = 6
"""Bundles in flight. While the answers of one are read, the server works on another."""
_BUNDLE: Final = 12

REBUILDING: Final = b"a log that is being booked again"  # as in sequence.lua
"""The reason of a closed state that has not lost steps."""


def tag(namespace: str, tenant: str) -> str:
    """Return the prefix of all keys of a tenant: `agentic:{acme}`.

    The braces are the cluster's hash tag. Raises `ValueError` for a namespace with a brace, because that
    would become the tag.
    """
    name = tenant.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return _tagged(namespace, name or "%")


def limiter_keys(namespace: str, deployment: Deployment) -> list[str]:
    """Return the keys of a deployment in the order of the limiter's scripts.

    Raises as `tag` does.
    """
    prefix = _tagged(namespace, f"{deployment.provider}/{quote(deployment.model, safe='')}")
    return [f"{prefix}:{name}" for name in ("lane", "inside", "permits", "line", "places")]


def _tagged(namespace: str, name: str) -> str:
    if not namespace or "{" in namespace or "}" in namespace:
        raise ValueError(f"namespace {namespace!r} cannot begin a key. Use a non-empty text without braces")
    return f"{namespace}:{{{name}}}"


@dataclass(frozen=True, slots=True)
class LedgerKeys:
    """The keys of one tenant's ledger.

    `shared` are declared by every script, in their order.
    """

    shared: tuple[str, ...]
    meta: str
    queue: str
    counters: str
    index: str
    calls: str

    @classmethod
    def of(cls, namespace: str, tenant: str) -> Self:
        """Return the keys of a tenant."""
        prefix = f"{tag(namespace, tenant)}:ledger"
        names = (
            "meta",
            "limits",
            "counters",
            "ends",
            "leases",
            "line",
            "waiters",
            "index",
            "ended",
            "expired",
        )
        return cls(
            shared=tuple(f"{prefix}:{name}" for name in names),
            meta=f"{prefix}:meta",
            queue=f"{prefix}:line",
            counters=f"{prefix}:counters",
            index=f"{prefix}:index",
            calls=f"{prefix}:call:",
        )

    def with_calls(self, reservation_ids: Iterable[str]) -> tuple[str, ...]:
        """Return the shared keys, and those of these attempts."""
        return (*self.shared, *(self.calls + id_ for id_ in reservation_ids))


def sequence_script() -> str:
    """Return the common start of each script that takes a step. Reads a file."""
    return (files(__package__) / "sequence.lua").read_text("utf-8")


class ScriptReply(NamedTuple):
    """One answer of a script. `now_ms` is the server's time, `closed` the reason if it is closed.

    `own` is the sequence of the last step of this process.
    """

    word: bytes
    epoch: int
    epoch_id: bytes
    sequence: int
    own: int
    now_ms: int
    closed: bytes
    rest: Sequence[Any]

    @property
    def checkpoint(self) -> LedgerCheckpoint:
        """How far the state has progressed."""
        return LedgerCheckpoint(self.epoch, self.epoch_id.decode(), self.sequence)


class SequenceGuard:
    """The newest sequence of one tenant that a process has seen.

    The server must not be behind it.
    """

    def __init__(self) -> None:
        self.known = LedgerCheckpoint(0, "", 0)
        self.own = 0

    @property
    def known_facts(self) -> tuple[int, str, int, int]:
        """The first arguments of every script: known checkpoint, and sequence of the last own step."""
        return self.known.epoch, self.known.epoch_id, self.known.sequence, self.own

    def read(self, raw: Sequence[Any]) -> ScriptReply:
        """Parse an answer and note its checkpoint.

        Answers may arrive in another order than their steps.
        """
        word, epoch, epoch_id, sequence, own, now_ms, closed = raw[0].split(b" ", 6)
        numbers = int(sequence), int(own), int(now_ms)
        reply = ScriptReply(word, int(epoch), epoch_id, *numbers, closed, raw[1:])
        self._saw(reply)
        return reply

    def _saw(self, reply: ScriptReply) -> None:
        known, epoch = self.known, reply.epoch
        if epoch > known.epoch:
            self.known, self.own = reply.checkpoint, reply.own
        elif epoch == known.epoch and not self._is_behind(reply):
            self.own = max(self.own, reply.own)
            if reply.sequence > known.sequence:
                self.known = reply.checkpoint

    def _is_behind(self, reply: ScriptReply) -> bool:
        """Whether an answer comes from a server that has lost steps known here."""
        known = self.known
        return reply.epoch < known.epoch or (
            reply.epoch == known.epoch and reply.epoch_id.decode() != known.epoch_id
        )

    def require_at_least(self, checkpoint: LedgerCheckpoint) -> None:
        """Adopt a checkpoint that another process has seen, unless it is behind the known one."""
        known = self.known
        if checkpoint.epoch > known.epoch or (
            checkpoint.epoch == known.epoch
            and (checkpoint.epoch_id != known.epoch_id or checkpoint.sequence > known.sequence)
        ):
            if (checkpoint.epoch, checkpoint.epoch_id) != (known.epoch, known.epoch_id):
                self.own = 0
            self.known = checkpoint


@dataclass(frozen=True, slots=True)
class Script:
    """A script and its SHA-1, by which the server identifies it."""

    source: str
    sha: str

    @classmethod
    def of(cls, source: str) -> Self:
        """Return a script by its text."""
        return cls(source, sha1(source.encode(), usedforsecurity=False).hexdigest())


_Waiting = tuple[bytes, asyncio.Future[Any]]


class BundledScripts:
    """Runs scripts over the connections of `pool`.

    Scripts that run at the same time are sent together. `failed` converts an error of the client or the
    server to the caller's error. The owner of the pool closes it.
    """

    def __init__(self, pool: Any, failed: Callable[[Exception], Exception]) -> None:
        self._pool = pool
        self._failed = failed
        self._waiting: deque[_Waiting] = deque()
        self._sending = 0
        self._tasks = OwnedTasks()

    async def run(self, script: Script, keys: Sequence[str], facts: Sequence[Any]) -> Any:
        """Return the answer of a script.

        If cancelled, the script may have run. Later scripts run after it.
        """
        try:
            return await self._execute("EVALSHA", script.sha, keys, facts)
        except NoScriptError:  # the server has forgotten it
            return await self._execute("EVAL", script.source, keys, facts)

    async def aclose(self) -> None:
        """Wait for the last answer.

        Repeating is harmless. If cancelled, queued scripts fail.
        """
        try:
            await self._tasks.aclose()
        finally:
            self._refuse(self._waiting, self._closed())
            self._waiting.clear()

    async def _execute(self, command: str, script: str, keys: Sequence[str], facts: Sequence[Any]) -> Any:
        packed = pack_command((command, script, len(keys), *keys, *facts))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiting = packed, answer
        self._waiting.append(waiting)
        if self._sending < _BUNDLES:
            self._sending += 1
            _ = self._tasks.start(self._send(), name="bundle")
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:  # in flight: wait, because the next step could otherwise overtake it on another connection
                answer.add_done_callback(asyncio.Future.exception)  # no caller reads its error
                await run_shielded(asyncio.wait([answer]))
            raise

    async def _send(self) -> None:
        """Send queued scripts, bundle by bundle, until the queue is empty. Every caller gets an answer."""
        bundle: list[_Waiting] = []
        try:
            while self._waiting:
                bundle = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BUNDLE))]
                for (_, answer), found in zip(bundle, await self._answers(bundle), strict=True):
                    _hand_over(answer, found)
        finally:
            self._sending -= 1
            self._refuse(bundle, self._closed())

    async def _answers(self, bundle: Sequence[_Waiting]) -> Sequence[Any]:
        try:
            async with within_time():
                return await self._exchanged(bundle)
        except Exception as e:  # noqa: BLE001 - handed to every caller
            cause = e
        error = self._failed(cause)
        with suppress(RedisError, OSError):  # the others are as dead: do not try each
            await self._pool.disconnect(inuse_connections=False)
        if isinstance(cause, TimeoutError | RedisTimeoutError):
            # Queued scripts fail at once, because each bundle would otherwise wait for its own time-out.
            self._refuse(self._waiting, error)
            self._waiting.clear()
        return [error] * len(bundle)

    async def _exchanged(self, bundle: Sequence[_Waiting]) -> Sequence[Any]:
        """Send a bundle and read its answers. The library closes a connection on which this fails."""
        connection = await self._pool.get_connection()
        try:
            await connection.send_packed_command([packed for packed, _ in bundle])
            return [await self._answer(connection) for _ in bundle]
        finally:
            await self._pool.release(connection)

    async def _answer(self, connection: Any) -> Any:
        """Return the next answer or its error. The bundle's time limit applies."""
        try:
            return await connection.read_response()
        except NoScriptError as e:
            return e
        except ResponseError as e:
            return self._failed(e)

    def _closed(self) -> Exception:
        return self._failed(ConnectionError("it was closed before the answer came"))

    def _refuse(self, waiting: Iterable[_Waiting], error: Exception) -> None:
        for _, answer in waiting:
            _hand_over(answer, error)


def _hand_over(answer: asyncio.Future[Any], found: Any) -> None:
    if answer.done():
        return
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)
