"""instructor's modes over the three APIs: tools, a JSON schema, tools of responses, and tools of Messages."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import anthropic
import instructor
import openai
from pydantic import BaseModel

from benchmarks.peers.clients import Call, Way, answer_calls

Client = Callable[[Call], Any]


class Advice(BaseModel):
    """An advice."""

    direction: str
    strength: float


class Order(BaseModel):
    """An order."""

    symbol: str
    size: float


def tools(call: Call) -> Any:
    """Return a client that forces a tool of chat completions."""
    client = openai.OpenAI(base_url=f"{call.url}/v1", api_key=call.secret)
    return instructor.from_openai(client, mode=instructor.Mode.TOOLS)


def json_schema(call: Call) -> Any:
    """Return a client that sends a JSON schema."""
    client = openai.OpenAI(base_url=f"{call.url}/v1", api_key=call.secret)
    return instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)


def responses_tools(call: Call) -> Any:
    """Return a client that forces a tool of responses."""
    client = openai.OpenAI(base_url=f"{call.url}/v1", api_key=call.secret)
    return instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS)


def messages_tools(call: Call) -> Any:
    """Return a client that forces a tool of Messages."""
    client = anthropic.Anthropic(base_url=call.url, api_key=call.secret)
    return instructor.from_anthropic(client, mode=instructor.Mode.ANTHROPIC_TOOLS)


def awaited_tools(call: Call) -> Any:
    """Return an async client that forces a tool of chat completions."""
    client = openai.AsyncOpenAI(base_url=f"{call.url}/v1", api_key=call.secret)
    return instructor.from_openai(client, mode=instructor.Mode.TOOLS)


def arguments(client: Client, call: Call) -> dict[str, Any]:
    given: dict[str, Any] = {
        "model": call.model,
        "response_model": Advice if client is json_schema else Order,
        "messages": [{"role": "user", "content": call.words}],
    }
    if call.more:
        given["extra_body"] = dict(call.more)
    if client is messages_tools:
        given["max_tokens"] = 500
    return given


def structured(client: Client, call: Call) -> Any:
    return client(call).chat.completions.create(**arguments(client, call)).model_dump()


def streamed(client: Client, call: Call) -> Any:
    parts = list(client(call).chat.completions.create_partial(**arguments(client, call)))
    return parts[-1].model_dump()


def awaited(client: Client, call: Call) -> Any:
    return asyncio.run(client(call).chat.completions.create(**arguments(client, call))).model_dump()


WAYS: dict[str, Way] = {
    f"{client.__name__} {step.__name__}": partial(step, client)
    for client in (tools, json_schema, responses_tools, messages_tools)
    for step in (structured, streamed)
} | {"awaited_tools awaited": partial(awaited, awaited_tools)}

if __name__ == "__main__":
    answer_calls(WAYS)
