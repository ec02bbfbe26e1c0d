"""The topics of a bus on Redis: made, held against what the bus needs, and how far each group is behind."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agentic_trading.bus.brokers.redis.connection import RedisBusSettings
from agentic_trading.bus.brokers.redis.redis import StreamServer
from agentic_trading.bus.errors import BusSettingsError
from agentic_trading.bus.topic import REPLIES, ConsumerLag, Topic, TopicProblem, summed


class RedisTopics:
    """The topics at `settings.url`; each step raises `BusUnavailableError` where the server cannot be reached."""

    def __init__(self, settings: RedisBusSettings) -> None:
        self._settings = settings

    async def create(self, topics: Sequence[Topic[Any]]) -> list[str]:
        """Make the topics that are missing, with `settings.partitions` for good, and return their names.

        Raises `BusSettingsError` for a server that may forget.
        """
        async with self._opened() as server:
            await server.open()
            return [topic.name for topic in topics if await server.make(self._settings.keys_of(topic.name))]

    async def check(self, topics: Sequence[Topic[Any]]) -> list[TopicProblem]:
        """Return what is wrong with the server, and with its topics."""
        async with self._opened() as server:
            problems = []
            try:
                await server.open()
            except BusSettingsError as e:
                problems.append(TopicProblem("-", e.setting, e.found, e.allowed))
            made = await server.partitions([self._settings.keys_of(topic.name) for topic in topics])
            for topic, partitions in zip(topics, made, strict=True):
                sizes = await server.sizes(self._streams(topic.name)) if topic.name != REPLIES.name else []
                problems += self._problems(topic.name, partitions, sizes)
            return problems

    def _problems(self, topic: str, partitions: int | None, sizes: Sequence[int]) -> Iterator[TopicProblem]:
        wanted, most = self._settings.partitions, self._settings.max_backlog
        if partitions is None:
            yield TopicProblem(topic, "topic", "missing", f"{wanted} partitions")
        elif partitions != wanted:
            yield TopicProblem(topic, "partitions", str(partitions), str(wanted))
        for partition, size in enumerate(sizes):
            if size >= most:
                what = f"messages in partition {partition}"
                yield TopicProblem(topic, what, str(size), f"fewer than {most}")

    async def lag(self, topics: Sequence[Topic[Any]], groups: Sequence[str] = ()) -> list[ConsumerLag]:
        """Return how far `groups`, or all that there are, are behind, by group and topic."""
        lags = []
        async with self._opened() as server:
            for topic in topics:
                for found in await server.groups(self._streams(topic.name)):
                    for each in found:
                        waiting, pending = each["lag"] or 0, each["pending"]
                        lags.append(ConsumerLag(each["name"].decode(), topic.name, waiting, pending))
        return [lag for lag in summed(lags) if not groups or lag.group in groups]

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
