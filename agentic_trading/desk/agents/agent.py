"""An agent: a class with the handlers that it needs. The shipped agents are made in the same way."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final, Literal

from agentic_trading.desk.agent_events import HandlerName
from agentic_trading.desk.agents.desk import Desk
from agentic_trading.desk.agents.dice import dice
from agentic_trading.desk.exchange import Cancellation, Fill
from agentic_trading.desk.execution.order import FillLimits
from agentic_trading.desk.execution.risk import RiskLimits
from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.trading_limits import Economics

HANDLERS: Final[tuple[HandlerName, ...]] = ("on_start", "on_fill", "on_timer", "on_bar", "on_close")
"""The handlers, in the order in which they run at one close."""

Fills = Literal["plain", "model"]

_DAY: Final = Timeframe.D1.seconds


class Agent:
    """A trading agent. Override the handlers that you need.

    At each close, handlers run one after the other: `on_start` once, then fills and cancellations in the
    exchange's order, timers by name, bars by symbol, and `on_close`. Orders are sent after all of them.

    A handler may use its desk, its arguments and the attributes of the agent. If it reads a clock, a file, a
    network or random numbers, a replay cannot repeat it.

    Attributes:
        timeframe: The timeframe of `on_bar`, such as `1h`. Empty for the bars of the data.
        timeframes: Further timeframes, for `desk.history` and `desk.frame`.
        workflows: The workflows of its questions. Each may have its own model.
        fills: How orders are filled. `plain` takes the next open, or rests at the limit. `model` asks a model
            for each order.

    Example:
        class Breakout(Agent):
            timeframe = "1h"

            async def on_bar(self, desk: Desk, bar: Bar) -> None:
                if not desk.position() and bar.close > bar.open:
                    desk.buy(risk_pct=1, stop=bar.low)

    """

    timeframe: str = ""
    timeframes: Sequence[str] = ()
    workflows: ClassVar[tuple[EnvelopeWorkflow, ...]] = (EnvelopeWorkflow.ANALYSIS,)
    fills: ClassVar[Fills] = "plain"

    def __init__(self, **config: Any) -> None:
        """Set the attributes in `config`. Each must be an attribute of the class.

        Raises:
            ValueError: If the class has no such attribute.

        """
        for name, value in config.items():
            if name.startswith("_") or not _is_setting(type(self), name):
                allowed = ", ".join(setting_names(type(self))) or "no settings"
                raise ValueError(f"{type(self).__name__} has no setting {name!r}. Allowed: {allowed}")
            setattr(self, name, value)

    @property
    def name(self) -> str:
        """The name on record: that of the class."""
        return type(self).__name__

    def risk_limits(self, symbols: Sequence[str]) -> RiskLimits:
        """Return the risk limits of its orders for a session with these symbols."""
        orders = max(60, 4 * len(symbols))
        return RiskLimits(
            require_stop=False, nets_exits=True, max_orders_per_minute=orders, max_open_orders=orders
        )

    def economics(self) -> Economics:
        """Return the limits on the cost of its questions."""
        return Economics()

    def fill_limits(self, timeframe: Timeframe) -> FillLimits:
        """Return the limits of its orders for bars of this length."""
        if timeframe.seconds >= _DAY:
            return FillLimits(bar_seconds=timeframe.seconds, max_deadline_s=_DAY, max_slices=1)
        return FillLimits(bar_seconds=timeframe.seconds, max_deadline_s=max(3_600, timeframe.seconds))

    def order_lives(self, timeframe: Timeframe) -> timedelta:
        """Return how long an order request may wait for its fill."""
        # A week at daily bars, because the next bar may be days away.
        return timedelta(days=7) if timeframe.seconds >= _DAY else timedelta(hours=1)

    def offline(self, envelope: LLMEnvelope) -> str | Mapping[str, Any]:
        """Answer a question of this agent with `--provider rules`.

        It must return equal answers for equal envelopes. The default is a drawn answer that fits the schema.
        """
        drawn: Mapping[str, Any] = dice(envelope.expected_output_schema, envelope.request_hash)
        return drawn

    async def on_start(self, desk: Desk) -> None:
        """Run once, at the first close."""

    async def on_fill(self, desk: Desk, report: Fill | Cancellation) -> None:
        """Run for each fill, and for each order that ended before it was filled."""

    async def on_timer(self, desk: Desk, name: str) -> None:
        """Run at the first close at or after a time of `desk.at` or `desk.every`."""

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        """Run at each close of a bar of `timeframe`."""

    async def on_close(self, desk: Desk) -> None:
        """Run at each close, after the bars of all symbols."""


def setting_names(agent: type[Agent]) -> list[str]:
    """Return the names that the configuration of an agent may have."""
    own = (name for each in agent.__mro__ if issubclass(each, Agent) for name in vars(each))
    return sorted({name for name in own if not name.startswith("_") and _is_setting(agent, name)})


def _is_setting(agent: type[Agent], name: str) -> bool:
    """Return whether a class attribute holds a value. Methods, properties and `ClassVar`s of `Agent` do not."""
    value = getattr(agent, name, dice)
    is_code = callable(value) or isinstance(value, property | staticmethod | classmethod)
    return not is_code and name not in {"workflows", "fills"}
