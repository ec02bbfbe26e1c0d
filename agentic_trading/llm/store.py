"""The port to the log: what is stored stays, unchanged, in order."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction

Record = LLMInteraction | Event


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of the log: its 1-based number, the record, and the record's hash in the chain."""

    seq: int
    record: Record
    hash: str


GENESIS: Final = "0" * 64
"""What the first line names as its predecessor."""


@dataclass(frozen=True, slots=True)
class ChainHead:
    """Where a chain ends: the number and the hash of its last line."""

    seq: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class ChainedRecord:
    """One line of the log, as it stands there without its newline, and its place in the chain.

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
        """The chain's end, as long as this is the last line."""
        return ChainHead(self.seq, self.hash)


LATEST_RUNS: Final = 64
"""The most starts and ends of runs that a check of a log's end reads."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A `run.started`, `run.ended` or `archive.started` in the log: its line, the event, and the hash of the line before it."""

    seq: int
    event: Event
    prev: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What re-reading the whole log found: lines read, the first break if there is one, and the runs up to there.

    `broken_id` is the id of the record in the broken line, where one can be read; `is_unfinished` says that this line is
    the last one and has no end.
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
        """Whether every line and every link of the chain is as it was written."""
        return self.broken_line == 0


class InteractionStore(Protocol):
    """Keep interactions and events in one log, in the order in which they were given.

    `store` and `record` return when the record is as durable as the store promises. A record is kept once and as it
    was first given: the second call changes nothing, and returns if it says the same. For an event that is its kind,
    trace, cause, tenant, `as_of` and body; for an interaction its envelope, attempt and output, or after a restart
    only its tenant, envelope id, request and attempt, because an attempt that is recorded again after a crash may have
    another answer and the first is the one that was acted on. Interactions and events do not share their ids.

    Raises `RecordConflictError` if a known id says something else, `RecordError` for a record without a JSON spelling
    and for an attempt whose result is that of another envelope: the log goes on. Raises `StoreError` when the log cannot be written: nothing is then acknowledged.

    Queries with a `tenant` are answered as by a store that was given its records alone, without one for the whole log.
    """

    async def store(self, interaction: LLMInteraction) -> int:
        """Keep one attempt, and return the number of its line; of a record that is kept already, that of the line that is there."""
        ...

    async def record(self, event: Event) -> int:
        """Keep one event, and return the number of its line, as `store` does."""
        ...

    async def has_attempt(self, envelope: LLMEnvelope, attempt: int) -> bool:
        """Whether this attempt is on record, kept by whatever process; also for another envelope with the same id.

        It is asked before each call that is paid: it takes no query.
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
        """Give every entry with a number above `after`, in order, and end."""
        ...

    def follow(self, after: int = 0) -> AsyncGenerator[Sequence[ChainedRecord]]:
        """Give every line with a number above `after`, in order, and wait for more until closed.

        What is there comes in batches of at least one line, as it stands in the log: no record is read.
        """
        ...

    async def head(self) -> tuple[int, str]:
        """Return the number and the hash of the last line, once all that was accepted is written."""
        ...

    async def verify(self) -> Verification:
        """Read the log again and recompute every hash."""
        ...

    async def aclose(self) -> None:
        """Make everything durable and give the log back; harmless twice."""
        ...


IInteractionStore = InteractionStore
"""The name of the port in the first design."""


IdKind = Literal["record", "trace"]

SpendKey = Literal["agent", "model", "workflow", "day", "tenant", "provider"]


@dataclass(frozen=True, slots=True)
class Spend:
    """The sums of a group of attempts. `key` is the group's value of each `SpendKey`, `day` in UTC of `stored_at`.

    `attempts` were sent. Of these, `failed` have no usable answer, and `in_doubt` may have been billed without an answer and
    are charged in full (`in_doubt_nusd`, part of `cost_nusd`). `refused` were never sent, `recorded` were served from a
    record: neither is an attempt. `billed_nusd` are the bills that servers reported, of calls that they reported one for.
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


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """One decision chain: how many records of which kind, from when to when (UTC, ISO 8601), and its cost."""

    trace_id: str
    first: str
    last: str
    attempts: int
    events: int
    cost_nusd: int
    subject: str


class Records(Protocol):
    """Answer questions about a log. Everything can be rebuilt from the log; order is the log's order.

    With a `tenant`, every answer is that of a log which holds this tenant's records and no others: nothing shows that
    there are more, even where tenants share the id of a trace, an envelope or a record. The empty name is a tenant
    like any other. Without one (None) the whole log answers: that is for the operator of the platform.
    """

    async def find(self, record_id: str, *, tenant: str | None = None) -> Record | None:
        """Return the record with this id, or None; an interaction before an event that has the same id."""
        ...

    async def ids_starting(
        self, prefix: str, *, of: IdKind = "record", limit: int = 20, tenant: str | None = None
    ) -> list[str]:
        """Return the ids that start with `prefix`, sorted, at most `limit`: of records and envelopes, or of traces."""
        ...

    async def trace(self, trace_id: str, *, tenant: str | None = None) -> list[Record]:
        """Return all records of a decision chain, in the log's order."""
        ...

    async def traces(
        self, limit: int = 20, *, with_calls: bool = False, tenant: str | None = None
    ) -> list[TraceSummary]:
        """Return the newest decision chains, newest first; `with_calls`, only those with an LLM call."""
        ...

    async def by_envelope(self, envelope_id: str, *, tenant: str | None = None) -> list[LLMInteraction]:
        """Return all attempts at an envelope, oldest first."""
        ...

    async def by_request(
        self, request_hash: str, occurrence: int, *, tenant: str | None = None
    ) -> list[LLMInteraction]:
        """Return all recorded attempts at a request and occurrence, oldest first."""
        ...

    async def spend(self, *by: SpendKey, tenant: str | None = None) -> list[Spend]:
        """Return the sums of the attempts on record by the given keys, in the order of the keys' values.

        An attempt that was sent and has no end on record is in `unmatched`; `audit.spend_report` counts it too.
        """
        ...

    async def unmatched(self, *, tenant: str | None = None) -> list[Record]:
        """Return all records of the reservations that have other records than one dispatch and one attempt, in the log's order."""
        ...
