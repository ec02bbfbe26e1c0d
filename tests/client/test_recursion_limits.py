"""No answer gets past a limit: depth, parts, calls and money, on the ledger of a process and of a server."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_trading.client.frame_calls import JOIN, KEPT_CHARS
from agentic_trading.client.frames import FrameRecords, RecursionLimits
from agentic_trading.client.recursion import Concluded, Unfinished
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.result import Usage
from tests.client.trees import LIMITS, TRACE, always_continuing, cost_bound, model, says, tree
from tests.contracts.ledger_on_redis import on_redis


def limits(**changes: int) -> RecursionLimits:
    return LIMITS.model_copy(update=changes)


async def test_depth_and_children_limits_stop_recursion() -> None:
    ran = await tree(always_continuing())

    assert (len(ran.outcome.frames), len(ran.requests)) == (13, 17)
    assert isinstance(ran.outcome, Concluded)


@pytest.mark.parametrize("most", [1, 2, 3, 4, 8, 16])
async def test_call_limit_stops_recursion(most: int) -> None:
    ran = await tree(always_continuing(), limits=limits(max_calls=most))

    assert most - 1 <= len(ran.requests) <= most
    assert isinstance(ran.outcome, Concluded)
    assert "calls" in {frame.stopped_by for frame in ran.outcome.frames}


@pytest.mark.parametrize("most_musd", [30, 60, 100])
async def test_cost_limit_stops_recursion_without_refusals(
    most_musd: int,
) -> None:
    ran = await tree(always_continuing(), limits=limits(max_cost_nusd=most_musd * 10**6))

    statistics = ran.ledger.statistics()
    assert isinstance(ran.outcome, Concluded)
    assert len(ran.requests) < 17
    assert statistics.refused == 0
    assert statistics.charged_nusd <= most_musd * 10**6


@pytest.mark.parametrize("ceiling", [{"max_cost_nusd": 45_000_000}, {"max_calls": 2}])
async def test_unbounded_shares_stay_within_ceilings(ceiling: dict[str, int]) -> None:
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
async def test_answers_never_exceed_any_limit(most: RecursionLimits, bounded: bool) -> None:  # noqa: FBT001
    ran = await tree(always_continuing(4), limits=most, bounded=bounded)

    children: dict[str, int] = {}
    for frame in ran.outcome.frames:
        children[frame.parent_frame_id] = children.get(frame.parent_frame_id, 0) + 1
    assert len(ran.requests) <= most.max_calls
    assert ran.ledger.statistics().charged_nusd <= most.max_cost_nusd
    assert max(frame.depth for frame in ran.outcome.frames) <= most.max_depth
    assert max(children.values()) <= most.max_children
    assert all(frame.state != "open" for frame in ran.outcome.frames)


async def test_limits_hold_on_redis_ledger(redis_url: str) -> None:
    async with on_redis(redis_url) as opens:
        by_calls = await tree(always_continuing(), limits=limits(max_calls=8), ledger=await opens())
        by_money = await tree(
            always_continuing(), limits=limits(max_cost_nusd=45_000_000), ledger=await opens(), bounded=False
        )

    assert len(by_calls.requests) == 8
    statistics = by_money.ledger.statistics()
    assert statistics.charged_nusd <= 45_000_000
    assert statistics.refused > 0


async def test_envelope_carries_tree_ceilings_and_share() -> None:
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
        200_000_000 - sum(spent[:3]),
    ]
    assert first > cost_bound(ran.requests[1].envelope)


def cheap(request: ModelRequest, text: str) -> ModelResponse:
    """Return an answer that costs next to nothing, however long it is."""
    usage = Usage(input_tokens=1, output_tokens=1)
    return ModelResponse(text=text, stop_reason="end_turn", usage=usage, model=request.envelope.model)


def dear(request: ModelRequest, text: str) -> ModelResponse:
    """Return an answer that costs nearly what is reserved for it: a token out costs 10,000 nano-dollars, one in 2,000."""
    out = request.max_tokens - 1
    tokens = (cost_bound(request.envelope) - 10_000 * out) * 99 // 100 // 2_000
    usage = Usage(input_tokens=tokens, output_tokens=out)
    return ModelResponse(text=text, stop_reason="end_turn", usage=usage, model=request.envelope.model)


async def test_exhausted_part_leaves_cost_of_join() -> None:
    parts = [f"{number} {'q' * 490}" for number in range(20)]

    def line(request: ModelRequest) -> Any:
        question = request.envelope.context["question"]
        if request.envelope.prompt_version == JOIN or question not in parts:
            is_join = request.envelope.prompt_version == JOIN
            return cheap(request, says("joined or so far", *([] if is_join else parts)))
        if question != parts[-1]:
            return cheap(request, says("x" * KEPT_CHARS))
        return dear(request, "no JSON" if request.answer == 1 else says("short"))

    ran = await tree(line, limits=limits(max_cost_nusd=140_000_000, max_children=20, max_calls=60))

    assert isinstance(ran.outcome, Concluded)
    assert ran.frames["0"].stopped_by == ""
    assert ran.frames["20"].stopped_by == "budget_exhausted"


@pytest.mark.parametrize("most_musd", [100, 200, 300, 400])
async def test_frame_subtree_stays_within_share(most_musd: int) -> None:
    def line(request: ModelRequest) -> Any:
        question = request.envelope.context["question"]
        is_asked_again = request.envelope.prompt_version == JOIN and request.answer == 1
        return dear(
            request, "no JSON" if is_asked_again else says("more", *(f"{question}.{n}" for n in "12"))
        )

    ran = await tree(line, limits=limits(max_cost_nusd=most_musd * 10**6))

    opened = [FrameRecords([one]) for one in await ran.store.records.trace(TRACE)]
    shares = {id_: body.share_nusd for records in opened for id_, body in records.opened.items()}
    parents = {frame.frame_id: frame.parent_frame_id for frame in ran.outcome.frames}
    used = dict.fromkeys(shares, 0)
    for frame in ran.outcome.frames:
        above = frame.frame_id
        while above:
            used[above] += frame.cost_nusd
            above = parents[above]
    assert len(used) > 1
    assert {id_: cost for id_, cost in used.items() if cost > shares[id_]} == {}


async def test_unrecordable_priority_keeps_order_but_is_omitted() -> None:
    ran = await tree(
        model({"root": says("so far", {"query": "last", "priority": 10**30}, {"query": "a", "priority": 2})})
    )

    assert ran.asked == ["root", "a", "last", "[root]"]
    assert [frame.priority for frame in ran.outcome.frames] == [None, 2, None]
