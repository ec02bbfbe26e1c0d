"""pydantic-ai: its prompted output, read by pydantic; and what its retries bill."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic_ai import Agent, PromptedOutput
from pydantic_ai._utils import strip_markdown_fences
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from benchmarks.peers.failures import QUESTION, Billed, answers_to, told
from benchmarks.peers.order_model import MODELS, plain, spelled
from benchmarks.peers.reader import answer_readings


def way(schema: str) -> Callable[[str], BaseModel]:
    """Do what its processor of prompted output does with a text."""
    validator = TypeAdapter(MODELS[schema]).validator
    return lambda text: validator.validate_json(strip_markdown_fences(text))


_FINISH = {"end_turn": "stop", "max_tokens": "length", "refusal": "content_filter"}


async def _billed(kind: str) -> Billed:
    answers = answers_to(kind)

    def answer(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        given = answers.next()
        usage = RequestUsage(input_tokens=100, output_tokens=50)
        return ModelResponse([TextPart(given.text)], usage=usage, finish_reason=_FINISH[given.stop_reason])

    agent = Agent(FunctionModel(answer), output_type=PromptedOutput(MODELS["ticket"]), retries=3)
    try:
        value = (await agent.run(QUESTION)).output
    except Exception as e:  # noqa: BLE001 - what it ends in is what is told
        return Billed(answers.given, type(e).__name__)
    return told(answers.given, value.model_dump())


def billed(request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask where the first answer fails in the way of `kind`, with three retries allowed."""
    return asyncio.run(_billed(request["kind"])).__dict__


if __name__ == "__main__":
    answer_readings({"validate": way}, spelled, plain, billed)
