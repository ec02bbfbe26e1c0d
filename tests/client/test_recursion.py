"""A question is split, its parts are asked and joined, and no answer gets past the limits."""

from typing import Any

import pytest

from agentic_trading.audit.trace import TraceTree
from agentic_trading.client.frame_calls import INSTRUCTIONS, JOIN_SCHEMA, KEPT_CHARS
from agentic_trading.client.frames import RecursionLimits
from agentic_trading.client.recursion import Concluded, Unfinished
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.offline import RecordedAnswers
from agentic_trading.structured.validation import validate
from tests.client.trees import LIMITS, TRACE, always_continuing, cost_bound, model, says, tree


def limits(**changes: int) -> RecursionLimits:
    return LIMITS.model_copy(update=changes)


async def test_unsplit_question_makes_single_call() -> None:
    ran = await tree(model({"root": says("Tuesday.", confidence=0.9)}))

    assert isinstance(ran.outcome, Concluded)
    assert (ran.outcome.conclusion, ran.outcome.confidence) == ("Tuesday.", 0.9)
    assert ran.asked == ["root"]
    assert [frame.state for frame in ran.outcome.frames] == ["concluded"]


async def test_parts_are_asked_and_findings_joined() -> None:
    ran = await tree(model({"root": says("so far", "a", "b"), "a": says("A is 3.", confidence=0.7)}))

    assert isinstance(ran.outcome, Concluded)
    assert ran.outcome.conclusion == "joined"
    assert ran.asked == ["root", "a", "b", "[root]"]
    assert ran.requests[-1].envelope.context["findings"] == [
        {"question": "a", "conclusion": "A is 3.", "confidence": 0.7, "state": "concluded"},
        {"question": "b", "conclusion": "short", "confidence": 0.5, "state": "concluded"},
    ]
    assert {path: frame.depth for path, frame in ran.frames.items()} == {"0": 0, "1": 1, "2": 1}


async def test_frame_truncates_conclusion_interaction_keeps_all() -> None:
    long = "x" * 700
    ran = await tree(model({"root": says("so far", "a"), "a": says(long)}))

    assert ran.frames["1"].conclusion == "x" * KEPT_CHARS
    assert ran.requests[-1].envelope.context["findings"][0]["conclusion"] == "x" * KEPT_CHARS
    assert (await ran.interactions())[1].result.parsed_output["conclusion"] == long


async def test_root_conclusion_is_returned_in_full() -> None:
    ran = await tree(model({"root": says("x" * 700)}))

    assert isinstance(ran.outcome, Concluded)
    assert len(ran.outcome.conclusion) == 700
    assert len(ran.frames["0"].conclusion) == KEPT_CHARS


async def test_parts_run_by_priority_then_order() -> None:
    parts: list[dict[str, Any]] = [
        {"query": "none"},
        {"query": "two", "priority": 2},
        {"query": "one", "priority": 1},
        {"query": "two again", "priority": 2},
    ]

    ran = await tree(model({"root": says("so far", *parts)}))

    assert ran.asked == ["root", "one", "two", "two again", "none", "[root]"]
    assert [frame.priority for frame in ran.outcome.frames[1:]] == [1, 2, 2, None]


async def test_sub_task_without_query_is_skipped() -> None:
    ran = await tree(model({"root": says("so far", {"priority": 1}, "a", {"query": " "}, "b")}))

    assert isinstance(ran.outcome, Concluded)
    assert ran.asked == ["root", "a", "b", "[root]"]
    assert (ran.frames["0"].skipped, ran.frames["0"].stopped_by) == (2, "")


async def test_sub_tasks_without_queries_end_in_conclusion() -> None:
    ran = await tree(model({"root": says("so far", {"priority": 1}, {"query": None})}))

    assert isinstance(ran.outcome, Concluded)
    assert (ran.asked, ran.outcome.conclusion, ran.frames["0"].skipped) == (["root"], "so far", 2)


async def test_calls_are_traced_with_parent_and_cause() -> None:
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


async def test_equal_questions_have_equal_request_hashes() -> None:
    ran = await tree(model({"root": says("so far", "a"), "a": says("split too", "b")}))
    alone = await tree(model({}), "b")

    assert ran.requests[2].envelope.request_hash == alone.requests[0].envelope.request_hash


async def test_repeated_question_is_not_asked_again() -> None:
    ran = await tree(model({"root": says("so far", "a", "b", "a"), "b": says("split too", "a", "c")}))

    assert ran.asked == ["root", "a", "b", "c", "[b]", "[root]"]
    assert (ran.frames["2.1"].state, ran.frames["2.1"].repeat_of) == ("repeated", "1")
    assert (ran.frames["3"].state, ran.frames["3"].conclusion) == ("repeated", "short")
    assert ran.frames["3"].calls == ran.frames["3"].cost_nusd == 0


@pytest.mark.parametrize("most", [2, 4, 6])
async def test_replayed_tree_stops_at_same_cost(most: int) -> None:
    script = always_continuing()
    one = await tree(script, limits=limits(max_depth=0))
    money = limits(max_cost_nusd=most * cost_bound(one.requests[0].envelope))
    ran = await tree(script, limits=money)

    for _ in range(2):
        recorded = RecordedAnswers(await ran.interactions())
        replayed = await tree(script, limits=money, recorded=recorded)
        assert replayed.requests == []
        assert replayed.outcome == ran.outcome
        assert (recorded.misses, recorded.unused) == ([], [])
        ran = replayed

    assert {frame.stopped_by for frame in ran.outcome.frames} & {"cost", "budget_exhausted"}
    assert sum(frame.cost_nusd for frame in ran.outcome.frames) > 0


async def test_cyclic_question_is_not_asked() -> None:
    ran = await tree(model({"root": says("all I know", "root", " root ")}))

    assert ran.asked == ["root"]
    assert isinstance(ran.outcome, Concluded)
    assert ran.outcome.conclusion == "all I know"
    assert ran.frames["0"].stopped_by == ran.frames["1"].stopped_by == "cycle"
    assert ran.frames["1"].repeat_of == "0"


async def test_depth_limit_takes_conclusion_and_counts_parts() -> None:
    ran = await tree(always_continuing(), limits=limits(max_depth=1))

    assert {frame.depth for frame in ran.outcome.frames} == {0, 1}
    assert (ran.frames["1"].state, ran.frames["1"].stopped_by) == ("concluded", "depth")
    assert (ran.frames["1"].conclusion, ran.frames["1"].skipped) == ("more to ask", 3)


async def test_parts_next_to_finalize_are_skipped() -> None:
    answer = says("done", "a", "b", next_action="finalize")

    ran = await tree(model({"root": answer}))

    assert ran.asked == ["root"]
    assert ran.frames["0"].skipped == 2


async def test_children_limit_counts_skipped_parts() -> None:
    answer = says("so far", *(f"part {n}" for n in range(20)))

    ran = await tree(model({"root": answer}))

    assert ran.asked == ["root", *(f"part {n}" for n in range(5)), "[root]"]
    assert (ran.frames["0"].stopped_by, ran.frames["0"].skipped) == ("children", 15)


async def test_answer_with_excess_parts_is_asked_again() -> None:
    answer = says("so far", *(f"part {n}" for n in range(21)))

    ran = await tree(model({"root": answer}))

    assert ran.asked == ["root", "root"]
    assert ran.outcome == Unfinished(TRACE, "unusable", ran.outcome.frames)


async def test_answer_beyond_output_cap_is_truncated() -> None:
    answer = says("so far", *(f"part {n}" for n in range(1_000)))

    ran = await tree(model({"root": answer}))

    assert isinstance(ran.outcome, Unfinished)
    assert (ran.frames["0"].state, ran.outcome.stopped_by) == ("failed", "truncated")


async def test_numeric_part_question_fails_after_second_ask() -> None:
    broken = says("so far", {"query": 1})
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


async def test_model_error_is_not_a_finding() -> None:
    reported = says("half of it", error="the form is too small")
    ran = await tree(model({"root": says("so far", "a", "b"), "a": reported}))

    assert (ran.frames["1"].state, ran.frames["1"].stopped_by) == ("failed", "model_error")
    assert ran.frames["1"].conclusion == "half of it"
    assert ran.requests[-1].envelope.context["findings"][0]["conclusion"] is None


async def test_tree_without_findings_is_not_joined() -> None:
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


async def test_repeat_of_failed_part_gives_no_finding() -> None:
    reported = says("half of it", error="no")

    ran = await tree(model({"root": says("so far", "a", "a"), "a": reported}))

    assert ran.outcome == Unfinished(TRACE, "model_error", ran.outcome.frames)
    assert (ran.frames["2"].state, ran.frames["2"].conclusion) == ("repeated", "")


async def test_join_cannot_continue_the_tree() -> None:
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


async def test_failed_join_leaves_frame_unfinished() -> None:
    def line(request: ModelRequest) -> Any:
        if request.envelope.prompt_version == "join.1":
            return "no JSON"
        return says("so far", "a") if request.envelope.context["question"] == "root" else says("A.")

    ran = await tree(line)

    assert ran.outcome == Unfinished(TRACE, "unusable", ran.outcome.frames)
    assert (ran.frames["0"].state, ran.frames["0"].conclusion) == ("unfinished", "")
    assert ran.frames["1"].conclusion == "A."


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
def test_instructions_have_all_rules_without_schema(name: str, rules: tuple[str, ...]) -> None:
    text = INSTRUCTIONS[name]

    assert [rule for rule in rules if rule not in text] == []
    assert "{" not in text
    assert text.isascii()
