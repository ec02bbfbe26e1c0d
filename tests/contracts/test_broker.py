"""Every broker keeps every promise of the port, and the suite finds those that break one."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import pytest

from agentic_trading.bus.brokers.kafka.broker import KafkaBroker
from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.errors import MessageTooLargeError
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import (
    REPLIES,
    Broker,
    BrokerStatistics,
    PartitionProgress,
    Subscription,
    Topic,
)
from agentic_trading.ids import random_id
from tests import kafka_server, redis_bus, redis_server
from tests.contracts import broker_promises as promises
from tests.contracts import reply_promises as replies
from tests.contracts.broker_opening import ALLOWED_BYTES, Bus
from tests.contracts.broker_promises import PROMISES as OF_GROUPS
from tests.contracts.broker_promises import Promise
from tests.contracts.confluent_broker import ConfluentBroker

PROMISES = (*OF_GROUPS, *replies.WITHOUT_A_GROUP)
ON_KAFKA = pytest.mark.timeout(kafka_server.FIRST_START_S)


@pytest.fixture(
    params=[
        "memory",
        "memory-forgetful",
        pytest.param("kafka", marks=ON_KAFKA),
        pytest.param("confluent", marks=[ON_KAFKA, pytest.mark.soak]),
        *redis_server.servers(),
    ]
)
def opens(request: pytest.FixtureRequest) -> Callable[[], Bus]:
    """Return what opens an adapter; one of its deliveries may take as many seconds as the bus is patient."""
    if request.param in {"kafka", "confluent"}:
        servers = request.getfixturevalue("kafka_servers")
        kind, namespace = (KafkaBroker, "contract") if request.param == "kafka" else (ConfluentBroker, "")
        return lambda: Bus(
            kind(kafka_server.settings(servers, namespace=namespace, max_message_bytes=ALLOWED_BYTES)),
            10.0,
            lambda topics: kafka_server.make_topics(servers, topics, namespace=namespace),
        )
    if request.param in redis_server.servers():
        url, namespace = request.getfixturevalue("redis_named")(request.param), redis_server.namespace()
        return lambda: Bus(
            redis_bus.broker(url, namespace, max_message_bytes=ALLOWED_BYTES),
            5.0,
            lambda topics: redis_bus.make_topics(url, namespace, topics),
        )
    retain = request.param == "memory"
    return lambda: Bus(MemoryBroker(max_message_bytes=ALLOWED_BYTES, retain_acknowledged=retain), 2.0)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_broker_adapter_keeps_promise(opens: Callable[[], Bus], promise: Promise) -> None:
    bus = opens()
    async with aclosing(bus.broker):
        await promise(await bus.ready())


class Reader:
    """A subscription that hands everything on; each broken one below changes one thing."""

    def __init__(self, inner: Subscription) -> None:
        self.inner = inner
        self.held: list[Delivery] = []

    async def take(self) -> Delivery:
        self.held.append(await self.inner.take())
        return self.held[-1]

    async def ack(self, delivery: Delivery) -> None:
        await self.inner.ack(delivery)

    async def give_back(self, delivery: Delivery) -> None:
        await self.inner.give_back(delivery)

    async def progress(self) -> Sequence[PartitionProgress]:
        return await self.inner.progress()

    async def aclose(self) -> None:
        await self.inner.aclose()


class CountsWhatItHolds(Reader):
    async def progress(self) -> Sequence[PartitionProgress]:
        return [replace(each, done=each.end) for each in await self.inner.progress()]


class LosesWhatItHeld(Reader):
    async def aclose(self) -> None:
        for delivery in self.held:
            await self.inner.ack(delivery)
        await self.inner.aclose()


class DeliversAgain(Reader):
    async def ack(self, delivery: Delivery) -> None:
        await self.inner.give_back(delivery)


class DropsWhatIsGivenBack(Reader):
    async def give_back(self, delivery: Delivery) -> None:
        await self.inner.ack(delivery)


class AcknowledgesByPosition(Reader):
    async def ack(self, delivery: Delivery) -> None:
        for held in self.held:
            if held.position == delivery.position:
                await self.inner.ack(held)


class ServesOneWaiter(Reader):
    busy = False

    async def take(self) -> Delivery:
        while self.busy:
            await asyncio.Event().wait()
        self.busy = True
        return await self.inner.take()


class TellsOfNewMessagesOnly(Reader):
    """Once it has waited in vain, it looks again only when something is published: here, never."""

    async def take(self) -> Delivery:
        try:
            async with asyncio.timeout(0):
                return await self.inner.take()
        except TimeoutError:
            await asyncio.Event().wait()
            raise


class TakesNoTurns(Reader):
    """It hands out by topic all that there is."""

    def __init__(self, inner: Subscription) -> None:
        super().__init__(inner)
        self.here: list[Delivery] = []

    async def take(self) -> Delivery:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                while True:
                    self.here.append(await self.inner.take())
        self.here.sort(key=lambda delivery: delivery.topic)
        return self.here.pop(0)


class LosesWhatACancelledWaitSaw(Reader):
    async def take(self) -> Delivery:
        try:
            return await self.inner.take()
        except asyncio.CancelledError:
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await self.inner.take()
            raise


class NeverCloses(Reader):
    async def aclose(self) -> None:
        """Do nothing."""


class Whole(MemoryBroker):
    """A broker that keeps its promises, but for what its readers do."""

    def __init__(self, reader: type[Reader] = Reader, *, max_message_bytes: int = ALLOWED_BYTES) -> None:
        super().__init__(max_message_bytes=max_message_bytes)
        self._reader = reader

    async def subscribe(self, topics: Sequence[Topic[Any]], group: str) -> Subscription:
        return self._reader(await super().subscribe(topics, group))


class DropsHeaders(Whole):
    async def publish(self, topic: Topic[Any], message: Message) -> None:
        await super().publish(topic, replace(message, headers={}))


class ForwardsToThosePresent(Whole):
    async def publish(self, topic: Topic[Any], message: Message) -> None:
        if any(backlog.topic == topic.name for backlog in self.statistics().backlogs):
            await super().publish(topic, message)


class SharesAmongGroups(Whole):
    async def subscribe(self, topics: Sequence[Topic[Any]], group: str) -> Subscription:
        return await super().subscribe(topics, "everybody")


class CopiesToEveryReader(Whole):
    async def subscribe(self, topics: Sequence[Topic[Any]], group: str) -> Subscription:
        return await super().subscribe(topics, f"{group}-{random_id()}")


class SwapsPairs(Whole):
    waiting: Message | None = None

    async def publish(self, topic: Topic[Any], message: Message) -> None:
        if message.value == b"3":
            self.waiting = message
            return
        await super().publish(topic, message)
        if self.waiting and message.key == self.waiting.key:
            await super().publish(topic, self.waiting)


class HandsOutHeldKeys(Whole):
    async def publish(self, topic: Topic[Any], message: Message) -> None:
        await super().publish(topic, replace(message, key=random_id()))


class MergesTopics(Whole):
    async def publish(self, topic: Topic[Any], message: Message) -> None:
        await super().publish(replace(topic, name="all"), message)

    async def subscribe(self, topics: Sequence[Topic[Any]], group: str) -> Subscription:
        return await super().subscribe([replace(topics[0], name="all")], group)


class ReversesBatches(Whole):
    async def publish_all(self, topic: Topic[Any], messages: Sequence[Message]) -> None:
        await super().publish_all(topic, messages[::-1])


class PublishesOneByOne(Whole):
    async def publish_all(self, topic: Topic[Any], messages: Sequence[Message]) -> None:
        for message in messages:
            await self.publish(topic, message)


class GivesNoRoom(Whole):
    async def publish(self, topic: Topic[Any], message: Message) -> None:
        await super().publish(replace(topic, room=1), message)


class LooksAtValuesOnly(Whole):
    async def publish(self, topic: Topic[Any], message: Message) -> None:
        await super().publish(topic, replace(message, key=message.key[:1], headers={}))


class StaysOpen(Whole):
    async def aclose(self) -> None:
        """Do nothing."""


class CountsNothing(Whole):
    def statistics(self) -> BrokerStatistics:
        return BrokerStatistics({}, {}, ())


class RepliesToEveryAddress(Whole):
    """It reads what is for anybody; so it keeps replies as any other message."""

    async def publish(self, topic: Topic[Any], message: Message) -> None:
        await super().publish(replace(topic, name="kept") if topic is REPLIES else topic, message)

    async def replies(self, address: str) -> Subscription:
        return await self.subscribe([replace(REPLIES, name="kept")], address)


class RepliesNeverClose(Whole):
    async def replies(self, address: str) -> Subscription:
        return NeverCloses(await super().replies(address))


class ScansToTheFirst(Whole):
    async def scan(self, topic: Topic[Any]) -> AsyncGenerator[Delivery]:
        async with aclosing(super().scan(topic)) as deliveries:
            async for delivery in deliveries:
                yield delivery
                return


class HoldsScannedMessages(Whole):
    async def scan(self, topic: Topic[Any]) -> AsyncGenerator[Delivery]:
        reader = await super().subscribe([topic], "group")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                while True:
                    yield await reader.take()


class DeletesNothing(Whole):
    async def delete_before(self, topic: Topic[Any], positions: Mapping[int, int]) -> None:
        """Do nothing."""


class ChecksNothing(Whole):
    async def check(self, topics: Sequence[Topic[Any]]) -> None:
        """Do nothing."""


BROKEN: Sequence[tuple[Callable[[], Broker], Promise]] = (
    (DropsHeaders, promises.a_message_arrives_as_it_was_sent),
    (ReversesBatches, promises.a_batch_arrives_in_its_order),
    (PublishesOneByOne, promises.a_batch_with_a_message_that_is_too_large_is_refused_whole),
    (ForwardsToThosePresent, promises.a_group_that_comes_late_gets_what_came_before),
    (SharesAmongGroups, promises.each_group_gets_each_message),
    (CopiesToEveryReader, promises.within_a_group_a_message_goes_to_one_reader),
    (CopiesToEveryReader, promises.a_group_remembers_its_place_without_readers),
    (SwapsPairs, promises.a_key_keeps_its_order),
    (HandsOutHeldKeys, promises.a_key_that_is_held_waits_and_others_go_on),
    (lambda: Whole(DropsWhatIsGivenBack), promises.what_is_given_back_comes_again_in_its_place),
    (lambda: Whole(CountsWhatItHolds), promises.progress_reaches_the_end_with_the_last_acknowledgement),
    (lambda: Whole(DeliversAgain), promises.what_is_acknowledged_does_not_come_again),
    (lambda: Whole(AcknowledgesByPosition), promises.a_second_and_a_late_acknowledgement_do_nothing),
    (lambda: Whole(LosesWhatItHeld), promises.what_a_closed_reader_held_goes_to_another),
    (lambda: Whole(LosesWhatItHeld), promises.what_is_held_comes_again_whatever_later_is_done),
    (lambda: Whole(TakesNoTurns), promises.topics_take_turns),
    (MergesTopics, promises.a_key_is_held_in_one_topic_only),
    (lambda: Whole(ServesOneWaiter), promises.all_who_wait_are_served),
    (lambda: Whole(TellsOfNewMessagesOnly), promises.who_waits_is_told_when_a_key_is_free),
    (lambda: Whole(LosesWhatACancelledWaitSaw), promises.a_cancelled_wait_takes_nothing_with_it),
    (lambda: Whole(max_message_bytes=1 << 20), promises.a_message_that_is_too_large_is_refused),
    (LooksAtValuesOnly, promises.a_head_that_is_too_large_is_refused),
    (GivesNoRoom, promises.a_topic_with_room_takes_larger_messages),
    (lambda: Whole(NeverCloses), promises.a_closed_subscription_gives_nothing_more),
    (StaysOpen, promises.a_closed_broker_takes_and_gives_nothing_more),
    (CountsNothing, promises.what_is_not_finished_is_counted),
    (RepliesToEveryAddress, replies.replies_go_to_their_address_alone),
    (RepliesToEveryAddress, replies.replies_are_read_from_now_on),
    (RepliesToEveryAddress, replies.what_is_done_with_a_reply_changes_nothing),
    (
        RepliesNeverClose,
        replies.a_reader_of_replies_gives_nothing_more_when_it_or_the_broker_is_closed,
    ),
    (ScansToTheFirst, replies.a_scan_goes_from_the_oldest_message_to_the_last_one_of_now),
    (HoldsScannedMessages, replies.a_scan_that_is_given_up_leaves_nothing_behind),
    (DeletesNothing, replies.what_is_deleted_is_neither_scanned_nor_handed_to_a_later_group),
    (ChecksNothing, replies.a_check_passes_for_topics_that_are_there_and_a_closed_broker_has_none),
)
FOUND = (AssertionError, TimeoutError, ExceptionGroup, MessageTooLargeError, pytest.fail.Exception)


@pytest.mark.parametrize(("opens", "promise"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
async def test_broken_broker_is_detected(opens: Callable[[], Broker], promise: Promise) -> None:
    with pytest.raises(FOUND):
        await promise(Bus(opens(), patience_s=0.05))


async def test_base_of_broken_brokers_keeps_promises() -> None:
    for promise in PROMISES:
        await promise(Bus(Whole(), patience_s=2.0))


def test_each_promise_has_broken_broker() -> None:
    assert {promise for _, promise in BROKEN} == set(PROMISES)
