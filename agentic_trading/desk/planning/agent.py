"""The planner: asks a model for sets of parameters, one a round, has each run over past prices, and chooses the best."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from agentic_trading.canonical import utc_text
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
from agentic_trading.desk.planning.generator import PROMPT, TemplateCodeGenerator
from agentic_trading.desk.planning.params import Family, StrategyParams
from agentic_trading.desk.planning.search import Search, TrialResult
from agentic_trading.desk.planning.template import TEMPLATES
from agentic_trading.desk.prompts import Prompt, load_prompt, significant
from agentic_trading.ids import derived_id
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import DEFAULT_TENANT, LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.interaction import interaction_id
from agentic_trading.llm.limits import RetryPolicy

STEP: Final = "planning"
TRIED: Final = "tried"
"""The source of the evidence that has the sets that were tried."""

# Read at import, like the code that it belongs to: an agent made on a running loop must not read files.
STRATEGY_PROMPT: Final[Prompt] = load_prompt("agentic_trading.desk.planning", PROMPT)

OF_ONE_ANSWER: Final = frozenset({
    FailureKind.PARSING_ERROR,
    FailureKind.REFUSAL,
    FailureKind.TRUNCATED,
    FailureKind.TIMEOUT,
    FailureKind.RATE_LIMIT,
    FailureKind.SERVER_ERROR,
})
"""Failures that the next round may not have; after any other one no further round is asked for."""

RoundState = Literal["accepted", "rejected", "repeated", "failed"]
"""How a round ends. `accepted`: a set was run · `rejected`: its code or its weights were refused · `repeated`: both answers
chose sets that were tried · `failed`: no answer was a valid set."""


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """The session and tenant that the planner asks for, and which model it asks for sets of which family; all ids are made from `session_id` and the moment.

    An answer is waited for as long as `answer_within`, or one attempt by `retry_policy` if that is longer.
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
    """What came of a round: `proposals` counts its valid sets, `params` is the last of them.

    `evaluation` is that of `params`, or of the set that it repeats. `failure` says why there is none.
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
    """The set to trade by: the best of `tried` distinct ones, with the probability that it is better than their luck."""

    champion: TrialResult
    tried: int
    deflated_sharpe: float | None
    trace_id: str
    event_id: str
    """Of the `plan.chosen` that says so."""


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """What a plan wants to hold at a close: shares of the account by symbol, 0 for one that is not named.

    `rebalances` says that all symbols are to be brought to their weights, not only those whose weight has changed. A
    position that loses the share `stop_loss` of its entry price is sold. `plan_id` is the event that chose the plan.
    """

    weights: Mapping[str, float]
    rebalances: bool
    stop_loss: float | None
    plan_id: str
    trace_id: str


class PlanningAgent:
    """Chooses parameters over one panel, as of one moment; all its rounds are one trace, and rounds are asked one by one.

    The model sees the sets that were tried, the 20 best and the 10 last, with figures of the first half alone: what they
    came to after `as_of` it never does. A set that trades like one that was tried is recorded as a repeat, answered by the
    figures that are known, and another one is asked for, once a round.
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
        """Plan as of the end of the first half, or of `as_of`, before which all of the panel must have closed.

        Raises `NotOfferedError` for a family that the panel cannot serve.
        """
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
        """Play further rounds, and return the best set of all that were tried so far, on record; or why there is none.

        Raises `TemplateError` and `SandboxStartError`: those are no answer's fault.
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
        """Play the next round: ask for a set, and once more after a repeat; have it run; all of it on record."""
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
        """Return a valid set and the id of its interaction; raises `GenerationFailedError` after the last answer."""
        if self._generator is None:
            template, offered = TEMPLATES[self._settings.family], self._evaluator.offered
            self._generator = await asyncio.to_thread(TemplateCodeGenerator, template, offered)
        envelope = self._envelope(self._generator.schema, number, step, cause, repeated)
        return _read(await self._gateway.ask(envelope), self._generator)

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
        """Record a body under the id that follows from the trace, the step and `part`; return the id."""
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
"""The same under the name of the first design: the loop that asks again is the gateway's, the rounds are `plan`'s."""


def _ends_all(ended: Round) -> bool:
    return ended.failure is not None and ended.failure.category not in OF_ONE_ANSWER


def _read(answer: GatewayReply, generator: TemplateCodeGenerator) -> tuple[StrategyParams, str]:
    """Return the set of an answer and the id of its interaction; raises `GenerationFailedError`."""
    if isinstance(answer, NoDecision):
        raise GenerationFailedError((), (), answer.reason)
    envelope = answer.envelope
    numbers = range(1, answer.result.attempt_number + 1)
    attempts = [interaction_id(envelope.envelope_id, number, envelope.tenant_id) for number in numbers]
    try:
        result = generator.generate_from(outcome_of([answer]), answer.result.raw_output)
    except GenerationFailedError as e:
        raise GenerationFailedError(e.errors, attempts, e.failure) from e
    if result.params is None:  # of a worker that was not given the check
        why = f"the answer breaks {len(result.errors)} rules of the parameters"
        failure = FailureReason(category=FailureKind.PARSING_ERROR, description=why)
        raise GenerationFailedError(result.errors, attempts, failure)
    return result.params, answer.interaction_id
