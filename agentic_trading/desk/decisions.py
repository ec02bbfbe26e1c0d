"""The decision log, comparable byte for byte, and the counters of a session."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, assert_never

from agentic_trading.canonical import Fragment, canonical_bytes, exact_bytes, utc_text
from agentic_trading.client.gateway import AskingGateway, GatewayReply, verdict_of
from agentic_trading.client.outcome import StructuredOutcome
from agentic_trading.desk.agent_events import AgentFailed, AgentNoted, AgentUndecided, AgentWoken
from agentic_trading.desk.analysis.assessment import Assessment
from agentic_trading.desk.analysis.events import Skipped, Triggered, Undecided
from agentic_trading.desk.exchange import Cancellation, Fill, Order
from agentic_trading.desk.execution.events import (
    IntentDenied,
    IntentSkipped,
    IntentUndecided,
    OrderDenied,
    StrategyChosen,
)
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.execution.risk_events import RiskResumed, RiskTripped
from agentic_trading.desk.feed_events import BarLeftOut, FeedResumed, FeedSilent
from agentic_trading.desk.instrument import EXACT, ZERO
from agentic_trading.desk.planning.events import (
    GenerationAccepted,
    GenerationProposed,
    GenerationRejected,
    PlanChosen,
    PlanUndecided,
)
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import NoDecision, StoreError
from agentic_trading.llm.event import Event, Kinds
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.structured.pydantic_schema import SemanticCheck

DeskBody = (
    Triggered
    | Skipped
    | Assessment
    | Undecided
    | IntentSkipped
    | IntentDenied
    | OrderIntent
    | IntentUndecided
    | StrategyChosen
    | Order
    | OrderDenied
    | Cancellation
    | Fill
    | GenerationProposed
    | GenerationRejected
    | GenerationAccepted
    | PlanChosen
    | PlanUndecided
    | AgentWoken
    | AgentUndecided
    | AgentNoted
    | AgentFailed
    | RiskTripped
    | RiskResumed
    | FeedSilent
    | FeedResumed
    | BarLeftOut
)


KINDS = Kinds[DeskBody](
    Triggered,
    Skipped,
    Assessment,
    Undecided,
    IntentSkipped,
    IntentDenied,
    OrderIntent,
    IntentUndecided,
    StrategyChosen,
    Order,
    OrderDenied,
    Cancellation,
    Fill,
    GenerationProposed,
    GenerationRejected,
    GenerationAccepted,
    PlanChosen,
    PlanUndecided,
    AgentWoken,
    AgentUndecided,
    AgentNoted,
    AgentFailed,
    RiskTripped,
    RiskResumed,
    FeedSilent,
    FeedResumed,
    BarLeftOut,
)


HaltBody = (
    AgentWoken | AgentNoted | AgentFailed | RiskTripped | RiskResumed | FeedSilent | FeedResumed | BarLeftOut
)


class DecisionLog:
    """A file of decision lines, and the digest of its lines.

    The digest is the SHA-256 over all lines with their newlines. `open` and `append` raise `StoreError` if
    the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = sha256()

    @property
    def digest(self) -> str:
        """The digest of the lines written so far, in 64 hexadecimal digits."""
        return self._digest.hexdigest()

    async def open(self) -> None:
        """Create the file, or empty an existing file."""
        await asyncio.to_thread(self._write, b"", mode="wb")

    async def append(self, lines: Sequence[bytes]) -> None:
        """Append lines. They are in the file when this returns."""
        if not lines:
            return
        block = b"".join(line + b"\n" for line in lines)
        self._digest.update(block)
        await asyncio.to_thread(self._write, block)

    def _write(self, block: bytes, *, mode: Literal["ab", "wb"] = "ab") -> None:
        try:
            with self.path.open(mode) as file:
                file.write(block)
        except OSError as e:
            raise StoreError(
                self.path, f"cannot be written ({e.strerror}). Make it writable, or free disk space."
            ) from e


class DecisionLoggingGateway:
    """A gateway that keeps a line of each call and event until `close` returns them.

    A line holds market time and derived ids only: no wall time, latency, cost, worker or path. `close` orders
    lines by subject, and keeps their order within a subject. Each subject is one sequence of steps, so the
    number of workers and the order of their answers do not change the lines.
    """

    def __init__(self, gateway: AskingGateway) -> None:
        self._gateway = gateway
        self._lines: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)

    async def ask(
        self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None
    ) -> GatewayReply:
        """Run a call, and keep a line of its question and answer."""
        line = self._reserve(envelope)
        answer = await self._gateway.ask(envelope, earlier=earlier)
        called = {} if isinstance(answer, NoDecision) else answer.result.parsed_output
        attempts = 0 if isinstance(answer, NoDecision) else answer.result.attempt_number
        line |= _call_fields(envelope, verdict_of(answer), attempts, called)
        return answer

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Run a typed call, and keep a line of its question and answer."""
        line = self._reserve(envelope)
        outcome = await self._gateway.ask_structured(envelope, check=check)
        verdict = "accepted" if outcome.error is None else outcome.error.category.value
        attempts = outcome.attempts[-1].number if outcome.attempts else 0
        line |= _call_fields(envelope, verdict, attempts, (outcome.json or {}) if outcome.ok else {})
        return outcome

    async def record(self, event: Event) -> None:
        """Record an event, and keep a line of it unless it is `Skipped`."""
        await self._gateway.record(event)
        body = KINDS.of(event)
        match body:
            case Skipped():
                pass
            # The subject is empty because a plan concerns all symbols.
            case None | GenerationProposed() | GenerationRejected() | GenerationAccepted() | PlanChosen():
                self._keep("", _event_line(event))
            case PlanUndecided() | RiskTripped() | RiskResumed():
                self._keep("", _event_line(event))
            case _:
                self._keep(body.symbol, _event_line(event))

    def close(self) -> list[bytes]:
        """Return the kept lines in order, and forget them."""
        lines = [
            canonical_bytes({**line, "step": step})
            for subject in sorted(self._lines)
            for step, line in enumerate(self._lines[subject], start=1)
        ]
        self._lines.clear()
        return lines

    def _keep(self, subject: str, line: dict[str, Any]) -> None:
        self._lines[subject].append({"subject": subject, **line})

    def _reserve(self, envelope: LLMEnvelope) -> dict[str, Any]:
        """Return the line of a call, which is in the place of its question."""
        # An agent may ask several questions about a symbol at once. Their answers may come in any order.
        line = {"subject": envelope.subject}
        self._lines[envelope.subject].append(line)
        return line


@dataclass(slots=True)
class SessionCounters:
    """The counts of a session. `CountingGateway` counts each call and event.

    Attributes:
        decisions: Decisions by workflow, then by verdict.
        no_decisions: Missing decisions by workflow, then by failure category.
        intents_rejected: Intents and strategies that our limits denied, by rule.
        orders_refused: Orders that the exchange refused, by its rule.
        cancelled: Cancelled orders, by the reason why the rest was not filled.
        plans: The chosen plans, in order.
        agent_errors: Errors of the agent's handlers.
        silences: The silences of each feed. An empty symbol counts those of all feeds at once.
        trips: The loss limits that were reached, and the resumes of entries, with their closes.
        entries_halted: The rules that halt entries now, as keys.

    """

    calls: int = 0
    decisions: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    no_decisions: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    skips: Counter[str] = field(default_factory=Counter)
    intents: int = 0
    intents_rejected: Counter[str] = field(default_factory=Counter)
    orders: int = 0
    orders_refused: Counter[str] = field(default_factory=Counter)
    cancelled: Counter[str] = field(default_factory=Counter)
    fills: int = 0
    first_fill_id: str = ""
    plans: list[PlanChosen] = field(default_factory=list)
    fees: Decimal = ZERO
    agent_errors: int = 0
    silences: Counter[str] = field(default_factory=Counter)
    entries_halted: dict[str, None] = field(default_factory=dict)
    trips: list[tuple[datetime | None, RiskTripped | RiskResumed]] = field(default_factory=list)

    def count(self, event: Event) -> None:
        """Count one event. Events of other packages are ignored."""
        body = KINDS.of(event)
        match body:
            case Assessment() | StrategyChosen() | PlanChosen():
                self._count_decision(body)
            case Undecided() | IntentUndecided() | PlanUndecided() | AgentUndecided():
                self._count_no_decision(body)
            case Skipped() | IntentSkipped():
                self.skips[body.reason] += 1
            case OrderIntent() | IntentDenied() | OrderDenied():
                self._count_intent(body)
            case Order() | Cancellation() | Fill():
                self._count_trade(body, event.id)
            case GenerationProposed() | GenerationRejected() | GenerationAccepted() | Triggered() | None:
                pass
            case _:
                self._count_halt(body, event.as_of)

    def _count_halt(self, body: HaltBody, at: datetime | None) -> None:
        match body:
            case AgentFailed():
                self.agent_errors += 1
                if body.halts_entries:
                    self.entries_halted["agent_failed"] = None
            case RiskTripped():
                self.trips.append((at, body))
                self.entries_halted[body.rule] = None
            case RiskResumed():
                self.trips.append((at, body))
                for rule in body.rules:
                    self.entries_halted.pop(rule, None)
            case FeedSilent():
                self.silences[body.symbol] += 1
            case AgentWoken() | AgentNoted() | FeedResumed() | BarLeftOut():
                pass
            case _:
                assert_never(body)

    def _count_intent(self, body: OrderIntent | IntentDenied | OrderDenied) -> None:
        if isinstance(body, OrderIntent):
            self.intents += 1
            return
        # An empty `order_id` is a denial by our own limits, because none of the strategy's orders was sent.
        refused = isinstance(body, OrderDenied) and body.order_id
        (self.orders_refused if refused else self.intents_rejected)[body.rule] += 1

    def _count_decision(self, body: Assessment | StrategyChosen | PlanChosen) -> None:
        match body:
            case Assessment():
                self.decisions["analysis"][body.verdict] += 1
            case StrategyChosen():
                self.decisions["execution"][f"{body.algo} {body.order_type}"] += 1
            case PlanChosen():
                self.decisions["planning"][str(body.params["strategy_type"])] += 1
                self.plans.append(body)
            case _:
                assert_never(body)

    def _count_no_decision(self, body: Undecided | IntentUndecided | PlanUndecided | AgentUndecided) -> None:
        match body:
            case Undecided():
                workflow = "analysis"
            case IntentUndecided():
                workflow = "execution"
            case PlanUndecided():
                workflow = "planning"
            case AgentUndecided():
                workflow = "agent"
            case _:
                assert_never(body)
        self.no_decisions[workflow][body.reason.category] += 1

    def _count_trade(self, body: Order | Cancellation | Fill, event_id: str) -> None:
        match body:
            case Order():
                self.orders += 1
            case Cancellation():
                self.cancelled[body.reason] += 1
            case Fill():
                self.fills += 1
                self.first_fill_id = self.first_fill_id or event_id
                self.fees = EXACT.add(self.fees, body.fee)
            case _:
                assert_never(body)


class CountingGateway:
    """A gateway that counts its calls and events in `counters`."""

    def __init__(self, gateway: AskingGateway, counters: SessionCounters) -> None:
        self._gateway = gateway
        self._counters = counters

    async def ask(
        self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None
    ) -> GatewayReply:
        """Count the call, and run it."""
        self._counters.calls += 1
        return await self._gateway.ask(envelope, earlier=earlier)

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Count the typed call and its decision, and run it."""
        self._counters.calls += 1
        outcome = await self._gateway.ask_structured(envelope, check=check)
        if outcome.ok:
            self._counters.decisions["agent"]["accepted"] += 1
        return outcome

    async def record(self, event: Event) -> None:
        """Count the event, and record it."""
        self._counters.count(event)
        await self._gateway.record(event)


def _call_fields(
    envelope: LLMEnvelope, verdict: str, attempts: int, called: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "kind": "call",
        "id": envelope.envelope_id,
        "trace_id": envelope.trace_id,
        "causation_id": envelope.causation_id,
        "as_of": _time(envelope.as_of),
        "workflow": envelope.workflow,
        "agent_id": envelope.agent_id,
        "request_hash": envelope.request_hash,
        "verdict": verdict,
        "attempts": attempts,
        "answer": Fragment(exact_bytes(called)),
    }


def _event_line(event: Event) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "id": event.id,
        "trace_id": event.trace_id,
        "causation_id": event.causation_id,
        "as_of": _time(event.as_of),
        "body": event.body,
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else utc_text(moment)
