"""What every broker promises of replies and of scans, which no group reads; one function a promise."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from agentic_trading.bus.errors import BusClosedError
from agentic_trading.bus.topic import REPLIES
from agentic_trading.ids import random_id
from tests.contracts.broker_opening import Bus
from tests.contracts.broker_promises import Promise, is_turned_away


async def replies_go_to_their_address_alone(bus: Bus) -> None:
    await bus.ready(REPLIES)
    addresses = [random_id().replace("-", "") for _ in range(4)]
    readers = [await bus.reader_of_replies(address) for address in addresses]

    for number, address in enumerate(addresses * 2):
        await bus.publish(f"{address}:{number}", topic=REPLIES)

    said = [[int((await reader.take()).message.value) for _ in range(2)] for reader in readers]
    assert said == [[0, 4], [1, 5], [2, 6], [3, 7]]


async def replies_are_read_from_now_on(bus: Bus) -> None:
    await bus.ready(REPLIES)
    address = random_id()
    await bus.publish(f"{address}:1", topic=REPLIES)

    reader = await bus.reader_of_replies(address)
    await bus.publish(f"{address}:2", topic=REPLIES)

    assert (await reader.take()).message.value == b"2"


async def what_is_done_with_a_reply_changes_nothing(bus: Bus) -> None:
    await bus.ready(REPLIES)
    address = random_id()
    reader = await bus.reader_of_replies(address)
    await bus.publish(f"{address}:1", f"{address}:2", f"{address}:3", topic=REPLIES)

    first = await reader.take()
    await reader.subscription.give_back(first)
    second = await reader.take()  # although the first one of its key is not finished
    await reader.subscription.ack(second)

    assert [each.message.value for each in (first, second, await reader.take())] == [b"1", b"2", b"3"]


async def a_check_passes_for_topics_that_are_there_and_a_closed_broker_has_none(bus: Bus) -> None:
    await bus.ready(REPLIES)

    await bus.broker.check([bus.first, bus.second, REPLIES])
    await bus.broker.aclose()

    with pytest.raises(BusClosedError):
        await bus.broker.check([bus.first])


async def a_reader_of_replies_gives_nothing_more_when_it_or_the_broker_is_closed(bus: Bus) -> None:
    await bus.ready(REPLIES)
    closed, open_ = await bus.reader_of_replies(random_id()), await bus.reader_of_replies(random_id())

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(is_turned_away(closed))
        await asyncio.sleep(0)
        await closed.subscription.aclose()
        await closed.subscription.aclose()
    await bus.broker.aclose()

    assert waiting.result()
    assert await is_turned_away(open_)
    with pytest.raises(BusClosedError):
        await bus.reader_of_replies(random_id())


async def a_scan_goes_from_the_oldest_message_to_the_last_one_of_now(bus: Bus) -> None:
    assert await bus.scanned() == []
    reader = await bus.reader()
    await bus.publish("a:1", "b:2", "a:3")
    held = await reader.take()

    found = await bus.scanned()
    await bus.publish("b:4")
    again = await bus.scanned()

    assert (held.deliveries, await reader.says(1)) == (1, [b"2"] if held.message.key == "a" else [b"1"])
    assert [each.message.value for each in found if each.message.key == "a"] == [b"1", b"3"]
    assert [each.message.value for each in again if each.message.key == "b"] == [b"2", b"4"]
    assert {(each.topic, each.deliveries) for each in found} == {(bus.first.name, 1)}
    assert len({(each.partition, each.position) for each in again}) == 4


async def a_scan_that_is_given_up_leaves_nothing_behind(bus: Bus) -> None:
    await bus.publish("a:1", "a:2")

    async with aclosing(bus.broker.scan(bus.first)) as deliveries:
        first = await anext(deliveries)

    assert first.message.value == b"1"
    assert await (await bus.reader()).says(2) == [b"1", b"2"]
    await bus.broker.aclose()
    with pytest.raises(BusClosedError):
        await bus.scanned()


async def what_is_deleted_is_neither_scanned_nor_handed_to_a_later_group(bus: Bus) -> None:
    reader = await bus.reader("early")
    await bus.publish("a:1", "a:2", "a:3", "b:4")
    found = {each.message.value: each for each in await bus.scanned()}
    third = found[b"3"]

    for _ in range(2):
        await bus.broker.delete_before(bus.first, {third.partition: third.position})

    left = {each.message.value for each in await bus.scanned()}
    assert left in ({b"3", b"4"}, {b"3"})  # b may stand before it, where it has the same partition
    assert set(await (await bus.reader("late")).says(len(left))) == left
    assert await reader.says(1)  # whatever it was handed before is no matter
    await bus.broker.delete_before(bus.first, {third.partition: third.position + 1000})
    assert b"3" not in {each.message.value for each in await bus.scanned()}
    await bus.broker.aclose()
    with pytest.raises(BusClosedError):
        await bus.broker.delete_before(bus.first, {})


WITHOUT_A_GROUP: Sequence[Promise] = (
    replies_go_to_their_address_alone,
    replies_are_read_from_now_on,
    what_is_done_with_a_reply_changes_nothing,
    a_reader_of_replies_gives_nothing_more_when_it_or_the_broker_is_closed,
    a_scan_goes_from_the_oldest_message_to_the_last_one_of_now,
    a_scan_that_is_given_up_leaves_nothing_behind,
    what_is_deleted_is_neither_scanned_nor_handed_to_a_later_group,
    a_check_passes_for_topics_that_are_there_and_a_closed_broker_has_none,
)
