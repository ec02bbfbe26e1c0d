"""The suite of agents passes on an agent, and finds agents that break one promise each."""

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel

from agentic_trading.desk import Agent, Bar, Desk
from agentic_trading.desk.session.options import RunOptions
from agentic_trading.ids import random_id
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.testing import AgentSuite, BrokenContractError
from tests.contracts.breaking import failures, unbroken

BARS = 300


class View(BaseModel):
    """An answer about a market."""

    long: bool


class Asking(Agent):
    """Asks at each hour, and trades a positive answer."""

    timeframe = "1h"
    notional = 1000

    def offline(self, envelope: LLMEnvelope) -> str | Mapping[str, Any]:
        return {"long": True}

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        answer = await desk.decide("Up?", output=View, evidence=self.evidence(desk, bar))
        if answer and answer.output and answer.output.long and not desk.position():
            desk.buy(notional=self.notional, stop=bar.close * 98 / 100, because=answer)

    def evidence(self, desk: Desk, bar: Bar) -> dict[str, Any]:
        return {"close": str(bar.close)}


class TestAsking(AgentSuite):
    agent: type[Agent] = Asking
    config: Mapping[str, Any] = MappingProxyType({"notional": 500})
    bars: int | None = BARS


class Silent(Agent):
    """Never decides."""


class Drawing(Asking):
    """Shows random numbers to the model."""

    def evidence(self, desk: Desk, bar: Bar) -> dict[str, Any]:
        return {"drawn": random_id()}


class Remembering(Asking):
    """Keeps a count in its class, across sessions."""

    asked = 0

    def evidence(self, desk: Desk, bar: Bar) -> dict[str, Any]:
        Remembering.asked += 1
        return {"asked": self.asked}


class Peeking(Asking):
    """Reads the number of bars that the session has been given, as one with the whole file does."""

    def evidence(self, desk: Desk, bar: Bar) -> dict[str, Any]:
        options = [frame.frame.f_locals.get("options") for frame in inspect.stack(0)]
        return {"bars": next(each.bars for each in options if isinstance(each, RunOptions))}


class Trusting(Asking):
    """Takes every answer for a decision."""

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        answer = await desk.decide("Up?", output=View, evidence=self.evidence(desk, bar))
        assert answer.output
        desk.buy(notional=self.notional, stop=bar.close * 98 / 100, because=answer)


def suite_of(agent: type[Agent]) -> type[AgentSuite]:
    return type("Suite", (AgentSuite,), {"agent": agent, "bars": BARS})


BROKEN: dict[type[Agent], set[str]] = {
    Silent: {"test_agent_decides"},
    Drawing: {"test_equal_runs_decide_equally", "test_later_bars_have_no_effect"},
    Remembering: {"test_replay_is_identical_with_1_and_8_workers"},
    Peeking: {"test_later_bars_have_no_effect"},
    Trusting: {"test_failed_calls_are_handled"},
}


@pytest.mark.parametrize("agent", BROKEN)
def test_broken_agent_is_found(agent: type[Agent]) -> None:
    assert BROKEN[agent] <= failures(suite_of(agent))


def test_each_check_finds_a_broken_agent() -> None:
    assert unbroken(AgentSuite, BROKEN) == set()


def test_first_difference_is_in_the_message() -> None:
    with pytest.raises(BrokenContractError, match=r"equal runs decide equally\. Found: line \d+ is \{"):
        suite_of(Drawing)().test_equal_runs_decide_equally()


def test_error_of_agent_has_its_place() -> None:
    with pytest.raises(
        BrokenContractError, match=r"(?s)on_bar raised AssertionError.*\(test_agent\.py:\d+\)"
    ):
        suite_of(Trusting)().test_failed_calls_are_handled()


def test_missing_class_names_itself() -> None:
    with pytest.raises(TypeError, match="set `agent`"):
        AgentSuite().test_agent_decides()
