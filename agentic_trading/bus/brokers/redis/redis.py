"""The connection to a Redis Streams server: its settings, and one script for each step."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from zlib import crc32

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from agentic_trading.bus import topic as topic_api
from agentic_trading.bus.errors import BusAddressError, BusSettingsError, BusUnavailableError, TopicSetupError
from agentic_trading.redis import ANSWER_S, failure_text, pool_of, unsafe_setting

SCHEMES: Final = frozenset({"redis", "rediss", "unix"})


@dataclass(frozen=True, slots=True)
class RedisBusSettings:
    """The settings of a broker on Redis.

    Times are in seconds. The repr does not show `url`.

    Attributes:
        url: `redis://HOST:PORT/DB`, `rediss://…` for TLS, or `unix://PATH`. `USER:PASSWORD@` may precede the
            host.
        namespace: The prefix of the bus's keys, without braces.
        ca_file: The authorities for the server's certificate. The default is the system's.
        partitions: The number of partitions that each topic was created with.
        max_message_bytes: The size limit of a message value, on a topic whose `room` is 1.
        max_backlog: The number of messages that a partition may keep.
        publish_s: How long publishing may take.
        lease_s: How long a reader counts as alive after its last renewal.
        drain_s: How long deliveries in flight may take when their partition moves to another reader.
        ack_every_s: The interval in which acknowledged messages are finished on the server.
        buffer: The number of unfinished messages of a topic at which fetching pauses.

    Raises:
        BusAddressError: If `url` is not a Redis URL.
        ValueError: If another setting is out of range.

    """

    url: str = field(repr=False)
    namespace: str = "agentic"
    ca_file: Path | None = None
    partitions: int = 16
    max_message_bytes: int = topic_api.MAX_MESSAGE_BYTES
    max_backlog: int = 10_000
    publish_s: float = 10.0
    lease_s: float = 15.0
    drain_s: float = 10.0
    ack_every_s: float = 0.05
    buffer: int = 256

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            raise BusAddressError(self.url)
        if not self.namespace or "{" in self.namespace or "}" in self.namespace:
            raise ValueError(f"namespace is {self.namespace!r}. Allowed: text without braces.")
        for name in ("partitions", "max_message_bytes", "max_backlog", "buffer"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}. Allowed: 1 or more.")
        for name in ("publish_s", "lease_s", "drain_s", "ack_every_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}. Allowed: more than 0.")

    @property
    def server(self) -> str:
        """The server's address, without user name and password."""
        return self.url.rpartition("://")[2].rpartition("@")[2]

    def keys_of(self, topic: str) -> "TopicKeys":
        """Return the Redis keys of a topic."""
        return TopicKeys(f"{{{self.namespace}:bus}}:{topic}", self.partitions)


def redis_settings_of(url: str, **settings: Any) -> RedisBusSettings:
    """Return the settings of the bus at a Redis URL. Raises `BusAddressError` for any other URL."""
    return RedisBusSettings(url, **settings)


@dataclass(frozen=True, slots=True)
class TopicKeys:
    """The Redis keys of a topic.

    All keys of a bus are in one slot of a cluster. They have other prefixes than the keys of ledgers and
    claims.
    """

    prefix: str
    partitions: int

    @property
    def meta(self) -> str:
        """The hash with the settings that the topic was created with."""
        return f"{self.prefix}:meta"

    def stream(self, partition: int) -> str:
        """The stream of a partition."""
        return f"{self.prefix}:{partition}"

    def partition_of(self, key: bytes) -> int:
        """Return the partition for the messages of a key."""
        return crc32(key) % self.partitions

    def reply_stream(self, address: bytes) -> bytes:
        """The stream of the replies to an address."""
        return f"{self.prefix}:to:".encode() + address

    def group(self, group: str) -> tuple[str, str, str]:
        """The keys of a group: its readers, the owner of each partition, and the token of each partition."""
        prefix = f"{self.prefix}:group:{group}"
        return f"{prefix}:readers", f"{prefix}:owners", f"{prefix}:tokens"


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES or parts.query or parts.fragment:
            return False
        if parts.scheme == "unix":
            return bool(parts.path)
        return bool(parts.hostname) and parts.port != 0 and (parts.path.lstrip("/") or "0").isdecimal()
    except ValueError:  # the port is not a number
        return False


LEAST_VERSION: Final = 7
"""The first version that numbers the messages of a stream automatically (`0-*`)."""

CONNECTIONS: Final = 64
"""The size of the connection pool. Each reader occupies a connection while it waits."""

Entry = tuple[bytes, Mapping[bytes, bytes]]


class StreamServer:
    """The Redis server of a bus.

    All its failures become `BusUnavailableError`. It connects when needed.
    """

    def __init__(self, settings: RedisBusSettings) -> None:
        self._server = settings.server
        ca_file = str(settings.ca_file) if settings.ca_file is not None else ""
        self._pool: Any = pool_of(settings.url, connections=CONNECTIONS, ca_file=ca_file)
        self._redis: Any = Redis.from_pool(self._pool)
        self._scripts: Mapping[str, _Script] = {}
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Check the server's version and settings, once.

        Raises `BusSettingsError` and `BusUnavailableError`.
        """
        async with self._opening:
            if not self._scripts:
                await self._check()
                self._scripts = await asyncio.to_thread(_scripts)

    async def _check(self) -> None:
        async with self._reaching("looking at the server's settings"):
            try:
                version = str((await self._redis.info("server"))["redis_version"])
                unsafe = await unsafe_setting(self._redis)
            except ResponseError as e:
                allowed = "a user that may run INFO and CONFIG GET"
                raise BusSettingsError("CONFIG", str(e), allowed) from e
        if int(version.partition(".")[0]) < LEAST_VERSION:
            raise BusSettingsError("redis_version", version, f"{LEAST_VERSION}.0 or newer")
        if unsafe is not None:
            raise BusSettingsError(*unsafe)

    async def run(
        self,
        name: str,
        keys: Sequence[str | bytes],
        given: Sequence[Any],
        *,
        doing: str,
        within_s: float = ANSWER_S,
    ) -> Any:
        """Run a script. If the answer does not arrive in time, the script may have run or not."""
        async with self._reaching(doing, within_s):
            script = self._scripts[name]
            try:
                return await self._redis.evalsha(script.sha, len(keys), *keys, *given)
            except NoScriptError:  # a restarted server has no scripts until they are sent to it
                return await self._redis.eval(script.source, len(keys), *keys, *given)

    async def read(self, after: Mapping[Any, str], *, most: int, wait_s: float) -> dict[bytes, list[Entry]]:
        """Wait up to `wait_s` for messages after these ids, and return them by stream."""
        async with self._reaching("waiting for messages", wait_s + ANSWER_S):
            found = await self._redis.xread(dict(after), count=most, block=max(1, round(1000 * wait_s)))
        return dict(found or ())

    async def last_ids(self, streams: Sequence[str | bytes]) -> list[str]:
        """Return the id of the last message of each stream, or `0-0` for an empty stream."""
        pipeline = self._redis.pipeline(transaction=False)
        for stream in streams:
            pipeline.xrevrange(stream, count=1)
        async with self._reaching("asking for the ends of streams"):
            found = await pipeline.execute()
        return [last[0][0].decode() if last else "0-0" for last in found]

    async def page(self, stream: str, after: str, last: str, *, most: int) -> list[Entry]:
        """Return the next messages of a stream after `after`, up to `last`."""
        async with self._reaching("reading"):
            found: list[Entry] = await self._redis.xrange(stream, f"({after}", last, count=most)
        return found

    async def keep(self, key: str | bytes, seconds: int) -> None:
        """Let a stream of replies expire after `seconds` from now."""
        async with self._reaching("keeping a stream of replies"):
            await self._redis.expire(key, seconds)

    async def partitions(self, topics: Sequence[TopicKeys]) -> list[int | None]:
        """Return the number of partitions of each topic, or None for a topic that does not exist."""
        pipeline = self._redis.pipeline(transaction=False)
        for topic in topics:
            pipeline.hget(topic.meta, "partitions")
        async with self._reaching("asking for topics"):
            return [None if found is None else int(found) for found in await pipeline.execute()]

    async def make(self, topic: TopicKeys) -> bool:
        """Create a topic. Return False if it exists already."""
        async with self._reaching("making topics"):
            return bool(await self._redis.hsetnx(topic.meta, "partitions", topic.partitions))

    async def groups(self, streams: Sequence[str]) -> list[list[Mapping[str, Any]]]:
        """Return the server's information on the groups of each stream, empty for a missing stream."""
        pipeline = self._redis.pipeline(transaction=False)
        for stream in streams:
            pipeline.xinfo_groups(stream)
        async with self._reaching("asking for groups"):
            found = await pipeline.execute(raise_on_error=False)
            for each in found:
                if isinstance(each, Exception) and "no such key" not in str(each):
                    raise each
        return [[] if isinstance(each, Exception) else each for each in found]

    async def sizes(self, streams: Sequence[str]) -> list[int]:
        """Return the number of messages in each stream."""
        pipeline = self._redis.pipeline(transaction=False)
        for stream in streams:
            pipeline.xlen(stream)
        async with self._reaching("asking for sizes"):
            return list(await pipeline.execute())

    async def trim(self, firsts: Mapping[str, str]) -> None:
        """Delete the messages before an id in each stream."""
        pipeline = self._redis.pipeline(transaction=False)
        for stream, first in firsts.items():
            pipeline.xtrim(stream, minid=first, approximate=False)
        async with self._reaching("deleting messages"):
            await pipeline.execute()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    @asynccontextmanager
    async def _reaching(self, doing: str, within_s: float = ANSWER_S) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(within_s):
                yield
        except TimeoutError as e:
            await self._drop_idle()
            raise BusUnavailableError(self._server, f"{doing} took too long") from e
        except (RedisError, OSError) as e:
            if not isinstance(e, ResponseError):
                await self._drop_idle()
            why = failure_text(e).replace(f" at {self._server}", "", 1)  # the error names the server anyway
            raise BusUnavailableError(self._server, f"{doing} failed: {why}") from e

    async def _drop_idle(self) -> None:
        """Close the idle connections, because after an outage each of them would fail once more."""
        with suppress(RedisError, OSError):
            async with asyncio.timeout(ANSWER_S):
                await self._pool.disconnect(inuse_connections=False)


class RedisTopics:
    """The topics of a Redis bus.

    Each method raises `BusUnavailableError` if the server is unreachable.
    """

    def __init__(self, settings: RedisBusSettings) -> None:
        self._settings = settings

    async def create(self, topics: Sequence[topic_api.Topic[Any]]) -> list[str]:
        """Create the missing topics, and return their names.

        `settings.partitions` is fixed from then on. Raises `BusSettingsError` if the server may lose
        acknowledged messages.
        """
        async with self._opened() as server:
            await server.open()
            return [topic.name for topic in topics if await server.make(self._settings.keys_of(topic.name))]

    async def check(self, topics: Sequence[topic_api.Topic[Any]]) -> list[topic_api.TopicProblem]:
        """Return the problems of the server and of its topics."""
        async with self._opened() as server:
            problems = []
            try:
                await server.open()
            except BusSettingsError as e:
                problems.append(topic_api.TopicProblem("-", e.setting, e.found, e.allowed))
            made = await server.partitions([self._settings.keys_of(topic.name) for topic in topics])
            for topic, partitions in zip(topics, made, strict=True):
                may_fill = topic.name != topic_api.REPLIES.name and topic.newest is None
                sizes = await server.sizes(self._streams(topic.name)) if may_fill else []
                problems += self._problems(topic.name, partitions, sizes)
            return problems

    def _problems(
        self, topic: str, partitions: int | None, sizes: Sequence[int]
    ) -> Iterator[topic_api.TopicProblem]:
        wanted, most = self._settings.partitions, self._settings.max_backlog
        if partitions is None:
            yield topic_api.TopicProblem(topic, "topic", "missing", f"{wanted} partitions")
        elif partitions != wanted:
            yield topic_api.TopicProblem(topic, "partitions", str(partitions), str(wanted))
        for partition, size in enumerate(sizes):
            if size >= most:
                what = f"messages in partition {partition}"
                yield topic_api.TopicProblem(topic, what, str(size), f"fewer than {most}")

    async def lag(
        self, topics: Sequence[topic_api.Topic[Any]], groups: Sequence[str] = ()
    ) -> list[topic_api.ConsumerLag]:
        """Return the lag of `groups`, or of all groups, by group and topic.

        The list of all groups also contains the topics that no group has read, with an empty group name.
        Replies are left out, because they are read without a group.
        """
        lags = []
        unread = []
        async with self._opened() as server:
            for topic in topics:
                streams = self._streams(topic.name)
                found = [each for stream in await server.groups(streams) for each in stream]
                for each in found:
                    waiting, pending = each["lag"] or 0, each["pending"]
                    lags.append(topic_api.ConsumerLag(each["name"].decode(), topic.name, waiting, pending))
                if (
                    not found
                    and topic.name != topic_api.REPLIES.name
                    and (kept := sum(await server.sizes(streams)))
                ):
                    unread.append(topic_api.ConsumerLag("", topic.name, kept, 0))
        behind = [*topic_api.summed(lags), *unread]
        return [lag for lag in behind if not groups or lag.group in groups]

    def _streams(self, topic: str) -> list[str]:
        keys = self._settings.keys_of(topic)
        return [keys.stream(partition) for partition in range(keys.partitions)]

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[StreamServer]:
        server = StreamServer(self._settings)
        try:
            yield server
        finally:
            await server.aclose()


def made_or_raise(topic: str, made: int | None, partitions: int) -> None:
    """Raise `TopicSetupError` if a topic does not exist, or has another number of partitions."""
    found = [b"missing"] if made is None else [b"partitions", made] if made != partitions else [b"done"]
    done_or_raise(found, topic, partitions)


def done_or_raise(answer: Sequence[Any], topic: str, partitions: int) -> Sequence[Any]:
    """Return the answer of a script.

    Raise `TopicSetupError` if the script found an invalid topic.
    """
    match answer[0]:
        case b"missing":
            raise TopicSetupError(topic, "does not exist", topic_api.CREATE)
        case b"partitions":
            made = int(answer[1])
            raise TopicSetupError(
                topic, f"has {made} partitions, not {partitions}", f"Set partitions to {made}"
            )
        case _:
            return answer


@dataclass(frozen=True, slots=True)
class _Script:
    """A script that the server runs atomically, and the SHA-1 that identifies it."""

    source: str
    sha: str


@cache
def _scripts() -> Mapping[str, _Script]:
    """Return all scripts by name. Reads files."""
    found = {}
    for name in ("publish", "lease", "read", "finish"):
        source = (files(__package__) / f"{name}.lua").read_text("utf-8")
        found[name] = _Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())
    return found
