"""The questions of an agent: typed answers on record, asked one by one or several at once."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic

from pydantic import BaseModel

from agentic_trading.client.answer import Answer, M, ask_typed, typed_builder
from agentic_trading.client.gateway import AskingGateway
from agentic_trading.client.outcome import StructuredOutcome
from agentic_trading.clock import Clock
from agentic_trading.desk.agent_events import AgentUndecided
from agentic_trading.desk.agents.errors import DeskError
from agentic_trading.desk.agents.handler_call import HandlerCall
from agentic_trading.desk.market.bar import Bar
from agentic_trading.ids import derived_id
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.limits import LLMBudget, RetryPolicy

ANSWER_WITHIN = timedelta(minutes=5)
SHOWN = ("open_time", "open", "high", "low", "close", "volume")
"""The fields of a bar in evidence."""


@dataclass(frozen=True, slots=True)
class AskedModel:
    """The model that an agent asks, and its retry policy. An empty model is the default of the workflow."""

    llm: LLMProvider
    model: str
    patience: RetryPolicy | None


@dataclass(frozen=True, slots=True)
class Known:
    """A piece of evidence, and since when it is known. See `known`."""

    content: Any
    at: datetime


def known(content: Any, *, at: datetime) -> Known:
    """Return evidence that was known at another time than the close.

    Evidence from after the close is refused with a `LookAheadError`.
    """
    return Known(content, at)


@dataclass(frozen=True, slots=True)
class Question(Generic[M]):
    """One question of `Desk.decide_all`. The fields are the arguments of `Desk.decide`."""

    instructions: str
    output: type[M]
    evidence: Mapping[str, Any] = field(default_factory=dict)
    symbol: str = ""
    step: str = ""
    workflow: EnvelopeWorkflow = EnvelopeWorkflow.ANALYSIS
    within: timedelta = ANSWER_WITHIN
    budget: LLMBudget | None = None
    because: Answer[Any] | None = None


@dataclass(frozen=True, slots=True)
class Questions:
    """Asks the questions of one agent."""

    gateway: AskingGateway
    clock: Clock
    tenant: str
    model_of: Callable[[EnvelopeWorkflow], AskedModel]
    workflows: Sequence[EnvelopeWorkflow]

    async def ask(self, call: HandlerCall, questions: Iterable[Question[M]]) -> list[Answer[M]]:
        """Ask several questions at once. The answers are in the order of the questions.

        Raises:
            DeskError: If a question of the same handler waits for its answer.

        """
        if call.is_asking:
            raise DeskError(
                "a question is waiting for its answer. Ask one after the other, or at once with `decide_all`"
            )
        call.is_asking = True
        try:
            # Envelopes are numbered before the first call, so that the order of the answers has no effect.
            asked = [(each, self._envelope(call, each)) for each in questions]
            await call.wake()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(ask_typed(self.gateway, envelope, each.output))
                    for each, envelope in asked
                ]
            answers = [task.result() for task in tasks]
            for (_, envelope), answer in zip(asked, answers, strict=True):
                await self._keep(call, envelope, answer)
            return answers
        finally:
            call.is_asking = False

    async def _keep(self, call: HandlerCall, envelope: LLMEnvelope, answer: Answer[M]) -> None:
        """Keep an answer as a possible cause. Record a missing one."""
        cause = _cause(envelope, answer.outcome)
        call.answers.append((answer, cause))
        if answer:
            return
        missing = FailureReason(category=FailureKind.INTERNAL_ERROR, description="no usable answer")
        decision = NoDecision(
            reason=answer.failure or missing,
            envelope_id=envelope.envelope_id,
            trace_id=envelope.trace_id,
            as_of=envelope.as_of,
        )
        body = AgentUndecided(
            agent=call.agent,
            symbol=envelope.subject,
            step=envelope.step,
            request_hash=envelope.request_hash,
            **dict(decision),
        )
        await call.record(body, derived_id(envelope.envelope_id, "undecided"), cause)

    def _envelope(self, call: HandlerCall, question: Question[M]) -> LLMEnvelope:
        workflow = EnvelopeWorkflow(question.workflow)
        if workflow not in self.workflows:
            allowed = ", ".join(self.workflows)
            raise DeskError(
                f"workflow={workflow}. Allowed: {allowed}. Add others to `workflows` of the agent"
            )
        asked = self.model_of(workflow)
        envelope_id = call.next_id("envelope")
        builder = EnvelopeBuilder(clock=self.clock, ids=lambda: envelope_id)
        typed_builder(builder, question.instructions, question.output, workflow)
        builder.with_provider(asked.llm, asked.model).with_tenant(self.tenant)
        builder.with_agent(call.agent, "agent")
        step = question.step or f"{call.handler}.{call.number_of('envelope')}"
        builder.with_subject(question.symbol or call.symbol, step=step)
        builder.with_as_of(call.as_of).with_trace(call.trace_id, call.cause_of(question.because))
        for source, content in question.evidence.items():
            at, shown = (content.at, content.content) if isinstance(content, Known) else (call.as_of, content)
            builder.add_evidence(source, _plain(shown), available_at=at)
        if question.budget is not None:
            builder.with_budget(**question.budget.model_dump(exclude_unset=True))
        within = question.within
        if asked.patience is not None:
            builder.with_retry_policy(asked.patience)
            within = max(within, timedelta(seconds=asked.patience.attempt_timeout_s))
        return builder.with_deadline(self.clock.now() + within).build()


def _cause(envelope: LLMEnvelope, outcome: StructuredOutcome) -> str:
    """Return the last attempt, or the envelope without one."""
    return outcome.attempts[-1].interaction_id if outcome.attempts else envelope.envelope_id


def _plain(value: Any) -> Any:
    """Return JSON data: a bar as its fields, a pydantic model as its dump."""
    match value:
        case Bar():
            return {name: getattr(value, name) for name in SHOWN}
        case BaseModel():
            return value.model_dump(mode="json")
        case Mapping():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return value
