"""The index knows what the log says, whatever becomes of its file."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, closing
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from typing_extensions import override

from agentic_trading.clock import SystemClock
from agentic_trading.llm import JsonFileInteractionStore, StoreError
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.facts import EVERYTHING, RecordQuery
from agentic_trading.llm.log_line import IndexRow
from agentic_trading.llm.store import ChainedRecord
from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.jsonl.index import LogIndex
from agentic_trading.llm.stores.jsonl.index_query import IndexQueries
from agentic_trading.llm.stores.jsonl.index_rows import id_number
from agentic_trading.llm.stores.jsonl.reader import START, LogPosition, LogReader
from agentic_trading.llm.stores.jsonl.segments import LogFiles
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.llm.stores.record_codec import identity_of
from tests.build import NOW, event, interaction
from tests.llm.stores.jsonl_logs import HastyDisk, reopened, written


def index_of(path: Path) -> Path:
    return LogFiles(path).index


def ids_known(path: Path, *, busy_s: float = 10.0) -> list[int]:
    """Return the numbers of all ids that an index of the log knows, in order."""
    index = LogIndex(LogReader(path), busy_s=busy_s)
    try:
        return index.answer(
            lambda db: [row[0] for row in db.execute("SELECT id FROM records ORDER BY seq")], None
        )
    finally:
        index.close()


def is_on_disk(path: Path) -> bool:
    """Say whether the file beside the log is an index that knows all of it."""
    with closing(sqlite3.connect(index_of(path))) as db:
        (count,) = db.execute("SELECT count(*) FROM records").fetchone()
    return bool(count == len(path.read_bytes().splitlines()))


def delete(index: Path) -> None:
    index.unlink()


def fill_with_garbage(index: Path) -> None:
    index.write_bytes(b"not a database, but as long as one" * 1000)


def damage_in_the_middle(index: Path) -> None:
    pages = index.read_bytes()
    index.write_bytes(pages[:4096] + b"\xff" * (len(pages) - 4096))


def cut(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:5000])


def empty(index: Path) -> None:
    index.write_bytes(b"")


def age(index: Path) -> None:
    with closing(sqlite3.connect(index)) as db:
        db.execute("PRAGMA user_version = 999")


def predate(index: Path) -> None:
    """Leave what an earlier release made: all that was known then, and no index by tenant."""
    with closing(sqlite3.connect(index)) as db, db:
        for name in ("by_id", "by_trace", "by_envelope", "by_request", "by_tenant"):
            db.execute(f"DROP INDEX {name}")
        db.execute("CREATE INDEX by_trace ON records (tenant)")
        db.execute("PRAGMA user_version = 2")


def lose_rows(index: Path) -> None:
    with closing(sqlite3.connect(index)) as db, db:
        db.execute("DELETE FROM records")


def lose_tables(index: Path) -> None:
    with closing(sqlite3.connect(index)) as db, db:
        db.execute("DROP TABLE head")


@pytest.mark.parametrize(
    "harm",
    [delete, fill_with_garbage, damage_in_the_middle, cut, empty, age, predate, lose_rows, lose_tables],
)
def test_lost_or_damaged_index_is_rebuilt(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    path = tmp_path / "log.jsonl"
    ids = [id_number(recorded.id) for recorded in written(path, count=50)]
    assert ids_known(path) == ids

    harm(index_of(path))

    assert ids_known(path) == ids
    assert is_on_disk(path)


def test_index_of_another_log_is_rebuilt(tmp_path: Path) -> None:
    path, other = tmp_path / "log.jsonl", tmp_path / "other.jsonl"
    ids = [id_number(recorded.id) for recorded in written(path, count=5)]
    written(other, count=9)
    ids_known(other)

    index_of(other).rename(index_of(path))

    assert ids_known(path) == ids


def test_index_of_shortened_log_is_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    ids = [id_number(recorded.id) for recorded in written(path, count=5)]
    ids_known(path)

    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))

    assert ids_known(path) == ids[:3]


def test_index_catches_up_from_last_position(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path, count=5)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    first = ids_known(path)

    path.write_bytes(b"\0" * len(lines[0]) + whole[len(lines[0]) :])  # the first line is not read again

    assert ids_known(path)[:2] == first
    assert len(ids_known(path)) == 5


def test_unwritable_index_is_kept_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    ids = [id_number(recorded.id) for recorded in written(path)]
    index_of(path).mkdir()

    assert ids_known(path) == ids
    assert list(index_of(path).iterdir()) == []


def test_index_locked_elsewhere_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    ids = [id_number(recorded.id) for recorded in written(path)]
    ids_known(path)

    with closing(sqlite3.connect(index_of(path), isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        assert ids_known(path, busy_s=0) == ids

    assert is_on_disk(path)


class StoppedClock(SystemClock):
    """A clock whose seconds a test sets."""

    seconds = 0.0

    @override
    def monotonic(self) -> float:
        return self.seconds


def test_index_returns_to_its_file_when_the_busy_time_has_passed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    ids = [id_number(recorded.id) for recorded in written(path)]
    clock = StoppedClock()
    index = LogIndex(LogReader(path), busy_s=0.01, clock=clock)

    def known() -> tuple[list[int], str]:
        query = "SELECT id FROM records ORDER BY seq"
        return index.answer(lambda db: ([row[0] for row in db.execute(query)], file_of(db)), None)

    with closing(sqlite3.connect(index_of(path), isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        assert known() == (ids, "")
        clock.seconds = 1
        assert known() == (ids, "")
    assert known() == (ids, "")  # it is free, but was just tried
    clock.seconds = 2
    assert known() == (ids, str(index_of(path)))
    index.close()

    assert is_on_disk(path)


def test_locked_index_is_tried_without_reading_the_log_again(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path)
    reader = Walks(path)
    index = LogIndex(reader, busy_s=0)

    with closing(sqlite3.connect(index_of(path), isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        index.answer(lambda db: None, None)
        before = reader.count
        index.answer(lambda db: None, None)
    index.close()

    assert reader.count == before


def test_file_damaged_while_its_index_is_in_memory_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path)
    index = LogIndex(LogReader(path), busy_s=0)
    with closing(sqlite3.connect(index_of(path), isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        index.answer(lambda db: None, None)

    fill_with_garbage(index_of(path))
    index.answer(lambda db: None, None)
    index.close()

    assert is_on_disk(path)


def file_of(db: sqlite3.Connection) -> str:
    """Return the file of a database, empty if it is in memory."""
    return str(db.execute("PRAGMA database_list").fetchone()[2])


def test_concurrent_indexers_index_each_line_once(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    ids = [id_number(recorded.id) for recorded in written(path)]
    first, second = LogIndex(LogReader(path)), LogIndex(LogReader(path))

    counts = [
        index.answer(lambda db: db.execute("SELECT count(*) FROM records").fetchone(), None)
        for index in (first, second)
    ]
    first.close()
    second.close()

    assert counts == [(3,), (3,)]
    assert ids_known(path) == ids


class Walks(LogReader):
    """Count how often the log is read."""

    count = 0

    def walk(
        self, start: LogPosition = START, last: int | None = None
    ) -> Iterator[tuple[ChainedRecord, LogPosition]]:
        self.count += 1
        return super().walk(start, last)


def test_log_that_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path)
    reader = Walks(path)
    index = LogIndex(reader)
    index.answer(lambda db: None, None)
    before = reader.count
    lines = index.answer(lambda db: db.execute("SELECT count(*) FROM records").fetchone(), None)
    index.close()

    assert reader.count == before
    assert lines == (len(path.read_bytes().splitlines()),)


def test_new_lines_are_found_after_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    index = LogIndex(LogReader(path))
    counts = [index.answer(lambda db: db.execute("SELECT count(*) FROM records").fetchone(), None)]
    with path.open("ab") as file:
        file.write(lines[-1])
    counts.append(index.answer(lambda db: db.execute("SELECT count(*) FROM records").fetchone(), None))
    index.close()

    assert counts == [(len(lines) - 1,), (len(lines),)]


def test_lines_up_to_another_end_are_found_in_the_same_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path)
    index = LogIndex(LogReader(path))
    counts = [
        index.answer(lambda db: db.execute("SELECT count(*) FROM records").fetchone(), end) for end in (1, 2)
    ]
    index.close()

    assert counts == [(1,), (2,)]


def test_log_without_an_active_segment_has_no_state(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path)
    state = LogReader(path).state()
    path.unlink()

    assert state is not None
    assert LogReader(path).state() is None


def test_overtaken_indexer_adopts_finished_work(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    ids = [id_number(recorded.id) for recorded in written(path)]

    class Overtaken(LogReader):
        """Let another process index the log while this one reads it."""

        def facts(self, line: ChainedRecord) -> IndexRow:
            ids_known(path)
            return super().facts(line)

    index = LogIndex(Overtaken(path))
    index.answer(lambda db: None, None)
    index.close()

    assert ids_known(path) == ids


def test_invalid_index_query_raises(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path)
    index = LogIndex(LogReader(path))

    with pytest.raises(StoreError, match="no such table: nowhere"):
        index.answer(lambda db: db.execute("SELECT 1 FROM nowhere"), None)

    index.close()


def test_thousands_of_lines_are_all_indexed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"

    ids = [id_number(recorded.id) for recorded in written(path, count=5_003)]

    assert ids_known(path) == ids


def indexes_of(path: Path) -> set[str]:
    with closing(sqlite3.connect(index_of(path))) as db:
        return {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")}


def test_old_index_gains_missing_indexes(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path)
    ids_known(path)
    made = indexes_of(path)
    predate(index_of(path))
    assert indexes_of(path) != made

    ids_known(path)

    assert indexes_of(path) == made


def test_indexes_are_made_again_for_another_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path)
    index = LogIndex(LogReader(path))
    index.answer(lambda db: None, None)
    made = indexes_of(path)
    path.unlink()
    ids = [id_number(recorded.id) for recorded in written(path, count=2)]

    found = index.answer(lambda db: db.execute("SELECT id FROM records ORDER BY seq").fetchall(), None)
    index.close()

    assert found == [(id_,) for id_ in ids]
    assert indexes_of(path) == made


def test_another_process_reads_between_two_new_indexes(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path)
    index = LogIndex(LogReader(path))
    seen: list[int] = []

    def look(statement: str) -> None:
        if statement.startswith("CREATE INDEX"):
            seen.append(len({name for name in indexes_of(path) if name.startswith("by_")}))

    index.answer(lambda db: db.set_trace_callback(look), None)
    made = {name for name in indexes_of(path) if name.startswith("by_")}
    path.unlink()
    written(path, count=2)  # another log: its index is made from the start
    index.answer(lambda db: None, None)
    index.close()

    assert seen == list(range(len(made)))


def test_names_of_another_process_are_read_during_a_query(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path)
    index = LogIndex(LogReader(path))

    def sums(db: sqlite3.Connection) -> list[tuple[str, ...]]:
        reopened(path, event("order.filled"))
        ids_known(path)
        queries = IndexQueries(db, index.names, lambda places: iter(()))
        return [found.key for found in queries.sums(["kind"], EVERYTHING, None)]

    kinds = index.answer(sums, None)
    index.close()

    assert kinds == [("bar.closed",), ("order.filled",)]


@pytest.mark.parametrize("time", ["yesterday", "2026-01-02T00:00:00"])
def test_record_with_an_unreadable_time_is_named(tmp_path: Path, time: str) -> None:
    path = tmp_path / "log.jsonl"
    told = event()
    file = LogFile(path, HastyDisk())
    file.append([(identity_of(told), told.wire.replace(b"2026-01-02T00:00:00Z", time.encode()))], sync=True)
    file.close()

    with pytest.raises(StoreError, match=r"log\.jsonl:1: it holds neither .*(isoformat|has no zone)"):
        ids_known(path)


def test_failed_indexing_leaves_no_names(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path)

    class Enormous(LogReader):
        """Read a number that SQLite cannot hold."""

        is_enormous = True

        def facts(self, line: ChainedRecord) -> IndexRow:
            row = super().facts(line)
            return replace(row, kind="lost", cost_nusd=1 << 63) if self.is_enormous else row

    reader = Enormous(path)
    index = LogIndex(reader)
    with pytest.raises(OverflowError):
        index.answer(lambda db: None, None)
    reader.is_enormous = False

    names = index.answer(lambda db: db.execute("SELECT name FROM names").fetchall(), None)
    number = index.names.number("lost")
    index.close()

    assert number is None
    assert ("lost",) not in names


async def test_queries_of_a_tenant_avoid_full_scans(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    await asyncio.to_thread(written, path)
    timeout = FailureReason(category=FailureKind.TIMEOUT, description="Too slow.", recoverable=True)
    async with aclosing(JsonFileInteractionStore(path)) as store:
        await store.store(interaction(success=False, failure=timeout))
    asked: list[str] = []

    def trace(queries: IndexQueries) -> None:
        queries.db.set_trace_callback(asked.append)

    def plans(queries: IndexQueries) -> list[str]:
        queries.db.set_trace_callback(None)
        own = [query for query in asked if "tenant = " in query]
        return [row[3] for query in own for row in queries.db.execute(f"EXPLAIN QUERY PLAN {query}")]

    async with aclosing(JsonlRecords(path)) as records:
        await records._query(trace, nothing=None)
        await records.find("log-1", tenant="default")
        await records.trace("t", tenant="default")
        await records.traces(tenant="default", with_calls=True)
        await records.traces(tenant="default", query=RecordQuery(trace_id="t"))
        await records.by_envelope("log-1", tenant="default")
        assert [one async for one in records.by_request("rk1:0", 0, tenant="default")] == []
        await records.spend("agent", tenant="default")
        await records.recent(tenant="default")
        await records.count(RecordQuery(kind=("bar.closed",), subject=("BTCUSDT",)), tenant="default")
        await records.count(RecordQuery(agent=("analyst-1",), subject=("BTCUSDT", "")), tenant="default")
        await records.count(RecordQuery(failure=("timeout",), subject=("BTCUSDT", "")), tenant="default")
        await records.count(RecordQuery(since=NOW + timedelta(hours=1)), tenant="default")
        steps = await records._query(plans, nothing=list[str]())

    assert [step for step in steps if step.startswith("SCAN") and "CONSTANT" not in step] == []
    assert {step.split(" INDEX ")[-1].split()[0] for step in steps if " INDEX " in step} == {
        "by_id", "by_trace", "by_tenant", "by_envelope", "by_request", "by_time", "by_agent", "by_failure", "by_kind",
    }  # fmt: skip


async def test_index_file_contains_no_bodies(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    async with aclosing(JsonFileInteractionStore(path)) as store:
        await store.store(interaction(raw_output="a secret answer", instructions="a secret question"))
        await store.record(event(body={"text": "a secret event"}))
        assert len(await store.recent()) == 1

    assert b"secret" not in index_of(path).read_bytes()


async def test_broken_log_raises_instead_of_answering(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    await asyncio.to_thread(written, path)
    path.write_bytes(path.read_bytes().replace(b'"number":1', b'"number":9'))

    async with aclosing(JsonlRecords(path)) as records:
        with pytest.raises(StoreError, match=r"log\.jsonl:2: its hash is not that of its bytes"):
            await records.traces()
        assert (await records.verify()).broken_line == 2


async def test_line_changed_after_indexing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    events = await asyncio.to_thread(written, path)

    async with aclosing(JsonlRecords(path)) as records:
        assert await records.find(events[1].id) == events[1]
        path.write_bytes(path.read_bytes().replace(b'"number":1', b'"number":9'))

        with pytest.raises(
            StoreError, match=r"log\.jsonl:2: it is not the line that was indexed\. Verify the log"
        ):
            await records.find(events[1].id)


async def test_missing_log_is_reported_to_reader(tmp_path: Path) -> None:
    async with aclosing(JsonlRecords(tmp_path / "log.jsonl")) as records:
        with pytest.raises(StoreError, match="there is no log here"):
            await records.traces()

    assert not index_of(tmp_path / "log.jsonl").exists()


async def test_closed_reader_raises_on_query(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    events = await asyncio.to_thread(written, path)
    records = JsonlRecords(path)
    await records.aclose()
    await records.aclose()

    with pytest.raises(StoreError, match="the index is closed"):
        await records.traces()
    assert [entry.record async for entry in records.scan()] == events


async def test_query_under_way_raises_when_its_reader_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    await asyncio.to_thread(written, path)
    records = JsonlRecords(path)

    # The query waits for the check of its condition while the reader is closed.
    async with asyncio.TaskGroup() as tasks:
        query = tasks.create_task(_failure_of(records.count(RecordQuery(where="attempt > 0"))))
        tasks.create_task(records.aclose())

    assert "the index is closed" in query.result()


async def _failure_of(query: Awaitable[object]) -> str:
    with pytest.raises(StoreError) as e:
        await query
    return str(e.value)


async def test_unreadable_log_raises_on_verify() -> None:
    async with aclosing(JsonlRecords(Path("/proc/self/mem"))) as records:
        with pytest.raises(StoreError, match="cannot be read"):
            await records.verify()
