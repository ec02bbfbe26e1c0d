"""Decisions of the gate: admitted, refused or deferred, with the reason that the caller reads."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal, NamedTuple, assert_never

from agentic_trading.governance import limits as limit_types
from agentic_trading.governance.errors import LedgerError
from agentic_trading.governance.ledger import (
    Blocked,
    Declined,
    ReservationRequest,
    ReservationState,
)
from agentic_trading.governance.limiter import Permit, Throttled
from agentic_trading.governance.prices import Amount, PriceBook, bound, input_bound
from agentic_trading.llm.envelope import DeterminismLevel, EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.envelope_rules import check_envelope
from agentic_trading.llm.errors import (
    EnvelopeValidationError,
    FailureKind,
    FailureReason,
    LookAheadError,
    UnknownModelError,
    shortfall_text,
)
from agentic_trading.llm.interaction import reservation_id
from agentic_trading.llm.models import Capabilities, Capability
from agentic_trading.llm.provider import ModelRequest, unserved_text

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


ClockMode = Literal["backtest", "paper", "shadow", "live", "replay"]

SIMULATED: frozenset[ClockMode] = frozenset({"backtest", "replay"})
"""Modes in which the time of the market is not the time of day."""


_REMEMBERED = 50
"""How many of the last denials are kept."""


@dataclass(frozen=True, slots=True)
class Quote:
    """The most that a request can cost at `priced_at`, on a model that takes it."""

    amount: Amount
    capability: Capability
    priced_at: datetime


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


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """Answers given since the start, and the real seconds that parked attempts have waited, all together."""

    admitted: int
    parked: int
    refused: Mapping[FailureKind, int]
    waited_s: float
    taken: int = 0


class AdmissionCounters:
    """Counts answers, and remembers the last refusals, and when each counter refused calls."""

    def __init__(self) -> None:
        self._admitted = self._parked = self._taken = 0
        self._refused: Counter[FailureKind] = Counter()
        self._refusals: deque[DeniedCall] = deque(maxlen=_REMEMBERED)
        self.refused_for = RefusedCounters()
        self._waited_s = 0.0

    def note(
        self, envelope: LLMEnvelope, answer: Admitted | Denied | Deferred | AlreadyDispatched, now: datetime
    ) -> None:
        """Count an answer that was given at `now`."""
        match answer:
            case Admitted():
                self._admitted += 1
            case Deferred():
                self._parked += 1
            case Denied():
                self._refused[answer.reason.category] += 1
                self._refusals.append(DeniedCall(now, envelope, answer.reason, answer.declined))
                if answer.declined is not None and not answer.is_by_own_limit:
                    self.refused_for.note(envelope.tenant_id, answer.declined, now)
            case AlreadyDispatched():
                self._taken += 1
            case _:
                assert_never(answer)

    def note_wait(self, seconds: float) -> None:
        """Count real seconds that a parked attempt has waited."""
        self._waited_s += seconds

    def statistics(self) -> AdmissionStatistics:
        """Return the counts since the start."""
        return AdmissionStatistics(
            self._admitted, self._parked, dict(self._refused), self._waited_s, self._taken
        )

    def refusals(self) -> Sequence[DeniedCall]:
        """Return the last refused calls, oldest first."""
        return tuple(self._refusals)


def denied(declined: Declined, limits: Sequence[limit_types.Limit] = ()) -> Denied:
    """Return the denial of a request with these `limits` of its own, which a counter has too little left for."""
    unit = limit_types.UNITS.index(declined.unit)
    is_own = any(
        (limit.scope, limit.window) == (declined.scope, declined.window)
        and limit.ceiling.units[unit] is not None
        for limit in limits
    )
    return Denied(exhausted(declined, limits), declined, is_by_own_limit=is_own)


def determinism_problem(
    envelope: LLMEnvelope, capability: Capability, *, mode: ClockMode, today: date
) -> FailureReason | None:
    """Return why a live call must not be made, or None.

    `today` is the provider's day (UTC), whatever day it is on the market: on it the model must not have retired.
    """
    if mode in SIMULATED and envelope.as_of is None:
        return _refused(f"a {mode} knows no present; an envelope without as_of is not allowed in it")
    if envelope.determinism is DeterminismLevel.REPLAY_ONLY:
        reason = "no recorded answer, and determinism 'replay_only' allows no other"
        return FailureReason(category=FailureKind.REPLAY_MISS, description=reason)
    if envelope.determinism is DeterminismLevel.GREEDY:
        return _greedy_problem(envelope, capability) or _retired_problem(capability, today)
    return _retired_problem(capability, today)


def _greedy_problem(envelope: LLMEnvelope, capability: Capability) -> FailureReason | None:
    if not capability.sampling:
        return _refused(
            f"{capability.model} takes no temperature; it allows determinism pinned, recorded, replay_only"
        )
    if envelope.budget.thinking_budget > 0:
        return _refused(
            f"{capability.model} takes no temperature while it thinks; allowed is a thinking budget of 0"
        )
    return None


def _retired_problem(capability: Capability, today: date) -> FailureReason | None:
    if capability.retires_on is None or today <= capability.retires_on:
        return None
    return _refused(
        f"{capability.model} retired on {capability.retires_on}; allowed are replays, recorded answers, other models"
    )


def _refused(description: str) -> FailureReason:
    return FailureReason(category=FailureKind.NOT_ALLOWED, description=description)


def quote(
    request: ModelRequest,
    capabilities: Capabilities,
    prices: PriceBook,
    *,
    mode: ClockMode,
    now: datetime,
    input_tokens: int | None = None,
) -> Quote | FailureReason:
    """Check `request` against every rule but the budgets, and price it; `now` is the time of day.

    The envelope's own rules are checked again: one that came over a bus is not trusted.
    """
    problem = _rule_problem(request.envelope)
    if problem is not None:
        return problem
    try:
        capability = capabilities.of(request.envelope.provider, request.envelope.model)
        problem = determinism_problem(
            request.envelope, capability, mode=mode, today=now.astimezone(UTC).date()
        ) or _size_problem(request, capability, input_tokens)
        if problem is not None:
            return problem
        return Quote(bound(request, capability, prices, at=now, input_tokens=input_tokens), capability, now)
    except UnknownModelError as e:
        return _invalid(str(e))


def _rule_problem(envelope: LLMEnvelope) -> FailureReason | None:
    try:
        check_envelope(envelope)
    except LookAheadError as e:
        return FailureReason(category=FailureKind.LOOK_AHEAD, description=str(e))
    except EnvelopeValidationError as e:
        return _invalid(str(e))
    return None


def _size_problem(
    request: ModelRequest, capability: Capability, input_tokens: int | None
) -> FailureReason | None:
    if request.max_tokens > capability.max_output_tokens:
        return _invalid(
            f"{request.max_tokens} output tokens asked; {capability.model} allows {capability.max_output_tokens}"
        )
    if input_tokens is not None and input_tokens + request.max_tokens > capability.context_tokens:
        return _invalid(
            f"{input_tokens} tokens in and {request.max_tokens} out; "
            f"{capability.model} allows {capability.context_tokens} together"
        )
    most = request.envelope.budget.max_input_tokens
    if most is None:
        return None
    inward = input_bound(request, capability) if input_tokens is None else input_tokens
    if inward > most:
        how = "at most, by its bytes" if input_tokens is None else "by the provider's count"
        return FailureReason(
            category=FailureKind.BUDGET_EXHAUSTED,
            description=f"the request has {inward} input tokens {how}; its budget allows {most}",
            technical_details=shortfall_text(
                limit_types.ScopeKind.CALL,
                request.envelope.idempotency_key,
                limit_types.Window.NONE,
                "tokens",
                asked=inward,
                left=most,
            ),
        )
    return None


def _invalid(description: str) -> FailureReason:
    return FailureReason(category=FailureKind.INVALID_REQUEST, description=description)


CLOCK_SKEW = timedelta(seconds=60)
"""By how much an envelope's `as_of` may pass the gate's clock, as two machines' clocks differ."""


def foreign_problem(tenant_id: str, tenants: Collection[str] | None) -> FailureReason | None:
    """Return why this tenant may not use the gate, or None; without `tenants` all may."""
    if tenants is None or tenant_id in tenants:
        return None
    allowed = ", ".join(sorted(tenants)) or "none"
    return _refused(f"tenant {tenant_id!r} may not use this gateway; allowed are {allowed}")


def unserved_problem(provider: str, served: Collection[str] | None) -> FailureReason | None:
    """Return that nothing answers for this provider here, or None; without `served` something does for each."""
    if served is None or provider in served:
        return None
    description = unserved_text(provider, served)
    return FailureReason(category=FailureKind.NOT_SERVED, description=description, recoverable=True)


def deadline_problem(deadline: datetime | None, now: datetime) -> FailureReason | None:
    """Return that no time is left for a call, or None; at the deadline itself none is left."""
    if deadline is None or now < deadline:
        return None
    description = f"the deadline {deadline.isoformat()} has come, it is {now.isoformat()}"
    return FailureReason(category=FailureKind.EXPIRED, description=description)


def future_problem(as_of: datetime | None, now: datetime, *, mode: ClockMode) -> FailureReason | None:
    """Return that `as_of` has not come yet, or None; outside of simulated time `CLOCK_SKEW` is allowed."""
    if as_of is None:
        return None
    newest = now if mode in SIMULATED else now + CLOCK_SKEW
    if as_of <= newest:
        return None
    description = f"as_of is {as_of.isoformat()}, but it is {now.isoformat()}; allowed is {newest.isoformat()} and before"
    return FailureReason(category=FailureKind.LOOK_AHEAD, description=description)


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
