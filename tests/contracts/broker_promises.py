"""What every broker promises, one function a promise; each is given a bus with topics of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from agentic_trading.bus.errors import BusClosedError, MessageTooLargeError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import MAX_HEAD_BYTES, ConsumerLag, Topic
from agentic_trading.ids import random_id
from agentic_trading.llm.event import Event
from tests.contracts.broker_opening import ALLOWED_BYTES, Bus, Reader

Promise = Callable[[Bus], Awaitable[None]]


async def a_message_arrives_as_it_was_sent(bus: Bus) -> None:
    sent = Message("key", bytes(range(256)), {"ce_id": "1", "traceparent": "00-a-b-01"})
    await bus.broker.publish(bus.first, sent)

    delivery = await (await bus.reader()).take()

    assert (delivery.topic, delivery.deliveries) == (bus.first.name, 1)
    assert (delivery.message.key, delivery.message.value) == (sent.key, sent.value)
    assert dict(delivery.message.headers) == dict(sent.headers)


async def a_batch_arrives_in_its_order(bus: Bus) -> None:
    await bus.broker.publish_all(bus.first, [Message("a", str(n).encode(), {}) for n in range(20)])
    await bus.broker.publish_all(bus.first, [])

    assert await (await bus.reader()).says(20) == [str(n).encode() for n in range(20)]


async def a_batch_with_a_message_that_is_too_large_is_refused_whole(bus: Bus) -> None:
    batch = [Message("a", b"1", {}), Message("a", b"x" * (ALLOWED_BYTES + 1), {})]

    with pytest.raises(MessageTooLargeError):
        await bus.broker.publish_all(bus.first, batch)
    await bus.publish("a:2")

    assert await (await bus.reader()).says(1) == [b"2"]


async def a_group_that_comes_late_gets_what_came_before(bus: Bus) -> None:
    await bus.publish("a:1", "a:2")

    late = await bus.reader("late")
    await bus.publish("a:3")

    assert await late.says(3) == [b"1", b"2", b"3"]


async def each_group_gets_each_message(bus: Bus) -> None:
    one, other = await bus.reader("one"), await bus.reader("other")
    await bus.publish("a:1", "a:2")

    assert await one.says(2) == [b"1", b"2"]
    assert await other.says(2) == [b"1", b"2"]


async def within_a_group_a_message_goes_to_one_reader(bus: Bus) -> None:
    readers = [await bus.reader(), await bus.reader()]
    values = [str(n).encode() for n in range(10)]
    await bus.broker.publish_all(bus.first, [Message(value.decode(), value, {}) for value in values])

    said: list[bytes] = []
    async with asyncio.TaskGroup() as group:
        done = asyncio.Event()
        tasks = [group.create_task(_says_until(reader, said, len(values), done)) for reader in readers]
        await done.wait()
        for task in tasks:
            task.cancel()

    assert sorted(said) == values


async def a_key_keeps_its_order(bus: Bus) -> None:
    await bus.publish("a:1", "b:2", "a:3", "b:4", "a:5")

    said = await (await bus.reader()).says(5)

    assert [value for value in said if value in b"135"] == [b"1", b"3", b"5"]
    assert [value for value in said if value in b"24"] == [b"2", b"4"]


async def a_key_that_is_held_waits_and_others_go_on(bus: Bus) -> None:
    reader = await bus.reader()
    await bus.publish("a:1", "a:2")
    held = await reader.take()
    await bus.publish("b:3", "c:4")

    values = {(await reader.take()).message.value, (await reader.take()).message.value}
    await reader.subscription.ack(held)

    assert (held.message.value, values) == (b"1", {b"3", b"4"})
    assert (await reader.take()).message.value == b"2"


async def what_is_given_back_comes_again_in_its_place(bus: Bus) -> None:
    reader = await bus.reader()
    await bus.publish("a:1", "a:2")
    first = await reader.take()

    await reader.subscription.give_back(first)
    again = await reader.take()
    await reader.subscription.ack(again)

    assert (again.position, again.message) == (first.position, first.message)
    assert (first.deliveries, again.deliveries) == (1, 2)
    assert await reader.says(1) == [b"2"]


async def progress_reaches_the_end_with_the_last_acknowledgement(bus: Bus) -> None:
    await bus.publish("a:1", "b:2", "c:3")
    reader = await bus.reader()
    held = [await reader.take() for _ in range(3)]

    async def are_done() -> bool:
        found = await reader.subscription.progress()
        assert {each.topic for each in found} == {bus.first.name}
        return all(each.done is not None and each.done >= each.end for each in found)

    for delivery in held:
        assert not await are_done()
        await reader.subscription.ack(delivery)
    assert await are_done()


async def what_is_acknowledged_does_not_come_again(bus: Bus) -> None:
    reader = await bus.reader()
    await bus.publish("a:1", "a:2")
    assert await reader.says(1) == [b"1"]

    await reader.subscription.aclose()
    following = await bus.reader()

    assert await following.says(1) == [b"2"]


async def a_second_and_a_late_acknowledgement_do_nothing(bus: Bus) -> None:
    reader = await bus.reader()
    await bus.publish("a:1", "a:2", "a:3")
    first = await reader.take()
    await reader.subscription.give_back(first)
    again = await reader.take()

    await reader.subscription.ack(first)  # the delivery that was given back is not held any more
    await reader.subscription.give_back(first)
    await bus.publish("b:4")
    assert await reader.says(1) == [b"4"]
    await reader.subscription.ack(again)
    await reader.subscription.ack(again)

    assert await reader.says(2) == [b"2", b"3"]


async def what_a_closed_reader_held_goes_to_another(bus: Bus) -> None:
    leaving = await bus.reader()
    await bus.publish("a:1", "a:2")
    held = await leaving.take()
    staying = await bus.reader()

    served = await _served_after(leaving.subscription.aclose(), staying)
    await leaving.subscription.ack(held)

    assert served == b"1"
    assert await staying.says(1) == [b"2"]


async def what_is_held_comes_again_whatever_later_is_done(bus: Bus) -> None:
    leaving = await bus.reader()
    await bus.publish("a:1", "b:2", "c:3")
    taken = [await leaving.take() for _ in range(3)]
    (held,) = (delivery for delivery in taken if delivery.message.key == "a")
    for delivery in taken:
        if delivery is not held:
            await leaving.subscription.ack(delivery)

    await leaving.subscription.aclose()
    following = await bus.reader()
    await bus.publish("a:4")

    said: list[bytes] = []
    while b"4" not in said:
        said += await following.says(1)
    assert b"1" in said


async def a_group_remembers_its_place_without_readers(bus: Bus) -> None:
    reader = await bus.reader()
    await bus.publish("a:1", "b:2")
    await reader.says(2)
    await reader.subscription.aclose()
    await reader.subscription.aclose()

    await bus.publish("a:3")

    assert await (await bus.reader()).says(1) == [b"3"]


async def topics_take_turns(bus: Bus) -> None:
    await bus.publish("a:1", "b:2", "c:3", topic=bus.first)
    await bus.publish("d:4", "e:5", topic=bus.second)
    reader = await bus.reader("group", bus.first, bus.second)
    for delivery in [await reader.take() for _ in range(5)]:
        await reader.subscription.give_back(delivery)  # now all of them are ready

    topics = [(await reader.take()).topic for _ in range(4)]

    assert topics in (
        [bus.first.name, bus.second.name] * 2,
        [bus.second.name, bus.first.name] * 2,
    )


async def a_key_is_held_in_one_topic_only(bus: Bus) -> None:
    await bus.publish("a:1", "a:2", topic=bus.first)
    await bus.publish("a:3", topic=bus.second)
    reader = await bus.reader("group", bus.first, bus.second)

    assert {(await reader.take()).message.value for _ in range(2)} == {b"1", b"3"}


async def all_who_wait_are_served(bus: Bus) -> None:
    reader = await bus.reader()

    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(reader.take()) for _ in range(3)]
        await asyncio.sleep(0)
        await bus.publish("a:1", "b:2", "c:3")

    assert {task.result().message.value for task in waiting} == {b"1", b"2", b"3"}


async def who_waits_is_told_when_a_key_is_free(bus: Bus) -> None:
    reader = await bus.reader()
    await bus.publish("a:1", "a:2", "a:3")

    served = [
        await _served_after(reader.subscription.ack(await reader.take()), reader),
        await _served_after(reader.subscription.give_back(await reader.take()), reader),
    ]

    assert served == [b"2", b"3"]


async def a_cancelled_wait_takes_nothing_with_it(bus: Bus) -> None:
    reader = await bus.reader()

    async with asyncio.TaskGroup() as group:
        cancelled = group.create_task(reader.take())
        waiting = group.create_task(reader.take())
        await asyncio.sleep(0)
        await bus.publish("a:1")
        if cancelled.done():  # a server may hand out what its publisher does not know to be kept yet
            await reader.subscription.give_back(cancelled.result())
        cancelled.cancel()

    assert waiting.result().message.value == b"1"


async def a_message_that_is_too_large_is_refused(bus: Bus) -> None:
    with pytest.raises(MessageTooLargeError) as refusal:
        await bus.broker.publish(bus.first, Message("a", b"x" * (ALLOWED_BYTES + 1), {}))
    await bus.broker.publish(bus.first, Message("a", b"y" * ALLOWED_BYTES, {}))

    assert (refusal.value.size, refusal.value.allowed) == (ALLOWED_BYTES + 1, ALLOWED_BYTES)
    assert bus.broker.max_message_bytes == ALLOWED_BYTES
    assert await (await bus.reader()).says(1) == [b"y" * ALLOWED_BYTES]


async def a_head_that_is_too_large_is_refused(bus: Bus) -> None:
    for head in (("a" * MAX_HEAD_BYTES, {"n": "v"}), ("a", {"n": "v" * MAX_HEAD_BYTES})):
        with pytest.raises(MessageTooLargeError, match="key and headers"):
            await bus.broker.publish(bus.first, Message(head[0], b"", head[1]))
    await bus.broker.publish(bus.first, Message("a", b"y", {"n": "v" * (MAX_HEAD_BYTES - 2)}))

    assert await (await bus.reader()).says(1) == [b"y"]


async def a_topic_with_room_takes_larger_messages(bus: Bus) -> None:
    roomy = Topic(f"roomy-{random_id()}", Event, room=2)
    await bus.ready(roomy)

    await bus.broker.publish(roomy, Message("a", b"x" * ALLOWED_BYTES * 2, {}))
    with pytest.raises(MessageTooLargeError):
        await bus.broker.publish(roomy, Message("a", b"x" * (ALLOWED_BYTES * 2 + 1), {}))

    assert await (await bus.reader("group", roomy)).says(1) == [b"x" * ALLOWED_BYTES * 2]


async def a_closed_subscription_gives_nothing_more(bus: Bus) -> None:
    reader = await bus.reader()

    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(is_turned_away(reader)) for _ in range(2)]
        await asyncio.sleep(0)
        await reader.subscription.aclose()

    assert all(task.result() for task in waiting)
    assert await is_turned_away(reader)


async def a_closed_broker_takes_and_gives_nothing_more(bus: Bus) -> None:
    reader = await bus.reader()
    await bus.broker.aclose()
    await bus.broker.aclose()

    with pytest.raises(BusClosedError):
        await reader.take()
    with pytest.raises(BusClosedError):
        await bus.publish("a:1")
    with pytest.raises(BusClosedError):
        await bus.reader()


async def what_is_not_finished_is_counted(bus: Bus) -> None:
    reader = await bus.reader()
    await bus.publish("a:1", "a:2", "b:3")
    await reader.take()
    await reader.take()  # of the other key

    statistics = bus.broker.statistics()

    backlogs = [backlog for backlog in statistics.backlogs if backlog.topic == bus.first.name]
    assert backlogs == [ConsumerLag("group", bus.first.name, waiting=1, in_flight=2)]
    assert statistics.published[bus.first.name] == 3


async def _says_until(reader: Reader, said: list[bytes], count: int, done: asyncio.Event) -> None:
    """Take, acknowledge and name values, in turn with other readers, until all of them have named `count`."""
    while len(said) < count:
        delivery = await reader.subscription.take()
        said.append(delivery.message.value)
        await reader.subscription.ack(delivery)
        await asyncio.sleep(0)
    done.set()


async def _served_after(act: Coroutine[Any, Any, None], waiting: Reader) -> bytes:
    """Let `waiting` wait, do `act`, and return what it was served."""
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(waiting.says(1))
        await asyncio.sleep(0)
        await act
    return serving.result()[0]


async def is_turned_away(reader: Reader) -> bool:
    try:
        await reader.take()
    except BusClosedError:
        return True
    return False


PROMISES: Sequence[Promise] = (
    a_message_arrives_as_it_was_sent,
    a_batch_arrives_in_its_order,
    a_batch_with_a_message_that_is_too_large_is_refused_whole,
    a_group_that_comes_late_gets_what_came_before,
    each_group_gets_each_message,
    within_a_group_a_message_goes_to_one_reader,
    a_key_keeps_its_order,
    a_key_that_is_held_waits_and_others_go_on,
    what_is_given_back_comes_again_in_its_place,
    progress_reaches_the_end_with_the_last_acknowledgement,
    what_is_acknowledged_does_not_come_again,
    a_second_and_a_late_acknowledgement_do_nothing,
    what_a_closed_reader_held_goes_to_another,
    what_is_held_comes_again_whatever_later_is_done,
    a_group_remembers_its_place_without_readers,
    topics_take_turns,
    a_key_is_held_in_one_topic_only,
    all_who_wait_are_served,
    who_waits_is_told_when_a_key_is_free,
    a_cancelled_wait_takes_nothing_with_it,
    a_message_that_is_too_large_is_refused,
    a_head_that_is_too_large_is_refused,
    a_topic_with_room_takes_larger_messages,
    a_closed_subscription_gives_nothing_more,
    a_closed_broker_takes_and_gives_nothing_more,
    what_is_not_finished_is_counted,
)
