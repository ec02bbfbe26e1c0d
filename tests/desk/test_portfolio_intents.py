"""A session that trades the weights of a plan does what its backtest has done, and what no limit lets through is on record."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import permutations

import numpy as np
import pytest
from typing_extensions import override

from agentic_trading.client.gateway import GatewayClient
from agentic_trading.clock import SimClock
from agentic_trading.desk.agents.desk import Desk
from agentic_trading.desk.agents.planner import PlannerAgent
from agentic_trading.desk.exchange import Account, Exchange, OpenOrder
from agentic_trading.desk.exchanges.account import TradingCosts
from agentic_trading.desk.execution.risk import RiskLimits
from agentic_trading.desk.instrument import Instruments
from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.feeds import MemoryFeed
from agentic_trading.desk.planning.agent import TargetWeights
from agentic_trading.desk.planning.backtest import TradeCosts, backtest
from agentic_trading.desk.planning.panel import Flags, Floats, Panel, fill_gaps
from agentic_trading.desk.session import trading
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.event import Event
from agentic_trading.llm.provider import Providers
from tests.gateway import MemoryGateway, gateway

BARS = 60
STOCKS = ("A", "B", "C", "D")
DAY = timedelta(days=1)
START = datetime(2024, 1, 1, tzinfo=UTC)
FINE = Decimal("1000000000.000000000001")
"""A volume that shows the finest lot, and is large enough for every order."""
NONE = float("nan")
LIMITS = RiskLimits(
    max_order_notional=Decimal(10**9),
    max_position_notional=Decimal(10**9),
    max_exposure_pct=Decimal(100),
    max_gross_pct=Decimal(100),
    price_collar_bps=Decimal(9_999),
    max_tick_bps=Decimal(9_999),
    require_stop=False,
    nets_exits=True,
)


class Weights(PlannerAgent):
    """Plans nothing, and wants what it was given, a row a close."""

    def __init__(self, weights: Floats, rebalance: Flags, stop_loss: float | None) -> None:
        super().__init__()
        self._rows = {START + (bar + 1) * DAY: bar for bar in range(len(weights))}
        self._weights = weights
        self._rebalance = rebalance
        self._stop_loss = stop_loss
        self.limits = LIMITS

    @override
    def risk_limits(self, symbols: Sequence[str]) -> RiskLimits:
        return self.limits

    @override
    async def on_start(self, desk: Desk) -> None:
        """Start without a planner."""

    @override
    async def on_close(self, desk: Desk) -> None:
        """Request the row of a close."""
        row = self._rows[desk.now]
        desk.hold(
            TargetWeights(
                dict(zip(STOCKS, self._weights[row].tolist(), strict=True)),
                rebalances=bool(self._rebalance[row]),
                stop_loss=self._stop_loss,
                plan_id="plan-1",
                trace_id="trace-1",
            )
        )


class CountingExchange:
    """An exchange that counts how often it is asked for its account and its open orders."""

    def __init__(self, inner: Exchange) -> None:
        self.submit, self.cancel, self.on_bar = inner.submit, inner.cancel, inner.on_bar
        self._inner = inner
        self.asked = 0

    async def account(self) -> Account:
        """Return the account."""
        self.asked += 1
        return await self._inner.account()

    async def open_orders(self) -> tuple[OpenOrder, ...]:
        """Return the open orders."""
        self.asked += 1
        return await self._inner.open_orders()


class Stage:
    """A session over bars of some stocks whose weights are given."""

    def __init__(
        self, planner: Weights, limits: RiskLimits = LIMITS, costs: TradingCosts | None = None
    ) -> None:
        self.clock = SimClock(trading.LONG_AGO)
        self.desk: MemoryGateway = gateway(clock=self.clock)
        self.client = client = GatewayClient(self.desk.broker)
        free = TradingCosts(half_spread_bps=Decimal(0), maker_fee_bps=Decimal(0), taker_fee_bps=Decimal(0))
        venue = trading.PaperVenue(Instruments(STOCKS, "USD"), costs or free, shares_cash=True)
        self.exchange = CountingExchange(trading.paper_exchange(venue))
        self.equity: list[float] = []
        self._marks: dict[str, Decimal] = {}
        planner.limits = limits
        self.session = trading.trading_session(
            venue,
            agent=planner,
            session_id="s",
            tenant="default",
            gateway=client,
            clock=self.clock,
            exchange=self.exchange,
            answers=trading.AnswerSource(Providers.every(self.desk.provider), LLMProvider.SCRIPTED),
            companions={},
            before_slice=self._nothing,
            after_slice=self._mark,
        )

    async def _nothing(self, time_slice: TimeSlice) -> None:
        pass

    async def _mark(self, time_slice: TimeSlice) -> None:
        self._marks |= {bar.symbol: bar.close for bar in time_slice.bars}
        self.equity.append(float((await self.exchange.account()).equity(self._marks)))

    async def run(self, bars: Mapping[str, Sequence[Bar]]) -> list[Event]:
        """Play the session; return what is on record."""
        feeds = [MemoryFeed(each, symbol=name, timeframe=Timeframe.D1) for name, each in bars.items()]
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(self.desk.pool.run())
            async with self.client:
                await self.session.run(feeds)
            self.desk.pool.stop()
            await serving
        return [entry.record async for entry in self.desk.store.scan() if isinstance(entry.record, Event)]


def bars_of(panel: Panel) -> dict[str, list[Bar]]:
    """Return the bars of a panel as a session is fed with them."""
    found: dict[str, list[Bar]] = {}
    for column, symbol in enumerate(panel.symbols):
        for row in np.flatnonzero(~np.isnan(panel.close[:, column])).tolist():
            opened, closed = (Decimal(repr(float(each[row, column]))) for each in (panel.open, panel.close))
            bar = Bar(
                symbol=symbol, timeframe=Timeframe.D1, open_time=START + row * DAY,
                open=opened, high=max(opened, closed), low=min(opened, closed), close=closed, volume=FINE,
            )  # fmt: skip
            found.setdefault(symbol, []).append(bar)
    return found


def drawn(seed: int) -> tuple[Panel, Floats, Flags, float | None]:
    """Return a world in which each bar opens at the last close before it, with gaps, and weights that change now and then."""
    chance = np.random.default_rng(seed)
    close = np.round(50 * np.exp(np.cumsum(chance.normal(0, 0.04, (BARS, len(STOCKS))), axis=0)), 4)
    is_gap = np.less(chance.random(close.shape), 0.04)
    rebalance = np.less(chance.random(BARS), 0.25)
    is_gap[0] = False
    close[is_gap] = np.nan
    latest = fill_gaps(close, BARS)
    opened = np.where(is_gap, np.nan, np.vstack((close[:1], latest[:-1])))
    days = np.datetime64("2024-01-01") + np.arange(BARS)
    panel = Panel.of("drawn", days, STOCKS, {"close": close, "open": opened})
    raw = chance.dirichlet(np.ones(len(STOCKS) + 1), BARS)[:, :-1] * (
        chance.random((BARS, len(STOCKS))) < 0.7
    )
    changes = np.maximum.accumulate(np.where(rebalance, np.arange(BARS), 0))
    weights = np.where(np.isnan(panel.filled), 0.0, 0.999 * raw[changes])
    return panel, weights, rebalance, (None, 0.05)[seed % 2]


@pytest.mark.parametrize("seed", range(12))
async def test_session_without_costs_equals_backtest(seed: int) -> None:
    panel, weights, rebalance, stop_loss = drawn(seed)
    stage = Stage(Weights(weights, rebalance, stop_loss))

    events = await stage.run(bars_of(panel))

    tested = backtest(
        panel, weights, rebalance, stop_loss=stop_loss, costs=TradeCosts(0, 0), capital=100_000.0
    )
    assert len({round(each) for each in stage.equity}) > BARS / 2
    assert stage.equity == pytest.approx(tested.equity.tolist(), rel=1e-6)
    kinds = Counter(event.kind for event in events)
    assert kinds["intent.approved"] == kinds["intent.strategy_chosen"] == kinds["order.submitted"] > 20
    assert not kinds.keys() & {"intent.denied", "order.denied"}


def steady(*closes: float) -> dict[str, list[Bar]]:
    """Return bars of all stocks at these closes, each opening at the close before; a gap where there is NaN."""
    close = np.tile(np.array(closes)[:, None], (1, len(STOCKS)))
    latest = fill_gaps(close, len(close))
    opened = np.where(np.isnan(close), np.nan, np.vstack((close[:1], latest[:-1])))
    days = np.datetime64("2024-01-01") + np.arange(len(close))
    bars = bars_of(Panel.of("steady", days, STOCKS, {"close": close, "open": opened}))
    keeps_trading = bars_of(Panel.of("flat", days, STOCKS, {"close": np.full(close.shape, 50.0)}))
    return {**keeps_trading, "A": bars["A"]}


def wanting(*of_a: float, rebalance: Sequence[int] = (0,), stop_loss: float | None = None) -> Weights:
    """Return a planner that wants A alone, a weight a close."""
    weights = np.zeros((len(of_a), len(STOCKS)))
    weights[:, 0] = of_a
    mask = np.zeros(len(of_a), dtype=np.bool_)
    mask[list(rebalance)] = True
    return Weights(weights, mask, stop_loss)


async def test_unfilled_order_resized_until_next_bar() -> None:
    stage = Stage(wanting(0.5, 0.5, 0.5, 0.5))

    await stage.run(steady(50, NONE, NONE, 50))

    (fill,) = stage.session.fills
    assert (fill.symbol, float(fill.quantity)) == ("A", pytest.approx(1_000))
    assert {intent.symbol for intent in stage.session.intents} == {"A"}


async def test_stopped_stock_excluded_until_weight_zero() -> None:
    stage = Stage(wanting(0.5, 0.5, 0.5, 0.5, 0, 0.5, 0.5, rebalance=(0, 3, 5), stop_loss=0.1))

    await stage.run(steady(50, 50, 40, 40, 40, 40, 40))

    traded = [(fill.side, (fill.time - START).days) for fill in stage.session.fills]
    assert traded == [("buy", 2), ("sell", 4), ("buy", 7)]


async def test_overlimit_weight_denied_others_traded() -> None:
    limits = LIMITS.model_copy(update={"max_order_notional": Decimal(60_000)})
    weights = np.array([[0.7, 0.2, 0.0, 0.0]] * 3)
    stage = Stage(Weights(weights, np.array([True, False, False]), None), limits)

    events = await stage.run(steady(50, 50, 50))

    (denied,) = [event for event in events if event.kind == "intent.denied"]
    assert (denied.body["symbol"], denied.body["rule"]) == ("A", "max_order_notional")
    assert denied.causation_id == "plan-1"
    assert [fill.symbol for fill in stage.session.fills] == ["B"]


async def test_sales_fund_purchases_at_same_open() -> None:
    weights = np.array([[0.0, 0.0, 0.0, 0.99], [0.99, 0.0, 0.0, 0.0], [0.99, 0.0, 0.0, 0.0]])
    stage = Stage(Weights(weights, np.array([True, True, False]), None))

    events = await stage.run(steady(50, 50, 50))

    fills = [(fill.symbol, fill.side) for fill in stage.session.fills]
    assert fills == [("D", "buy"), ("D", "sell"), ("A", "buy")]
    assert "order.cancelled" not in {event.kind for event in events}


async def test_purchase_quantity_leaves_cash_for_costs() -> None:
    costs = TradingCosts(half_spread_bps=Decimal(50), maker_fee_bps=Decimal(50), taker_fee_bps=Decimal(50))
    stage = Stage(wanting(1, 1, 1), costs=costs)

    await stage.run(steady(50.01, 50.01, 50.01))

    (fill,) = stage.session.fills
    assert 0.98 * 2_000 < float(fill.quantity) < 0.991 * 2_000
    assert (await stage.exchange.account()).cash >= 0


async def test_exchange_queries_independent_of_stock_count() -> None:
    asked = []
    for stocks in (1, 4):
        stage = Stage(Weights(np.array([[0.2] * stocks + [0.0] * (4 - stocks)]), np.array([True]), None))
        bars = {symbol: each[:1] for symbol, each in steady(50, 50).items()}
        await stage.run(bars)
        asked.append(stage.exchange.asked - 2 * len(stage.session.intents))  # a router looks before it sends

    assert asked[0] == asked[1]


@pytest.mark.parametrize("order", [*permutations(range(3))])
async def test_missing_sale_proceeds_scale_all_purchases(
    order: tuple[int, ...],
) -> None:
    wanted = dict(zip(order, (0.1, 0.2, 0.3), strict=True))
    weights = np.array([[0.0, 0.0, 0.0, 0.8], *[[wanted[stock] for stock in range(3)] + [0.0]] * 2])
    close = np.full((4, 4), 50.0)
    close[2, 3] = NONE
    panel = Panel.of("halted", np.datetime64("2024-01-01") + np.arange(4), STOCKS, {"close": close})
    weights, rebalance = np.vstack((weights, weights[-1:])), np.array([True, True, False, False])
    stage = Stage(Weights(weights, rebalance, None))

    await stage.run(bars_of(panel))

    bought = {fill.symbol: float(fill.quantity) for fill in stage.session.fills if fill.symbol != "D"}
    assert bought == pytest.approx({STOCKS[stock]: 2_000 * wanted[stock] / 3 for stock in range(3)})
    tested = backtest(panel, weights, rebalance, costs=TradeCosts(0, 0), capital=100_000.0)
    assert stage.equity == pytest.approx(tested.equity.tolist(), rel=1e-6)


async def test_limited_room_scales_all_purchases() -> None:
    limits = LIMITS.model_copy(update={"max_gross_pct": Decimal(90)})
    weights = np.array([[0.2, 0.0, 0.0, 0.6], *[[0.2, 0.4, 0.2, 0.6]] * 2])
    stage = Stage(Weights(weights, np.array([True, False, False]), None), limits)

    events = await stage.run(steady(50, 50, 50))

    assert "intent.denied" not in {event.kind for event in events}
    reasons = {intent.symbol: intent.reason for intent in stage.session.intents}
    assert (reasons["A"], reasons["B"]) == ("weight 0.2 of the plan", "weight 0.4 of the plan, cut to 33.3 %")
    assert {fill.symbol: float(fill.quantity) for fill in stage.session.fills} == pytest.approx({
        "A": 360,
        "B": 240,
        "C": 120,
        "D": 1_080,
    })
