"""instructor: the last JSON of a text, checked by pydantic; and what its retries bill."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import anthropic
import httpx2
import instructor
from instructor.v2.core.json import extract_json_from_codeblock
from pydantic import BaseModel

from benchmarks.peers.failures import QUESTION, Answer, Billed, answers_to, told
from benchmarks.peers.order_model import MODELS, plain, spelled
from benchmarks.peers.reader import answer_readings


def way(schema: str) -> Callable[[str], BaseModel]:
    """Do what its handler of JSON mode does with a text."""
    model = MODELS[schema]
    return lambda text: model.model_validate(json.loads(extract_json_from_codeblock(text), strict=False))


def _message(answer: Answer) -> dict[str, Any]:
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5-5",
        "content": [{"type": "text", "text": answer.text}],
        "stop_reason": answer.stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 50},
    }


async def _billed(kind: str) -> Billed:
    answers = answers_to(kind)

    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=_message(answers.next()))

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    async with anthropic.AsyncAnthropic(api_key="none", http_client=http, max_retries=0) as client:
        asks = instructor.from_anthropic(client, mode=instructor.Mode.JSON)
        try:
            value = await asks.create(
                model="claude-sonnet-5-5",
                max_tokens=4_096,
                max_retries=3,
                messages=[{"role": "user", "content": QUESTION}],
                response_model=MODELS["ticket"],
            )
        except Exception as e:  # noqa: BLE001 - what it ends in is what is told
            return Billed(answers.given, type(e).__name__)
        return told(answers.given, value.model_dump())


def billed(request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask where the first answer fails in the way of `kind`, with three retries allowed."""
    return asyncio.run(_billed(request["kind"])).__dict__


if __name__ == "__main__":
    answer_readings({"extract": way}, spelled, plain, billed)
