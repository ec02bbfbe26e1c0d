"""The answers of the gate, and the counters that refuse calls."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from agentic_trading.governance import limits as limit_types
from agentic_trading.governance.errors import LedgerError
from agentic_trading.governance.ledger import (
    Blocked,
    Declined,
    ReservationRequest,
    ReservationState,
)
from agentic_trading.governance.limiter import Permit, Throttled
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rules import Quote
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import (
    FailureKind,
    FailureReason,
    shortfall_text,
)
from agentic_trading.llm.interaction import reservation_id
from agentic_trading.llm.models import Capability

_COUNTERS = 1_000
"""The maximum of refusing counters kept between two reads, because callers choose the names of agents."""


@dataclass(frozen=True, slots=True)
class DeniedCall:
    """A denied attempt and its time.

    `declined` is the counter without headroom, if that is the reason.
    """

    at: datetime
    envelope: LLMEnvelope
    reason: FailureReason
    declined: Declined | None = None


class RefusedCounter(NamedTuple):
    """A counter that refused calls."""

    tenant: str
    scope: limit_types.ScopeKind
    id: str
    window: limit_types.Window
    unit: limit_types.Unit


@dataclass(frozen=True, slots=True)
class RefusalSpan:
    """The times of the first and the last refusal by one counter, in the time of the calls.

    `left` is the ceiling minus the spent amount at the last refusal.
    """

    first: datetime
    last: datetime
    left: int = 0

    def joined(self, other: "RefusalSpan") -> "RefusalSpan":
        """Return the span that covers both. `other` is the later one."""
        return RefusalSpan(min(self.first, other.first), max(self.last, other.last), other.left)


class RefusedCounters:
    """The counters that have refused calls: since the last read, and how many calls since the start."""

    def __init__(self) -> None:
        self._spans: dict[RefusedCounter, RefusalSpan] = {}
        self._calls: dict[RefusedCounter, int] = {}

    def note(self, tenant: str, declined: Declined, now: datetime) -> None:
        """Note a refused call.

        Counters of calls and traces are left out, because other calls do not use them.
        """
        if declined.scope in limit_types.SHORT_LIVED:
            return
        of = RefusedCounter(tenant, declined.scope, declined.id, declined.window, declined.unit)
        span = RefusalSpan(now, now, declined.left)
        self._spans[of] = self._spans.pop(of, span).joined(span)
        self._calls[of] = self._calls.pop(of, 0) + 1
        for counters in (self._spans, self._calls):
            if len(counters) > _COUNTERS:
                # The counter with the oldest refusal goes. Without a bound, invented agent names would fill
                # the memory.
                del counters[next(iter(counters))]

    def take(self) -> Mapping[RefusedCounter, RefusalSpan]:
        """Return the refusing counters since the last call, and start again."""
        taken, self._spans = self._spans, {}
        return taken

    def calls(self) -> Mapping[RefusedCounter, int]:
        """Return the number of refused calls by counter since the start, or since the counter was dropped."""
        return dict(self._calls)


def exhausted(declined: Declined, limits: Iterable[limit_types.Limit] = ()) -> FailureReason:
    """Return the failure for a budget without headroom, with the rules of the request's own `limits`."""
    window = "" if declined.window is limit_types.Window.NONE else f" this {declined.window}"
    return FailureReason(
        category=FailureKind.BUDGET_EXHAUSTED,
        description=f"{declined.scope} {declined.id} has {limit_types.amount_text(declined.left, declined.unit)} left{window}, "
        f"the call may need {limit_types.amount_text(declined.asked, declined.unit)}; raise the limit or ask for less"
        + limit_types.rules_text(limits, declined.scope, declined.window, declined.unit),
        technical_details=shortfall_text(
            declined.scope,
            declined.id,
            declined.window,
            declined.unit,
            asked=declined.asked,
            left=declined.left,
        ),
    )


def busy(blocked: Blocked) -> FailureReason:
    """Return the failure for a budget with its rest held by calls in flight."""
    window = "" if blocked.window is limit_types.Window.NONE else f" this {blocked.window}"
    return FailureReason(
        category=FailureKind.BUDGET_BUSY,
        description=f"{blocked.scope} {blocked.id} has {limit_types.amount_text(blocked.left, blocked.unit)} free{window} "
        f"until calls in flight end, the call may need {limit_types.amount_text(blocked.asked, blocked.unit)}; "
        "ask again later",
        recoverable=True,
    )


def unavailable(e: LedgerError, workflow: EnvelopeWorkflow) -> FailureReason:
    """Return the failure for an unavailable ledger."""
    return FailureReason(
        category=FailureKind.LEDGER_UNAVAILABLE,
        description=f"{workflow} may not run without the ledger: {e}",
        recoverable=True,
    )


@dataclass(frozen=True, slots=True)
class Admitted:
    """The attempt may run. Its maximum cost is reserved.

    Attributes:
        request: The reserved request.
        capability: The model.
        price_book: The id of the book by which it is charged.
        priced_at: The time whose prices apply.
        permit: Its permit, if calls to the model are limited.

    """

    request: ReservationRequest
    capability: Capability
    price_book: str
    priced_at: datetime
    permit: Permit | None = None

    @property
    def reservation_id(self) -> str:
        """The id of the reservation."""
        return self.request.reservation_id

    @property
    def amount(self) -> Amount:
        """The reserved amount."""
        return self.request.amount


@dataclass(frozen=True, slots=True)
class Denied:
    """The attempt must not run. It has no reservation and was not charged.

    `declined` is the counter without headroom, if that is the reason. `is_by_own_limit`: that ceiling is the
    request's own.
    """

    reason: FailureReason
    declined: Declined | None = None
    is_by_own_limit: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether it has waited for held money for as long as it may."""
        return self.reason.category is FailureKind.BUDGET_BUSY


@dataclass(frozen=True, slots=True)
class Deferred:
    """The attempt has to wait. It has no reservation.

    `held` is `Blocked` if calls in flight or earlier requests hold the headroom. `request` is then the
    request to the ledger. It is `Throttled` if calls to the model are too fast.
    """

    envelope: LLMEnvelope
    held: Blocked | Throttled
    request: ReservationRequest | None = None
    quote: Quote | None = None


@dataclass(frozen=True, slots=True)
class AlreadyDispatched:
    """Another run has sent this attempt, or is about to.

    Its settlement and result belong to that run.
    """

    reservation_id: str
    state: ReservationState


@dataclass(frozen=True, slots=True)
class Charge:
    """The charge of an attempt, in nano-dollars.

    Attributes:
        cost_nusd: The charge.
        overrun_nusd: The part of it above the reservation.
        late: Whether it corrected a charge in doubt.
        in_doubt: Whether it may still be corrected.
        unpriced: The word of the usage, or the served model, without a price in the book. The charge is then
            at least the whole reservation.
        bill_nusd: The server's own bill.
        overbilled: Whether that bill is above the reservation.

    """

    cost_nusd: int
    overrun_nusd: int = 0
    late: bool = False
    in_doubt: bool = False
    unpriced: str = ""
    bill_nusd: int | None = None
    overbilled: bool = False


def denied(declined: Declined, limits: Sequence[limit_types.Limit] = ()) -> Denied:
    """Return the denial of a request with these `limits` of its own, by the counter without headroom."""
    unit = limit_types.UNITS.index(declined.unit)
    is_own = any(
        (limit.scope, limit.window) == (declined.scope, declined.window)
        and limit.ceiling.units[unit] is not None
        for limit in limits
    )
    return Denied(exhausted(declined, limits), declined, is_by_own_limit=is_own)


def reservation_request(
    envelope: LLMEnvelope, attempt: int, amount: Amount, at: datetime | None, principal: str = "", more: Iterable[limit_types.Limit] = ()
) -> ReservationRequest:  # fmt: skip
    """Return the reservation request of one attempt, counted for `principal` if it is not empty.

    `more` are limits in addition to those of the envelope. Raises `ReservationRequestError` if it cannot be
    counted.
    """
    scopes = {
        limit_types.ScopeKind.CALL: envelope.idempotency_key,
        limit_types.ScopeKind.TRACE: envelope.trace_id,
        limit_types.ScopeKind.AGENT: limit_types.agent_of(envelope),
        limit_types.ScopeKind.WORKFLOW: str(envelope.workflow),
        limit_types.ScopeKind.TENANT: envelope.tenant_id,
    }
    if principal:
        scopes[limit_types.ScopeKind.PRINCIPAL] = principal
    limits, key = (*limit_types.limits_of(envelope), *more), envelope.idempotency_key
    return ReservationRequest(key, attempt, scopes, amount, at, limits, limit_types.queue_priority(envelope))


def reservation_id_of(envelope: LLMEnvelope, attempt: int) -> str:
    """Return the reservation id of an attempt."""
    return reservation_id(envelope.tenant_id, envelope.idempotency_key, attempt)
