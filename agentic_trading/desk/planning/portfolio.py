"""Planning in a session: when a plan is made over the bars so far, and what its code wants to hold at each close."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from datetime import date, datetime
from functools import partial
from typing import Final

from agentic_trading.cancellation import run_shielded
from agentic_trading.canonical import utc_text
from agentic_trading.client.gateway import Gateway
from agentic_trading.clock import Clock
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.errors import EmptyUniverseError
from agentic_trading.desk.planning.agent import Plan, PlannerSettings, PlanningAgent, TargetWeights
from agentic_trading.desk.planning.backtest import TradeCosts
from agentic_trading.desk.planning.evaluator import PanelEvaluator, offers_of
from agentic_trading.desk.planning.events import PlanUndecided
from agentic_trading.desk.planning.panel import Panel
from agentic_trading.desk.planning.promises import WeightRules, broken_promises
from agentic_trading.desk.planning.sandbox import Aborted, Sandbox, SandboxJob
from agentic_trading.desk.planning.template import TEMPLATES
from agentic_trading.errors import extra_named
from agentic_trading.ids import derived_id
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision

with extra_named():
    import numpy as np

REGIME_BARS: Final = 5
"""For so many bars in a row the regime has been another before a new plan is made."""

TREND_BARS: Final = 50
VOLATILITY_BARS: Final = (20, 60)
ROUGH: Final = 1.25
"""From this many times its longer volatility on, the shorter one counts as rough."""


def market_regime(panel: Panel) -> str:
    """Return the market's state at the last close: `up` or `down`, `calm` or `rough`, as of the equal-weight index.

    The index chains the mean return of all stocks that have a price on both bars. It is up above its mean of `TREND_BARS`
    bars, and rough where its volatility over the shorter of `VOLATILITY_BARS` is `ROUGH` times that over the longer one. Of
    fewer bars than a window has, all count.
    """
    before, after = panel.filled[:-1], panel.filled[1:]
    both = ~(np.isnan(before) | np.isnan(after))
    changes = np.where(both, after / np.where(both, before, 1.0) - 1, 0.0)
    returns = changes.sum(axis=1) / np.maximum(both.sum(axis=1), 1)
    index = np.concatenate(([1.0], np.cumprod(1 + returns)))
    trend = "up" if index[-1] > index[-TREND_BARS:].mean() else "down"
    short, long = (float(np.std(returns[-bars:])) if len(returns) else 0.0 for bars in VOLATILITY_BARS)
    return f"{trend} {'rough' if short > ROUGH * long else 'calm'}"


class RegimePlanner:
    """Plans at the first bar with enough history, and again when the regime has changed for good.

    A plan is made of the bars so far, and so are the weights that its code wants. One that fails changes nothing: the plan
    before it holds, if there is one, and another one is asked for `REGIME_BARS` later. Code that breaks its promises, or does not end, changes nothing either, and a rebalance that it was due for is made up for at the next close.
    """

    def __init__(
        self,
        name: str,
        gateway: Gateway,
        clock: Clock,
        settings: PlannerSettings,
        *,
        rounds: int,
        costs: TradeCosts = TradeCosts(),  # noqa: B008 - a frozen value
        weights: Callable[[Panel, SandboxJob, WeightRules], Mapping[str, float] | str] | None = None,
    ) -> None:
        """Take the name of the data, how many sets a plan tries, what a trade is taken to cost, and what runs a plan's code."""
        self._name = name
        self._gateway = gateway
        self._clock = clock
        self._settings = settings
        self._rounds = rounds
        self._costs = costs
        self._run = weights or last_weights
        self._bars: dict[tuple[date, str], tuple[float, ...]] = {}
        self._plan: Plan | None = None
        self._code = ""
        self._weights: Mapping[str, float] = {}
        self._vanished: frozenset[int] = frozenset()
        self._is_due = False
        self._planned_in = ""
        self._regimes: list[str] = []
        self._bars_to_wait = 1

    def push(self, bar: Bar) -> None:
        """Take the next closed bar of a symbol."""
        values = (bar.open, bar.high, bar.low, bar.close, bar.volume)
        self._bars[bar.open_time.date(), bar.symbol] = tuple(map(float, values))

    async def targets(self, at: datetime) -> TargetWeights | None:
        """Return what to hold as of the close at `at`; None while there is no plan. Asks for a plan where one is due.

        Raises what `PlanningAgent.plan` raises, and `StoreError` and `BusError`.
        """
        try:
            panel = await asyncio.to_thread(self._panel)
        except EmptyUniverseError:
            return None  # one stock has opened: there is nothing to choose among
        is_new = await self._planned(panel, at)
        if self._plan is None:
            return None
        params = self._plan.champion.params
        rules = WeightRules.of(params)
        job = SandboxJob.of(self._code, params, panel.days)
        vanished = frozenset(np.flatnonzero(np.isnan(panel.filled[-1])).tolist())
        rebalances = self._is_due = self._is_due or is_new or bool(job.rebalance[-1])
        if rebalances or rules.exits_between or vanished != self._vanished:
            wanted = await asyncio.to_thread(self._run, panel, job, rules)
            if isinstance(wanted, str):
                reason = FailureReason(category=FailureKind.INTERNAL_ERROR, description=wanted)
                await self._undecided(NoDecision(reason=reason, trace_id=self._plan.trace_id, as_of=at))
                return None
            self._weights, self._vanished, self._is_due = wanted, vanished, False
        return TargetWeights(
            weights=self._weights,
            rebalances=rebalances,
            stop_loss=params.stop_loss,
            plan_id=self._plan.event_id,
            trace_id=self._plan.trace_id,
        )

    async def _planned(self, panel: Panel, at: datetime) -> bool:
        """Make a plan if one is due; returns whether there is a new one."""
        regime = market_regime(panel)
        self._regimes = [*self._regimes, regime] if regime in self._regimes[-1:] else [regime]
        is_due = regime != self._planned_in and len(self._regimes) >= self._bars_to_wait
        if not is_due or self._settings.family not in offers_of(panel).grids:
            return False
        self._bars_to_wait, self._regimes = REGIME_BARS, []
        async with _opened(Sandbox(panel)) as sandbox:
            evaluator = await asyncio.to_thread(partial(PanelEvaluator, panel, sandbox, costs=self._costs))
            agent = PlanningAgent(self._gateway, self._clock, evaluator, self._settings, as_of=at)
            plan = await agent.plan(self._rounds, regime=regime)
        if isinstance(plan, NoDecision):
            await self._undecided(plan)
            return False
        self._plan, self._planned_in = plan, regime
        params = plan.champion.params
        template = TEMPLATES[params.strategy_type]
        self._code = await asyncio.to_thread(
            partial(template.generate_code, params, data_sha256=evaluator.data_sha256)
        )
        return True

    async def _undecided(self, decision: NoDecision) -> None:
        """Record that nothing was decided at a close, and why."""
        at = utc_text(decision.as_of) if decision.as_of else ""
        event = PlanUndecided(family=self._settings.family, **dict(decision)).as_event(
            event_id=derived_id(decision.trace_id, PlanUndecided.KIND, at),
            trace_id=decision.trace_id,
            tenant_id=self._settings.tenant_id,
            time=self._clock.now(),
            causation_id=self._plan.event_id if self._plan else "",
            as_of=decision.as_of,
        )
        await self._gateway.record(event)

    def _panel(self) -> Panel:
        """Return the bars so far as a panel."""
        return Panel.of_bars(self._name, self._bars)


@asynccontextmanager
async def _opened(sandbox: Sandbox) -> AsyncGenerator[Sandbox]:
    """Open a sandbox and close it, both in a thread."""
    stack = ExitStack()
    try:
        yield await run_shielded(asyncio.to_thread(stack.enter_context, sandbox))
    finally:
        await run_shielded(asyncio.to_thread(stack.close))


def last_weights(panel: Panel, job: SandboxJob, rules: WeightRules) -> dict[str, float] | str:
    """Return what the code wants to hold at the last close, by symbol; or why it has no weights. It blocks."""
    with Sandbox(panel) as sandbox:
        outcome = sandbox.run(job)
    if isinstance(outcome, Aborted):
        return f"the sandbox ended the plan's code: {outcome.text}"
    if broken := broken_promises(outcome.weights, panel.filled, job.rebalance, rules):
        return f"the plan's code broke a promise: {broken[0].promise}: {broken[0].message}"
    return dict(zip(panel.symbols, outcome.weights[-1].tolist(), strict=True))
