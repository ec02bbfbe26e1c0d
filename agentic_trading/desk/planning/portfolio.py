"""Planning in a session: when to plan, and the weights of the plan at each close."""

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
from agentic_trading.desk.planning.families import template_of
from agentic_trading.desk.planning.panel import Panel
from agentic_trading.desk.planning.params import FAMILIES
from agentic_trading.desk.planning.promises import WeightRules, broken_promises
from agentic_trading.desk.planning.sandbox import Aborted, Sandbox, SandboxJob
from agentic_trading.desk.planning.template import TEMPLATES
from agentic_trading.errors import extra_named
from agentic_trading.ids import derived_id
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision

with extra_named():
    import numpy as np

REGIME_BARS: Final = 5
"""A new plan is made after the regime has been a different one for this many bars in a row."""

TREND_BARS: Final = 50
VOLATILITY_BARS: Final = (20, 60)
ROUGH: Final = 1.25
"""The market is rough if the shorter volatility is above this many times the longer one."""


def market_regime(panel: Panel) -> str:
    """Return the market's state at the last close, such as `up calm` or `down rough`.

    The state is that of an equal-weight index, which chains the mean return of all stocks with a price on
    both bars. It is up above its mean of `TREND_BARS` bars. It is rough if its volatility over the shorter of
    `VOLATILITY_BARS` is above `ROUGH` times that over the longer one. If there are fewer bars than in a
    window, all bars count.
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
    """A planner that plans again after a lasting change of the market's regime.

    The first plan is made at the first bar with enough history. Plans and weights use the bars so far only.
    If a plan fails, the previous plan stays, and the next try is `REGIME_BARS` bars later at the earliest. If
    code breaks its promises or does not end, the weights stay. A rebalance that was due is then done at the
    next close.

    Args:
        name: The name of the data.
        gateway: Runs the calls and records the events.
        clock: The clock of the session.
        settings: The settings of the planner.
        rounds: The number of rounds per plan.
        costs: The assumed costs of a trade.
        weights: Runs a plan's code, by default in a sandbox (`last_weights`).

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
        """Add the next closed bar of a symbol."""
        values = (bar.open, bar.high, bar.low, bar.close, bar.volume)
        self._bars[bar.open_time.date(), bar.symbol] = tuple(map(float, values))

    async def targets(self, at: datetime) -> TargetWeights | None:
        """Return the weights to hold at the close `at`. Makes a plan first if one is due.

        Returns:
            The weights, or None if there is no plan, or the plan's code has no valid weights.

        Raises:
            StoreError: If an event cannot be recorded.
            BusError: If a message cannot be published.
            TemplateError: If the template cannot be rendered.
            SandboxStartError: If the sandbox does not start.

        """
        try:
            panel = await asyncio.to_thread(self._panel)
        except EmptyUniverseError:
            return None  # no choice is possible yet, because fewer than two stocks have a price
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
        """Make a plan if one is due. Return whether there is a new plan."""
        regime = market_regime(panel)
        self._regimes = [*self._regimes, regime] if regime in self._regimes[-1:] else [regime]
        is_due = regime != self._planned_in and len(self._regimes) >= self._bars_to_wait
        family = self._settings.family
        own = [] if family in FAMILIES else [family]
        if not is_due or family not in offers_of(panel, own_families=own).grids:
            return False
        templates = {**TEMPLATES, family: template_of(family)}
        self._bars_to_wait, self._regimes = REGIME_BARS, []
        async with _opened(Sandbox(panel)) as sandbox:
            opened = partial(PanelEvaluator, panel, sandbox, costs=self._costs, templates=templates)
            evaluator = await asyncio.to_thread(opened)
            agent = PlanningAgent(self._gateway, self._clock, evaluator, self._settings, as_of=at)
            plan = await agent.plan(self._rounds, regime=regime)
        if isinstance(plan, NoDecision):
            await self._undecided(plan)
            return False
        self._plan, self._planned_in = plan, regime
        params = plan.champion.params
        generated = partial(templates[params.strategy_type].generate_code, data_sha256=evaluator.data_sha256)
        self._code = await asyncio.to_thread(generated, params)
        return True

    async def _undecided(self, decision: NoDecision) -> None:
        """Record that a close has no decision, and the reason."""
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
        return Panel.of_bars(self._name, self._bars)


@asynccontextmanager
async def _opened(sandbox: Sandbox) -> AsyncGenerator[Sandbox]:
    """Open a sandbox in a thread, and close it in a thread."""
    stack = ExitStack()
    try:
        # Shielded, because a cancellation would otherwise leave the thread and its child process running.
        yield await run_shielded(asyncio.to_thread(stack.enter_context, sandbox))
    finally:
        await run_shielded(asyncio.to_thread(stack.close))


def last_weights(panel: Panel, job: SandboxJob, rules: WeightRules) -> dict[str, float] | str:
    """Return the weights that code wants to hold at the last close, by symbol. Blocks.

    Returns:
        The weights, or the reason why the code has no valid weights.

    """
    with Sandbox(panel) as sandbox:
        outcome = sandbox.run(job)
    if isinstance(outcome, Aborted):
        return f"the sandbox ended the plan's code: {outcome.text}"
    if broken := broken_promises(outcome.weights, panel.filled, job.rebalance, rules):
        return f"the plan's code broke a promise: {broken[0].promise}: {broken[0].message}"
    return dict(zip(panel.symbols, outcome.weights[-1].tolist(), strict=True))
