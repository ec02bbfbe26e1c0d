"""The port to what the log knows: records found by id, trace, cause, request hash; sums."""

from dataclasses import dataclass
from typing import Literal, Protocol

from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import Record

SpendKey = Literal["agent", "model", "workflow", "day", "tenant", "provider"]


@dataclass(frozen=True, slots=True)
class Spend:
    """What a group of attempts used. `key` is the group's value per asked `SpendKey`, `day` in UTC of `stored_at`."""

    key: tuple[str, ...]
    attempts: int
    failed: int
    input_tokens: int
    output_tokens: int
    cost_nusd: int


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

    With a `tenant`, every answer is that of a log which holds this tenant's records and no others: nothing tells that
    there are more, even where tenants share the id of a trace, an envelope or a record. The empty name is a tenant
    like any other. Without one (None) the whole log answers: that is for who runs the platform.
    """

    async def find(self, record_id: str, *, tenant: str | None = None) -> Record | None:
        """Return the record with this id, or None; an interaction before an event that has the same id."""
        ...

    async def trace(self, trace_id: str, *, tenant: str | None = None) -> list[Record]:
        """Return all records of a decision chain, in the log's order."""
        ...

    async def traces(
        self, limit: int = 20, *, with_calls: bool = False, tenant: str | None = None
    ) -> list[TraceSummary]:
        """Return the newest decision chains, newest first; `with_calls`, only those in which somebody was asked."""
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
        """Return what was used, summed by the given keys, in the order of the keys' values."""
        ...
