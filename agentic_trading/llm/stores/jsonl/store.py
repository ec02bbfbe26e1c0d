"""The store of a log file: records are written in order, and found by queries."""

import asyncio
from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from itertools import islice
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar, TypeVarTuple

from agentic_trading.llm import store as store_api
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.event import Event, RunEnded
from agentic_trading.llm.facts import EVERYTHING, Fact, FactKey, FactSums, Latency, RecordQuery
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.log_line import IndexRow
from agentic_trading.llm.sealed_command import SealedCommand
from agentic_trading.llm.stores import condition, record_codec, record_facts
from agentic_trading.llm.stores.jsonl.disk import Disk
from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.jsonl.index import LogIndex, line_places
from agentic_trading.llm.stores.jsonl.index_query import IS_ATTEMPT, IS_SENT, IndexQueries, Place
from agentic_trading.llm.stores.jsonl.index_rows import id_number, request_number
from agentic_trading.llm.stores.jsonl.reader import START, LinePlace, LogPosition, LogReader
from agentic_trading.llm.stores.jsonl.segments import SEGMENT_BYTES
from agentic_trading.llm.stores.jsonl.writer import Durability, LogStatistics, LogWriter

T = TypeVar("T")
Args = TypeVarTuple("Args")

_READ_AT_ONCE = 256
_FACTS_AT_ONCE = 1000
_ATTEMPTS_AT_ONCE = 8  # most callers need only the first answer of a request
FOLLOWED_AT_ONCE = 2000
"""The maximum number of lines in a batch of `follow`.

Each batch waits for a disk or a broker.
"""


class JsonlRecords:
    """Answer queries about the log at `path`, and read its lines.

    It implements `Records`. The first query creates or updates the index next to the log. With the log's own
    `writer`, accepted records are written before a query, and a missing log is empty. Without it, a missing
    log raises `StoreError`. A broken line raises `StoreError` with its number, except in `verify`.
    """

    def __init__(self, path: Path, *, writer: LogWriter | None = None) -> None:
        self._writer = writer
        self._reader = LogReader(path, may_be_missing=writer is not None)
        self._index = LogIndex(self._reader)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log-index")
        self._is_closed = False

    async def find(self, record_id: str, *, tenant: str | None = None) -> store_api.Record | None:
        """Return the record with this id, or None."""
        found = await self._records(
            lambda queries: queries.places(
                "id = ?", tenant=tenant, order="attempt = 0, seq", values=(id_number(record_id),)
            ),
            lambda record: record_codec.id_of(record) == record_id,
        )
        return found[0] if found else None

    async def ids_starting(
        self, prefix: str, *, of: store_api.IdKind = "record", limit: int = 20, tenant: str | None = None
    ) -> list[str]:
        """Return the ids that start with `prefix`, sorted, at most `limit`."""
        return await self._query(
            lambda queries: queries.ids_starting(prefix, of, limit, tenant), nothing=list[str]()
        )

    async def trace(self, trace_id: str, *, tenant: str | None = None) -> list[store_api.Record]:
        """Return all records of a decision chain, in the log's order."""
        return await self._records(
            lambda queries: queries.places("trace = ?", tenant=tenant, values=(id_number(trace_id),)),
            lambda record: record_codec.trace_of(record) == trace_id,
        )

    async def traces(
        self,
        limit: int = 20,
        *,
        query: RecordQuery = EVERYTHING,
        with_calls: bool = False,
        tenant: str | None = None,
    ) -> list[store_api.TraceSummary]:
        """Return the decision chains with a selected record by their last record, newest first.

        See `Records.traces`.
        """
        return await self._query(
            lambda queries: queries.traces(limit, query, tenant, with_calls=with_calls),
            nothing=list[store_api.TraceSummary](),
            query=query,
        )

    async def by_envelope(self, envelope_id: str, *, tenant: str | None = None) -> list[LLMInteraction]:
        """Return all attempts at an envelope, oldest first."""
        found = await self._records(
            lambda queries: queries.places(
                "envelope = ?", IS_ATTEMPT, tenant=tenant, values=(id_number(envelope_id),)
            ),
        )
        attempts = record_codec.interactions(found)
        return [one for one in attempts if one.envelope.envelope_id == envelope_id]

    async def by_request(
        self, request_hash: str, occurrence: int, *, tenant: str | None = None
    ) -> AsyncGenerator[LLMInteraction]:
        """Yield the attempts at a request and occurrence that were sent, oldest first."""
        number = request_number(request_hash, occurrence)
        places = await self._query(
            lambda queries: queries.places(
                "request = ?", IS_ATTEMPT, IS_SENT, tenant=tenant, values=(number,)
            ),
            nothing=list[Place](),
        )
        for start in range(0, len(places), _ATTEMPTS_AT_ONCE):
            batch = places[start : start + _ATTEMPTS_AT_ONCE]
            found = record_codec.interactions(await self._records_at(batch))
            for one in [
                one
                for one in found
                if (one.envelope.request_hash, one.envelope.occurrence) == (request_hash, occurrence)
            ]:
                yield one

    async def recent(self, limit: int = 10, *, tenant: str | None = None) -> list[LLMInteraction]:
        """Return the newest attempts, newest first."""
        order = f"seq DESC LIMIT {max(0, limit)}"
        found = await self._records(lambda queries: queries.places(IS_ATTEMPT, tenant=tenant, order=order))
        return record_codec.interactions(found)

    async def spend(
        self, *by: store_api.SpendKey, query: RecordQuery = EVERYTHING, tenant: str | None = None
    ) -> list[store_api.Spend]:
        """Return the sums of the selected attempts by the given keys.

        Raises `ValueError` for an unknown key.
        """
        keys = record_codec.check_keys(by)
        return await self._query(
            lambda queries: queries.spend(keys, query, tenant), nothing=list[store_api.Spend](), query=query
        )

    async def select(
        self,
        query: RecordQuery = EVERYTHING,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        tenant: str | None = None,
    ) -> AsyncGenerator[Fact]:
        """Yield the facts of the selected records, in the log's order or reversed.

        Records that are added meanwhile are left out.
        """
        selected = await self._query(
            lambda queries: queries.seqs(query, tenant, newest_first=newest_first, limit=limit),
            nothing=array("q"),
            query=query,
        )
        async with aclosing(self._facts_at(selected)) as facts:
            async for fact in facts:
                yield fact

    def entries(
        self, query: RecordQuery = EVERYTHING, *, tenant: str | None = None
    ) -> AsyncGenerator[store_api.LogEntry]:
        """Yield the entries of the selected records, in the log's order. Only their lines are read.

        Records that are added meanwhile are left out.
        """
        return self.read(self.entry, query, tenant=tenant)

    async def read(
        self,
        make: Callable[[store_api.ChainedRecord], T],
        query: RecordQuery = EVERYTHING,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        tenant: str | None = None,
    ) -> AsyncGenerator[T]:
        """Yield an item for each selected line, in the log's order or reversed.

        Lines that are added meanwhile are left out. Only one line at a time is in memory.

        Args:
            make: Makes an item of a line. It runs in the thread of the index.
            query: The selection.
            newest_first: The reverse order.
            limit: The maximum number of lines.
            tenant: The tenant, or None for the whole log.

        """
        selected = await self._query(
            lambda queries: queries.seqs(query, tenant, newest_first=newest_first, limit=limit),
            nothing=array("q"),
            query=query,
        )
        for start in range(0, len(selected), _READ_AT_ONCE):
            seqs = selected[start : start + _READ_AT_ONCE]
            for item in await self._query(partial(self._made_at, make=make, seqs=seqs), nothing=list[T]()):
                yield item

    async def count(self, query: RecordQuery = EVERYTHING, *, tenant: str | None = None) -> int:
        """Return the number of selected records."""
        return await self._query(lambda queries: queries.count(query, tenant), nothing=0, query=query)

    async def sums(
        self, *by: FactKey, query: RecordQuery = EVERYTHING, tenant: str | None = None
    ) -> list[FactSums]:
        """Return the sums of the selected records by the given keys.

        Raises `ValueError` for an unknown key.
        """
        keys = record_facts.check_fact_keys(by)
        return await self._query(
            lambda queries: queries.sums(keys, query, tenant), nothing=list[FactSums](), query=query
        )

    async def latencies(self, query: RecordQuery = EVERYTHING, *, tenant: str | None = None) -> list[Latency]:
        """Return the latency percentiles of the selected attempts that were sent, by model."""
        return await self._query(
            lambda queries: queries.latencies(query, tenant), nothing=list[Latency](), query=query
        )

    async def caused_by(
        self, cause: RecordQuery, effect: RecordQuery = EVERYTHING, *, tenant: str | None = None
    ) -> AsyncGenerator[Fact]:
        """Yield the facts of the records of `effect` that follow from a record of `cause`."""
        await self._check(effect)
        found = await self._query(
            lambda queries: queries.effects(cause, effect, tenant), nothing=array("q"), query=cause
        )
        async with aclosing(self._facts_at(found)) as facts:
            async for fact in facts:
                yield fact

    async def lines(self, seqs: Sequence[int], *, tenant: str | None = None) -> list[store_api.ChainedRecord]:
        """Return the lines with these numbers, in the log's order. Missing lines are left out."""
        return await self._query(
            lambda queries: [*self._lines_of(queries, seqs, tenant=tenant)],
            nothing=list[store_api.ChainedRecord](),
        )

    async def unmatched(self, *, tenant: str | None = None) -> list[store_api.Record]:
        """Return the records of reservations without exactly one dispatch and one attempt."""
        return await self._records(lambda queries: queries.unmatched(tenant))

    async def scan(self, after: int = 0) -> AsyncGenerator[store_api.LogEntry]:
        """Yield all entries with a number above `after`, in order.

        It reads from the start of the segment that has the first of them.
        """
        start = await asyncio.to_thread(self._reader.segment_start, after)
        async with aclosing(self.read_on(start, after, self.entry)) as batches:
            async for entries, _ in batches:
                for entry in entries:
                    yield entry

    async def read_on(
        self,
        position: LogPosition,
        after: int,
        make: Callable[[store_api.ChainedRecord], T],
        most: int = _READ_AT_ONCE,
    ) -> AsyncGenerator[tuple[list[T], LogPosition]]:
        """Yield batches of lines after a position, each with the position of its end.

        Args:
            position: Where to start reading.
            after: Only lines with a higher number.
            make: Makes an item of each line.
            most: The maximum number of items in a batch.

        """
        end = await self._end()
        while True:
            found, reached = await asyncio.to_thread(self._reader.lines, position, after, end, make, most)
            if reached == position:
                return
            position = reached
            yield found, position

    def entry(self, line: store_api.ChainedRecord) -> store_api.LogEntry:
        """Return a line as an entry. Raises `StoreError` if its record is unknown."""
        return store_api.LogEntry(line.seq, self._reader.record(line), line.hash)

    async def verify(self) -> store_api.Verification:
        """Read the whole log and recompute every hash."""
        await self._end()
        return await asyncio.to_thread(self._reader.verify, self._writer.written if self._writer else None)

    async def verify_end(self) -> store_api.Verification:
        """Check the end of the log in constant time, and its newest runs.

        It reads up to `LATEST_RUNS` starts and ends of runs. The index checks new lines when it reads them.
        Use `verify` to find a line that was changed later.
        """
        found = await self._query(
            lambda queries: line_places(queries.db, queries.runs()), nothing=list[LinePlace]()
        )
        return await self._in_thread(self._end_of, found)

    def _end_of(self, places: Sequence[LinePlace]) -> store_api.Verification:
        runs = [run for line in self._lines(places) for run in record_codec.run_records(line)]
        starts = {run.event.id for run in runs}
        # An end without its start is left out, because the start of the oldest end may be older than the
        # limit.
        runs = [run for run in runs if run.event.kind != RunEnded.KIND or run.event.causation_id in starts]
        return self._reader.verify_from(self._index.end(), runs)

    async def aclose(self) -> None:
        """Close the index. You may call it twice. The log can still be read line by line."""
        if not self._is_closed:
            self._is_closed = True
            closing = asyncio.get_running_loop().run_in_executor(self._thread, self._index.close)
            self._thread.shutdown(wait=False)
            await closing

    async def _end(self) -> int | None:
        """Return the number of the last line once accepted records are written, None for the file's end."""
        if self._writer is None:
            return None
        await self._writer.settle()
        return self._writer.written.head.seq if self._writer.written else None

    async def _records(
        self,
        find: Callable[[IndexQueries], Sequence[Place]],
        is_wanted: Callable[[store_api.Record], bool] = lambda _: True,
    ) -> list[store_api.Record]:
        """Return the wanted records at places. A number in the index may be that of two ids."""

        def read(queries: IndexQueries) -> list[store_api.Record]:
            found: list[store_api.Record] = []
            lines = self._lines(line_places(queries.db, find(queries)))
            # In batches, because changing between reading and decoding for every line takes a tenth longer.
            while batch := list(islice(lines, _READ_AT_ONCE)):
                found += filter(is_wanted, map(self._reader.record, batch))
            return found

        return await self._query(read, nothing=list[store_api.Record]())

    async def _records_at(self, places: Sequence[Place]) -> list[store_api.Record]:
        return await self._records(lambda _: places)

    async def _facts_at(self, seqs: Sequence[int]) -> AsyncGenerator[Fact]:
        for start in range(0, len(seqs), _FACTS_AT_ONCE):
            batch = seqs[start : start + _FACTS_AT_ONCE]
            for fact in await self._query(partial(IndexQueries.facts, seqs=batch), nothing=list[Fact]()):
                yield fact

    def _made_at(
        self, queries: IndexQueries, make: Callable[[store_api.ChainedRecord], T], seqs: Sequence[int]
    ) -> list[T]:
        order = "seq DESC" if seqs[0] > seqs[-1] else "seq"
        return [*map(make, self._lines_of(queries, seqs, tenant=None, order=order))]

    def _lines_of(
        self, queries: IndexQueries, seqs: Iterable[int], *, tenant: str | None, order: str = "seq"
    ) -> Iterator[store_api.ChainedRecord]:
        chosen = f"seq IN ({', '.join(str(int(seq)) for seq in seqs)})"
        return self._lines(line_places(queries.db, queries.places(chosen, tenant=tenant, order=order)))

    def _read_facts(self, db: Connection, places: Iterable[Place]) -> Iterator[tuple[int, IndexRow]]:
        for line in self._lines(line_places(db, places)):
            yield line.seq, self._reader.facts(line)

    async def _check(self, query: RecordQuery) -> None:
        if query.where:
            await asyncio.to_thread(condition.check_condition, query.where)

    async def _query(
        self, ask: Callable[[IndexQueries], T], *, nothing: T, query: RecordQuery = EVERYTHING
    ) -> T:
        """Return the result of a query, or `nothing` if the log has no line. `query` is checked in any case."""
        self._check_open()
        # Checked here too, because a log without lines has no index.
        await self._check(query)
        end = await self._end()
        return await self._in_thread(self._answer, ask, end, nothing)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError(self._reader.path, "the index is closed. Create a new one to continue")

    async def _in_thread(self, work: Callable[[*Args], T], *args: *Args) -> T:
        self._check_open()  # again, because it may have been closed while a query waited
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def _answer(self, ask: Callable[[IndexQueries], T], end: int | None, nothing: T) -> T:
        if not self._reader.exists():
            return nothing
        try:
            return self._index.answer(
                lambda db: ask(IndexQueries(db, self._index.names, partial(self._read_facts, db))), end
            )
        except UnicodeEncodeError:
            # Half a character in an argument of a shell. No record has such an id, because UTF-8 cannot
            # encode it.
            return nothing

    def _lines(self, places: Sequence[LinePlace]) -> Iterator[store_api.ChainedRecord]:
        for place, line in zip(places, self._reader.lines_at(places), strict=True):
            if line is None:
                reason = "it is not the line that was indexed. Verify the log"
                raise StoreError(self._reader.path, reason, line=place.seq)
            yield line


DEFAULT_PATH = Path("data/llm_interactions.jsonl")


class JsonFileInteractionStore:
    """Keep interactions and events in a file of JSON lines, chained by hashes.

    The file and its folders are created with the first record. One process at a time writes to a file.
    Queries need no lock. A torn end of the file is moved to `<path>.torn-<number>` and recorded by an event
    `log.tail_set_aside` (see `LogFile`). After a failed write, this store acknowledges no further record.

    Args:
        path: The file.
        durability: When `store` and `record` return: `GROUP` if the record is on disk, `RELAXED` if it is
            accepted.
        segment_bytes: The size from which a segment is sealed, in bytes.
        compress: Compress sealed segments with zstd.
        checkpoint_file: Append a checkpoint to this file at every seal, every 60 seconds, and on closing.
        sealed_command: Ship sealed segments with this command, such as `rclone copy {path} remote:bucket/{log}/`.
        disk: How bytes are written, for tests.

    Raises:
        ValueError: If `sealed_command` is not a command.
        StoreLockedError: From the first write, if another process writes to the file.
        StoreError: From the first write, if a line was changed. The file is not modified.

    """

    def __init__(
        self,
        path: Path = DEFAULT_PATH,
        *,
        durability: Durability = Durability.GROUP,
        segment_bytes: int = SEGMENT_BYTES,
        compress: bool = False,
        checkpoint_file: Path | None = None,
        sealed_command: SealedCommand | str | None = None,
        disk: Disk | None = None,
    ) -> None:
        if isinstance(sealed_command, str):
            sealed_command = SealedCommand.parse(sealed_command)
        self.path = Path(path)
        open_file = partial(
            LogFile,
            self.path,
            disk or Disk(),
            segment_bytes=segment_bytes,
            compress=compress,
            checkpoint_file=checkpoint_file,
            sealed_command=sealed_command,
        )
        self._writer = LogWriter(self.path, durability, open_file)
        self._records = JsonlRecords(self.path, writer=self._writer)
        self._followers: set[asyncio.Event] = set()
        self._is_closed = False
        self.on_kept: Callable[[int, store_api.Record, bytes], None] | None = None
        """A function to call with each record that `store` and `record` were given, after the number of its line.

        It also gets the bytes of the record. The line has other bytes if its record was kept before. The
        function must not block.
        """

    @property
    def records(self) -> JsonlRecords:
        """The queries of the log, including all accepted records: the interface `Records`."""
        return self._records

    @property
    def recovered(self) -> Path | None:
        """The file with a torn end that was found when the log was opened, or None."""
        return self._writer.set_aside

    def statistics(self) -> LogStatistics:
        """Return the number of written records and commits."""
        return self._writer.statistics

    def unshipped(self) -> int | None:
        """Return the number of sealed segments that are not shipped yet. None without a sealed command."""
        return self._writer.unshipped

    async def open(self) -> None:
        """Open and lock the file now, instead of with the first record.

        You may call it twice.

        Raises:
            StoreLockedError: If another process writes to the file.
            StoreError: If the log is damaged or cannot be written.

        """
        await self._writer.open()

    async def store(self, interaction: LLMInteraction) -> int:
        """Keep an attempt and return the number of its line."""
        return await self._keep(interaction)

    async def record(self, event: Event) -> int:
        """Keep an event and return the number of its line."""
        return await self._keep(event)

    async def copy(self, line: store_api.ChainedRecord) -> int:
        """Keep the record of another log's line, byte for byte, and return its number here.

        Raises:
            ValueError: If the line has no record. Otherwise, the errors of `store` and `record`.

        """
        identity = record_codec.identity_of(record_codec.record_of(line.record))
        self._wake_followers()
        return await self._writer.write(identity, line.record)

    async def flush(self) -> None:
        """Return when all accepted records are on disk."""
        await self._writer.settle(sync=True)

    async def head(self) -> tuple[int, str]:
        """Return the number and the hash of the last line, once accepted records are written.

        A record that the caller adds before the next `await` becomes the next line.
        """
        await self._writer.open()
        return await self._writer.head()

    async def has_attempt(self, envelope: LLMEnvelope, attempt: int) -> bool:
        """Return whether an attempt is on record. Opens the file if needed."""
        await self._writer.open()
        return await self._writer.knows(record_codec.attempt_key(envelope, attempt))

    async def get_by_envelope_id(
        self, envelope_id: str, *, tenant: str | None = None
    ) -> LLMInteraction | None:
        """Return the last attempt at an envelope, or None."""
        attempts = await self._records.by_envelope(envelope_id, tenant=tenant)
        return attempts[-1] if attempts else None

    async def get_by_trace_id(self, trace_id: str, *, tenant: str | None = None) -> list[LLMInteraction]:
        """Return all attempts of a decision chain, oldest first."""
        return record_codec.interactions(await self._records.trace(trace_id, tenant=tenant))

    async def recent(self, limit: int = 10, *, tenant: str | None = None) -> list[LLMInteraction]:
        """Return the newest attempts, newest first."""
        return await self._records.recent(limit, tenant=tenant)

    def scan(self, after: int = 0) -> AsyncGenerator[store_api.LogEntry]:
        """Yield all entries with a number above `after`, in order."""
        return self._records.scan(after)

    async def follow(self, after: int = 0) -> AsyncGenerator[Sequence[store_api.ChainedRecord]]:
        """Yield all lines with a number above `after`, in batches, and wait for more.

        It ends after the last line when the store is closed.
        """
        news = asyncio.Event()
        self._followers.add(news)
        position = START
        try:
            while True:
                # Cleared and read before the log is, so that a record that comes meanwhile starts another
                # round.
                news.clear()
                is_last_round = self._is_closed
                async with aclosing(
                    self._records.read_on(position, after, _as_it_is, FOLLOWED_AT_ONCE)
                ) as batches:
                    async for lines, reached in batches:
                        position = reached
                        if lines:
                            yield lines
                if is_last_round:
                    return
                await news.wait()
        finally:
            self._followers.discard(news)

    async def verify(self) -> store_api.Verification:
        """Read the whole log and recompute every hash."""
        return await self._records.verify()

    async def aclose(self) -> None:
        """Write all accepted records to disk and release the file. You may call it twice.

        Raises:
            StoreError: If an accepted record could not be written.

        """
        try:
            await self._writer.aclose()
        finally:
            self._is_closed = True
            self._wake_followers()
            await self._records.aclose()

    async def _keep(self, record: store_api.Record) -> int:
        identity, wire = record_codec.identity_of(record), record_codec.wire_of(record)
        self._wake_followers()
        number = await self._writer.write(identity, wire)
        if self.on_kept is not None:
            self.on_kept(number, record, wire)
        return number

    def _wake_followers(self) -> None:
        for news in self._followers:
            news.set()


def _as_it_is(line: store_api.ChainedRecord) -> store_api.ChainedRecord:
    return line
