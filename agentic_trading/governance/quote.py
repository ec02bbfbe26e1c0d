"""What a request must keep before money is looked at, and the most that it can then cost; values in, values out."""

from dataclasses import dataclass
from datetime import UTC, datetime

from agentic_trading.governance.determinism import ClockMode, determinism_problem
from agentic_trading.governance.estimate import Amount, bound, input_bound
from agentic_trading.governance.prices import PriceBook
from agentic_trading.llm.capability import Capabilities, Capability
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import EnvelopeValidationError, LookAheadError, UnknownModelError
from agentic_trading.llm.failure import FailureKind, FailureReason
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.envelope_rules import check_envelope


@dataclass(frozen=True, slots=True)
class Quote:
    """The most that a request can cost at `priced_at`, on a model that takes it."""

    amount: Amount
    capability: Capability
    priced_at: datetime


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
        )
    return None


def _invalid(description: str) -> FailureReason:
    return FailureReason(category=FailureKind.INVALID_REQUEST, description=description)
