"""The official SDKs, unmodified, by address and key alone: whole and streamed answers, tools, schemas, and the models."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.server.conftest import Served, Serving
from tests.stubs.vendor_api import ARGUMENTS, TEXT

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "order",
        "parameters": {"type": "object", "properties": {"symbol": {"type": "string"}}},
    },
}
FLAT_TOOL: Any = {"type": "function", **TOOL["function"], "strict": False}
CLAUDE_TOOL: Any = {"name": "order", "input_schema": {"type": "object", "properties": {}}}


class Advice(BaseModel):
    """The schema of an answer."""

    direction: str
    strength: float


def ask(words: str = "Judge NVDA.") -> list[Any]:
    return [{"role": "user", "content": words}]


def sdk(served: Served, **more: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=served.secret, **more)


def claude_sdk(served: Served, **more: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=served.url, api_key=served.secret, **more)


async def test_chat_completion_whole_with_tool_and_with_schema(serve: Serving) -> None:
    async with serve() as served, sdk(served) as client:
        plain = await client.chat.completions.create(model="gpt", messages=ask())
        called = await client.chat.completions.create(model="gpt", messages=ask("@tool"), tools=[TOOL])
        parsed = await client.chat.completions.parse(model="gpt", messages=ask(), response_format=Advice)
        several = await client.chat.completions.create(model="gpt", messages=ask(), n=2, max_tokens=10)

    assert (plain.choices[0].message.content or "").startswith(TEXT)
    assert plain.usage is not None
    assert plain.usage.completion_tokens == 20
    call: Any = next(iter(called.choices[0].message.tool_calls or []))
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("order", ARGUMENTS)
    assert parsed.choices[0].message.parsed == Advice(direction="up", strength=0.8)
    assert len(several.choices) == 2


async def test_chat_completion_streamed_with_usage(serve: Serving) -> None:
    async with serve() as served, sdk(served) as client:
        async with client.chat.completions.stream(
            model="gpt",
            messages=ask("@tool"),
            tools=[TOOL],
            stream_options={"include_usage": True},
        ) as stream:
            final = await stream.get_final_completion()
        chunks = [
            one
            async for one in await client.chat.completions.create(model="gpt", messages=ask(), stream=True)
        ]

    call: Any = next(iter(final.choices[0].message.tool_calls or []))
    assert (call.id[:5], call.function.arguments) == ("call_", ARGUMENTS)
    assert final.usage is not None
    assert final.usage.completion_tokens == 20
    text = "".join(one.choices[0].delta.content or "" for one in chunks)
    assert text.startswith(TEXT)
    assert [one.usage for one in chunks] == [None] * len(chunks)


async def test_response_whole_streamed_with_reasoning_tool_and_schema(serve: Serving) -> None:
    async with serve() as served, sdk(served) as client:
        plain = await client.responses.create(model="gpt", input="@think Judge.")
        called = await client.responses.create(model="gpt", input=ask("@tool"), tools=[FLAT_TOOL])
        parsed = await client.responses.parse(model="gpt", input="Judge.", text_format=Advice)
        async with client.responses.stream(model="gpt", input="@think Judge.") as stream:
            streamed = await stream.get_final_response()

    assert [item.type for item in plain.output] == ["reasoning", "message"]
    assert plain.output_text.startswith(TEXT)
    (call,) = called.output
    assert call.type == "function_call"
    assert call.arguments == ARGUMENTS
    assert parsed.output_parsed == Advice(direction="up", strength=0.8)
    assert streamed.output_text == plain.output_text
    assert streamed.usage is not None
    assert streamed.usage.output_tokens == 20


async def test_message_whole_streamed_with_thinking_tool_and_schema(serve: Serving) -> None:
    async with serve() as served, claude_sdk(served) as client:
        more: dict[str, Any] = {"model": "claude", "max_tokens": 500}
        plain = await client.messages.create(messages=ask("@think"), **more)
        called = await client.messages.create(messages=ask("@tool"), tools=[CLAUDE_TOOL], **more)
        parsed = await client.messages.parse(messages=ask(), output_format=Advice, **more)
        async with client.messages.stream(
            messages=ask("@think @tool"), tools=[CLAUDE_TOOL], **more
        ) as stream:
            streamed = await stream.get_final_message()
        counted = await client.messages.count_tokens(model="claude", messages=ask())

    assert [block.type for block in plain.content] == ["thinking", "text"]
    assert called.stop_reason == "tool_use"
    assert called.content[-1].type == "tool_use"
    assert called.content[-1].input == json.loads(ARGUMENTS)
    assert parsed.parsed_output == Advice(direction="up", strength=0.8)
    assert [block.type for block in streamed.content] == ["thinking", "text", "tool_use"]
    assert streamed.usage.output_tokens == 20
    assert counted.input_tokens > 5


async def test_models_are_listed_for_both_sdks(serve: Serving) -> None:
    async with serve() as served, sdk(served) as client, claude_sdk(served) as claude:
        listed = [one.id async for one in client.models.list()]
        listed_too = [one.id async for one in claude.models.list()]

    assert listed == listed_too == ["gpt", "claude"]


async def test_raw_headers_name_the_call(serve: Serving) -> None:
    rights = {"max_output_tokens": 300}
    async with (
        serve(rights=rights) as served,
        sdk(served) as client,
        claude_sdk(served, timeout=60) as claude,
    ):
        raw = await client.chat.completions.with_raw_response.create(model="gpt", messages=ask())
        asked = await claude.messages.with_raw_response.create(model="claude", messages=ask(), max_tokens=100)
        lowered = await claude.messages.with_raw_response.create(
            model="claude", messages=ask(), max_tokens=128_000
        )
        sent = await served.asked()

    answer = raw.parse()
    assert answer._request_id == raw.headers["x-agentic-interaction-id"] == raw.headers["x-request-id"]
    assert int(raw.headers["x-agentic-cost-nusd"]) > 200_000
    assert (raw.headers["x-agentic-verdict"], raw.headers["x-agentic-served-from"]) == ("passed_on", "live")
    assert (raw.headers["x-agentic-attempts"], raw.headers["x-agentic-output-cap"]) == ("1", "300")
    assert "x-agentic-output-cap" not in asked.headers
    assert asked.headers["request-id"] == asked.headers["x-agentic-interaction-id"]
    assert lowered.headers["x-agentic-output-cap"] == "300"
    assert [one["body"].get("max_tokens") for one in sent[-3:]] == [300, 100, 300]


def blocking_calls(served: Served) -> list[str]:
    """Ask with the blocking clients, whole and streamed."""
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.secret) as client:
        whole = client.chat.completions.create(model="gpt", messages=ask())
        with client.responses.stream(model="gpt", input="Judge.") as stream:
            response = stream.get_final_response()
    with anthropic.Anthropic(base_url=served.url, api_key=served.secret) as claude:
        with claude.messages.stream(model="claude", max_tokens=99, messages=ask()) as messages:
            streamed = messages.get_final_text()
        message = claude.messages.create(model="claude", max_tokens=99, messages=ask())
    block = message.content[0]
    assert block.type == "text"
    return [whole.choices[0].message.content or "", response.output_text, streamed, block.text]


async def test_blocking_clients_work_as_well(serve: Serving) -> None:
    async with serve() as served:
        texts = await asyncio.to_thread(blocking_calls, served)

    assert all(text.startswith(TEXT) for text in texts)


async def test_body_reaches_the_client_byte_for_byte(serve: Serving) -> None:
    async with (
        serve() as served,
        served.request("POST", "/v1/responses", json={"model": "gpt", "input": "Judge."}) as answer,
    ):
        raw = await answer.read()

    assert raw.startswith(b'{ "x_stub": 1.50,\n "id": "resp_')
    assert "—".encode() in raw


async def test_question_reaches_the_vendor_in_the_clients_spelling(serve: Serving) -> None:
    body = '{"temperature":0.70, "model":"gpt","input": [{"role":"user","content":"\\u00e9 \\n 1e2"}],"user":"u-1"}'
    async with serve() as served:
        async with served.request("POST", "/v1/responses", data=body) as answer:
            assert answer.status == 200
        sent = (await served.asked())[-1]["raw"]

    assert sent == (
        '{"model":"stub-large","max_output_tokens":16384,"temperature":0.70,'
        '"input":[{"role":"user","content":"\\u00e9 \\n 1e2"}]}'
    )


async def test_answer_that_takes_long_keeps_its_stream_open(serve: Serving) -> None:
    timing = {"begins_after_s": 0.01, "pings_every_s": 0.05}
    async with serve(timing=timing) as served, sdk(served) as client, claude_sdk(served) as claude:
        chunks = await client.chat.completions.create(model="gpt", messages=ask("@slow"), stream=True)
        text = "".join([one.choices[0].delta.content or "" async for one in chunks])
        async with claude.messages.stream(model="claude", max_tokens=9, messages=ask("@slow")) as stream:
            answer = await stream.get_final_text()
        async with served.request(
            "POST", "/v1/responses", json={"model": "gpt", "input": "@slow", "stream": True}
        ) as raw:
            said = await raw.text()

    assert text.startswith(TEXT)
    assert answer.startswith(TEXT)
    assert said.startswith(": waiting\n\n")
    assert "response.completed" in said


Error = Callable[[], Any]


async def test_failure_of_a_stream_that_has_begun_is_an_event(serve: Serving) -> None:
    timing = {"begins_after_s": 0.0, "pings_every_s": 0.01}
    async with serve(timing=timing) as served, sdk(served) as client, claude_sdk(served) as claude:
        before = len(await served.asked())
        chunks = await client.chat.completions.create(model="gpt", messages=ask("@400"), stream=True)
        with pytest.raises(openai.APIError, match="told by the stub"):
            await anext(aiter(chunks))
        async with claude.messages.stream(model="claude", max_tokens=9, messages=ask("@400")) as stream:
            with pytest.raises(anthropic.APIStatusError, match="told by the stub"):
                await stream.get_final_text()
        after = len(await served.asked())

    assert after - before == 2
