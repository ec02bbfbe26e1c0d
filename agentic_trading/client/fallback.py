"""Fall back to another model when a call fails."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Generic, TypeVar, cast

from agentic_trading.client.answer import TypedAnswers
from agentic_trading.client.gateway import AskingGateway, Gateway, GatewayReply, StructuredGateway
from agentic_trading.client.outcome import StructuredOutcome, outcome_of_chain
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope, LLMProvider
from agentic_trading.llm.envelope_rules import check_envelope
from agentic_trading.llm.errors import EnvelopeValidationError, FailureKind, FailureReason, NoDecision
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
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
"""Failures on which a call may fall back. The others would end the next call too, or are deliberate."""

FALLS_BACK_ON: Final = FALLBACK_KINDS - {FailureKind.AUTH_ERROR, FailureKind.BILLING}
"""The default kinds. Invalid keys and unpaid bills are excluded, so that you notice them."""

_DETERMINISTIC = "no other model was asked: require_deterministic allows the requested one only"

G_co = TypeVar("G_co", bound=Gateway, covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another model for a call.

    Attributes:
        provider: The provider of the model.
        model: The name of the model. Required.
        max_output_tokens: Replaces the value of the envelope, if given.
        thinking_budget: Replaces the value of the envelope, if given.

    Raises:
        ValueError: If `model` is empty, or a token count is out of range.

    """

    provider: LLMProvider
    model: str
    max_output_tokens: int | None = None
    thinking_budget: int | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for an invalid alternative."""
        if not self.model:
            # Presets cannot supply it, because their model belongs to one provider.
            raise ValueError(f"The model is missing. Name a model of provider {self.provider}")
        self.budget_of(LLMBudget())

    def budget_of(self, budget: LLMBudget) -> LLMBudget:
        """Return `budget` with the token limits of this alternative."""
        tokens = {"max_output_tokens": self.max_output_tokens, "thinking_budget": self.thinking_budget}
        return budget.model_copy(update={name: most for name, most in tokens.items() if most is not None})


class FallbackGateway(TypedAnswers, Generic[G_co]):
    """A gateway that calls other models, one after the other, when a call fails.

    Each alternative gets a new envelope in the same trace, with the same parent and deadline. Its id is
    derived from the id of the first envelope. Its cause is the failed attempt, so that the log shows the
    chain. The platform checks and charges each call separately: each may cost up to `max_cost_nusd`.

    The chain ends with the first success, the first failure that is not in `on`, or the last alternative. The
    last answer is returned. A model is called once per chain, and an alternative that breaks a rule for
    envelopes is skipped. The choice depends only on the envelope and the answers, so a replay takes the same
    path.

    A call with `require_deterministic`, such as an execution, never falls back. Its failure has a note in
    `technical_details`. After a `parsing_error`, another model is called only if the envelope's policy has
    `on_exhausted="fail"`, as in planning.

    Args:
        gateway: The gateway that runs the calls.
        alternatives: The other models, in the order of trying.
        on: The kinds of failure on which a call falls back.

    Raises:
        ValueError: If `on` has a kind that is not in `FALLBACK_KINDS`, such as a refusal by a budget or
            policy.

    Example:
        gateway = FallbackGateway(client, [Alternative(LLMProvider.ANTHROPIC, "claude-sonnet-5-5")])
        outcome = await gateway.ask_structured(envelope)

    """

    def __init__(
        self,
        gateway: G_co,
        alternatives: Sequence[Alternative],
        *,
        on: frozenset[FailureKind] = FALLS_BACK_ON,
    ) -> None:
        if not on <= FALLBACK_KINDS:
            wrong, allowed = (", ".join(sorted(kinds)) for kinds in (on - FALLBACK_KINDS, FALLBACK_KINDS))
            raise ValueError(f"A call cannot fall back on {wrong}. Allowed are {allowed}")
        self._gateway = gateway
        self._alternatives = tuple(alternatives)
        self._on = on

    async def ask(
        self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None
    ) -> GatewayReply:
        """Run a call, with other models if it fails, and return the last answer.

        The attempts of the whole chain before it are added to `earlier`.

        Raises:
            Exception: Any error of the wrapped gateway.

        """
        made: list[LLMInteraction] = []

        async def ask(each: LLMEnvelope) -> GatewayReply:
            # A gateway of a user may have no `earlier`, so that it is given only if it was asked for.
            asking = self._gateway.ask(each) if earlier is None else self._asking.ask(each, earlier=made)
            answer = await asking
            made.extend(() if isinstance(answer, NoDecision) else (answer,))
            return answer

        answer = (await self._chain(envelope, ask, _failed_answer))[-1]
        if earlier is not None:
            earlier += made if isinstance(answer, NoDecision) else made[:-1]
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
        """Run a call, with other models if it fails, and return the outcome.

        Args:
            envelope: The first call.
            check: Runs on every accepted JSON text, of each call.

        Returns:
            The outcome of the last call. Its `attempts` and `usage` are those of the whole chain, in order.

        Raises:
            Exception: Any error of the wrapped gateway.

        """
        ask = partial(self._gateway.ask_structured, check=check)
        outcomes = await self._chain(envelope, ask, _failed_outcome)
        outcome = outcome_of_chain(outcomes)
        failed = _failed_outcome(outcome)
        if failed is None or not self._is_left_at(envelope, failed):
            return outcome
        return replace(outcome, error=_with_note(failed.failure))

    async def submit(self: "FallbackGateway[StructuredGateway]", envelope: LLMEnvelope) -> LLMEnvelope:
        """Publish a call without waiting for its answer. It does not fall back."""
        return await self._gateway.submit(envelope)

    async def record(self, event: Event) -> None:
        """Append an event to its trace."""
        await self._gateway.record(event)

    @property
    def _asking(self) -> AskingGateway:
        return cast("AskingGateway", self._gateway)

    async def _chain(
        self,
        envelope: LLMEnvelope,
        ask: Callable[[LLMEnvelope], Awaitable[T]],
        failed_in: Callable[[T], "_Failed | None"],
    ) -> list[T]:
        """Run the call and its fallbacks. Return all answers in order."""
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
        may_stay_unread = envelope.output_policy.on_exhausted != "fail"
        is_unread = failure.category == FailureKind.PARSING_ERROR
        return failure.category in self._on and not (is_unread and may_stay_unread)

    def _is_left_at(self, envelope: LLMEnvelope, failed: "_Failed") -> bool:
        """Return whether the call would fall back if it were not bound to its model."""
        is_bound = envelope.safety_constraints.require_deterministic and bool(self._alternatives)
        return is_bound and self._falls_back(envelope, failed.failure)


@dataclass(frozen=True, slots=True)
class _Failed:
    """The last attempt at an envelope, if it failed."""

    interaction_id: str
    failure: FailureReason


def _failed_answer(answer: GatewayReply) -> _Failed | None:
    """Return the failed attempt, or None."""
    # A call without an answer does not fall back, because it may still be running.
    if isinstance(answer, NoDecision) or answer.result.failure is None:
        return None
    return _Failed(answer.interaction_id, answer.result.failure)


def _failed_outcome(outcome: StructuredOutcome) -> _Failed | None:
    """Return the failed attempt, or None."""
    # The two errors differ if the client gave the call up. It does not fall back, because it may still be running.
    last = outcome.attempts[-1] if outcome.attempts else None
    if last is None or last.failure is None or last.failure != outcome.error:
        return None
    return _Failed(last.interaction_id, last.failure)


class FallbackByWorkflow(TypedAnswers):
    """A gateway that falls back by workflow. Other workflows do not fall back."""

    def __init__(
        self,
        gateway: StructuredGateway,
        by_workflow: Mapping[EnvelopeWorkflow, "FallbackGateway[StructuredGateway]"],
    ) -> None:
        self._gateway = gateway
        self._by_workflow = by_workflow

    async def ask(
        self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None
    ) -> GatewayReply:
        """Run a call, with other models if it fails, and return the last answer."""
        chain = self._by_workflow.get(envelope.workflow)
        return await (self._gateway if chain is None else chain).ask(envelope, earlier=earlier)

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Run a call, with other models if it fails, and return its outcome."""
        chain = self._by_workflow.get(envelope.workflow)
        return await (self._gateway if chain is None else chain).ask_structured(envelope, check=check)

    async def submit(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Publish a call without waiting for its answer. It does not fall back."""
        return await self._gateway.submit(envelope)

    async def record(self, event: Event) -> None:
        """Append an event to its trace."""
        await self._gateway.record(event)


def _other(envelope: LLMEnvelope, alternative: Alternative, number: int, *, cause: str) -> LLMEnvelope | None:
    """Return the envelope for an alternative, or None if it would be invalid."""
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
    """Return the failure with a note that no other model was called."""
    details = f"{failure.technical_details}; {_DETERMINISTIC}".removeprefix("; ")
    return failure.model_copy(update={"technical_details": details})
