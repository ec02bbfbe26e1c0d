"""What the tables of docs/reference/answers.md say of texts is what becomes of them."""

import json
from pathlib import Path

import pytest

from agentic_trading.canonical import exact_bytes
from agentic_trading.cli.parse_answers import ParseQuestion, policy_of, read_text, verdict_text
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.envelope_rules import PRESETS
from agentic_trading.llm.result import Stage
from agentic_trading.structured import Accepted, ParserException, Rejected, read, read_json
from agentic_trading.structured.outcome import may_be_asked_again
from agentic_trading.structured.render import render_schema
from tests.build import response

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "answers.md").read_text(encoding="utf-8")


def table(header: str) -> list[list[str]]:
    """Return the rows of the table whose header begins so, as their cells."""
    rows = PAGE.partition(f"\n| {header}")[2].partition("\n\n")[0].splitlines()[2:]
    return [row.removeprefix("| ").removesuffix(" |").split(" | ") for row in rows]


def code(cell: str) -> str:
    """Return what stands in a cell as code."""
    return cell[1:-1].strip().replace("⏎", "\n").replace("\\|", "|")


STAGES = table("stage ")
REPAIRED = table("syntax error ")
THINKING = table("marks of ")
REFUSED = table("text ")
FITTED = table("the schema wants ")
WORKFLOWS = table("workflow ")


def test_documented_tables_are_found() -> None:
    assert [len(STAGES), len(WORKFLOWS)] == [8, 4]
    assert min(len(REPAIRED), len(REFUSED), len(FITTED)) > 10


def test_documented_stages_match_reask_rules() -> None:
    listed = {code(stage): again.startswith("yes") for stage, _, again in STAGES}

    refusals = set(Stage) - {Stage.DONE, Stage.PASSED_ON, Stage.TRANSPORT}
    assert listed == {str(stage): may_be_asked_again(stage) for stage in refusals}


@pytest.mark.parametrize(("error", "text", "meaning"), REPAIRED, ids=[row[0] for row in REPAIRED])
def test_syntax_errors_are_repaired_as_documented(error: str, text: str, meaning: str) -> None:
    found = read_json(code(text), mode="lossless")

    assert exact_bytes(found) == exact_bytes(read_json(meaning[1:-1], mode="strict"))


@pytest.mark.parametrize(("marks", "text", "meaning"), THINKING, ids=[row[0] for row in THINKING])
def test_thinking_is_removed_as_documented(marks: str, text: str, meaning: str) -> None:
    assert read_json(code(text), mode="lossless") == read_json(meaning[1:-1], mode="strict"), marks


@pytest.mark.parametrize(("text", "stage", "why"), REFUSED, ids=[row[0] for row in REFUSED])
def test_texts_are_refused_as_documented(text: str, stage: str, why: str) -> None:
    with pytest.raises(ParserException) as caught:
        read_json(code(text), mode="lossless")

    assert caught.value.stage == code(stage)
    assert caught.value.errors


@pytest.mark.parametrize(("schema", "value", "becomes"), FITTED, ids=[" ".join(row[:2]) for row in FITTED])
def test_values_are_changed_as_documented(schema: str, value: str, becomes: str) -> None:
    form = {"type": "object", "properties": {"value": json.loads(schema[1:-1])}}
    text = f'{{"value": {value[1:-1]}}}'

    for workflow in (EnvelopeWorkflow.PLANNING, EnvelopeWorkflow.ANALYSIS):
        outcome = read(response(text), form, PRESETS[workflow].output)
        if becomes == "refused":
            assert isinstance(outcome, Rejected)
            assert outcome.trace.verdict is Stage.SCHEMA_VALIDATION
        else:
            assert isinstance(outcome, Accepted)
            assert exact_bytes(outcome.value["value"]).decode() == becomes[1:-1].replace(": ", ":")
            assert [*outcome.trace.coercions, *outcome.trace.patches]


@pytest.mark.parametrize("row", WORKFLOWS, ids=[row[0] for row in WORKFLOWS])
def test_workflow_policies_match_the_page(row: list[str]) -> None:
    workflow, mode, decode, candidates, changes, answers, truncated, exhausted = row
    policy = PRESETS[EnvelopeWorkflow(workflow)].output

    assert code(mode) == policy.mode
    assert (
        decode
        == {"strict": "strict JSON", "lossless": "repairs", "guess": "repairs, then guesses"}[policy.decode]
    )
    assert (
        candidates
        == {
            "whole": "the whole text",
            "only_valid": "the only valid one",
            "last_valid": "the last valid one",
            "exactly_one": "a single one",
        }[policy.candidates]
    )
    assert changes == " · ".join("yes" if may else "no" for may in (policy.coerce, policy.drop_extra))
    assert int(answers) == policy.answers_read
    assert (
        truncated
        == {"fail": "fails", "raise_cap_once": "asked once more with a higher cap"}[policy.on_truncated]
    )
    assert exhausted.partition(":")[0] == {"fail": "fails", "degraded": "degraded"}[policy.on_exhausted]


def test_schema_and_verdict_render_as_documented() -> None:
    schema = PAGE.partition("```json\n")[2].partition("```")[0]
    form, verdict = (block.partition("```")[0] for block in PAGE.split("```text\n")[1:])

    read_so = read_text(
        '{"side": "buy", "qty": 12}',
        ParseQuestion(policy=policy_of(None, None), schema=json.loads(schema)),
    )

    assert render_schema(schema.encode(), sentinel=False) == form.strip()
    assert verdict_text(read_so) == verdict.strip()
