"""LiteLLM: a call that is answered from its cache in memory."""

import asyncio
import logging

import litellm
from litellm.caching.caching import Cache

from benchmarks.peers.question import ANSWER, INSTRUCTIONS, QUESTION
from benchmarks.peers.rounds import Round, answer_rounds, timed

MESSAGES = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": QUESTION}]
MOST_TRIES = 20


async def _ask() -> tuple[str, bool]:
    """Return the text of the answer, and whether it is from the cache."""
    response = await litellm.acompletion(
        model="openai/gpt-4o", messages=MESSAGES, mock_response=ANSWER, api_key="none", caching=True
    )
    return response.choices[0].message.content, bool(response._hidden_params.get("cache_hit"))  # noqa: SLF001 - no other place says it


async def cached(count: int) -> Round:
    """Ask `count` times for an answer that the cache has."""
    litellm.cache = Cache(type="local")
    for _ in range(MOST_TRIES):  # the cache is filled in another task
        await _ask()
        await asyncio.sleep(0)
    return await timed(_ask, lambda answer: answer == (ANSWER, True), count)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    litellm.suppress_debug_info = True
    answer_rounds({"cached": cached})
