"""Our side of `http_session.py`: both APIs over HTTP of our own, at the address in `HTTP_STUB`."""

import os
from collections.abc import Awaitable, Callable
from functools import partial

from agentic_trading.clock import SystemClock
from agentic_trading.llm.provider import MAX_ANSWER_BYTES, ModelRequest, Provider
from agentic_trading.llm.providers.anthropic import messages
from agentic_trading.llm.providers.anthropic.provider import AnthropicProvider
from agentic_trading.llm.providers.errors import ErrorForm
from agentic_trading.llm.providers.http import HttpSession
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.llm.providers.openai.provider import (
    ERRORS,
    OpenAIProvider,
    completion_body,
    model_response,
)
from agentic_trading.llm.redaction import Redaction
from benchmarks.ours import envelope
from benchmarks.peers.question import ANSWER, INSTRUCTIONS, QUESTION
from benchmarks.peers.rounds import Round, answer_rounds, asked_at_once

KEYS = OneKey("sk-bench-0123456789")
REQUEST = ModelRequest(envelope(), 1, 1, INSTRUCTIONS, QUESTION, "prompted", max_tokens=4_096)


async def anthropic_session(callers: int, count: int) -> Round:
    """Send what is spelled already, and read the answer."""
    body = messages.create_arguments(REQUEST, ttl="")
    headers = {"anthropic-version": messages.VERSION}
    session = _session(os.environ["HTTP_STUB"], messages.ERRORS)

    async def ask() -> bool:
        return (
            messages.read_message(await session.post(REQUEST, "/v1/messages", body, headers)).text == ANSWER
        )

    return await _timed(ask, session.aclose, callers, count)


async def openai_session(callers: int, count: int) -> Round:
    """Send what is spelled already, and read the answer."""
    body = completion_body(REQUEST, "compatible", logprobs=False)
    session = _session(os.environ["HTTP_STUB"] + "/v1", ERRORS)

    async def ask() -> bool:
        return model_response(await session.post(REQUEST, "/chat/completions", body)).text == ANSWER

    return await _timed(ask, session.aclose, callers, count)


def provider_of(vendor: str) -> Provider:
    """Return the adapter of `anthropic` or `openai`, which spells each request and looks for keys in each answer."""
    if vendor == "anthropic":
        return AnthropicProvider(KEYS, base_url=os.environ["HTTP_STUB"])
    return OpenAIProvider(KEYS, base_url=os.environ["HTTP_STUB"] + "/v1")


async def anthropic_adapter(callers: int, count: int) -> Round:
    """Ask the whole adapter."""
    return await _asked(provider_of("anthropic"), callers, count)


async def openai_adapter(callers: int, count: int) -> Round:
    """Likewise."""
    return await _asked(provider_of("openai"), callers, count)


def _session(address: str, form: ErrorForm) -> HttpSession:
    return HttpSession(
        KEYS, address, form, redaction=Redaction(), clock=SystemClock(), max_answer_bytes=MAX_ANSWER_BYTES
    )


async def _asked(provider: Provider, callers: int, count: int) -> Round:
    async def ask() -> bool:
        return (await provider.complete(REQUEST)).text == ANSWER

    return await _timed(ask, provider.aclose, callers, count)


async def _timed(
    ask: Callable[[], Awaitable[bool]], close: Callable[[], Awaitable[None]], callers: int, count: int
) -> Round:
    try:
        return await asked_at_once(ask, callers, count)
    finally:
        await close()


if __name__ == "__main__":
    answer_rounds({
        f"{made.__name__}_{callers}": partial(made, callers)
        for made in (anthropic_session, openai_session, anthropic_adapter, openai_adapter)
        for callers in (1, 16)
    })
