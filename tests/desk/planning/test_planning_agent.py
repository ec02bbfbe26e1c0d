"""The planner's rounds: what is asked, what goes on record, and what becomes of each wrong answer."""

from collections.abc import Iterator
from typing import Any

import pytest

from agentic_trading.desk.decisions import KINDS
from agentic_trading.desk.planning.agent import AutonomousLoop, Plan, PlanningAgent, Round
from agentic_trading.desk.planning.errors import NotOfferedError
from agentic_trading.desk.planning.evaluator import PanelEvaluator
from agentic_trading.desk.planning.events import GenerationAccepted, GenerationProposed, PlanChosen
from agentic_trading.desk.planning.panel import Panel
from agentic_trading.desk.planning.params import FAMILIES, Family
from agentic_trading.desk.planning.sandbox import Sandbox, SandboxLimits
from agentic_trading.llm.errors import FailureKind, NoDecision, ProviderError
from agentic_trading.llm.event import Event
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from tests.desk.planning.searching import (
    SET,
    OwnTemplate,
    calls_of,
    events_of,
    market,
    momentum,
    planner,
    rules,
    source,
)
from tests.desk.planning.sets import answer


@pytest.fixture(scope="module")
def prices() -> Panel:
    return market()


@pytest.fixture(scope="module")
def sandbox(prices: Panel) -> Iterator[Sandbox]:
    with Sandbox(prices, SandboxLimits(cpu_s=1)) as sandbox:
        yield sandbox


@pytest.fixture
def evaluator(prices: Panel, sandbox: Sandbox) -> PanelEvaluator:
    return PanelEvaluator(prices, sandbox)


@pytest.fixture
def store() -> MemoryInteractionStore:
    return MemoryInteractionStore()


def said(**changes: Any) -> str:
    return answer({**SET, **changes})


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


async def test_round_records_steps_with_causes(
    evaluator: PanelEvaluator, store: MemoryInteractionStore
) -> None:
    async with planner(evaluator, ScriptedProvider([said()]), store) as agent:
        plan = await agent.plan(1, regime="calm")

    [call], events = await calls_of(store), await events_of(store)
    assert kinds(events) == ["generation.proposed", "generation.accepted", "plan.chosen"]
    assert [event.causation_id for event in events] == [call.interaction_id, events[0].id, events[1].id]
    assert {event.trace_id for event in events} == {call.trace_id} == {agent.trace_id}
    assert isinstance(plan, Plan)
    assert (plan.event_id, plan.tried, plan.champion.params) == (events[2].id, 1, momentum())
    proposed, accepted, chosen = map(KINDS.of, events)
    assert isinstance(proposed, GenerationProposed)
    assert (proposed.round, proposed.params, proposed.repeat_of) == (1, momentum().model_dump(), "")
    assert isinstance(accepted, GenerationAccepted)
    assert accepted.in_sample.sharpe == pytest.approx(plan.champion.evaluation.in_sample.sharpe, abs=1e-7)
    assert isinstance(chosen, PlanChosen)
    assert (chosen.regime, chosen.tried, chosen.as_of) == ("calm", 1, evaluator.chosen_at)


async def test_question_shows_in_sample_figures_only(
    evaluator: PanelEvaluator, store: MemoryInteractionStore
) -> None:
    script = ScriptedProvider([said(), said(n_stocks=10)])
    async with planner(evaluator, script, store) as agent:
        await agent.plan(2)

    first, second = (request.envelope for request in script.requests)
    assert first.retrieved_evidence[0].content == {"count": 0, "best": [], "last": []}
    [shown] = second.retrieved_evidence[0].content["best"]
    assert shown["params"] == momentum().model_dump()
    assert set(shown["in_sample"]) == {"sharpe", "cagr", "max_drawdown", "turnover"}
    assert (first.step, second.step) == ("round-1", "round-2")
    assert first.as_of == first.context_as_of == evaluator.chosen_at
    assert first.context["withheld"] == [each for each in evaluator.offered.withheld if "momentum" in each]
    fields = first.expected_output_schema["properties"]["params"]["properties"]
    assert fields["catalyst_type"]["enum"] == ["none", "volume"]


async def test_repeat_is_recorded_and_asked_again(
    evaluator: PanelEvaluator, store: MemoryInteractionStore
) -> None:
    alike = said(catalyst_lookback=6)  # no catalyst is asked for: it has no effect
    script = ScriptedProvider([said(), alike, said(n_stocks=10)])
    rounds: list[Round] = []
    async with planner(evaluator, script, store) as agent:
        plan = await agent.plan(2, on_round=rounds.append)

    events = await events_of(store)
    assert kinds(events)[2:6] == [
        "generation.proposed",
        "generation.rejected",
        "generation.proposed",
        "generation.accepted",
    ]
    assert events[2].body["repeat_of"] == momentum().sha256
    assert (events[3].body["by"], events[3].body["detail"]) == (
        "repeat",
        "it trades like set 1 that was tried",
    )
    again = script.requests[2].envelope
    assert (again.step, again.causation_id) == ("round-2.again", events[3].id)
    assert again.context["repeated"]["params"] == momentum().model_dump()
    assert [(each.state, each.proposals) for each in rounds] == [("accepted", 1), ("accepted", 2)]
    assert isinstance(plan, Plan)
    assert plan.tried == 2


async def test_second_repeat_ends_round(evaluator: PanelEvaluator, store: MemoryInteractionStore) -> None:
    script = ScriptedProvider([said(), said(), said(), said(n_stocks=10)])
    rounds: list[Round] = []
    async with planner(evaluator, script, store) as agent:
        await agent.plan(3, on_round=rounds.append)

    assert [each.state for each in rounds] == ["accepted", "repeated", "accepted"]
    assert rounds[1].evaluation == rounds[0].evaluation
    assert len(script.requests) == 4
    assert len(agent.search) == 2


async def test_round_fails_after_three_malformed_answers(
    evaluator: PanelEvaluator, store: MemoryInteractionStore
) -> None:
    wrong = ["no JSON at all", said(stop_loss="10%"), said(momentum_period=25)]
    script = ScriptedProvider([*wrong, said()])
    rounds: list[Round] = []
    async with planner(evaluator, script, store) as agent:
        plan = await agent.plan(2, on_round=rounds.append)

    failed, after = rounds
    calls = await calls_of(store)
    assert (failed.state, failed.proposals, after.state) == ("failed", 0, "accepted")
    assert failed.error is not None
    assert [each.field_path for each in failed.error.errors] == ["params.momentum_period"]
    assert list(failed.error.interaction_ids) == [call.interaction_id for call in calls[:3]]
    assert "Use 20 (closest valid value)" in str(failed.error)
    assert isinstance(plan, Plan)
    assert kinds(await events_of(store)) == ["generation.proposed", "generation.accepted", "plan.chosen"]


async def test_rule_violation_is_retried_with_hint(
    evaluator: PanelEvaluator, store: MemoryInteractionStore
) -> None:
    script = ScriptedProvider([said(momentum_period=30, ma_periods=20), said()])
    async with planner(evaluator, script, store) as agent:
        ended = await agent.round()

    assert (ended.state, ended.params) == ("accepted", momentum())
    assert "momentum_period (30) should be <= ma_periods (20)" in script.requests[1].user


async def test_shared_failure_ends_search(evaluator: PanelEvaluator, store: MemoryInteractionStore) -> None:
    script = ScriptedProvider([ProviderError(FailureKind.AUTH_ERROR, "no such key", sent=True)])
    rounds: list[Round] = []
    async with planner(evaluator, script, store) as agent:
        plan = await agent.plan(5, on_round=rounds.append)

    assert isinstance(plan, NoDecision)
    assert (plan.reason.category, plan.trace_id) == (FailureKind.AUTH_ERROR, agent.trace_id)
    assert len(rounds) == 1
    assert await events_of(store) == []


@pytest.mark.parametrize(
    ("lines", "by", "detail"),
    [
        (["import os", "return close"], "gate", "import"),
        (
            ["for t in range(10000000):", "    x = np.sum(close)", "return close"],
            "sandbox",
            "cpu",
        ),
        (["return np.ones(close.shape)"], "promises", "row_sum"),
    ],
)
async def test_rejected_code_gives_no_decision(
    prices: Panel, sandbox: Sandbox, store: MemoryInteractionStore, lines: list[str], by: str, detail: str
) -> None:
    refused = PanelEvaluator(prices, sandbox, templates={"momentum": OwnTemplate(source(*lines))})
    async with planner(refused, ScriptedProvider([said()]), store) as agent:
        plan = await agent.plan(1)

    events = await events_of(store)
    assert kinds(events) == ["generation.proposed", "generation.rejected"]
    assert events[1].body["by"] == by
    assert detail in events[1].body["detail"]
    assert events[1].causation_id == events[0].id
    assert isinstance(plan, NoDecision)
    assert plan.reason.description.startswith(by)


async def test_idle_set_gives_no_decision(
    prices: Panel, sandbox: Sandbox, store: MemoryInteractionStore
) -> None:
    idle = PanelEvaluator(
        prices, sandbox, templates={"momentum": OwnTemplate(source("return np.zeros(close.shape)"))}
    )
    async with planner(idle, ScriptedProvider([said()]), store) as agent:
        plan = await agent.plan(1)

    assert isinstance(plan, NoDecision)
    assert "none of them traded" in plan.reason.description


@pytest.mark.parametrize(
    "family",
    [FAMILIES[0], *(pytest.param(family, marks=pytest.mark.soak) for family in FAMILIES[1:])],
)
async def test_thirty_rule_rounds_are_valid_distinct(
    evaluator: PanelEvaluator, store: MemoryInteractionStore, family: Family
) -> None:
    rounds: list[Round] = []
    async with planner(evaluator, rules(), store, family=family) as agent:
        await agent.plan(30, on_round=rounds.append)

    assert [(each.state, each.proposals) for each in rounds] == [("accepted", 1)] * 30
    assert len(agent.search) == 30


async def test_equal_answers_give_equal_records(prices: Panel, sandbox: Sandbox) -> None:
    logs = []
    for _ in range(2):
        store = MemoryInteractionStore()
        async with planner(PanelEvaluator(prices, sandbox), rules(), store) as agent:
            await agent.plan(3)
        logs.append([event.wire for event in await events_of(store)])

    assert logs[0] == logs[1]


async def test_unserved_family_is_rejected(evaluator: PanelEvaluator, store: MemoryInteractionStore) -> None:
    assert AutonomousLoop is PlanningAgent
    evaluator.offered = type(evaluator.offered)(evaluator.offered.facts, {}, ("too short",))

    with pytest.raises(NotOfferedError, match="too short"):
        async with planner(evaluator, rules(), store):
            pass


async def test_second_plan_continues_round_numbers(
    evaluator: PanelEvaluator, store: MemoryInteractionStore
) -> None:
    rounds: list[Round] = []
    async with planner(evaluator, rules(), store) as agent:
        first = await agent.plan(2, on_round=rounds.append)
        second = await agent.plan(2, on_round=rounds.append)

    assert [each.number for each in rounds] == [1, 2, 3, 4]
    assert isinstance(first, Plan)
    assert isinstance(second, Plan)
    assert (first.tried, second.tried) == (2, 4)
    assert kinds(await events_of(store, "plan")) == ["plan.chosen", "plan.chosen"]


async def test_unchecked_answer_must_meet_rules(
    evaluator: PanelEvaluator, store: MemoryInteractionStore
) -> None:
    script = ScriptedProvider([said(momentum_period=30, ma_periods=20)])
    async with planner(evaluator, script, store, checks={"strategy_params.v1": lambda *_: []}) as agent:
        plan = await agent.plan(1)

    assert isinstance(plan, NoDecision)
    assert plan.reason.description == "the answer breaks 1 rules of the parameters"


async def test_unanswered_call_gives_no_decision(
    evaluator: PanelEvaluator, store: MemoryInteractionStore
) -> None:
    patience = RetryPolicy(attempt_timeout_s=600.0)
    async with planner(evaluator, rules(), store, retry_policy=patience, tenant_id="unknown") as agent:
        plan = await agent.plan(3)

    assert isinstance(plan, NoDecision)
    assert plan.trace_id == agent.trace_id
    assert len(agent.search) == 0
