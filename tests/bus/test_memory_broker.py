"""What the memory broker does beyond the port: what it keeps, and how it wakes who waits."""

import asyncio
from collections.abc import AsyncIterator
from weakref import ref

import pytest

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import reply_message
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import DEAD_LETTERS, EVENTS, MAX_MESSAGE_BYTES, REPLIES, largest_answer
from agentic_trading.canonical import canonical_bytes
from agentic_trading.llm.provider import MAX_ANSWER_BYTES
from tests.build import envelope, interaction


def message(key: str = "a", value: bytes = b"1") -> Message:
    return Message(key, value, {})


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    broker = MemoryBroker()
    yield broker
    await broker.aclose()


@pytest.fixture
async def forgetful() -> AsyncIterator[MemoryBroker]:
    broker = MemoryBroker(retain_acknowledged=False)
    yield broker
    await broker.aclose()


async def read(broker: MemoryBroker, group: str, count: int) -> None:
    """Take and acknowledge `count` events for a group, then leave."""
    subscription = await broker.subscribe([EVENTS], group)
    for _ in range(count):
        await subscription.ack(await subscription.take())
    await subscription.aclose()


async def test_late_group_receives_acknowledged_messages(broker: MemoryBroker) -> None:
    await broker.publish(EVENTS, message())
    await read(broker, "early", 1)

    late = await broker.subscribe([EVENTS], "late")

    assert (await late.take()).message == message()


async def test_message_acknowledged_by_all_groups_is_dropped(forgetful: MemoryBroker) -> None:
    await read(forgetful, "one", 0)
    await read(forgetful, "other", 0)
    await forgetful.publish(EVENTS, message())

    await read(forgetful, "one", 1)
    assert forgetful.statistics().kept == {EVENTS.name: 1}
    await read(forgetful, "other", 1)

    assert forgetful.statistics().kept == {EVENTS.name: 0}


async def test_unread_message_is_never_dropped(forgetful: MemoryBroker) -> None:
    await forgetful.publish(EVENTS, message("a"))
    await forgetful.publish(EVENTS, message("b"))

    await read(forgetful, "first", 1)
    await read(forgetful, "second", 1)

    assert forgetful.statistics().kept == {EVENTS.name: 1}


async def test_unfinished_message_does_not_retain_others(forgetful: MemoryBroker) -> None:
    subscription = await forgetful.subscribe([EVENTS], "group")
    await forgetful.publish(EVENTS, message("stuck"))
    await subscription.take()

    for number in range(100):
        await forgetful.publish(EVENTS, message(f"key-{number}"))
        await subscription.ack(await subscription.take())

    assert forgetful.statistics().kept == {EVENTS.name: 1}


async def test_give_back_yields_to_other_tasks(broker: MemoryBroker) -> None:
    subscription = await broker.subscribe([EVENTS], "group")
    await broker.publish(EVENTS, message())
    has_run = asyncio.Event()

    async def refuse() -> int:
        deliveries = 0
        while not has_run.is_set():
            delivery = await subscription.take()
            await subscription.give_back(delivery)
            deliveries = delivery.deliveries
        return deliveries

    async def run() -> None:
        has_run.set()

    async with asyncio.TaskGroup() as group:
        refusing = group.create_task(refuse())
        group.create_task(run())

    assert refusing.result() == 1


async def test_returned_message_yields_to_other_keys(broker: MemoryBroker) -> None:
    subscription = await broker.subscribe([EVENTS], "group")
    await broker.publish(EVENTS, message("bad"))
    await broker.publish(EVENTS, message("good"))

    await subscription.give_back(await subscription.take())

    assert [(await subscription.take()).message.key for _ in range(2)] == ["good", "bad"]


async def test_timed_out_takes_leave_no_waiters(broker: MemoryBroker) -> None:
    subscription = await broker.subscribe([EVENTS], "group")

    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await subscription.take()

    assert len(vars(subscription)["_takers"]._waiters) == 0


async def test_closed_subscription_is_garbage_collected(broker: MemoryBroker) -> None:
    subscription = await broker.subscribe([EVENTS, DEAD_LETTERS], "group")
    alive = ref(subscription)

    await subscription.aclose()
    del subscription

    assert alive() is None


async def test_cancelled_take_is_skipped(broker: MemoryBroker) -> None:
    subscription = await broker.subscribe([EVENTS], "group")

    async with asyncio.TaskGroup() as group:
        cancelled = group.create_task(subscription.take())
        waiting = group.create_task(subscription.take())
        await asyncio.sleep(0)
        cancelled.cancel()
        await broker.publish(EVENTS, message())

    assert waiting.result().message == message()


async def test_foreign_subscription_cannot_finish_a_delivery(broker: MemoryBroker) -> None:
    events = await broker.subscribe([EVENTS], "events")
    letters = await broker.subscribe([DEAD_LETTERS], "letters")
    await broker.publish(EVENTS, message())
    delivery = await events.take()

    await letters.ack(delivery)
    await letters.give_back(delivery)
    await events.give_back(delivery)

    assert (await events.take()).deliveries == 2


async def test_subscription_without_topics_is_refused(broker: MemoryBroker) -> None:
    with pytest.raises(ValueError, match="at least one topic"):
        await broker.subscribe([], "group")


@pytest.mark.parametrize("size", [0, -1])
def test_non_positive_size_limit_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="Allowed: 1 or more"):
        MemoryBroker(max_message_bytes=size)


async def test_finished_requests_leave_no_backlog(forgetful: MemoryBroker) -> None:
    requests = await forgetful.subscribe([EVENTS], "workers")
    answers = await forgetful.subscribe([DEAD_LETTERS], "clients")

    for number in range(2000):
        await forgetful.publish(EVENTS, message(f"trace-{number}"))
        request = await requests.take()
        await forgetful.publish(DEAD_LETTERS, message(request.message.key))
        await requests.ack(request)
        await answers.ack(await answers.take())

    statistics = forgetful.statistics()
    assert statistics.published == {EVENTS.name: 2000, DEAD_LETTERS.name: 2000}
    assert statistics.kept == {EVENTS.name: 0, DEAD_LETTERS.name: 0}
    assert {(backlog.waiting, backlog.in_flight) for backlog in statistics.backlogs} == {(0, 0)}


@pytest.mark.parametrize("text", ["\x01", '"', "\\", "é", "€", "💶", "a"])
async def test_largest_answer_fits_with_largest_envelope(text: str) -> None:
    allowed = 50_000
    answer = text * ((largest_answer(allowed) - 20) // len(canonical_bytes({"a": text})[6:-2]))
    asked = envelope(instructions="i" * (allowed - len(envelope().wire)))
    body = canonical_bytes({
        "a": answer
    })  # as the input of a tool: its quotes and escapes are spelled once more in the text
    kept = interaction(envelope=asked, raw_output=body.decode(), parsed_output={"a": answer})

    assert len(asked.wire) <= allowed < len(asked.wire) + 200
    assert len(body) <= largest_answer(allowed) < len(body) + 200
    await MemoryBroker(max_message_bytes=allowed).publish(REPLIES, reply_message(kept, "a-1", final=True))


def test_provider_answer_limit_matches_bus_limit() -> None:
    assert largest_answer(MAX_MESSAGE_BYTES) == MAX_ANSWER_BYTES
