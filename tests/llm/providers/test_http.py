"""HTTP of our own sends what the vendors' SDKs send, once, to the server that was named and to no other."""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, get_args

import aiohttp
import openai
import pytest

from agentic_trading.clock import SystemClock
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import MAX_ANSWER_BYTES, ModelRequest, Provider, ToolDefinition
from agentic_trading.llm.providers.anthropic.provider import AnthropicProvider, AnthropicSdkProvider
from agentic_trading.llm.providers.http import MEANINGS, HttpSession, meaning_of_client_error, spelled
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.llm.providers.openai.provider import ERRORS, Dialect, OpenAIProvider, completion_body
from agentic_trading.llm.redaction import Redaction
from tests.certificates import make_certificates
from tests.llm.providers.over import TRANSPORTS, over
from tests.llm.providers.recording import COMPLETION, MESSAGE, Recorded, page, recording
from tests.structured.asking import ORDER, request

CLAUDES = ("claude-sonnet-5-5", "claude-sonnet-4-5-20250929")
MODELS = Capabilities.load()
KEY = "sk-recorded-1"
TOOL = ToolDefinition(name="look", description="Look.", parameters={"type": "object", "properties": {}})
OF_THE_CONNECTION = {"host", "connection", "content-length"}
OF_THE_SDK = {"user-agent"}
"""What differs besides `x-stainless-*`, by which the SDKs tell their vendors of the program that asks."""


def asked(model: str = "", **changes: Any) -> ModelRequest:
    """Return a request, over the answer tool or a schema where `changes` say so."""
    takes = MODELS.of(LLMProvider.ANTHROPIC, model or CLAUDES[0])
    made = request(
        takes, model=takes.model, expected_output_schema=ORDER, instructions="Judge: ä, €, \\, 💶."
    )
    return over(changes.pop("transport", "native_schema"), made, **changes)


def told(one: Recorded) -> tuple[str, Mapping[str, str], Any]:
    """Return what a request says of itself: its path, its headers but for those of the client, and its body."""
    left_out = OF_THE_CONNECTION | OF_THE_SDK
    headers = {
        name: value
        for name, value in one.headers.items()
        if name not in left_out and not name.startswith("x-stainless-")
    }
    return one.path, headers, one.body


def session(address: str) -> HttpSession:
    keys, redaction = OneKey(KEY), Redaction()
    return HttpSession(
        keys, address, ERRORS, redaction=redaction, clock=SystemClock(), max_answer_bytes=MAX_ANSWER_BYTES
    )


async def error_from(provider: Provider) -> ProviderError:
    async with aclosing(provider):
        with pytest.raises(ProviderError) as failed:
            await provider.complete(asked())
    return failed.value


@pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")
@pytest.mark.parametrize("model", CLAUDES)
@pytest.mark.parametrize(
    "changes",
    [
        *({"transport": transport} for transport in TRANSPORTS),
        {"transport": "strict_tool", "forced_tool": True, "tools": (TOOL,)},
        {"thinking_budget": 2000, "effort": "high", "temperature": None},
        {"temperature": 0.5},
    ],
    ids=str,
)
async def test_message_request_matches_sdk_request(model: str, changes: dict[str, Any]) -> None:
    made = asked(model, **changes)

    async with recording(page(MESSAGE, request_id="req-1")) as server:
        for adapter in (AnthropicProvider, AnthropicSdkProvider):
            async with aclosing(adapter(OneKey(KEY), base_url=f"{server.address}/api/")) as provider:
                answer = await provider.complete(made)
                assert (answer.text, answer.provider_request_id) == ("{}", "req-1")
                await provider.count_tokens(made)

    ours, our_count, theirs, their_count = map(told, server.requests)
    assert ours == theirs
    assert our_count == their_count
    assert (ours[0], our_count[0]) == ("/api/v1/messages", "/api/v1/messages/count_tokens")


@pytest.mark.parametrize("dialect", get_args(Dialect))
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_completion_request_matches_sdk_request(dialect: Dialect, transport: Any) -> None:
    made = asked(transport=transport, tools=(TOOL,))
    body = completion_body(made, dialect, logprobs=True)

    async with recording(page(COMPLETION)) as server:
        async with aclosing(session(f"{server.address}/v1")) as ours:
            await ours.post(made, "/chat/completions", body)
        async with openai.AsyncOpenAI(api_key=KEY, base_url=f"{server.address}/v1", max_retries=0) as sdk:
            await sdk.chat.completions.create(**body, extra_headers={"accept-encoding": "gzip"})

    mine, theirs = map(told, server.requests)
    assert mine == theirs
    assert mine[0] == "/v1/chat/completions"


async def test_only_client_headers_differ_from_sdk() -> None:
    async with recording(page(MESSAGE)) as server:
        for adapter in (AnthropicProvider, AnthropicSdkProvider):
            async with aclosing(adapter(OneKey(KEY), base_url=server.address)) as provider:
                await provider.complete(asked())

    ours, theirs = (one.headers for one in server.requests)
    assert theirs.keys() - ours.keys() <= {"connection"} | {one for one in theirs if "stainless" in one}
    assert ours.keys() <= theirs.keys()
    assert ours["user-agent"].startswith("agentic-trading/")


def test_every_relevant_aiohttp_error_has_meaning() -> None:
    offered = [getattr(aiohttp, name) for name in aiohttp.__all__]
    errors = {one for one in offered if isinstance(one, type) and issubclass(one, Exception)}

    unknown = {one for one in errors if not issubclass(one, (Warning, *MEANINGS))}

    assert unknown == {aiohttp.EofStream, aiohttp.WebSocketError, aiohttp.WSMessageTypeError}


@pytest.mark.parametrize(
    ("raised", "kind", "sent"),
    [
        (aiohttp.ClientConnectorError, FailureKind.SERVER_ERROR, False),
        (aiohttp.ClientConnectorDNSError, FailureKind.SERVER_ERROR, False),
        (aiohttp.ClientConnectorSSLError, FailureKind.SERVER_ERROR, False),
        (aiohttp.ClientConnectorCertificateError, FailureKind.SERVER_ERROR, False),
        (aiohttp.ConnectionTimeoutError, FailureKind.SERVER_ERROR, False),
        (aiohttp.ClientHttpProxyError, FailureKind.SERVER_ERROR, False),
        (aiohttp.ClientProxyConnectionError, FailureKind.SERVER_ERROR, False),
        (aiohttp.InvalidURL, FailureKind.INVALID_REQUEST, False),
        (aiohttp.SocketTimeoutError, FailureKind.TIMEOUT, True),
        (aiohttp.ServerTimeoutError, FailureKind.TIMEOUT, True),
        (aiohttp.ServerDisconnectedError, FailureKind.SERVER_ERROR, True),
        (aiohttp.ClientOSError, FailureKind.SERVER_ERROR, True),
        (aiohttp.ClientConnectionResetError, FailureKind.SERVER_ERROR, True),
        (aiohttp.ClientPayloadError, FailureKind.SERVER_ERROR, True),
        (aiohttp.ClientResponseError, FailureKind.SERVER_ERROR, True),
        (ConnectionResetError, FailureKind.SERVER_ERROR, True),
    ],
)
def test_client_error_maps_to_expected_meaning(
    raised: type[Exception], kind: FailureKind, *, sent: bool
) -> None:
    assert meaning_of_client_error(raised.__new__(raised)) == (kind, sent)


async def test_tenants_share_connections_without_cookies() -> None:
    async with (
        recording(page(COMPLETION, set_cookie="a=1")) as server,
        aclosing(OpenAIProvider(OneKey(KEY), base_url=server.address)) as provider,
    ):
        for _ in range(3):
            await provider.complete(asked())

    assert server.opened == 1
    assert len(server.requests) == 3
    assert all("cookie" not in one.headers for one in server.requests)


async def test_redirect_is_not_followed() -> None:
    async with recording(page(COMPLETION)) as elsewhere:
        moved = page({}, "307 Moved", location=f"{elsewhere.address}/v1/chat/completions")
        async with recording(moved) as server:
            error = await error_from(OpenAIProvider(OneKey(KEY), base_url=server.address))

    assert (error.kind, error.sent) == (FailureKind.INVALID_REQUEST, True)
    assert elsewhere.requests == []


async def test_environment_proxy_and_netrc_are_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    await asyncio.to_thread(netrc.write_text, "machine 127.0.0.1 login me password other", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async with (
        recording(page(COMPLETION)) as server,
        aclosing(OpenAIProvider(OneKey(KEY), base_url=server.address)) as provider,
    ):
        assert (await provider.complete(asked())).text == "{}"

    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("adapter", [OpenAIProvider, AnthropicProvider])
async def test_configured_proxy_is_used(adapter: type[OpenAIProvider | AnthropicProvider]) -> None:
    answer = page(COMPLETION if adapter is OpenAIProvider else MESSAGE)

    async with recording(answer) as proxy:
        provider = adapter(OneKey(KEY), base_url="http://api.invalid/v1", proxy=proxy.address)
        async with aclosing(provider):
            assert (await provider.complete(asked())).text == "{}"

    assert proxy.requests[0].path.startswith("http://api.invalid/v1/")


async def test_proxy_refusal_counts_as_unsent() -> None:
    async with recording(page({}, "407 Proxy Authentication Required")) as proxy:
        provider = OpenAIProvider(OneKey(KEY), base_url="https://api.invalid/v1", proxy=proxy.address)
        error = await error_from(provider)

    assert (error.kind, error.sent) == (FailureKind.SERVER_ERROR, False)
    assert KEY not in proxy.requests[0].raw.decode() + str(proxy.requests[0].headers)


@pytest.mark.parametrize("adapter", [OpenAIProvider, AnthropicProvider])
async def test_cancelled_call_closes_connection(
    adapter: type[OpenAIProvider | AnthropicProvider],
) -> None:
    async def give_up(limit: asyncio.Timeout) -> None:
        await silent.arrived.wait()
        limit.reschedule(asyncio.get_running_loop().time())

    async with recording(b"") as silent:
        provider = adapter(OneKey(KEY), base_url=silent.address)
        async with aclosing(provider), asyncio.timeout(15):
            async with asyncio.TaskGroup() as group:
                limit = asyncio.timeout(10)
                group.create_task(give_up(limit))
                with pytest.raises(TimeoutError):
                    async with limit:
                        await provider.complete(asked())
            await silent.ended.acquire()

    assert len(silent.requests) == 1


async def test_dropped_connection_leaves_call_in_doubt() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        error = await error_from(OpenAIProvider(OneKey(KEY), base_url=f"http://127.0.0.1:{port}"))

    assert (error.kind, error.sent) == (FailureKind.SERVER_ERROR, True)
    assert "ended without an answer" in error.message


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["no HTTP", "a header without end", "no chunk"],
)
async def test_non_http_answer_is_in_doubt(nonsense: bytes) -> None:
    async with recording(nonsense) as server:
        error = await error_from(OpenAIProvider(OneKey(KEY), base_url=server.address))

    assert (error.kind, error.sent) == (FailureKind.SERVER_ERROR, True)
    assert KEY not in repr(error.__cause__)


async def test_large_body_is_sent_complete() -> None:
    body = {"model": "m", "text": "x" * (2 << 20)}

    async with recording(page({})) as server, aclosing(session(server.address)) as ours:
        await ours.post(asked(), "/", body)

    assert server.requests[0].body == body


def test_big_integers_serialize_non_json_refused() -> None:
    assert spelled({"maximum": 10**30}) == b'{"maximum": 1000000000000000000000000000000}'

    for nothing in (float("nan"), "\ud83d", object()):
        with pytest.raises(ProviderError, match="cannot be sent") as refused:
            spelled({"large": 10**30, "a": nothing})
        assert (refused.value.kind, refused.value.sent) == (FailureKind.INVALID_REQUEST, False)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def secured(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return context


async def test_untrusted_server_receives_no_request(certificates: Path) -> None:
    async with recording(page(COMPLETION), secured(certificates)) as server:
        error = await error_from(OpenAIProvider(OneKey(KEY), base_url=server.address))

    assert (error.kind, error.sent) == (FailureKind.SERVER_ERROR, False)
    assert "certificate verify failed" in error.message
    assert server.requests == []


async def test_custom_ca_is_trusted_hostname_checked(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.pem"))

    async with recording(page(COMPLETION), secured(certificates)) as server:
        async with aclosing(OpenAIProvider(OneKey(KEY), base_url=server.address)) as provider:
            assert (await provider.complete(asked())).text == "{}"
        named = await error_from(OpenAIProvider(OneKey(KEY), base_url=f"https://localhost:{server.port}"))

    assert (named.sent, len(server.requests)) == (False, 1)
    assert "localhost" in named.message
