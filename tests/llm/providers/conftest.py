"""The adapter of the Messages API, and the stub that it asks."""

from collections.abc import AsyncIterator, Iterator

import pytest

from agentic_trading.llm.providers.anthropic.provider import AnthropicProvider
from agentic_trading.llm.providers.keys import OneKey
from tests.stubs.running import serving


@pytest.fixture(scope="module")
def claude_stub() -> Iterator[str]:
    """Return where the stub listens."""
    with serving("tests.stubs.tools_api") as address:
        yield address


@pytest.fixture
async def claude(claude_stub: str) -> AsyncIterator[AnthropicProvider]:
    """Return a provider that asks the stub."""
    provider = AnthropicProvider(OneKey("good"), base_url=claude_stub)
    yield provider
    await provider.aclose()
