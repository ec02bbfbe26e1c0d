"""The whole way from proposal to fill on the shipped bars: conserved, repeatable, with nothing out of thin air."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.desk.exchange import Account, ExecutionReport, Fill
from agentic_trading.desk.exchanges.paper import PaperExchange
from agentic_trading.desk.execution.agent import ExecutionAgent, ExecutionSettings, TimedFillStrategy
from agentic_trading.desk.execution.order import FillLimits, OrderIntent
from agentic_trading.desk.execution.order_router import OrderRouter, TradeJournal
from agentic_trading.desk.execution.risk import Approved, EntryProposal, Rejection, RiskLimits, propose_entry
from agentic_trading.desk.execution.shortfall import Baselines, shortfalls
from agentic_trading.desk.execution.strategy import FillStrategy
from agentic_trading.desk.instrument import Instrument, Side
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.samples import find_sample, load_sample
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.event import Event
from tests.desk.execution.asked import RuleGateway
from tests.desk.trade import listed

BTC = Instrument(symbol="BTCUSDT")
CASH = Decimal(100_000)
EVERY = 24


@dataclass(frozen=True, slots=True)
class Run:
    """What a run left behind."""

    intents: list[OrderIntent]
    strategies: list[FillStrategy]
    reports: list[ExecutionReport]
    events: list[Event]
    account: Account

    @property
    def fills(self) -> list[Fill]:
        return [report for report in self.reports if isinstance(report, Fill)]


@pytest.fixture(scope="module")
def bars() -> Sequence[Bar]:
    """Return the shipped BTCUSDT bars."""
    return load_sample("btcusdt-5m")


async def traded(bars: Sequence[Bar]) -> Run:
    """Follow the last two hours every two hours while flat, with a stop of 0.4 % and a target of 0.8 %."""
    gateway, clock = RuleGateway(), SimClock(bars[0].close_time)
    exchange = PaperExchange(listed(BTC), cash=CASH)
    agent = ExecutionAgent(
        gateway, clock, FillLimits(), ExecutionSettings("s1", LLMProvider.RULES, "rules-1")
    )
    router = OrderRouter(
        exchange, TradeJournal(gateway, clock, tenant_id="default"), listed(BTC), FillLimits(), RiskLimits()
    )
    run = Run([], [], [], gateway.events, await exchange.account())
    for number, closed in enumerate(bars):
        clock.advance_to(closed.close_time)
        run.reports.extend(await router.on_bar(closed))
        if number < EVERY or number % EVERY:
            continue
        facts = await router.facts("BTCUSDT", closed.close_time)
        if facts.position or facts.open_orders:
            continue
        outcome = propose_entry(proposed(bars[number - EVERY], closed), RiskLimits(), BTC, facts)
        assert isinstance(outcome, Approved)
        chosen = await agent.decide(outcome.intent, BTC, bars[number - EVERY : number + 1], Decimal(1))
        assert isinstance(chosen, TimedFillStrategy)
        placed = await router.place(outcome.intent, chosen.strategy, known_at=chosen.known_at)
        assert not isinstance(placed, Rejection)
        run.intents.append(outcome.intent)
        run.strategies.append(chosen.strategy)
    return Run(run.intents, run.strategies, run.reports, run.events, await exchange.account())


def proposed(before: Bar, now: Bar) -> EntryProposal:
    """Return an entry in the direction of the move."""
    side = Side.BUY if now.close >= before.close else Side.SELL
    return EntryProposal(
        side=side,
        entry=None,
        stop=now.close * (1 - side.sign * Decimal("0.004")),
        target=now.close * (1 + side.sign * Decimal("0.008")),
        risk_pct=Decimal("0.2"),
        reason="the last two hours",
        as_of=now.close_time,
        expires_at=now.close_time + timedelta(hours=1),
        trace_id=f"trace-{now.close_time.isoformat()}",
        causation_id=f"assessment-{now.close_time.isoformat()}",
    )


async def test_real_run_is_conserved_and_repeatable(bars: Sequence[Bar]) -> None:
    run, again = await traded(bars), await traded(bars)

    assert run.account.cash == CASH + sum(fill.cash_change for fill in run.fills)
    assert run.account.quantity("BTCUSDT") == sum(fill.side.sign * fill.quantity for fill in run.fills)
    assert [event.wire for event in run.events] == [event.wire for event in again.events]
    assert {"order", "stop_loss", "take_profit"} <= {fill.cause for fill in run.fills}
    assert len(Counter(chosen.algo for chosen in run.strategies)) >= 2


async def test_every_event_has_recorded_cause(bars: Sequence[Bar]) -> None:
    run = await traded(bars[:600])

    known = {event.id for event in run.events}
    causes = {event.kind: event.causation_id for event in run.events}
    assert causes.keys() >= {"intent.approved", "intent.strategy_chosen", "order.submitted", "order.filled"}
    assert [
        event.kind
        for event in run.events
        if event.causation_id not in known and event.kind not in {"intent.approved", "intent.strategy_chosen"}
    ] == []


async def test_fills_follow_decisions_outside_halt(bars: Sequence[Bar]) -> None:
    run = await traded(bars)

    decided = {intent.intent_id: intent.as_of for intent in run.intents}
    ((halted, reopened),) = find_sample("btcusdt-5m").halts
    assert all(decided[fill.intent_id] <= fill.bar_open_time < fill.time for fill in run.fills)
    assert [fill for fill in run.fills if halted <= fill.bar_open_time < reopened] == []


async def test_strategies_pay_lower_fees_than_market(bars: Sequence[Bar]) -> None:
    run = await traded(bars)

    baselines = Baselines(listed(BTC), lambda: PaperExchange(listed(BTC), cash=CASH))
    for each in bars:
        known = [intent for intent in run.intents if intent.as_of <= each.close_time]
        await baselines.on_bars([each], known)
    baseline, held = await baselines.market_now(), (await baselines.held())["BTCUSDT"]

    chosen = shortfalls(run.intents, run.fills)
    at_market = shortfalls(run.intents, baseline.fills)
    assert all(shortfall.unfilled == 0 for shortfall in [*chosen, *at_market])
    assert sum(shortfall.fees for shortfall in chosen) < sum(shortfall.fees for shortfall in at_market)
    assert held.account.quantity("BTCUSDT") > 0
