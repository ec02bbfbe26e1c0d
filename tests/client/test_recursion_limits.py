"""No answer gets past a limit: depth, parts, calls and money, on the ledger of a process and of a server."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_trading.client.events import RecursionLimits
from agentic_trading.client.recursion import Concluded, Unfinished
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.provider import ModelRequest
from tests.client.trees import LIMITS, always_continuing, cost_bound, model, says, tree
from tests.contracts.ledger_on_redis import on_redis


def limits(**changes: int) -> RecursionLimits:
    return LIMITS.model_copy(update=changes)


async def test_a_model_that_always_continues_is_stopped_by_depth_and_children() -> None:
    ran = await tree(always_continuing())

    assert (len(ran.outcome.frames), len(ran.requests)) == (13, 17)
    assert isinstance(ran.outcome, Concluded)


@pytest.mark.parametrize("most", [1, 2, 3, 4, 8, 16])
async def test_a_model_that_always_continues_is_stopped_by_the_calls(most: int) -> None:
    ran = await tree(always_continuing(), limits=limits(max_calls=most))

    assert most - 1 <= len(ran.requests) <= most
    assert isinstance(ran.outcome, Concluded)
    assert "calls" in {frame.stopped_by for frame in ran.outcome.frames}


@pytest.mark.parametrize("most_musd", [30, 60, 100])
async def test_a_model_that_always_continues_is_stopped_by_the_money_before_a_call_is_refused(
    most_musd: int,
) -> None:
    ran = await tree(always_continuing(), limits=limits(max_cost_nusd=most_musd * 10**6))

    statistics = ran.ledger.statistics()
    assert isinstance(ran.outcome, Concluded)
    assert len(ran.requests) < 17
    assert statistics.refused == 0
    assert statistics.charged_nusd <= most_musd * 10**6


@pytest.mark.parametrize("ceiling", [{"max_cost_nusd": 45_000_000}, {"max_calls": 2}])
async def test_what_the_shares_do_not_stop_the_ledger_refuses(ceiling: dict[str, int]) -> None:
    def line(request: ModelRequest) -> Any:
        return says("so far", "a", "b") if request.envelope.context["question"] == "root" else "no JSON"

    ran = await tree(line, limits=limits(**{"max_calls": 4, **ceiling}), bounded=False)

    assert isinstance(ran.outcome, Unfinished | Concluded)
    failures = {one.failure.category for one in await ran.interactions() if one.failure}
    assert ran.ledger.statistics().charged_nusd <= ceiling.get("max_cost_nusd", 10**9)
    assert len(ran.requests) <= ceiling.get("max_calls", 4)
    assert failures <= {FailureKind.BUDGET_EXHAUSTED, FailureKind.PARSING_ERROR}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    most=st.builds(
        RecursionLimits,
        max_cost_nusd=st.integers(0, 300_000_000),
        max_depth=st.integers(0, 3),
        max_children=st.integers(1, 4),
        max_calls=st.integers(1, 25),
    ),
    bounded=st.booleans(),
)
async def test_no_answer_gets_past_any_limit(most: RecursionLimits, bounded: bool) -> None:  # noqa: FBT001
    ran = await tree(always_continuing(4), limits=most, bounded=bounded)

    children: dict[str, int] = {}
    for frame in ran.outcome.frames:
        children[frame.parent_frame_id] = children.get(frame.parent_frame_id, 0) + 1
    assert len(ran.requests) <= most.max_calls
    assert ran.ledger.statistics().charged_nusd <= most.max_cost_nusd
    assert max(frame.depth for frame in ran.outcome.frames) <= most.max_depth
    assert max(children.values()) <= most.max_children
    assert all(frame.state != "open" for frame in ran.outcome.frames)


async def test_the_limits_hold_on_the_ledger_of_a_server_too(redis_url: str) -> None:
    async with on_redis(redis_url) as opens:
        by_calls = await tree(always_continuing(), limits=limits(max_calls=8), ledger=await opens())
        by_money = await tree(
            always_continuing(), limits=limits(max_cost_nusd=45_000_000), ledger=await opens(), bounded=False
        )

    assert len(by_calls.requests) == 8
    statistics = by_money.ledger.statistics()
    assert statistics.charged_nusd <= 45_000_000
    assert statistics.refused > 0


async def test_every_envelope_carries_the_ceilings_of_the_tree_and_the_share_of_its_frame() -> None:
    ran = await tree(model({"root": says("so far", "a", "b")}), limits=limits(max_cost_nusd=200_000_000))

    budgets = [request.envelope.budget for request in ran.requests]
    assert {(one.max_trace_cost_nusd, one.max_trace_calls) for one in budgets} == {(200_000_000, 20)}
    shares = [one.max_cost_nusd for one in budgets]
    spent = [one.result.cost_nusd for one in await ran.interactions()]
    first = (200_000_000 - spent[0]) // 3
    assert shares == [
        200_000_000,
        first,
        (200_000_000 - sum(spent[:2])) // 2,
        200_000_000,
    ]
    assert first > cost_bound(ran.requests[1].envelope)
