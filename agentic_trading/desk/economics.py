"""The gate of questions: beyond a limit on their cost, they are not asked."""

from datetime import date, datetime, tzinfo
from decimal import Decimal
from typing import Final

from agentic_trading.client.gateway import AskingGateway, GatewayReply
from agentic_trading.client.outcome import StructuredOutcome, outcome_without_answer
from agentic_trading.desk.inference import InferenceRate
from agentic_trading.desk.instrument import EXACT, ZERO
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.structured.pydantic_schema import SemanticCheck
from agentic_trading.trading_limits import Economics

_PERCENT: Final = Decimal(100)


class CostOfQuestions:
    """The cost of a session's questions, compared with its account at each close.

    A cost is that of the first call, also in a replay. So a replay and a resumed run decide the same.

    Args:
        limits: The limits.
        rate: The price of a dollar in the quote currency.
        zone: The time zone of days.
        cash: The equity at the start.

    Attributes:
        problem: The limit that is exceeded, in words. Empty if questions may be asked.

    """

    def __init__(self, limits: Economics, rate: InferenceRate, zone: tzinfo, cash: Decimal) -> None:
        self._limits = limits
        self._rate = rate
        self._zone = zone
        self._cash = cash
        self._day = date.min
        self._base = self._last = cash
        self._nusd = self._nusd_before = 0
        self.problem = ""

    def add(self, cost_nusd: int) -> None:
        """Add the cost of an attempt, in nano-dollars."""
        self._nusd += cost_nusd

    def begin(self, at: datetime) -> None:
        """Start a close, before its questions. The first close of a day starts the cost of the day."""
        day = at.astimezone(self._zone).date()
        if day != self._day:
            self._day, self._base, self._nusd_before = day, self._last, self._nusd
        self.problem = self._problem()

    def end(self, equity: Decimal) -> None:
        """End a close: keep its equity for the next one."""
        self._last = equity

    def _problem(self) -> str:
        limits, cost = self._limits, self._rate.cost(self._nusd)
        today = self._rate.cost(self._nusd - self._nusd_before)
        percent = limits.max_pct_of_equity_per_day
        if percent is not None:
            most = EXACT.divide(EXACT.multiply(max(self._base, ZERO), percent), _PERCENT)
            if today >= most:
                return f"questions of the day cost {today:f}, and the limit is {percent} % of an equity of {self._base:f}"
        if limits.max_share_of_pnl is not None:
            pnl = EXACT.subtract(self._last, self._cash)
            most = max(limits.free, EXACT.multiply(limits.max_share_of_pnl, pnl))
            if cost >= most:
                return (
                    f"questions cost {cost:f}, and the limit is {limits.max_share_of_pnl} of a P&L of {pnl:f} "
                    f"before it, at least {limits.free:f}"
                )
        return ""


class EconomicGateway:
    """A gateway that asks no question beyond a limit on the cost.

    Such a question gets a `NoDecision` with `budget_exhausted`, and is no attempt. How to fill an order is
    always asked, because an exit may be waiting.
    """

    def __init__(self, gateway: AskingGateway, cost: CostOfQuestions) -> None:
        self._gateway = gateway
        self._cost = cost

    async def ask(
        self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None
    ) -> GatewayReply:
        """Run a call, or refuse it."""
        if (refused := self._refused(envelope)) is not None:
            return refused
        made: list[LLMInteraction] = []
        answer = await self._gateway.ask(envelope, earlier=made)
        for each in (*made, answer):
            self._cost.add(0 if isinstance(each, NoDecision) else each.result.original_cost_nusd)
        if earlier is not None:
            earlier += made
        return answer

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Run a typed call, or refuse it."""
        if (refused := self._refused(envelope)) is not None:
            return outcome_without_answer(refused, [])
        outcome = await self._gateway.ask_structured(envelope, check=check)
        for each in outcome.attempts:
            self._cost.add(each.original_cost_nusd)
        return outcome

    async def record(self, event: Event) -> None:
        """Record an event."""
        await self._gateway.record(event)

    def _refused(self, envelope: LLMEnvelope) -> NoDecision | None:
        if not self._cost.problem or envelope.workflow is EnvelopeWorkflow.EXECUTION:
            return None
        return NoDecision(
            reason=FailureReason(category=FailureKind.BUDGET_EXHAUSTED, description=self._cost.problem),
            envelope_id=envelope.envelope_id,
            trace_id=envelope.trace_id,
            as_of=envelope.as_of,
        )
