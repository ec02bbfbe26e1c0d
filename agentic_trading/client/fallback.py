"""When one model fails, ask another: a new call, on record, caused by the failed one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agentic_trading.client.gateway import Gateway, GatewayReply
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.envelope_rules import check_envelope
from agentic_trading.llm.errors import EnvelopeValidationError, FailureKind, FailureReason, NoDecision
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import LLMBudget

MENDABLE: Final = frozenset({
    FailureKind.SERVER_ERROR,
    FailureKind.TIMEOUT,
    FailureKind.RATE_LIMIT,
    FailureKind.CIRCUIT_OPEN,
    FailureKind.RETRY_BUDGET,
    FailureKind.WRONG_MODEL,
    FailureKind.SCHEMA_REFUSED,
    FailureKind.PARSING_ERROR,
    FailureKind.AUTH_ERROR,
    FailureKind.BILLING,
    FailureKind.NOT_SERVED,
})
"""Failures that another model may not have. Any other would end the next call too, or was decided on purpose."""

FALLS_BACK_ON: Final = MENDABLE - {FailureKind.AUTH_ERROR, FailureKind.BILLING}
"""The default: a key or a bill that is out of order is to be seen and put right, not passed over."""

_DETERMINISTIC = "no other model was asked: require_deterministic allows the requested one only"


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another model for a call. `max_output_tokens` and `thinking_budget`, if given, replace those of the envelope."""

    provider: LLMProvider
    model: str
    max_output_tokens: int | None = None
    thinking_budget: int | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for an alternative without a model (a preset's is one provider's own) or a wrong number."""
        if not self.model:
            raise ValueError(f"model is missing; name a model of provider {self.provider}")
        self.budget_of(LLMBudget())

    def budget_of(self, budget: LLMBudget) -> LLMBudget:
        """Return `budget` with this model's own tokens."""
        tokens = {"max_output_tokens": self.max_output_tokens, "thinking_budget": self.thinking_budget}
        return budget.model_copy(update={name: most for name, most in tokens.items() if most is not None})


class FallbackGateway:
    """A gateway that calls other models, one after the other, when a call fails for a reason that they may not have.

    Each gets a new envelope with an id that follows from the first one's, in the same trace, under the same parent and
    deadline, and caused by the failed attempt, so that the log shows the chain. It passes every rule of the platform
    again, is paid for by itself, and may itself cost `max_cost_nusd`. The last answer is returned: of the first
    alternative that succeeds, or whose failure is not among `on`, or of the last one there is. A model that was called
    before in the chain is skipped. Whether and how to go on follows from the envelope and the answers alone, so that a
    replay takes the same way.

    A call that `require_deterministic` binds to its model, as executions are, never falls back: the failure says so in
    its `technical_details`. After an unreadable answer (`parsing_error`) another model is called only where the
    envelope's policy says that its calls must not end without one (`on_exhausted="fail"`, as planning's does).
    """

    def __init__(
        self,
        gateway: Gateway,
        alternatives: Sequence[Alternative],
        *,
        on: frozenset[FailureKind] = FALLS_BACK_ON,
    ) -> None:
        """Raise `ValueError` for a kind in `on` that is not in `MENDABLE`, as a refusal by budget or by policy."""
        if not on <= MENDABLE:
            wrong, allowed = (", ".join(sorted(kinds)) for kinds in (on - MENDABLE, MENDABLE))
            raise ValueError(f"a call does not fall back on {wrong}; allowed are {allowed}")
        self._gateway = gateway
        self._alternatives = tuple(alternatives)
        self._on = on

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Have the call made, by another model if need be, and return the last answer; raises what the gateway raises."""
        answer = await self._gateway.ask(envelope)
        called = {(envelope.provider, envelope.model)}
        for number, alternative in enumerate(self._alternatives, start=1):
            failure = self._failure_to_fall_back_on(answer)
            if failure is None or isinstance(answer, NoDecision):
                break
            if envelope.safety_constraints.require_deterministic:
                return _with_note(answer, failure)
            other = _other(envelope, alternative, number, failed=answer)
            if other is None or (other.provider, other.model) in called:
                continue
            called.add((other.provider, other.model))
            answer = await self._gateway.ask(other)
        return answer

    async def record(self, event: Event) -> None:
        """Put one fact of a trace on record."""
        await self._gateway.record(event)

    def _failure_to_fall_back_on(self, answer: GatewayReply) -> FailureReason | None:
        """Return the failure for which another model is to be called, or None."""
        if isinstance(answer, NoDecision):
            return None
        envelope, failure = answer.envelope, answer.result.failure
        if failure is None or failure.category not in self._on:
            return None
        may_stay_unread = envelope.output_policy.on_exhausted != "fail"
        return None if failure.category is FailureKind.PARSING_ERROR and may_stay_unread else failure


def _other(
    envelope: LLMEnvelope, alternative: Alternative, number: int, *, failed: LLMInteraction
) -> LLMEnvelope | None:
    """Return the envelope for an alternative, or None if a rule forbids it, as of an execution that claims to be free."""
    other = envelope.model_copy(
        update={
            "envelope_id": derived_id("fallback", envelope.envelope_id, number),
            "idempotency_key": derived_id("fallback", envelope.idempotency_key, number),
            "causation_id": failed.interaction_id,
            "provider": alternative.provider,
            "model": alternative.model,
            "budget": alternative.budget_of(envelope.budget),
        }
    )
    try:
        check_envelope(other)
    except EnvelopeValidationError:
        return None
    return other


def _with_note(answer: LLMInteraction, failure: FailureReason) -> LLMInteraction:
    """Return the failed answer with the reason why no other model was called; the record stays as it is."""
    details = f"{failure.technical_details}; {_DETERMINISTIC}".removeprefix("; ")
    noted = failure.model_copy(update={"technical_details": details})
    return answer.model_copy(update={"result": answer.result.model_copy(update={"failure": noted})})
