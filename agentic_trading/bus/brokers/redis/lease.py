"""The lease of a reader: its partitions, their tokens, and how long it surely owns them."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from agentic_trading.bus.assignment import AssignedPartitions, Assignment
from agentic_trading.bus.brokers.redis.redis import RedisBusSettings, StreamServer, done_or_raise
from agentic_trading.clock import Clock
from agentic_trading.ids import random_id

RENEWED_S: Final = 1.0
"""The longest time between two renewals. Partitions that were given up are read again within this time."""

SURE: Final = 0.8
"""The part of a lease that is safe to use, in spite of differences between clocks."""


class OwnedPartition(Assignment):
    """A partition while one reader owns it.

    The server accepts reads and acknowledgements only with the token of this ownership.
    """

    __slots__ = ("end", "finished", "give_by", "is_behind", "seen", "token")

    def __init__(self, topic: str, partition: int, token: str) -> None:
        super().__init__(topic, partition, 1)
        self.token = token
        self.seen = 0  # the last position that was read, or that the group has finished
        self.end = 0  # the last known position of the stream
        self.is_behind = True  # there may be something to read
        self.finished: list[int] = []  # finished here, not yet on the server
        self.give_by = 0.0

    @property
    def waiting_here_and_there(self) -> int:
        """The number of messages not delivered yet, here and on the server."""
        return self.waiting(None) + max(0, self.end - self.seen)

    @property
    def done(self) -> int:
        """The position before which all messages are finished here."""
        return self.position if self.unfinished else self.seen + 1


class PartitionLease:
    """Own `partitions` of topics for `group`, each under a token.

    Steps of an earlier owner have no effect. The reader has one lease for all its partitions. If the lease is
    renewed too late but no other reader has taken a partition, its token is unchanged and the ownership
    continues. Under another token, the partition begins again.
    """

    def __init__(
        self,
        server: StreamServer,
        settings: RedisBusSettings,
        topics: Sequence[str],
        group: str,
        *,
        clock: Clock,
    ) -> None:
        self._server = server
        self._settings = settings
        self.partitions = AssignedPartitions[OwnedPartition](topics, settings.buffer)
        self.group = group
        self._clock = clock
        self._reader = random_id()
        self._keys = {topic: settings.keys_of(topic) for topic in topics}
        self._sure_until = 0.0
        self.changed = asyncio.Event()
        """Set when another partition is owned."""
        self.released = asyncio.Event()
        """Set when a partition that is being given up has no delivery in flight."""

    @property
    def is_sure(self) -> bool:
        """Whether, by the local clock, no other reader can own one of these partitions now."""
        return self._clock.monotonic() < self._sure_until

    @property
    def renewed_every_s(self) -> float:
        """The interval in seconds in which to call `renew`."""
        return min(self._settings.lease_s / 3, RENEWED_S)

    def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        return self._keys[topic].partitions

    def drained(self) -> list[OwnedPartition]:
        """Return the partitions to give up now: no delivery is in flight, or `drain_s` is over."""
        now = self._clock.monotonic()
        return [
            each
            for each in self.partitions
            if each.is_revoked and (not each.in_flight or each.give_by <= now)
        ]

    async def renew(self, drained: Sequence[OwnedPartition] = ()) -> None:
        """Renew the lease, give up the drained partitions, and take over this reader's new ones.

        Raises `BusUnavailableError`, or `TopicSetupError` for an invalid topic.
        """
        asked_at = self._clock.monotonic()
        for topic in self._keys:
            given = [each for each in drained if each.topic == topic]
            fair, owned = await self._heard(topic, given, lease_s=self._settings.lease_s)
            self._take_up(topic, owned)
            self._give_up(topic, fair)
        # Count from before the request, because the server's lease may start any time after it was sent.
        self._sure_until = asked_at + SURE * self._settings.lease_s

    async def leave(self) -> None:
        """Give up all partitions, even with deliveries in flight, and leave the group."""
        for topic in self._keys:
            await self._heard(topic, (), lease_s=0)

    async def run(
        self, name: str, partitions: Sequence[OwnedPartition], given: Sequence[Any], *, doing: str
    ) -> Sequence[Any]:
        """Run a script on partitions of one topic.

        The script rejects those that this reader no longer owns.
        """
        _, owners, tokens = self._keys[partitions[0].topic].group(self.group)
        keys = [owners, tokens, *map(self.stream, partitions)]
        answers: Sequence[Any] = await self._server.run(
            name, keys, [self._reader, self.group, *given], doing=doing
        )
        return answers

    def stream(self, partition: OwnedPartition) -> str:
        """Return the stream of a partition."""
        return self._keys[partition.topic].stream(partition.partition)

    async def _heard(
        self, topic: str, given: Iterable[OwnedPartition], *, lease_s: float
    ) -> tuple[int, Mapping[int, tuple[str, int]]]:
        """Return the fair share, and this reader's partitions with token and last position."""
        keys = self._keys[topic]
        facts = [fact for each in given for fact in (each.partition, each.token)]
        streams = [keys.stream(partition) for partition in range(keys.partitions)]
        answer = await self._server.run(
            "lease",
            [keys.meta, *keys.group(self.group), *streams],
            [self._reader, round(1000 * lease_s), keys.partitions, self.group, *facts],
            doing=f"joining the group {self.group}",
        )
        _, *found = done_or_raise(answer, topic, keys.partitions)
        if not found:
            return 0, {}
        fair, *owned = found
        rows = zip(owned[::3], owned[1::3], owned[2::3], strict=True)
        return int(fair), {int(number): (token.decode(), int(end)) for number, token, end in rows}

    def _take_up(self, topic: str, owned: Mapping[int, tuple[str, int]]) -> None:
        """Keep exactly these partitions.

        A partition with a new token begins at its first unfinished message.
        """
        for partition in [*self.partitions.of(topic)]:
            if partition.partition not in owned or owned[partition.partition][0] != partition.token:
                self.partitions.end(partition)
        for number, (token, end) in owned.items():
            known = self.partitions.get(topic, number)
            partition = known or OwnedPartition(topic, number, token)
            partition.end = end
            if known is None:
                self.partitions.begin(partition)
                self.changed.set()

    def _give_up(self, topic: str, fair: int) -> None:
        """Revoke partitions above the fair share.

        Each is given up when it has no delivery in flight.
        """
        ours = [each for each in self.partitions.of(topic) if not each.is_revoked]
        for partition in sorted(ours, key=lambda each: each.in_flight)[: max(0, len(ours) - fair)]:
            partition.revoke()
            partition.give_by = self._clock.monotonic() + self._settings.drain_s
            if not partition.in_flight:
                self.released.set()
