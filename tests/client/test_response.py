"""An answer in the agreed form is read as it stands, and one that is not in that form says nothing."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import structlog

from agentic_trading.client.response import (
    StructuredResponse,
    extract_conclusion,
    extract_sub_tasks,
    parse_llm_response,
)

FULL = {
    "reasoning": "The range broke on volume; the retest held.",
    "conclusion": "The trend is up.",
    "confidence": 0.85,
    "files": ["bars/1h.csv", "bars/4h.csv"],
    "sub_tasks": [{"query": "Read the funding rates.", "priority": 2}, {"query": "Read the order blocks."}],
    "needs_more_info": False,
    "next_action": "continue",
}


def answer(**fields: Any) -> str:
    """Return an answer that has a conclusion, and these fields."""
    return json.dumps({"conclusion": "The trend is up."} | fields)


def assert_says_nothing(parsed: StructuredResponse, raw: str) -> None:
    """Check that there is nothing to use in an answer, and that its text is all there."""
    assert (parsed.is_valid, parsed.should_continue, parsed.should_ask_user) == (False, False, False)
    assert (parsed.conclusion, parsed.reasoning, parsed.files, parsed.sub_tasks) == ("", "", [], [])
    assert (parsed.raw_response, parsed.display_text) == (raw, raw)
    assert parsed.error


def test_parse_valid_json() -> None:
    parsed = parse_llm_response(answer(confidence=0.9))

    assert (parsed.is_valid, parsed.conclusion, parsed.confidence) == (True, "The trend is up.", 0.9)
    assert parsed.display_text == "The trend is up."


def test_parse_with_all_fields() -> None:
    parsed = parse_llm_response(json.dumps(FULL, indent=2))

    assert {name: getattr(parsed, name) for name in FULL} == FULL
    assert (parsed.is_valid, parsed.should_continue, parsed.should_ask_user) == (True, True, False)
    assert (parsed.error, parsed.violations) == (None, ())


def test_parse_markdown_wrapped_json() -> None:
    parsed = parse_llm_response(f"```json\n{answer(confidence=0.8)}\n```")

    assert (parsed.is_valid, parsed.conclusion) == (True, "The trend is up.")


def test_fallback_on_invalid_json() -> None:
    """A text that is no JSON is kept for display, and is neither a conclusion nor half trusted."""
    raw = "No JSON here, only words."

    parsed = parse_llm_response(raw)

    assert_says_nothing(parsed, raw)
    assert (parsed.error, parsed.confidence, parsed.next_action) == ("invalid_json", None, None)


def test_fallback_on_missing_conclusion() -> None:
    """Without a conclusion there is no answer, however good the reasoning: the reason names what is missing."""
    raw = '{"reasoning": "The range broke on volume."}'

    parsed = parse_llm_response(raw)

    assert_says_nothing(parsed, raw)
    assert parsed.error == "$.conclusion: is required and missing"


def test_confidence_clamping_high() -> None:
    """A confidence above 1 is refused and shown as it was written: nothing is clamped."""
    raw = answer(confidence=1.5)

    parsed = parse_llm_response(raw)

    assert_says_nothing(parsed, raw)
    assert parsed.confidence == 1.5
    assert [(rule.path, rule.keyword, rule.allowed) for rule in parsed.violations] == [
        ("$.confidence", "maximum", "<= 1")
    ]


def test_confidence_clamping_low() -> None:
    """A confidence below 0 is refused and shown as it was written: nothing is clamped."""
    raw = answer(confidence=-0.5)

    parsed = parse_llm_response(raw)

    assert_says_nothing(parsed, raw)
    assert parsed.confidence == -0.5
    assert [(rule.path, rule.keyword, rule.allowed) for rule in parsed.violations] == [
        ("$.confidence", "minimum", ">= 0")
    ]


def test_confidence_invalid_type() -> None:
    """A confidence in words is refused and shown as it was written: there is no default."""
    raw = answer(confidence="high")

    parsed = parse_llm_response(raw)

    assert_says_nothing(parsed, raw)
    assert parsed.confidence == "high"
    assert [(rule.path, rule.keyword, rule.expected) for rule in parsed.violations] == [
        ("$.confidence", "type", "number")
    ]


def test_next_action_validation() -> None:
    """The three actions are taken, none is `finalize`; any other is refused and shown as written, with those allowed."""
    for action in ("continue", "finalize", "ask_user"):
        assert parse_llm_response(answer(next_action=action)).next_action == action
    assert parse_llm_response(answer()).next_action == "finalize"

    raw = answer(next_action="finalise")
    parsed = parse_llm_response(raw)

    assert_says_nothing(parsed, raw)
    assert parsed.next_action == "finalise"
    assert [(rule.path, rule.allowed, rule.suggestion) for rule in parsed.violations] == [
        ("$.next_action", ["continue", "finalize", "ask_user"], "finalize")
    ]


def test_should_continue_property() -> None:
    tasks = [{"query": "Read the funding rates."}]

    assert parse_llm_response(answer(sub_tasks=tasks, next_action="continue")).should_continue is True
    assert parse_llm_response(answer(sub_tasks=tasks, next_action="finalize")).should_continue is False
    assert parse_llm_response(answer(sub_tasks=tasks)).should_continue is False
    assert parse_llm_response(answer(sub_tasks=[], next_action="continue")).should_continue is False


def test_should_ask_user_property() -> None:
    assert parse_llm_response(answer(next_action="ask_user")).should_ask_user is True
    assert parse_llm_response(answer(needs_more_info=True)).should_ask_user is True
    assert parse_llm_response(answer(needs_more_info=False, next_action="finalize")).should_ask_user is False
    assert parse_llm_response(answer()).should_ask_user is False


def test_empty_response_is_invalid() -> None:
    parsed = parse_llm_response("")

    assert_says_nothing(parsed, "")
    assert parsed.error == "invalid_json"


def test_omitted_field_is_not_invented() -> None:
    parsed = parse_llm_response(answer())

    assert parsed == StructuredResponse(
        conclusion="The trend is up.", next_action="finalize", raw_response=answer()
    )
    assert (parsed.confidence, parsed.needs_more_info) == (None, None)
    assert (parsed.reasoning, parsed.files, parsed.sub_tasks) == ("", [], [])


@pytest.mark.parametrize(
    "raw",
    [
        "{'conclusion': 'The trend is up.', 'needs_more_info': False,}",
        'Here it is:\n{"conclusion": "The trend is up.", "needs_more_info": false}\nGood luck.',
        '{conclusion: "The trend is up.", /* sure */ "needs_more_info": false}',
    ],
    ids=["python", "prose around", "bare key and comment"],
)
def test_unambiguous_slip_is_repaired(raw: str) -> None:
    parsed = parse_llm_response(raw)

    assert (parsed.is_valid, parsed.conclusion, parsed.needs_more_info) == (True, "The trend is up.", False)
    assert parsed.raw_response == raw


@pytest.mark.parametrize(
    "raw",
    [
        '{"conclusion": "up", "confidence": NaN}',
        '{"conclusion": "up", "confidence": 1e999}',
        '{"conclusion": "up", "confidence": 1' + "0" * 400 + "}",
        '{"conclusion": "up"} {"conclusion": "down"}',
        '{"conclusion": "up", "conclusion": "down"}',
        '{"conclusion": "up", "next_action": "contin',
        '{"conclusion": "up", "sub_tasks": [{"query": "x"}',
        '{"conclusion": "up"',
        '{"conclusion": "\ud800"}',
        "```json\n```",
        "I cannot help with trading.",
        "{" * 2000,
        "[" * (1 << 20),
        '{"conclusion": "' + "x" * (1 << 20) + '"}',
    ],
    ids=range(14),
)
def test_ambiguous_text_is_rejected(raw: str) -> None:
    parsed = parse_llm_response(raw)

    assert_says_nothing(parsed, raw)
    assert parsed.error == "invalid_json"
    assert parsed.violations


WRONG: Mapping[str, tuple[str, str]] = {
    "no object": ('["up"]', "$"),
    "a lone string": ('"The trend is up."', "$"),
    "null": ("null", "$"),
    "an empty conclusion": ('{"conclusion": ""}', "$.conclusion"),
    "a blank conclusion": ('{"conclusion": " \\n"}', "$.conclusion"),
    "a conclusion in a list": ('{"conclusion": ["up"]}', "$.conclusion"),
    "reasoning in a list": (answer(reasoning=["first", "second"]), "$.reasoning"),
    "files as text": (answer(files="bars.csv"), "$.files"),
    "a file that is none": (answer(files=["bars.csv", 7]), "$.files[1]"),
    "sub-tasks as an object": (answer(sub_tasks={"query": "x"}), "$.sub_tasks"),
    "a sub-task as text": (answer(sub_tasks=["x"], next_action="continue"), "$.sub_tasks[0]"),
    "a query that is a number": (answer(sub_tasks=[{"query": 1}]), "$.sub_tasks[0].query"),
    "a priority of 0": (answer(sub_tasks=[{"query": "x", "priority": 0}]), "$.sub_tasks[0].priority"),
    "a priority in words": (answer(sub_tasks=[{"query": "x", "priority": "top"}]), "$.sub_tasks[0].priority"),
    "a confidence that is true": (answer(confidence=True), "$.confidence"),
    "a confidence of null": (answer(confidence=None), "$.confidence"),
    "a confidence as text": (answer(confidence="0.9"), "$.confidence"),
    "a huge confidence": ('{"conclusion": "up", "confidence": 1' + "0" * 100 + "}", "$.confidence"),
    "more info in words": (answer(needs_more_info="yes"), "$.needs_more_info"),
    "an action in capitals": (answer(next_action="CONTINUE"), "$.next_action"),
    "an error that is no text": (answer(error={"code": 1}), "$.error"),
}


@pytest.mark.parametrize("what", WRONG)
def test_invalid_field_is_rejected_with_path(what: str) -> None:
    raw, path = WRONG[what]

    parsed = parse_llm_response(raw)

    assert_says_nothing(parsed, raw)
    assert [rule.path for rule in parsed.violations] == [path]
    assert str(parsed.error).startswith(f"{path}: ")


def test_every_broken_rule_is_named() -> None:
    parsed = parse_llm_response('{"confidence": 7, "next_action": "stop"}')

    assert [rule.path for rule in parsed.violations] == ["$.conclusion", "$.confidence", "$.next_action"]
    assert all(rule.path in str(parsed.error) for rule in parsed.violations)


def test_reported_error_makes_conclusion_display_only() -> None:
    raw = answer(
        error="I cannot keep this form.", next_action="ask_user", confidence=0.2, sub_tasks=[{"query": "x"}]
    )

    parsed = parse_llm_response(raw)

    assert (parsed.is_valid, parsed.should_continue, parsed.should_ask_user) == (False, False, False)
    assert (parsed.conclusion, parsed.display_text) == ("The trend is up.", "The trend is up.")
    assert (parsed.error, parsed.confidence, parsed.violations) == ("I cannot keep this form.", 0.2, ())
    assert (extract_conclusion(raw), parsed.sub_tasks) == ("", [])


def test_reported_error_without_conclusion_is_violation() -> None:
    raw = '{"error": "I cannot keep this form."}'

    parsed = parse_llm_response(raw)

    assert_says_nothing(parsed, raw)
    assert parsed.error == "$.conclusion: is required and missing"


def test_empty_error_is_ignored() -> None:
    parsed = parse_llm_response(answer(error=""))

    assert (parsed.is_valid, parsed.error) == (True, None)


def test_unknown_property_is_ignored() -> None:
    parsed = parse_llm_response(answer(mood="calm"))

    assert parsed.conclusion == "The trend is up."
    assert "mood" in parsed.raw_response


def test_only_valid_answer_yields_conclusion() -> None:
    assert extract_conclusion(answer()) == "The trend is up."
    assert extract_conclusion("Buy everything.") == ""
    assert extract_conclusion(answer(confidence=1.2)) == ""


def test_only_valid_answer_yields_sub_tasks() -> None:
    assert extract_sub_tasks(json.dumps(FULL)) == FULL["sub_tasks"]
    assert extract_sub_tasks(answer()) == []
    assert extract_sub_tasks(answer(sub_tasks=FULL["sub_tasks"], confidence=1.2)) == []


@pytest.mark.parametrize("broken", [{}, {"priority": 1}, {"query": None}, {"query": " \n"}], ids=str)
def test_sub_task_without_query_is_counted(broken: dict[str, Any]) -> None:
    parsed = parse_llm_response(answer(sub_tasks=[broken, {"query": "x"}], next_action="continue"))

    assert (parsed.sub_tasks, parsed.without_query, parsed.should_continue) == ([{"query": "x"}], 1, True)


def test_sub_tasks_without_queries_leave_conclusion() -> None:
    parsed = parse_llm_response(answer(sub_tasks=[{}, {"query": ""}], next_action="continue"))

    assert (parsed.is_valid, parsed.should_continue, parsed.without_query) == (True, False, 2)


def test_sub_tasks_are_ordered_by_priority() -> None:
    tasks = [
        {"query": "a"},
        {"query": "b", "priority": 2},
        {"query": "c", "priority": 1000},
        {"query": "d", "priority": 2},
        {"query": "e", "priority": 1},
    ]

    parsed = parse_llm_response(answer(sub_tasks=tasks, next_action="continue"))

    assert [task["query"] for task in parsed.ordered_sub_tasks] == ["e", "b", "d", "c", "a"]
    assert parsed.sub_tasks == tasks


@pytest.mark.parametrize("fields", [{}, FULL, {"error": "no"}, {"confidence": 7}, {"conclusion": 1}])
def test_decoded_object_parses_like_text(fields: dict[str, Any]) -> None:
    raw = answer(**fields)

    assert StructuredResponse.of(json.loads(raw), raw) == parse_llm_response(raw)


def test_saved_tokens_are_logged_without_text() -> None:
    raw = json.dumps(FULL)

    with structlog.testing.capture_logs() as logs:
        parse_llm_response(raw)

    saved = (len(raw) - len("The trend is up.")) // 4
    assert logs == [
        {
            "event": "answer_parsed",
            "log_level": "debug",
            "chars": len(raw),
            "conclusion_chars": 16,
            "saved_tokens_estimate": saved,
        }
    ]
