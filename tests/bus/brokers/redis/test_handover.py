"""Who owns a partition of a real Redis: readers share, come and go, and each key keeps its order."""

import asyncio
from contextlib import aclosing

from agentic_trading.bus.brokers.redis.broker import RedisBroker, RedisSubscription
from agentic_trading.bus.message import Delivery
from tests.bus_readers import Fleet, neighbours_out_of_order
from tests.redis_bus import (
    PATIENCE_S,
    TOPIC,
    Place,
    is_so,
    opened,
    publish,
    take,
)


async def test_partitions_are_shared_and_taken_over(many: Place) -> None:
    async with aclosing(many.broker()) as one, aclosing(many.broker()) as other:
        first, second = await opened(one), await opened(other)
        await is_so(lambda: _shares(first, second, [8, 8]))
        shared = [partitions_of(first), partitions_of(second)]

        await first.aclose()
        await is_so(lambda: _shares(second, second, [16, 16]))
        taken_over = partitions_of(second)

    assert sorted([*shared[0], *shared[1]]) == taken_over == [*range(16)]


def partitions_of(reader: RedisSubscription) -> list[int]:
    return sorted(each.partition for each in reader._partitions)


async def _shares(one: RedisSubscription, other: RedisSubscription, wanted: list[int]) -> bool:
    await asyncio.sleep(0)
    return [len([*reader._partitions]) for reader in (one, other)] == wanted


async def with_both_under_way(broker: RedisBroker) -> tuple[RedisSubscription, list[Delivery]]:
    """Return a reader of two partitions, with the first message of each under way."""
    await publish(broker, "a:0", "a:1", "d:0", "d:1")
    reader = await opened(broker)
    held = [await take(reader), await take(reader)]
    assert {each.partition for each in held} == {0, 1}
    return reader, held


async def given_up(reader: RedisSubscription) -> int:
    """Wait until a reader has a partition that it hands out no more, and return which."""
    async with asyncio.timeout(PATIENCE_S):
        while not any(each.is_revoked for each in reader._partitions):
            await reader._lease.renew()
            await asyncio.sleep(0.01)
    return next(each.partition for each in reader._partitions if each.is_revoked)


async def test_partition_moves_after_messages_in_flight_finish(two: Place) -> None:
    async with aclosing(two.broker(drain_s=PATIENCE_S)) as broker:
        first, held = await with_both_under_way(broker)
        second = await opened(broker)
        partition = await given_up(first)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(take(second))
            for _ in range(3):
                await first._lease.renew(first._lease.drained())
                await second._lease.renew()
            is_waiting = not waiting.done()
            for delivery in held:
                await first.ack(delivery)

    assert is_waiting
    assert (waiting.result().partition, waiting.result().message.value) == (partition, b"1")


async def test_undrained_message_is_redelivered_to_next_owner(two: Place) -> None:
    async with aclosing(two.broker(drain_s=0.1)) as broker:
        first, held = await with_both_under_way(broker)
        second = await opened(broker)
        again = await take(second)
        (same,) = [each for each in held if each.partition == again.partition]
        await first.ack(same)
        await first.give_back(same)
        await first.aclose()
        await second.aclose()

        assert (again.message, again.position) == (same.message, same.position)
        assert await two.pending() == 4


async def test_rebalance_keeps_messages_and_key_order(many: Place) -> None:
    fleet = Fleet(lambda: many.broker(buffer=16, lease_s=3.0), TOPIC, patience_s=PATIENCE_S)
    leaves, total = [asyncio.Event() for _ in range(3)], 40 * 30

    async def publish_from(first: int, until: int) -> None:
        async with aclosing(many.broker()) as broker:
            await publish(broker, *(f"k{key}:{n}" for n in range(first, until) for key in range(40)))

    async with asyncio.TaskGroup() as group:
        await publish_from(0, 10)
        group.create_task(fleet.reads(leaves[0]))
        group.create_task(fleet.reads(leaves[1]))
        await fleet.has_done(200)
        await publish_from(10, 20)
        group.create_task(fleet.reads(leaves[2]))
        await fleet.has_done(600)
        leaves[0].set()
        await publish_from(20, 30)
        await fleet.has_done(total)
        leaves[1].set()
        leaves[2].set()

    assert neighbours_out_of_order(fleet.done) == []
    assert len(fleet.done) - total <= 3 * len(leaves)  # what a reader that left held may come again
    assert await many.pending() == 0
