"""Calls that wait for money held by others: parked, then 429 with a time to ask again, and never sent before."""

import asyncio
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import Window
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform.config import TenantConfig
from agentic_trading.platform.platform import Ports
from agentic_trading.server import errors
from tests.governance.asking import ask as ask_for
from tests.governance.asking import reserved
from tests.server.conftest import Serving
from tests.server.test_sdks import ask, claude_sdk, sdk
from tests.server.test_server import EACH, said

BUDGET = 1_000_000_000
RIGHTS = {"max_output_tokens": 100, "park_s": 0.02}
TENANTS = {"acme": TenantConfig(budget_usd=Decimal(1), window=Window.DAY)}


class Counts(Counter[tuple[str, str, str]]):
    """The counts of requests. The first one sets an event."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()

    def __setitem__(self, name: tuple[str, str, str], count: int) -> None:
        super().__setitem__(name, count)
        self.changed.set()


@pytest.mark.parametrize("path", EACH)
async def test_call_that_waits_only_for_held_money_is_429_and_unsent(serve: Serving, path: str) -> None:
    ledger = MemoryLedger()
    ports = Ports(store=MemoryInteractionStore(), ledger=ledger)
    async with serve(rights=RIGHTS, ports=ports, tenants=TENANTS) as served:
        await reserved(ledger, ask_for(BUDGET, at=None))
        before = len(await served.asked())
        status, error, headers = await said(served, path, EACH[path])
        sent = len(await served.asked()) - before

    assert (status, sent) == (429, 0)
    assert error.get("code", error["type"]) in {"budget_busy", "rate_limit_error"}
    assert "until calls in flight end" in error["message"]
    assert (headers["retry-after"], headers["x-should-retry"]) == ("5", "true")


@pytest.mark.parametrize("park_s", [0.02, 60.0])
async def test_end_of_the_deadline_while_parked_is_429(serve: Serving, park_s: float) -> None:
    ledger = MemoryLedger()
    ports = Ports(store=MemoryInteractionStore(), ledger=ledger)
    async with serve(rights={**RIGHTS, "park_s": park_s}, ports=ports, tenants=TENANTS) as served:
        await reserved(ledger, ask_for(BUDGET, at=None))
        status, error, _ = await said(
            served, "/v1/responses", EACH["/v1/responses"], headers={"x-agentic-deadline-s": "0.3"}
        )

    assert (status, error["code"]) == (429, "budget_busy")


@pytest.mark.parametrize("library", ["openai", "anthropic"])
async def test_official_library_repeats_a_busy_call_and_pays_once(
    serve: Serving, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setattr(errors, "RETRY_AFTER_S", 1)
    ledger, counts = MemoryLedger(), Counts()
    ports = Ports(store=MemoryInteractionStore(), ledger=ledger)
    async with (
        serve(rights=RIGHTS, ports=ports, tenants=TENANTS, timing={"_counts": counts}) as served,
        sdk(served) as client,
        claude_sdk(served) as claude,
    ):
        held = await reserved(ledger, ask_for(BUDGET, at=None))
        before = len(await served.asked())

        async def free() -> None:
            await counts.changed.wait()
            await ledger.release(held)

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(free())
            call: Any = (
                client.chat.completions.create(model="gpt", messages=ask())
                if library == "openai"
                else claude.messages.create(model="claude", max_tokens=9, messages=ask())
            )
            answered = group.create_task(call)
        sent = len(await served.asked()) - before

    assert answered.result().id
    assert sent == 1
    assert sorted(status for _, _, status in counts) == ["200", "429"]


async def test_deadline_before_the_send_is_503_and_not_repeated(serve: Serving) -> None:
    async with serve() as served:
        before = len(await served.asked())
        status, error, headers = await said(
            served, "/v1/responses", EACH["/v1/responses"], headers={"x-agentic-deadline-s": "0.000001"}
        )
        sent = len(await served.asked()) - before

    assert (status, error["code"], sent) == (503, "deadline_exceeded", 0)
    assert headers["x-should-retry"] == "false"
    assert "retry-after" not in headers


async def test_output_cap_is_that_of_the_model_if_it_is_lower(serve: Serving) -> None:
    body = {**EACH["/v1/responses"], "max_output_tokens": 90_000}
    async with serve(rights={"max_output_tokens": 100_000}) as served:
        status, _, headers = await said(served, "/v1/responses", body)
        several = await said(
            served, "/v1/chat/completions", {**EACH["/v1/chat/completions"], "n": 2, "max_tokens": 90_000}
        )
        sent = (await served.asked())[-2]["body"]["max_output_tokens"]

    assert (status, headers["x-agentic-output-cap"], sent) == (200, "64000", 64_000)
    assert (several[0], several[2]["x-agentic-output-cap"]) == (200, "64000")
