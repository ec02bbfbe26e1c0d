"""The provider's own count bounds the input where it is to be had, and is never a reason to fail."""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import bound
from agentic_trading.llm import (
    DeterminismLevel,
    EnvelopeBuilder,
    FailureKind,
    LLMEnvelope,
    LLMProvider,
    LLMResult,
    ProviderError,
)
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.provider import ModelRequest, Providers
from agentic_trading.llm.providers.offline import RecordedAnswers, ScriptedProvider, ScriptedReply
from agentic_trading.worker.call_context import InputTokenCounter
from agentic_trading.worker.runner import CallRunner, RunnerDependencies
from tests.gateway import CAPABILITIES, GOOD, PRICES, START, asking, attempts, gateway, timed_out

ANALYSIS = frozenset({EnvelopeWorkflow.ANALYSIS})


class Counting(ScriptedProvider):
    """A scripted provider with a count of its own."""

    def __init__(self, lines: Iterable[ScriptedReply], count: int | Exception | None = 77) -> None:
        super().__init__(lines)
        self.count = count
        self.counted: list[ModelRequest] = []

    async def count_tokens(self, request: ModelRequest) -> int | None:
        self.counted.append(request)
        if isinstance(self.count, Exception):
            raise self.count
        return self.count


async def run(provider: Counting, envelope: LLMEnvelope, **more: Any) -> LLMResult:
    """Run an envelope where analysis is counted."""
    desk = gateway(provider, limits=more.pop("limits", ()))
    parts = RunnerDependencies(
        gate=desk.gate,
        providers=Providers.every(provider),
        recorder=desk.recorder,
        capabilities=CAPABILITIES,
        clock=desk.clock,
        checks={},
        counted_workflows=ANALYSIS,
        **more,
    )
    return (await CallRunner(parts).run(envelope)).result


def reserved(request: ModelRequest, count: int | None) -> int:
    """Return what a request reserves, by a count or by its bytes."""
    capability = CAPABILITIES.of(LLMProvider.SCRIPTED, "scripted-1")
    return bound(request, capability, PRICES, at=START, input_tokens=count).nusd


async def test_reservation_uses_the_provider_count() -> None:
    provider = Counting([GOOD])

    result = await run(provider, asking().build())

    (request,) = provider.requests
    assert provider.counted == [request]
    assert result.reserved_nusd == reserved(request, 77) < reserved(request, None)


async def test_uncounted_workflow_uses_byte_bound() -> None:
    provider = Counting([GOOD])

    result = await run(provider, asking("general").build())

    assert provider.counted == []
    assert result.reserved_nusd == reserved(provider.requests[0], None)


@pytest.mark.parametrize(
    "count",
    [
        None,
        0,
        -5,
        10**9 + 1,
        ProviderError(FailureKind.RATE_LIMIT, "too many counts", sent=False),
        TimeoutError(),
        KeyError("input_tokens"),
    ],
    ids=repr,
)
async def test_missing_count_falls_back_to_bytes(count: int | Exception | None) -> None:
    provider = Counting([GOOD], count)

    result = await run(provider, asking().build())

    assert result.actionable
    assert result.reserved_nusd == reserved(provider.requests[0], None)


async def test_only_changed_request_is_counted_again() -> None:
    provider = Counting([timed_out(), "no json", timed_out(), GOOD])

    result = await run(provider, asking().build())

    assert (result.attempt_number, result.actionable) == (4, True)
    assert [request.attempt for request in provider.counted] == [1, 3]


async def test_failed_count_is_not_retried() -> None:
    provider = Counting([timed_out(), GOOD], ProviderError(FailureKind.SERVER_ERROR, "no", sent=False))

    result = await run(provider, asking().build())

    assert (result.attempt_number, len(provider.counted)) == (2, 1)


async def test_count_fits_budget_bytes_would_exceed() -> None:
    probe = Counting([GOOD])
    by_count = (await run(probe, asking().build())).reserved_nusd
    limits = [Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=by_count)]

    counted, by_bytes = [
        await run(Counting([GOOD], count), asking().build(), limits=limits) for count in (77, None)
    ]

    assert counted.actionable
    assert by_bytes.failure is not None
    assert by_bytes.failure.category is FailureKind.BUDGET_EXHAUSTED


async def test_a_recorded_answer_is_not_counted() -> None:
    live = gateway([GOOD])
    envelope = asking().build()
    await live.runner.run(envelope)
    provider = Counting([])

    result = await run(provider, envelope, recorded=RecordedAnswers(await attempts(live, envelope)))

    assert (result.served_from, provider.counted) == ("recorded", [])


async def test_replay_only_request_is_not_counted() -> None:
    provider = Counting([])

    result = await run(provider, asking().with_determinism(DeterminismLevel.REPLAY_ONLY).build())

    assert result.failure is not None
    assert (result.failure.category, provider.counted) == (FailureKind.REPLAY_MISS, [])


@pytest.mark.parametrize(
    ("builder", "kind"),
    [
        (asking().with_deadline(START), FailureKind.EXPIRED),
        (asking().with_as_of(START + timedelta(hours=1)), FailureKind.LOOK_AHEAD),
    ],
    ids=["expired", "ahead"],
)
async def test_refused_request_is_not_counted(builder: EnvelopeBuilder, kind: FailureKind) -> None:
    provider = Counting([])

    result = await run(provider, builder.build())

    assert result.failure is not None
    assert (result.failure.category, provider.counted) == (kind, [])


class Hanging(Counting):
    """A provider whose counts never come."""

    async def count_tokens(self, request: ModelRequest) -> int | None:
        await super().count_tokens(request)
        await asyncio.Event().wait()
        return None


async def test_count_wait_is_bounded_by_patience() -> None:
    live = Counting([GOOD])
    await run(live, asking().build())
    provider = Hanging([])
    count = InputTokenCounter(Providers.every(provider))

    assert await count.of(live.requests[0], 0.0) is None
    assert provider.counted == []
    assert await count.of(live.requests[0], 0.01) is None
    assert len(provider.counted) == 1
