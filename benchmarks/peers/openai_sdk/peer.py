"""The OpenAI SDK alone: one completion from the server at `HTTP_STUB`."""

import os
from functools import partial

import openai

from benchmarks.peers.question import ANSWER, INSTRUCTIONS, QUESTION
from benchmarks.peers.rounds import Round, answer_rounds, asked_at_once


async def call(callers: int, count: int) -> Round:
    """Ask `count` times, `callers` at once; the text of the answer is taken as it comes, not parsed."""
    address = os.environ["HTTP_STUB"] + "/v1"
    async with openai.AsyncOpenAI(api_key="sk-bench", base_url=address, max_retries=0) as client:

        async def ask() -> bool:
            completion = await client.chat.completions.create(
                model="bench-1",
                max_tokens=4_096,
                messages=[
                    {"role": "system", "content": INSTRUCTIONS},
                    {"role": "user", "content": QUESTION},
                ],
            )
            return completion.choices[0].message.content == ANSWER

        return await asked_at_once(ask, callers, count)


if __name__ == "__main__":
    answer_rounds({f"call_{callers}": partial(call, callers) for callers in (1, 16)})
