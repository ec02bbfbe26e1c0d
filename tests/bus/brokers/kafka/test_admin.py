"""Topics of a real Kafka are made, checked, and what groups have not done is counted."""

import pytest

from agentic_trading.bus.brokers.kafka.admin import (
    PartitionLag,
    check_topics,
    create_topics,
    group_lags,
    plan_of,
)
from agentic_trading.bus.errors import BusUnavailableError, TopicSetupError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import (
    DEAD_LETTERS,
    ENVELOPES,
    MAX_HEAD_BYTES,
    MAX_MESSAGE_BYTES,
    TOPICS,
    Topic,
    TopicProblem,
)
from agentic_trading.ids import random_id
from agentic_trading.llm.event import Event
from tests import kafka_server

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)


def own_topics(count: int) -> list[Topic[Event]]:
    return [Topic(f"topic-{random_id()}", Event) for _ in range(count)]


async def test_create_topics_adds_only_missing_topics(kafka_servers: str) -> None:
    settings = kafka_server.settings(kafka_servers)
    first, second = plan_of(own_topics(2), max_message_bytes=MAX_MESSAGE_BYTES, partitions=3)

    assert await create_topics(settings, [first]) == [first.name]
    assert await create_topics(settings, [first, second]) == [second.name]
    assert await create_topics(settings, [first, second]) == []
    assert await check_topics(settings, [first, second]) == []


async def test_check_topics_reports_each_problem(kafka_servers: str) -> None:
    settings = kafka_server.settings(kafka_servers)
    topics = own_topics(2)
    await create_topics(
        settings, plan_of(topics[:1], max_message_bytes=300_000, partitions=1, retention_days=1)
    )

    there, missing = topics
    wanted = plan_of(topics, max_message_bytes=MAX_MESSAGE_BYTES, partitions=2, retention_days=7)

    size = MAX_MESSAGE_BYTES + MAX_HEAD_BYTES + 4096
    assert await check_topics(settings, wanted) == [
        TopicProblem(there.name, "partitions", "1", "2 or more"),
        TopicProblem(
            there.name, "max.message.bytes", str(300_000 + MAX_HEAD_BYTES + 4096), f"{size} or more"
        ),
        TopicProblem(there.name, "retention.ms", "86400000", "604800000 or more"),
        TopicProblem(missing.name, "topic", "missing", "2 partitions"),
    ]


async def test_check_topics_flags_compaction_not_infinite_retention(kafka_servers: str) -> None:
    settings = kafka_server.settings(kafka_servers)
    (plan,) = plan_of(own_topics(1), max_message_bytes=MAX_MESSAGE_BYTES, partitions=1)
    made = {**plan.settings, "cleanup.policy": "compact", "retention.ms": "-1"}
    await create_topics(settings, [type(plan)(plan.name, 1, made)])

    assert await check_topics(settings, [plan]) == [
        TopicProblem(plan.name, "cleanup.policy", "compact", "delete")
    ]


async def test_create_topics_raises_server_refusal(kafka_servers: str) -> None:
    settings = kafka_server.settings(kafka_servers)
    plans = plan_of(own_topics(1), max_message_bytes=MAX_MESSAGE_BYTES)

    with pytest.raises(TopicSetupError, match=r"cannot be created: .*eplication factor"):
        await create_topics(settings, plans, replicas=3)


async def test_group_lag_counts_uncommitted_messages(kafka_servers: str) -> None:
    settings = kafka_server.settings(kafka_servers)
    (where,) = own_topics(1)
    await kafka_server.make_topics(kafka_servers, [where], partitions=1)
    broker = kafka_server.broker(kafka_servers)
    await broker.publish_all(where, [Message("a", b"1", {}), Message("a", b"2", {})])
    reader = await broker.subscribe([where], "behind")
    await reader.ack(await reader.take())
    await broker.aclose()

    (lag,) = await group_lags(settings, [where.name])

    assert lag == PartitionLag("behind", where.name, 0, committed=1, end=2)
    assert lag.lag == 1
    assert await group_lags(settings, [where.name], ["other"]) == []


async def test_check_topics_names_unreachable_servers() -> None:
    with pytest.raises(
        BusUnavailableError, match=r"asking about topics failed: .* Servers: 127\.0\.0\.1:1\."
    ):
        await check_topics(kafka_server.settings("127.0.0.1:1", connect_s=2.0), [])


def test_topic_plan_covers_lanes_and_dead_letters() -> None:
    plans = {plan.name: plan for plan in plan_of(TOPICS, max_message_bytes=MAX_MESSAGE_BYTES)}

    assert {topic.name for topic in ENVELOPES.values()} < set(plans)
    assert int(plans[DEAD_LETTERS.name].settings["max.message.bytes"]) > 2 * MAX_MESSAGE_BYTES
