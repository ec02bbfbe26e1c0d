"""The OpenAI adapter against a server in a process of its own that keeps its own invoice."""

import asyncio
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from typing_extensions import override

from agentic_trading.clock import SystemClock
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest, Provider, Transport
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.llm.providers.openai.provider import OpenAIProvider
from agentic_trading.structured.engine import select
from agentic_trading.testing import ModelServer, ProviderSuite
from tests.llm.providers.openai_calls import CAP, CAPABILITY, MODEL, Desk, asking, desk
from tests.llm.providers.over import TRANSPORTS, Over
from tests.stubs.running import page_of, serving

IN_DOUBT = {
    "408",
    "409",
    "500",
    "502",
    "503",
    "504",
    "cut-line",
    "never-ends",
    "redirect",
    "web-page",
}
OUTCOMES = {
    "answer": "",
    "thinking": "",
    "cached": "",
    "cache-written": "",
    "other-model": "",
    "logprobs": "",
    "wrong-answer": "parsing_error",
    "tool-call": "parsing_error",
    "refusal": "refusal",
    "content-filter": "refusal",
    "truncated": "truncated",
    "no-schemas": "invalid_request",
    "schema-too-large": "invalid_request",
    "context": "invalid_request",
    "filtered-prompt": "refusal",
    "402": "billing",
    "403": "auth_error",
    "404": "invalid_request",
    "408": "timeout",
    "409": "server_error",
    "413": "invalid_request",
    "422": "invalid_request",
    "429": "rate_limit",
    "quota": "billing",
    "500": "server_error",
    "502": "server_error",
    "503": "server_error",
    "504": "timeout",
    "529": "server_error",
    "loading": "server_error",
    "redirect": "invalid_request",
    "broken-off": "truncated",
    "cut-line": "server_error",
    "no-usage": "",
    "web-page": "server_error",
    "never-ends": "timeout",
}
"""What becomes of a call whose every request has this outcome: the kind of failure, or nothing."""


@pytest.fixture(scope="module")
def stub() -> Iterator[str]:
    """Return the address of a server of chat completions."""
    with serving("tests.stubs.chat_api") as address:
        yield address


def made(**changes: Any) -> ModelRequest:
    """Return the first request of a call."""
    envelope = asking(**changes).build()
    return select(CAPABILITY, envelope).request(envelope, CAPABILITY, attempt=1, answer=1)


async def error_from(address: str, **changes: Any) -> ProviderError:
    """Return what the adapter raises for a request."""
    async with desk(f"{address}/v1") as one:
        with pytest.raises(ProviderError) as failed:
            await one.provider.complete(made(**changes))
    return failed.value


async def attempts(one: Desk, final: LLMInteraction) -> list[LLMInteraction]:
    """Return the attempts at a call, as they stand in the log."""
    return await one.store.get_by_trace_id(final.envelope.trace_id)


async def asked(stub: str, instructions: str) -> list[dict[str, Any]]:
    """Return the requests that the server got for a call."""
    page = await asyncio.to_thread(page_of, stub, "/seen")
    return [one for one in page["requests"] if one["body"]["messages"][0]["content"].startswith(instructions)]


async def billed(stub: str, instructions: str) -> int:
    """Return what the server's invoice holds for a call, in nano-dollars."""
    page = await asyncio.to_thread(page_of, stub, "/invoice")
    return sum(line["nusd"] for line in page["lines"] if line["call"] == instructions)


def mixed(outcome: str) -> LLMEnvelope:
    """Return a call of the mix; only where the answer never ends is it not waited for."""
    patience_s = 0.3 if outcome == "never-ends" else 10
    return asking(f"{outcome} mix", attempt_timeout_s=patience_s).build()


class TestOpenAIProvider(ProviderSuite):
    @pytest.fixture(autouse=True, params=TRANSPORTS)
    def _over(self, request: pytest.FixtureRequest, stub: str) -> None:
        self.transport: Transport = request.param
        self.address = f"{stub}/v1"

    @override
    def provider(self, server: ModelServer) -> Provider:
        asked = OpenAIProvider(
            OneKey("sk-stub-1"),
            base_url=self.address,
            capabilities=Capabilities([CAPABILITY]),
            clock=SystemClock(),
        )
        return Over(asked, self.transport)


async def test_ledger_matches_invoice_except_lost_answers(
    stub: str,
) -> None:
    async with desk(f"{stub}/v1") as one:
        finals = {name: await one.runner.run(mixed(name)) for name in OUTCOMES}
        log = {name: await attempts(one, final) for name, final in finals.items()}

    charged = {name: sum(kept.result.cost_nusd for kept in calls) for name, calls in log.items()}
    invoiced = {name: await billed(stub, f"@{name} mix") for name in OUTCOMES}
    lost = {name for name, calls in log.items() if any(kept.result.in_doubt for kept in calls)}
    assert {
        name: kept.result.failure.category if kept.result.failure else "" for name, kept in finals.items()
    } == OUTCOMES
    assert lost == IN_DOUBT
    unseen = {*lost, "no-usage"}
    assert {name: charged[name] for name in OUTCOMES if name not in unseen} == {
        name: invoiced[name] for name in OUTCOMES if name not in unseen
    }
    # Nobody on our side saw what these cost: each is charged the whole of what was set aside for it.
    assert all(charged[name] == log[name][0].result.reserved_nusd >= invoiced[name] for name in unseen)
    assert one.ledger.statistics().charged_nusd == sum(charged.values())
    assert one.ledger.statistics().in_flight == 0
    assert sum(invoiced.values()) > 0


async def test_result_keeps_serving_model_and_usage(stub: str) -> None:
    async with desk(f"{stub}/v1") as one:
        result = (await one.runner.run(asking("cache-written").build())).result

    assert (result.model, result.provider_request_id, result.provider_response_id) == (
        MODEL,
        "req-7",
        "chatcmpl-1",
    )
    assert (result.input_tokens, result.cache_read_tokens, result.cache_write_5m_tokens) == (20, 20, 60)
    assert (result.output_tokens, result.service_tier, result.stop_reason) == (20, "default", "stop")


async def test_thinking_tokens_count_as_output(stub: str) -> None:
    async with desk(f"{stub}/v1") as one:
        result = (await one.runner.run(asking("thinking").build())).result

    assert (result.output_tokens, result.thinking_tokens, result.cost_nusd) == (
        350,
        300,
        100 * 1250 + 350 * 10_000,
    )


async def test_offered_logprobs_are_requested_and_kept(stub: str) -> None:
    async with desk(f"{stub}/v1") as one:
        result = (await one.runner.run(asking("logprobs kept").build())).result

    assert (await asked(stub, "@logprobs kept"))[0]["body"]["logprobs"] is True
    assert result.reading is not None
    assert (result.reading.logprob_mean, result.reading.logprob_min) == (-1.0, -1.5)


async def test_order_from_other_model_is_refused(stub: str) -> None:
    async with desk(f"{stub}/v1") as one:
        result = (await one.runner.run(asking("other-model", "execution").build())).result

    assert result.failure is not None
    assert (result.failure.category, result.model) == (FailureKind.WRONG_MODEL, "stub-small")


async def test_only_runner_retries_failed_request(stub: str) -> None:
    async with desk(f"{stub}/v1") as one:
        final = await one.runner.run(asking("500,429-ms,answer again", max_retries=3).build())
        kept = await attempts(one, final)

    assert [attempt.result.next_step for attempt in kept] == ["retry", "retry", "final"]
    assert final.result.success
    assert len(await asked(stub, "@500,429-ms,answer again")) == 3


@pytest.mark.parametrize(
    ("outcome", "wait_s"), [("429-ms", 1.5), ("429-seconds", 7), ("429-date", 30), ("429", None)]
)
async def test_rate_limit_wait_is_read(stub: str, outcome: str, wait_s: float | None) -> None:
    e = await error_from(stub, outcomes=outcome)

    assert (e.kind, e.sent, e.retry_after_s, e.provider_request_id) == (
        FailureKind.RATE_LIMIT,
        False,
        wait_s,
        "req-7",
    )


@pytest.mark.parametrize("outcome", ["no-schemas", "schema-too-large"])
async def test_server_schema_rejection_is_schema_refused(stub: str, outcome: str) -> None:
    e = await error_from(stub, outcomes=outcome)

    assert (e.kind, e.sent) == (FailureKind.SCHEMA_REFUSED, False)


async def test_rejected_schema_falls_back_to_prompt(stub: str) -> None:
    async with desk(f"{stub}/v1") as one:
        last = await one.runner.run(asking("no-schemas,answer stepped down").build())
        kept = await attempts(one, last)

    sent = await asked(stub, "@no-schemas,answer stepped down")
    assert ["response_format" in each["body"] for each in sent] == [True, False]
    assert [each.result.next_step for each in kept] == ["prompt", "final"]
    assert (last.result.success, kept[0].result.cost_nusd) == (True, 0)


async def test_unknown_model_error_comes_from_server(stub: str) -> None:
    unknown = CAPABILITY.model_copy(update={"model": "stub-9"})
    envelope = asking().with_provider(unknown.provider, unknown.model).build()
    async with desk(f"{stub}/v1", None, unknown) as one:
        with pytest.raises(ProviderError) as failed:
            await one.provider.complete(
                select(unknown, envelope).request(envelope, unknown, attempt=1, answer=1)
            )

    assert (failed.value.kind, failed.value.sent) == (FailureKind.INVALID_REQUEST, False)
    assert "`stub-9` does not exist" in failed.value.message


async def test_wrong_key_is_redacted_in_error(stub: str) -> None:
    async with desk(f"{stub}/v1", OneKey("sk-wrong-secret")) as one:
        with pytest.raises(ProviderError) as failed:
            await one.provider.complete(made())

    assert (failed.value.kind, failed.value.sent) == (FailureKind.AUTH_ERROR, False)
    assert failed.value.message == "HTTP 401: Incorrect API key provided: ***"
    assert "sk-wrong-secret" not in "".join(traceback.format_exception(failed.value))


class NextKey:
    """Another key for each request."""

    def __init__(self) -> None:
        self.count = 0

    async def key_of(self, tenant_id: str) -> str:
        self.count += 1
        return f"sk-stub-{self.count}"


async def test_new_key_is_used_next_request(stub: str) -> None:
    async with desk(f"{stub}/v1", NextKey()) as one:
        for _ in range(2):
            await one.provider.complete(made(outcomes="answer exchanged"))

    sent = [request["headers"]["authorization"] for request in await asked(stub, "@answer exchanged")]
    assert sent == ["Bearer sk-stub-1", "Bearer sk-stub-2"]


async def test_concurrent_requests_all_succeed(stub: str) -> None:
    async with desk(f"{stub}/v1") as one, asyncio.TaskGroup() as group:
        answers = [group.create_task(one.provider.complete(made())) for _ in range(8)]

    assert {task.result().text for task in answers} == {'{"action":"buy","size":1.50}'}


async def test_environment_variables_are_not_sent(stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_KEY", "ORG_ID", "PROJECT_ID", "ADMIN_KEY", "BASE_URL"):
        monkeypatch.setenv(f"OPENAI_{name}", "http://elsewhere.invalid")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer elsewhere\nx-elsewhere: 1")

    async with desk(f"{stub}/v1") as one:
        await one.provider.complete(made(outcomes="answer alone"))

    request = (await asked(stub, "@answer alone"))[0]
    assert "elsewhere" not in str(request)
    assert request["path"] == "/v1/chat/completions"


async def test_compatible_body_uses_max_tokens(stub: str) -> None:
    async with desk(f"{stub}/v1") as one:
        await one.provider.complete(made(outcomes="answer body"))

    body = (await asked(stub, "@answer body"))[0]["body"]
    assert (body["model"], body["max_tokens"], body["temperature"]) == (MODEL, CAP, 0.0)
    assert body["response_format"]["json_schema"]["strict"] is True
    assert {"store", "service_tier", "max_completion_tokens", "reasoning_effort", "stream"}.isdisjoint(body)


async def test_unreachable_server_is_named_and_unsent() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"

        e = await error_from(address)

    assert (e.kind, e.sent) == (FailureKind.SERVER_ERROR, False)
    assert e.message.startswith(f"cannot connect to {address}/v1 (ConnectionRefusedError: ")


async def test_token_count_absent_close_is_idempotent(stub: str) -> None:
    async with desk(f"{stub}/v1") as one:
        assert await one.provider.count_tokens(made()) is None
        await one.provider.complete(made())
        await one.provider.aclose()
        await one.provider.aclose()


def test_sdks_not_loaded_at_construction() -> None:
    code = """\
import sys
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.llm.providers.openai.provider import OpenAIProvider
OpenAIProvider(OneKey("none"), base_url="http://127.0.0.1:1/v1")
print({"openai", "anthropic", "httpx2"} & set(sys.modules))
"""

    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8"
    )

    assert run.stdout == "set()\n"
