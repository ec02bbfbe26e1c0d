"""Who owns a partition: one reader at a time, under tokens that only grow, whatever readers do and in which order."""

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_trading.bus.brokers.redis.lease import OwnedPartition, PartitionLease
from agentic_trading.bus.brokers.redis.redis import StreamServer
from agentic_trading.bus.topic import Topic
from agentic_trading.clock import SystemClock
from agentic_trading.llm.event import Event
from tests import redis_bus, redis_server

TOPIC = Topic("events", Event)
PARTITIONS, READERS = 5, 3
STEPS = st.lists(
    st.tuples(st.integers(0, READERS - 1), st.sampled_from(["renew", "renew", "leave", "freeze", "read"])),
    max_size=20,
)


class Group:
    """Readers of a group, and what the server says of their partitions."""

    def __init__(self, url: str, namespace: str, redis: Any) -> None:
        self._settings = redis_bus.settings(url, namespace, partitions=PARTITIONS, lease_s=60.0)
        self.server = StreamServer(self._settings)
        self.redis = redis
        self.readers = [self._reader() for _ in range(READERS)]
        self._group = self._settings.keys_of(TOPIC.name).group("group")
        self._known: dict[int, tuple[str, int]] = {}

    def _reader(self) -> PartitionLease:
        return PartitionLease(self.server, self._settings, [TOPIC.name], "group", clock=SystemClock())

    async def owners(self) -> dict[int, tuple[str, int]]:
        """Return owner and token of each partition; a new owner must have a token that is greater than all before."""
        _, owners, tokens = [await self.redis.hgetall(key) if n else {} for n, key in enumerate(self._group)]
        found = {int(n): (owner.decode(), int(tokens[n])) for n, owner in owners.items()}
        for partition, (owner, token) in found.items():
            owner_before, token_before = self._known.get(partition, ("", 0))
            assert token > token_before or (owner, token) == (owner_before, token_before)
        self._known |= found
        return found

    async def step(self, number: int, what: str) -> None:
        lease = self.readers[number]
        match what:
            case "renew":
                await lease.renew(lease.drained())
            case "leave":
                await lease.leave()
            case "freeze":  # until its lease is over
                await self.redis.zadd(self._group[0], {lease._reader: 1}, xx=True)
            case _:  # read
                await self._read(lease, [*lease.partitions])

    async def _read(self, lease: PartitionLease, ours: Sequence[OwnedPartition]) -> None:
        """Read what this reader takes for its own, and see that it is refused what is another one's."""
        owners = await self.owners()
        if not ours:
            return
        asked = [fact for each in ours for fact in (each.partition, each.token, "0-0")]
        answers = await lease.run("read", ours, [10, *asked], doing="reading")
        for each, (said, *_) in zip(ours, answers, strict=True):
            is_owner = owners.get(each.partition) == (lease._reader, int(each.token))
            assert (said != b"lost") == is_owner


async def _shared_out(url: str, steps: Sequence[tuple[int, str]]) -> None:
    namespace = redis_server.namespace()
    await redis_bus.make_topics(url, namespace, [TOPIC], partitions=PARTITIONS)
    async with redis_bus.client(url) as redis:
        group = Group(url, namespace, redis)
        await group.server.open()
        for number, what in steps:
            await group.step(number, what)
            await group.owners()
        for _ in range(5):
            for number in range(READERS):
                await group.step(number, "renew")

        owners = await group.owners()
        shares = []
        for lease in group.readers:
            assert all(
                owners[each.partition] == (lease._reader, int(each.token)) for each in lease.partitions
            )
            shares.append(len([*lease.partitions]))
        await group.server.aclose()
    assert sum(shares) == PARTITIONS
    assert max(shares) == 2  # of five, by three


@settings(max_examples=20)
@given(steps=STEPS)
def test_partitions_have_single_owner_and_are_shared(redis_url: str, steps: list[tuple[int, str]]) -> None:
    asyncio.run(_shared_out(redis_url, steps))
