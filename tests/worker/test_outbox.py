"""The outbox: every line of the log is on the bus as it stands on disk, whatever the bus does meanwhile."""

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.errors import BusUnavailableError
from agentic_trading.bus.log_stream import StreamedLine
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import RECORDS, Topic
from agentic_trading.clock import SimClock, SystemClock
from agentic_trading.llm import JsonFileInteractionStore, StoreError
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.error_boundary import UnstreamedError
from agentic_trading.worker.outbox import Outbox, cursor_file_of, streaming
from tests.build import event, interaction


class Away(MemoryBroker):
    """A bus that takes nothing until it is back."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.is_away = True
        self.refused = asyncio.Event()

    async def publish_all(self, topic: Topic[Any], messages: Sequence[Message]) -> None:
        if self.is_away:
            self.refused.set()
            raise BusUnavailableError("bus:9092", "no answer")
        await super().publish_all(topic, messages)


class Watching(MemoryBroker):
    """A bus that looks at the cursor's file whenever it is sent something."""

    def __init__(self, cursor: Path) -> None:
        super().__init__()
        self.cursor = cursor
        self.seen: list[bytes] = []

    async def publish_all(self, topic: Topic[Any], messages: Sequence[Message]) -> None:
        self.seen.append(await asyncio.to_thread(self.cursor.read_bytes))
        await super().publish_all(topic, messages)


async def on_bus(broker: MemoryBroker) -> list[Message]:
    """Return what the topic of records has."""
    return [delivery.message async for delivery in broker.scan(RECORDS)]


@asynccontextmanager
async def log_at(folder: Path) -> AsyncGenerator[JsonFileInteractionStore]:
    async with aclosing(JsonFileInteractionStore(folder / "interactions.jsonl")) as store:
        yield store


async def test_published_lines_match_the_log(tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with log_at(tmp_path) as store:
        async with streaming(store, broker, cursor_file_of(store.path)) as outbox:
            attempt = interaction(trace_id="a", tenant_id="t1")
            await store.record(event(trace_id="a", causation_id="cause", kind="bar.closed"))
            await store.store(attempt)
        lines = (await asyncio.to_thread(store.path.read_bytes)).splitlines()

    first, second = messages = await on_bus(broker)
    assert [message.value for message in messages] == lines
    assert [StreamedLine.of(message).log_id for message in messages] == [outbox.cursor.log_id] * 2
    assert (first.key, first.headers["ce_subject"], first.headers["ce_causationid"]) == (
        "a", "bar.closed", "cause",
    )  # fmt: skip
    assert second.headers["ce_id"] == attempt.interaction_id
    assert second.headers["ce_source"] == f"/agentic-trading/t1/logs/{outbox.cursor.log_id}"
    assert (second.headers["at_seq"], second.headers["at_hash"]) == ("2", json.loads(lines[1])["hash"])


async def test_reached_waits_until_line_is_published() -> None:
    store, broker = MemoryInteractionStore(), Away()
    recorded = event()
    async with streaming(store, broker, None, clock=SimClock(recorded.time)) as outbox, asyncio.timeout(2):
        first = await store.record(recorded)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(outbox.reached(first))
            await broker.refused.wait()
            assert not waiting.done()
            lag = await outbox.lag()
            broker.is_away = False
        assert lag.lines == 1
        assert "no answer" in lag.problem
        await outbox.reached(await store.record(recorded))
        assert await outbox.lag() == type(lag)(0, 0.0, "", 0)

    assert len(await on_bus(broker)) == 1


async def test_next_outbox_continues_after_last_line(tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with log_at(tmp_path) as store:
        cursor = cursor_file_of(store.path)
        for number in range(2):
            async with streaming(store, broker, cursor):
                await store.record(event(id=f"event-{number}"))

    assert [message.headers["ce_id"] for message in await on_bus(broker)] == ["event-0", "event-1"]
    assert len({message.headers["at_log"] for message in await on_bus(broker)}) == 1


@pytest.mark.parametrize("left", ["another log", "a cut log", "no cursor"])
async def test_other_log_restarts_under_new_id(left: str, tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with log_at(tmp_path) as store:
        cursor = cursor_file_of(store.path)
        async with streaming(store, broker, cursor):
            await store.record(event(id="old-1"))
            await store.record(event(id="old-2"))
    if left == "no cursor":
        await asyncio.to_thread(cursor.write_bytes, b'{"log_id": "torn')
    else:
        await asyncio.to_thread(store.path.unlink)

    async with log_at(tmp_path) as store:
        for number in range({"another log": 3, "a cut log": 1, "no cursor": 0}[left]):
            await store.record(event(id=f"new-{number}"))
        async with streaming(store, broker, cursor):
            lines, _ = await store.head()

    sent = (await on_bus(broker))[2:]
    assert [message.headers["at_seq"] for message in sent] == [str(number + 1) for number in range(lines)]
    assert len({message.headers["at_log"] for message in await on_bus(broker)}) == 2


async def test_log_id_is_stored_before_sending(tmp_path: Path) -> None:
    async with log_at(tmp_path) as store:
        cursor = cursor_file_of(store.path)
        broker = Watching(cursor)
        async with streaming(store, broker, cursor) as outbox:
            await outbox.reached(await store.record(event()))

    assert json.loads(broker.seen[0])["log_id"] == outbox.cursor.log_id


async def test_oversized_line_is_skipped_and_counted() -> None:
    store, broker = MemoryInteractionStore(), MemoryBroker(max_message_bytes=1000)
    for number in range(9):
        await store.record(event(id=f"event-{number}", body={"text": "x" * (9000 if number == 4 else 1)}))

    async with streaming(store, broker, None) as outbox:
        await outbox.reached(9)
        lag = await outbox.lag()

    assert [message.headers["at_seq"] for message in await on_bus(broker)] == list("12346789")
    assert (lag.lines, lag.left_out) == (0, 1)


async def test_outbox_close_is_bounded_during_outage(
    tmp_path: Path,
) -> None:
    broker = Away()
    async with log_at(tmp_path) as store:
        cursor = cursor_file_of(store.path)
        async with asyncio.timeout(3), streaming(store, broker, cursor, drain_s=0.05) as outbox:
            seq = await store.record(event(id="kept"))
            await broker.refused.wait()
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(_unstreamed(outbox, seq))
                await asyncio.sleep(0)
                outbox.stop()
            assert "no answer" in waiting.result()
            assert "no answer" in await _unstreamed(outbox, seq)
        broker.is_away = False
        async with streaming(store, broker, cursor):
            pass

    assert [message.headers["ce_id"] for message in await on_bus(broker)] == ["kept"]


async def test_unwritable_cursor_raises_only_at_open(
    tmp_path: Path,
) -> None:
    store, broker, folder = MemoryInteractionStore(), MemoryBroker(), tmp_path / "gone"
    with pytest.raises(StoreError, match="cannot be written"):
        await Outbox(store, broker, folder / "cursor", clock=SystemClock()).open()

    await asyncio.to_thread(folder.mkdir)
    with capture_logs() as logs:
        async with streaming(store, broker, folder / "cursor") as outbox:
            await asyncio.to_thread(shutil.rmtree, folder)
            await outbox.reached(await store.record(event()))

    assert len(await on_bus(broker)) == 1
    assert {entry["event"] for entry in logs} == {"outbox_cursor_unwritten"}


@pytest.mark.parametrize("closed", ["bus", "log"])
async def test_closed_bus_or_log_ends_sending(closed: str) -> None:
    store, broker = MemoryInteractionStore(), MemoryBroker()
    async with asyncio.timeout(2), streaming(store, broker, None) as outbox:
        await outbox.reached(await store.record(event()))
        await (broker if closed == "bus" else store).aclose()
        if closed == "bus":
            await store.record(event())

        await _unstreamed(outbox, 2)


class Failing(MemoryInteractionStore):
    """A log that cannot be read on."""

    async def follow(self, after: int = 0) -> AsyncGenerator[Any]:
        if after >= 0:
            raise StoreError(Path("log"), "the disk is gone")
        yield


async def test_log_failure_ends_the_wait() -> None:
    async with asyncio.timeout(2), streaming(Failing(), MemoryBroker(), None) as outbox:
        assert "the disk is gone" in await _unstreamed(outbox, 1)


class Foreign(MemoryInteractionStore):
    """A log with a line of a newer release."""

    async def follow(self, after: int = 0) -> AsyncGenerator[Any]:
        async with aclosing(super().follow(after)) as batches:
            async for batch in batches:
                yield [
                    line if line.seq != 2 else type(line)(b'{"new":1}', 9, 2, line.prev, line.hash)
                    for line in batch
                ]


async def test_unknown_record_is_skipped() -> None:
    store, broker = Foreign(), MemoryBroker()
    for _ in range(3):
        await store.record(event())

    async with asyncio.timeout(2), streaming(store, broker, None) as outbox:
        await outbox.reached(3)

    assert [message.headers["at_seq"] for message in await on_bus(broker)] == ["1", "3"]


async def _unstreamed(outbox: Outbox, seq: int) -> str:
    """Wait for a line that will not be on the bus, and return why."""
    with pytest.raises(UnstreamedError) as raised:
        await outbox.reached(seq)
    return str(raised.value)
