"""The rules of the gate that need no ledger, and the quote of a request."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from agentic_trading.governance import limits as limit_types
from agentic_trading.governance.prices import Amount, PriceBook, bound, input_bound
from agentic_trading.llm.envelope import DeterminismLevel, LLMEnvelope
from agentic_trading.llm.envelope_rules import check_envelope
from agentic_trading.llm.errors import (
    EnvelopeValidationError,
    FailureKind,
    FailureReason,
    LookAheadError,
    UnknownModelError,
    shortfall_text,
)
from agentic_trading.llm.models import Capabilities, Capability
from agentic_trading.llm.provider import ModelRequest, unserved_text

ClockMode = Literal["backtest", "paper", "shadow", "live", "replay"]


SIMULATED: frozenset[ClockMode] = frozenset({"backtest", "replay"})
"""Modes in which the market's time differs from the time of day."""


@dataclass(frozen=True, slots=True)
class Quote:
    """The maximum cost of a request at `priced_at`, and the model."""

    amount: Amount
    capability: Capability
    priced_at: datetime


def determinism_problem(
    envelope: LLMEnvelope, capability: Capability, *, mode: ClockMode, today: date
) -> FailureReason | None:
    """Return why a live call must not be made, or None.

    `today` is the provider's day (UTC), independent of the market's time. The model must not have retired
    before it.
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
    """Check `request` against all rules but the budgets, and price it.

    `now` is the time of day.
    """
    # The envelope's rules are checked again, because an envelope from a bus is not trusted.
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
    if request.max_choice_tokens > capability.max_output_tokens:
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
"""How far `as_of` of an envelope may be ahead of the gate's clock, because clocks of machines differ."""


def foreign_problem(tenant_id: str, tenants: Collection[str] | None) -> FailureReason | None:
    """Return why this tenant may not use the gate, or None.

    Without `tenants`, all may.
    """
    if tenants is None or tenant_id in tenants:
        return None
    allowed = ", ".join(sorted(tenants)) or "none"
    return _refused(f"tenant {tenant_id!r} may not use this gateway; allowed are {allowed}")


def unserved_problem(provider: str, served: Collection[str] | None) -> FailureReason | None:
    """Return a failure if the provider is not served here, otherwise None.

    Without `served`, all are.
    """
    if served is None or provider in served:
        return None
    description = unserved_text(provider, served)
    return FailureReason(category=FailureKind.NOT_SERVED, description=description, recoverable=True)


def deadline_problem(deadline: datetime | None, now: datetime) -> FailureReason | None:
    """Return a failure if the deadline is reached, otherwise None."""
    if deadline is None or now < deadline:
        return None
    description = f"the deadline {deadline.isoformat()} has come, it is {now.isoformat()}"
    return FailureReason(category=FailureKind.EXPIRED, description=description)


def future_problem(as_of: datetime | None, now: datetime, *, mode: ClockMode) -> FailureReason | None:
    """Return a failure if `as_of` is in the future, otherwise None.

    Real time allows `CLOCK_SKEW`.
    """
    if as_of is None:
        return None
    newest = now if mode in SIMULATED else now + CLOCK_SKEW
    if as_of <= newest:
        return None
    description = f"as_of is {as_of.isoformat()}, but it is {now.isoformat()}; allowed is {newest.isoformat()} and before"
    return FailureReason(category=FailureKind.LOOK_AHEAD, description=description)
