"""What goes wrong before there is a connection was not sent, and is not charged."""

import pytest

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import Provider
from agentic_trading.llm.providers.anthropic.provider import AnthropicSdkProvider
from agentic_trading.llm.providers.hosted import nothing_sent
from agentic_trading.llm.providers.keys import OneKey
from tests.structured.asking import request

NOWHERE = "http://127.0.0.1:1"


async def failure(provider: Provider) -> ProviderError:
    with pytest.raises(ProviderError) as failed:
        await provider.complete(request())
    return failed.value


@pytest.mark.parametrize(
    ("variable", "value"), [("SSL_CERT_FILE", "/nowhere"), ("HTTP_PROXY", "http://me:secret@host:port")]
)
async def test_broken_client_environment_is_reported_unsent(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    error = await failure(AnthropicSdkProvider(OneKey("good"), base_url=NOWHERE))

    assert (error.kind, error.sent) == (FailureKind.INVALID_REQUEST, False)
    assert "proxies and certificates" in error.message
    assert "secret" not in error.message


def test_missing_package_is_named_in_error() -> None:
    with pytest.raises(ProviderError, match="No module named 'openai'") as failed, nothing_sent():
        raise ModuleNotFoundError("No module named 'openai'")

    assert not failed.value.sent
