"""Read a run from its record: its result, its equity at each close, its decisions and calls."""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from hashlib import file_digest
from pathlib import Path
from typing import assert_never

from agentic_trading.desk.analysis.assessment import Assessment
from agentic_trading.desk.analysis.events import Undecided
from agentic_trading.desk.decisions import KINDS
from agentic_trading.desk.exchange import Cancellation, Fill, OpenOrder, Order
from agentic_trading.desk.execution.events import IntentUndecided, OrderDenied, StrategyChosen
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.instrument import EXACT, ZERO
from agentic_trading.desk.market.bar import EPOCH, LATEST
from agentic_trading.desk.planning.events import PlanChosen, PlanUndecided
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.replay import recorded_feed
from agentic_trading.desk.session.report import RunReport
from agentic_trading.desk.session.report_builder import attempt_outcome, is_portfolio, report_of
from agentic_trading.desk.session.round_trips import FillOnRecord
from agentic_trading.desk.session.run_setup import recorded_entries, tables_with
from agentic_trading.desk.session.session_run import SessionResult
from agentic_trading.desk.time_slices import TimeSlice, merge_feeds
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import LogEntry
from agentic_trading.operate.log_check import LogCheck, check_file
from agentic_trading.operate.session_folder import RunManifest, SessionFolder
from agentic_trading.platform.tables import load_tables

NO_DECISION = "no_decision"


@dataclass(frozen=True, slots=True)
class DecisionOnRecord:
    """A decision of an agent. Its verdict is `no_decision` if a call gave none, with the reason."""

    as_of: datetime | None
    workflow: str
    symbol: str
    verdict: str
    reason: str
    trace_id: str
    event_id: str


@dataclass(frozen=True, slots=True)
class AttemptOnRecord:
    """An attempt without its texts. `fixes` is the number of changes while its answer was read."""

    as_of: datetime | None
    trace_id: str
    envelope_id: str
    interaction_id: str
    workflow: str
    agent_id: str
    subject: str
    provider: str
    model: str
    attempt: int
    outcome: str
    sent: bool
    served_from: str
    input_tokens: int
    output_tokens: int
    latency_ms: float
    fixes: int
    in_doubt: bool
    cost_nusd: int
    first_cost_nusd: int
    price_book: str


@dataclass(frozen=True, slots=True)
class ClosePoint:
    """The equity of a run and of its baselines at one close, and the closes of the symbols with a bar."""

    at: datetime
    equity: Decimal
    held: Decimal
    market_now: Decimal
    closes: Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class RunOnRecord:
    """A run as its record shows it.

    Attributes:
        report: The same report as at the end of the run. Its time is 0, because no record has it.
        result: The result of the session.
        log: The check of the log.
        points: The equity at each close, in order.
        fills: The fills, in order.
        decisions: The decisions, in the order of the log.
        attempts: The attempts, in the order of the log.
        bars_sha256: The hash of the file of bars of each symbol.
        currency: The quote currency.
        is_portfolio: Whether a planner traded the symbols as one portfolio.

    """

    folder: SessionFolder
    manifest: RunManifest
    report: RunReport
    result: SessionResult
    log: LogCheck
    points: Sequence[ClosePoint]
    fills: Sequence[FillOnRecord]
    decisions: Sequence[DecisionOnRecord]
    attempts: Sequence[AttemptOnRecord]
    bars_sha256: Mapping[str, str]
    currency: str
    is_portfolio: bool


async def read_run(session: Path, *, run: int | None = None) -> RunOnRecord:
    """Read a run of a session's folder, by default the newest. Reads files only.

    If the run has not ended, was killed, or its log is broken, it is read up to the last time slice whose
    records are complete.

    Raises:
        OptionError: If the folder has no such run.
        StoreError: If a file of bars or the log cannot be read.
        UnreadableBodyError: If this release cannot read an event.

    """
    folder = SessionFolder(session)
    manifest = await asyncio.to_thread(folder.read_manifest, run)
    # The log is read before the bars, because a run writes its bars before each record that uses them.
    check = await check_file(folder.log)
    lines, until = _RunLines(folder, manifest, check.lines), LATEST
    if manifest.digest is None or check.of_run((manifest.session_id, manifest.run_number)):
        lines, until = await _complete_slices(lines)
    events = _Events()
    async with aclosing(lines.scan()) as entries:
        async for entry in entries:
            events.add(entry)
    venue = trading.venue([source.symbol for source in manifest.data], manifest.data[0].name)
    rebuilt = _Rebuilt(events, venue, is_planned=is_portfolio(manifest))
    await rebuilt.play(folder, manifest, until)
    tables = await asyncio.to_thread(load_tables)
    tables = tables_with(tables, manifest.capabilities)
    report = await report_of(manifest, folder, rebuilt.result, lines, tables, elapsed_s=0.0)
    return RunOnRecord(
        folder=folder,
        manifest=manifest,
        report=report,
        result=rebuilt.result,
        log=check,
        points=rebuilt.points,
        fills=events.fills,
        decisions=events.decisions,
        attempts=events.attempts,
        bars_sha256=await asyncio.to_thread(_bars_sha256, folder, manifest),
        currency=rebuilt.account.snapshot().currency,
        is_portfolio=is_portfolio(manifest),
    )


def _bars_sha256(folder: SessionFolder, manifest: RunManifest) -> dict[str, str]:
    found = {}
    for source in manifest.data:
        with folder.bars(manifest.run_number, source.symbol).open("rb") as file:
            found[source.symbol] = file_digest(file, "sha256").hexdigest()
    return found


@dataclass(frozen=True, slots=True)
class _RunLines:
    """The lines of one run up to a fixed line."""

    # The line is fixed because the log may grow between two reads, which must have the same lines.

    folder: SessionFolder
    manifest: RunManifest
    last: int

    def scan(self, after: int = 0) -> AsyncGenerator[LogEntry]:  # noqa: ARG002 - the run has its own start
        return recorded_entries(self.folder, self.manifest, intact_lines=self.last)


async def _complete_slices(lines: _RunLines) -> tuple[_RunLines, datetime]:
    """Return the lines of complete time slices, and the time of the first other slice.

    The last time slice of a run without an end may lack records, for example of a fill.
    """
    first, until = lines.last + 1, EPOCH
    async with aclosing(lines.scan()) as entries:
        async for entry in entries:
            record = entry.record
            as_of = record.envelope.as_of if isinstance(record, LLMInteraction) else record.as_of
            if as_of is not None and as_of > until:
                first, until = entry.seq, as_of
    return replace(lines, last=first - 1), until


@dataclass(slots=True)
class _Events:
    """The events and attempts of a run, sorted by their use."""

    result: SessionResult = field(default_factory=SessionResult)
    approved: dict[str, OrderIntent] = field(default_factory=dict)
    placed: dict[str, OrderIntent] = field(default_factory=dict)
    orders: dict[str, Order] = field(default_factory=dict)
    ended: defaultdict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    fills: list[FillOnRecord] = field(default_factory=list)
    decisions: list[DecisionOnRecord] = field(default_factory=list)
    attempts: list[AttemptOnRecord] = field(default_factory=list)

    def add(self, entry: LogEntry) -> None:
        """Add the next record of the run."""
        if isinstance(entry.record, LLMInteraction):
            self.attempts.append(_attempt(entry.record))
            return
        event = entry.record
        self.result.counters.count(event)
        body = KINDS.of(event)
        match body:
            case OrderIntent():
                self.approved[body.intent_id] = body
            case Order() | Cancellation() | OrderDenied() | Fill():
                self._add_trade(event, body)
            case Assessment() | Undecided() | StrategyChosen() | IntentUndecided():
                self.decisions.append(_decision(event, body, body.symbol))
            case PlanChosen() | PlanUndecided():
                self.decisions.append(_decision(event, body, ""))
            case _:  # left out, because these events neither decide nor trade
                pass

    def _add_trade(self, event: Event, body: Order | Cancellation | OrderDenied | Fill) -> None:
        match body:
            case Order():
                self.orders[body.order_id] = body
                if (intent := self.approved.get(body.intent_id)) is not None:
                    self.placed.setdefault(body.intent_id, intent)
            case Cancellation():
                self.ended[body.order_id] = EXACT.add(self.ended[body.order_id], body.quantity)
            case OrderDenied():
                refused = self.orders.pop(body.order_id, None)
                # An intent whose first order was refused was not placed. Later orders are then not sent.
                if refused is not None and not any(
                    other.intent_id == refused.intent_id for other in self.orders.values()
                ):
                    self.placed.pop(refused.intent_id, None)
            case Fill():
                self.fills.append(FillOnRecord(event.id, body))
                # Stops and targets trade the filled quantity, so that they leave the open rest unchanged.
                if body.cause in {"order", "deadline"}:
                    self.ended[body.order_id] = EXACT.add(self.ended[body.order_id], body.quantity)
            case _:
                assert_never(body)

    def open_orders(self) -> tuple[OpenOrder, ...]:
        """Return the orders with an unfilled rest."""
        left = {key: EXACT.subtract(order.quantity, self.ended[key]) for key, order in self.orders.items()}
        return tuple(OpenOrder(self.orders[key], rest, ZERO) for key, rest in left.items() if rest > 0)


class _Rebuilt:
    """The result of a run, rebuilt from its bars and its events in the steps of the session."""

    def __init__(self, events: _Events, venue: trading.PaperVenue, *, is_planned: bool) -> None:
        self.result = events.result
        self.points: list[ClosePoint] = []
        self.account = trading.paper_account(venue)
        self._events = events
        self._fills = deque(each.fill for each in events.fills)
        self._intents = deque(events.placed.values())
        self._venue = venue
        self._is_planned = is_planned

    async def play(self, folder: SessionFolder, manifest: RunManifest, until: datetime) -> None:
        """Rebuild the result from the saved bars that close before `until`."""
        result, symbols = self.result, [source.symbol for source in manifest.data]
        result.instruments = self._venue.instruments
        result.baselines = trading.baselines(self._venue.instruments, manifest.data[0].name)
        result.companions = await asyncio.to_thread(trading.companions, symbols)
        feeds = [await recorded_feed(folder, manifest, source) for source in manifest.data]
        async with aclosing(merge_feeds(feeds)) as slices:
            async for each in slices:
                if each.at >= until:
                    break
                await self._close(each, Decimal(len(symbols)))
        result.account, result.open_orders = self.account.snapshot(), self._events.open_orders()

    async def _close(self, time_slice: TimeSlice, symbols: Decimal) -> None:
        result = self.result
        self._see(time_slice)
        self._trade_until(time_slice.at)
        equity = self.account.snapshot().equity(result.marks)
        result.curve.add(time_slice.at, time_slice.bars, equity, result.fills)
        if result.baselines is None or not time_slice.bars:
            return
        await result.baselines.on_bars(time_slice.bars, result.intents)
        held, market_now = await result.baselines.equities(trading.STARTING_CASH, symbols)
        # A portfolio is its own baseline of market orders, because it sends only these.
        market_now = equity if self._is_planned else market_now
        closes = {bar.symbol: bar.close for bar in time_slice.bars}
        self.points.append(ClosePoint(time_slice.at, equity, held, market_now, closes))

    def _see(self, time_slice: TimeSlice) -> None:
        result = self.result
        for bar in time_slice.bars:
            result.bars[bar.symbol].add(bar)
            result.instruments.see(bar.symbol, (bar.open, bar.high, bar.low, bar.close), bar.volume)
            if (companion := result.companions.get(bar.symbol)) is not None:
                companion.push(bar)
        for note in time_slice.notes:
            result.bars[note.symbol].note(note)

    def _trade_until(self, at: datetime) -> None:
        """Add the fills and the intents up to a time."""
        result = self.result
        while self._fills and self._fills[0].time <= at:
            result.fills.append(self._fills.popleft())
            self.account.apply(result.fills[-1])
        while self._intents and self._intents[0].as_of <= at:
            result.intents.append(self._intents.popleft())


DecidingBody = Assessment | Undecided | StrategyChosen | IntentUndecided | PlanChosen | PlanUndecided


def _decision(event: Event, body: DecidingBody, symbol: str) -> DecisionOnRecord:
    reason = ""
    match body:
        case Assessment():
            workflow, verdict, reason = "analysis", str(body.verdict), str(body.stand_aside or "")
        case Undecided():
            workflow, verdict, reason = "analysis", NO_DECISION, str(body.reason.category)
        case StrategyChosen():
            workflow, verdict = "execution", f"{body.algo} {body.order_type}"
        case IntentUndecided():
            workflow, verdict, reason = "execution", NO_DECISION, str(body.reason.category)
        case PlanChosen():
            workflow, verdict = "planning", str(body.params.get("strategy_type", ""))
        case PlanUndecided():
            workflow, verdict, reason = "planning", NO_DECISION, str(body.reason.category)
        case _:
            assert_never(body)
    return DecisionOnRecord(event.as_of, workflow, symbol, verdict, reason, event.trace_id, event.id)


def _attempt(record: LLMInteraction) -> AttemptOnRecord:
    envelope, result, reading = record.envelope, record.result, record.result.reading
    fixes = 0 if reading is None else len((*reading.fixes, *reading.coercions, *reading.patches))
    return AttemptOnRecord(
        as_of=envelope.as_of,
        trace_id=envelope.trace_id,
        envelope_id=envelope.envelope_id,
        interaction_id=record.interaction_id,
        workflow=str(envelope.workflow),
        agent_id=envelope.agent_id,
        subject=envelope.subject,
        provider=str(result.provider),
        model=result.model_requested,
        attempt=result.attempt_number,
        outcome=attempt_outcome(result),
        sent=result.dispatched_at is not None,
        served_from=str(result.served_from),
        input_tokens=result.usage.total_input_tokens,
        output_tokens=result.output_tokens,
        latency_ms=result.latency_ms,
        fixes=fixes,
        in_doubt=result.in_doubt,
        cost_nusd=result.cost_nusd,
        first_cost_nusd=result.original_cost_nusd,
        price_book=result.price_book.partition("@")[0],
    )


def cost_by(attempts: Sequence[AttemptOnRecord], key: str) -> Counter[str]:
    """Return the cost of attempts in nano-dollars, by a field such as `workflow` or `trace_id`.

    An answer from a recording counts with the cost of its first call.
    """
    costs: Counter[str] = Counter()
    for each in attempts:
        costs[getattr(each, key)] += each.first_cost_nusd
    return costs
