"""The interface of the log: records are kept once, unchanged and in order."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.facts import EVERYTHING, Fact, FactKey, FactSums, Latency, RecordQuery
from agentic_trading.llm.interaction import LLMInteraction

Record = LLMInteraction | Event

LOG_NAME: Final = "interactions.jsonl"
"""The name of a log in its folder."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line of the log: its number from 1, the record, and the hash of the line."""

    seq: int
    record: Record
    hash: str


GENESIS: Final = "0" * 64
"""The hash of the previous line that the first line has."""


class ChainHead(NamedTuple):
    """The end of a chain: the number and the hash of its last line."""

    seq: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class Seal:
    """The seal of a segment: its place in the log, and hashes of its content.

    Attributes:
        first: The number of its first line.
        last: The number of its last line.
        count: The number of its lines.
        bytes: Its size, uncompressed.
        first_time: The earliest time of its records, empty if they have no time.
        last_time: The latest time of its records.
        sha256: The hash of its bytes, uncompressed.
        root: The root of the Merkle tree (RFC 6962) over the hashes of its lines, as 32 bytes each.
        head: The hash of its last line.
        prev: The hash of the seal before it.
        hash: The hash of this seal.

    """

    first: int
    last: int
    count: int
    bytes: int
    first_time: str
    last_time: str
    sha256: str
    root: str
    head: str
    prev: str = GENESIS
    hash: str = ""

    @property
    def end(self) -> ChainHead:
        """The head of the log's chain at the end of the segment."""
        return ChainHead(self.last, self.head)

    def has_content_of(self, seal: "Seal | None") -> bool:
        """Return whether another seal is of the same content. Times are not compared."""
        names = ("first", "last", "count", "bytes", "sha256", "root", "head")
        return seal is not None and all(getattr(self, name) == getattr(seal, name) for name in names)


class ChainedRecord(NamedTuple):
    """A line of the log, without its newline, and its position in the chain.

    The record's own bytes end before `cut`.
    """

    line: bytes
    cut: int
    seq: int
    prev: str
    hash: str

    @property
    def record(self) -> bytes:
        """The record's own bytes."""
        return self.line[: self.cut] + b"}"

    @property
    def head(self) -> ChainHead:
        """The end of the chain after this line."""
        return ChainHead(self.seq, self.hash)


LATEST_RUNS: Final = 64
"""The maximum number of starts and ends of runs that a check of a log's end reads."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A `run.started`, `run.ended` or `archive.started` in the log.

    Attributes:
        seq: The number of its line.
        prev: The hash of the line before it.

    """

    seq: int
    event: Event
    prev: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of reading and checking a log.

    Attributes:
        lines: The number of intact lines, from the first on.
        head: The hash of the last of them.
        broken_line: The number of the first broken line, 0 if there is none.
        broken_id: The id of the record in the broken line, if it can be read.
        is_unfinished: The broken line is the last one and incomplete.
        runs: The runs in the intact lines.

    """

    lines: int
    head: str
    broken_line: int = 0
    reason: str = ""
    broken_id: str = ""
    is_unfinished: bool = False
    runs: tuple[RunRecord, ...] = ()

    @property
    def is_intact(self) -> bool:
        """Whether all lines are unchanged and linked."""
        return self.broken_line == 0


class InteractionStore(Protocol):
    """Keep interactions and events in one log, in the order in which they are given.

    `store` and `record` return when the record is as durable as the store promises. A record is kept once, in
    its first form: recording it again changes nothing and returns the number of its line. Two records are the
    same if these fields agree:

    - Events: kind, trace, cause, tenant, `as_of` and body.
    - Interactions: envelope, attempt and output. After a restart: tenant, envelope id, request and attempt,
      because an attempt that is recorded again after a crash may have another answer, and the first one was
      acted on.

    Interactions and events have separate ids. A query with a `tenant` sees the records of this tenant only.
    Without one, it sees the whole log.

    Raises:
        RecordConflictError: If another record has this id.
        RecordError: If the record cannot be serialized, or the result of an attempt is of another envelope.
            The log accepts further records.
        StoreError: If the log cannot be written. No further record is acknowledged.

    """

    async def store(self, interaction: LLMInteraction) -> int:
        """Keep an attempt and return the number of its line.

        If the record is already kept, this is the number of the existing line.
        """
        ...

    async def record(self, event: Event) -> int:
        """Keep an event and return the number of its line, as `store` does."""
        ...

    async def has_attempt(self, envelope: LLMEnvelope, attempt: int) -> bool:
        """Return whether an attempt is on record, written by any process.

        Another envelope with the same id counts too. Every paid call is checked first, so this is a lookup
        and not a query.
        """
        ...

    async def get_by_envelope_id(
        self, envelope_id: str, *, tenant: str | None = None
    ) -> LLMInteraction | None:
        """Return the last attempt at an envelope, or None."""
        ...

    async def get_by_trace_id(self, trace_id: str, *, tenant: str | None = None) -> list[LLMInteraction]:
        """Return all attempts of a decision chain, oldest first."""
        ...

    async def recent(self, limit: int = 10, *, tenant: str | None = None) -> list[LLMInteraction]:
        """Return the newest attempts, newest first."""
        ...

    def scan(self, after: int = 0) -> AsyncGenerator[LogEntry]:
        """Yield all entries with a number above `after`, in order."""
        ...

    def follow(self, after: int = 0) -> AsyncGenerator[Sequence[ChainedRecord]]:
        """Yield all lines with a number above `after`, in order, and wait for more.

        Lines come in batches of at least one, as they are in the log: records are not read. It ends when the
        store is closed.
        """
        ...

    async def head(self) -> tuple[int, str]:
        """Return the number and the hash of the last line, once accepted records are written."""
        ...

    async def verify(self) -> Verification:
        """Read the whole log and recompute every hash."""
        ...

    async def aclose(self) -> None:
        """Make all records durable and release the log. You may call it twice."""
        ...


IInteractionStore = InteractionStore
"""The same interface, under its name in the first design."""


IdKind = Literal["record", "trace"]

SpendKey = Literal["agent", "model", "workflow", "day", "tenant", "provider"]


@dataclass(frozen=True, slots=True)
class Spend:
    """The sums of a group of attempts.

    Attributes:
        key: The group's value of each `SpendKey`. `day` is the UTC day of `stored_at`.
        attempts: Attempts that were sent.
        failed: Sent attempts without a usable answer.
        cost_nusd: The charges in nano-dollars.
        refused: Attempts that were never sent. They are not in `attempts`.
        recorded: Attempts that were served from a record. They are not in `attempts`.
        in_doubt: Sent attempts that may have been billed without an answer.
        in_doubt_nusd: Their charge, which is part of `cost_nusd`.
        billed_nusd: The sum of the bills that servers reported.
        unmetered: Answers without a readable usage. Each is charged its reservation.
        unmetered_nusd: Their charge, which is part of `cost_nusd`.

    """

    key: tuple[str, ...]
    attempts: int
    failed: int
    input_tokens: int
    output_tokens: int
    cost_nusd: int
    refused: int = 0
    recorded: int = 0
    in_doubt: int = 0
    in_doubt_nusd: int = 0
    billed_nusd: int = 0
    unmetered: int = 0
    unmetered_nusd: int = 0


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A decision chain: its number of records, its cost, its first and last time.

    Times are UTC in ISO 8601.
    """

    trace_id: str
    first: str
    last: str
    attempts: int
    events: int
    cost_nusd: int
    subject: str


class Records(Protocol):
    """Answer queries about a log.

    Unless stated otherwise, results are in the log's order.

    All answers can be computed from the log again. With a `tenant`, a query sees only the records of this
    tenant, even if tenants share the id of a trace, an envelope or a record. The empty name is a tenant too.
    With None it sees the whole log: this is for the operator of the platform.
    """

    async def find(self, record_id: str, *, tenant: str | None = None) -> Record | None:
        """Return the record with this id, or None.

        If an interaction and an event have the same id, this is the interaction.
        """
        ...

    async def ids_starting(
        self, prefix: str, *, of: IdKind = "record", limit: int = 20, tenant: str | None = None
    ) -> list[str]:
        """Return the ids that start with `prefix`, sorted, at most `limit`.

        Args:
            prefix: The start of the id.
            of: `record` for ids of records and envelopes, `trace` for ids of traces.
            limit: The maximum number of ids.
            tenant: The tenant, or None for the whole log.

        """
        ...

    async def trace(self, trace_id: str, *, tenant: str | None = None) -> list[Record]:
        """Return all records of a decision chain, in the log's order."""
        ...

    async def traces(
        self,
        limit: int = 20,
        *,
        query: RecordQuery = EVERYTHING,
        with_calls: bool = False,
        tenant: str | None = None,
    ) -> list[TraceSummary]:
        """Return the newest decision chains with a selected record, newest first.

        A summary is of the whole chain.

        Args:
            limit: The maximum number of chains.
            query: The selection.
            with_calls: Only chains with an LLM call.
            tenant: The tenant, or None for the whole log.

        """
        ...

    async def by_envelope(self, envelope_id: str, *, tenant: str | None = None) -> list[LLMInteraction]:
        """Return all attempts at an envelope, oldest first."""
        ...

    def by_request(
        self, request_hash: str, occurrence: int, *, tenant: str | None = None
    ) -> AsyncGenerator[LLMInteraction]:
        """Yield the attempts at a request and occurrence that were sent, oldest first."""
        ...

    async def spend(
        self, *by: SpendKey, query: RecordQuery = EVERYTHING, tenant: str | None = None
    ) -> list[Spend]:
        """Return the sums of the selected attempts on record, grouped and sorted by the given keys.

        An attempt that was sent and has no end on record is not included: see `unmatched`.
        `audit.spend_report` counts these too.

        Raises:
            ValueError: If a key is not a `SpendKey`.

        """
        ...

    def select(
        self,
        query: RecordQuery = EVERYTHING,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        tenant: str | None = None,
    ) -> AsyncGenerator[Fact]:
        """Yield the facts of the selected records, in the log's order or reversed.

        Raises:
            ValueError: If the query's `where` is no condition over the fields of `Fact`.

        """
        ...

    async def count(self, query: RecordQuery = EVERYTHING, *, tenant: str | None = None) -> int:
        """Return the number of selected records. Raises `ValueError` as `select` does."""
        ...

    async def sums(
        self, *by: FactKey, query: RecordQuery = EVERYTHING, tenant: str | None = None
    ) -> list[FactSums]:
        """Return the sums of the selected records, grouped and sorted by the given keys.

        Raises:
            ValueError: If a key is not a `FactKey`, or as `select` does.

        """
        ...

    async def latencies(self, query: RecordQuery = EVERYTHING, *, tenant: str | None = None) -> list[Latency]:
        """Return the latency percentiles of the selected attempts, by model. Raises `ValueError` as `select` does."""
        ...

    def caused_by(
        self, cause: RecordQuery, effect: RecordQuery = EVERYTHING, *, tenant: str | None = None
    ) -> AsyncGenerator[Fact]:
        """Yield the facts of the records of `effect` that follow from a record of `cause`, in the log's order.

        A record follows from another one if its cause is that record, its envelope, or a record that follows
        from it, within the same decision chain. Raises `ValueError` as `select` does.
        """
        ...

    async def lines(self, seqs: Sequence[int], *, tenant: str | None = None) -> list[ChainedRecord]:
        """Return the lines with these numbers, in the log's order. Missing lines are left out."""
        ...

    async def unmatched(self, *, tenant: str | None = None) -> list[Record]:
        """Return the records of reservations without exactly one dispatch and one attempt.

        They are in the log's order.
        """
        ...
