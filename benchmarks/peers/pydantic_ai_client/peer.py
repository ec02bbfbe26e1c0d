"""pydantic-ai's models of OpenAI (two APIs) and Anthropic, with agents of its own."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks.peers.clients import Call, Way, answer_calls

Made = Callable[[Call], Model]


class Advice(BaseModel):
    """An advice."""

    direction: str
    strength: float


class Order(BaseModel):
    """An order."""

    symbol: str
    size: float


def order(symbol: str, size: float) -> str:
    """Order shares of a symbol."""
    return f"{size} of {symbol} are ordered."


def chat(call: Call) -> Model:
    """Return a model of chat completions."""
    return OpenAIChatModel(
        call.model, provider=OpenAIProvider(base_url=f"{call.url}/v1", api_key=call.secret)
    )


def responses(call: Call) -> Model:
    """Return a model of responses."""
    return OpenAIResponsesModel(
        call.model, provider=OpenAIProvider(base_url=f"{call.url}/v1", api_key=call.secret)
    )


def messages(call: Call) -> Model:
    """Return a model of Messages."""
    return AnthropicModel(call.model, provider=AnthropicProvider(base_url=call.url, api_key=call.secret))


def agent(model: Made, call: Call, **more: Any) -> Agent[None, Any]:
    settings: Any = {"extra_body": dict(call.more)} if call.more else {}
    return Agent(model(call), model_settings=settings, system_prompt="You trade.", **more)


def answer(model: Made, call: Call) -> Any:
    return agent(model, call).run_sync(call.words).output


def streamed(model: Made, call: Call) -> Any:
    async def read() -> Any:
        async with agent(model, call).run_stream(call.words) as result:
            return await result.get_output()

    return asyncio.run(read())


def structured(model: Made, call: Call) -> Any:
    return agent(model, call, output_type=NativeOutput(Advice)).run_sync(call.words).output.model_dump()


def forced(model: Made, call: Call) -> Any:
    asked = agent(model, call, output_type=ToolOutput(Order, name="order"))
    return asked.run_sync(f"@tool {call.words}").output.model_dump()


def called(model: Made, call: Call) -> Any:
    """Return the number of messages of an agent with a tool, and its answer."""
    result = agent(model, call, tools=[order]).run_sync(f"@tool {call.words}")
    return [len(result.all_messages()), result.output]


STEPS = (answer, streamed, structured, forced, called)
WAYS: dict[str, Way] = {
    f"{model.__name__} {step.__name__}": partial(step, model)
    for model in (chat, responses, messages)
    for step in STEPS
    # It sends a schema to Anthropic only with the name of a model that it knows.
    if (model, step) != (messages, structured)
}

if __name__ == "__main__":
    answer_calls(WAYS)
