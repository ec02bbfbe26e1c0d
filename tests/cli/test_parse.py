"""`parse` prints the object alone, or says on standard error why there is none."""

import json
import os
import sys
from decimal import Decimal
from pathlib import Path
from typing import get_args

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.limits import OutputMode
from agentic_trading.llm.result import AttemptTrace, Stage
from agentic_trading.structured.decode import MAX_BYTES
from tests.cli.conftest import Command
from tests.cli.piping import GOOD, Piped, piping


@pytest.fixture
def parse(command: Command, monkeypatch: pytest.MonkeyPatch) -> Piped:
    return piping(command, monkeypatch)


def test_accepted_answer_is_printed_alone(parse: Piped) -> None:
    ended = parse(f"\n{GOOD}\n", "--schema", "order.json")

    assert (ended.code, ended.out, ended.err) == (ExitCode.DONE, f"{GOOD}\n", "")


def test_parse_defaults_to_lossless_mode(parse: Piped) -> None:
    slipped = "Sure:\n```json\n{'side': 'BUY', 'qty': 0.10,}\n```"

    assert json.loads(parse(slipped, "--schema", "order.json").out) == json.loads(GOOD)
    assert parse(slipped, "--schema", "order.json", "--mode", "native").code == ExitCode.FOUND_WRONG


def test_rejected_answer_error_lists_allowed_values(parse: Piped) -> None:
    ended = parse('{"side": "BYU", "qty": 0}', "--schema", "order.json")

    assert (ended.code, ended.out) == (ExitCode.FOUND_WRONG, "")
    head, *rules = ended.err.splitlines()
    assert head == "rejected: schema_validation"
    assert any(rule.startswith("  $.side: ") for rule in rules)
    assert 'was: "BYU"; allowed: ["BUY", "SELL"]; suggestion: "BUY"' in ended.err
    assert "was: 0; allowed: > 0\n" in ended.err


def test_violation_details_are_not_repeated(parse: Piped) -> None:
    told = parse('{"qty": true, "mood": "good"}', "--schema", "order.json", "--mode", "native").err

    assert '  $.side: is required and missing; allowed: ["BUY", "SELL"]\n' in told
    assert 'is not of type "number"; was: true\n' in told
    assert "no such property" not in told


@pytest.mark.parametrize(
    ("raw", "stage", "says"),
    [
        (b"", "response_empty", "empty"),
        (b'{"side": "\xff"}', "json_parse", "byte 10"),
        (b"[" * (MAX_BYTES + 10), "json_parse", str(MAX_BYTES)),
        (b'{"side": "BUY", "qty": 1', "truncated", "unclosed"),
        (b'{"side": "BUY", "qty": 1, "qty": 2}', "ambiguous", "twice"),
    ],
)
@pytest.mark.parametrize("words", [[], ["--schema", "order.json"]], ids=["any", "schema"])
def test_unreadable_answer_ends_in_a_verdict(
    raw: bytes, stage: str, says: str, words: list[str], parse: Piped
) -> None:
    ended = parse(raw, *words)

    assert (ended.code, ended.out) == (ExitCode.FOUND_WRONG, "")
    assert ended.err.startswith(f"rejected: {stage}\n")
    assert says in ended.err


@pytest.mark.parametrize(("reason", "stage"), [("max_tokens", "truncated"), ("refusal", "refusal")])
def test_stop_reason_decides_before_text(reason: str, stage: str, parse: Piped) -> None:
    ended = parse(GOOD, "--schema", "order.json", "--stop-reason", reason)

    assert (ended.code, ended.out) == (ExitCode.FOUND_WRONG, "")
    assert ended.err.startswith(f"rejected: {stage}\n")


def test_any_document_is_read_without_schema(parse: Piped) -> None:
    assert parse("[1.50, null]").out == "[1.50, null]\n"


def test_execution_answer_requires_sentinel(parse: Piped) -> None:
    words = ("--schema", "order.json", "--workflow", "execution")

    assert "truncated" in parse(GOOD, *words).err
    assert json.loads(parse(f'{GOOD[:-1]}, "end": "ok"}}', *words).out) == json.loads(GOOD)


def test_guess_is_reported_as_guess(parse: Piped) -> None:
    pytest.importorskip("json_repair")

    ended = parse('{"side": BUY, "qty": 0.10}', "--schema", "order.json", "--mode", "salvage")

    assert json.loads(ended.out) == json.loads(GOOD)
    assert "this is a guess" in ended.err


def test_broken_schema_is_a_verdict(parse: Piped) -> None:
    Path("broken.json").write_text('{"type": "objekt"}', encoding="utf-8")

    ended = parse(GOOD, "--schema", "broken.json")

    assert ended.code == ExitCode.FOUND_WRONG
    assert ended.err.startswith("rejected: schema_invalid\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--schema", "none.json"],
            "--schema is none.json, which cannot be read (No such file or directory)",
        ),
        (["--schema", "text.txt"], "--schema is text.txt, which is not JSON"),
        (["--schema", "list.json"], "--schema is list.json, which is not a JSON object"),
        (["--schema", "twice.json"], "which is not JSON ('type' occurs twice in one object)"),
        (["--schema", "schemas"], "--schema is schemas, which cannot be read"),
        (["--mode", "loose"], "'native', 'lossless', 'reask', 'salvage'"),
        (["--workflow", "trading"], "'analysis', 'planning', 'execution', 'general'"),
        (["--workflow", "execution", "--mode", "lossless"], "'native'"),
        (["--jsonl", "--explain"], "--explain is given with --jsonl"),
        (["--jsonl", "--schemas", "none"], "--schemas is none"),
        (["--schemas", "schemas"], "--schemas is given without --jsonl"),
    ],
)
def test_bad_usage_names_allowed_values(words: list[str], says: str, parse: Piped) -> None:
    Path("text.txt").write_text("no schema", encoding="utf-8")
    Path("list.json").write_text("[]", encoding="utf-8")
    Path("twice.json").write_text('{"type": "object", "type": "array"}', encoding="utf-8")

    ended = parse(GOOD, *words)

    assert (ended.code, ended.out) == (ExitCode.BAD_INPUT, "")
    assert says in ended.err
    assert "Traceback" not in ended.err


def test_terminal_input_is_refused_with_hint(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.openpty()
    with open(writer, closefd=True, encoding="utf-8") as terminal:  # noqa: PTH123 - a descriptor has no path
        monkeypatch.setattr(sys, "stdin", terminal)
        ended = command("parse")
    os.close(reader)

    assert ended.code == ExitCode.BAD_INPUT
    assert "no answer on standard input" in ended.err


def test_closed_input_is_refused_with_hint(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)

    assert "no answer on standard input" in command("parse", "--jsonl").err


def test_parse_help_lists_modes_and_workflows(command: Command) -> None:
    told = command("parse", "--help").out

    assert f"<{'|'.join(get_args(OutputMode))}>" in told
    assert f"<{'|'.join(EnvelopeWorkflow)}>" in told


def test_explanation_is_a_trace_on_stderr(parse: Piped) -> None:
    slipped = 'I take this one: {"side": "BUY", "qty": "0.10", "mood": "good"}'

    ended = parse(slipped, "--schema", "order.json", "--explain")

    assert json.loads(ended.out, parse_float=Decimal) == {"side": "BUY", "qty": Decimal("0.10")}
    trace = AttemptTrace.model_validate_json(ended.err)
    assert (trace.verdict, trace.decode) == (Stage.DONE, "lossless")
    assert [change.where for change in (*trace.coercions, *trace.patches)] == ["$.qty", "$.mood"]


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("reask", "Re-ask: the first request, followed by:"),
        ("native", "No re-ask in mode native. In mode reask: the first request, followed by:"),
    ],
)
def test_explanation_includes_the_reask_text(mode: str, says: str, parse: Piped) -> None:
    told = parse('{"side": "BYU", "qty": 1}', "--schema", "order.json", "--explain", "--mode", mode).err

    assert says in told
    assert '"last_answer":"{\\"side\\": \\"BYU\\", \\"qty\\": 1}"' in told
    assert '"suggestion":"BUY"' in told


def test_explanation_of_truncated_answer_names_next_step(parse: Piped) -> None:
    words = ("--schema", "order.json", "--explain")

    final = parse('{"side": "BUY", "qty": 1', *words, "--mode", "reask").err
    again = parse("{", *words, "--workflow", "analysis").err

    assert final.endswith("No re-ask: truncated is final.\n")
    assert again.endswith("Re-ask: the same request with room for a longer answer.\n")
    assert "last_answer" not in final + again


@pytest.mark.parametrize("raw", [b"\xff", b"", b"[1] [2]", b"{}" * 200, b'{"a": "\x1b[31m"}', b'"\xc2\x9b"'])
@pytest.mark.parametrize("schema", ["order.json", "broken.json", None])
def test_explanation_never_prints_control_characters(raw: bytes, schema: str | None, parse: Piped) -> None:
    Path("broken.json").write_text('{"type": "objekt"}', encoding="utf-8")

    ended = parse(raw, *(["--schema", schema] if schema else []), "--explain")

    assert ended.code in {ExitCode.DONE, ExitCode.FOUND_WRONG}
    assert '"verdict": "' in ended.err
    assert not {"\x1b", "\x9b"} & set(ended.out + ended.err)
