"""What is put on record of an intent on its way to its fills, each event with its cause."""

from datetime import datetime
from typing import Any, assert_never

from pydantic import BaseModel

from agentic_trading.client.gateway import Gateway
from agentic_trading.clock import Clock
from agentic_trading.desk.exchange import Cancellation, Fill, Order, ExecutionReport
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.execution.risk import Rejection
from agentic_trading.desk.execution.strategy import FillStrategy, strategy_id
from agentic_trading.ids import derived_id
from agentic_trading.llm.event import Event
from agentic_trading.llm.failure import NoDecision


class TradeJournal:
    """Record events through the gateway: intent ← fill strategy ← order ← fill or cancellation.

    Ids are those of the things themselves or derived from them, so that the same fact told twice is one event.
    Each body is the thing in plain JSON, with its symbol.
    """

    def __init__(self, client: Gateway, clock: Clock, *, tenant_id: str = "default") -> None:
        self._client = client
        self._clock = clock
        self._tenant_id = tenant_id

    async def intent(self, intent: OrderIntent) -> None:
        """Record `order.intent`, under the intent's id, caused by what proposed it."""
        await self._record("order.intent", intent.intent_id, intent.causation_id, intent, intent)

    async def strategy(
        self, intent: OrderIntent, strategy: FillStrategy, *, request_hash: str, cause: str
    ) -> None:
        """Record `fill.strategy`, caused by the interaction that gave it."""
        event_id = strategy_id(intent.intent_id)
        await self._record("fill.strategy", event_id, cause, intent, strategy, request_hash=request_hash)

    async def no_decision(
        self, intent: OrderIntent, decision: NoDecision, *, request_hash: str, cause: str
    ) -> None:
        """Record `no_decision`: no order will come of the intent."""
        event_id = derived_id("no_decision", intent.intent_id)
        await self._record("no_decision", event_id, cause, intent, decision, request_hash=request_hash)

    async def rejection(self, intent: OrderIntent, rejection: Rejection) -> None:
        """Record `order.rejected`: a limit stopped the orders of a strategy, and none was sent."""
        event_id = derived_id("order.rejected", intent.intent_id)
        await self._record("order.rejected", event_id, strategy_id(intent.intent_id), intent, rejection)

    async def order(self, intent: OrderIntent, order: Order) -> None:
        """Record `order.submitted`, under the order's id, caused by the fill strategy."""
        await self._record("order.submitted", order.order_id, order.causation_id, intent, order)

    async def report(self, report: ExecutionReport) -> None:
        """Record `fill` under the fill's id, or `order.cancelled`; caused by the order, dated by the bar's close."""
        match report:
            case Fill():
                kind, event_id = "fill", report.fill_id
            case Cancellation():
                kind, event_id = "order.cancelled", derived_id("order.cancelled", report.order_id)
            case _:
                assert_never(report)
        await self._publish(kind, event_id, report.trace_id, report.order_id, report.time, _body(report))

    async def _record(
        self, kind: str, event_id: str, cause: str, intent: OrderIntent, thing: BaseModel, **more: str
    ) -> None:
        body = {"symbol": intent.symbol, **more, **_body(thing)}
        await self._publish(kind, event_id, intent.trace_id, cause, intent.as_of, body)

    async def _publish(
        self, kind: str, event_id: str, trace_id: str, cause: str, as_of: datetime, body: dict[str, Any]
    ) -> None:
        event = Event(
            kind=kind,
            id=event_id,
            trace_id=trace_id,
            causation_id=cause,
            tenant_id=self._tenant_id,
            as_of=as_of,
            time=self._clock.now(),
            body=body,
        )
        await self._client.record(event)


def _body(thing: BaseModel) -> dict[str, Any]:
    return thing.model_dump(mode="json")
