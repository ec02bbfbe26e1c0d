"""The gateway as the desk's agents see it: whatever they ask or record becomes a line of the decision log."""

from collections import defaultdict
from datetime import datetime
from typing import Any

from agentic_trading.canonical import Fragment, canonical_bytes, exact_bytes, utc_text
from agentic_trading.client.gateway import GatewayReply, Gateway
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.failure import NoDecision

NOT_A_DECISION = frozenset({"skip"})
"""Kinds of events that the log keeps and the decision log leaves out."""


def verdict_of(answer: GatewayReply) -> str:
    """Return in one word what a call came to: `accepted`, the category of its failure, or `degraded` without one."""
    if isinstance(answer, NoDecision):
        return answer.reason.category
    result = answer.result
    if result.actionable:
        return "accepted"
    return "degraded" if result.failure is None else result.failure.category


class DecisionLoggingGateway:
    """Pass everything on to `gateway`, and keep a line of each call and event until `close` takes them.

    A line holds market time and derived ids only: no wall time, latency, cost, worker or path. Lines of one moment
    are ordered by subject, and within a subject in the order in which they came; each subject is one sequence of
    steps, so neither the number of workers nor the order of their answers moves a line.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._lines: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Ask, and keep what was asked and what came back."""
        answer = await self._gateway.ask(envelope)
        self._keep(envelope.subject, _call_line(envelope, answer))
        return answer

    async def record(self, event: Event) -> None:
        """Record, and keep it."""
        await self._gateway.record(event)
        if event.kind not in NOT_A_DECISION:
            self._keep(str(event.body.get("symbol", "")), _event_line(event))

    def close(self) -> list[bytes]:
        """Return the lines kept so far, in order, and forget them."""
        lines = [
            canonical_bytes({**line, "step": step})
            for subject in sorted(self._lines)
            for step, line in enumerate(self._lines[subject], start=1)
        ]
        self._lines.clear()
        return lines

    def _keep(self, subject: str, line: dict[str, Any]) -> None:
        self._lines[subject].append({"subject": subject, **line})


def _call_line(envelope: LLMEnvelope, answer: GatewayReply) -> dict[str, Any]:
    called = {} if isinstance(answer, NoDecision) else answer.result.parsed_output
    return {
        "kind": "call",
        "id": envelope.envelope_id,
        "trace_id": envelope.trace_id,
        "causation_id": envelope.causation_id,
        "as_of": _moment(envelope.as_of),
        "workflow": envelope.workflow,
        "agent_id": envelope.agent_id,
        "request_hash": envelope.request_hash,
        "verdict": verdict_of(answer),
        "attempts": 0 if isinstance(answer, NoDecision) else answer.result.attempt_number,
        "answer": Fragment(exact_bytes(called)),
    }


def _event_line(event: Event) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "id": event.id,
        "trace_id": event.trace_id,
        "causation_id": event.causation_id,
        "as_of": _moment(event.as_of),
        "body": event.body,
    }


def _moment(value: datetime | None) -> str | None:
    return None if value is None else utc_text(value)
