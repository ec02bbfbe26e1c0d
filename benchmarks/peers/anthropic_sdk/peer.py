"""The Anthropic SDK alone: one message over a transport in this process that answers at once, or from the server at `HTTP_STUB`."""

import os
from functools import partial

import anthropic
import httpx2

from benchmarks.peers.question import ANSWER, INSTRUCTIONS, QUESTION
from benchmarks.peers.rounds import Round, answer_rounds, asked_at_once, timed

REPLY = {
    "id": "msg_013Zva2CMHLNnXjNJJKqJ2EF",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-5-5",
    "content": [{"type": "text", "text": ANSWER}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1_200, "output_tokens": 410, "service_tier": "standard"},
}


def _answer(_request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, json=REPLY, headers={"request-id": "req_011CSHoEeqs5C35K2UUqR7Fy"})


async def _ask(client: anthropic.AsyncAnthropic) -> str:
    message = await client.messages.create(
        model="claude-sonnet-5-5",
        max_tokens=4_096,
        system=INSTRUCTIONS,
        messages=[{"role": "user", "content": QUESTION}],
    )
    return message.content[0].text


async def call(count: int) -> Round:
    """Ask `count` times; the text of the answer is taken as it comes, neither parsed nor checked nor kept."""
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(_answer))
    async with anthropic.AsyncAnthropic(api_key="none", http_client=http, max_retries=0) as client:
        return await timed(partial(_ask, client), lambda text: text == ANSWER, count)


async def served(callers: int, count: int) -> Round:
    """Ask a server, `callers` at once."""
    address = os.environ["HTTP_STUB"]
    async with anthropic.AsyncAnthropic(api_key="none", base_url=address, max_retries=0) as client:

        async def is_right() -> bool:
            return await _ask(client) == ANSWER

        return await asked_at_once(is_right, callers, count)


if __name__ == "__main__":
    answer_rounds({"call": call} | {f"call_{callers}": partial(served, callers) for callers in (1, 16)})
