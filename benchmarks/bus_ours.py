"""Our side of the benchmark of the bus: a reader of a broker, and tasks that take, work and acknowledge."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from agentic_trading.bus.brokers.kafka.admin import create_topics, plan_of
from agentic_trading.bus.brokers.kafka.broker import KafkaBroker
from agentic_trading.bus.brokers.kafka.connection import KafkaSettings
from agentic_trading.bus.brokers.redis.broker import RedisBroker
from agentic_trading.bus.brokers.redis.redis import RedisBusSettings, RedisTopics
from agentic_trading.bus.errors import BusClosedError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import RECORDS, Broker, Subscription, Topic
from agentic_trading.clock import SystemClock
from agentic_trading.llm.event import Event
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from agentic_trading.llm.stores.jsonl.writer import Durability
from agentic_trading.worker.outbox import streaming
from benchmarks.peers.consuming import Consumed, Job, Tally, answer_jobs, early_on_kafka

BATCH = 500


PARTITIONS = 4


def broker_of(job: Job) -> Broker:
    """Return a broker as a user makes it; nothing is set but the address, and partitions on Redis."""
    return KafkaBroker(KafkaSettings(job.server)) if job.is_kafka else RedisBroker(redis_settings(job))


def redis_settings(job: Job) -> RedisBusSettings:
    """Return the settings of a bus on Redis with as many partitions as a topic has on Kafka."""
    return RedisBusSettings(job.server, partitions=PARTITIONS)


async def left_on_redis(job: Job) -> int:
    """Return how many messages the group has not finished."""
    lags = await RedisTopics(redis_settings(job)).lag([Topic(job.topic, Event)], [job.group])
    return sum(each.waiting + each.in_flight for each in lags)


async def _early_on_redis(tally: Tally) -> int:
    return tally.ahead(tally.job.count - await left_on_redis(tally.job))


async def consume(job: Job) -> Consumed:
    """Do a job; the clock stops when all is committed and the reader has left its group."""
    topic, tally = Topic(job.topic, Event), Tally(job)
    async with aclosing(broker_of(job)) as broker:
        await _fill(broker, topic, job)
        reader = await broker.subscribe([topic], job.group)
        async with asyncio.TaskGroup() as group:
            if job.work_s:
                group.create_task(tally.watch(early_on_kafka if job.is_kafka else _early_on_redis))
            for _ in range(job.workers):
                group.create_task(_work(reader, tally))
            await tally.wait()
            await reader.aclose()
            tally.end()
    return tally.result()


async def _fill(broker: Broker, topic: Topic[Event], job: Job) -> None:
    messages = [Message(key, value, {}) for key, value in job.messages()]
    for start in range(0, len(messages), BATCH):
        await broker.publish_all(topic, messages[start : start + BATCH])


async def _work(reader: Subscription, tally: Tally) -> None:
    try:
        while True:
            delivery = await reader.take()
            await tally.handle(delivery.message.value, (delivery.partition, delivery.position))
            await reader.ack(delivery)
    except BusClosedError:
        return


async def alone(job: Job) -> Consumed:
    """Do the work of a job without a bus: what this machine lets so many tasks do at this moment."""
    tally, messages = Tally(job), iter([value for _, value in job.messages()])

    async def work() -> None:
        for value in messages:
            await tally.handle(value)

    async with asyncio.TaskGroup() as group:
        for _ in range(job.workers):
            group.create_task(work())
    return tally.result()


async def publish(job: Job) -> Consumed:
    """Publish the messages in batches, and nothing else."""
    topic, tally = Topic(job.topic, Event), Tally(job)
    async with aclosing(broker_of(job)) as broker:
        await broker.publish(topic, Message("", b"", {}))  # the producer is open
        tally.begin()
        await _fill(broker, topic, job)
        tally.end()
    return tally.result()


async def outbox(job: Job) -> Consumed:
    """Send the lines of a worker's log, which is on disk, to `llm.records`, until the bus has the last one."""
    tally, settings = Tally(job), KafkaSettings(job.server, namespace=job.topic)
    plans = plan_of([RECORDS], max_message_bytes=settings.max_message_bytes, partitions=PARTITIONS)
    await create_topics(settings, plans, replicas=1)
    with TemporaryDirectory() as folder:
        log = JsonFileInteractionStore(Path(folder) / "log.jsonl", durability=Durability.RELAXED)
        async with aclosing(log), aclosing(KafkaBroker(settings)) as broker:
            await log.open()
            for number, (key, value) in enumerate(job.messages()):
                body = {"text": value.decode()}
                now = SystemClock().now()
                await log.record(
                    Event(
                        kind="bench.record",
                        id=f"{key}-{number}",
                        trace_id=key,
                        tenant_id="t",
                        time=now,
                        body=body,
                    )
                )
            head, _ = await log.head()
            await broker.check([RECORDS])
            tally.begin()
            async with streaming(log, broker, Path(folder) / "cursor.json") as sending:
                await sending.reached(head)
                tally.end()
    return tally.result()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    answer_jobs({"consume": consume, "alone": alone, "publish": publish, "outbox": outbox})
