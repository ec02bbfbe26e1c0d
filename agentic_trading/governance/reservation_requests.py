"""What an attempt asks of the ledger: whose money, how much, in which windows, under whose ceilings."""

from collections.abc import Iterable
from datetime import datetime

from agentic_trading.governance.estimate import Amount
from agentic_trading.governance.ledger import ReservationRequest, reservation_id
from agentic_trading.governance.limit import ANY, Limit, ScopeKind
from agentic_trading.governance.scopes import agent_of
from agentic_trading.governance.windows import Window
from agentic_trading.llm.envelope import LLMEnvelope


def reservation_request(
    envelope: LLMEnvelope, attempt: int, amount: Amount, at: datetime | None, more: Iterable[Limit] = ()
) -> ReservationRequest:
    """Return the ask of one attempt; `more` are ceilings beside those that the envelope puts upon itself.

    Raises `AskError` for what cannot be counted.
    """
    scopes = {
        ScopeKind.CALL: envelope.idempotency_key,
        ScopeKind.TRACE: envelope.trace_id,
        ScopeKind.AGENT: agent_of(envelope),
        ScopeKind.WORKFLOW: str(envelope.workflow),
        ScopeKind.TENANT: envelope.tenant_id,
    }
    limits = (*_own_limits(envelope), *more)
    return ReservationRequest(envelope.idempotency_key, attempt, scopes, amount, at, limits, envelope.priority)


def reservation_id_of(envelope: LLMEnvelope, attempt: int) -> str:
    """Return the id of the reservation that an attempt gets."""
    return reservation_id(envelope.tenant_id, envelope.idempotency_key, attempt)


def _own_limits(envelope: LLMEnvelope) -> tuple[Limit, ...]:
    """Return what the envelope allows itself: money over all its attempts, calls of its agent in a day."""
    budget = envelope.budget
    limits = []
    if budget.max_cost_nusd is not None:
        limits.append(Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=budget.max_cost_nusd))
    if budget.max_calls_per_day is not None:
        limits.append(Limit(ScopeKind.AGENT, ANY, Window.DAY, calls=budget.max_calls_per_day))
    return tuple(limits)
