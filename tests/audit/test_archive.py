"""The archive has every record of every log once, and names what is missing, forged, in conflict or cut."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agentic_trading.audit.archive import opened_archive
from agentic_trading.audit.verify import STATE_NAME
from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.errors import BusUnavailableError, PartitionsElsewhereError
from agentic_trading.bus.log_stream import StreamedLine
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import DEAD_LETTERS, RECORDS, PartitionProgress, Subscription, Topic
from agentic_trading.clock import SystemClock
from agentic_trading.llm import Event, JsonFileInteractionStore, LLMInteraction, StoreError
from agentic_trading.llm.log_line import read_line
from agentic_trading.llm.store import ChainedRecord, ChainHead, Record
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.llm.stores.record_codec import write_line
from tests.audit.archiving import WorkerLog, archive, archiver, checked, letters, reasons
from tests.build import NOW, envelope, event, interaction


def records_of(folder: Path) -> list[dict[str, Any]]:
    """Return the records of an archive but for its own first one, without their places in the chain."""
    lines = [json.loads(line) for line in (folder / "interactions.jsonl").read_bytes().splitlines()]
    return [{key: line[key] for key in line if key not in {"seq", "prev", "hash"}} for line in lines[1:]]


def two_logs() -> tuple[WorkerLog, WorkerLog]:
    """Return the logs of two workers: a trace went over both, and the second one repeats an attempt of the first."""
    first, second = WorkerLog("log-1"), WorkerLog("log-2")
    attempt = interaction(trace_id="t1")
    first.add(event(trace_id="t1"), attempt, event(trace_id="t2"))
    second.add(attempt.model_copy(update={"stored_at": NOW.replace(year=2027)}), event(trace_id="t1"))
    return first, second


async def test_two_logs_are_archived_once_completely(
    tmp_path: Path,
) -> None:
    broker, (first, second) = MemoryBroker(), two_logs()
    for log in (first, second, first):  # the first once more, as after a crash
        await log.send(broker)

    summary = await archive(tmp_path, broker)
    check = await checked(tmp_path, broker)

    wanted = [*first.lines, second.lines[1]]
    spelled = {line.record for line in wanted}
    kept = (await asyncio.to_thread((tmp_path / "interactions.jsonl").read_bytes)).splitlines()[1:]
    assert {read_line(line).record for line in kept} == spelled
    assert len(kept) == len(wanted) == 4
    assert (summary.messages, summary.records, summary.dead_letters, summary.logs) == (8, 4, 0, 2)
    assert (check.findings, check.notes, check.logs) == ((), (), {"log-1": 3, "log-2": 2})
    async with aclosing(JsonlRecords(tmp_path / "interactions.jsonl")) as records:
        assert [type(one) for one in await records.trace("t1")] == [Event, LLMInteraction, Event]


async def test_archived_lines_are_not_read_again(tmp_path: Path) -> None:
    broker, (first, second) = MemoryBroker(), two_logs()
    await first.send(broker, 1, 2)
    await archive(tmp_path, broker)

    await first.send(broker, 3)
    await second.send(broker)
    summary = await archive(tmp_path, broker)

    assert (summary.messages, summary.records) == (3, 2)
    assert (await checked(tmp_path, broker)).findings == ()


@pytest.mark.parametrize(
    ("sent", "missing"),
    [
        ((1, 2, 3, 4, 6), "line 5 is missing"),
        ((3, 4, 5, 6), "lines 1 to 2 are missing"),
        ((6, 2, 5, 1, 3), "line 4 is missing"),
    ],
)
async def test_missing_lines_are_named(sent: tuple[int, ...], missing: str, tmp_path: Path) -> None:
    broker, log = MemoryBroker(), WorkerLog("log-1")
    log.add(*(event() for _ in range(6)))
    await log.send(broker, *sent)

    await archive(tmp_path, broker)
    before = reasons(await checked(tmp_path))
    await log.send(broker)
    await archive(tmp_path, broker)

    assert before == [f"log-1: {missing}"]
    assert (await checked(tmp_path)).findings == ()


async def test_replaced_line_breaks_the_chain(
    tmp_path: Path,
) -> None:
    broker, log, forged = MemoryBroker(), WorkerLog("log-1"), WorkerLog("log-1")
    log.add(*(event() for _ in range(3)))
    line, _ = write_line(event().wire, log.lines[0].head)
    forged.lines.append(read_line(line))
    await log.send(broker, 1, 3)
    await forged.send(broker)

    await archive(tmp_path, broker)
    before = reasons(await checked(tmp_path))
    await log.send(broker, 2)
    await archive(tmp_path, broker)

    assert before == ["log-1: line 3 does not continue the line before it"]
    assert "log-1: line 2 came twice, with different content" in reasons(await checked(tmp_path))


async def test_duplicate_warning_is_kept_once(tmp_path: Path) -> None:
    broker, first, second = MemoryBroker(), WorkerLog("log-1"), WorkerLog("log-2")
    for log, spent in ((first, 85), (second, 86)):
        log.add(event(id="w", kind="budget.threshold_reached", body={"spent": spent}), event())
        await log.send(broker)

    summary = await archive(tmp_path, broker)
    check = await checked(tmp_path)

    warnings = [one for one in records_of(tmp_path) if one["kind"] == "budget.threshold_reached"]
    assert [one["body"]["spent"] for one in warnings] == [85]
    assert (summary.messages, summary.records, summary.dead_letters) == (4, 3, 0)
    assert (check.findings, check.notes) == ((), ())


@pytest.mark.parametrize("end", ["first", "last"])
async def test_edge_lines_are_checked_against_chain(end: str, tmp_path: Path) -> None:
    broker, log = MemoryBroker(), WorkerLog("log-1")
    head = ChainHead(0, "a" * 64) if end == "first" else ChainHead(1, "b" * 64)
    log.add(event(), event())
    line, _ = write_line(event().wire, head)
    await log.send(broker, *((2,) if end == "first" else ()))
    log.lines.append(read_line(line))
    await log.send(broker, 3)

    await archive(tmp_path, broker)

    found = reasons(await checked(tmp_path))
    assert (
        found[-1]
        == {
            "first": "log-1: line 2 does not continue the line before it",
            "last": "log-1: line 2 came twice, with different content",
        }[end]
    )


async def test_altered_line_becomes_dead_letter(
    tmp_path: Path,
) -> None:
    broker, log = MemoryBroker(), WorkerLog("log-1")
    log.add(event(), event(), event())
    good = [StreamedLine(line, log.log_id).message() for line in log.lines]
    changed = Message(good[1].key, good[1].value.replace(b"BTCUSDT", b"ETHUSDT"), good[1].headers)
    other_place = Message(good[2].key, good[2].value, {**good[2].headers, "at_seq": "2"})
    await broker.publish_all(RECORDS, [good[0], changed, other_place])

    summary = await archive(tmp_path, broker)

    assert [letter.reason for letter in await letters(broker)] == ["checksum", "decode"]
    assert (summary.records, summary.dead_letters) == (1, 2)
    assert reasons(await checked(tmp_path)) == []  # nothing says that there are more lines
    log.add(event())
    await log.send(broker, 4)
    await archive(tmp_path, broker)
    assert reasons(await checked(tmp_path)) == ["log-1: lines 2 to 3 are missing"]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("differs", ["body", "answer", "price"])
async def test_conflicting_record_keeps_the_first(differs: str, tmp_path: Path, *, restarted: bool) -> None:
    broker, first, second = MemoryBroker(), WorkerLog("log-1"), WorkerLog("log-2")
    asked = envelope()
    one: Record
    other: Record
    if differs == "body":
        one, other = [event(id="e1", trace_id="t", body={"n": n}) for n in (1, 2)]
    else:
        changes: dict[str, Any] = {"answer": ("raw_output", '{"action":"sell"}'), "price": ("cost_nusd", 7)}
        name, value = changes[differs]
        one, other = interaction(envelope=asked), interaction(envelope=asked, **{name: value})
    first.add(one)
    second.add(other)
    await first.send(broker)
    if restarted or differs == "price":  # what a log knows of its own records says nothing of prices
        await archive(tmp_path, broker)
    await second.send(broker)
    await archive(tmp_path, broker)

    check = await checked(tmp_path)
    (letter,) = await letters(broker)
    assert (letter.reason, letter.raw) == ("conflict", second.lines[0].line)
    assert len(records_of(tmp_path)) == 1
    assert check.findings == ()
    assert "1 records came with different content" in check.notes[0]


class Full(MemoryBroker):
    """A bus that takes no dead letter for once."""

    refused = 0

    async def publish(self, topic: Topic[Any], message: Message) -> None:
        if topic is DEAD_LETTERS and not self.refused:
            self.refused += 1
            raise BusUnavailableError("bus:9092", "no answer")
        await super().publish(topic, message)


async def test_unreportable_message_is_redelivered(tmp_path: Path) -> None:
    broker, log = Full(), WorkerLog("log-1")
    log.add(event(), event())
    await log.send(broker)
    await broker.publish(RECORDS, Message("key", b"no line", {}))

    summary = await archive(tmp_path, broker)

    assert (broker.refused, summary.messages, summary.records) == (1, 3, 2)
    assert len(await letters(broker)) == 1


class Absent(MemoryBroker):
    """A bus that is not there at first."""

    asked = 0

    async def subscribe(self, topics: Sequence[Topic[Any]], group: str) -> Any:
        self.asked += 1
        if self.asked == 1:
            raise BusUnavailableError("bus:9092", "no answer")
        return await super().subscribe(topics, group)


async def test_bus_outage_at_start_is_retried(
    tmp_path: Path,
) -> None:
    broker, log = Absent(), WorkerLog("log-1")
    log.add(event())
    await log.send(broker)
    with pytest.raises(BusUnavailableError):
        await archive(tmp_path, broker)
    broker.asked = 0

    async with archiver(tmp_path, broker) as one, asyncio.timeout(5), asyncio.TaskGroup() as group:
        running = group.create_task(one.run())
        while (await broker_lag(broker)) != 0:  # noqa: ASYNC110 - the archiver says it to nothing else
            await asyncio.sleep(0.01)
        one.stop()

    assert running.result().records == 1


async def broker_lag(broker: MemoryBroker) -> int:
    """Return how many records are not archived; -1 before anything reads them."""
    lags = [each for each in broker.statistics().backlogs if each.topic == RECORDS.name]
    return lags[0].waiting + lags[0].in_flight if lags else -1


async def test_cut_archive_is_detected_and_refused(
    tmp_path: Path,
) -> None:
    broker, log = MemoryBroker(), WorkerLog("log-1")
    log.add(event(), event())
    await log.send(broker)
    await archive(tmp_path, broker)
    path, state = tmp_path / "interactions.jsonl", tmp_path / STATE_NAME
    lines = await asyncio.to_thread(path.read_bytes)
    await asyncio.to_thread(path.write_bytes, b"".join(lines.splitlines(keepends=True)[:-1]))

    by_both = reasons(await checked(tmp_path, broker))
    with pytest.raises(StoreError, match="not contain the 3 lines that the archive had"):
        await archive(tmp_path, broker)
    cut = json.loads(await asyncio.to_thread(state.read_bytes))
    cut |= {"lines": 1, "hash": json.loads(lines.splitlines()[0])["hash"]}  # that file can be changed as well
    await asyncio.to_thread(state.write_text, json.dumps(cut))

    assert by_both[0] == ": the archive is cut: it had a line 3 by archive.json"
    assert by_both[1].startswith(": the archive is cut: it had a line 3 by its head of 20")
    assert reasons(await checked(tmp_path, broker)) == by_both[1:]
    assert reasons(await checked(tmp_path)) == []


async def test_missing_archive_state_is_reported(tmp_path: Path) -> None:
    broker, log = MemoryBroker(), WorkerLog("log-1")
    log.add(*(event() for _ in range(4)))
    await log.send(broker, 1, 2)
    await archive(tmp_path, broker)
    await asyncio.to_thread((tmp_path / STATE_NAME).unlink)

    without = reasons(await checked(tmp_path, MemoryBroker()))
    await log.send(broker, 3, 4)
    await archive(tmp_path, broker)

    assert without[0].startswith(": archive.json is missing")
    assert without[1].startswith(": no head of archive")
    assert reasons(await checked(tmp_path)) == ["log-1: lines 1 to 2 are missing"]


async def test_worker_log_is_rejected_as_archive(tmp_path: Path) -> None:
    async with aclosing(JsonFileInteractionStore(tmp_path / "interactions.jsonl")) as store:
        await store.record(event())

    with pytest.raises(StoreError, match="a log that is not an archive"):
        await archive(tmp_path, MemoryBroker())
    with pytest.raises(StoreError, match="contains no archive"):
        await checked(tmp_path)


async def test_unreadable_state_is_named(tmp_path: Path) -> None:
    await archive(tmp_path, MemoryBroker())
    await asyncio.to_thread((tmp_path / STATE_NAME).write_bytes, b'{"archive_id"')

    with pytest.raises(StoreError, match="is not the state of an archive"):
        await checked(tmp_path)


async def test_memory_archive_keeps_same_records() -> None:
    broker, store, (first, second) = MemoryBroker(), MemoryInteractionStore(), two_logs()
    await first.send(broker)
    await second.send(broker)

    one = await opened_archive(store, None, broker, SystemClock())
    summary = await one.run(until_end=True)

    kept = [line async for line in _all(store)]
    assert {line.record for line in kept[1:]} == {line.record for line in (*first.lines, second.lines[1])}
    assert (summary.records, [*one.state.findings()]) == (4, [])


async def _all(store: MemoryInteractionStore) -> AsyncGenerator[ChainedRecord]:
    """Give the lines that a log has."""
    await store.aclose()
    async with aclosing(store.follow()) as batches:
        async for batch in batches:
            for line in batch:
                yield line


class SharedReader:
    """A reader of a topic with two partitions, of which another reader has the second one at times."""

    def __init__(self, inner: Subscription, shares: Iterator[str]) -> None:
        self._inner = inner
        self._shares = shares
        self.take, self.ack = inner.take, inner.ack
        self.give_back, self.aclose = inner.give_back, inner.aclose

    async def progress(self) -> Sequence[PartitionProgress]:
        second = None if next(self._shares) == "y" else 0
        return [*await self._inner.progress(), PartitionProgress(RECORDS.name, 1, 0, second)]


class SharedBroker(MemoryBroker):
    """A bus on which the archiver shares the stream of records with another reader."""

    def __init__(self, shares: str, reader: type[SharedReader] = SharedReader) -> None:
        """Share at each look for which there is a `y`, after the last one as at that."""
        super().__init__()
        self._reader = reader
        self._shares = chain(shares, repeat(shares[-1]))

    async def subscribe(self, topics: Sequence[Topic[Any]], group: str) -> Subscription:
        return self._reader(await super().subscribe(topics, group), self._shares)


class Hurrying(SystemClock):
    """A clock on which twenty seconds pass between two looks."""

    def __init__(self) -> None:
        self._looks = count()

    def monotonic(self) -> float:
        return 20.0 * next(self._looks)


async def test_until_end_fails_without_all_partitions(tmp_path: Path) -> None:
    broker, (first, _) = SharedBroker("y"), two_logs()
    await first.send(broker)

    async with archiver(tmp_path, broker, clock=Hurrying()) as one:
        with pytest.raises(PartitionsElsewhereError, match=r"1 of the 2 partitions of llm.records .* \(1\)"):
            await one.run(until_end=True)


async def test_until_end_waits_for_late_partitions(tmp_path: Path) -> None:
    broker, (first, _) = SharedBroker("yn"), two_logs()
    await first.send(broker)

    async with archiver(tmp_path, broker, clock=SystemClock()) as one:
        summary = await one.run(until_end=True)

    assert summary.records == len(first.lines)


async def test_archiver_warns_while_partitions_are_missing(tmp_path: Path) -> None:
    class Stopping(SharedReader):
        """Let the archiver end after a few looks."""

        looks = 0

        async def progress(self) -> Sequence[PartitionProgress]:
            self.looks += 1
            if self.looks == len("yyyyn") + 1:
                one.stop()
            return await super().progress()

    broker = SharedBroker("yyyyn", Stopping)
    async with archiver(tmp_path, broker, clock=Hurrying()) as one:
        with capture_logs() as logs:
            await one.run()

    named = [each for each in logs if each["event"].startswith("archive_partitions")]
    assert [each["event"] for each in named] == ["archive_partitions_missing", "archive_partitions_complete"]
    assert (named[0]["missing"], named[0]["of"]) == ([1], 2)
