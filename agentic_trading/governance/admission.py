"""Answers of the gate: admitted, denied, deferred or dispatched already, and the refused calls by counter."""

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
"""How many counters that refuse calls are kept between two readings; names of agents are chosen by callers."""


@dataclass(frozen=True, slots=True)
class DeniedCall:
    """An attempt that was refused, and when; `declined` is the counter with too little left, if that is the reason."""

    at: datetime
    envelope: LLMEnvelope
    reason: FailureReason
    declined: Declined | None = None


class RefusedCounter(NamedTuple):
    """A counter for which calls were refused."""

    tenant: str
    scope: limit_types.ScopeKind
    id: str
    window: limit_types.Window
    unit: limit_types.Unit


@dataclass(frozen=True, slots=True)
class RefusalSpan:
    """When calls were refused for one counter: the first and the last time, in the time of the calls.

    `left` is the ceiling less what was spent, at the last refusal that is known.
    """

    first: datetime
    last: datetime
    left: int = 0

    def joined(self, other: "RefusalSpan") -> "RefusalSpan":
        """Return the span that covers both; `other` came later."""
        return RefusalSpan(min(self.first, other.first), max(self.last, other.last), other.left)


class RefusedCounters:
    """The counters that refuse calls, since they were read last."""

    def __init__(self) -> None:
        self._spans: dict[RefusedCounter, RefusalSpan] = {}

    def note(self, tenant: str, declined: Declined, now: datetime) -> None:
        """Note that a call was refused; counters of calls and traces are left out, as no other call needs them."""
        if declined.scope in limit_types.SHORT_LIVED:
            return
        of = RefusedCounter(tenant, declined.scope, declined.id, declined.window, declined.unit)
        span = RefusalSpan(now, now, declined.left)
        self._spans[of] = self._spans.pop(of, span).joined(span)
        if len(self._spans) > _COUNTERS:
            del self._spans[next(iter(self._spans))]

    def take(self) -> Mapping[RefusedCounter, RefusalSpan]:
        """Return the counters since this was asked last."""
        taken, self._spans = self._spans, {}
        return taken


def exhausted(declined: Declined, limits: Iterable[limit_types.Limit] = ()) -> FailureReason:
    """Return which budget has too little left; of the request's own `limits`, what set those that are of this budget."""
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


def unavailable(e: LedgerError, workflow: EnvelopeWorkflow) -> FailureReason:
    """Return that a call may not run, as it is not known what is left to spend."""
    return FailureReason(
        category=FailureKind.LEDGER_UNAVAILABLE,
        description=f"{workflow} may not run without the ledger: {e}",
        recoverable=True,
    )


@dataclass(frozen=True, slots=True)
class Admitted:
    """The attempt may run: what it requested is set aside for it, and is charged by the book with the id `price_book`.

    `permit` is its place at the model, where calls to it are limited.
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
        """What is set aside."""
        return self.request.amount


@dataclass(frozen=True, slots=True)
class Denied:
    """The attempt must not run; nothing is set aside and nothing was paid.

    `declined` is the counter with too little left, if one is the reason; `is_by_own_limit` says that the ceiling is the
    request's own.
    """

    reason: FailureReason
    declined: Declined | None = None
    is_by_own_limit: bool = False


@dataclass(frozen=True, slots=True)
class Deferred:
    """The attempt has to wait; nothing is set aside.

    It would fit, but for what calls in flight hold, or others wait for (`Blocked`, with the request to the ledger); or
    its model is called too fast already (`Throttled`).
    """

    envelope: LLMEnvelope
    held: Blocked | Throttled
    request: ReservationRequest | None = None
    quote: Quote | None = None


@dataclass(frozen=True, slots=True)
class AlreadyDispatched:
    """Another run has sent this attempt, or is about to; its settlement and its result are that run's."""

    reservation_id: str
    state: ReservationState


@dataclass(frozen=True, slots=True)
class Charge:
    """What the attempt was charged, in nano-dollars; `overrun_nusd` of it is above the reservation.

    `late` corrects an earlier charge in doubt. `in_doubt` may still be corrected. `unpriced` is the word of the usage,
    or the model that served, that has no price in the book: the whole reservation was charged at least. `overbilled`
    is whether the server's own bill, `bill_nusd`, is above the reservation.
    """

    cost_nusd: int
    overrun_nusd: int = 0
    late: bool = False
    in_doubt: bool = False
    unpriced: str = ""
    bill_nusd: int | None = None
    overbilled: bool = False


def denied(declined: Declined, limits: Sequence[limit_types.Limit] = ()) -> Denied:
    """Return the denial of a request with these `limits` of its own, which a counter has too little left for."""
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
    """Return the request of one attempt, counted for `principal` if who sent it has a name.

    `more` are limits besides those that the envelope sets itself. Raises `ReservationRequestError` for what cannot be counted.
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
    """Return the id of the reservation that an attempt gets."""
    return reservation_id(envelope.tenant_id, envelope.idempotency_key, attempt)
