"""FastStream at least once: the message is acknowledged when its handler is through, or a batch when its handler is."""

import asyncio
from typing import Any

from aiokafka import AIOKafkaProducer
from faststream import AckPolicy
from faststream.kafka import KafkaBroker
from faststream.redis import RedisBroker, StreamSub
from redis.asyncio import Redis

from benchmarks.peers.consuming import Consumed, Job, Tally, answer_jobs, early_on_kafka, early_on_redis

BATCH = 500


async def _raw(message: Any) -> Any:
    """Decode nothing: the handler gets what the client gave."""
    return message.raw_message


async def _on_kafka(job: Job, *, batch: bool = False, **options: Any) -> Consumed:
    producer = AIOKafkaProducer(bootstrap_servers=job.server)
    await producer.start()
    for key, value in job.messages():
        await producer.send(job.topic, value, key=key.encode())
    await producer.stop()
    tally = Tally(job)
    broker = KafkaBroker(job.server, apply_types=False, logger=None)

    @broker.subscriber(
        job.topic,
        group_id=job.group,
        auto_offset_reset="earliest",
        ack_policy=AckPolicy.ACK,
        decoder=_raw,
        batch=batch,
        max_records=BATCH if batch else None,
        **options,
    )
    async def handle(record: Any) -> None:
        for each in record if isinstance(record, tuple | list) else [record]:
            await tally.handle(each.value, (each.partition, each.offset))

    return await _run(broker, tally)


async def _on_redis(job: Job, *, batch: bool = False, **options: Any) -> Consumed:
    redis = Redis.from_url(job.server)
    messages = [value for _, value in job.messages()]
    for start in range(0, len(messages), BATCH):
        async with redis.pipeline(transaction=False) as pipe:
            for value in messages[start : start + BATCH]:
                pipe.xadd(job.topic, {"__data__": value})
            await pipe.execute()
    await redis.aclose()
    tally = Tally(job)
    broker = RedisBroker(job.server, apply_types=False, logger=None)
    stream = StreamSub(
        job.topic,
        group=job.group,
        consumer="one",
        last_id="0",
        batch=batch,
        max_records=BATCH if batch else None,
    )

    async def parsed(message: Any) -> Any:
        data = message.raw_message["data"]
        return [each[b"__data__"] for each in data] if batch else data[b"__data__"]

    @broker.subscriber(stream=stream, ack_policy=AckPolicy.ACK, decoder=parsed, **options)
    async def handle(value: Any) -> None:
        for each in value if batch else [value]:
            await tally.handle(each)

    return await _run(broker, tally)


async def _run(broker: Any, tally: Tally) -> Consumed:
    """Consume until the last message was handled; its own acknowledgement is not in the time."""
    async with asyncio.TaskGroup() as group:
        await broker.start()
        if tally.job.work_s:
            group.create_task(tally.watch(early_on_kafka if tally.job.is_kafka else early_on_redis))
        await tally.wait()
        await broker.stop()
    return tally.result()


async def ack(job: Job) -> Consumed:
    """Consume one message at a time, in `workers` consumers."""
    return await (_on_kafka if job.is_kafka else _on_redis)(job, max_workers=job.workers)


async def batch(job: Job) -> Consumed:
    """Consume in batches, each of which is one message to the handler."""
    return await (_on_kafka if job.is_kafka else _on_redis)(job, batch=True)


if __name__ == "__main__":
    answer_jobs({"ack": ack, "batch": batch})
