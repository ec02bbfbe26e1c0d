"""LangChain's chat models for OpenAI (two APIs) and Anthropic, and its agent."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from benchmarks.peers.clients import Call, Way, answer_calls

Model = Callable[[Call], BaseChatModel]
LOOP = asyncio.new_event_loop()
"""The loop of all async calls, because models share their HTTP clients."""


class Advice(BaseModel):
    """An advice."""

    direction: str
    strength: float


class Order(BaseModel):
    """An order."""

    symbol: str
    size: float


@tool
def order(symbol: str, size: float) -> str:
    """Order shares of a symbol."""
    return f"{size} of {symbol} are ordered."


def chat(call: Call) -> BaseChatModel:
    """Return a model of chat completions."""
    return ChatOpenAI(
        model=call.model, base_url=f"{call.url}/v1", api_key=call.secret, extra_body=call.more or None
    )


def responses(call: Call) -> BaseChatModel:
    """Return a model of responses."""
    return ChatOpenAI(
        model=call.model,
        base_url=f"{call.url}/v1",
        api_key=call.secret,
        extra_body=call.more or None,
        use_responses_api=True,
    )


def messages(call: Call) -> BaseChatModel:
    """Return a model of Messages."""
    more = {"extra_body": call.more} if call.more else {}
    return ChatAnthropic(model=call.model, base_url=call.url, api_key=call.secret, model_kwargs=more)


def answer(model: Model, call: Call) -> Any:
    return str(model(call).invoke(call.words).text)


def awaited(model: Model, call: Call) -> Any:
    return str(LOOP.run_until_complete(model(call).ainvoke(call.words)).text)


def streamed(model: Model, call: Call) -> Any:
    return "".join(str(chunk.text) for chunk in model(call).stream(call.words))


def structured(model: Model, call: Call) -> Any:
    return model(call).with_structured_output(Advice, method="json_schema").invoke(call.words).model_dump()


def forced(model: Model, call: Call) -> Any:
    asked = model(call).with_structured_output(Order, method="function_calling")
    return asked.invoke(call.words).model_dump()


def called(model: Model, call: Call) -> Any:
    """Return the call of a tool, and the answer to its result."""
    bound = model(call).bind_tools([order])
    first = bound.invoke([HumanMessage(f"@tool {call.words}")])
    asked = first.tool_calls[0]
    result = ToolMessage(order.invoke(asked["args"]), tool_call_id=asked["id"])
    last = bound.invoke([HumanMessage(f"@tool {call.words}"), first, result])
    return [asked["name"], asked["args"], str(last.text)]


def streamed_tool(model: Model, call: Call) -> Any:
    whole: Any = None
    for chunk in model(call).bind_tools([order]).stream(f"@tool {call.words}"):
        whole = chunk if whole is None else whole + chunk
    return [whole.tool_calls[0]["name"], whole.tool_calls[0]["args"]]


def agent(model: Model, call: Call) -> Any:
    """Return the number of messages of an agent with a tool, and its last one."""
    asked = create_agent(model(call), [order], system_prompt="You trade.")
    said = asked.invoke({"messages": [("user", f"@tool {call.words}")]})["messages"]
    return [len(said), str(said[-1].text)]


STEPS = (answer, awaited, streamed, structured, forced, called, streamed_tool, agent)
WAYS: dict[str, Way] = {
    f"{model.__name__} {step.__name__}": partial(step, model)
    for model in (chat, responses, messages)
    for step in STEPS
}

if __name__ == "__main__":
    answer_calls(WAYS)
