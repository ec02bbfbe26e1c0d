"""A trading session over a platform: its venue, its agents, its feeds, its clock and log, and who answers."""

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from agentic_trading.client.gateway import Gateway
from agentic_trading.clock import Clock, MarketClock, PacedClock, SimClock, SystemClock
from agentic_trading.desk.analysis.analyst import CmtAnalyst
from agentic_trading.desk.analysis.check import check_cmt_assessment
from agentic_trading.desk.analysis.judgement import CMT_ASSESSMENT_SCHEMA
from agentic_trading.desk.analysis.rules import cmt_assessment_rule
from agentic_trading.desk.exchange import Exchange
from agentic_trading.desk.exchanges.account import TradingCosts
from agentic_trading.desk.exchanges.paper import PaperExchange
from agentic_trading.desk.execution.agent import ExecutionAgent, ExecutionSettings
from agentic_trading.desk.execution.candidates import fill_strategy_rule
from agentic_trading.desk.execution.check import check_fill_strategy
from agentic_trading.desk.execution.order import FillLimits
from agentic_trading.desk.execution.order_router import OrderRouter, TradeJournal
from agentic_trading.desk.execution.risk import RiskLimits
from agentic_trading.desk.execution.shortfall import Baselines
from agentic_trading.desk.execution.strategy import FILL_STRATEGY_SCHEMA
from agentic_trading.desk.instrument import Instruments
from agentic_trading.desk.intents import AnalysisIntents, IntentSettings, SymbolDesk, TradingRules
from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.feed import BarFeed, BarGrid
from agentic_trading.desk.market.feeds import CsvFeed, MemoryFeed, StdinFeed
from agentic_trading.desk.market.samples import PANELS, load_sample
from agentic_trading.desk.market.snapshot import MarketView
from agentic_trading.desk.planning.agent import PlannerSettings
from agentic_trading.desk.planning.params import PlanTerms
from agentic_trading.desk.planning.rules import strategy_params_rule
from agentic_trading.desk.planning.schema import STRATEGY_PARAMS, check_strategy_params
from agentic_trading.desk.portfolio_intents import PortfolioIntents, PortfolioPlanner
from agentic_trading.desk.session.trading_session import IntentSource, MovableClock, TradingSession
from agentic_trading.desk.time_slices import ReferenceMarketFeed, TimeSlice
from agentic_trading.errors import require_extra
from agentic_trading.governance.rebuild import LostAttempt
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMProvider
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.provider import Provider, Providers
from agentic_trading.llm.providers.fault_injection import Faults, FaultyProvider
from agentic_trading.llm.providers.offline import MODEL, SCRIPTED_MODEL, RecordedAnswers, RulesProvider
from agentic_trading.operate.providers import PATIENCE
from agentic_trading.platform.config import FallbackConfig, RunMode, provider_and_model

STARTING_CASH = Decimal(100_000)
COSTS = TradingCosts()
RULES_MODEL = MODEL
OFFLINE_MODELS = {LLMProvider.RULES.value: MODEL, LLMProvider.SCRIPTED.value: SCRIPTED_MODEL}
"""The default model of providers that are none."""
BASE = Timeframe.M5
GRID = BarGrid(BASE)
DECISION = Timeframe.H1
SHIPPED_PAIRS = {"BTCUSDT": ("btcusdt-5m", "ethusdt-5m"), "ETHUSDT": ("ethusdt-5m", "btcusdt-5m")}
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


RULES = {
    CMT_ASSESSMENT_SCHEMA["$id"]: cmt_assessment_rule,
    FILL_STRATEGY_SCHEMA["$id"]: fill_strategy_rule,
    STRATEGY_PARAMS: strategy_params_rule,
}
CHECKS = {
    CMT_ASSESSMENT_SCHEMA["$id"]: check_cmt_assessment,
    FILL_STRATEGY_SCHEMA["$id"]: check_fill_strategy,
    STRATEGY_PARAMS: check_strategy_params,
}


@dataclass(frozen=True, slots=True)
class PaperVenue:
    """Where a session trades, the same for its exchange, its agents, its baselines and its report."""

    instruments: Instruments
    costs: TradingCosts = COSTS
    cash: Decimal = STARTING_CASH
    shares_cash: bool = False

    @property
    def cost_bps(self) -> Decimal:
        """What a purchase at the market costs, in basis points of its price."""
        return self.costs.half_spread_bps + self.costs.taker_fee_bps

    @property
    def spread_bps(self) -> Decimal:
        """The whole spread that a taker is charged half of."""
        return 2 * self.costs.half_spread_bps


@dataclass(frozen=True, slots=True)
class AnswerSource:
    """The source of answers: `providers`, unless `recorded` has the answer.

    The model that an agent asks is what `models` says for its workflow, as `PROVIDER/MODEL`, else `llm` and `model`; the ids of a
    run are made from those two. `fallback` says what is asked when a call fails. `patience` is how calls to a provider
    are retried, where the default does not fit. `counts` says that a provider's own count of a request bounds the input,
    where it has one, in place of the bytes. `lost` are attempts that an interrupted run has sent and whose end is not
    known, by reservation.
    """

    providers: Providers
    llm: LLMProvider = LLMProvider.ANTHROPIC
    model: str = ""
    recorded: RecordedAnswers | None = None
    counts: bool = False
    lost: Mapping[str, LostAttempt] = field(default_factory=dict)
    models: Mapping[EnvelopeWorkflow, str] = field(default_factory=dict)
    fallback: Mapping[EnvelopeWorkflow, FallbackConfig] = field(default_factory=dict)
    patience: Mapping[str, RetryPolicy] = field(default_factory=lambda: PATIENCE)

    def asked_by(self, workflow: EnvelopeWorkflow) -> "AskedModel":
        """Return which model the agent of a workflow asks."""
        named = self.models.get(workflow)
        llm, model = (self.llm, self.model) if named is None else provider_and_model(named)
        return AskedModel(LLMProvider(llm), model, self.patience.get(llm))


@dataclass(frozen=True, slots=True)
class AskedModel:
    """The model that an agent asks, and how its calls are retried; an empty model is the default of the workflow."""

    llm: LLMProvider
    model: str
    patience: RetryPolicy | None


def rules(*, inject: str, seed: str, recorded: RecordedAnswers | None = None) -> AnswerSource:
    """Let the built-in rules answer, with faults injected as asked; raises `FaultsError` for a wrong `inject`."""
    provider = with_faults(RulesProvider(RULES), inject, seed)
    return AnswerSource(Providers.every(provider), LLMProvider.RULES, RULES_MODEL, recorded)


def with_faults(provider: Provider, inject: str, seed: str) -> Provider:
    """Return `provider` with faults injected as asked; raises `FaultsError` for a wrong `inject`."""
    faults = Faults.parse(inject)
    return FaultyProvider(provider, faults, seed) if faults.shares else provider


def fault_kinds(inject: str) -> list[str]:
    """Return the kinds of faults that `inject` asks for; raises `FaultsError` for a wrong one."""
    return [str(kind) for kind, _ in Faults.parse(inject).shares]


def replayed(recorded: RecordedAnswers, llm: LLMProvider, model: str) -> AnswerSource:
    """Let an earlier run answer; what it does not know is an error."""
    return AnswerSource(Providers.every(recorded), llm, model, recorded)


def bars_feed(bars: Sequence[Bar], *, symbol: str, name: str, grid: BarGrid = GRID) -> BarFeed:
    """Return a feed of bars that are already here."""
    return MemoryFeed(bars, symbol=symbol, timeframe=grid.timeframe, calendar=grid.calendar, name=name)


def file_feed(path: Path, *, symbol: str, clock: Clock | None = None) -> BarFeed:
    """Return a feed of the bars in a CSV file, with a `clock` of those that have closed by it."""
    return CsvFeed(path, symbol=symbol, timeframe=BASE, clock=clock)


def kept_feed(path: Path, *, symbol: str, grid: BarGrid, most_bars: int | None = None) -> BarFeed:
    """Return a feed of the bars that a run has kept; a last row that a crash has cut is left out."""
    return CsvFeed(
        path,
        symbol=symbol,
        timeframe=grid.timeframe,
        calendar=grid.calendar,
        most_bars=most_bars,
        whole_rows_only=True,
    )


def stdin_feed(*, symbol: str, clock: Clock | None = None) -> BarFeed:
    """Return a feed of the bars that come on standard input, with a `clock` of those that have closed by it."""
    return StdinFeed(sys.stdin.fileno(), symbol=symbol, timeframe=BASE, clock=clock)


def wall_clock(mode: RunMode) -> Clock | None:
    """Return the clock by which bars must have closed: the machine's on paper, None in a backtest.

    It is not the clock of the session: that one follows the bars.
    """
    return SystemClock() if mode == "paper" else None


def clock_for(mode: RunMode, *, paced: bool = False) -> MovableClock:
    """Return the clock of a mode, still before the first bar: simulated in a backtest, following the market on paper.

    `paced` is for models that answer live in a backtest: a pause that a server asks for is then a real one.
    """
    if mode == "paper":
        return MarketClock(LONG_AGO)
    return PacedClock(LONG_AGO) if paced else SimClock(LONG_AGO)


def venue(symbols: Iterable[str], data: str = "") -> PaperVenue:
    """Return a venue for these symbols whose instruments know nothing yet; a session shows them its bars."""
    if data in PANELS:
        return PaperVenue(Instruments(symbols, "USD"), shares_cash=True)
    return PaperVenue(Instruments(symbols))


def paper_exchange(venue: PaperVenue) -> PaperExchange:
    """Return an exchange on paper with the cash, costs and instruments of a venue."""
    return PaperExchange(venue.instruments, cash=venue.cash, costs=venue.costs, shares_cash=venue.shares_cash)


def baselines(instruments: Instruments) -> Baselines:
    """Return what a session on these instruments is held against."""
    return Baselines(instruments, lambda: paper_exchange(PaperVenue(instruments)))


def companions(symbols: Sequence[str]) -> dict[str, ReferenceMarketFeed]:
    """Return the shipped reference market of a shipped one in a session of its own; reads files."""
    name, other = SHIPPED_PAIRS.get(symbols[0], ("", "")) if len(symbols) == 1 else ("", "")
    if not name:
        return {}
    return {symbols[0]: ReferenceMarketFeed(load_sample(name), load_sample(other), decision=DECISION)}


def trading_session(
    venue: PaperVenue,
    *,
    data: str = "",
    plan: PlanTerms | None = None,
    session_id: str,
    tenant: str,
    gateway: Gateway,
    clock: MovableClock,
    exchange: Exchange,
    answers: AnswerSource,
    companions: Mapping[str, ReferenceMarketFeed],
    before_slice: Callable[[TimeSlice], Awaitable[None]],
    after_slice: Callable[[TimeSlice], Awaitable[None]],
) -> TradingSession:
    """Return a session over the symbols of `venue` whose agents ask through `gateway`.

    Over a sample of many stocks, named by `data`, a planner decides on all of them together, on the terms of `plan` or the
    default ones; otherwise each market has an analyst. Each market has a reference market: the first other one of the session, or the one in `companions`.
    """
    is_portfolio = data in PANELS
    fill_limits = PORTFOLIO_FILLS if is_portfolio else FillLimits()
    risk_limits = portfolio_limits(len(venue.instruments)) if is_portfolio else RiskLimits()
    execution = answers.asked_by(EnvelopeWorkflow.EXECUTION)
    settings = ExecutionSettings(
        session_id=session_id,
        tenant_id=tenant,
        provider=execution.llm,
        model=execution.model,
        retry_policy=execution.patience,
    )
    journal = TradeJournal(gateway, clock, tenant_id=tenant)
    router = OrderRouter(exchange, journal, venue.instruments, fill_limits, risk_limits)
    shared = IntentSettings(router, exchange, venue.instruments, journal, risk_limits)
    intents: IntentSource
    if is_portfolio:
        planner = _planner(
            data, plan or PlanTerms(), venue.costs, gateway, clock, session_id, tenant, answers
        )
        intents = PortfolioIntents(planner, shared, cost_bps=venue.cost_bps)
    else:
        desks = _desks(venue, gateway, clock, session_id, tenant, answers, companions)
        intents = AnalysisIntents(desks, shared, TradingRules())
    return TradingSession(
        source=intents,
        execution=ExecutionAgent(gateway, clock, fill_limits, settings),
        router=router,
        instruments=venue.instruments,
        spread_bps=venue.spread_bps,
        clock=clock,
        before_slice=before_slice,
        after_slice=after_slice,
    )


PORTFOLIO_FILLS = FillLimits(
    allowed_order_types=("market",),
    bar_seconds=Timeframe.D1.seconds,
    max_deadline_s=Timeframe.D1.seconds,
    max_slices=1,
)
"""Orders of a plan are filled at the next open, as its backtest takes them to be."""


def portfolio_limits(stocks: int) -> RiskLimits:
    """Return what no order of a portfolio may pass; its stops are looked at on each close."""
    orders = 4 * stocks
    return RiskLimits(
        require_stop=False, nets_exits=True, max_orders_per_minute=orders, max_open_orders=orders
    )


def _planner(
    data: str,
    plan: PlanTerms,
    costs: TradingCosts,
    gateway: Gateway,
    clock: MovableClock,
    session_id: str,
    tenant: str,
    answers: AnswerSource,
) -> PortfolioPlanner:
    """Return the planner of a portfolio; raises `MissingExtraError` where what it needs is not installed."""
    require_extra("numpy", "jinja2")  # before a call is paid whose code could not be rendered
    from agentic_trading.desk.planning.backtest import TradeCosts  # noqa: PLC0415 - numpy is an extra
    from agentic_trading.desk.planning.portfolio import RegimePlanner  # noqa: PLC0415 - and so is this

    asked = answers.asked_by(EnvelopeWorkflow.PLANNING)
    settings = PlannerSettings(
        session_id=session_id,
        tenant_id=tenant,
        provider=asked.llm,
        model=asked.model,
        family=plan.family,
        retry_policy=asked.patience,
    )
    fees = TradeCosts(float(costs.taker_fee_bps), float(costs.half_spread_bps))
    return RegimePlanner(data, gateway, clock, settings, rounds=plan.rounds, costs=fees)


def _desks(
    venue: PaperVenue,
    gateway: Gateway,
    clock: MovableClock,
    session_id: str,
    tenant: str,
    answers: AnswerSource,
    companions: Mapping[str, ReferenceMarketFeed],
) -> Mapping[str, SymbolDesk]:
    analysis = answers.asked_by(EnvelopeWorkflow.ANALYSIS)
    views = {symbol: MarketView(symbol, decision=DECISION) for symbol in venue.instruments}
    return {
        symbol: SymbolDesk(
            view,
            CmtAnalyst(
                gateway,
                clock,
                session_id=session_id,
                tenant_id=tenant,
                provider=analysis.llm,
                model=analysis.model,
                retry_policy=analysis.patience,
            ),
            reference_view=next((other for name, other in views.items() if name != symbol), None),
            reference_feed=companions.get(symbol),
        )
        for symbol, view in views.items()
    }
