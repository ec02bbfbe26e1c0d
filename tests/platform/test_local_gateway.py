"""A gateway within the process: its budget holds over everybody who uses it."""

import asyncio
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from agentic_trading.clock import SystemClock
from agentic_trading.llm import (
    EnvelopeBuilder,
    Event,
    FailureKind,
    JsonFileInteractionStore,
    LLMEnvelope,
    LLMInteraction,
    LLMProvider,
    LLMResult,
    MemoryInteractionStore,
)
from agentic_trading.llm.fields import UnreadObject
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.provider import Provider
from agentic_trading.llm.providers.offline import RecordedAnswers, ScriptedProvider
from agentic_trading.llm.runs import runs_in_log
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.operate.log_check import check_file
from agentic_trading.platform import local_gateway
from tests.build import event

BUDGET_USD = Decimal("0.1")


def envelope(tenant_id: str, *, as_of: datetime | None = None) -> LLMEnvelope:
    builder = EnvelopeBuilder().for_general().with_instructions("Advise.").with_tenant(tenant_id)
    if as_of is not None:
        builder.with_as_of(as_of)
    return builder.with_provider(LLMProvider.SCRIPTED, "scripted-1").build()


async def asked(*envelopes: LLMEnvelope, tenant: str = "default") -> tuple[list[LLMResult], ScriptedProvider]:
    """Return what each envelope got, and who was asked."""
    provider = ScriptedProvider(lambda _request: "{}")
    results = []
    gateway = local_gateway(provider, store=MemoryInteractionStore(), budget_usd=BUDGET_USD, tenant=tenant)
    async with gateway as client:
        for each in envelopes:
            answer = await client.ask(each)
            assert isinstance(answer, LLMInteraction)
            results.append(answer.result)
    return results, provider


def kinds(results: list[LLMResult]) -> set[FailureKind | None]:
    return {one.failure.category if one.failure else None for one in results}


async def test_unlisted_tenants_cannot_spend_the_budget() -> None:
    results, provider = await asked(*(envelope(f"t{number % 10}") for number in range(40)), tenant="t0")

    assert sum(one.cost_nusd for one in results) <= int(BUDGET_USD * NANO)
    assert kinds([one for number, one in enumerate(results) if number % 10]) == {FailureKind.NOT_ALLOWED}
    assert {request.envelope.tenant_id for request in provider.requests} == {"t0"}


async def test_gateway_tenant_defaults_to_default() -> None:
    (other, ours), _ = await asked(envelope("acme"), envelope("default"))

    assert other.failure is not None
    assert other.failure.description == "tenant 'acme' may not use this gateway; allowed are default"
    assert ours.failure is None or ours.failure.category is not FailureKind.NOT_ALLOWED


async def agents_asked(
    provider: Provider | dict[str, Provider], store: MemoryInteractionStore
) -> list[LLMResult]:
    """Return the results of two agents that ask the same words."""
    results = []
    async with local_gateway(provider, store=store, budget_usd=BUDGET_USD) as client:
        for agent in ("a", "b"):
            answer = await client.ask(envelope("default").model_copy(update={"agent_id": agent}))
            assert isinstance(answer, LLMInteraction)
            results.append(answer.result)
    return results


@pytest.mark.parametrize("is_named", [False, True])
async def test_recorded_answers_as_provider_replay(*, is_named: bool) -> None:
    log, again = MemoryInteractionStore(), MemoryInteractionStore()
    live = await agents_asked(ScriptedProvider(['{"t":"up"}', '{"t":"down"}']), log)
    recorded = RecordedAnswers([
        entry.record async for entry in log.scan() if isinstance(entry.record, LLMInteraction)
    ])

    replayed = await agents_asked({"scripted": recorded} if is_named else recorded, again)

    assert [one.parsed_output for one in replayed] == [{"t": "up"}, {"t": "down"}]
    assert [one.raw_output for one in replayed] == [one.raw_output for one in live]
    assert [(one.served_from, one.cost_nusd) for one in replayed] == [("recorded", 0)] * 2
    assert [one.first_cost_nusd for one in replayed] == [one.cost_nusd for one in live]


@pytest.mark.parametrize(("ahead", "is_allowed"), [(timedelta(0), True), (timedelta(hours=1), False)])
async def test_future_as_of_is_refused(ahead: timedelta, *, is_allowed: bool) -> None:
    (result,), provider = await asked(envelope("default", as_of=SystemClock().now() + ahead))

    assert bool(provider.requests) is is_allowed
    assert (FailureKind.LOOK_AHEAD in kinds([result])) is not is_allowed


async def test_call_does_not_parse_the_context() -> None:
    plain = envelope("default")
    given = plain.model_copy(
        update={
            "context": {"levels": [1.5]},
            "retrieved_evidence": [{"evidence_id": "E1", "source": "bars", "content": {"rsi": [62.3]}}],
        }
    )

    (result,), provider = await asked(given)

    assert result.success
    (item,) = provider.requests[0].envelope.retrieved_evidence
    assert {type(vars(given)["context"]), type(vars(item)["content"])} == {
        UnreadObject
    }  # it costs a tenth of a call


class SlowLog(MemoryInteractionStore):
    """A log that lets the loop turn before it keeps an event."""

    async def record(self, event: Event) -> int:
        for _ in range(3):
            await asyncio.sleep(0)
        return await super().record(event)


async def record_and_fail(store: MemoryInteractionStore, facts: list[Event]) -> None:
    async with local_gateway(ScriptedProvider([]), store=store, budget_usd=BUDGET_USD) as client:
        for fact in facts:
            await client.record(fact)
        raise LookupError("the caller's own mistake")


async def test_recorded_events_survive_block_error() -> None:
    store, facts = SlowLog(), [event(id=f"e-{number}") for number in range(20)]

    with pytest.raises(LookupError, match="own mistake"):
        await record_and_fail(store, facts)

    assert [entry.record async for entry in store.scan()] == facts


async def test_file_log_records_gateway_start_and_end(tmp_path: Path) -> None:
    for _ in range(2):
        store = JsonFileInteractionStore(tmp_path / "log.jsonl")
        async with local_gateway(
            ScriptedProvider(lambda _: "{}"), store=store, budget_usd=BUDGET_USD
        ) as client:
            await client.ask(envelope("default"))
        await store.aclose()

    records = JsonlRecords(tmp_path / "log.jsonl")
    (run,), wrong = runs_in_log((await records.verify()).runs)
    await records.aclose()
    found = await check_file(tmp_path / "log.jsonl")
    assert wrong == []
    assert (run.name, run.started.mode) == (("gateway", 1), "paper")
    assert run.ended is not None
    assert (run.end_line, run.ended.interrupted, run.ended.bars) == (found.lines, False, ())
    assert found.verdict == "whole"


async def test_failed_gateway_records_interrupted_end(tmp_path: Path) -> None:
    store = JsonFileInteractionStore(tmp_path / "log.jsonl")

    async def failing() -> None:
        async with local_gateway(ScriptedProvider(lambda _: "{}"), store=store, budget_usd=BUDGET_USD):
            raise ValueError("of the application")

    with pytest.raises(ValueError, match="of the application"):
        await failing()

    (run,), _ = runs_in_log((await store.verify()).runs)
    await store.aclose()
    assert run.ended is not None
    assert run.ended.interrupted
