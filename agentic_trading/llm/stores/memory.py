"""A log in memory. It keeps all promises of the store, but ends with the process."""

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

from typing_extensions import override

from agentic_trading.llm import store as store_api
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.event import Event
from agentic_trading.llm.facts import EVERYTHING, Fact, FactKey, FactSums, Latency, RecordQuery
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.log_line import (
    DISPATCHED,
    BrokenRecordError,
    IndexRow,
    check_link,
    index_row_of,
    read_line,
)
from agentic_trading.llm.stores import condition, record_codec, record_facts

_PATH = Path("(memory)")
_BATCH_LINES = 2000


class MemoryInteractionStore:
    """An interaction store in memory, for tests and short runs.

    Records are kept as the lines of a file, so that callers cannot change them afterwards. They are never
    deleted: an interaction takes about 7 KB.
    """

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._head = store_api.ChainHead()
        self._known: dict[str, bytes] = {}
        self._followers: set[asyncio.Event] = set()
        self._records = MemoryRecords(self._lines)
        self._is_closed = False

    @property
    def records(self) -> "MemoryRecords":
        """The queries of the log: the interface `Records`."""
        return self._records

    async def store(self, interaction: LLMInteraction) -> int:
        """Keep an attempt and return the number of its line."""
        return self._keep(interaction)

    async def record(self, event: Event) -> int:
        """Keep an event and return the number of its line."""
        return self._keep(event)

    async def copy(self, line: store_api.ChainedRecord) -> int:
        """Keep the record of another log's line, byte for byte, and return its number here."""
        return self._add(record_codec.identity_of(record_codec.record_of(line.record)), line.record)

    async def has_attempt(self, envelope: LLMEnvelope, attempt: int) -> bool:
        """Return whether an attempt is on record."""
        return record_codec.attempt_key(envelope, attempt) in self._known

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
        return self._records.newest(limit, tenant)

    async def scan(self, after: int = 0) -> AsyncGenerator[store_api.LogEntry]:
        """Yield all entries with a number above `after`, in order."""
        for raw in self._lines[max(0, after) :]:
            yield _entry(raw)

    async def follow(self, after: int = 0) -> AsyncGenerator[Sequence[store_api.ChainedRecord]]:
        """Yield batches of lines with a number above `after`, until the store is closed."""
        news = asyncio.Event()
        self._followers.add(news)
        try:
            while True:
                news.clear()
                while batch := [read_line(raw) for raw in self._lines[after : after + _BATCH_LINES]]:
                    after += len(batch)
                    yield batch
                if self._is_closed:
                    return
                await news.wait()
        finally:
            self._followers.discard(news)

    async def verify(self) -> store_api.Verification:
        """Read every line again and recompute every hash."""
        head = store_api.ChainHead()
        runs: list[store_api.RunRecord] = []
        for raw in self._lines:
            try:
                line = read_line(raw)
                head = check_link(line, head)
            except BrokenRecordError as e:
                return record_codec.broken_at(head, e.reason, raw, runs)
            runs += record_codec.run_records(line)
        return store_api.Verification(head.seq, head.hash, runs=tuple(runs))

    async def head(self) -> tuple[int, str]:
        """Return the number and the hash of the last line."""
        return self._head.seq, self._head.hash

    async def flush(self) -> None:
        """Return at once: there is no disk."""

    async def aclose(self) -> None:
        """End every `follow` and accept no more records. You may call it twice."""
        self._is_closed = True
        self._wake_followers()

    def _keep(self, record: store_api.Record) -> int:
        return self._add(record_codec.identity_of(record), record_codec.wire_of(record))

    def _add(self, identity: record_codec.Identity, raw: bytes) -> int:
        if self._is_closed:
            raise StoreError(_PATH, "the store is closed. Create a new one to continue")
        if (known := self._known.get(identity.key)) is not None:
            return identity.check(known)
        line, self._head = record_codec.write_line(raw, self._head)
        self._lines.append(line)
        self._known[identity.key] = identity.at(self._head.seq)
        self._wake_followers()
        return self._head.seq

    def _wake_followers(self) -> None:
        for news in self._followers:
            news.set()


class DiscardingInteractionStore(MemoryInteractionStore):
    """A store that accepts records and keeps none, for a replay or a rehearsal.

    Conflicts are not detected, because earlier records are not kept.
    """

    @override
    def _keep(self, record: store_api.Record) -> int:
        """Accept a record. It has no line."""
        return 0


class MemoryRecords:
    """Answer queries about lines in memory. New lines are indexed before each query."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self._facts: list[IndexRow] = []
        self._by_id: defaultdict[str, list[int]] = defaultdict(list)
        self._by_trace: defaultdict[str, list[int]] = defaultdict(list)
        self._by_envelope: defaultdict[str, list[int]] = defaultdict(list)
        self._by_request: defaultdict[tuple[str, int], list[int]] = defaultdict(list)

    async def find(self, record_id: str, *, tenant: str | None = None) -> store_api.Record | None:
        """Return the record with this id, or None."""
        self._catch_up()
        places = self._of(tenant, self._by_id.get(record_id, ()))
        place = min(places, key=lambda place: (not self._facts[place].attempt, place), default=None)
        return None if place is None else self._record(place)

    async def ids_starting(
        self, prefix: str, *, of: store_api.IdKind = "record", limit: int = 20, tenant: str | None = None
    ) -> list[str]:
        """Return the ids that start with `prefix`, sorted, at most `limit`."""
        self._catch_up()
        indexes = (self._by_trace,) if of == "trace" else (self._by_id, self._by_envelope)
        found = {
            name
            for index in indexes
            for name, places in index.items()
            if name.startswith(prefix) and next(iter(self._of(tenant, places)), None) is not None
        }
        return sorted(found)[:limit]

    async def trace(self, trace_id: str, *, tenant: str | None = None) -> list[store_api.Record]:
        """Return all records of a decision chain, in the log's order."""
        self._catch_up()
        return self._at(self._of(tenant, self._by_trace.get(trace_id, ())))

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
        selected = {self._facts[place].trace_id for place in await self._selected(query, tenant)}
        places = self._of(tenant, reversed(range(len(self._facts))))
        newest = dict.fromkeys(self._facts[place].trace_id for place in places)
        chains = (
            (name, [self._fact(place) for place in self._of(tenant, self._by_trace[name])])
            for name in newest
            if name in selected
        )
        wanted = (
            record_codec.summary_of(name, facts)
            for name, facts in chains
            if not with_calls or any(fact.attempt for fact in facts)
        )
        return list(islice(wanted, max(0, limit)))

    async def by_envelope(self, envelope_id: str, *, tenant: str | None = None) -> list[LLMInteraction]:
        """Return all attempts at an envelope, oldest first."""
        self._catch_up()
        return record_codec.interactions(self._at(self._of(tenant, self._by_envelope.get(envelope_id, ()))))

    async def by_request(
        self, request_hash: str, occurrence: int, *, tenant: str | None = None
    ) -> AsyncGenerator[LLMInteraction]:
        """Yield the attempts at a request and occurrence that were sent, oldest first."""
        self._catch_up()
        places = [*self._of(tenant, self._by_request.get((request_hash, occurrence), ()))]
        for place in places:
            for attempt in record_codec.interactions(self._at([place])):
                yield attempt

    async def spend(
        self, *by: store_api.SpendKey, query: RecordQuery = EVERYTHING, tenant: str | None = None
    ) -> list[store_api.Spend]:
        """Return the sums of the selected attempts by the given keys.

        Raises `ValueError` for an unknown key.
        """
        keys = record_codec.check_keys(by)
        groups: defaultdict[tuple[str, ...], list[IndexRow]] = defaultdict(list)
        for place in await self._selected(query, tenant):
            fact = self._facts[place]
            if fact.attempt:
                groups[tuple(getattr(fact, key) for key in keys)].append(fact)
        return [_sum(key, groups[key]) for key in sorted(groups)]

    async def select(
        self,
        query: RecordQuery = EVERYTHING,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        tenant: str | None = None,
    ) -> AsyncGenerator[Fact]:
        """Yield the facts of the selected records, in the log's order or reversed."""
        places = await self._selected(query, tenant)
        for place in islice(
            reversed(places) if newest_first else places, None if limit is None else max(0, limit)
        ):
            yield self._fact(place)

    async def entries(
        self, query: RecordQuery = EVERYTHING, *, tenant: str | None = None
    ) -> AsyncGenerator[store_api.LogEntry]:
        """Yield the entries of the selected records, in the log's order."""
        for place in await self._selected(query, tenant):
            yield _entry(self._lines[place])

    async def count(self, query: RecordQuery = EVERYTHING, *, tenant: str | None = None) -> int:
        """Return the number of selected records."""
        return len(await self._selected(query, tenant))

    async def sums(
        self, *by: FactKey, query: RecordQuery = EVERYTHING, tenant: str | None = None
    ) -> list[FactSums]:
        """Return the sums of the selected records by the given keys.

        Raises `ValueError` for an unknown key.
        """
        keys = record_facts.check_fact_keys(by)
        groups: defaultdict[tuple[str, ...], list[Fact]] = defaultdict(list)
        for place in await self._selected(query, tenant):
            fact = self._fact(place)
            groups[record_facts.sums_key(fact, keys)].append(fact)
        return [_fact_sums(key, groups[key]) for key in sorted(groups)]

    async def latencies(self, query: RecordQuery = EVERYTHING, *, tenant: str | None = None) -> list[Latency]:
        """Return the latency percentiles of the selected attempts that were sent, by model."""
        rows = [self._facts[place] for place in await self._selected(query, tenant)]
        return record_facts.latencies_of(
            (row.model, record_facts.bucket_of(row.latency_ms), 1) for row in rows if row.sent
        )

    async def caused_by(
        self, cause: RecordQuery, effect: RecordQuery = EVERYTHING, *, tenant: str | None = None
    ) -> AsyncGenerator[Fact]:
        """Yield the facts of the records of `effect` that follow from a record of `cause`."""
        by_trace: defaultdict[str, list[int]] = defaultdict(list)
        for place in await self._selected(cause, tenant):
            by_trace[self._facts[place].trace_id].append(place)
        found = set[int]()
        for trace_id, places in by_trace.items():
            chain = {place: self._facts[place] for place in self._of(tenant, self._by_trace[trace_id])}
            found |= record_facts.effects_of(chain, places)
        for place in await self._selected(effect, tenant):
            if place in found:
                yield self._fact(place)

    async def lines(self, seqs: Sequence[int], *, tenant: str | None = None) -> list[store_api.ChainedRecord]:
        """Return the lines with these numbers, in the log's order. Missing lines are left out."""
        self._catch_up()
        places = sorted({seq - 1 for seq in seqs if 0 < seq <= len(self._facts)})
        return [read_line(self._lines[place]) for place in self._of(tenant, places)]

    async def unmatched(self, *, tenant: str | None = None) -> list[store_api.Record]:
        """Return the records of reservations without exactly one dispatch and one attempt."""
        self._catch_up()
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place in self._of(tenant, range(len(self._facts))):
            if (reservation := self._facts[place].reservation) is not None:
                places[reservation].append(place)
        found = (of_one for of_one in places.values() if not self._is_matched(of_one))
        return self._at(sorted(place for of_one in found for place in of_one))

    def _is_matched(self, places: Sequence[int]) -> bool:
        facts = [self._facts[place] for place in places]
        attempts, dispatched = (
            sum(fact.attempt > 0 for fact in facts), sum(fact.kind == DISPATCHED for fact in facts),
        )  # fmt: skip
        return attempts == 1 and dispatched == len(facts) - 1 and len(facts) <= 2

    def newest(self, limit: int, tenant: str | None) -> list[LLMInteraction]:
        """Return the newest attempts, newest first."""
        self._catch_up()
        places = self._of(tenant, reversed(range(len(self._facts))))
        attempts = (place for place in places if self._facts[place].attempt)
        return record_codec.interactions(self._at(islice(attempts, max(0, limit))))

    async def _selected(self, query: RecordQuery, tenant: str | None) -> list[int]:
        """Return the places of the selected records, in the log's order."""
        self._catch_up()
        if query == EVERYTHING:
            return list(self._of(tenant, range(len(self._facts))))
        facts = [
            fact
            for place in self._of(tenant, range(len(self._facts)))
            if record_facts.is_selected(fact := self._fact(place), self._facts[place].trace_id, query)
        ]
        seqs = (
            await asyncio.to_thread(_matching, facts, query.where)
            if query.where
            else [fact.seq for fact in facts]
        )
        return [seq - 1 for seq in seqs]

    def _fact(self, place: int) -> Fact:
        return record_facts.fact_of(place + 1, self._facts[place])

    def _catch_up(self) -> None:
        for place in range(len(self._facts), len(self._lines)):
            facts = index_row_of(read_line(self._lines[place]).record)
            self._facts.append(facts)
            self._by_id[facts.id].append(place)
            self._by_trace[facts.trace_id].append(place)
            if facts.attempt:
                self._by_envelope[facts.envelope_id].append(place)
                if facts.sent:
                    self._by_request[facts.request_hash, facts.occurrence].append(place)

    def _of(self, tenant: str | None, places: Iterable[int]) -> Iterable[int]:
        """Return the places of a tenant's records, or all places without a tenant."""
        return (place for place in places if tenant is None or self._facts[place].tenant == tenant)

    def _at(self, places: Iterable[int]) -> list[store_api.Record]:
        return [self._record(place) for place in places]

    def _record(self, place: int) -> store_api.Record:
        return record_codec.record_of(read_line(self._lines[place]).record)


def _entry(raw: bytes) -> store_api.LogEntry:
    line = read_line(raw)
    return store_api.LogEntry(line.seq, record_codec.record_of(line.record), line.hash)


def _sum(key: tuple[str, ...], facts: list[IndexRow]) -> store_api.Spend:
    sent = [fact for fact in facts if fact.sent]
    return store_api.Spend(
        key=key,
        attempts=len(sent),
        failed=sum(not fact.success for fact in sent),
        input_tokens=sum(fact.input_tokens for fact in sent),
        output_tokens=sum(fact.output_tokens for fact in sent),
        cost_nusd=sum(fact.cost_nusd for fact in facts),
        refused=sum(not fact.sent and not fact.recorded for fact in facts),
        recorded=sum(fact.recorded for fact in facts),
        in_doubt=sum(fact.in_doubt for fact in facts),
        in_doubt_nusd=sum(fact.cost_nusd for fact in facts if fact.in_doubt),
        billed_nusd=sum(fact.billed_nusd for fact in facts),
        unmetered=sum(fact.unmetered for fact in facts),
        unmetered_nusd=sum(fact.cost_nusd for fact in facts if fact.unmetered),
    )


def _fact_sums(key: tuple[str, ...], facts: Sequence[Fact]) -> FactSums:
    return FactSums(
        key=key,
        records=len(facts),
        failed=sum(fact.failure != "" for fact in facts),
        input_tokens=sum(fact.input_tokens for fact in facts),
        output_tokens=sum(fact.output_tokens for fact in facts),
        cost_nusd=sum(fact.cost_nusd for fact in facts),
    )


def _matching(facts: Sequence[Fact], where: str) -> list[int]:
    """Return the numbers of the facts that meet a condition. It blocks."""
    names = ", ".join(condition.COLUMNS)
    marks = ", ".join("?" * len(condition.COLUMNS))
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"CREATE TABLE selected ({names})")
        db.executemany(f"INSERT INTO selected VALUES ({marks})", record_facts.condition_rows(facts))  # noqa: S608 - a mark for each column
        return condition.matching(db, "SELECT * FROM main.selected", where, records=len(facts))
