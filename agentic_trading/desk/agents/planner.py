"""The shipped planner: plans over many stocks, and holds the weights of its plan."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Protocol

from typing_extensions import override

from agentic_trading.desk.agents.agent import Agent
from agentic_trading.desk.agents.desk import Desk
from agentic_trading.desk.execution.order import FillLimits
from agentic_trading.desk.execution.risk import RiskLimits
from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.planning.agent import PlannerSettings, TargetWeights
from agentic_trading.desk.planning.params import PlanTerms
from agentic_trading.errors import require_extra
from agentic_trading.llm.envelope import EnvelopeWorkflow


class Planner(Protocol):
    """Decides the weights of all symbols together."""

    def push(self, bar: Bar) -> None:
        """Add the next closed bar of a symbol."""
        ...

    async def targets(self, at: datetime) -> TargetWeights | None:
        """Return the target weights at the close `at`, or None without a plan. Holdings then stay unchanged."""
        ...


class PlannerAgent(Agent):
    """An agent that holds the weights of a `RegimePlanner`.

    Attributes:
        plan: The terms of its plans.

    """

    workflows: ClassVar[tuple[EnvelopeWorkflow, ...]] = (EnvelopeWorkflow.PLANNING,)
    plan = PlanTerms()

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._planner: Planner | None = None

    @property
    @override
    def name(self) -> str:
        return "planner"

    @override
    def risk_limits(self, symbols: Sequence[str]) -> RiskLimits:
        orders = max(1, 4 * len(symbols))  # stops are checked on each close, so that an order needs none
        return RiskLimits(
            require_stop=False, nets_exits=True, max_orders_per_minute=orders, max_open_orders=orders
        )

    @override
    def fill_limits(self, timeframe: Timeframe) -> FillLimits:
        """Orders are filled at the next open, as in the backtest of the plan."""
        day = Timeframe.D1.seconds
        return FillLimits(allowed_order_types=("market",), bar_seconds=day, max_deadline_s=day, max_slices=1)

    def sizing(self) -> str:
        """Return how its orders are sized, as a phrase of the report."""
        most = self.risk_limits(()).max_gross_pct
        return f"weights of a plan in {most} % of the equity, its stops checked on each close"

    @override
    async def on_start(self, desk: Desk) -> None:
        """Make the planner. Raises `MissingExtraError` if a package is not installed."""
        # Checked first, because otherwise a call would be paid for whose code cannot be rendered.
        require_extra("numpy")
        from agentic_trading.desk.planning.backtest import TradeCosts  # noqa: PLC0415 - numpy is an extra
        from agentic_trading.desk.planning.portfolio import RegimePlanner  # noqa: PLC0415 - and so is this

        asked, session = desk.model_of(EnvelopeWorkflow.PLANNING), desk.session
        settings = PlannerSettings(
            session_id=session.session_id,
            tenant_id=session.tenant,
            provider=asked.llm,
            model=asked.model,
            family=self.plan.family,
            retry_policy=asked.patience,
        )
        fees = TradeCosts(float(session.taker_fee_bps), float(session.half_spread_bps))
        self._planner = RegimePlanner(
            session.data, desk.gateway, desk.clock, settings, rounds=self.plan.rounds, costs=fees
        )

    @override
    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        """Add a bar to the planner."""
        if self._planner is not None:
            self._planner.push(bar)

    @override
    async def on_close(self, desk: Desk) -> None:
        """Request the weights of the plan, if there is one."""
        wanted = None if self._planner is None else await self._planner.targets(desk.now)
        if wanted is not None:
            desk.hold(wanted)
