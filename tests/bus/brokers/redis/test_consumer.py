"""A reader on a real Redis: what is dropped and what never is, what it reads no further, what is not there."""

from contextlib import aclosing

import pytest

from agentic_trading.bus.errors import TopicSetupError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import Topic
from agentic_trading.llm.event import Event
from tests.redis_bus import TOPIC, Place, equals, is_so, opened, publish, says, take


async def test_message_is_dropped_when_all_groups_finish(one: Place) -> None:
    async with aclosing(one.broker()) as broker:
        await publish(broker, "a:0", "b:1", "c:2", "d:3")
        first, second = await opened(broker, "first"), await opened(broker, "second")
        await says(first, 4)
        held = await take(second)
        await second.ack(await take(second))
        await second.ack(await take(second))
        await is_so(lambda: equals(one.pending("second"), 2))
        with_one_held = await one.kept()

        await second.ack(held)
        await is_so(lambda: equals(one.kept(), [b"3"]))
        await says(second, 1)
        await is_so(lambda: equals(one.kept(), []))
        await publish(broker, "a:4")
        positions = [(await take(reader)).position for reader in (first, second)]

    assert with_one_held == [b"0", b"1", b"2", b"3"]
    assert positions == [5, 5]  # what was dropped is counted


async def test_unread_message_is_kept(one: Place) -> None:
    async with aclosing(one.broker()) as broker:
        await publish(broker, "a:0", "a:1")
        early = await opened(broker, "early")
        await says(early, 2)
        await is_so(lambda: equals(one.kept(), []))
        await publish(broker, "a:2")
        await early.aclose()

        assert await one.kept() == [b"2"]
        assert await says(await opened(broker, "early"), 1) == [b"2"]


async def test_ack_reaches_server_while_reading(one: Place) -> None:
    async with aclosing(one.broker()) as broker:
        await publish(broker, "a:0", "b:1")
        reader = await opened(broker)

        await says(reader, 1)
        await is_so(lambda: equals(one.pending(), 1))

        assert await says(reader, 1) == [b"1"]


async def test_foreign_messages_arrive_deleted_messages_finish(
    one: Place,
) -> None:
    async with aclosing(one.broker()) as broker:
        await one.redis.xadd(one.stream(0), {b"key": b"\xff", b"headers": b"[1]"}, id="0-*")
        await one.redis.xadd(one.stream(0), {b"other": b"1"}, id="0-*")
        await publish(broker, "a:2", "a:3")
        first = await opened(broker)
        messages = [(await take(first)).message for _ in range(3)]
        await first.aclose()
        await one.redis.xdel(one.stream(0), "0-3")

        second = await opened(broker)
        said = await says(second, 3)
        await is_so(lambda: equals(one.pending(), 0))

    assert messages[:2] == [Message("\udcff", b"", {}), Message("", b"", {})]
    assert sorted(said) == [b"", b"", b"3"]


async def test_full_topic_is_not_read_further(one: Place) -> None:
    async with aclosing(one.broker(buffer=8)) as broker:
        await publish(broker, *(f"k{n}:{n}" for n in range(60)))
        reader = await opened(broker)
        held = [await take(reader) for _ in range(8)]

        (partition,) = reader._partitions
        lag = next(reader.lag())
        for delivery in held:
            await reader.ack(delivery)
        rest = await says(reader, 52)

    assert partition.unfinished <= 12  # what there was room for, and one more step
    assert lag.waiting + lag.in_flight == 60
    assert len(rest) == 52


async def test_missing_or_mismatched_topic_names_remedy(one: Place) -> None:
    async with aclosing(one.broker()) as broker, aclosing(one.broker(partitions=4)) as other:
        with pytest.raises(
            TopicSetupError, match=r"Topic acme does not exist. Run agentic-trading topics create"
        ):
            await broker.subscribe([TOPIC, Topic("acme", Event)], "group")
        assert await one.redis.zcard(f"{{{one.namespace}:bus}}:{TOPIC.name}:group:group:readers") == 0
        for refused in (other.subscribe([TOPIC], "group"), other.publish(TOPIC, Message("a", b"", {}))):
            with pytest.raises(TopicSetupError, match=r"has 1 partitions, not 4\. Set partitions to 1"):
                await refused
        with pytest.raises(TopicSetupError, match="does not exist"):
            await broker.replies("address")
        for wrong in (other.scan(TOPIC), broker.scan(Topic("acme", Event))):
            with pytest.raises(TopicSetupError):
                await anext(wrong)
