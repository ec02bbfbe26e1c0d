"""The official SDKs send one request for each refused call, and repeat a busy one: sync and async, plain and streamed."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
import pytest

from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform.platform import Ports
from agentic_trading.server import errors
from tests.governance.asking import ask as ask_for
from tests.governance.asking import reserved
from tests.server.conftest import Serving
from tests.server.refusals import STATUSES, Refusing, refusing
from tests.server.test_busy import BUDGET, RIGHTS, TENANTS, Counts
from tests.server.test_sdks import ask

pytestmark = pytest.mark.timeout(120)

FIELDS: dict[str, dict[str, Any]] = {
    "chat_completions": {"model": "gpt", "messages": ask()},
    "responses": {"model": "gpt", "input": "Judge NVDA."},
    "messages": {"model": "claude", "messages": ask(), "max_tokens": 99},
}
WAYS = [
    (api, streamed, is_async) for api in FIELDS for streamed in ({}, {"stream": True}) for is_async in (False, True)
]  # fmt: skip
REFUSED = (openai.APIStatusError, anthropic.APIStatusError)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, vendor: str) -> Iterator[Refusing]:
    """Return servers that refuse calls."""
    with refusing(tmp_path_factory.mktemp("refusals"), vendor) as servers:
        yield servers


def blocking(url: str, secret: str, api: str, fields: dict[str, Any]) -> int:
    """Return the status of a call by a blocking client."""
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key=secret) as client,
        anthropic.Anthropic(base_url=url, api_key=secret) as claude,
    ):
        ways: dict[str, Any] = {
            "chat_completions": client.chat.completions.create,
            "responses": client.responses.create,
            "messages": claude.messages.create,
        }
        try:
            list(ways[api](**fields))
        except REFUSED as e:
            return e.status_code
    return 200


async def asynchronous(url: str, secret: str, api: str, fields: dict[str, Any]) -> int:
    """Return the status of a call by an async client."""
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=secret) as client,
        anthropic.AsyncAnthropic(base_url=url, api_key=secret) as claude,
    ):
        ways: dict[str, Any] = {
            "chat_completions": client.chat.completions.create,
            "responses": client.responses.create,
            "messages": claude.messages.create,
        }
        try:
            answer = await ways[api](**fields)
            if "stream" in fields:
                assert [event async for event in answer]
        except REFUSED as e:
            return e.status_code
    return 200


@pytest.mark.parametrize("reason", STATUSES)
async def test_official_library_sends_one_request_for_a_refused_call(servers: Refusing, reason: str) -> None:
    found = {}
    for api, streamed, is_async in WAYS:
        asked = servers.arguments(reason, api)
        fields = {**FIELDS[api], **streamed, "model": asked["model"], "extra_body": asked["more"]}
        before = await asyncio.to_thread(servers.counted, reason)
        given = (asked["url"], asked["secret"], api, fields)
        status = await (asynchronous(*given) if is_async else asyncio.to_thread(blocking, *given))
        after = await asyncio.to_thread(servers.counted, reason)
        found[api, bool(streamed), is_async] = (status, dict(after - before))

    expected = STATUSES[reason]
    assert len(found) == len(WAYS)
    assert found == dict.fromkeys(found, (expected, {str(expected): 1}))


async def test_each_way_of_the_libraries_repeats_a_busy_call_and_pays_once(
    serve: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "RETRY_AFTER_S", 1)
    ledger, counts = MemoryLedger(), Counts()
    ports = Ports(store=MemoryInteractionStore(), ledger=ledger)
    threads = ThreadPoolExecutor(len(WAYS))
    loop = asyncio.get_running_loop()

    async def free() -> None:
        while sum(counts[name] for name in counts if name[2] == "429") < len(WAYS):
            counts.changed.clear()
            await counts.changed.wait()
        await ledger.release(held)

    async def in_thread(*given: Any) -> int:
        return await loop.run_in_executor(threads, blocking, *given)

    calls: list[asyncio.Task[int]] = []
    async with serve(rights=RIGHTS, ports=ports, tenants=TENANTS, timing={"_counts": counts}) as served:
        held = await reserved(ledger, ask_for(BUDGET, at=None))
        before = len(await served.asked())
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(free())
            for number, (api, streamed, is_async) in enumerate(WAYS):
                # Equal calls that are repeated at the same time would be one call.
                different = {"temperature": number / 100}
                given = (served.url, served.secret, api, {**FIELDS[api], **streamed, "extra_body": different})
                call = asynchronous(*given) if is_async else in_thread(*given)
                calls.append(group.create_task(call))
        sent = len(await served.asked()) - before
    threads.shutdown()

    answered: Counter[str] = Counter()
    for name, count in counts.items():
        answered[name[2]] += count
    assert [call.result() for call in calls] == [200] * len(WAYS)
    assert (sent, answered) == (len(WAYS), {"429": len(WAYS), "200": len(WAYS)})
