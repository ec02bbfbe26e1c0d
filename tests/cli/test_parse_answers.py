"""Every raw text ends in a document or in a verdict with a stage, and never in an error."""

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.cli.parse_answers import (
    ParseQuestion,
    policy_of,
    read_bytes,
    read_schema,
    read_text,
    strictly_loaded,
)
from agentic_trading.llm.envelope_rules import PRESETS
from agentic_trading.llm.limits import OutputMode
from agentic_trading.llm.result import Stage
from agentic_trading.platform.errors import OptionError
from agentic_trading.structured.decode import MAX_BYTES

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {"side": {"enum": ["BUY", "SELL"]}, "qty": {"type": "number", "exclusiveMinimum": 0}},
    "required": ["side", "qty"],
    "additionalProperties": False,
}


def question(
    mode: OutputMode | None = None, schema: dict[str, Any] | None = ORDER, **facts: Any
) -> ParseQuestion:
    return ParseQuestion(policy=policy_of(None, mode), schema=schema, **facts)


def exact(text: str) -> Any:
    """Return JSON with every number as it is spelled."""
    return json.loads(text, parse_float=Decimal)


@pytest.mark.parametrize("mode", ["native", "lossless", "reask", "salvage"])
def test_strict_answer_is_unchanged_in_every_mode(mode: OutputMode) -> None:
    read = read_text('\n{"side": "BUY", "qty": 0.10}\n', question(mode))

    assert read.is_accepted
    assert read.text == '{"side": "BUY", "qty": 0.10}'
    assert read.changes == ()


@pytest.mark.parametrize(
    "text",
    [
        "{'side': 'BUY', 'qty': 0.10,}",
        'Here it is:\n```json\n{"side": "BUY", "qty": 0.10}\n```\nGood luck!',
        '{"side": "BUY" /* not SELL */, "qty": 0.10}',
        '{side: "BUY", qty: 0.10}',
    ],
)
def test_unambiguous_slip_is_mended_and_recorded(text: str) -> None:
    read = read_text(text, question("lossless"))

    assert read.is_accepted
    assert exact(read.text) == {"side": "BUY", "qty": Decimal("0.10")}
    assert "0.10" in read.text
    assert read.trace.fixes
    assert read.trace.decode == "lossless"
    assert not read_text(text, question("native")).is_accepted


def test_coercions_and_dropped_properties_are_changes() -> None:
    read = read_text('{"side": "BUY", "qty": "0.10", "mood": "good"}', question())

    assert exact(read.text) == {"side": "BUY", "qty": Decimal("0.10")}
    assert [change.where for change in read.trace.coercions] == ["$.qty"]
    assert [change.where for change in read.trace.patches] == ["$.mood"]
    assert read.changes == read.trace.coercions + read.trace.patches


@pytest.mark.parametrize("schema", [ORDER, None])
@pytest.mark.parametrize(
    ("facts", "stage"),
    [
        ({"stop_reason": "max_tokens"}, Stage.TRUNCATED),
        ({"stop_reason": "refusal"}, Stage.REFUSAL),
        ({"output_tokens": 9, "max_tokens": 9}, Stage.TRUNCATED),
    ],
)
def test_provider_facts_take_precedence_over_text(
    facts: Mapping[str, Any], stage: Stage, schema: dict[str, Any] | None
) -> None:
    whole = b'{"side": "BUY", "qty": 1}'

    read = [
        read_bytes(raw, question(schema=schema, **facts)) for raw in (whole, b"\xff", b" " * (MAX_BYTES + 1))
    ]

    assert [each.trace.verdict for each in read] == [stage] * 3
    assert {each.text for each in read} == {""}


@pytest.mark.parametrize("schema", [ORDER, None])
@pytest.mark.parametrize("mode", ["native", "lossless"])
@pytest.mark.parametrize(
    ("raw", "stage", "says"),
    [
        (b"", Stage.RESPONSE_EMPTY, "empty"),
        (b" \n", Stage.RESPONSE_EMPTY, "empty"),
        (b'{"side": "BUY", "qty": 1', Stage.TRUNCATED, "unclosed"),
        (b'{"side": "B\xffUY", "qty": 1}', Stage.JSON_PARSE, "byte 11"),
        (b'{"side": "BUY", "qty": 1e999}', Stage.JSON_PARSE, ""),
        (b'{"side": "BUY", "qty": NaN}', Stage.JSON_PARSE, ""),
        (b'{"side": "BUY", "qty": 1, "qty": 2}', Stage.AMBIGUOUS, "twice"),
        (b"I would rather not trade today.", Stage.JSON_PARSE, ""),
        (b'{"side": "BUY", "note": "' + b"a" * MAX_BYTES + b'"}', Stage.JSON_PARSE, str(MAX_BYTES)),
    ],
)
def test_unreadable_answer_has_stage_and_reason(
    raw: bytes, stage: Stage, says: str, mode: OutputMode, schema: dict[str, Any] | None
) -> None:
    read = read_bytes(raw, question(mode, schema))

    assert read.trace.verdict is stage
    assert says in read.trace.errors[0].message
    assert read.text == ""


@pytest.mark.parametrize(
    "text", ["[1, 2.50]", "null", '"text"', "-0.0", "1E5", "true", "12345678901234567890123"]
)
@pytest.mark.parametrize("mode", ["native", "lossless"])
def test_document_without_schema_keeps_every_digit(text: str, mode: OutputMode) -> None:
    read = read_text(f" {text}\n", question(mode, None))

    assert (read.is_accepted, read.text) == (True, text)


def test_several_documents_without_schema_are_ambiguous() -> None:
    read = read_text('{"a": 1} or {"a": 2}', question("lossless", None))

    assert read.trace.verdict is Stage.AMBIGUOUS
    assert "2" in read.trace.errors[0].message


def test_wrong_value_verdict_lists_allowed_values() -> None:
    read = read_text('{"side": "BYU", "qty": 1}', question())

    wrong = read.trace.errors[0]
    assert (read.trace.verdict, wrong.path) == (Stage.SCHEMA_VALIDATION, "$.side")
    assert (wrong.allowed, wrong.suggestion) == (["BUY", "SELL"], "BUY")
    assert read.rejected is not None
    assert read.rejected.errors == read.trace.errors


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"$ref": "https://elsewhere.example/order.json"},
        {"type": "array"},
        {"properties": {"qty": {"maximum": float("nan")}}},
        {"title": "\ud800"},
    ],
)
def test_unusable_schema_is_a_verdict(schema: dict[str, Any]) -> None:
    read = read_text('{"side": "BUY", "qty": 1}', question(schema=schema))

    assert read.trace.verdict is Stage.SCHEMA_INVALID
    assert read.trace.errors


def test_execution_sentinel_is_required_and_removed() -> None:
    policy = policy_of("execution", None)
    cut, whole = '{"side": "BUY", "qty": 1.50}', '{"side": "BUY", "qty": 1.50, "end": "ok"}'

    read = [read_text(text, ParseQuestion(policy=policy, schema=ORDER)) for text in (cut, whole)]

    assert [each.trace.verdict for each in read] == [Stage.TRUNCATED, Stage.DONE]
    assert exact(read[1].text) == exact(cut)
    assert "1.50" in read[1].text


@pytest.mark.parametrize("mode", ["lossless", "reask", "salvage"])
def test_execution_allows_only_native_mode(mode: OutputMode) -> None:
    assert policy_of("execution", "native") == policy_of("execution", None)

    with pytest.raises(OptionError, match="'native'") as refused:
        policy_of("execution", mode)

    assert refused.value.option == "--mode"


def test_workflow_policy_matches_the_preset() -> None:
    assert {workflow: policy_of(workflow, None) for workflow in PRESETS} == {
        workflow: preset.output for workflow, preset in PRESETS.items()
    }
    assert policy_of(None, None).mode == "lossless"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        (b"not json", "is not JSON"),
        (b'{"maximum": NaN}', "NaN is not a JSON number"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b"true", "is not a JSON object"),
        (b"[]", "is not a JSON object"),
    ],
)
def test_unusable_schema_file_is_refused_with_reason(
    content: bytes | None, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "schema.json"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ValueError, match=says):
        read_schema(file)


def test_schema_keeps_exact_numbers(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_bytes(b'{"maximum": 12345678901234567890}')

    assert read_schema(file) == {"maximum": 12345678901234567890}


@given(st.text() | st.text(alphabet="{}[]\":,0123456789.eE+-truefalsn \n'`#/"))
def test_any_text_ends_in_a_verdict(text: str) -> None:
    for schema in (ORDER, None):
        read = read_text(text, question(schema=schema))

        assert read.is_accepted == bool(read.text)
        assert read.is_accepted or read.trace.errors


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_verdict(raw: bytes) -> None:
    for schema in (ORDER, None):
        assert read_bytes(raw, question(schema=schema)).trace.verdict in Stage


@pytest.mark.parametrize("prose", ["I cannot help with that.", "Sorry.", '"\ud800"'])
def test_prose_is_rejected_in_every_mode(prose: str) -> None:
    for mode in get_args(OutputMode):
        assert read_text(prose, question(mode, schema=None)).trace.verdict is Stage.JSON_PARSE


def test_strict_loading_reads_utf8_json() -> None:
    assert strictly_loaded('{"ä": [1, 2.5, null]}'.encode()) == {"ä": [1, 2.5, None]}


def test_duplicate_key_is_refused() -> None:
    with pytest.raises(ValueError, match="'raw' occurs twice in one object"):
        strictly_loaded(b'{"id": 1, "raw": "1", "in": {"raw": 1}, "raw": "2"}')
