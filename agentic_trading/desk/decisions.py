"""The decision log: one line for each trigger, call, intent and fill, to be compared byte for byte."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from agentic_trading.canonical import Fragment, canonical_bytes, exact_bytes, utc_text
from agentic_trading.client.gateway import Gateway, GatewayReply
from agentic_trading.desk.instrument import EXACT, ZERO
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import NoDecision, StoreError
from agentic_trading.llm.event import Event


class DecisionLog:
    """Append lines to a file that `open` starts anew, and know their digest.

    The digest is the SHA-256 over all lines with their newlines. Raises `StoreError` where the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = sha256()

    @property
    def digest(self) -> str:
        """The digest of what has been written, in 64 hexadecimal digits."""
        return self._digest.hexdigest()

    async def open(self) -> None:
        """Start the file anew."""
        await asyncio.to_thread(self._write, b"", mode="wb")

    async def append(self, lines: Sequence[bytes]) -> None:
        """Add lines; they are in the file when this returns."""
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
            raise StoreError(self.path, f"cannot be written ({e.strerror}); free it or the disk") from e


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


STEP_OF_WORKFLOW = {"cmt": "analysis"}


@dataclass(slots=True)
class SessionCounters:
    """Counts of a session; pass it everything that is asked and recorded with `Counted`.

    `decisions` and `no_decisions` count by workflow, then by verdict or reason; `cancelled` counts orders by why the
    rest of them was not filled.
    """

    calls: int = 0
    decisions: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    no_decisions: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    skips: Counter[str] = field(default_factory=Counter)
    intents: int = 0
    intents_rejected: Counter[str] = field(default_factory=Counter)
    orders: int = 0
    cancelled: Counter[str] = field(default_factory=Counter)
    fills: int = 0
    first_fill_id: str = ""
    fees: Decimal = ZERO

    def count(self, event: Event) -> None:
        """Count one event."""
        counting = _COUNTING.get(event.kind)
        if counting is not None:
            counting(self, event, event.body)


def _assessment(tally: SessionCounters, _event: Event, body: dict[str, Any]) -> None:
    tally.decisions["analysis"][body["verdict"]] += 1


def _strategy(tally: SessionCounters, _event: Event, body: dict[str, Any]) -> None:
    tally.decisions["execution"][f"{body['algo']} {body['order_type']}"] += 1


def _no_decision(tally: SessionCounters, _event: Event, body: dict[str, Any]) -> None:
    workflow = STEP_OF_WORKFLOW.get(body.get("step", ""), "execution")
    tally.no_decisions[workflow][body["reason"]["category"]] += 1


def _skip(tally: SessionCounters, _event: Event, body: dict[str, Any]) -> None:
    tally.skips[body["reason"]] += 1


def _intent(tally: SessionCounters, _event: Event, _body: dict[str, Any]) -> None:
    tally.intents += 1


def _rejected(tally: SessionCounters, _event: Event, body: dict[str, Any]) -> None:
    tally.intents_rejected[body["rule"]] += 1


def _order(tally: SessionCounters, _event: Event, _body: dict[str, Any]) -> None:
    tally.orders += 1


def _cancelled(tally: SessionCounters, _event: Event, body: dict[str, Any]) -> None:
    tally.cancelled[body["reason"]] += 1


def _fill(tally: SessionCounters, event: Event, body: dict[str, Any]) -> None:
    tally.fills += 1
    tally.first_fill_id = tally.first_fill_id or event.id
    tally.fees = EXACT.add(tally.fees, Decimal(body["fee"]))


_COUNTING: dict[str, Callable[[SessionCounters, Event, dict[str, Any]], None]] = {
    "assessment": _assessment,
    "fill.strategy": _strategy,
    "no_decision": _no_decision,
    "skip": _skip,
    "intent.skipped": _skip,
    "order.intent": _intent,
    "intent.rejected": _rejected,
    "order.rejected": _rejected,
    "order.submitted": _order,
    "order.cancelled": _cancelled,
    "fill": _fill,
}


class CountingGateway:
    """A gateway that counts what passes."""

    def __init__(self, gateway: Gateway, tally: SessionCounters) -> None:
        self._gateway = gateway
        self._tally = tally

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Ask, and count the call."""
        self._tally.calls += 1
        return await self._gateway.ask(envelope)

    async def record(self, event: Event) -> None:
        """Record, and count the event."""
        self._tally.count(event)
        await self._gateway.record(event)
