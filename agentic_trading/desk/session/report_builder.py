"""Build the report of a run from its counters, its log and its account."""

from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol, TypedDict

from agentic_trading.desk.decisions import SessionCounters
from agentic_trading.desk.exchange import Fill
from agentic_trading.desk.execution.risk_events import RiskResumed, RiskTripped
from agentic_trading.desk.execution.shortfall import shortfalls, total_shortfall
from agentic_trading.desk.inference import InferenceRate, rate_for
from agentic_trading.desk.instrument import EXACT, USDT, ZERO
from agentic_trading.desk.market.samples import PANELS, SAMPLES
from agentic_trading.desk.metrics import Performance, performance
from agentic_trading.desk.session import report, trading
from agentic_trading.desk.session.agents import shipped_agent
from agentic_trading.desk.session.families import own_family
from agentic_trading.desk.session.feeds import without_symbol
from agentic_trading.desk.session.round_trips import FillOnRecord, trips_of
from agentic_trading.desk.session.session_run import BarCounts, SessionResult
from agentic_trading.governance.limits import SHORT_LIVED
from agentic_trading.governance.prices import price_advice
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, LLMBudgetExhaustedError, UnknownModelError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.models import Capabilities, Knowledge
from agentic_trading.llm.result import LLMResult
from agentic_trading.llm.store import LogEntry
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.session_folder import DataSource, RunManifest, SessionFolder
from agentic_trading.platform.tables import Tables

INJECTED = "injected"


class ScannableLog(Protocol):
    """A log that can be read from a line to its end."""

    def scan(self, after: int = 0) -> AsyncGenerator[LogEntry]:
        """Yield all entries with a number above `after`, in order."""
        ...


async def report_of(
    manifest: RunManifest,
    folder: SessionFolder,
    played: SessionResult,
    store: ScannableLog,
    tables: Tables,
    *,
    elapsed_s: float,
    rate: InferenceRate | None = None,
) -> report.RunReport:
    """Return the report of a run, from its result so far and the attempts in `store`.

    `rate` is the price of a dollar in the quote currency. Default: 1 for USD and USDT, otherwise unknown.
    """
    # Attempts are read one by one and not kept, so that the memory does not grow with the session.
    attempts = await _attempts_of(manifest, store, tables, {fill.trace_id for fill in played.fills})
    counters = played.counters
    baselines = await _baselines(manifest, played)
    equity_end = _equity(played)
    return report.RunReport(
        session_id=manifest.session_id,
        run_number=manifest.run_number,
        mode=manifest.mode,
        agent="" if manifest.agent is None else manifest.agent.path,
        family=own_family(manifest),
        provider=manifest.provider,
        model=manifest.model or ", ".join(sorted(attempts.models)),
        data=[_data_report(source, played) for source in manifest.data],
        decisions={workflow: dict(counts) for workflow, counts in sorted(counters.decisions.items())},
        no_decisions={workflow: dict(counts) for workflow, counts in sorted(counters.no_decisions.items())},
        refused_budgets=attempts.refused_budgets(),
        attempts_by_outcome=dict(attempts.outcomes),
        **attempts.sums,
        unpriced=attempts.unpriced(),
        bill_problems=dict(attempts.bill_problems),
        max_calls=manifest.max_calls,
        injected=attempts.injected(trading.fault_kinds(manifest.inject)),
        **_trade_counts(counters),
        **_net_result(played, attempts, rate),
        budget_nusd=int(manifest.budget_usd * NANO),
        working=_working(played),
        open_positions=_open_positions(played),
        equity_start=trading.STARTING_CASH,
        equity_end=equity_end,
        pnl=EXACT.subtract(equity_end, trading.STARTING_CASH),
        buy_and_hold_pnl=baselines.buy_and_hold_pnl,
        market_now_pnl=baselines.market_now_pnl,
        shortfall=_filling_cost(played, baselines.market_now_fills),
        performance=_performance(played),
        year=report.MarketYear.of(played.curve.year),
        knowledge=dict(attempts.knowledge),
        assumed=_assumed(manifest),
        log=folder.log,
        decision_log=folder.decisions(manifest.run_number),
        digest=manifest.digest or "",
        elapsed_s=elapsed_s,
        interrupted=manifest.interrupted,
    )


def _net_result(played: SessionResult, attempts: "_Attempts", given: InferenceRate | None) -> dict[str, Any]:
    """Return the results net of inference, as fields of the report."""
    currency = USDT if played.account is None else played.account.currency
    rate, cost = rate_for(currency, given), attempts.first_cost_nusd
    pnl = EXACT.subtract(_equity(played), trading.STARTING_CASH)
    fills = [FillOnRecord(fill.fill_id, fill) for fill in played.fills]
    return {
        "currency": currency,
        "inference_nusd": cost,
        "inference": None if rate is None else rate.cost(cost),
        "net_pnl": None if rate is None else rate.net(pnl, cost),
        "net_performance": None if rate is None else _net_performance(played, attempts, rate),
        "trades": [
            report.TradeReport(
                symbol=trip.symbol,
                side="long" if trip.is_long else "short",
                quantity=trip.quantity,
                opened=trip.opened,
                closed=trip.closed,
                pnl=trip.pnl,
                inference_nusd=trip.inference_nusd,
                net=None if rate is None else rate.net(trip.pnl, trip.inference_nusd),
                fill_id=trip.fill_id,
            )
            for trip in trips_of(fills, played.marks, attempts.costs)
        ],
    }


def _trade_counts(counters: SessionCounters) -> dict[str, Any]:
    """Return the counts of plans, intents, orders and fills, as fields of the report."""
    return {
        "plans": counters.plans,
        "skips": dict(counters.skips),
        "intents": counters.intents,
        "intents_rejected": dict(counters.intents_rejected),
        "orders": counters.orders,
        "orders_refused": dict(counters.orders_refused),
        "cancelled": dict(counters.cancelled),
        "fills": counters.fills,
        "first_fill_id": counters.first_fill_id,
        "fees": counters.fees,
        "entry_changes": [_entry_change(at, body) for at, body in counters.trips],
        "entries_halted": list(counters.entries_halted),
    }


def _entry_change(at: datetime | None, body: RiskTripped | RiskResumed) -> report.EntryChange:
    if isinstance(body, RiskResumed):
        return report.EntryChange(kind="resumed", at=at, rules=body.rules, equity=body.equity, by=body.by)
    return report.EntryChange(
        kind="tripped", at=at, rules=(body.rule,), equity=body.equity, base=body.base, floor=body.floor
    )


async def _attempts_of(
    manifest: RunManifest, store: ScannableLog, tables: Tables, traded: AbstractSet[str]
) -> "_Attempts":
    attempts = _Attempts(tables.capabilities, traded)
    async for entry in store.scan(manifest.first_seq):
        if isinstance(entry.record, LLMInteraction):
            attempts.add(entry.record)
    return attempts


def is_portfolio(manifest: RunManifest) -> bool:
    """Return whether a planner traded the symbols of a run as one portfolio."""
    return manifest.data[0].name in PANELS


def _assumed(manifest: RunManifest) -> list[str]:
    if manifest.agent is not None:  # its class is not imported, because a manifest never chooses code
        return report.assumptions(trading.venue([]), f"orders sized by {manifest.agent.path}")
    agent = shipped_agent(manifest.data[0].name)
    return report.assumptions(trading.venue([]), agent.sizing())


class _Sums(TypedDict):
    """The sums over all attempts, with the field names of `RunReport`."""

    attempts: int
    sent: int
    accepted: int
    input_tokens: int
    output_tokens: int
    cost_nusd: int
    in_doubt: int


@dataclass(frozen=True, slots=True)
class _Hit:
    """An attempt that was hit by an injected fault."""

    fault: str
    envelope_id: str
    attempt: int
    was_read: bool
    was_changed: bool


class _Attempts:
    """The counts over the attempts of a run, and the costs of the traces in `traded`, in nano-dollars."""

    def __init__(self, capabilities: Capabilities, traded: AbstractSet[str]) -> None:
        self.first_cost_nusd = 0
        self.costs = Counter[str]()
        self.costs_by_time = Counter[datetime]()
        self._traded = traded
        self.sums = _Sums(
            attempts=0, sent=0, accepted=0, input_tokens=0, output_tokens=0, cost_nusd=0, in_doubt=0
        )
        self.models: set[str] = set()
        self.outcomes: Counter[str] = Counter()
        self.knowledge: Counter[str] = Counter()
        self.bill_problems: Counter[str] = Counter()
        self._unpriced: Counter[tuple[str, str]] = Counter()
        self._capabilities = capabilities
        self._refused: dict[str, tuple[LLMBudgetExhaustedError, int]] = {}
        self._hits: list[_Hit] = []
        self._finals: dict[str, tuple[int, bool]] = {}

    def add(self, attempt: LLMInteraction) -> None:
        """Count the next attempt, in the order of the log."""
        result, envelope, sums = attempt.result, attempt.envelope, self.sums
        sums["attempts"] += 1
        sums["sent"] += result.dispatched_at is not None
        sums["accepted"] += result.actionable
        sums["input_tokens"] += result.usage.total_input_tokens
        sums["output_tokens"] += result.output_tokens
        sums["cost_nusd"] += result.cost_nusd
        sums["in_doubt"] += result.in_doubt
        self.first_cost_nusd += result.original_cost_nusd
        if result.original_cost_nusd and envelope.as_of is not None:
            self.costs_by_time[envelope.as_of] += result.original_cost_nusd
        if envelope.trace_id in self._traded:
            self.costs[envelope.trace_id] += result.original_cost_nusd
        self.models.add(result.model_requested)
        if result.unpriced:
            self._unpriced[f"{result.provider}/{result.model_requested}", result.unpriced] += 1
        if result.bill_problem:
            self.bill_problems[result.bill_problem] += 1
        self.outcomes[attempt_outcome(result)] += 1
        if result.dispatched_at is not None and envelope.as_of is not None:
            self.knowledge[_knows(envelope, self._capabilities)] += 1
        if result.failure is not None and result.failure.category is FailureKind.BUDGET_EXHAUSTED:
            self._add_refusal(LLMBudgetExhaustedError.of(result.failure))
        self._add_fault(envelope.envelope_id, result)

    def unpriced(self) -> list[report.UnpricedWord]:
        """Return the words that have no price."""
        return [
            report.UnpricedWord(model=model, word=word, attempts=attempts, add=price_advice(model, word))
            for (model, word), attempts in self._unpriced.items()
        ]

    def _add_refusal(self, error: LLMBudgetExhaustedError) -> None:
        kind, _, _ = error.scope.partition(" ")
        # Budgets of single calls and chains are counted together, because each of them has its own budget.
        scope = kind if kind in SHORT_LIVED else error.scope or "not on record"
        first, calls = self._refused.get(scope, (error, 0))
        self._refused[scope] = (first, calls + 1)

    def refused_budgets(self) -> list[report.RefusedBudget]:
        """Return the budgets that refused attempts, in the order of their first refusals."""
        return [
            report.RefusedBudget(
                scope=scope, unit=first.unit, calls=calls, asked=first.asked, left=first.left
            )
            for scope, (first, calls) in self._refused.items()
        ]

    def _add_fault(self, envelope_id: str, result: LLMResult) -> None:
        fault = _fault(result)
        if fault is not None:
            was_read = bool(result.reading)
            self._hits.append(_Hit(fault, envelope_id, result.attempt_number, was_read, _is_changed(result)))
        if fault is not None or envelope_id in self._finals:
            self._finals[envelope_id] = (result.attempt_number, result.actionable)

    def injected(self, requested: Sequence[str]) -> dict[str, report.Counts]:
        """Return the outcomes of the calls that each kind of fault hit.

        A requested kind without a hit is empty.
        """
        outcomes: dict[str, Counter[str]] = defaultdict(Counter, {kind: Counter() for kind in requested})
        for hit in self._hits:
            outcomes[hit.fault][_outcome_of_fault(hit, *self._finals[hit.envelope_id])] += 1
        return {fault: dict(counts) for fault, counts in sorted(outcomes.items())}


def _data_report(source: DataSource, played: SessionResult) -> report.DataReport:
    bars = played.bars.get(source.symbol, BarCounts())
    return report.DataReport(
        name=source.name,
        symbol=source.symbol,
        bars=bars.count,
        first=bars.first.open_time if bars.first else None,
        last=bars.last.close_time if bars.last else None,
        gaps=[
            f"{pluralize(gap.missing, 'bar')} missing from {gap.after:%Y-%m-%d %H:%M} to {gap.before:%Y-%m-%d %H:%M}"
            for gap in bars.gaps
        ],
        duplicates=bars.duplicates,
        unclosed=bars.unclosed,
        late=bars.late,
        silences=played.counters.silences[source.symbol] + played.counters.silences[""],
        unread=bars.unread,
        is_sample=without_symbol(source.name) in {*SAMPLES, *PANELS},
        companion=_companion(source, played),
        quiet=[
            f"{each.count} bars without a trade from {each.start:%Y-%m-%d %H:%M} to {each.end:%Y-%m-%d %H:%M}"
            for each in bars.quiet
        ],
    )


def attempt_outcome(result: LLMResult) -> str:
    """Return the outcome of an attempt: accepted, the kind of its failure, or not actionable."""
    if result.actionable:
        return "accepted"
    return result.failure.category if result.failure else "not actionable"


def _fault(result: LLMResult) -> str | None:
    """Return the kind of fault that was injected into an attempt, if one was."""
    kind, _, name = result.provider_response_id.partition(":")
    if kind == INJECTED:
        return name
    failure = result.failure
    if failure is not None and failure.description.startswith(INJECTED):
        return str(FailureKind.TIMEOUT)
    return None


def _outcome_of_fault(hit: _Hit, last_attempt: int, is_actionable: bool) -> str:  # noqa: FBT001 - of one pair
    """Return a key of the report. Its printed words are in `desk/cli/summary.py`."""
    if not is_actionable:
        return "no decision"
    if last_attempt == hit.attempt:
        return "mended, then accepted" if hit.was_changed else "accepted as it was"
    return "asked again, then accepted" if hit.was_read else "tried again, then accepted"


def _is_changed(result: LLMResult) -> bool:
    reading = result.reading
    return reading is not None and bool(reading.fixes or reading.coercions or reading.patches)


@dataclass(frozen=True, slots=True)
class _Baselines:
    """The profits of two baselines on the same bars, and the fills of the first one."""

    market_now_pnl: Decimal = ZERO
    market_now_fills: Sequence[Fill] = ()
    buy_and_hold_pnl: Decimal = ZERO


async def _baselines(manifest: RunManifest, played: SessionResult) -> _Baselines:
    """Return the results of a run's baselines.

    Buy and hold invests an equal part of the cash in each symbol.
    """
    if played.baselines is None or not played.bars_done:
        return _Baselines()
    cash, held = trading.STARTING_CASH, await played.baselines.held()
    total = ZERO
    for each in held.values():
        total = EXACT.add(total, EXACT.subtract(each.equity, cash))
    outcome = await played.baselines.market_now()
    # A portfolio is its own "market orders" baseline, because all its orders are market orders.
    is_planned = is_portfolio(manifest)
    return _Baselines(
        market_now_pnl=EXACT.subtract(_equity(played) if is_planned else outcome.equity, cash),
        market_now_fills=played.fills if is_planned else outcome.fills,
        buy_and_hold_pnl=EXACT.divide(total, len(manifest.data)).quantize(Decimal("0.01")),
    )


def _filling_cost(played: SessionResult, market_now_fills: Sequence[Fill]) -> report.FillingCost:
    intents = shortfalls(played.intents, played.fills)
    market_now = shortfalls(played.intents, market_now_fills)
    return report.FillingCost(
        total=total_shortfall(intents), market_now=total_shortfall(market_now), intents=intents
    )


def _equity(played: SessionResult) -> Decimal:
    return trading.STARTING_CASH if played.account is None else played.account.equity(played.marks)


def _performance(played: SessionResult) -> Performance | None:
    """Return the figures of the account, in years of the market's own calendar, or None without a bar."""
    return _figures(played, played.curve.equity)


def _net_performance(played: SessionResult, attempts: "_Attempts", rate: InferenceRate) -> Performance | None:
    """Return the figures of the account less the inference up to each close. None without any cost."""
    if not attempts.first_cost_nusd:
        return None
    costs = {at: rate.cost(nusd) for at, nusd in attempts.costs_by_time.items()}
    undated = rate.cost(attempts.first_cost_nusd - attempts.costs_by_time.total())
    return _figures(played, played.curve.net_of(costs, undated))


def _figures(played: SessionResult, equity: Sequence[float]) -> Performance | None:
    curve = played.curve
    if curve.year is None:
        return None
    values = [float(trading.STARTING_CASH), *equity]
    return performance(values, curve.traded, bars_per_year=curve.year.bars)


def _open_positions(played: SessionResult) -> list[report.OpenPosition]:
    marks = played.marks
    return [
        report.OpenPosition(
            symbol=held.symbol,
            quantity=held.quantity,
            average_price=held.average_price,
            mark=marks[held.symbol],
            unrealised=EXACT.multiply(held.quantity, EXACT.subtract(marks[held.symbol], held.average_price)),
        )
        for held in (played.account.positions if played.account else ())
    ]


def _working(played: SessionResult) -> list[report.WorkingOrder]:
    return [
        report.WorkingOrder(
            order_id=entry.order.order_id,
            symbol=entry.order.symbol,
            side=entry.order.side,
            order_type=entry.order.order_type,
            left=entry.left,
            expires_at=entry.order.expires_at,
        )
        for entry in played.open_orders
        if entry.left > 0
    ]


def _knows(envelope: LLMEnvelope, capabilities: Capabilities) -> Knowledge:
    try:
        capability = capabilities.of(envelope.provider, envelope.model)
    except UnknownModelError:  # because the model is in no table, no request was sent, and the record says so
        return "unknown"
    return capabilities.knowledge(capability, envelope.as_of)


def _companion(source: DataSource, played: SessionResult) -> str:
    """Return the shipped reference market of a source, with the time of its last bar, or an empty text."""
    feed = played.companions.get(source.symbol)
    if feed is None or feed.seen_until is None:
        return ""
    _, name = trading.SHIPPED_PAIRS[source.symbol]
    return f"{feed.symbol}, from {name} of the package, until {feed.seen_until:%Y-%m-%d %H:%M}"
