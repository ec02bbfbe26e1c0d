"""Trees of questions for tests: a scripted model that answers by the question, and runs over one log, each a process of its own."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentic_trading.client.frame_calls import JOIN
from agentic_trading.client.frames import CausalFrame, RecursionLimits
from agentic_trading.client.recursion import Recursion, RecursionOutcome
from agentic_trading.clock import SimClock
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.prices import bound
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.envelope_rules import output_policy
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.offline import RecordedAnswers, ScriptedProvider, ScriptedReply
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.structured.prompts import first_request
from tests.gateway import CAPABILITIES, PRICES, START, gateway
from tests.worker.running import running

TRACE = "the-tree"
LIMITS = RecursionLimits(max_cost_nusd=1_000_000_000)
Model = Callable[[ModelRequest], ScriptedReply]


def says(conclusion: str, *queries: str | Mapping[str, Any], **more: Any) -> str:
    """Return an answer; with `queries` it is to be continued with these parts."""
    tasks = [{"query": query} if isinstance(query, str) else query for query in queries]
    split = {"sub_tasks": tasks, "next_action": "continue"} if tasks else {}
    return json.dumps({"conclusion": conclusion, **split, **more})


def model(answers: Mapping[str, ScriptedReply], *, joined: str = "joined") -> Model:
    """Return a model that answers each question as it is told to, any other with `short`, and joins with `joined`."""

    def line(request: ModelRequest) -> ScriptedReply:
        if request.envelope.prompt_version == JOIN:
            return says(joined, confidence=0.6)
        return answers.get(request.envelope.context["question"], says("short", confidence=0.5))

    return line


def always_continuing(parts: int = 3) -> Model:
    """Return a model that wants to ask more whatever it is asked, each time something new, and would not stop at a join."""

    def line(request: ModelRequest) -> ScriptedReply:
        question = request.envelope.context["question"]
        return says("more to ask", *(f"{question}.{n}" for n in range(parts)))

    return line


def asking(max_output_tokens: int = 200) -> EnvelopeBuilder:
    """Return a builder for the envelopes of a tree."""
    builder = EnvelopeBuilder(clock=SimClock(START)).for_general().with_agent("ask")
    builder = builder.with_provider(LLMProvider.SCRIPTED, "scripted-1").add_evidence("store", {"spend": 3})
    builder = builder.with_budget(max_output_tokens=max_output_tokens)
    return builder.with_output_policy(output_policy(mode="reask"))


def cost_bound(envelope: LLMEnvelope) -> int:
    """Return the most that an attempt can cost, as the gate reserves it."""
    capability = CAPABILITIES.of(envelope.provider, envelope.model)
    return bound(first_request(envelope, capability, attempt=1), capability, PRICES, at=START).nusd


@dataclass(frozen=True)
class Ran:
    """What came of a tree in one process."""

    outcome: RecursionOutcome
    requests: list[ModelRequest]
    store: MemoryInteractionStore
    ledger: MemoryLedger

    @property
    def frames(self) -> dict[str, CausalFrame]:
        """The frames, by path."""
        return {frame.path: frame for frame in self.outcome.frames}

    @property
    def asked(self) -> list[str]:
        """What was asked, in order; a join in brackets."""
        return [
            f"[{request.envelope.context['question']}]"
            if request.envelope.prompt_version == JOIN
            else request.envelope.context["question"]
            for request in self.requests
        ]

    async def interactions(self) -> list[LLMInteraction]:
        """All attempts on record."""
        return await self.store.get_by_trace_id(TRACE)


async def tree(
    script: Model,
    question: str = "root",
    *,
    limits: RecursionLimits = LIMITS,
    store: MemoryInteractionStore | None = None,
    answers: Mapping[str, str] | None = None,
    build: Callable[[], EnvelopeBuilder] = asking,
    ledger: Any = None,
    bounded: bool = True,
    recorded: RecordedAnswers | None = None,
) -> Ran:
    """Ask a question in a process of its own; with `answers`, go on with what is in `store`."""
    provider = ScriptedProvider(script)
    desk = gateway(provider, store=store, ledger=ledger, recorded=recorded)
    async with running(desk) as client:
        recursion = Recursion(
            client, desk.store.records.trace, limits, build, cost_bound=cost_bound if bounded else None
        )
        if answers is None:
            outcome = await recursion.run(question, trace_id=TRACE)
        else:
            outcome = await recursion.resume(TRACE, answers, by="ann")
    return Ran(outcome, provider.requests, desk.store, desk.ledger)
