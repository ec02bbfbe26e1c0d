"""Create and check the topics of a Kafka cluster, and query consumer lag."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    KafkaError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)

from agentic_trading.bus import topic as topic_api
from agentic_trading.bus.brokers.kafka.connection import (
    KafkaSettings,
    bus_error,
    close_within,
    start_within,
)
from agentic_trading.bus.errors import TopicSetupError

PARTITIONS: Final = 6
DAY_MS: Final = 86_400_000
RETENTION_DAYS: Final = 7
BATCH_OVERHEAD: Final = 4096
LEADERS_WITHIN_S: Final = 30.0
LOOKS_AGAIN_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The wanted setup of a topic."""

    name: str
    partitions: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a group in a partition.

    `end` is the next offset to be written. `committed` is the next offset to be processed. An empty `group`
    means that no group has committed an offset there. Then `committed` is the oldest stored offset.
    """

    group: str
    topic: str
    partition: int
    committed: int
    end: int

    @property
    def lag(self) -> int:
        """The number of unfinished messages."""
        return self.end - self.committed


def plan_of(
    topics: Iterable[topic_api.Topic[Any]],
    *,
    max_message_bytes: int,
    partitions: int = PARTITIONS,
    retention_days: int = RETENTION_DAYS,
) -> list[TopicPlan]:
    """Return the wanted setup of `topics`, so that each accepts the largest message of the bus."""
    return [
        TopicPlan(
            topic.name,
            partitions,
            MappingProxyType({
                "cleanup.policy": "delete",
                "max.message.bytes": str(
                    (max_message_bytes + topic_api.MAX_HEAD_BYTES) * topic.room + BATCH_OVERHEAD
                ),
                "retention.ms": str(retention_days * DAY_MS),
            }),
        )
        for topic in topics
    ]


def planned_topics(
    *,
    lanes: Iterable[str] = (),
    max_message_bytes: int = topic_api.MAX_MESSAGE_BYTES,
    partitions: int = PARTITIONS,
    retention_days: int = RETENTION_DAYS,
) -> list[TopicPlan]:
    """Return the wanted setup of the platform's topics and of the given provider lanes."""
    return plan_of(
        topic_api.topics_with(lanes),
        max_message_bytes=max_message_bytes,
        partitions=partitions,
        retention_days=retention_days,
    )


async def create_topics(
    settings: KafkaSettings, plans: Sequence[TopicPlan], *, replicas: int = 0
) -> list[str]:
    """Create the missing topics, and return their names when each of their partitions has a leader.

    Existing topics are unchanged.

    Args:
        settings: The cluster.
        plans: The wanted topics.
        replicas: The number of copies. With 0, it is three, or the number of servers if there are fewer.

    Raises:
        BusUnavailableError: If the servers do not answer in time.
        TopicSetupError: If a server rejects a topic.

    """
    plans = _named(plans, settings)
    async with _admin(settings) as admin:
        there = await _topics(admin)
        missing = [plan for plan in plans if plan.name not in there]
        if not missing:
            return []
        copies = replicas or min(3, len((await admin.describe_cluster())["brokers"]))
        wanted = [
            NewTopic(each.name, each.partitions, copies, topic_configs=dict(each.settings))
            for each in missing
        ]
        answer = await admin.create_topics(wanted)
        for name, code, *why in answer.topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                raise TopicSetupError(
                    name, f"cannot be created: {why[0] if why else error.description}", "Correct the options"
                )
        async with asyncio.timeout(LEADERS_WITHIN_S):
            while not _have_leaders(await _topics(admin), missing):  # noqa: ASYNC110 - no server notifies of it
                await asyncio.sleep(LOOKS_AGAIN_S)
        return [each.name for each in missing]


async def check_topics(settings: KafkaSettings, plans: Sequence[TopicPlan]) -> list[topic_api.TopicProblem]:
    """Return the problems of the topics. Raises `BusUnavailableError`."""
    plans = _named(plans, settings)
    async with _admin(settings) as admin:
        there = await _topics(admin)
        known = await _settings(admin, [each.name for each in plans if each.name in there])
        return [
            problem
            for plan in plans
            for problem in _problems(plan, there.get(plan.name), known.get(plan.name, {}))
        ]


async def require_topics(settings: KafkaSettings, names: Iterable[str]) -> None:
    """Raise `TopicSetupError` for the first missing topic. Also raises `BusUnavailableError`."""
    async with _admin(settings) as admin:
        there = await _topics(admin)
    missing = sorted(name for name in names if settings.full_name(name) not in there)
    if missing:
        raise TopicSetupError(settings.full_name(missing[0]), "does not exist", topic_api.CREATE)


async def topic_settings(settings: KafkaSettings, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings of each existing topic. Raises `BusUnavailableError`."""
    async with _admin(settings) as admin:
        found = await _settings(admin, list(map(settings.full_name, names)))
    return {settings.plain_name(name): its_settings for name, its_settings in found.items()}


async def topic_partitions(settings: KafkaSettings, topic: str) -> list[int]:
    """Return the partition numbers of a topic, sorted.

    Raises `BusUnavailableError`, or `TopicSetupError` if the topic does not exist.
    """
    async with _admin(settings) as admin:
        found = (await _topics(admin)).get(settings.full_name(topic))
    if not found:
        raise TopicSetupError(topic, "does not exist", topic_api.CREATE)
    return sorted(each["partition"] for each in found)


async def delete_messages(settings: KafkaSettings, topic: str, ends: Mapping[int, int]) -> None:
    """Delete the messages before an offset, for every reader, in each partition of `ends`.

    This cannot be undone. Raises `BusUnavailableError`, or `TopicSetupError` if the topic does not exist.
    """
    numbers = await topic_partitions(settings, topic)
    partitions = [TopicPartition(settings.full_name(topic), number) for number in numbers]
    firsts, lasts = await _bounds(settings, partitions)
    # Clamp the offsets, because a server rejects an offset outside the stored range.
    wanted = {tp: min(ends.get(tp.partition, 0), lasts[tp]) for tp in partitions}
    async with _admin(settings) as admin:
        await admin.delete_records({
            tp: RecordsToDelete(end) for tp, end in wanted.items() if end > firsts[tp]
        })


async def group_lags(
    settings: KafkaSettings, topics: Sequence[str], groups: Sequence[str] = ()
) -> list[PartitionLag]:
    """Return the lag of `groups`, or of all groups that have committed an offset.

    The list of all groups also contains messages that no group has read. Replies are left out, because they
    are read without a group. Raises `BusUnavailableError`.
    """
    async with _admin(settings) as admin:
        asked = set(map(settings.full_name, groups))
        listed = {name for name, *_ in await admin.list_consumer_groups()}
        # Skip unknown groups: they have no coordinator, and the server would raise an error.
        names = sorted(listed & asked if groups else listed)
        committed = {name: await admin.list_consumer_group_offsets(name) for name in names}
        there = {} if groups else await _topics(admin)
    full = {*map(settings.full_name, topics)}
    known = {
        tp
        for offsets in committed.values()
        for tp, at in offsets.items()
        if tp.topic in full and at.offset >= 0
    }
    unread = {
        TopicPartition(topic, each["partition"])
        for topic in (full & there.keys()) - {settings.full_name(topic_api.REPLIES.name)}
        for each in there[topic]
    } - known
    firsts, ends = await _bounds(settings, sorted(known | unread))
    lags = [
        PartitionLag(
            settings.plain_name(name),
            settings.plain_name(tp.topic),
            tp.partition,
            committed[name][tp].offset,
            ends[tp],
        )
        for name in names
        for tp in sorted(known & committed[name].keys())
        if committed[name][tp].offset >= 0
    ]
    return lags + [
        PartitionLag("", settings.plain_name(tp.topic), tp.partition, firsts[tp], ends[tp])
        for tp in sorted(unread)
        if firsts[tp] < ends[tp]
    ]


async def _bounds(
    settings: KafkaSettings, partitions: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the first offset of each partition, and the next offset to be written."""
    if not partitions:
        return {}, {}
    consumer = AIOKafkaConsumer(**settings.client_options())
    await start_within(consumer, settings, doing="asking for the ends of partitions")
    try:
        async with asyncio.timeout(settings.connect_s):
            return await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    except (KafkaError, TimeoutError, OSError) as e:
        raise bus_error(e, settings, "asking for the ends of partitions") from e
    finally:
        await close_within(consumer)


def _named(plans: Iterable[TopicPlan], settings: KafkaSettings) -> list[TopicPlan]:
    """Return the plans with the names of their topics on the servers."""
    return [replace(plan, name=settings.full_name(plan.name)) for plan in plans]


@asynccontextmanager
async def _admin(settings: KafkaSettings) -> AsyncGenerator[Any]:
    """Open an administration client. Its errors in the block become `BusError`."""
    admin = AIOKafkaAdminClient(**settings.client_options())
    try:
        async with asyncio.timeout(settings.connect_s):
            await admin.start()
        yield admin
    except (KafkaError, TimeoutError, OSError) as e:
        raise bus_error(e, settings, "asking about topics") from e
    finally:
        await close_within(admin)


async def _topics(admin: Any) -> dict[str, list[Mapping[str, Any]]]:
    """Return the partitions of every topic."""
    return {each["topic"]: each["partitions"] for each in await admin.describe_topics()}


async def _settings(admin: Any, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings of each existing topic.

    Raises `TopicSetupError` if reading them is not allowed.
    """
    if not names:
        return {}
    answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    found = {}
    for code, _why, _type, name, entries in (each for answer in answers for each in answer.resources):
        if for_code(code) is TopicAuthorizationFailedError:
            found_out = "has settings that this client may not read"
            raise TopicSetupError(name, found_out, "Allow DescribeConfigs in the server's ACL")
        if not code:
            found[name] = {entry[0]: entry[1] for entry in entries}
    return found


def _have_leaders(there: Mapping[str, Sequence[Mapping[str, Any]]], plans: Iterable[TopicPlan]) -> bool:
    return all(
        len(there.get(plan.name, ())) == plan.partitions
        and all(partition["leader"] >= 0 for partition in there[plan.name])
        for plan in plans
    )


def _problems(
    plan: TopicPlan, partitions: Sequence[Mapping[str, Any]] | None, settings: Mapping[str, str]
) -> Iterator[topic_api.TopicProblem]:
    if partitions is None:
        yield topic_api.TopicProblem(plan.name, "topic", "missing", f"{plan.partitions} partitions")
        return
    if len(partitions) < plan.partitions:
        yield topic_api.TopicProblem(
            plan.name, "partitions", str(len(partitions)), f"{plan.partitions} or more"
        )
    leaderless = [str(each["partition"]) for each in partitions if each["leader"] < 0]
    if leaderless:
        yield topic_api.TopicProblem(
            plan.name, "leader", f"none for {', '.join(leaderless)}", "one for each partition"
        )
    if settings.get("cleanup.policy") != plan.settings["cleanup.policy"]:
        wanted = plan.settings["cleanup.policy"]
        yield topic_api.TopicProblem(plan.name, "cleanup.policy", settings.get("cleanup.policy", "-"), wanted)
    for name in ("max.message.bytes", "retention.ms"):
        found, least = int(settings.get(name, 0)), int(plan.settings[name])
        if 0 <= found < least:  # a retention of -1 is unlimited
            yield topic_api.TopicProblem(plan.name, name, str(found), f"{least} or more")
