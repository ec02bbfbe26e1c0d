"""`json_schema` of a key: answers passed unread, validated, or asked again, for schemas and for forced tools."""

from typing import Any

import pytest

from agentic_trading.llm.interaction import LLMInteraction
from tests.server.conftest import Serving
from tests.server.test_server import said

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"direction": {"type": "string"}, "strength": {"type": "number"}},
    "required": ["direction"],
    "additionalProperties": False,
}
ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {"symbol": {"type": "string"}},
    "required": ["symbol"],
}
BY_SCHEMA: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "gpt", "messages": [{"role": "user", "content": "%s"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    },
    "/v1/responses": {
        "model": "gpt", "input": "%s", "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
    },
    "/v1/messages": {
        "model": "claude", "max_tokens": 500, "messages": [{"role": "user", "content": "%s"}],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
}  # fmt: skip
BY_TOOL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "gpt", "messages": [{"role": "user", "content": "%s"}],
        "tools": [{"type": "function", "function": {"name": "order", "parameters": ORDER}}],
        "tool_choice": {"type": "function", "function": {"name": "order"}},
    },
    "/v1/responses": {
        "model": "gpt", "input": "%s", "tools": [{"type": "function", "name": "order", "parameters": ORDER}],
        "tool_choice": {"type": "function", "name": "order"},
    },
    "/v1/messages": {
        "model": "claude", "max_tokens": 500, "messages": [{"role": "user", "content": "%s"}],
        "tools": [{"name": "order", "input_schema": ORDER}], "tool_choice": {"type": "tool", "name": "order"},
    },
}  # fmt: skip


def asking(fields: dict[str, Any], words: str) -> dict[str, Any]:
    """Return a request with `words` as its text."""
    place = "input" if "input" in fields else "messages"
    return {**fields, place: words if place == "input" else [{"role": "user", "content": words}]}


@pytest.mark.parametrize("path", BY_SCHEMA)
@pytest.mark.parametrize("bodies", [BY_SCHEMA, BY_TOOL], ids=["schema", "tool"])
@pytest.mark.parametrize(
    ("mode", "of_good", "of_wrong", "attempts"),
    [("pass", "passed_on", "passed_on", "1"), ("validate", "accepted", "rejected", "1"), ("reask", "accepted", "accepted", "2")],
)  # fmt: skip
async def test_answer_is_validated_by_the_mode_of_the_key_and_passed_on(
    serve: Serving,
    path: str,
    bodies: dict[str, dict[str, Any]],
    mode: str,
    of_good: str,
    of_wrong: str,
    attempts: str,
) -> None:
    async with serve(rights={"json_schema": mode}) as served:
        good = await said(served, path, asking(bodies[path], "Judge."))
        wrong = await said(served, path, asking(bodies[path], "@wrong"))
        kept = [each.record async for each in served.store.scan()]

    assert [one[2]["x-agentic-verdict"] for one in (good, wrong)] == [of_good, of_wrong]
    assert (good[0], wrong[0], wrong[2]["x-agentic-attempts"]) == (200, 200, attempts)
    results = [record.result for record in kept if isinstance(record, LLMInteraction)]
    if mode != "pass":
        assert results[1].validation_errors
    assert not any(result.actionable or result.parsed_output for result in results)
    assert int(wrong[2]["x-agentic-cost-nusd"]) == sum(result.cost_nusd for result in results[1:])


async def test_last_answer_is_returned_if_all_are_rejected(serve: Serving) -> None:
    path = "/v1/messages"
    schema = {**SCHEMA, "properties": {"direction": {"const": "never"}}}
    body = {**BY_SCHEMA[path], "output_config": {"format": {"type": "json_schema", "schema": schema}}}
    async with serve(rights={"json_schema": "reask"}) as served:
        status, page, headers = await said(served, path, asking(body, "Judge."))

    assert (status, page["type"], headers["x-agentic-verdict"]) == (200, "message", "rejected")
    assert int(headers["x-agentic-attempts"]) > 1


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$id": "advice.v1", **SCHEMA}])
async def test_unusable_schema_is_left_to_the_vendor(serve: Serving, schema: dict[str, Any]) -> None:
    body = {
        **BY_SCHEMA["/v1/responses"],
        "text": {"format": {"type": "json_schema", "name": "a", "schema": schema}},
    }
    async with serve() as served:
        status, _, headers = await said(served, "/v1/responses", asking(body, "Judge."))

    assert (status, headers["x-agentic-verdict"]) == (200, "passed_on")
