"""The session: one time slice after the other, all of one before time moves on, and a stop at any time."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from typing_extensions import override

from agentic_trading.client.gateway import GatewayClient
from agentic_trading.clock import SimClock
from agentic_trading.desk.agents.agent import Agent
from agentic_trading.desk.agents.analyst import Analyst, CmtAgent
from agentic_trading.desk.agents.desk import Desk
from agentic_trading.desk.agents.errors import AgentFailedError
from agentic_trading.desk.analysis.context import evidence_by_layer
from agentic_trading.desk.analysis.judgement import Layer
from agentic_trading.desk.exchange import Exchange, Order, OrderRefusedError
from agentic_trading.desk.exchanges.paper import PaperExchange
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.errors import BarFormatError
from agentic_trading.desk.market.feed import FeedItem
from agentic_trading.desk.market.snapshot import MarketSnapshot
from agentic_trading.desk.portfolio_intents import BARS_SHOWN
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.trading_session import TradingSession
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import Providers
from tests.flows.sessions import LOADED, evening, rules
from tests.gateway import MemoryGateway, gateway

BTC = LOADED["btcusdt-5m"]


NewExchange = Callable[[trading.PaperVenue], Exchange]


class Stage:
    """A session on rules in memory, and what it has lived through."""

    def __init__(
        self, new_exchange: NewExchange, agent: Agent | None, *, ends_on_error: bool, **venue: Any
    ) -> None:
        self.clock = SimClock(trading.LONG_AGO)
        self.desk: MemoryGateway = gateway(rules(), clock=self.clock, checks=trading.CHECKS)
        self.client = GatewayClient(self.desk.broker)
        self.before: list[TimeSlice] = []
        self.after: list[TimeSlice] = []
        self.stop_after = 10**9
        where = replace(trading.venue(["BTCUSDT"]), **venue)
        self.session: TradingSession = trading.trading_session(
            where,
            agent=agent,
            ends_on_error=ends_on_error,
            session_id="s",
            tenant="default",
            gateway=self.client,
            clock=self.clock,
            exchange=new_exchange(where),
            answers=trading.AnswerSource(
                Providers.every(self.desk.provider), LLMProvider.RULES, trading.RULES_MODEL
            ),
            companions={},
            before_slice=self.before_slice,
            after_slice=self.after_slice,
        )

    async def before_slice(self, time_slice: TimeSlice) -> None:
        self.before.append(time_slice)

    async def after_slice(self, time_slice: TimeSlice) -> None:
        assert self.clock.now() == time_slice.at
        self.after.append(time_slice)
        if len(self.after) >= self.stop_after:
            self.session.stop()

    async def events(self) -> list[Event]:
        """Return what the session has put on record."""
        records = [entry.record async for entry in self.desk.store.scan()]
        return [record for record in records if isinstance(record, Event)]


@asynccontextmanager
async def on_stage(
    *,
    new_exchange: NewExchange = trading.paper_exchange,
    agent: Agent | None = None,
    ends_on_error: bool = True,
    **venue: Any,
) -> AsyncGenerator[Stage]:
    stage = Stage(new_exchange, agent, ends_on_error=ends_on_error, **venue)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(stage.desk.pool.run())
        try:
            async with stage.client:
                yield stage
        finally:
            stage.desk.pool.stop()
            await serving


class Feed:
    """Give bars; then raise, wait for ever, or end."""

    symbol = "BTCUSDT"
    timeframe = trading.BASE

    def __init__(self, bars: Sequence[Bar], *, then: Exception | None = None, waits: bool = False) -> None:
        self._bars = bars
        self._then = then
        self._waits = waits
        self.was_waited_for = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        for bar in self._bars:
            yield bar
        if self._then is not None:
            raise self._then
        if self._waits:
            self.was_waited_for.set()
            await asyncio.Event().wait()


async def test_time_slices_are_processed_in_order() -> None:
    async with on_stage() as stage:
        await stage.session.run([Feed(BTC[:20])])

    assert [time_slice.bars for time_slice in stage.after] == [(bar,) for bar in BTC[:20]]
    assert stage.before == stage.after


async def test_stop_takes_effect_after_slice() -> None:
    async with on_stage() as stage:
        stage.stop_after = 3
        await stage.session.run([Feed(BTC[:20])])

    assert len(stage.after) == 3


async def test_stop_before_run_skips_all_slices() -> None:
    async with on_stage() as stage:
        stage.session.stop()
        stage.session.stop()
        await stage.session.run([Feed(BTC[:20])])

    assert stage.before == []


async def test_stop_interrupts_wait_for_bar() -> None:
    feed = Feed(BTC[:5], waits=True)

    async with on_stage() as stage, asyncio.timeout(4), asyncio.TaskGroup() as group:
        running = group.create_task(stage.session.run([feed]))
        await feed.was_waited_for.wait()
        stage.session.stop()
        await running

    assert len(stage.after) == 5


@pytest.mark.parametrize(
    "error", [BarFormatError("feed", 6, "close", "x", "a number"), TimeoutError("the stream timed out")]
)
async def test_feed_error_follows_earlier_bars(error: Exception) -> None:
    async with on_stage() as stage:
        with pytest.raises(type(error)) as raised:
            await stage.session.run([Feed(BTC[:5], then=error)])

    assert raised.value is error
    assert len(stage.after) == 5


class Stranger:
    """An analyst that returns what no session knows."""

    async def consider(self, snapshot: MarketSnapshot, **_facts: Any) -> Any:
        return {"verdict": "long"}


class Confused(CmtAgent):
    """The analyst's agent with a stranger in its place."""

    @override
    def analyst(self, desk: Desk) -> Analyst:
        return Stranger()


async def test_unknown_analyst_result_is_error() -> None:
    async with on_stage(agent=Confused()) as stage:
        with pytest.raises(
            AgentFailedError, match=r"the analyst of BTCUSDT returned dict\. Allowed: an Asse"
        ):
            await stage.session.run([Feed(BTC[:20])])

    (failed,) = [event for event in await stage.events() if event.kind == "agent.failed"]
    assert (failed.body["agent"], failed.body["handler"]) == ("cmt", "on_close")
    assert failed.body["error"] == "TypeError"


async def test_analyst_considers_closed_decision_bars_only() -> None:
    async with on_stage() as stage:
        await stage.session.run([Feed([*BTC[:20], *BTC[30:49]])])

    looked = [event.as_of for event in await stage.events() if event.kind == "analysis.skipped"]
    assert looked == [BTC[11].close_time, BTC[30].close_time, BTC[35].close_time, BTC[47].close_time]


async def test_denied_intent_becomes_no_order() -> None:
    async with on_stage(cash=Decimal("0.00001")) as stage:
        await stage.session.run([Feed(BTC[:600])])

    kinds = Counter(event.kind for event in await stage.events())
    rejected = [event for event in await stage.events() if event.kind == "intent.denied"]
    assert rejected
    assert {event.body["rule"] for event in rejected} == {"min_quantity"}
    assert all(event.causation_id and event.body["symbol"] == "BTCUSDT" for event in rejected)
    assert not kinds.keys() & {"intent.approved", "order.submitted", "order.filled"}
    assert stage.session.intents == []


class EmptyVenue(PaperExchange):
    """An exchange that refuses every order."""

    @override
    async def submit(self, order: Order) -> None:
        raise OrderRefusedError("balance", order.quantity, "0")


async def test_session_continues_after_a_refused_order() -> None:
    async with on_stage(new_exchange=lambda venue: EmptyVenue(venue.instruments, cash=venue.cash)) as stage:
        await stage.session.run([Feed(BTC[:900])])

    kinds = Counter(event.kind for event in await stage.events())
    assert kinds["order.denied"] == kinds["order.submitted"] > 1
    assert len(stage.after) == 900
    assert stage.session.intents == []


async def test_execution_gets_last_bars_only() -> None:
    async with on_stage() as stage:
        await stage.session.run([Feed(BTC[: BARS_SHOWN + 9])])

    assert stage.session._source.bars("BTCUSDT") == tuple(BTC[9 : BARS_SHOWN + 9])


async def test_position_kept_or_closed_by_side() -> None:
    lines = (await evening(bars={"ethusdt-5m": LOADED["ethusdt-5m"]}, most_bars=2_100)).lines
    by_id = {line["id"]: line for line in lines}
    held: dict[str, Decimal] = {}
    skipped = exits = entries = 0

    for line in lines:
        body, symbol = line.get("body", {}), line["subject"]
        if line["kind"] == "order.filled":
            signed = Decimal(body["quantity"]) * (1 if body["side"] == "buy" else -1)
            held[symbol] = held.get(symbol, Decimal(0)) + signed
        elif line["kind"] == "intent.skipped":
            side = by_id[line["causation_id"]]["body"]["plan"]["side"]
            assert held[symbol] * (1 if side == "buy" else -1) > 0
            skipped += 1
        elif line["kind"] == "intent.approved":
            is_exit = body["kind"] == "exit"
            assert (held.get(symbol, Decimal(0)) != 0) is is_exit
            assert not is_exit or Decimal(body["quantity"]) == abs(held[symbol])
            exits, entries = exits + is_exit, entries + (not is_exit)
    assert min(skipped, exits, entries) > 0


async def test_analyst_receives_current_account() -> None:
    async with on_stage() as stage:
        await stage.session.run([Feed(BTC[:900])])
        records = [entry.record async for entry in stage.desk.store.scan()]

    asked = [each.envelope for each in records if isinstance(each, LLMInteraction)]
    portfolios = [
        evidence_by_layer(envelope)[Layer.RISK].content["book"]
        for envelope in asked
        if envelope.step == "cmt"
    ]
    assert portfolios[0] == {"exposure_pct": 0, "open_risk_pct": 0, "risk_pct": 1}
    holding = [portfolio for portfolio in portfolios if portfolio["exposure_pct"] > 0]
    assert holding
    assert all(0 <= portfolio["open_risk_pct"] < 5 for portfolio in holding)
