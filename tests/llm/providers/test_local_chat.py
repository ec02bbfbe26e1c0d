"""A request becomes the same chat every time, and the server's words become ours."""

from typing import Any

import orjson
import pytest

from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.providers.local import StreamedCompletion, grammar, local_chat_body, server_error
from agentic_trading.llm.result import Usage
from tests.structured.asking import asked, capability, request

USAGE = {"prompt_tokens": 30, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 0}}


def piece(text: str | None, *, ended: str | None = None) -> dict[str, Any]:
    return {"model": "small", "choices": [{"delta": {"content": text}, "finish_reason": ended}]}


def never() -> bool:
    return False


def test_equal_requests_have_equal_bodies() -> None:
    assert local_chat_body(request()) == local_chat_body(request())


def test_request_without_temperature_is_greedy() -> None:
    assert local_chat_body(request())["temperature"] == 0.0


def test_envelope_temperature_is_sent_when_supported() -> None:
    takes = capability(sampling=True)

    assert local_chat_body(request(takes, temperature=0.7))["temperature"] == 0.7


def test_text_request_has_no_grammar() -> None:
    prompted = request(capability(native_schema=False))

    assert "grammar" not in local_chat_body(prompted)


def test_grammar_keeps_property_order_without_whitespace() -> None:
    schema = {"type": "object", "properties": {"z": {"type": "null"}, "a": {"type": "null"}}}

    head, _, told = grammar(schema).partition("%json ")

    assert head == "%llguidance {}\nstart: "
    assert list(orjson.loads(told)["properties"]) == ["z", "a"]
    assert orjson.loads(told)["x-guidance"] == {"whitespace_flexible": False}


def test_chunks_assemble_into_answer() -> None:
    answer = StreamedCompletion(never)
    chunks = [
        piece(None),
        piece('{"a"'),
        piece(":1}"),
        piece(None, ended="stop"),
        {"choices": [], "usage": USAGE},
    ]

    assert not any(answer.take(chunk) for chunk in chunks)
    assert ("".join(answer.text), answer.stop_reason, answer.model) == ('{"a":1}', "stop", "small")
    assert answer.usage == Usage(input_tokens=30, output_tokens=7)


def test_cached_tokens_are_counted_apart() -> None:
    answer = StreamedCompletion(never)

    answer.take({"usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 10}}})

    assert answer.usage == Usage(input_tokens=20, cache_read_tokens=10, output_tokens=7)


def test_abandoned_call_stops_server() -> None:
    assert StreamedCompletion(lambda: True).take(piece("more")) is True


@pytest.mark.parametrize(
    ("error", "kind", "sent"),
    [
        ({"code": 400, "type": "exceed_context_size_error"}, FailureKind.INVALID_REQUEST, False),
        ({"code": 400, "message": "no such field"}, FailureKind.INVALID_REQUEST, False),
        ({"code": 500, "message": "out of memory"}, FailureKind.SERVER_ERROR, True),
        ({}, FailureKind.SERVER_ERROR, True),
    ],
)
def test_server_error_maps_to_expected_kind(error: dict[str, Any], kind: FailureKind, *, sent: bool) -> None:
    failed = server_error(error)

    assert (failed.kind, failed.sent) == (kind, sent)
    assert failed.message


def test_bounds_supporting_model_keeps_schema_bounds() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["n"],
        "additionalProperties": False,
    }
    wanted = asked(expected_output_schema=schema)

    held = request(capability(holds_bounds=True), expected_output_schema=wanted.expected_output_schema)

    assert held.response_schema is not None
    assert held.response_schema["properties"]["n"] == {"type": "integer", "minimum": 1, "maximum": 5}


@pytest.mark.parametrize("pattern", [r"^(?=a)a$", r"^(?i)a$", r"\bcat\b", r"^(a)\1$"])
def test_unsupported_pattern_moves_to_description(pattern: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": pattern}},
        "required": ["a"],
        "additionalProperties": False,
    }

    told = request(capability(holds_bounds=True), expected_output_schema=schema).response_schema

    assert told is not None
    assert "pattern" not in told["properties"]["a"]
    assert "pattern: " in told["properties"]["a"]["description"]
