"""When a session plans, as a function of the bars so far, and what it holds where a plan's code has no weights."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest

from agentic_trading.clock import SimClock
from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.planning.agent import PlannerSettings
from agentic_trading.desk.planning.panel import Panel
from agentic_trading.desk.planning.portfolio import RegimePlanner, last_weights, market_regime
from agentic_trading.desk.planning.promises import WeightRules
from agentic_trading.desk.planning.sandbox import SandboxJob
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.provider import Providers
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.platform import Platform, Ports
from tests.desk.planning.searching import CHECKS, events_of, market, rules

BARS = 80


def panel(returns: object) -> Panel:
    """Return three stocks that move alike."""
    moves = np.tile(np.array(returns, dtype=np.float64)[:, None], (1, 3))
    close = np.array(100 * np.cumprod(1 + moves, axis=0), dtype=np.float64)
    days = np.datetime64("2024-01-01") + np.arange(len(close))
    return Panel.of("made", days, ("A", "B", "C"), {"close": close})


def swings(of: float, bars: int, drift: float = 0.0) -> list[float]:
    """Return returns that go up and down by `of`."""
    return [drift + of * (1 if bar % 2 else -1) for bar in range(bars)]


@pytest.mark.parametrize(
    ("returns", "regime"),
    [
        ([*swings(0.01, BARS, 0.002)], "up calm"),
        ([*swings(0.01, BARS, -0.002)], "down calm"),
        ([*swings(0.005, BARS - 10, 0.002), *swings(0.03, 10, 0.01)], "up rough"),
        ([*swings(0.005, BARS - 10, -0.002), *swings(0.03, 10, -0.01)], "down rough"),
        ([0.0], "down calm"),
    ],
)
def test_regime_combines_trend_and_volatility(returns: list[float], regime: str) -> None:
    assert market_regime(panel(returns)) == regime


def test_regime_ignores_later_bars() -> None:
    chance = np.random.default_rng(4)
    returns = chance.normal(0, 0.02, BARS)
    whole = [market_regime(panel(returns[:bars])) for bars in range(2, BARS)]

    altered = np.concatenate((returns[:50], chance.normal(0, 0.1, BARS - 50)))

    assert len(set(whole)) > 1
    assert [market_regime(panel(altered[:bars])) for bars in range(2, 50)] == whole[:48]


def test_unpriced_stock_is_excluded_from_index() -> None:
    close = np.tile(np.linspace(100, 120, BARS)[:, None], (1, 3))
    close[:, 2] = np.linspace(100, 10, BARS)
    close[1:, 2] = np.nan
    days = np.datetime64("2024-01-01") + np.arange(BARS)

    assert market_regime(Panel.of("made", days, ("A", "B", "C"), {"close": close})) == "up calm"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("    return unknown\n", "NameError"),
        ("    return close * 2.0\n", "row_sum"),
        ("    return close[:1]\n", "error"),
    ],
)
def test_failed_code_reports_reason(body: str, why: str) -> None:
    prices = panel([0.01] * 10)
    code = f"import numpy as np\n\n\ndef target_weights(close, volume, catalyst, rebalance):\n{body}"
    job = SandboxJob(code, np.ones(10, dtype=np.bool_))

    found = last_weights(prices, job, WeightRules(n_stocks=3))

    assert isinstance(found, str)
    assert why in found


def test_last_weights_are_by_symbol() -> None:
    prices = panel([0.01] * 10)
    code = (
        "import numpy as np\n\n\ndef target_weights(close, volume, catalyst, rebalance):\n"
        "    return np.zeros(close.shape) + 0.25\n"
    )

    found = last_weights(prices, SandboxJob(code, np.ones(10, dtype=np.bool_)), WeightRules(n_stocks=3))

    assert found == {"A": 0.25, "B": 0.25, "C": 0.25}


DAY = timedelta(days=1)
FIRST = datetime(2020, 1, 1, tzinfo=UTC)


def closes(bars: int) -> Iterator[list[Bar]]:
    """Yield the bars of each day of a small market."""
    prices = market()
    for row in range(bars):
        price = [Decimal(repr(float(each))) for each in prices.close[row]]
        yield [
            Bar(
                symbol=symbol, timeframe=Timeframe.D1, open_time=FIRST + row * DAY,
                open=at, high=at, low=at, close=at, volume=Decimal(9),
            )
            for symbol, at in zip(prices.symbols, price, strict=True)
        ]  # fmt: skip


async def test_interrupted_rebalance_is_retried_next_close() -> None:
    outcomes: Iterator[Mapping[str, float] | str] = iter(["the machine is busy", {"S1": 0.2}, {"S1": 0.2}])
    clock, store, found = SimClock(FIRST), MemoryInteractionStore(), []
    ports = Ports(providers=Providers.every(rules()), store=store, clock=clock)
    settings = PlannerSettings("session-1", LLMProvider.SCRIPTED, "scripted-1")
    async with Platform(PlatformConfig(mode="backtest"), ports, checks=CHECKS) as platform:
        planner = RegimePlanner(
            "made", platform, clock, settings, rounds=5, weights=lambda *_: next(outcomes)
        )
        for number, bars in enumerate(closes(142), 1):
            for bar in bars:
                planner.push(bar)
            clock.advance_to(FIRST + number * DAY)
            found.append(await planner.targets(FIRST + number * DAY))

    planned = [event.kind for event in await events_of(store, "plan")]
    assert planned == ["plan.chosen", "plan.undecided"]
    assert found[:140] == [None] * 140
    made_up = found[140]
    assert made_up is not None
    assert (made_up.rebalances, made_up.weights) == (True, {"S1": 0.2})
