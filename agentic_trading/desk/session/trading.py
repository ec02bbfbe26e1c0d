"""The parts of a trading session: venue, agents, feeds, clock, and the source of answers."""

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from pathlib import Path

from agentic_trading.client.gateway import AskingGateway
from agentic_trading.clock import Clock, MarketClock, PacedClock, SimClock, SystemClock
from agentic_trading.desk.agents.agent import Agent
from agentic_trading.desk.agents.analyst import DECISION
from agentic_trading.desk.agents.desk import DeskSession
from agentic_trading.desk.agents.questions import AskedModel, Questions
from agentic_trading.desk.agents.runner import AgentRunner, RunnerSettings
from agentic_trading.desk.analysis.check import check_cmt_assessment
from agentic_trading.desk.analysis.judgement import CMT_ASSESSMENT_SCHEMA
from agentic_trading.desk.analysis.rules import cmt_assessment_rule
from agentic_trading.desk.exchange import Exchange
from agentic_trading.desk.exchanges.account import PaperAccount, TradingCosts
from agentic_trading.desk.exchanges.paper import PaperExchange
from agentic_trading.desk.execution.agent import ExecutionAgent, ExecutionSettings
from agentic_trading.desk.execution.candidates import fill_strategy_rule
from agentic_trading.desk.execution.check import check_fill_strategy
from agentic_trading.desk.execution.entry_halt import EntryHalt, NoResumes, ResumeSource
from agentic_trading.desk.execution.order_router import OrderRouter, TradeJournal
from agentic_trading.desk.execution.shortfall import Baselines
from agentic_trading.desk.execution.silent_feeds import SilenceLimit, SilentFeeds
from agentic_trading.desk.execution.strategy import FILL_STRATEGY_SCHEMA
from agentic_trading.desk.instrument import USDT, Instruments
from agentic_trading.desk.market import feeds as market_feeds
from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.bar_length import FileHead
from agentic_trading.desk.market.bar_rows import NO_COLUMNS
from agentic_trading.desk.market.feed import BarFeed, BarGrid
from agentic_trading.desk.market.samples import PANELS, load_sample
from agentic_trading.desk.planning.rules import strategy_params_rule
from agentic_trading.desk.planning.schema import STRATEGY_PARAMS, check_shipped_params, check_strategy_params
from agentic_trading.desk.portfolio_intents import IntentSettings
from agentic_trading.desk.session.agents import shipped_agent
from agentic_trading.desk.session.trading_session import MovableClock, TradingSession
from agentic_trading.desk.time_slices import ReferenceMarketFeed, TimeSlice
from agentic_trading.governance.rebuild import LostAttempt
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMProvider
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.provider import Provider, Providers
from agentic_trading.llm.providers.fault_injection import Faults, FaultyProvider
from agentic_trading.llm.providers.offline import MODEL, SCRIPTED_MODEL, RecordedAnswers, Rule, RulesProvider
from agentic_trading.operate.providers import PATIENCE
from agentic_trading.platform.config import FallbackConfig, ProviderConfig, RunMode, provider_and_model
from agentic_trading.trading_limits import LossLimits

STARTING_CASH = Decimal(100_000)
COSTS = TradingCosts()
RULES_MODEL = MODEL
OFFLINE_MODELS = {LLMProvider.RULES.value: MODEL, LLMProvider.SCRIPTED.value: SCRIPTED_MODEL}
"""The default model of each provider that has no real model."""
BASE = Timeframe.M5
GRID = BarGrid(BASE)
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
BUS_CHECKS = {**CHECKS, STRATEGY_PARAMS: check_shipped_params}
"""The checks of workers on a bus. They have no package of the user."""


@dataclass(frozen=True, slots=True)
class PaperVenue:
    """The venue of a session, shared by its exchange, agents, baselines and report."""

    instruments: Instruments
    costs: TradingCosts = COSTS
    cash: Decimal = STARTING_CASH
    shares_cash: bool = False

    @property
    def cost_bps(self) -> Decimal:
        """The cost of a market order, in basis points of its price."""
        return self.costs.half_spread_bps + self.costs.taker_fee_bps

    @property
    def spread_bps(self) -> Decimal:
        """The full spread, of which a taker is charged one half."""
        return 2 * self.costs.half_spread_bps


@dataclass(frozen=True, slots=True)
class AnswerSource:
    """The source of a session's answers.

    Attributes:
        providers: The providers, which are asked if `recorded` has no answer.
        llm: The default provider. The ids of a run are derived from `llm` and `model`.
        model: The default model. An empty text is the preset of the workflow.
        recorded: The recorded answers, or None.
        counts: Whether the provider's token count bounds the input, if the provider has one, instead of the
            bytes.
        lost: The attempts that an interrupted run has sent and whose outcome is unknown, by reservation id.
        models: The models of workflows that do not use the default, as `PROVIDER/MODEL`.
        fallback: The fallback models of failed calls, by workflow.
        patience: The retry policies of providers that do not use the default.
        of_bus: Whether workers of a bus gave the recorded answers. They know no code of the user, so that they
            did not ask again for its rules.

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
    of_bus: bool = False

    def asked_by(self, workflow: EnvelopeWorkflow) -> AskedModel:
        """Return the model for the agent of a workflow."""
        named = self.models.get(workflow)
        llm, model = (self.llm, self.model) if named is None else provider_and_model(named)
        return AskedModel(LLMProvider(llm), model, self.patience.get(llm))


def rules(
    *, inject: str, seed: str, recorded: RecordedAnswers | None = None, otherwise: Rule | None = None
) -> AnswerSource:
    """Return the built-in rules as the source of answers, and `otherwise` for other schemas.

    Raises:
        FaultsError: If `inject` is wrong.

    """
    provider = with_faults(RulesProvider(RULES, otherwise=otherwise), inject, seed)
    return AnswerSource(Providers.every(provider), LLMProvider.RULES, RULES_MODEL, recorded)


def offline_answers(
    rows: Mapping[str, ProviderConfig], names: Iterable[str], offline: Rule
) -> dict[str, Provider]:
    """Return the rules, with the offline answers of an agent, for each of `names` whose adapter is `rules`."""
    # It is not closed, because the provider that is replaced holds no resources.
    ours = (name for name in names if rows[name].adapter_of(name) == LLMProvider.RULES)
    return {name: RulesProvider(RULES, otherwise=offline) for name in ours}


def with_faults(provider: Provider, inject: str, seed: str) -> Provider:
    """Return `provider` with injected faults. Raises `FaultsError` for a wrong `inject`."""
    faults = Faults.parse(inject)
    return FaultyProvider(provider, faults, seed) if faults.shares else provider


def fault_kinds(inject: str) -> list[str]:
    """Return the kinds of faults in `inject`. Raises `FaultsError` for a wrong `inject`."""
    return [str(kind) for kind, _ in Faults.parse(inject).shares]


def replayed(recorded: RecordedAnswers, llm: LLMProvider, model: str) -> AnswerSource:
    """Return an earlier run as the source of answers. A call without a recorded answer is an error."""
    return AnswerSource(Providers.every(recorded), llm, model, recorded)


def bars_feed(bars: Sequence[Bar], *, symbol: str, name: str, grid: BarGrid = GRID) -> BarFeed:
    """Return a feed of bars in memory."""
    return market_feeds.MemoryFeed(
        bars, symbol=symbol, timeframe=grid.timeframe, calendar=grid.calendar, name=name
    )


def file_feed(
    path: Path,
    *,
    symbol: str,
    timeframe: Timeframe = BASE,
    clock: Clock | None = None,
    columns: Mapping[str, str] = NO_COLUMNS,
) -> BarFeed:
    """Return a feed of the bars of a symbol in a file. With a `clock`, only closed bars are yielded."""
    return market_feeds.CsvFeed(
        path, symbol=symbol, timeframe=timeframe, clock=clock, columns=columns, skips_others=True
    )


def file_blocks(path: Path) -> AsyncGenerator[list[bytes]]:
    """Yield the lines of a file, block by block. Raises the errors of `CsvFeed.blocks`."""
    return market_feeds.CsvFeed(path, symbol="", timeframe=BASE).blocks()


async def head_of(path: Path, *, symbol: str, most: int, columns: Mapping[str, str]) -> FileHead:
    """Return the open times of the first bars of a symbol in a file. Raises the errors of `read_head`."""
    return await market_feeds.read_head(path, symbol=symbol, most=most, columns=columns)


async def text_head(lines: Sequence[bytes], name: str, *, symbol: str, most: int) -> FileHead:
    """Return the open times of the first bars of a symbol in lines of text."""
    feed = text_feed(lines, name, symbol=symbol, timeframe=BASE)
    return await market_feeds.head_in(feed.blocks(), name, symbol=symbol, most=most)


def text_feed(
    lines: Sequence[bytes], name: str, *, symbol: str, timeframe: Timeframe
) -> market_feeds.TextFeed:
    """Return a feed of the bars of a symbol in lines of text."""
    return market_feeds.TextFeed(lines, symbol=symbol, timeframe=timeframe, name=name)


def kept_feed(path: Path, *, symbol: str, grid: BarGrid, most_bars: int | None = None) -> BarFeed:
    """Return a feed of the bars that a run has saved. A last row that a crash has cut off is left out."""
    return market_feeds.CsvFeed(
        path,
        symbol=symbol,
        timeframe=grid.timeframe,
        calendar=grid.calendar,
        most_bars=most_bars,
        whole_rows_only=True,
    )


def stdin_feed(
    *,
    symbol: str,
    timeframe: Timeframe = BASE,
    clock: Clock | None = None,
    columns: Mapping[str, str] = NO_COLUMNS,
) -> BarFeed:
    """Return a feed of the bars on standard input. With a `clock`, only closed bars are yielded."""
    return market_feeds.StdinFeed(
        sys.stdin.fileno(), symbol=symbol, timeframe=timeframe, clock=clock, columns=columns
    )


def shared_stdin() -> Callable[..., BarFeed]:
    """Return a function like `stdin_feed`, for several symbols of standard input."""
    return market_feeds.SharedStream(sys.stdin.fileno()).feed


def wall_clock(mode: RunMode) -> Clock | None:
    """Return the clock that decides if a bar has closed: the machine's in paper mode, None in a backtest."""
    # Not the clock of the session, because that clock follows the bars and so cannot check them.
    return SystemClock() if mode == "paper" else None


def clock_for(mode: RunMode, *, paced: bool = False) -> MovableClock:
    """Return the clock of a session, set before the first bar.

    It is simulated in a backtest, and follows the market in paper mode.

    With `paced`, a simulated clock sleeps in real time, because a live model may demand a pause.
    """
    if mode == "paper":
        return MarketClock(LONG_AGO)
    return PacedClock(LONG_AGO) if paced else SimClock(LONG_AGO)


def venue(symbols: Iterable[str], data: str = "") -> PaperVenue:
    """Return a venue for symbols. Its instruments are empty until a session adds bars."""
    if data in PANELS:
        return PaperVenue(Instruments(symbols, "USD"), shares_cash=True)
    return PaperVenue(Instruments(symbols))


def paper_exchange(venue: PaperVenue) -> PaperExchange:
    """Return a paper exchange with the cash, costs and instruments of a venue."""
    return PaperExchange(venue.instruments, cash=venue.cash, costs=venue.costs, shares_cash=venue.shares_cash)


def paper_account(venue: PaperVenue) -> PaperAccount:
    """Return an account with the cash of a venue, to which recorded fills are applied."""
    return PaperAccount(venue.cash, _currency(venue.instruments), venue.costs, allow_short=True)


def _currency(instruments: Instruments) -> str:
    return next((each.quote_currency for each in instruments.values()), USDT)


def baselines(instruments: Instruments, data: str = "") -> Baselines:
    """Return the baselines of a session on these instruments. `data` is the first source of its bars."""
    same_venue = replace(venue((), data), instruments=instruments)
    return Baselines(instruments, lambda: paper_exchange(same_venue))


def companions(symbols: Sequence[str]) -> dict[str, ReferenceMarketFeed]:
    """Return the shipped reference market for a session with one shipped market. Reads files."""
    name, other = SHIPPED_PAIRS.get(symbols[0], ("", "")) if len(symbols) == 1 else ("", "")
    if not name:
        return {}
    return {symbols[0]: ReferenceMarketFeed(load_sample(name), load_sample(other), decision=DECISION)}


def trading_session(
    venue: PaperVenue,
    *,
    data: str = "",
    timeframe: Timeframe = BASE,
    agent: Agent | None = None,
    ends_on_error: bool = True,
    risk: LossLimits = LossLimits(),  # noqa: B008 - frozen
    zone: tzinfo = UTC,
    resumes: ResumeSource | None = None,
    silence: SilenceLimit = SilenceLimit(),  # noqa: B008 - frozen
    session_id: str,
    tenant: str,
    gateway: AskingGateway,
    clock: MovableClock,
    exchange: Exchange,
    answers: AnswerSource,
    companions: Mapping[str, ReferenceMarketFeed],
    before_slice: Callable[[TimeSlice], Awaitable[None]],
    after_slice: Callable[[TimeSlice], Awaitable[None]],
) -> TradingSession:
    """Return a session over the symbols of `venue` in which `agent` uses `gateway`.

    Args:
        venue: The venue.
        data: The name of the first source of bars.
        timeframe: The length of the bars.
        agent: The agent. Default: the shipped one for `data`.
        ends_on_error: Whether an error of a handler ends the session.
        risk: The loss limits of the configuration. Those of the agent hold too.
        zone: The time zone of the days of loss limits.
        resumes: The commands of operators that resume halted entries. Default: there are none.
        silence: The number of missing bars that halts the entries of a symbol. Default: no number does.
        session_id: The ids of the session are derived from it.
        tenant: The tenant that pays.
        gateway: Runs the calls and records the events.
        clock: The clock, which follows the bars.
        exchange: The exchange.
        answers: The models of each workflow.
        companions: The shipped reference market of each symbol.
        before_slice: Awaited before each time slice.
        after_slice: Awaited after each time slice.

    """
    agent = agent or shipped_agent(data)
    symbols = tuple(venue.instruments)
    fill_limits = agent.fill_limits(timeframe)
    risk_limits = agent.risk_limits(symbols).narrowed_to(risk)
    journal = TradeJournal(gateway, clock, tenant_id=tenant)
    router = OrderRouter(exchange, journal, venue.instruments, fill_limits, risk_limits)
    session = DeskSession(
        session_id=session_id,
        tenant=tenant,
        symbols=symbols,
        data=data,
        taker_fee_bps=venue.costs.taker_fee_bps,
        half_spread_bps=venue.costs.half_spread_bps,
        limits=risk_limits,
        companions=companions,
    )
    settings = RunnerSettings(
        intents=IntentSettings(router, exchange, venue.instruments, journal, risk_limits),
        questions=Questions(gateway, clock, tenant, answers.asked_by, agent.workflows),
        session=session,
        halt=EntryHalt(session_id, risk_limits, zone, router, journal, resumes or NoResumes()),
        silent_feeds=SilentFeeds(session_id, symbols, silence, router, journal),
        ends_on_error=ends_on_error,
    )
    executor = _execution_settings(agent, answers, session_id, tenant)
    return TradingSession(
        source=AgentRunner(agent, settings),
        execution=ExecutionAgent(gateway, clock, fill_limits, executor),
        router=router,
        instruments=venue.instruments,
        spread_bps=venue.spread_bps,
        clock=clock,
        before_slice=before_slice,
        after_slice=after_slice,
    )


def _execution_settings(
    agent: Agent, answers: AnswerSource, session_id: str, tenant: str
) -> ExecutionSettings:
    execution = answers.asked_by(EnvelopeWorkflow.EXECUTION)
    return ExecutionSettings(
        session_id=session_id,
        tenant_id=tenant,
        provider=execution.llm,
        model=execution.model,
        retry_policy=execution.patience,
        asks=agent.fills == "model",
    )
