"""Reading streams without a group: the replies to one address as they come, and a topic from its start to its end."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from agentic_trading.bus.brokers.redis.connection import RedisBusSettings
from agentic_trading.bus.brokers.redis.redis import StreamServer, made_or_raise
from agentic_trading.bus.errors import BusError
from agentic_trading.bus.keyed_queues import ReplyQueue
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import REPLIES, Topic
from agentic_trading.cancellation import OwnedTasks
from agentic_trading.logger import get_logger

log = get_logger()

WAIT_S: Final = 1.0
RETRY_S: Final = 0.5
PAGE: Final = 64

REPLIES_KEPT: Final = 10_000
"""About how many replies an address keeps that were not read."""

REPLIES_STAY_S: Final = 3600
"""How long they stay after the last one came, and after the reader was last heard."""

_KEPT_EVERY: Final = 60
"""After so many waits a reader says that it is still there."""

_HEADERS: Final = TypeAdapter(dict[str, str])


class RedisReplyReader:
    """Read the replies to `address` that come from now on into `replies`; to be started once."""

    def __init__(self, server: StreamServer, settings: RedisBusSettings, address: str) -> None:
        self._server = server
        self._settings = settings
        self._keys = settings.keys_of(REPLIES.name)
        self._stream = self._keys.reply_stream(Message(address, b"", {}).key_bytes)
        self._last = "0-0"
        self.replies = ReplyQueue(self._stop)
        self._tasks = OwnedTasks()
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Find the end of the stream; raises `BusUnavailableError`, and `TopicSetupError` where the topic is not there."""
        (made,) = await self._server.partitions([self._keys])
        made_or_raise(REPLIES.name, made, made or 0)
        (self._last,) = await self._server.last_ids([self._stream])
        self._reading = self._tasks.start(self._read(), name="redis-replies")

    async def _stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        await self._tasks.aclose()

    async def _read(self) -> None:
        """Read until closed, but no more than `buffer` ahead."""
        waits = 0
        while True:
            await self.replies.room(self._settings.buffer)
            try:
                if waits % _KEPT_EVERY == 0:
                    await self._server.keep(self._stream, REPLIES_STAY_S)
                found = await self._server.read({self._stream: self._last}, most=PAGE, wait_s=WAIT_S)
            except BusError as e:
                log.warning("redis_replies_failed", error=str(e))
                await asyncio.sleep(RETRY_S)
                continue
            waits += 1
            for id_, fields in found.get(self._stream, ()):
                self._last = id_.decode()
                self.replies.add(Delivery(REPLIES.name, _place_of(id_), message_in(fields), 1))


async def scanned_streams(
    server: StreamServer, settings: RedisBusSettings, topic: Topic[Any]
) -> AsyncGenerator[Delivery]:
    """Yield all that `topic` keeps now, partition by partition; raises `BusUnavailableError`, and `TopicSetupError`."""
    keys = settings.keys_of(topic.name)
    (made,) = await server.partitions([keys])
    made_or_raise(topic.name, made, keys.partitions)
    streams = [keys.stream(partition) for partition in range(keys.partitions)]
    for partition, (stream, last) in enumerate(zip(streams, await server.last_ids(streams), strict=True)):
        after = "0-0"
        while entries := await server.page(stream, after, last, most=PAGE):
            for id_, fields in entries:
                yield Delivery(topic.name, position_of(id_), message_in(fields), 1, partition)
            after = entries[-1][0].decode()


def fields_of(message: Message) -> tuple[bytes, bytes, bytes]:
    """Return key, headers and value as they stand in a stream."""
    return message.key_bytes, _HEADERS.dump_json(dict(message.headers)), message.value


def message_in(fields: Mapping[bytes, bytes]) -> Message:
    """Return what stands in a stream as a message, whatever another program put there."""
    headers: dict[str, str] = {}
    with suppress(ValidationError):
        headers = _HEADERS.validate_json(fields.get(b"headers", b""))
    key = fields.get(b"key", b"").decode("utf-8", "surrogateescape")
    return Message(key, fields.get(b"value", b""), headers)


def position_of(id_: bytes) -> int:
    """Return the place of a message in its partition."""
    return int(id_.partition(b"-")[2])


def _place_of(id_: bytes) -> int:
    """Return a number that grows with the time of a reply, and with its place within a millisecond."""
    milliseconds, _, place = id_.partition(b"-")
    return (int(milliseconds) << 20) + int(place)
