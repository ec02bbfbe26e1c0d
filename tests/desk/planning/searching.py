"""A small market, what runs sets over it, and a planner that asks providers made for tests."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from agentic_trading.clock import SimClock
from agentic_trading.desk.planning.agent import PlannerSettings, PlanningAgent
from agentic_trading.desk.planning.evaluator import PanelEvaluator
from agentic_trading.desk.planning.panel import Panel
from agentic_trading.desk.planning.params import Family, StrategyParams, read_params
from agentic_trading.desk.planning.rules import strategy_params_rule
from agentic_trading.desk.planning.schema import STRATEGY_PARAMS, check_strategy_params
from agentic_trading.desk.planning.template import MomentumTemplate
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import Provider, Providers
from agentic_trading.llm.providers.offline import RulesProvider
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.platform import Platform, Ports
from agentic_trading.worker.call_context import Checks
from tests.desk.planning.strategy_code import panel

CHECKS: Checks = {STRATEGY_PARAMS: check_strategy_params}
SET: dict[str, Any] = {
    "momentum_period": 20,
    "ma_periods": 60,
    "catalyst_type": "none",
    "catalyst_lookback": 3,
    "n_stocks": 5,
    "stop_loss": 0.1,
    "resample": "W",
    "resample_offset": 0,
}
"""A valid set on prices and volumes."""


def momentum(**changes: Any) -> StrategyParams:
    return read_params({**SET, **changes})


def market() -> Panel:
    """Return 245 days of eight stocks."""
    return panel(245, 8)


def rules() -> Provider:
    """Return the provider that answers without a model."""
    return RulesProvider({STRATEGY_PARAMS: strategy_params_rule})


class OwnTemplate(MomentumTemplate):
    """Momentum's template with a text of its own in place of the function's."""

    def __init__(self, source: str) -> None:
        self._source = source

    @property
    def source(self) -> str:
        return self._source


def source(*lines: str) -> str:
    """Return the text of a function with these lines."""
    body = "\n    ".join(lines)
    return f"\ndef target_weights(close, volume, catalyst, rebalance):\n    {body}\n"


@asynccontextmanager
async def planner(
    evaluator: PanelEvaluator,
    provider: Provider,
    store: MemoryInteractionStore,
    *,
    family: Family = "momentum",
    checks: Checks = CHECKS,
    **changes: Any,
) -> AsyncGenerator[PlanningAgent]:
    """Give a planner whose calls `provider` answers, and whose records `store` keeps."""
    clock = SimClock(evaluator.chosen_at + timedelta(seconds=1))
    ports = Ports(providers=Providers.every(provider), store=store, clock=clock)
    async with Platform(PlatformConfig(mode="backtest"), ports, checks=checks) as platform:
        settings = PlannerSettings("session-1", LLMProvider.SCRIPTED, "scripted-1", family, **changes)
        yield PlanningAgent(platform, clock, evaluator, settings)


async def events_of(store: MemoryInteractionStore, *namespaces: str) -> list[Event]:
    """Return the events of planning, in the order in which they were recorded."""
    wanted = namespaces or ("generation", "plan")
    records = [entry.record async for entry in store.scan()]
    return [one for one in records if isinstance(one, Event) and one.kind.partition(".")[0] in wanted]


async def calls_of(store: MemoryInteractionStore) -> list[LLMInteraction]:
    """Return all attempts, in the order in which they were recorded."""
    return [entry.record async for entry in store.scan() if isinstance(entry.record, LLMInteraction)]
