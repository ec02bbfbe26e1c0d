"""The adapters of the Messages API, over HTTP of our own and through the SDK, against a stub in a process of its own."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest, Provider, Transport
from agentic_trading.llm.providers.anthropic.messages import usage_of
from agentic_trading.llm.providers.anthropic.provider import AnthropicProvider
from agentic_trading.llm.providers.keys import Keys, OneKey, SecretsFolder
from agentic_trading.llm.result import Usage
from agentic_trading.testing import ModelServer, ProviderSuite
from tests.llm.providers.conftest import Adapter
from tests.llm.providers.over import TRANSPORTS, Over
from tests.structured.asking import request
from tests.stubs.messages_api import CURRENT, GOOD
from tests.stubs.running import ROOT, page_of

SONNET, WITH_SAMPLING = "claude-sonnet-5-5", "claude-sonnet-4-5-20250929"
MODELS = Capabilities.load()
# A provider that was never asked to load the SDK in this process would load it here, in the middle of a test.
LOADS = (
    "import sys; import agentic_trading.llm.providers.anthropic.provider; print('anthropic' in sys.modules)"
)


def playing(words: str, model: str = SONNET, **changes: Any) -> ModelRequest:
    takes = MODELS.of(LLMProvider.ANTHROPIC, model)
    return request(takes, instructions=f"play: {words}", model=model, **changes)


async def last_seen(claude_stub: str) -> dict[str, Any]:
    """Return the last request that reached the stub: `body` and `headers`."""
    return await asyncio.to_thread(page_of, claude_stub, "/last")


class TestAnthropicProvider(ProviderSuite):
    model = SONNET

    @pytest.fixture(autouse=True, params=[one for one in TRANSPORTS if one != "json_mode"])
    def _over(self, request: pytest.FixtureRequest, claude_stub: str, adapter: Adapter) -> None:
        self.transport: Transport = request.param
        self.adapter = adapter
        self.address = claude_stub

    @override
    def provider(self, server: ModelServer) -> Provider:
        return Over(self.adapter(OneKey("good"), base_url=self.address), self.transport)


async def test_answer_names_model_ids_and_usage(claude: Provider) -> None:
    answer = await claude.complete(playing("answer"))

    assert (answer.text, answer.stop_reason, answer.model) == (GOOD, "end_turn", SONNET)
    assert answer.provider_request_id == "req_1"
    assert answer.provider_response_id.startswith("msg_")
    assert answer.structured is None
    assert (answer.usage.service_tier, answer.usage.speed, answer.usage.inference_geo) == (
        "standard",
        "standard",
        "global",
    )


async def test_thinking_is_output_but_not_text(
    claude: Provider,
) -> None:
    answer = await claude.complete(playing("thinking", budget=LLMBudget(thinking_budget=2000)))

    assert answer.text == GOOD
    assert (answer.usage.output_tokens, answer.usage.thinking_tokens) == (150, 120)


async def test_cached_tokens_are_counted_by_class(claude: Provider) -> None:
    usage = (await claude.complete(playing("cached"))).usage

    assert usage == Usage(
        input_tokens=13,
        output_tokens=usage.output_tokens,
        cache_read_tokens=57,
        cache_write_5m_tokens=31,
        cache_write_1h_tokens=17,
        service_tier="standard",
        speed="standard",
        inference_geo="global",
    )


async def test_unreported_usage_fields_are_empty(claude: Provider) -> None:
    usage = (await claude.complete(playing("no_geo"))).usage

    assert (usage.inference_geo, usage.speed) == ("", "")


def test_excess_thinking_is_added_to_output() -> None:
    billed = {"input_tokens": 1, "output_tokens": 2, "output_tokens_details": {"thinking_tokens": 30}}

    usage = usage_of(billed)

    assert (usage.output_tokens, usage.thinking_tokens) == (32, 30)


def test_unclassified_cache_writes_count_as_hourly() -> None:
    usage = usage_of({"input_tokens": 1, "output_tokens": 2, "cache_creation_input_tokens": 48})

    assert (usage.cache_write_5m_tokens, usage.cache_write_1h_tokens) == (0, 48)


async def test_missing_count_endpoint_gives_no_count(claude: Provider) -> None:
    assert await claude.count_tokens(playing("page")) is None


@pytest.mark.parametrize(("word", "reason"), [("refusal", "refusal"), ("truncated", "max_tokens")])
async def test_refusal_and_cap_cut_are_answers(claude: Provider, word: str, reason: str) -> None:
    answer = await claude.complete(playing(word))

    assert answer.stop_reason == reason
    assert answer.usage.output_tokens > 0


async def test_answer_names_different_serving_model(claude: Provider) -> None:
    assert (await claude.complete(playing("other_model"))).model == "claude-opus-5-5"


@pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")
async def test_temperature_is_sent_to_sampling_model(claude: Provider, claude_stub: str) -> None:
    answer = await claude.complete(playing("answer", WITH_SAMPLING))

    assert answer.text == GOOD
    assert (await last_seen(claude_stub))["body"]["temperature"] == 0.0


@pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")
async def test_budget_model_accepts_thinking_budget(claude: Provider) -> None:
    made = playing("thinking", WITH_SAMPLING, budget=LLMBudget(thinking_budget=2000))

    assert (await claude.complete(made)).text == GOOD


@pytest.mark.parametrize("word", ["silent", "endless"])
async def test_endless_answer_can_be_cancelled(claude: Provider, word: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await claude.complete(playing(word))

    assert (await claude.complete(playing("answer"))).text == GOOD


async def test_long_answer_needs_no_streaming(claude: Provider) -> None:
    made = playing("answer", budget=LLMBudget(max_output_tokens=128_000))

    assert (await claude.complete(made)).text == GOOD


async def test_request_carries_tenant_key(claude: Provider, claude_stub: str) -> None:
    await claude.complete(playing("answer"))

    headers = (await last_seen(claude_stub))["headers"]
    assert headers["authorization"] == "Bearer good"
    assert "traceparent" not in headers


async def test_environment_headers_do_not_replace_key(
    claude_stub: str, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "Authorization: Bearer good-other\nanthropic-version: 1999-01-01\nx-more: 1"
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", lines)
    provider = adapter(OneKey("good"), base_url=claude_stub)

    await provider.complete(playing("answer"))
    await provider.aclose()

    headers = (await last_seen(claude_stub))["headers"]
    assert (headers["authorization"], headers["anthropic-version"]) == ("Bearer good", CURRENT)
    assert "x-more" not in headers


async def test_replaced_key_counts_from_next_request(
    claude_stub: str, adapter: Adapter, tmp_path: Path
) -> None:
    path = tmp_path / "key"
    provider = adapter(SecretsFolder(tmp_path, "key"), base_url=claude_stub)
    await asyncio.to_thread(path.write_text, "bad", encoding="utf-8")
    with pytest.raises(ProviderError):
        await provider.complete(playing("answer"))

    await asyncio.to_thread(path.write_text, "good-2", encoding="utf-8")
    answer = await provider.complete(playing("answer"))
    await provider.aclose()

    assert answer.text == GOOD
    assert (await last_seen(claude_stub))["headers"]["authorization"] == "Bearer good-2"


async def test_tenant_without_key_is_refused_unsent(
    claude_stub: str, adapter: Adapter, tmp_path: Path
) -> None:
    provider = adapter(SecretsFolder(tmp_path, "key"), base_url=claude_stub)

    with pytest.raises(ProviderError) as caught:
        await provider.complete(playing("answer"))

    assert (caught.value.kind, caught.value.sent) == (FailureKind.AUTH_ERROR, False)


async def test_debug_log_omits_accepted_key(
    claude_stub: str, adapter: Adapter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for key in ("good-secret", "sk-secret"):
        keys: Keys = OneKey(key)
        provider = adapter(keys, base_url=claude_stub)
        try:
            await provider.complete(playing("answer"))
        except ProviderError:
            pass
        finally:
            await provider.aclose()

    assert "good-secret" not in caplog.text


@pytest.mark.parametrize("nonsense", ["", "nonsense", "ftp://host", "http://", "http://a:0"])
def test_malformed_base_url_is_refused(nonsense: str) -> None:
    with pytest.raises(ValueError, match="Allowed: http"):
        AnthropicProvider(OneKey("good"), base_url=nonsense)


def test_base_url_password_is_not_echoed() -> None:
    with pytest.raises(ValueError, match="with a password in it") as caught:
        AnthropicProvider(OneKey("good"), base_url="https://me:secret@host")

    assert "secret" not in str(caught.value)


def test_provider_creation_does_not_load_sdk() -> None:
    run = subprocess.run([sys.executable, "-c", LOADS], cwd=ROOT, capture_output=True, text=True, check=True)

    assert run.stdout == "False\n"
