"""Select, count and read the records of logs, with blocking calls for scripts and notebooks."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from heapq import merge
from importlib import import_module
from itertools import islice
from operator import attrgetter
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack, assert_never

from typing_extensions import override

from agentic_trading.audit.logs import MergedRecords, logs_at
from agentic_trading.audit.trace import TraceNode, TraceTree, full_id, why
from agentic_trading.clock import Clock, SystemClock, parse_moment
from agentic_trading.errors import TradingError
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.facts import EVERYTHING, Fact, FactKey, FactSums, Latency, RecordQuery
from agentic_trading.llm.store import LOG_NAME, ChainedRecord, Record
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.llm.stores.record_facts import bucket_of, latencies_of

T = TypeVar("T")

FrameLibrary = Literal["polars", "pandas", "arrow"]

_AT_ONCE: Final = 1_000
_LOOK_EVERY_S: Final = 0.25


class QueryError(TradingError, ValueError):
    """A query for records is wrong."""


class FrameLibraryError(TradingError, ImportError):
    """The library of a data frame is not installed.

    Attributes:
        package: The missing package.

    """

    def __init__(self, package: str) -> None:
        self.package = package
        super().__init__(f"{package} is not installed. Run pip install {package}")


@dataclass(frozen=True, slots=True)
class LoggedFact(Fact):
    """The facts of one record, with the path of its log."""

    log: Path


_Names = str | Iterable[str]


class RecordFilters(TypedDict, total=False):
    """The fields of a `RecordQuery`, with times as texts too, such as `today` or `7d`.

    A text is one value. A time without a zone is in UTC. A trace may be named by its first eight or more characters.
    """

    kind: _Names
    tenant: _Names
    agent: _Names
    workflow: _Names
    provider: _Names
    model: _Names
    subject: _Names
    verdict: _Names
    failure: _Names
    since: str | datetime | None
    until: str | datetime | None
    trace_id: str
    after: int
    before: int
    where: str


_FILTERS: Final = tuple(RecordFilters.__annotations__)


def open_records(
    path: str | Path, tenant: str | None = None, *, clock: Clock | None = None
) -> "RecordReader":
    """Open the records of a log, a session, or a folder of these, also while they are written.

    Args:
        path: A log, the folder of a session, or a folder of such folders.
        tenant: The only tenant whose records are read. None means all.
        clock: The clock for texts such as `today`. By default the system's.

    Raises:
        StoreError: If there is no log.

    """
    logs = logs_at(Path(path))
    if not logs:
        reason = f"there is no log here. Name a log, a folder with {LOG_NAME}, or a folder of such folders"
        raise StoreError(Path(path), reason)
    return RecordReader(logs, tenant, clock=clock)


class RecordReader(AbstractContextManager["RecordReader"]):
    """The records of one or several logs. Close it at the end, or use it in a `with` statement.

    Records of several logs are in the order of time, and those of one log in its order. A record that is in
    several logs counts in each of them. All methods block. Several threads may use it.

    Args:
        logs: The logs, at least one.
        tenant: The only tenant whose records are read. None means all.
        clock: The clock for texts such as `today`. By default the system's.

    """

    def __init__(
        self, logs: Sequence[Path], tenant: str | None = None, *, clock: Clock | None = None
    ) -> None:
        self._logs = {log: JsonlRecords(log) for log in dict.fromkeys(logs)}
        self._merged = MergedRecords([*self._logs.values()])
        self._tenant = tenant
        self._clock = clock or SystemClock()
        self._closed = Event()
        self._loop = asyncio.new_event_loop()
        # A daemon thread, because a notebook that does not close its reader must be able to exit.
        self._thread = Thread(target=self._loop.run_forever, name="records", daemon=True)
        self._thread.start()

    @property
    def logs(self) -> tuple[Path, ...]:
        """The logs."""
        return tuple(self._logs)

    @override
    def __exit__(self, *_: object) -> None:
        """Close the reader."""
        self.close()

    def close(self) -> None:
        """Close the logs. You may call it twice."""
        if self._closed.is_set():
            return
        for records in self._logs.values():
            self._wait(records.aclose())
        self._wait(self._loop.shutdown_asyncgens())
        self._wait(self._loop.shutdown_default_executor())
        self._closed.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def query(self, **filters: Unpack[RecordFilters]) -> RecordQuery:
        """Return a query. Values of one field are alternatives, and different fields must all match.

        Raises:
            QueryError: If a field is unknown, a time is wrong, or `since` is not before `until`.
            AmbiguousIdError: If several traces start with `trace_id`.

        """
        if unknown := filters.keys() - _FILTERS:
            raise QueryError(f"{min(unknown)!r} is not a filter. Allowed: {', '.join(_FILTERS)}")
        values: dict[str, Any] = {**filters}
        for name, value in values.items():
            if name in {"since", "until"}:
                values[name] = self._moment(name, value)
            elif name == "trace_id":
                values[name] = self._wait(full_id(self._merged, value, of="trace", tenant=self._tenant))
            elif name not in {"after", "before", "where"}:
                values[name] = (value,) if isinstance(value, str) else tuple(value)
        query = RecordQuery(**values)
        if query.since and query.until and query.since >= query.until:
            raise QueryError(f"until ({query.until}) is not after since ({query.since}). Use a later time")
        return query

    def select(
        self,
        query: RecordQuery | None = None,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        **filters: Unpack[RecordFilters],
    ) -> Iterator[LoggedFact]:
        """Return an iterator over the facts of the selected records. It holds one batch of each log.

        Args:
            query: The selection. Give it or filters.
            newest_first: The reverse order.
            limit: The maximum number of records.
            **filters: The fields of the query.

        Raises:
            QueryError: As `query` does.
            ValueError: If `where` is no condition over the fields of `Fact`. The first item raises it.

        """
        queries = dict.fromkeys(self._logs, self._query(query, filters))
        return self._facts(queries, newest_first=newest_first, limit=limit)

    def caused_by(self, cause: RecordQuery, effect: RecordQuery = EVERYTHING) -> Iterator[LoggedFact]:
        """Return an iterator over the records of `effect` that follow from a record of `cause` in the same log.

        See `Records.caused_by`.
        """
        return self._facts(dict.fromkeys(self._logs, effect), cause)

    def follow(
        self,
        query: RecordQuery | None = None,
        *,
        ends: Mapping[Path, int] = MappingProxyType({}),
        cause: RecordQuery | None = None,
        **filters: Unpack[RecordFilters],
    ) -> Iterator[LoggedFact]:
        """Yield the selected records, and wait for more until the reader is closed.

        Args:
            query: The selection. Give it or filters.
            ends: For each log, the number of the last line to leave out, as the method `ends` returns it.
            cause: Only records that follow from one of these, as `caused_by`.
            **filters: The fields of the query.

        """
        chosen = self._query(query, filters)
        seen = {log: max(chosen.after, ends.get(log, 0)) for log in self._logs}
        while not self._closed.is_set():
            is_idle = True
            queries = {log: replace(chosen, after=line) for log, line in seen.items()}
            try:
                for fact in self._facts(queries, cause):
                    is_idle = False
                    seen[fact.log] = fact.seq
                    yield fact
            except StoreError:
                if not self._closed.is_set():
                    raise
            if is_idle:
                self._closed.wait(_LOOK_EVERY_S)

    def ends(self) -> dict[Path, int]:
        """Return the number of the newest record of each log. An empty log has 0."""
        newest = {log: self._facts({log: EVERYTHING}, newest_first=True, limit=1) for log in self._logs}
        return {log: next((fact.seq for fact in found), 0) for log, found in newest.items()}

    def count(self, query: RecordQuery | None = None, **filters: Unpack[RecordFilters]) -> int:
        """Return the number of selected records. Raises as `select` does."""
        chosen = self._query(query, filters)
        return sum(self._wait(records.count(chosen, tenant=self._tenant)) for records in self._logs.values())

    def sums(
        self, *by: FactKey, query: RecordQuery | None = None, **filters: Unpack[RecordFilters]
    ) -> list[FactSums]:
        """Return the sums of the selected records, grouped and sorted by the given keys.

        Raises:
            ValueError: If a key is not a `FactKey`, or as `select` does.

        """
        chosen = self._query(query, filters)
        return added_sums(
            row
            for records in self._logs.values()
            for row in self._wait(records.sums(*by, query=chosen, tenant=self._tenant))
        )

    def latencies(self, query: RecordQuery | None = None, **filters: Unpack[RecordFilters]) -> list[Latency]:
        """Return the latency percentiles of the selected attempts, by model."""
        chosen = self._query(query, filters)
        if len(self._logs) == 1:
            [records] = self._logs.values()
            return self._wait(records.latencies(chosen, tenant=self._tenant))
        sent = (fact for fact in self.select(chosen) if fact.sent)
        return latencies_of((fact.model, bucket_of(fact.latency_ms), 1) for fact in sent)

    def read(self, fact: LoggedFact) -> Record:
        """Return the record of a fact. Raises `StoreError` if it cannot be read."""
        [line] = self._lines([fact])
        return self._logs[fact.log].entry(line).record

    def lines(
        self, facts: Iterable[LoggedFact], *, at_once: int = _AT_ONCE
    ) -> Iterator[tuple[LoggedFact, bytes]]:
        """Yield facts with their lines, without newlines.

        Args:
            facts: The facts. Each batch of them is read before its lines.
            at_once: The lines of a batch.

        Raises:
            StoreError: If a line cannot be read.

        """
        rest = iter(facts)
        while batch := list(islice(rest, at_once)):
            for fact, line in zip(batch, self._lines(batch), strict=True):
                yield fact, line.line

    def find(self, record_id: str) -> Record | None:
        """Return the record with this id, or None. Of an envelope, it is the last attempt.

        Args:
            record_id: The id of a record or an envelope, or its first eight or more characters.

        Raises:
            AmbiguousIdError: If several ids start with `record_id`.

        """
        found = self._wait(full_id(self._merged, record_id, tenant=self._tenant))
        record = self._wait(self._merged.find(found, tenant=self._tenant))
        attempts = [] if record else self._wait(self._merged.by_envelope(found, tenant=self._tenant))
        return attempts[-1] if attempts else record

    def tree(self, trace_id: str) -> TraceTree:
        """Return the records of a trace as a tree. The id may be its first eight or more characters.

        Raises:
            AmbiguousIdError: If several ids start with `trace_id`.

        """
        found = self._wait(full_id(self._merged, trace_id, of="trace", tenant=self._tenant))
        return TraceTree(self._wait(self._merged.trace(found, tenant=self._tenant)))

    def causes(self, record_id: str) -> tuple[TraceNode, ...]:
        """Return the chain of causes of a record, the first cause first. Raises as `audit.why` does."""
        return self._wait(why(self._merged, record_id, tenant=self._tenant)).path[:-1]

    def effects(self, record_id: str) -> tuple[TraceNode, ...]:
        """Return the direct effects of a record. Raises as `audit.why` does."""
        return self._wait(why(self._merged, record_id, tenant=self._tenant)).effects

    def frame(
        self,
        query: RecordQuery | None = None,
        library: FrameLibrary = "polars",
        **filters: Unpack[RecordFilters],
    ) -> Any:
        """Return the facts of the selected records as a data frame, with a column for each field of `LoggedFact`.

        Args:
            query: The selection. Give it or filters.
            library: `polars`, `pandas`, or `arrow` for a table of pyarrow. It is imported here.
            **filters: The fields of the query.

        Raises:
            FrameLibraryError: If the library is not installed.

        """
        package = _frame_library(library)
        facts = list(self.select(query, **filters))
        columns = {name: [getattr(fact, name) for fact in facts] for name in _COLUMN_TYPES}
        return _frame(library, package, {**columns, "log": [str(fact.log) for fact in facts]})

    def _moment(self, name: str, value: str | datetime | None) -> datetime | None:
        if not isinstance(value, str):
            return value and value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC)
        try:
            return parse_moment(value, self._clock.now())
        except ValueError as e:
            raise QueryError(f"{name}: {e}") from e

    def _query(self, query: RecordQuery | None, filters: RecordFilters) -> RecordQuery:
        if query is not None and filters:
            raise QueryError("a query and filters are given. Use one of them, or dataclasses.replace")
        return self.query(**filters) if query is None else query

    def _facts(
        self,
        queries: Mapping[Path, RecordQuery],
        cause: RecordQuery | None = None,
        *,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> Iterator[LoggedFact]:
        """Return an iterator over the facts of several logs, by time."""
        each = [
            self._facts_of(log, query, cause, newest_first=newest_first, limit=limit)
            for log, query in queries.items()
        ]
        if newest_first:  # so that records of one time are in the reverse order too
            each.reverse()
        facts = each[0] if len(each) == 1 else merge(*each, key=attrgetter("time"), reverse=newest_first)
        return islice(facts, limit)

    def _facts_of(
        self,
        log: Path,
        query: RecordQuery,
        cause: RecordQuery | None,
        *,
        newest_first: bool,
        limit: int | None,
    ) -> Iterator[LoggedFact]:
        records, tenant = self._logs[log], self._tenant
        if cause is None:
            facts = records.select(query, newest_first=newest_first, limit=limit, tenant=tenant)
        else:
            facts = records.caused_by(cause, query, tenant=tenant)
        try:
            while batch := self._wait(_batch(facts)):
                for fact in batch:
                    yield LoggedFact(*(*_VALUES(fact), log))
        except GeneratorExit:  # in all other cases the generator has ended
            if not self._closed.is_set():
                self._wait(facts.aclose())
            raise

    def _lines(self, facts: Sequence[LoggedFact]) -> list[ChainedRecord]:
        """Return the lines of facts, in their order."""
        seqs = defaultdict[Path, list[int]](list)
        for fact in facts:
            seqs[fact.log].append(fact.seq)
        found = {
            (log, line.seq): line
            for log, wanted in seqs.items()
            for line in self._wait(self._logs[log].lines(wanted, tenant=self._tenant))
        }
        for fact in facts:
            if (fact.log, fact.seq) not in found:
                raise StoreError(fact.log, "it is not there. Verify the log", line=fact.seq)
        return [found[fact.log, fact.seq] for fact in facts]

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed.is_set():
            work.close()
            raise StoreError(self.logs[0], "its reader is closed. Open it again")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise


_VALUES: Final = attrgetter(*(field.name for field in fields(Fact)))


async def _batch(facts: AsyncGenerator[Fact]) -> list[Fact]:
    batch = []
    async for fact in facts:  # leaving the loop does not close the generator
        batch.append(fact)
        if len(batch) >= _AT_ONCE:
            break
    return batch


def added_sums(rows: Iterable[FactSums]) -> list[FactSums]:
    """Return sums with equal keys as one, sorted by key."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        figures = groups.setdefault(row.key, [0] * len(_FIGURES(row)))
        groups[row.key] = [one + more for one, more in zip(figures, _FIGURES(row), strict=True)]
    return [FactSums(key, *figures) for key, figures in sorted(groups.items())]


_FIGURES: Final = attrgetter(*(field.name for field in fields(FactSums) if field.name != "key"))


_COLUMN_TYPES: Final[Mapping[str, Any]] = {**{field.name: field.type for field in fields(Fact)}, "log": str}
_PACKAGES: Final = MappingProxyType({"polars": "polars", "pandas": "pandas", "arrow": "pyarrow"})


def _frame_library(library: FrameLibrary) -> Any:
    """Import the package of a library. Raises `QueryError` or `FrameLibraryError`."""
    if library not in _PACKAGES:
        raise QueryError(f"{library!r} is not a library of frames. Allowed: {', '.join(_PACKAGES)}")
    try:
        return import_module(_PACKAGES[library])
    except ModuleNotFoundError as e:
        raise FrameLibraryError(_PACKAGES[library]) from e


def _frame(library: FrameLibrary, package: Any, columns: Mapping[str, list[Any]]) -> Any:
    """Return columns as a frame. Types are given, because a column may be empty."""
    match library:
        case "polars":
            time = package.Datetime("us", "UTC")
            types = {
                datetime: time,
                str: package.String,
                int: package.Int64,
                bool: package.Boolean,
                float: package.Float64,
            }
            return package.DataFrame(columns, schema={name: types[_COLUMN_TYPES[name]] for name in columns})
        case "pandas":
            types = {
                datetime: "datetime64[us, UTC]",
                str: "str",
                int: "int64",
                bool: "bool",
                float: "float64",
            }
            return package.DataFrame({
                name: package.Series(values, dtype=types[_COLUMN_TYPES[name]])
                for name, values in columns.items()
            })
        case "arrow":
            time = package.timestamp("us", tz="UTC")
            types = {
                datetime: time,
                str: package.string(),
                int: package.int64(),
                bool: package.bool_(),
                float: package.float64(),
            }
            return package.table({
                name: package.array(values, type=types[_COLUMN_TYPES[name]])
                for name, values in columns.items()
            })
        case _:
            assert_never(library)
