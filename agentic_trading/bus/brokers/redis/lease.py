"""The lease of a reader: which partitions it owns for its group, under which tokens, and until when surely."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from agentic_trading.bus.assignment import AssignedPartitions, Assignment
from agentic_trading.bus.brokers.redis.redis import RedisBusSettings, StreamServer, done_or_raise
from agentic_trading.clock import Clock
from agentic_trading.ids import random_id

RENEWED_S: Final = 1.0
"""How often a lease is renewed at the least: as soon is a partition that was given up read again."""

SURE: Final = 0.8
"""The part of a lease in which it surely lasts, however the clocks go."""


class OwnedPartition(Assignment):
    """A partition for as long as one reader owns it, under one token: nothing can be read or finished with another one."""

    __slots__ = ("end", "finished", "give_by", "is_behind", "seen", "token")

    def __init__(self, topic: str, partition: int, token: str) -> None:
        super().__init__(topic, partition, 1)
        self.token = token
        self.seen = 0  # the last message that was read, or that the group has finished
        self.end = 0  # the last one that there is, as far as is known
        self.is_behind = True  # there may be something to read
        self.finished: list[int] = []  # and the server does not know it yet
        self.give_by = 0.0

    @property
    def waiting_here_and_there(self) -> int:
        """How many messages are not handed out, with those that were not read yet."""
        return self.waiting(None) + max(0, self.end - self.seen)

    @property
    def done(self) -> int:
        """The position before which all messages are finished here."""
        return self.position if self.unfinished else self.seen + 1


class PartitionLease:
    """Own `partitions` of topics for `group`, each under a token; a step of an earlier owner changes nothing.

    The lease is the reader's, for all its partitions. Where it was renewed too late, but no other reader has taken a
    partition, the token is the old one, and all goes on; under another token a partition begins again.
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
        """Another partition is owned."""
        self.released = asyncio.Event()
        """A partition that is given up has nothing under way any more."""

    @property
    def is_sure(self) -> bool:
        """Whether no other reader can own one of these partitions now, by the local clock."""
        return self._clock.monotonic() < self._sure_until

    @property
    def renewed_every_s(self) -> float:
        """How often `renew` has to be called."""
        return min(self._settings.lease_s / 3, RENEWED_S)

    def partitions_of(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        return self._keys[topic].partitions

    def drained(self) -> list[OwnedPartition]:
        """Return the partitions to be given up now: nothing of them is under way, or for too long."""
        now = self._clock.monotonic()
        return [
            each
            for each in self.partitions
            if each.is_revoked and (not each.in_flight or each.give_by <= now)
        ]

    async def renew(self, drained: Sequence[OwnedPartition] = ()) -> None:
        """Be heard, give up what is drained, and take up what is this reader's now.

        Raises `BusUnavailableError`, and `TopicSetupError` for a topic that is not there.
        """
        asked_at = self._clock.monotonic()
        for topic in self._keys:
            given = [each for each in drained if each.topic == topic]
            fair, owned = await self._heard(topic, given, lease_s=self._settings.lease_s)
            self._take_up(topic, owned)
            self._give_up(topic, fair)
        self._sure_until = asked_at + SURE * self._settings.lease_s

    async def leave(self) -> None:
        """Give up all partitions, whatever is under way, and be no reader of the group any more."""
        for topic in self._keys:
            await self._heard(topic, (), lease_s=0)

    async def run(
        self, name: str, partitions: Sequence[OwnedPartition], given: Sequence[Any], *, doing: str
    ) -> Sequence[Any]:
        """Run a script on partitions of one topic, which refuses those that this reader does not own any more."""
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
        """Return how many partitions are a fair share, and those of this reader, with token and last message."""
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
        """Have just these partitions; under another token it is another ownership, which begins at what is not finished."""
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
        """Hand out nothing more of partitions above the fair share; each is given up when nothing of it is under way."""
        ours = [each for each in self.partitions.of(topic) if not each.is_revoked]
        for partition in sorted(ours, key=lambda each: each.in_flight)[: max(0, len(ours) - fair)]:
            partition.revoke()
            partition.give_by = self._clock.monotonic() + self._settings.drain_s
            if not partition.in_flight:
                self.released.set()
