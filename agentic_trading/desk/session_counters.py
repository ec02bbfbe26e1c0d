"""What a session came to, counted from what passes on its way to the record."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from agentic_trading.client.gateway import GatewayReply, Gateway
from agentic_trading.desk.instrument import EXACT, ZERO
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event

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
