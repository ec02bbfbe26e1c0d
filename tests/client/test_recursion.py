"""A question is split, its parts are asked and joined, and no answer gets past the limits."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_trading.audit.trace import TraceTree
from agentic_trading.client.events import KINDS, RecursionLimits
from agentic_trading.client.fallback import Alternative, FallbackGateway
from agentic_trading.client.frame_calls import INSTRUCTIONS, JOIN_SCHEMA, KEPT_CHARS
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.client.recursion import Concluded, Paused, Recursion, ResumeError, Unfinished
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.event import Event
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.structured.validation import validate
from tests.client.trees import LIMITS, TRACE, always_continuing, asking, cost_bound, model, says, tree
from tests.contracts.ledger_on_redis import on_redis
from tests.gateway import gateway
from tests.worker.running import running


def limits(**changes: int) -> RecursionLimits:
    return LIMITS.model_copy(update=changes)


async def test_a_question_that_is_not_split_is_one_call() -> None:
    ran = await tree(model({"root": says("Tuesday.", confidence=0.9)}))

    assert isinstance(ran.outcome, Concluded)
    assert (ran.outcome.conclusion, ran.outcome.confidence) == ("Tuesday.", 0.9)
    assert ran.asked == ["root"]
    assert [frame.state for frame in ran.outcome.frames] == ["concluded"]


async def test_the_parts_are_asked_and_their_findings_joined() -> None:
    ran = await tree(model({"root": says("so far", "a", "b"), "a": says("A is 3.", confidence=0.7)}))

    assert isinstance(ran.outcome, Concluded)
    assert ran.outcome.conclusion == "joined"
    assert ran.asked == ["root", "a", "b", "[root]"]
    assert ran.requests[-1].envelope.context["findings"] == [
        {"question": "a", "conclusion": "A is 3.", "confidence": 0.7, "state": "concluded"},
        {"question": "b", "conclusion": "short", "confidence": 0.5, "state": "concluded"},
    ]
    assert {path: frame.depth for path, frame in ran.frames.items()} == {"0": 0, "1": 1, "2": 1}


async def test_a_frame_keeps_500_characters_of_a_conclusion_and_the_interaction_all_of_it() -> None:
    long = "x" * 700
    ran = await tree(model({"root": says("so far", "a"), "a": says(long)}))

    assert ran.frames["1"].conclusion == "x" * KEPT_CHARS
    assert ran.requests[-1].envelope.context["findings"][0]["conclusion"] == "x" * KEPT_CHARS
    assert (await ran.interactions())[1].result.parsed_output["conclusion"] == long


async def test_the_whole_conclusion_of_the_root_is_returned() -> None:
    ran = await tree(model({"root": says("x" * 700)}))

    assert isinstance(ran.outcome, Concluded)
    assert len(ran.outcome.conclusion) == 700
    assert len(ran.frames["0"].conclusion) == KEPT_CHARS


async def test_parts_go_by_priority_and_then_as_they_were_written_those_without_one_last() -> None:
    parts: list[dict[str, Any]] = [
        {"query": "none"},
        {"query": "two", "priority": 2},
        {"query": "one", "priority": 1},
        {"query": "two again", "priority": 2},
    ]

    ran = await tree(model({"root": says("so far", *parts)}))

    assert ran.asked == ["root", "one", "two", "two again", "none", "[root]"]
    assert [frame.priority for frame in ran.outcome.frames[1:]] == [1, 2, 2, None]


async def test_every_call_is_in_the_trace_and_names_what_caused_it() -> None:
    ran = await tree(model({"root": says("so far", "a"), "a": says("split too", "b")}))

    records = await ran.store.records.trace(TRACE)
    drawn = TraceTree(records)
    root, part, below = (request.envelope for request in ran.requests[:3])
    calls = {one.envelope.envelope_id: one.interaction_id for one in await ran.interactions()}
    assert (part.parent_envelope_id, part.causation_id) == (root.envelope_id, calls[root.envelope_id])
    assert (below.parent_envelope_id, below.causation_id) == (part.envelope_id, calls[part.envelope_id])
    assert {request.envelope.tenant_id for request in ran.requests} == {root.tenant_id}
    assert drawn.orphans == drawn.cycles == ()
    assert {one.envelope.created_at for one in await ran.interactions()} == {root.created_at}


async def test_equal_questions_are_equal_requests_wherever_they_stand() -> None:
    ran = await tree(model({"root": says("so far", "a"), "a": says("split too", "b")}))
    alone = await tree(model({}), "b")

    assert ran.requests[2].envelope.request_hash == alone.requests[0].envelope.request_hash


async def test_what_was_asked_before_in_the_tree_is_not_asked_again() -> None:
    ran = await tree(model({"root": says("so far", "a", "b", "a"), "b": says("split too", "a", "c")}))

    assert ran.asked == ["root", "a", "b", "c", "[b]", "[root]"]
    assert (ran.frames["2.1"].state, ran.frames["2.1"].repeat_of) == ("repeated", "1")
    assert (ran.frames["3"].state, ran.frames["3"].conclusion) == ("repeated", "short")
    assert ran.frames["3"].calls == ran.frames["3"].cost_nusd == 0


async def test_a_question_that_leads_back_to_itself_costs_no_call() -> None:
    ran = await tree(model({"root": says("all I know", "root", " root ")}))

    assert ran.asked == ["root"]
    assert isinstance(ran.outcome, Concluded)
    assert ran.outcome.conclusion == "all I know"
    assert ran.frames["0"].stopped_by == ran.frames["1"].stopped_by == "cycle"
    assert ran.frames["1"].repeat_of == "0"


async def test_at_the_last_level_the_conclusion_is_taken_and_the_parts_are_counted() -> None:
    ran = await tree(always_continuing(), limits=limits(max_depth=1))

    assert {frame.depth for frame in ran.outcome.frames} == {0, 1}
    assert (ran.frames["1"].state, ran.frames["1"].stopped_by) == ("concluded", "depth")
    assert (ran.frames["1"].conclusion, ran.frames["1"].skipped) == ("more to ask", 3)


async def test_parts_beside_finalize_are_not_asked() -> None:
    answer = says("done", "a", "b", next_action="finalize")

    ran = await tree(model({"root": answer}))

    assert ran.asked == ["root"]
    assert ran.frames["0"].skipped == 2


async def test_of_a_thousand_parts_the_first_five_are_asked_and_the_rest_is_counted() -> None:
    answer = says("so far", *(f"part {n}" for n in range(1_000)))

    ran = await tree(
        model({"root": answer}), limits=limits(max_cost_nusd=10**11), build=lambda: asking(20_000)
    )

    assert ran.asked == ["root", *(f"part {n}" for n in range(5)), "[root]"]
    assert (ran.frames["0"].stopped_by, ran.frames["0"].skipped) == ("children", 995)


async def test_a_thousand_parts_beyond_the_cap_are_a_truncated_answer() -> None:
    answer = says("so far", *(f"part {n}" for n in range(1_000)))

    ran = await tree(model({"root": answer}))

    assert isinstance(ran.outcome, Unfinished)
    assert (ran.frames["0"].state, ran.outcome.stopped_by) == ("failed", "truncated")


async def test_a_part_without_a_question_is_asked_for_again_and_then_fails() -> None:
    broken = says("so far", {"priority": 1})
    ran = await tree(model({"root": says("so far", "a", "b"), "a": broken}))

    assert ran.asked == ["root", "a", "a", "b", "[root]"]
    assert (ran.frames["1"].state, ran.frames["1"].stopped_by) == ("failed", "unusable")
    assert ran.frames["1"].calls == 2
    assert ran.requests[-1].envelope.context["findings"][0] == {
        "question": "a",
        "conclusion": None,
        "confidence": None,
        "state": "failed",
    }


async def test_an_error_that_the_model_reports_keeps_its_conclusion_and_is_no_finding() -> None:
    reported = says("half of it", error="the form is too small")
    ran = await tree(model({"root": says("so far", "a", "b"), "a": reported}))

    assert (ran.frames["1"].state, ran.frames["1"].stopped_by) == ("failed", "model_error")
    assert ran.frames["1"].conclusion == "half of it"
    assert ran.requests[-1].envelope.context["findings"][0]["conclusion"] is None


async def test_without_any_finding_nothing_is_joined_and_no_conclusion_made_up() -> None:
    def line(request: ModelRequest) -> Any:
        question = request.envelope.context["question"]
        return (
            says("so far", "a", "b")
            if question == "root"
            else ProviderError(FailureKind.REFUSAL, "no", sent=True)
        )

    ran = await tree(line)

    assert ran.asked == ["root", "a", "b"]
    assert ran.outcome == Unfinished(TRACE, "refusal", ran.outcome.frames)
    assert [frame.state for frame in ran.outcome.frames] == ["unfinished", "failed", "failed"]


async def test_a_repeated_part_whose_first_answer_failed_is_no_finding() -> None:
    reported = says("half of it", error="no")

    ran = await tree(model({"root": says("so far", "a", "a"), "a": reported}))

    assert ran.outcome == Unfinished(TRACE, "model_error", ran.outcome.frames)
    assert (ran.frames["2"].state, ran.frames["2"].conclusion) == ("repeated", "")


async def test_a_join_cannot_go_on() -> None:
    joined = says("the end", "more", next_action="continue", needs_more_info=True)

    def line(request: ModelRequest) -> Any:
        if request.envelope.prompt_version == "join.1":
            return joined
        return says("so far", "a") if request.envelope.context["question"] == "root" else says("A.")

    ran = await tree(line)

    assert isinstance(ran.outcome, Concluded)
    assert ran.outcome.conclusion == "the end"
    assert ran.asked == ["root", "a", "[root]"]
    assert JOIN_SCHEMA["properties"].keys() == {"reasoning", "conclusion", "confidence", "error"}
    assert not validate({"conclusion": "x"}, JOIN_SCHEMA)


async def test_a_join_that_fails_leaves_its_frame_unfinished_with_the_findings_beside_it() -> None:
    def line(request: ModelRequest) -> Any:
        if request.envelope.prompt_version == "join.1":
            return "no JSON"
        return says("so far", "a") if request.envelope.context["question"] == "root" else says("A.")

    ran = await tree(line)

    assert ran.outcome == Unfinished(TRACE, "unusable", ran.outcome.frames)
    assert (ran.frames["0"].state, ran.frames["0"].conclusion) == ("unfinished", "")
    assert ran.frames["1"].conclusion == "A."


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


async def test_a_tree_that_is_finished_is_not_asked_again() -> None:
    script = model({"root": says("so far", "a", "b")})
    first = await tree(script)
    lines = len([entry async for entry in first.store.scan()])

    again = await tree(script, store=first.store)

    assert again.requests == []
    assert again.outcome == first.outcome
    assert len([entry async for entry in first.store.scan()]) == lines


async def test_a_trace_has_one_tree() -> None:
    first = await tree(model({}))

    with pytest.RaisesGroup(
        ResumeError, match="unhandled", check=lambda group: "'root'" in str(group.exceptions[0])
    ):
        await tree(model({}), "another", store=first.store)


async def test_an_empty_question_is_refused_before_anything_is_sent() -> None:
    with pytest.RaisesGroup(ValueError):
        await tree(model({}), "  ")


def asks_user(question: str = "Which time zone is meant?") -> str:
    return says(question, next_action="ask_user")


def told(zone_answer: str = "In UTC, 3.") -> Any:
    def line(request: ModelRequest) -> Any:
        context = request.envelope.context
        if request.envelope.prompt_version == "join.1":
            return says("joined")
        if context["question"] == "root":
            return says("so far", "days", "agents")
        if context["question"] == "days":
            return says(zone_answer) if "answers" in context else asks_user()
        return says("short")

    return line


async def test_a_frame_that_asks_the_user_waits_while_its_siblings_go_on() -> None:
    ran = await tree(told())

    assert isinstance(ran.outcome, Paused)
    assert ran.outcome.questions == {"1": "Which time zone is meant?"}
    assert ran.asked == ["root", "days", "agents"]
    assert [frame.state for frame in ran.outcome.frames] == ["open", "waiting", "concluded"]


async def test_a_paused_tree_goes_on_in_the_same_trace_with_the_answer() -> None:
    paused = await tree(told())

    ran = await tree(told(), store=paused.store, answers={"1": "UTC"})

    assert isinstance(ran.outcome, Concluded)
    assert ran.asked == ["days", "[root]"]
    assert ran.requests[0].envelope.context["answers"] == [
        {"asked": "Which time zone is meant?", "answer": "UTC"}
    ]
    assert {one.trace_id for one in await ran.interactions()} == {TRACE}
    assert ran.requests[1].envelope.context["findings"][0]["conclusion"] == "In UTC, 3."
    drawn = TraceTree(await ran.store.records.trace(TRACE))
    assert drawn.orphans == drawn.cycles == ()


async def test_a_pause_without_an_answer_stays_one_and_asks_nothing() -> None:
    paused = await tree(told())

    ran = await tree(told(), store=paused.store, answers={})

    assert (ran.outcome, ran.requests) == (paused.outcome, [])


@pytest.mark.parametrize("answers", [{"2": "x"}, {"7": "x"}, {"1": " "}])
async def test_an_answer_that_nothing_asks_for_is_refused_and_not_on_record(answers: dict[str, str]) -> None:
    paused = await tree(told())
    lines = len([entry async for entry in paused.store.scan()])

    with pytest.RaisesGroup(ResumeError):
        await tree(told(), store=paused.store, answers=answers)

    assert len([entry async for entry in paused.store.scan()]) == lines


async def test_only_a_trace_with_a_tree_can_be_gone_on_with() -> None:
    with pytest.RaisesGroup(ResumeError):
        await tree(told(), answers={})


async def test_more_questions_to_the_user_than_allowed_leave_the_frame_unfinished() -> None:
    ran = await tree(lambda _request: asks_user())
    for _ in range(3):
        assert isinstance(ran.outcome, Paused)
        ran = await tree(lambda _request: asks_user(), store=ran.store, answers={"0": "UTC"})

    assert ran.outcome == Unfinished(TRACE, "questions", ran.outcome.frames)
    assert len(await ran.interactions()) == 4


async def test_a_part_that_repeats_a_waiting_one_waits_with_it() -> None:
    def line(request: ModelRequest) -> Any:
        context = request.envelope.context
        if context["question"] == "root":
            return says("so far", "days", "days")
        return says("3") if "answers" in context else asks_user()

    paused = await tree(line)
    ran = await tree(told("3"), store=paused.store, answers={"1": "UTC"})

    assert isinstance(paused.outcome, Paused)
    assert ran.frames["2"].conclusion == "3"
    assert isinstance(ran.outcome, Concluded)


async def test_a_call_that_is_not_delivered_closes_nothing_and_the_tree_goes_on_later() -> None:
    desk = gateway(model({}))
    async with GatewayClient(desk.broker, reply_timeout_s=0.01) as client:
        recursion = Recursion(client, desk.store.records.trace, LIMITS, asking)
        outcome = await recursion.run("root", trace_id=TRACE)

    ran = await tree(model({}), store=desk.store)

    assert outcome == Unfinished(TRACE, "undeliverable", outcome.frames)
    assert [frame.state for frame in outcome.frames] == ["open"]
    assert isinstance(ran.outcome, Concluded)


async def test_two_processes_that_go_on_with_one_tree_pay_it_once() -> None:
    provider = ScriptedProvider(model({"root": says("so far", "a", "b", "c")}))
    desk = gateway(provider)
    outcomes = []

    async def go_on(client: GatewayClient) -> None:
        recursion = Recursion(client, desk.store.records.trace, LIMITS, asking, cost_bound=cost_bound)
        outcomes.append(await recursion.run("root", trace_id=TRACE))

    async with (
        running(desk) as one,
        GatewayClient(desk.broker) as other,
        asyncio.TaskGroup() as group,
    ):
        for client in (one, other):
            group.create_task(go_on(client))

    assert len(provider.requests) == 5
    assert outcomes[0] == outcomes[1]
    records = await desk.store.records.trace(TRACE)
    kinds = [one.kind for one in records if isinstance(one, Event) and KINDS.of(one) is not None]
    assert sorted(kinds) == ["recursion.frame_closed"] * 4 + ["recursion.frame_opened"] * 4


async def test_a_call_that_fell_back_on_another_model_is_found_again() -> None:
    alternative = Alternative(LLMProvider.SCRIPTED, "scripted-prompted-1")
    retries = RetryPolicy(max_retries=0)

    def line(request: ModelRequest) -> Any:
        if request.envelope.model == "scripted-1":
            return ProviderError(FailureKind.SERVER_ERROR, "away", sent=False)
        return says("from the other")

    provider = ScriptedProvider(line)
    desk = gateway(provider)
    async with running(desk) as client:
        chain = FallbackGateway(client, [alternative])
        build = lambda: asking().with_retry_policy(retries)  # noqa: E731
        first = await Recursion(chain, desk.store.records.trace, LIMITS, build).run("root", trace_id=TRACE)
    again = await tree(line, store=desk.store)

    assert isinstance(first, Concluded)
    assert (again.outcome, again.requests) == (first, [])


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("ask.1", ("Always write a `conclusion`", "500 characters", "`finalize`", "`continue`", "`ask_user`",
                   "left out", "do not depend on each other", "Small steps", "At most five", "one to three sentences",
                   "Do not ask again", "`error`", "run no code", "not an instruction")),
        ("join.1", ("Always write a `conclusion`", "500 characters", "do not fill the gap", "contradict", "`error`",
                    "No further part")),
    ],
)  # fmt: skip
def test_the_instructions_have_each_rule_and_tell_the_form_nowhere(name: str, rules: tuple[str, ...]) -> None:
    text = INSTRUCTIONS[name]

    assert [rule for rule in rules if rule not in text] == []
    assert "{" not in text
    assert text.isascii()
