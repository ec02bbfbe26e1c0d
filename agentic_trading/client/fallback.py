"""When one model fails, ask another: a new call, on record, caused by the failed one."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Generic, TypeVar

from agentic_trading.client.answer import TypedAnswers
from agentic_trading.client.gateway import Gateway, GatewayReply, StructuredGateway
from agentic_trading.client.outcome import StructuredOutcome, outcome_of_chain
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope, LLMProvider
from agentic_trading.llm.envelope_rules import check_envelope
from agentic_trading.llm.errors import EnvelopeValidationError, FailureKind, FailureReason, NoDecision
from agentic_trading.llm.event import Event
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.structured.pydantic_schema import SemanticCheck

FALLBACK_KINDS: Final = frozenset({
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

FALLS_BACK_ON: Final = FALLBACK_KINDS - {FailureKind.AUTH_ERROR, FailureKind.BILLING}
"""The default: a key or a bill that is out of order is to be seen and put right, not passed over."""

_DETERMINISTIC = "no other model was asked: require_deterministic allows the requested one only"

G_co = TypeVar("G_co", bound=Gateway, covariant=True)
T = TypeVar("T")


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


class FallbackGateway(TypedAnswers, Generic[G_co]):
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
        gateway: G_co,
        alternatives: Sequence[Alternative],
        *,
        on: frozenset[FailureKind] = FALLS_BACK_ON,
    ) -> None:
        """Raise `ValueError` for a kind in `on` that is not in `FALLBACK_KINDS`, as a refusal by budget or by policy."""
        if not on <= FALLBACK_KINDS:
            wrong, allowed = (", ".join(sorted(kinds)) for kinds in (on - FALLBACK_KINDS, FALLBACK_KINDS))
            raise ValueError(f"a call does not fall back on {wrong}; allowed are {allowed}")
        self._gateway = gateway
        self._alternatives = tuple(alternatives)
        self._on = on

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Have the call made, by another model if need be, and return the last answer; raises what the gateway raises."""
        answer = (await self._chain(envelope, self._gateway.ask, _failed_answer))[-1]
        failed = _failed_answer(answer)
        if isinstance(answer, NoDecision) or failed is None or not self._is_left_at(envelope, failed):
            return answer
        result = answer.result.model_copy(update={"failure": _with_note(failed.failure)})
        return answer.model_copy(update={"result": result})

    async def ask_structured(
        self: "FallbackGateway[StructuredGateway]",
        envelope: LLMEnvelope,
        *,
        check: SemanticCheck | None = None,
    ) -> StructuredOutcome:
        """Have the call made, by another model if need be, and return the outcome of the last one.

        Its `attempts` are those at all the envelopes, in order, and `usage` is their sum: what the whole chain took.
        `check` is that of each call. Raises what the gateway raises.
        """
        ask = partial(self._gateway.ask_structured, check=check)
        outcomes = await self._chain(envelope, ask, _failed_outcome)
        outcome = outcome_of_chain(outcomes)
        failed = _failed_outcome(outcome)
        if failed is None or not self._is_left_at(envelope, failed):
            return outcome
        return replace(outcome, error=_with_note(failed.failure))

    async def submit(self: "FallbackGateway[StructuredGateway]", envelope: LLMEnvelope) -> LLMEnvelope:
        """Publish an envelope without waiting; whatever comes of it, no other model is called, as no failure is seen here."""
        return await self._gateway.submit(envelope)

    async def record(self, event: Event) -> None:
        """Put one fact of a trace on record."""
        await self._gateway.record(event)

    async def _chain(
        self,
        envelope: LLMEnvelope,
        ask: Callable[[LLMEnvelope], Awaitable[T]],
        failed_in: Callable[[T], "_Failed | None"],
    ) -> list[T]:
        """Make the call, and one by another model for as long as it fails and may fall back; return all the answers."""
        answers = [await ask(envelope)]
        called = {(envelope.provider, envelope.model)}
        for number, alternative in enumerate(self._alternatives, start=1):
            failed = failed_in(answers[-1])
            if failed is None or not self._falls_back(envelope, failed.failure):
                break
            if envelope.safety_constraints.require_deterministic:
                break
            other = _other(envelope, alternative, number, cause=failed.interaction_id)
            if other is None or (other.provider, other.model) in called:
                continue
            called.add((other.provider, other.model))
            answers.append(await ask(other))
        return answers

    def _falls_back(self, envelope: LLMEnvelope, failure: FailureReason) -> bool:
        """Whether another model is to be called after a failure."""
        may_stay_unread = envelope.output_policy.on_exhausted != "fail"
        is_unread = failure.category == FailureKind.PARSING_ERROR
        return failure.category in self._on and not (is_unread and may_stay_unread)

    def _is_left_at(self, envelope: LLMEnvelope, failed: "_Failed") -> bool:
        """Whether another model would have been called, had the call not been bound to its own."""
        is_bound = envelope.safety_constraints.require_deterministic and bool(self._alternatives)
        return is_bound and self._falls_back(envelope, failed.failure)


@dataclass(frozen=True, slots=True)
class _Failed:
    """The last attempt at an envelope, where it failed."""

    interaction_id: str
    failure: FailureReason


def _failed_answer(answer: GatewayReply) -> _Failed | None:
    """Return what failed; a call without an answer is none, as it may still be under way."""
    if isinstance(answer, NoDecision) or answer.result.failure is None:
        return None
    return _Failed(answer.interaction_id, answer.result.failure)


def _failed_outcome(outcome: StructuredOutcome) -> _Failed | None:
    """Return what failed; a call that was given up after some attempts has another error than the last of them."""
    last = outcome.attempts[-1] if outcome.attempts else None
    if last is None or last.failure is None or last.failure != outcome.error:
        return None
    return _Failed(last.interaction_id, last.failure)


class FallbackByWorkflow(TypedAnswers):
    """A gateway whose calls fall back as their workflow says; those of other workflows do not."""

    def __init__(
        self,
        gateway: StructuredGateway,
        by_workflow: Mapping[EnvelopeWorkflow, "FallbackGateway[StructuredGateway]"],
    ) -> None:
        self._gateway = gateway
        self._by_workflow = by_workflow

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Have the call made, by another model if need be, and return the last answer."""
        chain = self._by_workflow.get(envelope.workflow)
        return await (self._gateway if chain is None else chain).ask(envelope)

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Have the call made, by another model if need be, and return the outcome with all attempts."""
        chain = self._by_workflow.get(envelope.workflow)
        return await (self._gateway if chain is None else chain).ask_structured(envelope, check=check)

    async def submit(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Publish an envelope without waiting; nothing falls back, as nothing waits for its failure."""
        return await self._gateway.submit(envelope)

    async def record(self, event: Event) -> None:
        """Put one fact of a trace on record."""
        await self._gateway.record(event)


def _other(envelope: LLMEnvelope, alternative: Alternative, number: int, *, cause: str) -> LLMEnvelope | None:
    """Return the envelope for an alternative, or None if a rule forbids it, as of an execution that claims to be free."""
    other = envelope.model_copy(
        update={
            "envelope_id": derived_id("fallback", envelope.envelope_id, number),
            "idempotency_key": derived_id("fallback", envelope.idempotency_key, number),
            "causation_id": cause,
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


def _with_note(failure: FailureReason) -> FailureReason:
    """Return the failure with the reason why no other model was called; the record stays as it is."""
    details = f"{failure.technical_details}; {_DETERMINISTIC}".removeprefix("; ")
    return failure.model_copy(update={"technical_details": details})
