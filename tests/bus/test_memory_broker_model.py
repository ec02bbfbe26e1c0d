"""The memory broker against a simple model of its promise, under any order of use."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import DEAD_LETTERS, EVENTS, Subscription, Topic

ONE, OTHER = EVENTS, DEAD_LETTERS
GROUPS = ("one", "other")


@dataclass
class Place:
    """What one group has not finished in one topic: positions per key, and how often each was handed out."""

    lanes: dict[str, list[int]] = field(default_factory=dict)
    deliveries: dict[int, int] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)  # position → reader

    def ready(self) -> set[int]:
        return {lane[0] for lane in self.lanes.values() if lane and lane[0] not in self.held}


class Model(RuleBasedStateMachine):
    """Publish, take, acknowledge, give back and close in any order; the model says what may come."""

    readers = Bundle("readers")
    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.broker = MemoryBroker()
        self.logs: dict[str, list[tuple[str, bytes]]] = {ONE.name: [], OTHER.name: []}
        self.places: dict[tuple[str, str], Place] = {}
        self.subscriptions: list[tuple[str, Subscription, list[Topic[Any]]] | None] = []

    def teardown(self) -> None:
        self.runner.run(self.broker.aclose())
        self.runner.close()

    @rule(topic=st.sampled_from([ONE, OTHER]), key=st.sampled_from("abc"))
    def publish(self, topic: Topic[Any], key: str) -> None:
        log = self.logs[topic.name]
        position, value = len(log), f"{topic.name}/{len(log)}".encode()

        self.runner.run(self.broker.publish(topic, Message(key, value, {})))

        log.append((key, value))
        for (_, name), place in self.places.items():
            if name == topic.name:
                place.lanes.setdefault(key, []).append(position)

    @rule(
        target=readers,
        group=st.sampled_from(GROUPS),
        topics=st.sampled_from([[ONE], [OTHER], [ONE, OTHER], [OTHER, ONE]]),
    )
    def subscribe(self, group: str, topics: list[Topic[Any]]) -> int:
        subscription = self.runner.run(self.broker.subscribe(topics, group))
        self.subscriptions.append((group, subscription, [*topics]))

        for topic in topics:
            if (group, topic.name) not in self.places:
                place = self.places[group, topic.name] = Place()
                for position, (key, _) in enumerate(self.logs[topic.name]):
                    place.lanes.setdefault(key, []).append(position)
        return len(self.subscriptions) - 1

    @rule(target=taken, reader=readers)
    def take(self, reader: int) -> tuple[int, Delivery] | None:
        subscription = self.subscriptions[reader]
        if subscription is None:
            return None
        group, inner, topics = subscription

        delivery = self.runner.run(_now_or_never(inner))

        places = [(topic.name, self.places[group, topic.name]) for topic in topics]
        next_one = next(((name, place) for name, place in places if place.ready()), None)
        if next_one is None:
            assert delivery is None
            return None
        name, place = next_one
        topics.sort(key=lambda topic: topic.name == name)  # its next turn is after the others
        assert delivery is not None
        assert (delivery.topic, delivery.position in place.ready()) == (name, True)
        assert (delivery.message.key, delivery.message.value) == self.logs[name][delivery.position]
        place.held[delivery.position] = reader
        place.deliveries[delivery.position] = place.deliveries.get(delivery.position, 0) + 1
        assert delivery.deliveries == place.deliveries[delivery.position]
        return reader, delivery

    @rule(held=taken)
    def acknowledge(self, held: tuple[int, Delivery] | None) -> None:
        for reader, delivery, place in self._current(held):
            self.runner.run(reader.ack(delivery))
            if place is not None:
                del place.held[delivery.position]
                place.lanes[delivery.message.key].remove(delivery.position)

    @rule(held=taken)
    def give_back(self, held: tuple[int, Delivery] | None) -> None:
        for reader, delivery, place in self._current(held):
            self.runner.run(reader.give_back(delivery))
            if place is not None:
                del place.held[delivery.position]

    @rule(reader=consumes(readers))
    def close(self, reader: int) -> None:
        subscription = self.subscriptions[reader]
        assert subscription is not None
        group, inner, topics = subscription

        self.runner.run(inner.aclose())

        for topic in topics:
            place = self.places[group, topic.name]
            place.held = {position: who for position, who in place.held.items() if who != reader}
        self.subscriptions[reader] = None

    @precondition(lambda self: self.places)
    @invariant()
    def unfinished_messages_are_counted(self) -> None:
        counted = {
            (backlog.group, backlog.topic): (backlog.waiting, backlog.in_flight)
            for backlog in self.broker.statistics().backlogs
        }

        assert counted == {
            where: (sum(map(len, place.lanes.values())) - len(place.held), len(place.held))
            for where, place in self.places.items()
        }

    def _current(
        self, held: tuple[int, Delivery] | None
    ) -> Iterator[tuple[Subscription, Delivery, Place | None]]:
        """Yield the delivery with its reader; with its place too, if the reader still holds just this delivery."""
        if held is None or (subscription := self.subscriptions[held[0]]) is None:
            return
        reader, delivery = held
        group, inner, _ = subscription
        place = self.places[group, delivery.topic]
        is_held = place.held.get(delivery.position) == reader
        is_newest = place.deliveries[delivery.position] == delivery.deliveries
        yield inner, delivery, place if is_held and is_newest else None


async def _now_or_never(subscription: Subscription) -> Delivery | None:
    try:
        async with asyncio.timeout(0):
            return await subscription.take()
    except TimeoutError:
        return None


TestMemoryBrokerModel = Model.TestCase
TestMemoryBrokerModel.settings = settings(max_examples=40, stateful_step_count=40)
