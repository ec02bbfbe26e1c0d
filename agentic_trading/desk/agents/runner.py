"""The runner of an agent: calls its handlers at each close, and returns its intents."""

import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from agentic_trading.desk.agent_events import AgentFailed, HandlerName
from agentic_trading.desk.agents.agent import HANDLERS, Agent
from agentic_trading.desk.agents.desk import CurrentCall, Desk, DeskSession
from agentic_trading.desk.agents.errors import AgentFailedError, DeskError
from agentic_trading.desk.agents.handler_call import HandlerCall
from agentic_trading.desk.agents.history import BarHistory
from agentic_trading.desk.agents.order_requests import OrderRequests
from agentic_trading.desk.agents.questions import Questions
from agentic_trading.desk.exchange import ExecutionReport, Fill
from agentic_trading.desk.execution.entry_halt import EntryHalt
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.execution.silent_feeds import SilentFeeds
from agentic_trading.desk.market.bar import Bar, ClosedBar
from agentic_trading.desk.portfolio_intents import BARS_SHOWN, IntentSettings, PortfolioIntents
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.errors import TradingError
from agentic_trading.ids import derived_id
from agentic_trading.llm.errors import EnvelopeValidationError
from agentic_trading.logger import get_logger

ERRORS_IN_A_ROW: Final = 3
"""The number of errors of one handler in a row after which the agent may open no positions."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """Settings of a runner.

    Attributes:
        halt: Halts entries after a loss limit or errors of the agent.
        silent_feeds: Halts the entries of symbols without bars.
        ends_on_error: Whether an error of a handler ends the session, as in a backtest.

    """

    intents: IntentSettings
    questions: Questions
    session: DeskSession
    halt: EntryHalt
    silent_feeds: SilentFeeds
    ends_on_error: bool


class AgentRunner:
    """A source of intents that calls the handlers of an agent.

    An error of a handler is recorded as `agent.failed`. It ends a backtest. Otherwise the order requests of
    that call are dropped. After three errors in a row of one handler, for one symbol or timer, the agent may
    only close positions until an operator resumes. Errors of the session, such as a log that cannot be written, end every session.
    """

    def __init__(self, agent: Agent, settings: RunnerSettings) -> None:
        self._agent = agent
        self._settings = settings
        self._calls = CurrentCall()
        self._history = BarHistory(agent.timeframe, agent.timeframes)
        self._orders = OrderRequests(settings.intents, self._calls.current, self._lives)
        self._desk = Desk(settings.session, settings.questions, self._orders, self._history, self._calls)
        self._portfolio = PortfolioIntents(settings.intents, cost_bps=settings.session.cost_bps)
        # Handlers that the class leaves out are not called, because most agents have one or two.
        own = [name for name in HANDLERS if getattr(type(agent), name) is not getattr(Agent, name)]
        self._handlers = frozenset[HandlerName](own)
        self._reports: list[ExecutionReport] = []
        self._closed: list[ClosedBar] = []
        self._errors = Counter[tuple[str, str, str]]()
        self._has_started = False

    def push(self, bar: Bar) -> None:
        """Add the next closed bar of a symbol."""
        self._closed += self._history.push(bar)
        self._portfolio.push(bar)

    def report(self, reports: Sequence[ExecutionReport]) -> None:
        """Add fills and cancellations of the exchange, in its order."""
        if "on_fill" in self._handlers:
            self._reports += reports

    def bars(self, symbol: str) -> Sequence[Bar]:
        """Return the last closed bars of a symbol, oldest first."""
        return self._portfolio.bars(symbol)[-BARS_SHOWN:]

    async def intents(self, time_slice: TimeSlice) -> list[OrderIntent]:
        """Call the handlers of a close one after the other. Return the approved intents.

        Raises:
            AgentFailedError: If a handler raised an error and the session ends on errors.

        """
        if not time_slice.bars:
            return []
        cancelled = await self._settings.silent_feeds.check(time_slice.bars)
        checked = await self._settings.halt.check(time_slice.at)
        self.report([*cancelled, *checked.cancelled])
        if checked.is_resumed:
            self._errors.clear()
        await self._orders.begin()
        await self._call_handlers(time_slice.at)
        approved = self._orders.take_approved()
        weights, self._orders.weights = self._orders.weights, None
        if weights is None:
            return approved
        return [*approved, *await self._portfolio.intents(time_slice, weights)]

    async def _call_handlers(self, at: datetime) -> None:
        agent, desk = self._agent, self._desk
        if not self._has_started:
            self._has_started = True
            await self._call(self._new_call("on_start", at), partial(agent.on_start, desk))
        reports, self._reports = self._reports, []
        for place, report in enumerate(reports):
            call = self._new_call("on_fill", at, report.symbol)
            call.place, call.report_trace, call.report_id = place, report.trace_id, _report_id(report)
            await self._call(call, partial(agent.on_fill, desk, report))
        for name in self._due_timers(at):
            call = self._new_call("on_timer", at)
            call.timer = name
            await self._call(call, partial(agent.on_timer, desk, name))
        closed, self._closed = self._closed, []
        for place, each in enumerate(sorted(closed, key=_by_symbol)):
            call = self._new_call("on_bar", at, each.bar.symbol)
            call.place, call.bar = place, each
            await self._call(call, partial(agent.on_bar, desk, each.bar))
        await self._call(self._new_call("on_close", at), partial(agent.on_close, desk))

    def _due_timers(self, at: datetime) -> list[str]:
        """Return the timers to call now, by name. A repeated timer moves to its next time after `at`."""
        timers = self._calls.timers
        due = sorted(name for name, (moment, _) in timers.items() if moment <= at)
        for name in due:
            moment, step = timers.pop(name)
            if step is not None:
                timers[name] = (moment + ((at - moment) // step + 1) * step, step)
        return due

    def _new_call(self, handler: HandlerName, at: datetime, symbol: str = "") -> HandlerCall:
        session, journal = self._settings.session, self._settings.intents.journal
        return HandlerCall(session.session_id, self._agent.name, journal, handler, at, symbol)

    async def _call(self, call: HandlerCall, run: Callable[[], Awaitable[None]]) -> None:
        if call.handler not in self._handlers:
            return
        before, key = self._orders.mark(), (call.handler, call.symbol, call.timer)
        self._calls.call = call
        try:
            await run()
            if call.number_of("request"):
                await call.wake()
                await self._orders.record_denied(call)
            self._errors.pop(key, None)
        except Exception as e:  # a handler is the user's code, and may raise anything
            if not is_of_agent(e):
                raise
            self._orders.drop_after(before)
            self._errors[key] += 1
            await self._fail(call, e, self._errors[key])
        finally:
            self._calls.call = None

    async def _fail(self, call: HandlerCall, error: Exception, in_a_row: int) -> None:
        """Record an error of a handler. End a session that ends on errors."""
        place = error_place(error, type(self._agent))
        halt = self._settings.halt
        if in_a_row >= ERRORS_IN_A_ROW:
            await halt.after_errors(call.as_of)
        await call.wake()
        failed = AgentFailed(
            agent=call.agent,
            handler=call.handler,
            symbol=call.symbol,
            error=type(error).__name__,
            place=place,
            in_a_row=in_a_row,
            halts_entries=halt.is_after_errors,
        )
        await call.record(failed, call.next_id("failed"), call.woken_id)
        if self._settings.ends_on_error:
            raise AgentFailedError(call.agent, call.handler, place, error) from error
        # The text of the error is not on record, because it may differ in a replay, and may hold a secret.
        log.error(
            "agent_failed",
            agent=call.agent,
            handler=call.handler,
            place=place,
            error=f"{type(error).__name__}: {error}",
            entries_halted=halt.is_active,
        )

    def _lives(self, symbol: str) -> timedelta:
        return self._agent.order_lives(self._history.last(symbol).timeframe)


def is_of_agent(error: BaseException) -> bool:
    """Return whether an error is the agent's, not one of the session such as a full disk."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_of_agent, error.exceptions))
    return not isinstance(error, TradingError) or isinstance(error, DeskError | EnvelopeValidationError)


def error_place(error: BaseException, agent: type[Agent]) -> str:
    """Return the file and the line of an error: the innermost line of the agent's own file, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(sys.modules.get(agent.__module__), "__file__", "")
    frame = ([each for each in frames if each.filename == file] or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _by_symbol(closed: ClosedBar) -> tuple[str, datetime]:
    return closed.bar.symbol, closed.bar.close_time


def _report_id(report: ExecutionReport) -> str:
    if isinstance(report, Fill):
        return report.fill_id
    return derived_id("order.cancelled", report.order_id)
