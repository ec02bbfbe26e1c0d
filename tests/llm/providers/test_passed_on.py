"""Clients' own requests over the adapters: what is sent, what comes back, and what it costs."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider, UnusableAnswerError
from agentic_trading.llm.providers import hosted
from agentic_trading.llm.providers.anthropic import messages
from agentic_trading.llm.providers.anthropic.provider import AnthropicProvider
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.llm.providers.openai import provider as openai
from agentic_trading.llm.providers.openai.provider import OpenAIProvider
from agentic_trading.llm.verbatim import ASKED, Api
from tests.llm.test_verbatim import of_client
from tests.stubs.running import page_of, serving

BODIES: dict[Api, str] = {
    "chat_completions": '{"messages": [{"role":"user","content":"%s"}],"temperature":0.70}',
    "responses": '{"input":"%s","temperature":0.70}',
    "messages": '{"messages": [{"role":"user","content":"%s"}],"temperature":0.70}',
}


class Asked(NamedTuple):
    """Both providers, and the stub that they ask."""

    openai: OpenAIProvider
    anthropic: AnthropicProvider
    address: str

    async def of(self, request: ModelRequest) -> ModelResponse:
        """Return the answer of the provider that speaks the API of a request."""
        providers: tuple[OpenAIProvider | AnthropicProvider, ...] = (self.openai, self.anthropic)
        api = request.envelope.context["api"]
        return await next(one for one in providers if api in one.speaks).complete(request)

    async def last(self) -> dict[str, Any]:
        """Return the last request that the stub has seen."""
        page = await asyncio.to_thread(page_of, self.address, "/requests")
        return dict(page["requests"][-1])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving("tests.stubs.vendor_api") as found:
        yield found


@pytest.fixture
async def asked(address: str) -> AsyncIterator[Asked]:
    made = Asked(
        OpenAIProvider(OneKey("sk-up"), base_url=f"{address}/v1"),
        AnthropicProvider(OneKey("sk-up"), base_url=address),
        address,
    )
    yield made
    await made.openai.aclose()
    await made.anthropic.aclose()


def request(api: Api, words: str = "Judge NVDA.", *, cap: int = 100, **context: str) -> ModelRequest:
    """Return a request that is passed on, with the `@words` that the stub knows."""
    body = context.pop("body", BODIES[api] % words)
    made = of_client(context={"api": api, "body": body, **context}, model="stub-large")
    return ModelRequest(made, 1, 1, "", body, "verbatim", cap)


@pytest.mark.parametrize("api", BODIES)
@pytest.mark.parametrize("words", ["Judge NVDA.", "@refuse", "@cut", "@think"])
async def test_body_comes_back_byte_for_byte_with_its_usage(asked: Asked, api: Api, words: str) -> None:
    response = await asked.of(one := request(api, words))
    sent = await asked.last()

    assert response.text.startswith('{ "x_stub": 1.50,\n "id":')
    assert "—" in response.text or words == "@refuse"
    assert sent["raw"].endswith(one.user[1:])
    assert (response.usage.output_tokens, response.usage.unmetered) == (20, "")
    assert response.usage.input_tokens == len(sent["raw"].encode()) // 4
    assert (response.model, response.provider_request_id) == ("stub-large", "req-7")


@pytest.mark.parametrize(
    ("api", "path", "cap"),
    [
        ("chat_completions", "/v1/chat/completions", "max_tokens"),
        ("responses", "/v1/responses", "max_output_tokens"),
        ("messages", "/v1/messages", "max_tokens"),
    ],
)
async def test_model_and_cap_are_those_of_the_envelope(asked: Asked, api: Api, path: str, cap: str) -> None:
    await asked.of(request(api, cap=77))
    sent = await asked.last()

    assert (sent["path"], sent["body"]["model"], sent["body"][cap]) == (path, "stub-large", 77)


async def test_cap_is_divided_among_several_answers(asked: Asked) -> None:
    body = '{"messages":[{"role":"user","content":"x"}],"n":3}'
    response = await asked.of(request("chat_completions", body=body, cap=100))
    sent = await asked.last()

    assert (sent["body"]["max_tokens"], response.usage.output_tokens) == (33, 60)


def test_openai_gets_no_stored_copy_and_the_tier_whose_price_is_reserved() -> None:
    for api, cap in (("chat_completions", "max_completion_tokens"), ("responses", "max_output_tokens")):
        made = request(api, "x", cap=9)  # type: ignore[arg-type]
        assert made.verbatim is not None
        body = openai.verbatim_body(made, made.verbatim, "openai").decode()

        assert body.startswith(f'{{"model":"stub-large","{cap}":9,"store":false,"service_tier":"default",')


async def test_messages_are_sent_with_the_version_and_the_betas_of_the_client(asked: Asked) -> None:
    await asked.of(request("messages"))
    plain = await asked.last()
    await asked.of(request("messages", version="2026-10-21", betas="a-1,b-2"))
    named = await asked.last()

    assert plain["body"]["service_tier"] == "standard_only"
    assert (plain["headers"]["anthropic-version"], plain["headers"].get("anthropic-beta")) == (
        "2023-06-01",
        None,
    )
    assert (named["headers"]["anthropic-version"], named["headers"]["anthropic-beta"]) == (
        "2026-10-21",
        "a-1,b-2",
    )


async def test_tokens_are_counted_for_the_fields_that_the_count_takes(asked: Asked) -> None:
    counted = await asked.anthropic.count_tokens(request("messages", version="2026-10-21"))
    sent = await asked.last()

    assert counted == len(sent["raw"]) // 4
    assert (sent["path"], sorted(sent["body"])) == ("/v1/messages/count_tokens", ["messages", "model"])
    assert sent["headers"]["anthropic-version"] == "2026-10-21"
    assert await asked.openai.count_tokens(request("responses")) is None


async def test_all_fields_but_the_free_ones_are_counted(asked: Asked) -> None:
    free = {"stop_sequences", "temperature", "top_k", "top_p", "cache_control"}
    fields: dict[str, Any] = dict.fromkeys(sorted(ASKED["messages"])) | {
        "messages": [{"role": "user", "content": "Judge NVDA."}]
    }

    await asked.anthropic.count_tokens(request("messages", body=json.dumps(fields)))
    sent = await asked.last()

    assert "output_format" in sent["body"]
    assert sent["body"].keys() == ASKED["messages"] - free | {"model"}


@pytest.mark.parametrize("api", BODIES)
@pytest.mark.parametrize(
    ("status", "kind", "is_sent"),
    [
        (400, FailureKind.INVALID_REQUEST, False),
        (401, FailureKind.AUTH_ERROR, False),
        (429, FailureKind.RATE_LIMIT, False),
        (529, FailureKind.SERVER_ERROR, False),
    ],
)
async def test_status_of_an_error_is_read_as_ever(
    asked: Asked, api: Api, status: int, kind: FailureKind, *, is_sent: bool
) -> None:
    with pytest.raises(ProviderError) as e:
        await asked.of(request(api, f"@{status}"))

    assert (e.value.kind, e.value.sent) == (kind, is_sent)


@pytest.mark.parametrize("api", BODIES)
async def test_answer_without_usage_is_unmetered(asked: Asked, api: Api) -> None:
    response = await asked.of(request(api, "@nousage"))

    assert "no usage" in response.usage.unmetered


@pytest.mark.parametrize("api", BODIES)
async def test_page_that_is_no_answer_is_in_doubt(asked: Asked, api: Api) -> None:
    with pytest.raises(ProviderError) as e:
        await asked.of(request(api, "@page"))

    assert (e.value.kind, e.value.sent) == (FailureKind.SERVER_ERROR, True)


def replied(body: bytes) -> hosted.HttpReply:
    return hosted.HttpReply(body, "req-7")


USAGE = b'"usage":{"input_tokens":5,"output_tokens":3,"prompt_tokens":5,"completion_tokens":3}'


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("chat_completions", b'{"choices":[{"message":{"content":"\xed\xa0\x80"}}],'),
        ("responses", b'{"output":[{"type":"message","x":"\xed\xa0\x80"}],'),
        ("messages", b'{"content":[{"type":"text","text":"\xed\xa0\x80"}],'),
        ("chat_completions", b'{"choices":{},'),
        ("responses", b'{"output":1,'),
        ("messages", b'{"content":"text",'),
        ("chat_completions", b'{"error":{"message":"broke"},'),
        ("responses", b'{"error":{"message":"broke"},'),
        ("messages", b'{"type":"error","error":{"type":"api_error","message":"broke"},'),
    ],
)
def test_answer_that_cannot_be_passed_on_is_charged_by_its_usage(api: Api, body: bytes) -> None:
    reply = replied(body + USAGE + b"}")
    with pytest.raises((UnusableAnswerError, ProviderError)) as e:
        messages.whole_message(reply) if api == "messages" else openai.whole_completion(reply, api)

    if isinstance(e.value, UnusableAnswerError):
        assert (e.value.usage.input_tokens, e.value.usage.output_tokens) == (5, 3)
    else:
        assert e.value.sent
        assert b"\xed\xa0\x80" in body


def test_usage_of_responses_that_is_no_object_is_unmetered() -> None:
    response = openai.whole_completion(replied(b'{"output":[],"status":"completed","usage":7}'), "responses")

    assert (response.stop_reason, response.usage.unmetered) == ("completed", "the server reports no usage")


def test_adapters_list_their_apis() -> None:
    both: tuple[Provider, ...] = (OpenAIProvider(OneKey("k")), AnthropicProvider(OneKey("k")))

    assert [sorted(one.speaks) for one in both] == [["chat_completions", "responses"], ["messages"]]  # type: ignore[attr-defined]
