"""Our ledger against the invoice of the answering side: calls through runner, gate and adapter."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.providers.anthropic.provider import AnthropicProvider
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.llm.result import LLMResult
from tests.gateway import MemoryGateway, asking, attempts, gateway, held
from tests.stubs.running import page_of, serving

TODAY = datetime(2026, 11, 22, tzinfo=UTC)
PATIENCE_S = 15.0
SONNET, WITH_SAMPLING = "claude-sonnet-5-5", "claude-sonnet-4-5-20250929"
ANSWERED = [
    "answer",
    "thinking",
    "cached",
    "in_us",
    "no_geo",
    "refusal",
    "truncated",
    "other_model",
    "grammar, answer",
    "rate_limit_ms, answer",
    "rate_limit_s, overloaded, answer",
    "ramp_limit, cached",
]
REFUSED = [
    "rate_limit_date",
    "spend_limit",
    "contract_limit",
    "unauthorised",
    "forbidden",
    "unpaid",
    "bad_request",
    "not_found",
    "too_large",
    "unprocessable",
]
BILLED_UNSEEN = ["cut", "hangs_up", "silent", "endless", "page", "broken_json"]
BILLED_UNUSED = ["no_stop", "paused", "tool"]
NEVER_OVER = ["silent", "endless"]
NEVER_BILLED = ["error_500", "error_502", "error_503", "error_504", "error_408", "conflict", "no_message"]


@pytest.fixture
def address() -> Iterator[str]:
    """Return where a stub listens that has billed nothing yet."""
    with serving("tests.stubs.messages_api") as address:
        yield address


@pytest.fixture
async def desk(address: str) -> AsyncIterator[MemoryGateway]:
    """Return a gateway whose provider asks the stub."""
    provider = AnthropicProvider(OneKey("good"), base_url=address)
    yield gateway(provider, clock=SimClock(TODAY))
    await provider.aclose()


def playing(words: str, model: str = SONNET, workflow: str = "analysis", **policy: Any) -> LLMEnvelope:
    builder = asking(workflow, clock=SimClock(TODAY)).with_instructions(f"play: {words}")
    builder.with_retry_policy(RetryPolicy(attempt_timeout_s=policy.pop("patience_s", PATIENCE_S), **policy))
    return builder.with_provider(LLMProvider.ANTHROPIC, model).build()


async def run(desk: MemoryGateway, envelopes: list[LLMEnvelope]) -> list[LLMResult]:
    """Run envelopes side by side; returns all their attempts."""
    async with asyncio.TaskGroup() as group:
        for envelope in envelopes:
            group.create_task(desk.runner.run(envelope))
    return [one.result for envelope in envelopes for one in await attempts(desk, envelope)]


async def invoice(address: str) -> dict[str, Any]:
    return await asyncio.to_thread(page_of, address, "/invoice")


@pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")
async def test_ledger_matches_invoice_to_nano_dollar(desk: MemoryGateway, address: str) -> None:
    envelopes = [playing(words) for words in [*ANSWERED, *REFUSED]]
    envelopes.append(playing("answer", WITH_SAMPLING, "general"))

    results = await run(desk, envelopes)

    bill = await invoice(address)
    assert bill["total_nusd"] > 0
    assert desk.ledger.statistics().charged_nusd == bill["total_nusd"]
    assert sum(result.cost_nusd for result in results) == bill["total_nusd"]
    assert sorted(result.cost_nusd for result in results if result.cost_nusd) == sorted(
        line["nusd"] for line in bill["lines"]
    )
    assert held(await desk.ledger.balances("default")) == {"nusd": 0, "tokens": 0, "calls": 0}


async def test_refused_request_is_free_and_uninvoiced(desk: MemoryGateway, address: str) -> None:
    results = await run(desk, [playing(word) for word in REFUSED])

    assert {result.cost_nusd for result in results} == {0}
    assert len(results) == len(REFUSED)
    assert (await invoice(address))["lines"] == []


@pytest.mark.parametrize("workflow", ["analysis", "execution"])
async def test_throttled_request_retried_in_every_workflow(
    desk: MemoryGateway, address: str, workflow: str
) -> None:
    results = await run(desk, [playing("rate_limit_s, overloaded, answer", workflow=workflow)])

    assert [result.in_doubt for result in results] == [False, False, False]
    assert [result.cost_nusd for result in results] == [0, 0, (await invoice(address))["total_nusd"]]


async def test_lost_answer_charged_at_full_reservation(desk: MemoryGateway, address: str) -> None:
    """The invoice has what was made and never arrived; we count the whole reservation, and say that it is in doubt."""
    await run(
        desk, [playing("bad_request")]
    )  # costs nothing, and opens the connections (or loads the SDK), which no short patience outlasts
    patience_s = dict.fromkeys(NEVER_OVER, 2.0)
    calls = [
        playing(word, patience_s=patience_s.get(word, PATIENCE_S), max_retries=0) for word in BILLED_UNSEEN
    ]
    results = await run(desk, calls)

    bill = await invoice(address)
    assert len(results) == len(bill["lines"]) == len(BILLED_UNSEEN)
    assert all(result.in_doubt and result.cost_nusd == result.reserved_nusd for result in results)
    assert max(line["nusd"] for line in bill["lines"]) <= min(result.reserved_nusd for result in results)


async def test_unused_answer_charged_as_invoiced(desk: MemoryGateway, address: str) -> None:
    calls = [playing(word, workflow="execution", max_retries=0) for word in BILLED_UNUSED]

    results = await run(desk, calls)

    bill = await invoice(address)
    assert {result.success or result.in_doubt for result in results} == {False}
    assert sum(result.cost_nusd for result in results) == bill["total_nusd"] > 0


async def test_answer_without_usage_charged_at_reservation(desk: MemoryGateway) -> None:
    (result,) = await run(desk, [playing("no_usage")])

    assert (result.success, result.in_doubt) == (True, False)
    assert result.cost_nusd == result.reserved_nusd > 0


async def test_internal_failure_charged_at_reservation(desk: MemoryGateway, address: str) -> None:
    results = await run(desk, [playing(word, max_retries=0) for word in NEVER_BILLED])

    assert all(result.in_doubt and result.cost_nusd == result.reserved_nusd for result in results)
    assert (await invoice(address))["lines"] == []


async def test_lost_order_answer_is_not_retried(desk: MemoryGateway, address: str) -> None:
    results = await run(desk, [playing("hangs_up, answer", workflow="execution")])

    assert [result.in_doubt for result in results] == [True]
    assert len((await invoice(address))["lines"]) == 1
