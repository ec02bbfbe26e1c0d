"""The report of a run from its counters, its log and its account."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal
from itertools import groupby
from typing import TypedDict

from agentic_trading.app import wire
from agentic_trading.app.feeds import without_symbol
from agentic_trading.app.options import pluralize
from agentic_trading.app.report import (
    Counts,
    DataReport,
    FillingCost,
    OpenPosition,
    RunReport,
    WorkingOrder,
    assumptions,
)
from agentic_trading.app.session_folder import DataSource, RunManifest, SessionFolder
from agentic_trading.app.session_run import SessionResult
from agentic_trading.desk.exchange import Fill
from agentic_trading.desk.execution.shortfall import buy_and_hold, market_now, shortfalls, total_shortfall
from agentic_trading.desk.instrument import EXACT, ZERO
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.feed import Gap
from agentic_trading.desk.market.samples import SAMPLES
from agentic_trading.desk.session import TradingRules
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, UnknownModelError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.models import Capabilities, Knowledge
from agentic_trading.llm.result import LLMResult
from agentic_trading.llm.store import InteractionStore

INJECTED = "injected"
QUIET_BARS = 3
"""From this many bars in a row without a trade on, a market counts as quiet."""


async def report_of(
    manifest: RunManifest,
    folder: SessionFolder,
    played: SessionResult,
    store: InteractionStore,
    tables: wire.Tables,
    *,
    elapsed_s: float,
) -> RunReport:
    """Return the report of a run that has ended; attempts are read from its log, the rest was counted."""
    attempts = await _attempts(store, manifest.first_seq)
    results = [attempt.result for attempt in attempts]
    counters = played.counters
    symbols = [source.symbol for source in manifest.data]
    market_now_pnl, market_now_fills = await _market_now(played, symbols)
    equity_end = _equity(played)
    return RunReport(
        session_id=manifest.session_id,
        run_number=manifest.run_number,
        mode=manifest.mode,
        provider=manifest.provider,
        model=manifest.model or ", ".join(sorted({result.model_requested for result in results})),
        data=[_data_report(source, played) for source in manifest.data],
        decisions={workflow: dict(counts) for workflow, counts in sorted(counters.decisions.items())},
        no_decisions={workflow: dict(counts) for workflow, counts in sorted(counters.no_decisions.items())},
        skips=dict(counters.skips),
        attempts_by_outcome=dict(Counter(_outcome(result) for result in results)),
        **_sums(results),
        max_calls=manifest.max_calls,
        injected=_injected(attempts, wire.fault_kinds(manifest.inject)),
        budget_nusd=int(manifest.budget_usd * NANO),
        intents=counters.intents,
        intents_rejected=dict(counters.intents_rejected),
        orders=counters.orders,
        cancelled=dict(counters.cancelled),
        working=_working(played),
        open_positions=_open_positions(played),
        fills=counters.fills,
        first_fill_id=counters.first_fill_id,
        fees=counters.fees,
        equity_start=wire.STARTING_CASH,
        equity_end=equity_end,
        pnl=EXACT.subtract(equity_end, wire.STARTING_CASH),
        buy_and_hold_pnl=await _buy_and_hold(played, symbols),
        market_now_pnl=market_now_pnl,
        shortfall=_filling_cost(played, market_now_fills),
        knowledge=_knowledge(attempts, tables.capabilities),
        assumed=assumptions(wire.venue([]), TradingRules()),
        log=folder.log,
        decision_log=folder.decisions(manifest.run_number),
        digest=manifest.digest or "",
        elapsed_s=elapsed_s,
        interrupted=manifest.interrupted,
    )


class _Sums(TypedDict):
    """The sums over all attempts; the names are those of `RunReport`."""

    attempts: int
    sent: int
    accepted: int
    input_tokens: int
    output_tokens: int
    cost_nusd: int
    in_doubt: int


def _sums(results: Sequence[LLMResult]) -> _Sums:
    return {
        "attempts": len(results),
        "sent": sum(result.dispatched_at is not None for result in results),
        "accepted": sum(result.actionable for result in results),
        "input_tokens": sum(result.usage.total_input_tokens for result in results),
        "output_tokens": sum(result.output_tokens for result in results),
        "cost_nusd": sum(result.cost_nusd for result in results),
        "in_doubt": sum(result.in_doubt for result in results),
    }


async def _attempts(store: InteractionStore, first_seq: int) -> list[LLMInteraction]:
    records = [entry.record async for entry in store.scan(first_seq)]
    return [record for record in records if isinstance(record, LLMInteraction)]


def _data_report(source: DataSource, played: SessionResult) -> DataReport:
    bars = [bar for bar in played.bars if bar.symbol == source.symbol]
    notes = [note for note in played.notes if note.symbol == source.symbol]
    gaps = [note for note in notes if isinstance(note, Gap)]
    return DataReport(
        name=source.name,
        symbol=source.symbol,
        bars=len(bars),
        first=bars[0].open_time if bars else None,
        last=bars[-1].close_time if bars else None,
        gaps=[
            f"{pluralize(gap.missing, 'bar')} missing from {gap.after:%Y-%m-%d %H:%M} to {gap.before:%Y-%m-%d %H:%M}"
            for gap in gaps
        ],
        duplicates=len(notes) - len(gaps),
        is_sample=without_symbol(source.name) in SAMPLES,
        quiet=[
            f"{len(run)} bars without a trade from {run[0].open_time:%Y-%m-%d %H:%M} to {run[-1].close_time:%Y-%m-%d %H:%M}"
            for run in _quiet_runs(bars)
        ],
    )


def _quiet_runs(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Return the runs of bars, in the order in which they came, in which nothing traded."""
    grouped = groupby(bars, key=lambda bar: bar.volume == 0)
    runs = [list(run) for is_quiet, run in grouped if is_quiet]
    return [run for run in runs if len(run) >= QUIET_BARS]


def _outcome(result: LLMResult) -> str:
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


def _injected(attempts: Sequence[LLMInteraction], asked_for: Sequence[str]) -> dict[str, Counts]:
    """Return the outcomes of the calls that each kind of fault hit, with the kinds that were injected and hit none."""
    last = {attempt.envelope.envelope_id: attempt.result for attempt in attempts}
    outcomes: dict[str, Counter[str]] = defaultdict(Counter, {kind: Counter() for kind in asked_for})
    for attempt in attempts:
        fault = _fault(attempt.result)
        if fault is not None:
            outcomes[fault][_outcome_of_fault(attempt.result, last[attempt.envelope.envelope_id])] += 1
    return {fault: dict(counts) for fault, counts in sorted(outcomes.items())}


def _outcome_of_fault(hit: LLMResult, final: LLMResult) -> str:
    """Return a key of the report; what the summary shows for it stands in `app/cli/summary.py`."""
    if not final.actionable:
        return "no decision"
    if final.attempt_number == hit.attempt_number:
        return "mended, then accepted" if _is_changed(hit) else "accepted as it was"
    return "asked again, then accepted" if hit.reading else "tried again, then accepted"


def _is_changed(result: LLMResult) -> bool:
    reading = result.reading
    return reading is not None and bool(reading.fixes or reading.coercions or reading.patches)


async def _market_now(played: SessionResult, symbols: Sequence[str]) -> tuple[Decimal, Sequence[Fill]]:
    """Return what taking the next open would have made of the same intents, and the fills."""
    if not played.bars:
        return ZERO, ()
    venue = wire.venue(symbols, played.bars)
    outcome = await market_now(played.intents, played.bars, wire.paper_exchange(venue))
    return EXACT.subtract(outcome.equity, venue.cash), outcome.fills


def _filling_cost(played: SessionResult, market_now_fills: Sequence[Fill]) -> FillingCost:
    intents = shortfalls(played.intents, played.fills)
    market_now = shortfalls(played.intents, market_now_fills)
    return FillingCost(
        total=total_shortfall(intents), market_now=total_shortfall(market_now), intents=intents
    )


async def _buy_and_hold(played: SessionResult, symbols: Sequence[str]) -> Decimal:
    """Return what holding would have made of the same cash, an equal part of it in each symbol."""
    if not played.bars:
        return ZERO
    venue = wire.venue(symbols, played.bars)
    held = ZERO
    for symbol in symbols:
        bars = [bar for bar in played.bars if bar.symbol == symbol]
        if bars:
            outcome = await buy_and_hold(bars, wire.paper_exchange(venue), venue.instruments[symbol])
            held = EXACT.add(held, EXACT.subtract(outcome.equity, venue.cash))
    return EXACT.divide(held, len(symbols)).quantize(Decimal("0.01"))


def _equity(played: SessionResult) -> Decimal:
    return wire.STARTING_CASH if played.account is None else played.account.equity(_marks(played))


def _marks(played: SessionResult) -> dict[str, Decimal]:
    return {bar.symbol: bar.close for bar in played.bars}


def _open_positions(played: SessionResult) -> list[OpenPosition]:
    marks = _marks(played)
    return [
        OpenPosition(
            symbol=held.symbol,
            quantity=held.quantity,
            average_price=held.average_price,
            mark=marks[held.symbol],
            unrealised=EXACT.multiply(held.quantity, EXACT.subtract(marks[held.symbol], held.average_price)),
        )
        for held in (played.account.positions if played.account else ())
    ]


def _working(played: SessionResult) -> list[WorkingOrder]:
    return [
        WorkingOrder(
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


def _knowledge(attempts: Sequence[LLMInteraction], capabilities: Capabilities) -> Counts:
    asked = (attempt.envelope for attempt in attempts if attempt.result.dispatched_at is not None)
    return dict(Counter(_knows(envelope, capabilities) for envelope in asked if envelope.as_of is not None))


def _knows(envelope: LLMEnvelope, capabilities: Capabilities) -> Knowledge:
    try:
        capability = capabilities.of(envelope.provider, envelope.model)
    except UnknownModelError:  # no request was sent, and that is on record
        return "unknown"
    return capabilities.knowledge(capability, envelope.as_of)
