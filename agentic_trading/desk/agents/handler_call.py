"""One call of a handler: its ids, its answers, and the cause of its requests."""

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from agentic_trading.canonical import utc_text
from agentic_trading.client.answer import Answer
from agentic_trading.desk.agent_events import AgentWoken, HandlerName
from agentic_trading.desk.agents.errors import DeskError
from agentic_trading.desk.analysis.events import TriggerBar
from agentic_trading.desk.execution.order_router import TradeJournal
from agentic_trading.desk.market.bar import ClosedBar
from agentic_trading.ids import derived_id
from agentic_trading.llm.event import EventBody


@dataclass
class HandlerCall:
    """One call of a handler.

    Its ids are derived from the session, the agent, the symbol, the close and the handler, so that a replay
    has the same ids. Later ids are numbered within the call.

    Attributes:
        session_id: The id of the session.
        agent: The name of the agent.
        journal: Records the events of this call.
        handler: The handler.
        as_of: The close.
        symbol: The symbol, or an empty text for all symbols.
        timer: The name of the timer, or an empty text.
        place: The number of the report among those of the close.
        bar: The bar of `on_bar`.
        report_id: The event of the fill or the cancellation.
        report_trace: Its trace.
        is_woken: Whether `agent.woken` is on record.
        is_asking: Whether a question waits for its answer.
        answers: The answers so far, with the id of their interaction.

    """

    session_id: str
    agent: str
    journal: TradeJournal
    handler: HandlerName
    as_of: datetime
    symbol: str = ""
    timer: str = ""
    place: int = 0
    bar: ClosedBar | None = None
    report_id: str = ""
    report_trace: str = ""
    is_woken: bool = False
    is_asking: bool = False
    answers: list[tuple[Answer[Any], str]] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    # Computed on first use, because most calls of a handler do nothing that needs an id.
    @cached_property
    def trace_id(self) -> str:
        """The trace of this call. A fill continues the trace of its order."""
        moment = utc_text(self.as_of)
        own = (self.session_id, "agent", self.agent, self.symbol, moment, self.handler, self.timer)
        return self.report_trace or derived_id(*own)

    @cached_property
    def woken_id(self) -> str:
        """The id of `agent.woken`."""
        return derived_id(self.trace_id, "woken", self.handler, utc_text(self.as_of), self.place)

    def next_id(self, part: str) -> str:
        """Return the next id of `part`."""
        number = self._numbers[part] = self._numbers.get(part, 0) + 1
        return derived_id(self.woken_id, part, number)

    def number_of(self, part: str) -> int:
        """Return the number of ids of `part` so far."""
        return self._numbers.get(part, 0)

    def cause_of(self, because: Answer[Any] | None) -> str:
        """Return the event or the interaction that led to a request.

        Without `because`, it is the last accepted answer of this call, or `agent.woken`.

        Raises:
            DeskError: If `because` failed, or is no answer of this call.

        """
        if because is None:
            return next((cause for answer, cause in reversed(self.answers) if answer), self.woken_id)
        if not because:
            raise DeskError("because= is an answer without an output. Check `if not answer: return` first")
        for answer, cause in self.answers:
            if answer is because:
                return cause
        raise DeskError("because= is not an answer of this call. Use an answer that `decide` returned in it")

    async def wake(self) -> None:
        """Record `agent.woken` once."""
        if self.is_woken:
            return
        self.is_woken = True
        closed = self.bar
        bar = None
        if closed is not None:
            bar = TriggerBar(
                **dict(closed.bar),
                close_time=closed.bar.close_time,
                parts=closed.parts,
                expected=closed.expected,
            )
        body = AgentWoken(
            agent=self.agent, handler=self.handler, symbol=self.symbol, timer=self.timer, bar=bar
        )
        await self.record(body, self.woken_id, self.report_id)

    async def record(self, body: EventBody, event_id: str, cause: str) -> None:
        """Record an event in the trace of this call."""
        await self.journal.publish(body, event_id, self.trace_id, cause, self.as_of)
