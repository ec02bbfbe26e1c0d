"""The desk of an agent: closed bars, the account, questions, and order requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from agentic_trading.client.answer import NO_EVIDENCE, Answer, M
from agentic_trading.client.gateway import Gateway
from agentic_trading.clock import Clock
from agentic_trading.desk.agent_events import AgentNoted
from agentic_trading.desk.agents.errors import DeskError
from agentic_trading.desk.agents.handler_call import HandlerCall
from agentic_trading.desk.agents.history import BARS_KEPT, BarHistory
from agentic_trading.desk.agents.order_requests import Number, OrderRequests, OrderTerms, decimal_of
from agentic_trading.desk.agents.questions import ANSWER_WITHIN, AskedModel, Question, Questions
from agentic_trading.desk.exchange import Account, OpenOrder
from agentic_trading.desk.execution.risk import Approved, EntryProposal, Rejection, RiskFacts, RiskLimits
from agentic_trading.desk.instrument import Side
from agentic_trading.desk.market.frame import Frame
from agentic_trading.desk.planning.agent import TargetWeights
from agentic_trading.desk.time_slices import ReferenceMarketFeed
from agentic_trading.ids import fraction
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.limits import LLMBudget


@dataclass(frozen=True, slots=True)
class DeskSession:
    """The facts of a session that an agent may use.

    Attributes:
        data: The name of the first source of bars.
        companions: The shipped reference market of each symbol.

    """

    session_id: str
    tenant: str
    symbols: tuple[str, ...]
    data: str
    taker_fee_bps: Decimal
    half_spread_bps: Decimal
    limits: RiskLimits
    companions: Mapping[str, ReferenceMarketFeed]

    @property
    def cost_bps(self) -> Decimal:
        """The cost of a market order, in basis points of its price."""
        return self.taker_fee_bps + self.half_spread_bps


class Desk:
    """The desk of one agent in one session.

    It has closed bars only. Questions and order requests are allowed within a handler. Without a `symbol`, a
    method uses the symbol of the handler, or the only symbol of the session.

    An order request is sized and checked against the limits at once, and returned as an `Approved` or as a
    `Rejection` with the rule that it breaks. Orders are sent after all handlers of the close, and are filled
    by the next bar at the earliest.

    Attributes:
        session: The facts of the session.
        gateway: The gateway of the session, for agents that build their envelopes.
        clock: The clock of the session.

    """

    def __init__(
        self,
        session: DeskSession,
        questions: Questions,
        orders: OrderRequests,
        history: BarHistory,
        calls: "CurrentCall",
    ) -> None:
        self.session = session
        self.gateway: Gateway = questions.gateway
        self.clock: Clock = questions.clock
        self._questions = questions
        self._orders = orders
        self._history = history
        self._calls = calls

    @property
    def now(self) -> datetime:
        """The close of the newest bars."""
        return self._calls.current().as_of

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of the session."""
        return self.session.symbols

    def history(self, symbol: str = "", n: int = BARS_KEPT, *, timeframe: str = "") -> Sequence[Any]:
        """Return the last `n` closed bars, oldest first. There are fewer at the start."""
        return self._history.bars(self._symbol(symbol), n, timeframe)

    def frame(self, symbol: str = "", *, timeframe: str = "") -> Frame | None:
        """Return the indicators at the last closed bar, or None before the first bar."""
        return self._history.frame(self._symbol(symbol), timeframe)

    def atr(self, symbol: str = "", *, timeframe: str = "") -> Decimal | None:
        """Return the average true range of 14 bars, or None without enough bars."""
        frame = self.frame(symbol, timeframe=timeframe)
        value = None if frame is None else frame.volatility.atr_14
        return None if value is None else decimal_of(value)

    def price(self, symbol: str = "") -> Decimal:
        """Return the last close. Raises `DeskError` before the first bar."""
        return self._history.last(self._symbol(symbol)).close

    def position(self, symbol: str = "") -> Decimal:
        """Return the position, negative if it is short."""
        return self._orders.account.quantity(self._symbol(symbol))

    @property
    def account(self) -> Account:
        """The cash and the positions, after the fills of this close."""
        return self._orders.account

    @property
    def orders(self) -> Sequence[OpenOrder]:
        """The open orders of all symbols, stops included."""
        return self._orders.orders

    @property
    def equity(self) -> Decimal:
        """The cash and the positions at the last closes."""
        marks = {held.symbol: self.price(held.symbol) for held in self.account.positions}
        return self.account.equity(marks)

    def chance(self, *parts: str | int) -> float:
        """Return a number from 0 to below 1 that a replay repeats. Other `parts` give another number."""
        call = self._calls.current()
        return fraction("chance", call.woken_id, *parts)

    async def decide(
        self,
        instructions: str,
        *,
        output: type[M],
        evidence: Mapping[str, Any] = NO_EVIDENCE,
        symbol: str = "",
        step: str = "",
        workflow: EnvelopeWorkflow = EnvelopeWorkflow.ANALYSIS,
        within: timedelta = ANSWER_WITHIN,
        budget: LLMBudget | None = None,
        because: Answer[Any] | None = None,
    ) -> Answer[M]:
        """Ask the model of the run for an instance of a pydantic class.

        It is the `decide` of the gateway, at this close and in the trace of this handler. A missing answer is
        on record as `agent.undecided`.

        Args:
            instructions: The task.
            output: The pydantic model class of the answer. Its validators check the answer.
            evidence: The content of each piece of evidence, by its source: numbers, texts, bars, JSON data.
                It counts as known at this close. `known(content, at=…)` gives another time.
            symbol: The symbol that the question is about.
            step: The name of the step on record. Default: the handler and the number of the question.
            workflow: The workflow, which has its own limits and model.
            within: How long to wait for the answer.
            budget: Limits of this call.
            because: The earlier answer that led to this question.

        Returns:
            An `Answer`. It is true only if you may act on it.

        Raises:
            DeskError: If another question waits for its answer, or `workflow` is not one of the agent.
            LookAheadError: If a piece of evidence is younger than this close.
            EnvelopeValidationError: If an argument is invalid.

        """
        question = Question(
            instructions,
            output,
            evidence,
            symbol and self._symbol(symbol),
            step,
            workflow,
            within,
            budget,
            because,
        )
        (answer,) = await self._questions.ask(self._calls.current(), [question])
        return answer

    async def decide_all(self, *questions: Question[M]) -> list[Answer[M]]:
        """Ask several questions at once. The answers are in the order of the questions."""
        for each in questions:
            self._symbol(each.symbol) if each.symbol else None
        return await self._questions.ask(self._calls.current(), questions)

    async def note(self, text: str, **facts: Any) -> None:
        """Record a note in the trace of this handler."""
        call = self._calls.current()
        await call.wake()
        event_id = call.next_id("note")
        noted = AgentNoted(agent=call.agent, symbol=call.symbol, text=text, facts=facts)
        await call.record(noted, event_id, call.cause_of(None))

    def buy(self, symbol: str = "", **terms: Any) -> Approved | Rejection:
        """Request a purchase.

        Args:
            symbol: The symbol.
            **terms: One size: `quantity`, `notional` in the quote currency, `weight` as a share of the
                equity, or `risk_pct` as the percentage of the equity that is lost at `stop`. Also `limit`,
                `stop`, `target`, `reason`, and `because` for the answer that led to it.

        """
        return self._orders.enter(self._symbol(symbol), Side.BUY, _terms(terms))

    def sell(self, symbol: str = "", **terms: Any) -> Approved | Rejection:
        """Request a short sale, with the terms of `buy`. `close` sells a position."""
        return self._orders.enter(self._symbol(symbol), Side.SELL, _terms(terms))

    def close(
        self, symbol: str = "", *, reason: str = "", because: Answer[Any] | None = None
    ) -> Approved | Rejection | None:
        """Request an exit from the whole position. Return None without a position."""
        return self._orders.leave(self._symbol(symbol), OrderTerms(reason=reason, because=because))

    def target(
        self,
        symbol: str = "",
        weight: Number = 0,
        *,
        band: Number = 0,
        reason: str = "",
        because: Answer[Any] | None = None,
    ) -> Approved | Rejection | None:
        """Request a position of `weight` of the equity, negative for a short one.

        Return None if the position is within `band` of the equity from it. A position on the other side is
        closed first, so request the same weight again at a later close.
        """
        terms = OrderTerms(reason=reason, because=because)
        return self._orders.aim_at(self._symbol(symbol), decimal_of(weight), decimal_of(band), terms)

    def weights(
        self,
        weights: Mapping[str, Number],
        *,
        stop_loss: float | None = None,
        because: Answer[Any] | None = None,
    ) -> None:
        """Request these weights of all symbols together. Absent symbols have the weight 0.

        A weight is a share of the equity that may be invested: `max_gross_pct` less the costs of a purchase,
        95 % by default. So weights with a sum of 1 leave room for fees, and a weight of 0.8 buys for 76 % of
        the equity. `target` and `buy` take shares of the whole equity.

        Sales come before purchases, and purchases share the cash. Use no other order request at the same
        close. A position that loses the share `stop_loss` of its entry price is sold.
        """
        self._orders.hold(weights, because, stop_loss)

    async def cancel(self, symbol: str = "") -> None:
        """Cancel the unfilled orders of a symbol at once. An error of the handler does not undo this."""
        await self._orders.withdraw(self._symbol(symbol))

    def at(self, moment: datetime, name: str) -> None:
        """Call `on_timer` at the first close at or after `moment`."""
        self._calls.timers[name] = (moment, None)

    def every(self, step: timedelta, name: str) -> None:
        """Call `on_timer` at the first close at or after each multiple of `step` from now.

        Raises:
            DeskError: If `step` is not above 0.

        """
        if step <= timedelta(0):
            raise DeskError(f"step={step}. Allowed: a time above 0")
        self._calls.timers[name] = (self.now + step, step)

    # The rest is for agents that build envelopes and proposals themselves, such as the shipped ones.

    def model_of(self, workflow: EnvelopeWorkflow) -> AskedModel:
        """Return the model of a workflow, with its retry policy."""
        return self._questions.model_of(workflow)

    def facts(self, symbol: str) -> RiskFacts:
        """Return the facts that limits are checked against."""
        return self._orders.facts(symbol)

    async def record(self, body: EventBody, event_id: str, *, trace_id: str, cause: str) -> None:
        """Record an event of another trace."""
        await self._calls.current().journal.publish(body, event_id, trace_id, cause, self.now)

    async def propose(self, symbol: str, proposal: EntryProposal) -> Approved | Rejection:
        """Request an entry of another trace. A denial is recorded at once."""
        return await self._orders.propose(symbol, proposal)

    async def propose_exit(
        self, symbol: str, reason: str, *, lives: timedelta, trace_id: str, cause: str
    ) -> Approved | Rejection:
        """Request an exit of another trace. A denial is recorded at once."""
        return await self._orders.propose_exit(symbol, reason, lives=lives, trace_id=trace_id, cause=cause)

    def hold(self, weights: TargetWeights) -> None:
        """Request the weights of a plan of another trace."""
        self._orders.weights = weights

    def _symbol(self, symbol: str) -> str:
        name = symbol or self._calls.symbol or (self.symbols[0] if len(self.symbols) == 1 else "")
        if name not in self.symbols:
            what = f"there is no symbol {name!r} in this session" if name else "this handler has no symbol"
            raise DeskError(f"{what}. Allowed: {', '.join(self.symbols)}")
        return name


class CurrentCall:
    """The current call of a handler, and the timers of the agent.

    Attributes:
        call: The current call, or None between handlers.
        timers: The next time of each timer, and its step if it repeats.

    """

    def __init__(self) -> None:
        self.call: HandlerCall | None = None
        self.timers: dict[str, tuple[datetime, timedelta | None]] = {}

    @property
    def symbol(self) -> str:
        """The symbol of the current call. Empty without one."""
        return "" if self.call is None else self.call.symbol

    def current(self) -> HandlerCall:
        """Return the current call. Raises `DeskError` between handlers."""
        if self.call is None:
            raise DeskError("the desk was used after its handler ended. Use it within a handler only")
        return self.call


def _terms(terms: Mapping[str, Any]) -> OrderTerms:
    try:
        return OrderTerms(**terms)
    except TypeError:
        allowed = ", ".join(OrderTerms.__slots__)
        unknown = ", ".join(sorted(terms.keys() - set(OrderTerms.__slots__)))
        raise DeskError(f"unknown terms: {unknown}. Allowed: {allowed}") from None
