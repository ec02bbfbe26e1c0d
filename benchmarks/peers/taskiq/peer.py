"""taskiq: each message is a task; on Redis acknowledged when it is through, on Kafka by the client every few seconds."""

import asyncio
from collections.abc import Iterator
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.partitioner import DefaultPartitioner
from redis.asyncio import Redis
from taskiq import AsyncBroker, TaskiqMessage
from taskiq.receiver import Receiver
from taskiq_aio_kafka import AioKafkaBroker
from taskiq_redis import RedisStreamBroker

from benchmarks.peers.consuming import Consumed, Job, Tally, answer_jobs


def _tasks(job: Job, broker: AsyncBroker) -> Iterator[tuple[str, bytes]]:
    for number, (key, value) in enumerate(job.messages()):
        message = TaskiqMessage(
            task_id=str(number), task_name="job", labels={}, args=[value.decode()], kwargs={}
        )
        yield key, broker.formatter.dumps(message).message


async def _on_kafka(job: Job) -> Any:
    broker = AioKafkaBroker(job.server, kafka_topic=job.topic)
    # its defaults are classes of kafka-python, whose newest version no longer fits to aiokafka
    broker.configure_producer(partitioner=DefaultPartitioner())
    broker.configure_consumer(
        group_id=job.group,
        auto_offset_reset="earliest",
        partition_assignment_strategy=(RoundRobinPartitionAssignor,),
    )
    producer = AIOKafkaProducer(bootstrap_servers=job.server)
    await producer.start()
    for key, value in _tasks(job, broker):
        await producer.send(job.topic, value, key=key.encode())
    await producer.stop()
    return broker


async def _on_redis(job: Job) -> Any:
    broker = RedisStreamBroker(
        job.server, queue_name=job.topic, consumer_group_name=job.group, consumer_id="0"
    )
    redis = Redis.from_url(job.server)
    values = [value for _, value in _tasks(job, broker)]
    for start in range(0, len(values), 500):
        async with redis.pipeline(transaction=False) as pipe:
            for value in values[start : start + 500]:
                pipe.xadd(job.topic, {"data": value})
            await pipe.execute()
    await redis.aclose()
    return broker


async def tasks(job: Job) -> Consumed:
    """Consume with `workers` tasks at once, until the last one is through; its own acknowledgement is not in the time."""
    broker = await (_on_kafka if job.is_kafka else _on_redis)(job)
    broker.is_worker_process = True
    tally = Tally(job)

    async def handle(value: str) -> None:
        await tally.handle(value.encode())

    broker.register_task(handle, task_name="job")
    receiver = Receiver(broker, max_async_tasks=job.workers, max_prefetch=job.workers)
    finish = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(receiver.listen(finish))
        await tally.wait()
        finish.set()
    await broker.shutdown()
    return tally.result()


if __name__ == "__main__":
    answer_jobs({"tasks": tasks})
