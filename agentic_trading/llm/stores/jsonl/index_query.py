"""Queries of an index. All of this blocks, and runs in the thread of the index."""

import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from agentic_trading.llm import facts as fact_api
from agentic_trading.llm.event import ArchiveStarted
from agentic_trading.llm.facts import ANY, EVERYTHING, NAME_FIELDS, Fact, RecordQuery
from agentic_trading.llm.log_line import DISPATCHED, IndexRow
from agentic_trading.llm.store import LATEST_RUNS, IdKind, Spend, SpendKey, TraceSummary
from agentic_trading.llm.stores import condition, record_codec, record_facts
from agentic_trading.llm.stores.jsonl import index_rows
from agentic_trading.llm.stores.jsonl.index_rows import IN_DOUBT, RECORDED, RUN, SENT, SUCCESS, Names
from agentic_trading.llm.stores.record_facts import MICROSECONDS_A_DAY

Place = tuple[int, int, int]
"""The number of a line, its offset and its length."""

_LAST_CHARACTER: Final = "\U0010ffff"
_PLACE: Final = "seq, offset, length"
IS_ATTEMPT: Final = "attempt > 0"
IS_SENT: Final = f"(flags & {SENT} > 0)"
_WITHOUT_INDEX: Final = (IS_ATTEMPT, "EXISTS ")

# A division in SQLite rounds towards 0.
_DAY: Final = (
    f"(time - ((time % {MICROSECONDS_A_DAY}) + {MICROSECONDS_A_DAY}) % {MICROSECONDS_A_DAY})"
    f" / {MICROSECONDS_A_DAY}"
)
_SECOND: Final = "((time % 1000000) + 1000000) % 1000000"
_TIME: Final = f"strftime('%Y-%m-%dT%H:%M:%S', (time - {_SECOND}) / 1000000 + {record_facts.EPOCH_S}, 'unixepoch') || printf('.%06dZ', {_SECOND})"
_OF_ATTEMPTS: Final = {
    "success": f"flags & {SUCCESS} > 0",
    "sent": f"flags & {SENT} > 0",
    "recorded": f"flags & {RECORDED} > 0",
    "in_doubt": f"flags & {IN_DOUBT} > 0",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cost_nusd": "cost_nusd",
    "latency_ms": "latency_ms",
}
_CONDITION_COLUMNS: Final = {
    "seq": "seq",
    "time": _TIME,
    **{field: f"(SELECT name FROM main.names WHERE number = {field})" for field in NAME_FIELDS},  # noqa: S608 - names of fields
    "attempt": "attempt",
    **{name: f"CASE WHEN {IS_ATTEMPT} THEN {value} END" for name, value in _OF_ATTEMPTS.items()},
}
"""The fields of `Fact`, as a condition sees them."""

_FACT_COLUMNS: Final = (
    f"seq, time, {', '.join(NAME_FIELDS)}, attempt, flags, input_tokens, output_tokens, cost_nusd, latency_ms"
)
"""The columns of `records` for a `Fact`."""

# Without subjects, because a desk may have more subjects than all other names, and each would be a row a day.
_KEPT_KEYS: Final = frozenset({
    "day",
    "kind",
    "tenant",
    "agent",
    "workflow",
    "provider",
    "model",
    "verdict",
    "failure",
})
_ROWS: Final = f"""
(SELECT {_DAY} AS day, {", ".join(NAME_FIELDS)}, flags, 1 AS records,
    input_tokens, output_tokens, cost_nusd, billed_nusd
FROM records WHERE {{selected}})"""  # noqa: S608 - constants of this module
"""The rows of records, with the columns of the table `sums`."""

# From the kept sums or from rows: a row counts as one record.
_FACT_SUMS: Final = (
    "sum(records), sum(records * (failure > 0)), sum(input_tokens), sum(output_tokens), sum(cost_nusd)"
)
_IS_RECORDED: Final = f"(flags & {RECORDED} > 0)"
_IS_IN_DOUBT: Final = f"(flags & {IN_DOUBT} > 0)"
_IS_UNMETERED: Final = f"(flags & {index_rows.UNMETERED} > 0)"
_SPEND: Final = (
    f"sum(records * {IS_SENT}), sum(records * ({IS_SENT} AND NOT flags & {SUCCESS})),"
    f" sum(input_tokens * {IS_SENT}), sum(output_tokens * {IS_SENT}), sum(cost_nusd),"
    f" sum(records * (NOT {IS_SENT} AND NOT {_IS_RECORDED})), sum(records * {_IS_RECORDED}),"
    f" sum(records * {_IS_IN_DOUBT}), sum(cost_nusd * {_IS_IN_DOUBT}), sum(billed_nusd),"
    f" sum(records * {_IS_UNMETERED}), sum(cost_nusd * {_IS_UNMETERED})"
)
"""The figures of a `Spend`, in its order."""


@dataclass(frozen=True, slots=True)
class IndexQueries:
    """Answer queries from the tables of an index.

    An id is only a number in the index, and two UUIDs may have the same one. So the line of a record confirms
    the id of a trace or a cause.

    Attributes:
        db: The index.
        names: Its names.
        read: Reads the facts of lines.

    """

    db: sqlite3.Connection
    names: Names
    read: Callable[[Iterable[Place]], Iterator[tuple[int, IndexRow]]]

    def places(
        self, *conditions: str, tenant: str | None, order: str = "seq", values: Sequence[int] = ()
    ) -> list[Place]:
        """Return the places of the records that meet all conditions, which may have marks for values."""
        return self._rows(_PLACE, *conditions, tenant=tenant, order=order, values=values).fetchall()

    def runs(self) -> list[Place]:
        """Return the places of the newest starts and ends of runs, and of an archive's start."""
        archive = self._one_of("kind", [ArchiveStarted.KIND])
        return self.db.execute(
            f"SELECT {_PLACE} FROM records WHERE seq = 1 AND {archive} UNION"  # noqa: S608 - numbers
            f" SELECT {_PLACE} FROM (SELECT {_PLACE} FROM records WHERE flags & {RUN}"
            f" ORDER BY seq DESC LIMIT {LATEST_RUNS}) ORDER BY seq"
        ).fetchall()

    def unmatched(self, tenant: str | None) -> list[Place]:
        """Return the places of reservations that a sum of attempts does not cover."""
        dispatched = self._one_of("kind", [DISPATCHED])
        known = self._all_of("reservation IS NOT NULL", tenant=tenant)
        matched = f"sum({IS_ATTEMPT}) = 1 AND sum({dispatched}) = count(*) - 1 AND count(*) <= 2"
        others = f"SELECT reservation FROM records WHERE {known} GROUP BY reservation HAVING NOT ({matched})"  # noqa: S608 - numbers and constants
        return self.places(f"reservation IN ({others})", tenant=tenant)

    def ids_starting(self, prefix: str, of: IdKind, limit: int, tenant: str | None) -> list[str]:
        """Return the ids that start with `prefix`, sorted, at most `limit`."""
        conditions = ["of = :of", "id >= :first", "id < :last", *self._of_tenant(tenant)]
        query = f"SELECT DISTINCT id FROM other_ids WHERE {' AND '.join(conditions)} ORDER BY id LIMIT :limit"  # noqa: S608 - constants of this module
        values = {"of": of, "first": prefix, "last": f"{prefix}{_LAST_CHARACTER}", "limit": max(0, limit)}
        found = {id_ for (id_,) in self.db.execute(query, values)}
        if (numbers := index_rows.uuid_range(prefix)) is not None:
            for column in ("trace",) if of == "trace" else ("id", "envelope"):
                found |= self._uuids(column, numbers, prefix, limit, tenant)
        return sorted(found)[: max(0, limit)]

    def _uuids(
        self, column: str, numbers: tuple[int, int], prefix: str, limit: int, tenant: str | None
    ) -> set[str]:
        low, high = numbers
        conditions = [f"{column} BETWEEN {low} AND {high}", f"{column} & {index_rows.UUID_BITS}"]
        if column == "envelope":
            conditions.append(IS_ATTEMPT)
        rows = self._rows(f"{_PLACE}, {column}", *conditions, tenant=tenant, order=column)
        found = set[str]()
        last = None
        for *place, number in rows:
            # All ids with the last number are read, because the index does not know their order.
            if len(found) >= limit and number != last:
                break
            last = number
            for _, facts in self.read([tuple(place)]):
                id_ = {"trace": facts.trace_id, "id": facts.id, "envelope": facts.envelope_id}[column]
                if id_.startswith(prefix):
                    found.add(id_)
        return found

    def traces(
        self, limit: int, query: RecordQuery, tenant: str | None, *, with_calls: bool
    ) -> list[TraceSummary]:
        """Return the summaries of the newest decision chains with a selected record."""
        selected = self.selected(query, tenant)
        conditions = []
        if query != EVERYTHING:
            conditions.append(f"trace IN (SELECT trace FROM records WHERE {selected})")  # noqa: S608 - numbers
        if with_calls:
            calls = f"call.trace = records.trace AND call.{IS_ATTEMPT}"
            conditions.append(f"EXISTS (SELECT 1 FROM records AS call WHERE {calls})")  # noqa: S608 - constants
        seen = set[int]()
        summaries: dict[int, TraceSummary] = {}
        newest: list[TraceSummary] = []
        for seq, number in self._rows("seq, trace", *conditions, tenant=tenant, order="seq DESC"):
            if len(newest) >= limit:
                break
            if number not in seen:
                seen.add(number)
                summaries |= self._summaries(number, selected, tenant, with_calls=with_calls)
            if seq in summaries:  # the last line of its chain
                newest.append(summaries[seq])
        return newest

    def _summaries(
        self, number: int, selected: str, tenant: str | None, *, with_calls: bool
    ) -> dict[int, TraceSummary]:
        """Return the summaries of the chains whose id has a number, by their last line."""
        wanted = {seq for (seq,) in self._rows("seq", f"trace = {number}", f"+({selected})", tenant=None)}
        found: dict[int, TraceSummary] = {}
        for trace_id, chain in self._facts_by_trace(number, tenant).items():
            has_call = any(fact.attempt for fact in chain)
            if not wanted.isdisjoint(fact.seq for fact in chain) and (has_call or not with_calls):
                found[chain[-1].seq] = record_codec.summary_of(trace_id, chain)
        return found

    def _facts_by_trace(self, number: int, tenant: str | None) -> dict[str, list[Fact]]:
        """Return the facts of the chains whose id has a number, by id."""
        if number & index_rows.UUID_BITS:
            chains = self._chains(number, tenant).items()
            return {id_: [record_facts.fact_of(*line) for line in chain.items()] for id_, chain in chains}
        # A hash is that of one id. So long chains of the platform, such as `budget`, are not read.
        own = self._all_of(f"trace = {number}", tenant=tenant)
        first = self.places(f"trace = {number}", tenant=tenant, order="seq LIMIT 1")
        return {row.trace_id: self._facts(own) for _, row in self.read(first)}

    def _chains(self, number: int, tenant: str | None) -> dict[str, dict[int, IndexRow]]:
        """Return the lines of the chains whose id has a number, by id."""
        chains: defaultdict[str, dict[int, IndexRow]] = defaultdict(dict)
        for seq, facts in self.read(self.places(f"trace = {number}", tenant=tenant)):
            chains[facts.trace_id][seq] = facts
        return chains

    def seqs(
        self, query: RecordQuery, tenant: str | None, *, newest_first: bool = False, limit: int | None = None
    ) -> "array[int]":
        """Return the lines of the selected records."""
        order = f"seq {'DESC' if newest_first else 'ASC'} LIMIT {-1 if limit is None else max(0, limit)}"
        rows = self._rows("seq", self.selected(query, tenant), tenant=None, order=order)
        return array("q", (seq for (seq,) in rows))

    def facts(self, seqs: Sequence[int]) -> list[Fact]:
        """Return the facts of lines, in their order."""
        found = {fact.seq: fact for fact in self._facts(f"seq IN ({', '.join(map(str, seqs))})")}
        return [found[seq] for seq in seqs if seq in found]

    def _facts(self, condition: str) -> list[Fact]:
        return [self._fact(row) for row in self._rows(_FACT_COLUMNS, condition, tenant=None)]

    def _fact(self, row: Sequence[int]) -> Fact:
        seq, micros, *numbers = row
        kind, tenant, agent, workflow, provider, model, subject, verdict, failure, attempt, *rest = numbers
        flags, input_tokens, output_tokens, cost_nusd, latency_ms = rest
        text = self._text
        return Fact(
            seq=seq,
            time=record_facts.time_of(micros),
            kind=text(kind),
            tenant=text(tenant),
            agent=text(agent),
            workflow=text(workflow),
            provider=text(provider),
            model=text(model),
            subject=text(subject),
            verdict=text(verdict),
            failure=text(failure),
            attempt=attempt,
            success=flags & SUCCESS > 0,
            sent=flags & SENT > 0,
            recorded=flags & RECORDED > 0,
            in_doubt=flags & IN_DOUBT > 0,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cost_nusd=cost_nusd,
            latency_ms=float(latency_ms),
        )

    def count(self, query: RecordQuery, tenant: str | None) -> int:
        """Return the number of selected records."""
        (count,) = self.db.execute(f"SELECT sum(records) FROM {self._source((), query, tenant)}").fetchone()  # noqa: S608 - numbers and constants
        return count or 0

    def sums(
        self, by: Sequence[fact_api.FactKey], query: RecordQuery, tenant: str | None
    ) -> list[fact_api.FactSums]:
        """Return the sums of the selected records by the given keys."""
        found = self._grouped(_FACT_SUMS, by, self._source(by, query, tenant))
        return [fact_api.FactSums(key, *figures) for key, figures in found]

    def spend(self, by: Sequence[SpendKey], query: RecordQuery, tenant: str | None) -> list[Spend]:
        """Return the sums of the selected attempts by the given keys."""
        source = f"{self._source(by, query, tenant)} WHERE kind = {index_rows.INTERACTION_NUMBER}"
        return [Spend(key, *figures) for key, figures in self._grouped(_SPEND, by, source)]

    def _grouped(
        self, figures: str, by: Sequence[fact_api.FactKey], source: str
    ) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
        keys = ", ".join(by) or "NULL"
        found = []
        for row in self.db.execute(f"SELECT {keys}, {figures} FROM {source} GROUP BY {keys}"):  # noqa: S608 - names of keys
            key = tuple(map(self._key, by, row))
            found.append((key, row[max(1, len(by)) :]))
        return sorted(found)  # by text, because the order of numbers is that of first use

    def _key(self, name: fact_api.FactKey, value: int) -> str:
        if name == "day":
            return record_facts.time_of(value * MICROSECONDS_A_DAY).date().isoformat()
        return self._text(value)

    def _text(self, number: int) -> str:
        if not self.names.has(number):  # another process has indexed more lines during this query
            self.names.read(self.db)
        return self.names.text(number)

    def _source(self, by: Sequence[fact_api.FactKey], query: RecordQuery, tenant: str | None) -> str:
        """Return the kept sums if they have the facts of a query, and the rows of records otherwise."""
        if _KEPT_KEYS.issuperset(by) and not query.subject and _fits_days(query):
            return f"(SELECT * FROM sums WHERE {self._conditions(query, tenant, of_days=True)})"  # noqa: S608 - numbers
        return _ROWS.format(selected=self.selected(query, tenant))

    def latencies(self, query: RecordQuery, tenant: str | None) -> list[fact_api.Latency]:
        """Return the latency percentiles of the selected attempts, by model."""
        if _fits_days(query) and not any(
            getattr(query, field) for field in NAME_FIELDS if field not in {"tenant", "model"}
        ):
            days = self._conditions(query, tenant, of_days=True)
            kept = f"SELECT model, bucket, sum(attempts) FROM latencies WHERE {days} GROUP BY model, bucket"  # noqa: S608 - numbers
            found = [(model, bucket, attempts) for model, bucket, attempts in self.db.execute(kept)]
        else:
            rows = self._rows(
                "model, latency_ms", self.selected(query, tenant), f"flags & {SENT}", tenant=None
            )
            found = [(model, record_facts.bucket_of(latency_ms), 1) for model, latency_ms in rows]
        return record_facts.latencies_of((self._text(model), bucket, n) for model, bucket, n in found)

    def effects(self, cause: RecordQuery, effect: RecordQuery, tenant: str | None) -> "array[int]":
        """Return the lines of the records of `effect` that follow from a record of `cause`."""
        causes: defaultdict[int, set[int]] = defaultdict(set)
        for seq, number in self._rows("seq, trace", self.selected(cause, tenant), tenant=None):
            causes[number].add(seq)
        effects: defaultdict[int, set[int]] = defaultdict(set)
        for seq, number in self._rows("seq, trace", self.selected(effect, tenant), tenant=None):
            if number in causes:
                effects[number].add(seq)
        found: list[int] = []
        for number, wanted in effects.items():
            for chain in self._chains(number, tenant).values():
                found += wanted & record_facts.effects_of(chain, causes[number] & chain.keys())
        return array("q", sorted(found))

    def selected(self, query: RecordQuery, tenant: str | None) -> str:
        """Return the SQL condition of the records that a query selects.

        It holds until the next call if the query has a trace or a condition, because the lines are in a temporary table.
        """
        selected = self._conditions(query, tenant, of_days=False)
        if query.trace_id:
            chain = f"trace = {index_rows.id_number(query.trace_id)}", f"+({selected})"
            selected = " AND ".join(chain)
            if index_rows.is_uuid(query.trace_id):
                lines = self.read(self.places(*chain, tenant=None))
                selected = self._chosen(seq for seq, row in lines if row.trace_id == query.trace_id)
        if query.where:
            columns = ", ".join(f"{value} AS {name}" for name, value in _CONDITION_COLUMNS.items())
            facts = f"SELECT {columns} FROM main.records WHERE {selected}"  # noqa: S608 - constants and numbers
            (records,) = self.db.execute("SELECT seq FROM head").fetchone()
            selected = self._chosen(condition.matching(self.db, facts, query.where, records=records))
        return selected

    def _chosen(self, seqs: Iterable[int]) -> str:
        self.db.execute("CREATE TEMP TABLE IF NOT EXISTS chosen (seq INTEGER PRIMARY KEY)")
        rows = [(seq,) for seq in seqs]
        self.db.execute("BEGIN")
        with self.db:
            self.db.execute("DELETE FROM temp.chosen")
            self.db.executemany("INSERT INTO temp.chosen VALUES (?)", rows)
        return "seq IN (SELECT seq FROM temp.chosen)"

    def _conditions(self, query: RecordQuery, tenant: str | None, *, of_days: bool) -> str:
        """Return the conditions of a query but for its trace and its `where`, over `records` or over days."""
        found = [self._one_of(field, getattr(query, field)) for field in NAME_FIELDS if getattr(query, field)]
        for time, operator in ((query.since, ">="), (query.until, "<")):
            if time is not None:
                micros = record_facts.micros_of(time)
                found.append(
                    f"day {operator} {micros // MICROSECONDS_A_DAY}"
                    if of_days
                    else f"time {operator} {micros}"
                )
        if query.after:
            found.append(f"seq > {query.after}")
        if query.before:
            found.append(f"seq < {query.before}")
        return self._all_of(*found, tenant=tenant)

    def _one_of(self, field: str, names: Sequence[str]) -> str:
        # A name without a number is in no record.
        numbers = [number for name in names if (number := self.names.number(name)) is not None]
        listed = f"{field} IN ({', '.join(map(str, numbers))})" if numbers else "FALSE"
        least = index_rows.INTERACTION_NUMBER if field == "kind" else 0
        if ANY in names:
            return f"({field} > 0 OR {listed})" if "" in names else f"{field} > 0"
        # The indexes by name leave out records without a name, and interactions.
        return f"{listed} AND {field} > {least}" if numbers and min(numbers) > least else listed

    def _rows(
        self,
        columns: str,
        *conditions: str,
        tenant: str | None,
        order: str = "seq",
        values: Sequence[int] = (),
    ) -> sqlite3.Cursor:
        query = (
            f"SELECT {columns} FROM records WHERE {self._all_of(*conditions, tenant=tenant)} ORDER BY {order}"  # noqa: S608 - conditions from this module
        )
        return self.db.execute(query, values)

    def _all_of(self, *conditions: str, tenant: str | None = None) -> str:
        """Return the conjunction of conditions, limited to the tenant's records if there is one."""
        # With a plus, SQLite does not use the index of tenants, because any other index is better.
        has_index = any(not each.startswith(_WITHOUT_INDEX) for each in conditions)
        of_tenant = [f"+{each}" if has_index else each for each in self._of_tenant(tenant)]
        return " AND ".join((*conditions, *of_tenant)) or "TRUE"

    def _of_tenant(self, tenant: str | None) -> list[str]:
        if tenant is None:
            return []
        number = self.names.number(tenant)
        return ["FALSE" if number is None else f"tenant = {number}"]


def _fits_days(query: RecordQuery) -> bool:
    times = [record_facts.micros_of(time) for time in (query.since, query.until) if time is not None]
    is_whole = all(micros % MICROSECONDS_A_DAY == 0 for micros in times)
    return is_whole and not (query.trace_id or query.after or query.before or query.where)
