"""The planner: asks a model for parameter sets, tests each, and chooses the best."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from agentic_trading.canonical import canonical_bytes, sha256_hex, utc_text
from agentic_trading.client.gateway import Gateway, GatewayReply
from agentic_trading.client.outcome import outcome_of
from agentic_trading.clock import Clock
from agentic_trading.desk.planning.errors import GenerationFailedError
from agentic_trading.desk.planning.evaluation import Evaluation, Evaluator, RejectedSet
from agentic_trading.desk.planning.events import (
    DIGITS,
    GenerationAccepted,
    GenerationProposed,
    GenerationRejected,
    PlanChosen,
    recorded_halves,
)
from agentic_trading.desk.planning.families import template_of
from agentic_trading.desk.planning.generator import PROMPT, TemplateCodeGenerator
from agentic_trading.desk.planning.params import Family, StrategyParams
from agentic_trading.desk.planning.search import Search, TrialResult
from agentic_trading.desk.prompts import Prompt, load_prompt, significant
from agentic_trading.ids import derived_id
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import DEFAULT_TENANT, LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.interaction import LLMInteraction, interaction_id
from agentic_trading.llm.limits import RetryPolicy

STEP: Final = "planning"
TRIED: Final = "tried"
"""The evidence source with the sets tried so far."""

# Read at import, because an agent that is created on a running loop must not read files.
STRATEGY_PROMPT: Final[Prompt] = load_prompt("agentic_trading.desk.planning", PROMPT)

OF_ONE_ANSWER: Final = frozenset({
    FailureKind.PARSING_ERROR,
    FailureKind.REFUSAL,
    FailureKind.TRUNCATED,
    FailureKind.TIMEOUT,
    FailureKind.RATE_LIMIT,
    FailureKind.SERVER_ERROR,
})
"""Failures of a single answer: the next round may succeed. Any other failure ends the search."""

RoundState = Literal["accepted", "rejected", "repeated", "failed"]
"""The outcome of a round.

- `accepted`: a set was run.
- `rejected`: its code or its weights were refused.
- `repeated`: both answers chose sets that were already tried.
- `failed`: no answer was a valid set.
"""


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """Settings of a planner: session, model, tenant and strategy family.

    Attributes:
        session_id: All ids are derived from it and the as-of time.
        answer_within: How long to wait for an answer. If `retry_policy` allows one attempt more time, that
            time counts.

    """

    session_id: str
    provider: LLMProvider
    model: str = ""
    family: Family = "momentum"
    agent_id: str = "planner"
    tenant_id: str = DEFAULT_TENANT
    answer_within: timedelta = timedelta(minutes=5)
    retry_policy: RetryPolicy | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """The outcome of one round.

    Attributes:
        proposals: The number of valid sets in its answers.
        params: The last of these sets.
        evaluation: The result of `params`, or of the earlier set that it repeats.
        failure: The reason if there is no evaluation.

    """

    number: int
    state: RoundState
    proposals: int = 0
    params: StrategyParams | None = None
    evaluation: Evaluation | None = None
    failure: FailureReason | None = None
    error: GenerationFailedError | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The set to trade by: the best of all distinct sets tried.

    Attributes:
        tried: The number of distinct sets.
        deflated_sharpe: The probability that the set is better than the luck of so many tries.

    """

    champion: TrialResult
    tried: int
    deflated_sharpe: float | None
    trace_id: str
    event_id: str
    """The id of the `plan.chosen` event."""


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """The weights that a plan wants to hold at a close.

    Attributes:
        weights: Shares of the account by symbol, 0 for absent symbols.
        rebalances: Whether to adjust all symbols, or only those whose weight has changed.
        stop_loss: A position that loses this share of its entry price is sold.
        plan_id: The event that chose the plan.

    """

    weights: Mapping[str, float]
    rebalances: bool
    stop_loss: float | None
    plan_id: str
    trace_id: str


class PlanningAgent:
    """An agent that searches for parameters over one panel, as of one moment.

    Rounds run one after the other and share one trace. The model sees the 20 best and the 10 last sets with
    their figures of the first half, and no figure of the time after `as_of`. A set that trades like an
    earlier set is recorded as a repeat. The model is then given the known figures and asked for another set,
    once per round.

    Args:
        gateway: Runs the calls and records the events.
        clock: The clock of the session.
        evaluator: Runs the sets.
        settings: The session and the model.
        as_of: The time of the questions, by default the end of the first half. If you set it, all bars of the
            panel must have closed by then.

    Raises:
        NotOfferedError: If the panel cannot serve the family.

    Example:
        settings = PlannerSettings("my-session", LLMProvider.RULES, "rules-1")
        agent = PlanningAgent(gateway, SystemClock(), evaluator, settings)
        plan = await agent.plan(3)

    """

    def __init__(
        self,
        gateway: Gateway,
        clock: Clock,
        evaluator: Evaluator,
        settings: PlannerSettings,
        *,
        as_of: datetime | None = None,
    ) -> None:
        evaluator.offered.require((settings.family,))
        self.search = Search(evaluator.window)
        self.as_of = as_of or evaluator.chosen_at
        self.trace_id = derived_id(settings.session_id, STEP, utc_text(self.as_of))
        self._gateway = gateway
        self._clock = clock
        self._evaluator = evaluator
        self._settings = settings
        self._accepted: dict[int, str] = {}
        self._played = 0
        self._generator: TemplateCodeGenerator | None = None

    async def plan(
        self, rounds: int, *, regime: str = "", on_round: Callable[[Round], None] = lambda _round: None
    ) -> Plan | NoDecision:
        """Run further rounds, and return the best of all sets tried so far.

        Args:
            rounds: The maximum number of rounds. A failure that would occur again ends the search earlier.
            regime: The market regime, for the record.
            on_round: Called after each round.

        Returns:
            The plan, which is recorded, or a `NoDecision` if no set has a Sharpe ratio.

        Raises:
            TemplateError: If the template cannot be rendered.
            SandboxStartError: If the sandbox cannot be started again.

        """
        ended = Round(0, "failed")
        for _ in range(rounds):
            ended = await self.round()
            on_round(ended)
            if _ends_all(ended):
                break
        champion = self.search.champion
        if champion is None:
            return self._no_decision(ended)
        return await self._chosen(champion, regime)

    async def round(self) -> Round:
        """Run the next round, and record it.

        The round asks for a set, and once more after a repeat. A new set is run.
        """
        self._played = number = self._played + 1
        step, cause = f"round-{number}", ""
        params: StrategyParams | None = None
        repeated: TrialResult | None = None
        for proposals, name in enumerate((step, f"{step}.again")):
            try:
                params, answered = await self._ask(number, name, cause, repeated)
            except GenerationFailedError as e:
                return Round(number, "failed", proposals, failure=e.failure, error=e)
            repeated = self.search.known(params)
            proposed = await self._record_proposal(number, name, params, answered, repeated)
            if repeated is None:
                return await self._run(number, name, params, proposals + 1, proposed)
            detail = f"it trades like set {repeated.number} that was tried"
            cause = await self._reject(number, name, params, RejectedSet("repeat", detail), proposed)
        known = repeated.evaluation if repeated else None
        return Round(number, "repeated", 2, params, known)

    async def _run(self, number: int, step: str, params: StrategyParams, proposals: int, cause: str) -> Round:
        outcome = await asyncio.to_thread(self._evaluator.evaluate, params)
        if isinstance(outcome, RejectedSet):
            await self._reject(number, step, params, outcome, cause)
            failure = FailureReason(
                category=FailureKind.PARSING_ERROR, description=f"{outcome.by}: {outcome.detail}"
            )
            return Round(number, "rejected", proposals, params, failure=failure)
        tried = self.search.add(params, outcome)
        body = GenerationAccepted(
            round=number,
            params_sha256=params.sha256,
            code_sha256=outcome.code_sha256,
            template_sha256=outcome.template_sha256,
            data_sha256=outcome.data_sha256,
            **recorded_halves(outcome),
            cached=outcome.cached,
        )
        self._accepted[tried.number] = await self._record(body, step, "accepted", cause)
        return Round(number, "accepted", proposals, params, outcome)

    async def _ask(
        self, number: int, step: str, cause: str, repeated: TrialResult | None
    ) -> tuple[StrategyParams, str]:
        """Return a valid set and its interaction id, or raise `GenerationFailedError`."""
        if self._generator is None:
            template, offered = template_of(self._settings.family), self._evaluator.offered
            # In a thread, because it reads the template's files and compiles them.
            self._generator = await asyncio.to_thread(TemplateCodeGenerator, template, offered)
        envelope = self._envelope(self._generator.schema, number, step, cause, repeated)
        reply = await self._gateway.ask(envelope)
        try:
            return _read(reply, self._generator)
        except GenerationFailedError as e:
            if not isinstance(reply, NoDecision) and reply.result.success:
                await self._refuse(number, step, reply, e)
            raise

    async def _refuse(
        self, number: int, step: str, reply: LLMInteraction, refused: GenerationFailedError
    ) -> None:
        """Record that an answer that the worker has accepted breaks rules of the family."""
        given = canonical_bytes((outcome_of([reply]).json or {}).get("params"))
        detail = "; ".join(f"{error.field_path}: {error.message}" for error in refused.errors)
        body = GenerationRejected(round=number, params_sha256=sha256_hex(given), by="rules", detail=detail)
        await self._record(body, step, "refused", reply.interaction_id)

    def _envelope(
        self, schema: Mapping[str, Any], number: int, step: str, cause: str, repeated: TrialResult | None
    ) -> LLMEnvelope:
        settings, offered = self._settings, self._evaluator.offered
        envelope_id = derived_id(self.trace_id, step)
        own = (f"{settings.family}.", f"{settings.family}:")
        context: dict[str, Any] = {
            "data": offered.facts.name,
            "family": settings.family,
            "round": number,
            "withheld": [reason for reason in offered.withheld if reason.startswith(own)],
        }
        if repeated is not None:
            context["repeated"] = dict(repeated.evidence)
        builder = EnvelopeBuilder(clock=self._clock, ids=lambda: envelope_id).for_planning()
        builder.with_instructions(STRATEGY_PROMPT.text, prompt_version=STRATEGY_PROMPT.version)
        builder.with_subject(offered.facts.name, step=step).with_as_of(self.as_of)
        builder.with_context(context, as_of=self.as_of)
        builder.add_evidence(TRIED, dict(self.search.evidence), available_at=self.as_of)
        builder.with_output_schema(schema).with_trace(self.trace_id, causation_id=cause)
        builder.with_agent(settings.agent_id, "planner").with_tenant(settings.tenant_id)
        builder.with_provider(settings.provider, settings.model)
        patience = settings.answer_within
        if settings.retry_policy is not None:
            builder.with_retry_policy(settings.retry_policy)
            # Otherwise the deadline could end a single attempt that the policy still allows.
            patience = max(patience, timedelta(seconds=settings.retry_policy.attempt_timeout_s))
        return builder.with_deadline(self._clock.now() + patience).build()

    async def _record_proposal(
        self, number: int, step: str, params: StrategyParams, answered: str, repeated: TrialResult | None
    ) -> str:
        body = GenerationProposed(
            round=number,
            family=params.strategy_type,
            params=params.model_dump(),
            params_sha256=params.sha256,
            interaction_id=answered,
            repeat_of=repeated.params.sha256 if repeated else "",
        )
        return await self._record(body, step, "proposed", answered)

    async def _reject(
        self, number: int, step: str, params: StrategyParams, rejection: RejectedSet, cause: str
    ) -> str:
        body = GenerationRejected(
            round=number, params_sha256=params.sha256, by=rejection.by, detail=rejection.detail
        )
        return await self._record(body, step, "rejected", cause)

    async def _chosen(self, champion: TrialResult, regime: str) -> Plan:
        deflated, tried = self.search.deflated_sharpe, len(self.search)
        body = PlanChosen(
            regime=regime,
            params=champion.params.model_dump(),
            params_sha256=champion.params.sha256,
            tried=tried,
            deflated_sharpe=significant(deflated, DIGITS),
            as_of=self.as_of,
        )
        step = f"round-{self._played}"
        event_id = await self._record(body, step, "chosen", self._accepted[champion.number])
        return Plan(champion, tried, deflated, self.trace_id, event_id)

    async def _record(self, body: EventBody, step: str, part: str, cause: str) -> str:
        """Record a body under an id derived from trace, step and `part`. Return the id."""
        event_id = derived_id(self.trace_id, step, part)
        event = body.as_event(
            event_id=event_id,
            trace_id=self.trace_id,
            tenant_id=self._settings.tenant_id,
            time=self._clock.now(),
            causation_id=cause,
            as_of=self.as_of,
        )
        await self._gateway.record(event)
        return event_id

    def _no_decision(self, last: Round) -> NoDecision:
        reason = last.failure or FailureReason(
            category=FailureKind.PARSING_ERROR,
            description="no set that was tried has a Sharpe ratio: none of them traded in the first half",
        )
        return NoDecision(
            reason=reason,
            envelope_id=derived_id(self.trace_id, f"round-{last.number}"),
            trace_id=self.trace_id,
            as_of=self.as_of,
        )


AutonomousLoop = PlanningAgent
"""Another name of `PlanningAgent`, from the first design."""


def _ends_all(ended: Round) -> bool:
    return ended.failure is not None and ended.failure.category not in OF_ONE_ANSWER


def _read(answer: GatewayReply, generator: TemplateCodeGenerator) -> tuple[StrategyParams, str]:
    """Return an answer's set and interaction id, or raise `GenerationFailedError`."""
    if isinstance(answer, NoDecision):
        raise GenerationFailedError((), (), answer.reason)
    envelope = answer.envelope
    numbers = range(1, answer.result.attempt_number + 1)
    attempts = [interaction_id(envelope.envelope_id, number, envelope.tenant_id) for number in numbers]
    try:
        result = generator.generate_from(outcome_of([answer]), answer.result.raw_output)
    except GenerationFailedError as e:
        raise GenerationFailedError(e.errors, attempts, e.failure) from e
    if result.params is None:  # possible because a worker may run without the check
        why = f"the answer breaks {len(result.errors)} rules of the parameters"
        failure = FailureReason(category=FailureKind.PARSING_ERROR, description=why)
        raise GenerationFailedError(result.errors, attempts, failure)
    return result.params, answer.interaction_id
