"""The server against hostile and unlucky clients: keys, hosts, sizes, methods, failures by status, money, and calls that go on."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import anthropic
import openai
import pytest

from agentic_trading.bus.errors import BusUnavailableError
from agentic_trading.cancellation import OwnedTasks
from agentic_trading.client.outcome import StructuredOutcome, outcome_without_answer
from agentic_trading.governance.limits import Window
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import Providers
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.platform.config import TenantConfig
from agentic_trading.platform.platform import Ports
from agentic_trading.server.errors import failure_message, failure_of
from tests.build import NOW
from tests.server.conftest import Served, Serving
from tests.server.test_sdks import ask, claude_sdk, sdk
from tests.stubs.running import page_of

CHAT: dict[str, Any] = {"model": "gpt", "messages": ask()}
EACH: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"model": "gpt", "input": "Judge."},
    "/v1/messages": {"model": "claude", "max_tokens": 99, "messages": ask()},
}


async def said(
    served: Served, path: str, body: Any, **more: Any
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """Send a body, and return status, error and headers."""
    data = body if isinstance(body, bytes | str) else json.dumps(body)
    async with served.request("POST", path, data=data, **more) as answer:
        page = json.loads(await answer.read())
        return answer.status, page.get("error", page), answer.headers


@pytest.mark.parametrize("path", EACH)
async def test_request_without_valid_key_is_401_and_unsent(serve: Serving, path: str) -> None:
    async with serve() as served:
        before = len(await served.asked())
        missing = await said(served, path, EACH[path], secret="", headers={"authorization": ""})
        unknown = await said(served, path, EACH[path], secret="-".join("agt"))
        by_header = await said(
            served, path, EACH[path], headers={"authorization": "", "x-api-key": served.secret}
        )
        after = len(await served.asked())

    assert [missing[0], unknown[0], by_header[0], after - before] == [401, 401, 200, 1]
    assert "the API key is missing" in missing[1]["message"]
    assert unknown[1].get("code", unknown[1].get("type")) in {"invalid_api_key", "authentication_error"}
    assert unknown[2]["x-should-retry"] == "false"


@pytest.mark.parametrize("path", EACH)
async def test_refused_fields_and_models_are_named(serve: Serving, path: str) -> None:
    async with serve() as served:
        before = len(await served.asked())
        field = await said(served, path, {**EACH[path], "web_search_options": {"x": 1}})
        model = await said(served, path, {**EACH[path], "model": "gpt-9"})
        broken = await said(served, path, b"{")
        after = len(await served.asked())

    assert (field[0], model[0], broken[0], after - before) == (400, 404, 400, 0)
    assert "web_search_options" in field[1]["message"]
    assert "Allowed: gpt, claude" in model[1]["message"]
    if path != "/v1/messages":
        assert (field[1]["param"], model[1]["code"]) == ("web_search_options", "model_not_found")


async def test_model_without_a_row_in_the_tables_is_404(serve: Serving) -> None:
    async with serve(rights={"models": {}}) as served:
        unknown = await said(served, "/v1/chat/completions", {**CHAT, "model": "openai/other"})
        unserved = await said(served, "/v1/chat/completions", {**CHAT, "model": "google/gemini"})
        async with served.request("GET", "/v1/models") as listed:
            names = [row["id"] for row in (await listed.json())["data"]]

    assert (unknown[0], unknown[1]["code"]) == (404, "model_not_found")
    assert unserved[0] == 404
    assert names == ["openai/stub-large"]


async def test_api_of_another_provider_is_refused(serve: Serving) -> None:
    async with serve() as served:
        status, error, _ = await said(served, "/v1/chat/completions", {**CHAT, "model": "claude"})

    assert status == 400
    assert "provider anthropic does not speak 'chat_completions'. Allowed: messages" in error["message"]


async def test_other_hosts_methods_and_paths_are_refused(serve: Serving) -> None:
    async with serve() as served:
        rebound = await said(served, "/v1/responses", {}, headers={"host": "evil.example"})
        async with served.request("OPTIONS", "/v1/responses", headers={"origin": "http://x"}) as preflight:
            headers = dict(preflight.headers)
            method = preflight.status
        lost = await said(served, "/v1/embeddings", {})
        named = await said(served, "/t/bad%20name/v1/responses", EACH["/v1/responses"])

    assert (rebound[0], method, lost[0], named[0]) == (421, 405, 404, 400)
    assert headers["Allow"] == "POST"
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert "Allowed: /v1/chat/completions" in lost[1]["message"]


async def test_body_above_the_limit_is_413_and_a_slow_one_408(serve: Serving) -> None:
    async def slowly() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    async with serve(most_bytes=4096, timing={"read_within_s": 0.05}) as served:
        large = await said(served, "/v1/responses", {"model": "gpt", "input": "x" * 5000})
        async with served.request("POST", "/v1/responses", data=slowly()) as answer:
            slow = answer.status

    assert (large[0], large[1]["code"], slow) == (413, "request_too_large", 408)
    assert "4096 bytes" in large[1]["message"]


async def test_request_that_is_too_large_as_an_envelope_is_413(serve: Serving) -> None:
    text = '"' * 500_000  # twice as long in the envelope
    async with serve(rights={"max_output_tokens": 10}) as served:
        status, error, _ = await said(served, "/v1/responses", {"model": "gpt", "input": text})

    assert (status, error["code"]) == (413, "request_too_large")
    assert "bus.max_message_bytes" in error["message"]


async def test_long_request_is_read_in_a_thread_and_answered(serve: Serving) -> None:
    async with serve() as served:
        status, _, _ = await said(served, "/v1/responses", {"model": "gpt", "input": "word " * 20_000})

    assert status == 200


async def test_betas_and_thinking_above_the_ceiling_are_refused(serve: Serving) -> None:
    message = EACH["/v1/messages"]
    async with serve(rights={"max_output_tokens": 2000}) as served:
        beta = await said(served, "/v1/messages", message, headers={"anthropic-beta": "fast-1"})
        thinking = {"type": "enabled", "budget_tokens": 2000}
        deep = await said(served, "/v1/messages", {**message, "max_tokens": 9000, "thinking": thinking})

    assert (beta[0], deep[0]) == (400, 400)
    assert "a beta may have a price" in beta[1]["message"]
    assert "a thinking budget of 2000 leaves no room in 2000 output tokens" in deep[1]["message"]


STATUSES = [
    (FailureKind.BUDGET_EXHAUSTED, 402, openai.APIStatusError, anthropic.APIStatusError),
    (FailureKind.NOT_ALLOWED, 403, openai.PermissionDeniedError, anthropic.PermissionDeniedError),
    (FailureKind.HALTED, 403, openai.PermissionDeniedError, anthropic.PermissionDeniedError),
    (FailureKind.NOT_SERVED, 404, openai.NotFoundError, anthropic.NotFoundError),
    (FailureKind.INVALID_REQUEST, 400, openai.BadRequestError, anthropic.BadRequestError),
    (FailureKind.REPLAY_MISS, 422, openai.UnprocessableEntityError, anthropic.UnprocessableEntityError),
    (FailureKind.RATE_LIMIT, 429, openai.RateLimitError, anthropic.RateLimitError),
    (FailureKind.TIMEOUT, 504, openai.InternalServerError, anthropic.InternalServerError),
    (FailureKind.AUTH_ERROR, 502, openai.InternalServerError, anthropic.InternalServerError),
    (FailureKind.BILLING, 502, openai.InternalServerError, anthropic.InternalServerError),
    (FailureKind.SERVER_ERROR, 502, openai.InternalServerError, anthropic.InternalServerError),
    (FailureKind.CIRCUIT_OPEN, 503, openai.InternalServerError, anthropic.InternalServerError),
    (FailureKind.LEDGER_UNAVAILABLE, 503, openai.InternalServerError, anthropic.InternalServerError),
    (FailureKind("of_a_newer_release"), 500, openai.InternalServerError, anthropic.InternalServerError),
]


class _Failing:
    """A gateway whose calls fail for a reason. It counts them."""

    def __init__(self, kind: FailureKind) -> None:
        self.calls = 0
        self._reason = FailureReason(category=kind, description="told by the test")

    async def ask_structured(self, envelope: Any, *, check: Any = None) -> StructuredOutcome:
        self.calls += 1
        return outcome_without_answer(NoDecision(reason=self._reason, envelope_id=envelope.envelope_id), ())


@pytest.mark.parametrize(("kind", "status", "of_openai", "of_anthropic"), STATUSES, ids=str)
async def test_failure_has_its_status_and_is_asked_once(
    serve: Serving, kind: FailureKind, status: int, of_openai: type[Exception], of_anthropic: type[Exception]
) -> None:
    failing: Any = _Failing(kind)
    async with serve() as served, sdk(served) as client, claude_sdk(served) as claude:
        served.server.served.clients = {"": failing}  # type: ignore[attr-defined]
        with pytest.raises(of_openai) as chat:
            await client.chat.completions.create(model="gpt", messages=ask())
        with pytest.raises(of_openai):
            await client.responses.create(model="gpt", input="x", stream=True)
        with pytest.raises(of_anthropic) as message:
            await claude.messages.create(model="claude", max_tokens=9, messages=ask())

    assert failing.calls == 3
    errors: Any = (chat.value, message.value)
    assert [one.status_code for one in errors] == [status, status]
    assert [one.response.headers["x-should-retry"] for one in errors] == ["false", "false"]
    assert "agentic-trading: told by the test" in str(errors[0])


async def test_shutdown_before_the_send_is_the_only_failure_to_repeat(serve: Serving) -> None:
    failing: Any = _Failing(FailureKind.SHUTDOWN)
    async with serve() as served:
        served.server.served.clients = {"": failing}  # type: ignore[attr-defined]
        unsent = await said(served, "/v1/responses", EACH["/v1/responses"])
        served.server.is_stopping = True
        stopping = await said(served, "/v1/responses", EACH["/v1/responses"])
        async with served.request("GET", "/readyz") as ready:
            page = await ready.json()

    assert (unsent[0], unsent[2]["x-should-retry"]) == (503, "true")
    assert (stopping[0], stopping[1]["code"], stopping[2]["x-should-retry"]) == (503, "shutting_down", "true")
    assert page == {"ready": False, "problems": {"server": "it is stopping"}}


async def test_bus_that_is_away_is_503_and_an_own_fault_500(serve: Serving) -> None:
    class Away:
        async def ask_structured(self, envelope: Any, *, check: Any = None) -> StructuredOutcome:
            raise BusUnavailableError("redis://x", "no connection")

    class Broken:
        def find(self, secret: str) -> Any:
            raise RuntimeError("secret of the program")

    async with serve() as served:
        served.server.served.clients = {"": Away()}  # type: ignore[attr-defined]
        away = await said(served, "/v1/responses", EACH["/v1/responses"])
        served.server.served.clients = {}  # type: ignore[attr-defined]
        newer = await said(served, "/v1/responses", EACH["/v1/responses"])
        served.server.keys = Broken()
        broken = await said(served, "/v1/responses", EACH["/v1/responses"])

    assert (away[0], away[1]["code"], newer[0]) == (503, "bus_unavailable", 503)
    assert "was added after the start" in newer[1]["message"]
    assert broken[0] == 500
    assert "secret of the program" not in broken[1]["message"]


async def test_answer_that_cannot_be_streamed_is_a_plain_error(serve: Serving) -> None:
    ports = Ports(providers=Providers({"openai": ScriptedProvider(lambda _: "<html>")}))
    async with serve(ports=ports) as served:
        status, error, headers = await said(
            served, "/v1/responses", {**EACH["/v1/responses"], "stream": True}
        )

    assert (status, error["code"]) == (502, "provider_error")
    assert headers["x-agentic-interaction-id"] == headers["x-request-id"] != ""
    assert int(headers["x-agentic-cost-nusd"]) > 0
    assert "cannot be streamed" in error["message"]


class _Broken:
    """A gateway whose calls fail with an error of the program once they may."""

    def __init__(self) -> None:
        self.may_fail = asyncio.Event()

    async def ask_structured(self, envelope: Any, *, check: Any = None) -> StructuredOutcome:
        await self.may_fail.wait()
        raise RuntimeError("secret of the program")


@pytest.mark.parametrize("path", EACH)
async def test_own_fault_is_the_last_event_of_a_stream_that_has_begun(serve: Serving, path: str) -> None:
    broken: Any = _Broken()
    async with serve(timing={"begins_after_s": 0.0, "pings_every_s": 0.01}) as served:
        served.server.served.clients = {"": broken}  # type: ignore[attr-defined]
        async with served.request("POST", path, json={**EACH[path], "stream": True}) as answer:
            broken.may_fail.set()
            text = await answer.text()
        whole = await said(served, path, EACH[path])
        # The errors had a client each, so that the end of the server must not raise them.
        await served.server.aclose()

    last = text.rstrip().split("\n")[-1]
    assert (answer.status, whole[0]) == (200, 500)
    assert "the server failed" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert "secret" not in text
    assert "HTTP/1.1" not in text


class _Counts(Counter[tuple[str, str, str]]):
    """The counts of requests, and an event of their first change."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()

    def __setitem__(self, name: tuple[str, str, str], count: int) -> None:
        super().__setitem__(name, count)
        self.changed.set()


async def test_client_that_leaves_a_stream_is_no_failure(serve: Serving) -> None:
    broken: Any = _Broken()
    counts = _Counts()
    timing = {"begins_after_s": 0.0, "pings_every_s": 0.01, "_counts": counts}
    async with serve(timing=timing) as served:
        served.server.served.clients = {"": broken}  # type: ignore[attr-defined]
        async with served.request("POST", "/v1/responses", json={**EACH["/v1/responses"], "stream": True}):
            pass
        async with asyncio.timeout(30):
            await counts.changed.wait()
        broken.may_fail.set()
        await served.server.aclose()

    assert dict(counts) == {("responses", "desk", "200"): 1}


async def test_used_up_budget_is_402_with_one_request_and_no_overspend(serve: Serving) -> None:
    tenants = {"acme": TenantConfig(budget_usd=Decimal("0.001"), window=Window.DAY)}
    rights = {"max_output_tokens": 40}
    async with (
        serve(rights=rights, tenants=tenants) as served,
        sdk(served) as client,
        claude_sdk(served) as claude,
    ):
        before = (await served.billed())["total_nusd"]
        requests = len(await served.asked())
        answered = 0
        refused: list[Any] = []
        for _ in range(8):
            try:
                await client.chat.completions.create(model="gpt", messages=ask())
                answered += 1
            except openai.APIStatusError as e:
                refused.append(e)
        with pytest.raises(anthropic.APIStatusError) as message:
            await claude.messages.create(model="claude", max_tokens=40, messages=ask())
        billed = (await served.billed())["total_nusd"] - before
        sent = len(await served.asked()) - requests

    assert 0 < answered < 8
    assert (answered + len(refused), sent) == (8, answered)
    assert {(one.status_code, one.code) for one in refused} == {(402, "insufficient_quota")}
    assert "This day ends at 20" in str(refused[0])
    assert (message.value.status_code, message.value.type) == (402, "billing_error")
    assert billed <= 1_000_000


async def test_call_of_disconnected_client_is_charged_and_recorded(serve: Serving) -> None:
    async with serve() as served:
        before = len(await served.asked())

        async def one() -> None:
            async with served.request("POST", "/v1/responses", json={"model": "gpt", "input": "@wait"}):
                raise AssertionError("the stub waits")

        tasks = OwnedTasks()
        task = tasks.start(one(), name="client")
        while len(await served.asked()) == before:
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(_release, served.vendor)
        await served.server.aclose()
        kept = [each.record async for each in served.store.scan()]

    calls = [record for record in kept if isinstance(record, LLMInteraction)]
    assert [call.result.success for call in calls] == [True]
    assert calls[0].result.cost_nusd > 0


def _release(vendor: str) -> None:
    page_of(vendor, "/release")


async def test_trace_is_named_by_address_header_or_metadata(serve: Serving) -> None:
    body = EACH["/v1/responses"]
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with serve() as served:
        found = [
            (await said(served, path, {**body, **fields}, headers=headers))[2]["x-agentic-trace-id"]
            for path, headers, fields in [
                ("/t/NVDA-1/v1/responses", {"x-agentic-trace-id": "other"}, {}),
                ("/v1/responses", {"x-agentic-trace-id": "by-header", "traceparent": parent}, {}),
                ("/v1/responses", {"traceparent": parent}, {}),
                ("/v1/responses", {}, {"metadata": {"agentic_trace_id": "by-metadata"}}),
                ("/v1/responses", {"openai-project": "by-project"}, {}),
            ]
        ]
        unnamed = [(await said(served, "/v1/responses", body))[2]["x-agentic-trace-id"] for _ in range(2)]

    assert found == ["NVDA-1", "by-header", parent[3:35], "by-metadata", "by-project"]
    assert len(set(unnamed)) == 2


async def test_step_is_a_name_of_the_client_and_no_traceparent(serve: Serving) -> None:
    body, path = EACH["/v1/responses"], "/v1/responses"
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with serve() as served:
        for address, headers, fields in [
            (path, parent, {}),
            (path, {**parent, "openai-project": "by-project"}, {}),
            (path, parent, {"metadata": {"agentic_trace_id": "by-metadata"}}),
            (path, {**parent, "x-agentic-trace-id": "by-header"}, {}),
            (f"/t/by-address{path}", parent, {}),
        ]:
            await said(served, address, {**body, **fields}, headers=headers)
        kept = [each.record async for each in served.store.scan()]
    envelopes = [one.envelope for one in kept if isinstance(one, LLMInteraction)]

    # A traceparent is random in each run: as the step, it would make each call of a replay a miss.
    assert [one.step for one in envelopes] == ["", "by-project", "by-metadata", "by-header", "by-address"]


async def test_deadline_is_the_patience_of_the_client_with_its_own_tries(serve: Serving) -> None:
    body = EACH["/v1/responses"]
    async with serve() as served:
        for headers in (
            {"x-stainless-read-timeout": "2"},
            {"x-agentic-deadline-s": "5"},
            {"x-stainless-timeout": "NOT_GIVEN"},
        ):
            assert (await said(served, "/v1/responses", body, headers=headers))[0] == 200
        kept = [each.record async for each in served.store.scan()]

    envelopes = [record.envelope for record in kept if isinstance(record, LLMInteraction)]
    waits = [one.deadline and round((one.deadline - one.created_at).total_seconds()) for one in envelopes]
    assert waits == [14, 5, None]
    assert {(one.agent_id, one.tenant_id, one.workflow) for one in envelopes} == {
        ("trader-1", "acme", "general")
    }


async def test_health_and_metrics_need_no_key(serve: Serving) -> None:
    async with serve() as served:
        await said(served, "/v1/responses", EACH["/v1/responses"])
        await said(served, "/no/such/path", {})
        pages = {}
        for path in ("/healthz", "/readyz", "/metrics"):
            async with served.request("GET", path, secret="", headers={"authorization": ""}) as answer:
                pages[path] = (answer.status, await answer.text())

    assert pages["/healthz"] == (200, '{"live": true}')
    assert pages["/readyz"] == (200, '{"ready": true, "problems": {}}')
    assert 'agentic_http_requests_total{api="responses",key="desk",status="200"} 1.0' in pages["/metrics"][1]
    assert 'agentic_http_requests_total{api="unknown",key="",status="404"} 1.0' in pages["/metrics"][1]
    assert "agentic_attempts_total" in pages["/metrics"][1]


async def test_tokens_are_counted_by_the_provider_or_refused(serve: Serving) -> None:
    body = {"model": "claude", "messages": ask()}
    async with serve() as served:
        counted = await said(served, "/v1/messages/count_tokens", body)
        no_count = await said(served, "/v1/messages/count_tokens", {**body, "messages": ask("@400")})
        no_model = await said(served, "/v1/messages/count_tokens", {**body, "model": "gpt"})
        billed = [line["call"] for line in (await served.billed())["lines"]]

    assert counted[0] == 200
    assert counted[1]["input_tokens"] > 0
    assert (no_count[0], no_model[0]) == (502, 400)
    assert "/v1/messages/count_tokens" not in billed


def test_message_of_a_budget_has_the_end_of_its_window() -> None:
    details = "scope=tenant id=acme window=hour unit=nano-USD asked=2 left=1"
    reason = FailureReason(
        category=FailureKind.BUDGET_EXHAUSTED, description="too little", technical_details=details
    )
    timed = reason.model_copy(update={"occurred_at": NOW})

    assert failure_message(timed, ZoneInfo("UTC")) == "too little. This hour ends at 2026-01-02T01:00Z"
    assert failure_message(reason, ZoneInfo("UTC")) == "too little"
    assert failure_of(reason).status == 402
