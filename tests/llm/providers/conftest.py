"""The adapter of the Messages API, and the stub that it asks."""

from collections.abc import AsyncIterator, Iterator

import pytest

from agentic_trading.llm.provider import Provider
from agentic_trading.llm.providers.anthropic.provider import AnthropicProvider, AnthropicSdkProvider
from agentic_trading.llm.providers.keys import OneKey
from tests.stubs.running import serving

Adapter = type[AnthropicProvider] | type[AnthropicSdkProvider]


@pytest.fixture(scope="module", params=[AnthropicProvider, AnthropicSdkProvider])
def adapter(request: pytest.FixtureRequest) -> Adapter:
    """Return what speaks to the API: our own HTTP, or the SDK."""
    made: Adapter = request.param
    return made


@pytest.fixture(scope="module")
def claude_stub(adapter: Adapter) -> Iterator[str]:
    """Return where the stub of an adapter listens."""
    with serving("tests.stubs.tools_api") as address:
        yield address


@pytest.fixture
async def claude(claude_stub: str, adapter: Adapter) -> AsyncIterator[Provider]:
    """Return a provider that asks the stub."""
    provider = adapter(OneKey("good"), base_url=claude_stub)
    yield provider
    await provider.aclose()
