"""Agents in memory: play a session of one agent, and read what it left."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, Field, field_validator

from agentic_trading.canonical import exact_bytes
from agentic_trading.desk import Agent, Bar, Cancellation, Desk, Fill, Question
from agentic_trading.desk.agents.agent import Fills
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.agents import OwnAgent, load_agent
from agentic_trading.desk.session.report import RunReport
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider
from agentic_trading.llm.providers.offline import RulesProvider
from agentic_trading.platform.adapters import ProviderContext
from tests.flows.sessions import LOADED, Evening, evening, events_in, ran

BTC = {"btcusdt-5m": LOADED["btcusdt-5m"]}


class View(BaseModel):
    """An answer about a market."""

    side: str = Field(pattern="^(long|flat|short)$")
    strength: float = Field(ge=0, le=1)


class Asking(Agent):
    """Asks at each hour's close, and trades each answer."""

    timeframe = "1h"

    def offline(self, envelope: LLMEnvelope) -> str | Mapping[str, Any]:
        return {"side": "long", "strength": 0.5}

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        answer = await desk.decide("Where does it go?", output=View, evidence={"bars": desk.history(n=3)})
        if answer and not desk.position():
            desk.buy(notional=1000, stop=bar.close * 98 / 100, because=answer)


class SureView(View):
    """An answer whose rule is only in its class, so that its schema does not have it."""

    @field_validator("strength")
    @classmethod
    def _is_sure(cls, strength: float) -> float:
        if strength <= 0.5:
            raise ValueError("a strength above 0.5")
        return strength


class Doubting(Asking):
    """Gets only answers that break a rule of their class."""

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        if await desk.decide("Where does it go?", output=SureView, evidence={"bars": desk.history(n=3)}):
            desk.buy(notional=1000)


class Filling(Asking):
    """Asks a model also how each order is filled."""

    fills: ClassVar[Fills] = "model"


class Holding(Asking):
    """Holds the three stocks that rose the most in 20 days, and changes them every tenth day."""

    timeframe = ""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.days = 0

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        """Trade all stocks together only."""

    async def on_close(self, desk: Desk) -> None:
        self.days += 1
        if self.days % 10:
            return
        rises = {}
        for symbol in desk.symbols:
            bars = desk.history(symbol, 20)
            if len(bars) == 20:
                rises[symbol] = bars[-1].close / bars[0].close
        best = sorted(rises, key=lambda symbol: (-rises[symbol], symbol))[:3]
        if not best:
            return
        answer = await desk.decide("Hold them?", output=View, evidence={"best": best})
        if answer:
            desk.weights(dict.fromkeys(best, 0.2), because=answer)


class Rotating(Agent):
    """Every four hours: asks about all markets at once, then wants a weight of each."""

    timeframe = "1h"

    def offline(self, envelope: LLMEnvelope) -> Mapping[str, Any]:
        last = envelope.retrieved_evidence[0].content[-1]
        side = "long" if str(last["close"]) > str(last["open"]) else "short"
        return {"side": side, "strength": 0.25}

    async def on_start(self, desk: Desk) -> None:
        desk.every(timedelta(hours=4), "rotate")

    async def on_timer(self, desk: Desk, name: str) -> None:
        ready = [symbol for symbol in desk.symbols if len(desk.history(symbol)) >= 3]
        asked = [
            Question("Where does it go?", View, {"bars": desk.history(symbol, 3)}, symbol=symbol)
            for symbol in ready
        ]
        for symbol, answer in zip(ready, await desk.decide_all(*asked), strict=True):
            if answer and answer.output is not None:
                aim = {"long": 1, "flat": 0, "short": -1}[answer.output.side] * answer.output.strength
                desk.target(symbol, aim, band=0.01, because=answer, reason=answer.output.side)

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        if not desk.position() and desk.chance() < 0.2:
            desk.buy(notional=500, limit=bar.close * 999 / 1000, stop=bar.close * 97 / 100)

    async def on_fill(self, desk: Desk, report: Fill | Cancellation) -> None:
        await desk.note("traded", position=str(desk.position(report.symbol)))


def answers_of(agent: Agent) -> Provider:
    """Return the rules, and the answers of an agent to its own questions."""

    def answer(envelope: LLMEnvelope) -> str:
        given = agent.offline(envelope)
        return given if isinstance(given, str) else exact_bytes(given).decode()

    return RulesProvider(trading.RULES, otherwise=answer)


async def played(agent: Agent, provider: Provider | None = None, **changes: Any) -> Evening:
    """Play a session of an agent over one market; `changes` are as for `evening`."""
    return await evening(provider or answers_of(agent), **{"bars": BTC, "agent": agent, **changes})


async def facts(evening: Evening, *kinds: str) -> list[Event]:
    """Return the events of these kinds."""
    return events_in(await evening.records(), *kinds)


async def attempts(evening: Evening) -> list[LLMInteraction]:
    """Return the attempts."""
    return [record for record in await evening.records() if isinstance(record, LLMInteraction)]


class Switching(Agent):
    """Holds one of the first two symbols, and another one at each close."""

    def __init__(self) -> None:
        super().__init__()
        self._closes = 0

    async def on_close(self, desk: Desk) -> None:
        self._closes += 1
        first, second, *_ = desk.symbols
        desk.weights({first: 0.9} if self._closes % 2 else {second: 0.9})


async def ran_with(out: Path, agent: type[Agent], **changes: Any) -> RunReport:
    """Run an agent of this module into a folder."""
    return await ran(out, agent=await named(agent), **{"bars": 300, **changes})


async def named(agent: type[Agent], config: Path | None = None) -> OwnAgent:
    """Return an agent of a module of the tests, found by its path."""
    return await asyncio.to_thread(load_agent, f"{agent.__module__}:{agent.__name__}", config)


class _Named:
    """The offline answers of `Asking` under the name of the model that was asked."""

    def __init__(self) -> None:
        self._inner = answers_of(Asking())

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return replace(await self._inner.complete(request), model=request.envelope.model)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return await self._inner.count_tokens(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def answering(_context: ProviderContext) -> Provider:
    """Return the provider of a worker that answers `Asking`."""
    return _Named()
