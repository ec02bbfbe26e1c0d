"""The Anthropic SDK signs in where a key of ours does not, and its answers are read as our own."""

from contextlib import aclosing

import pytest

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.providers.anthropic.provider import AnthropicSdkProvider
from agentic_trading.llm.providers.keys import OneKey
from tests.llm.providers.recording import MESSAGE, page, recording
from tests.llm.providers.test_http import asked


@pytest.mark.parametrize(
    ("client", "arguments", "path", "header"),
    [
        ("AsyncAnthropic", {}, "/v1/messages", "Bearer ours"),
        (
            "AsyncAnthropicBedrock",
            {"aws_region": "eu-central-1", "api_key": "theirs"},
            "/model/claude-sonnet-5-5/invoke",
            "Bearer theirs",
        ),
        (
            "AsyncAnthropicVertex",
            {"region": "eu", "project_id": "p", "access_token": "theirs"},
            "/projects/p/locations/eu/publishers/anthropic/models/claude-sonnet-5-5:rawPredict",
            "Bearer theirs",
        ),
        (
            "AsyncAnthropicAWS",
            {"aws_region": "eu-central-1", "api_key": "theirs", "workspace_id": "w"},
            "/v1/messages",
            "Bearer theirs",
        ),
    ],
)
async def test_each_client_uses_matching_sign_in(
    client: str, arguments: dict[str, str], path: str, header: str
) -> None:
    async with recording(page(MESSAGE, request_id="req-1")) as server:
        provider = AnthropicSdkProvider(
            OneKey("ours"), client=client, arguments=arguments, base_url=server.address
        )
        async with aclosing(provider):
            answer = await provider.complete(asked())

    assert (answer.text, answer.provider_request_id, answer.usage.output_tokens) == ("{}", "req-1", 2)
    assert [(one.path, one.headers["authorization"]) for one in server.requests] == [(path, header)]


@pytest.mark.parametrize(("client", "arguments"), [("AsyncNothing", {}), ("AsyncAnthropic", {"nothing": 1})])
async def test_unusable_client_fails_unsent(client: str, arguments: dict[str, object]) -> None:
    async with aclosing(AnthropicSdkProvider(OneKey("ours"), client=client, arguments=arguments)) as provider:
        with pytest.raises(ProviderError, match="the client cannot be made") as failed:
            await provider.complete(asked())

    assert (failed.value.kind, failed.value.sent) == (FailureKind.INVALID_REQUEST, False)
