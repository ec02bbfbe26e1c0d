"""Another model is called where it may help, by a call of its own, and nowhere else."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from agentic_trading.audit.trace import CallNode, TraceTree
from agentic_trading.client.fallback import FALLBACK_KINDS, FALLS_BACK_ON, Alternative, FallbackGateway
from agentic_trading.client.gateway import GatewayClient, GatewayReply
from agentic_trading.llm import (
    DeterminismLevel,
    Event,
    FailureKind,
    FailureReason,
    LLMEnvelope,
    LLMInteraction,
    LLMProvider,
    NoDecision,
    ProviderError,
    RetryPolicy,
    SafetyConstraints,
)
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import RecordedAnswers, ScriptedProvider, ScriptedReply
from agentic_trading.llm.result import Usage
from tests.build import event, interaction
from tests.gateway import GOOD, START, MemoryGateway, asking, gateway, timed_out
from tests.worker.running import running

SECOND = Alternative(LLMProvider.SCRIPTED, "scripted-prompted-1")
UNKNOWN = Alternative(LLMProvider.SCRIPTED, "scripted-99")
NO_RETRIES = RetryPolicy(max_retries=0)


class TwoModels:
    """A provider for each of two models."""

    def __init__(self, first: Sequence[ScriptedReply], second: Sequence[ScriptedReply]) -> None:
        self.first, self.second = ScriptedProvider(first), ScriptedProvider(second)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        asked = self.second if request.envelope.model == SECOND.model else self.first
        return await asked.complete(request)

    async def count_tokens(self, _request: ModelRequest) -> int | None:
        return None

    async def aclose(self) -> None:
        return None


def failing(kind: FailureKind, *, sent: bool = False) -> ProviderError:
    return ProviderError(kind, "not now", sent=sent)


async def asked(
    desk: MemoryGateway,
    envelope: LLMEnvelope,
    alternatives: Sequence[Alternative] = (SECOND,),
    **how: Any,
) -> LLMInteraction:
    """Return what a gateway with alternatives answers."""
    async with running(desk) as client:
        answer = await FallbackGateway(client, alternatives, **how).ask(envelope)
    assert isinstance(answer, LLMInteraction)
    return answer


def kind_of(answer: LLMInteraction) -> FailureKind | None:
    return answer.result.failure.category if answer.result.failure else None


async def test_fallback_call_is_caused_by_failed_call() -> None:
    models = TwoModels([failing(FailureKind.SERVER_ERROR)], [GOOD])
    desk = gateway(models)
    envelope = (
        asking()
        .with_retry_policy(NO_RETRIES)
        .with_deadline(START + timedelta(minutes=5))
        .with_idempotency_key("once")
        .build()
    )

    answer = await asked(desk, envelope)

    failed, fallback = await desk.store.get_by_trace_id(envelope.trace_id)
    assert (answer, answer.result.actionable) == (fallback, True)
    other = fallback.envelope
    assert (other.model, other.causation_id) == (SECOND.model, failed.interaction_id)
    assert other.envelope_id != envelope.envelope_id
    assert other.idempotency_key not in {"once", other.envelope_id}
    assert other.request_hash == other.compute_request_hash() != envelope.request_hash
    same = ("trace_id", "parent_envelope_id", "tenant_id", "deadline", "as_of", "created_at", "instructions")
    assert [getattr(other, name) for name in same] == [getattr(envelope, name) for name in same]


async def test_trace_tree_nests_fallback_call() -> None:
    models = TwoModels([failing(FailureKind.SERVER_ERROR)], [GOOD])
    desk = gateway(models)
    envelope = asking().with_retry_policy(NO_RETRIES).build()

    answer = await asked(desk, envelope)

    tree = TraceTree(await desk.store.get_by_trace_id(envelope.trace_id))
    rows = [(row.depth, row.node.id) for row in tree.rows() if isinstance(row.node, CallNode)]
    assert rows == [(0, envelope.envelope_id), (1, answer.envelope.envelope_id)]


async def test_repeated_envelope_falls_back_and_pays_once() -> None:
    models = TwoModels([failing(FailureKind.SERVER_ERROR)], [GOOD])
    desk = gateway(models)
    envelope = asking().with_retry_policy(NO_RETRIES).build()

    async with running(desk) as client:
        fallback = FallbackGateway(client, [SECOND])
        first, second = await fallback.ask(envelope), await fallback.ask(envelope)

    assert first == second
    assert (len(models.first.requests), len(models.second.requests)) == (1, 1)


async def test_used_answer_does_not_fall_back() -> None:
    models = TwoModels([GOOD], [])

    answer = await asked(gateway(models), asking().build())

    assert answer.envelope.model == "scripted-1"
    assert models.second.requests == []


@pytest.mark.parametrize("kind", sorted(FALLS_BACK_ON - {FailureKind.WRONG_MODEL, FailureKind.PARSING_ERROR}))
async def test_default_failure_kinds_fall_back(kind: FailureKind) -> None:
    desk = gateway(TwoModels([failing(kind)] * 2, [GOOD]))

    answer = await asked(desk, asking().with_retry_policy(NO_RETRIES).build())

    assert answer.result.actionable


@pytest.mark.parametrize("kind", sorted(frozenset(FailureKind) - FALLS_BACK_ON))
async def test_other_failure_kinds_do_not_fall_back(kind: FailureKind) -> None:
    models = TwoModels([failing(kind)], [GOOD])

    answer = await asked(gateway(models), asking().with_retry_policy(NO_RETRIES).build())

    assert kind_of(answer) is kind
    assert models.second.requests == []


@pytest.mark.parametrize("kind", sorted(frozenset(FailureKind) - FALLBACK_KINDS))
def test_forbidden_fallback_kind_is_refused(kind: FailureKind) -> None:
    with pytest.raises(ValueError, match=f"cannot fall back on {kind}. Allowed are auth_error"):
        FallbackGateway(GatewayClient(gateway().broker), [SECOND], on=frozenset({kind}))


async def test_named_extra_kind_falls_back() -> None:
    desk = gateway(TwoModels([failing(FailureKind.BILLING)], [GOOD]))

    answer = await asked(desk, asking().build(), on=FALLS_BACK_ON | {FailureKind.BILLING})

    assert answer.result.actionable


@pytest.mark.parametrize(
    ("workflow", "falls_back"), [("planning", True), ("analysis", False), ("general", False)]
)
async def test_unreadable_answer_falls_back_only_when_planning(workflow: str, *, falls_back: bool) -> None:
    models = TwoModels(["no json", "none at all", "still none"], [GOOD])

    answer = await asked(gateway(models), asking(workflow).build())

    assert answer.result.actionable is falls_back
    assert len(models.second.requests) == falls_back


async def test_deterministic_call_does_not_fall_back() -> None:
    models = TwoModels([failing(FailureKind.SERVER_ERROR)], [GOOD])
    desk = gateway(models)
    envelope = asking().with_retry_policy(NO_RETRIES).with_safety(require_deterministic=True).build()

    answer = await asked(desk, envelope)

    assert kind_of(answer) is FailureKind.SERVER_ERROR
    assert answer.result.failure is not None
    assert "require_deterministic allows the requested one only" in answer.result.failure.technical_details
    assert models.second.requests == []
    (kept,) = await desk.store.get_by_trace_id(envelope.trace_id)
    assert kept.result.failure is not None
    assert (kept.interaction_id, kept.result.failure.technical_details) == (answer.interaction_id, "")


async def test_wrong_model_answer_does_not_fall_back() -> None:
    other = ModelResponse(
        '{"action":"buy","size":1,"end":"ok"}', "end_turn", Usage(output_tokens=9), "scripted-9"
    )
    models = TwoModels([other], [GOOD])

    answer = await asked(gateway(models), asking("execution").build())

    assert kind_of(answer) is FailureKind.WRONG_MODEL
    assert models.second.requests == []


async def test_determinism_level_is_checked_for_alternative() -> None:
    models = TwoModels([failing(FailureKind.SERVER_ERROR)], [GOOD])
    envelope = (
        asking("general").with_retry_policy(NO_RETRIES).with_determinism(DeterminismLevel.GREEDY).build()
    )

    answer = await asked(gateway(models), envelope)

    assert kind_of(answer) is FailureKind.NOT_ALLOWED
    assert answer.envelope.model == SECOND.model
    assert models.second.requests == []


async def test_alternatives_are_asked_in_causal_order() -> None:
    third = Alternative(LLMProvider.RULES, "rules-1")
    models = TwoModels([failing(FailureKind.SERVER_ERROR), GOOD], [failing(FailureKind.SERVER_ERROR)])
    desk = gateway(models)
    envelope = asking().with_retry_policy(NO_RETRIES).build()

    await asked(desk, envelope, [SECOND, third])

    chain = await desk.store.get_by_trace_id(envelope.trace_id)
    assert [one.envelope.model for one in chain] == ["scripted-1", SECOND.model, "rules-1"]
    assert [one.envelope.causation_id for one in chain[1:]] == [one.interaction_id for one in chain[:-1]]


async def test_refused_alternative_ends_the_chain() -> None:
    models = TwoModels([failing(FailureKind.SERVER_ERROR)], [GOOD])

    answer = await asked(gateway(models), asking().with_retry_policy(NO_RETRIES).build(), [UNKNOWN, SECOND])

    assert kind_of(answer) is FailureKind.INVALID_REQUEST
    assert models.second.requests == []


async def test_already_asked_model_is_skipped() -> None:
    first = Alternative(LLMProvider.SCRIPTED, "scripted-1")
    models = TwoModels([failing(FailureKind.SERVER_ERROR)], [failing(FailureKind.SERVER_ERROR)])

    answer = await asked(
        gateway(models), asking().with_retry_policy(NO_RETRIES).build(), [first, SECOND, first, SECOND]
    )

    assert (kind_of(answer), answer.envelope.model) == (FailureKind.SERVER_ERROR, SECOND.model)
    assert (len(models.first.requests), len(models.second.requests)) == (1, 1)


async def test_alternative_may_lower_output_limit() -> None:
    models = TwoModels([failing(FailureKind.SERVER_ERROR)], [GOOD])
    small = Alternative(LLMProvider.SCRIPTED, SECOND.model, max_output_tokens=50, thinking_budget=0)

    answer = await asked(gateway(models), asking().with_retry_policy(NO_RETRIES).build(), [small])

    assert answer.result.actionable
    assert models.second.requests[0].max_tokens == 50


@pytest.mark.parametrize("wrong", [{"model": ""}, {"max_output_tokens": 0}, {"thinking_budget": -1}])
def test_invalid_alternative_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"model|max_output_tokens|thinking_budget"):
        Alternative(**{"provider": LLMProvider.SCRIPTED, "model": "m", **wrong})


async def test_replay_takes_the_same_fallback() -> None:
    desk = gateway(TwoModels([timed_out(), failing(FailureKind.RATE_LIMIT)], [GOOD]))
    envelope = asking().with_retry_policy(RetryPolicy(max_retries=1)).build()
    live = await asked(desk, envelope)
    log = await desk.store.get_by_trace_id(envelope.trace_id)
    unused, recorded = TwoModels([], []), RecordedAnswers(log)
    again = gateway(unused, recorded=recorded)

    replayed = await asked(again, envelope)

    assert (unused.first.requests, unused.second.requests) == ([], [])
    assert (recorded.misses, recorded.unused) == ([], [])
    assert replayed.envelope == live.envelope
    assert replayed.result.parsed_output == live.result.parsed_output
    assert (replayed.result.served_from, replayed.result.cost_nusd) == ("recorded", 0)


class Answering:
    """A gateway that has one answer."""

    def __init__(self, answer: GatewayReply) -> None:
        self.answer = answer
        self.asked: list[LLMEnvelope] = []
        self.recorded: list[Event] = []

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        self.asked.append(envelope)
        return self.answer

    async def record(self, event: Event) -> None:
        self.recorded.append(event)


@pytest.mark.parametrize("is_bound", [True, False], ids=["as it must be", "though it claims to be free"])
async def test_execution_in_doubt_is_not_asked_again(*, is_bound: bool) -> None:
    reason = FailureReason(category=FailureKind.TIMEOUT, description="no answer")
    free = SafetyConstraints(require_deterministic=is_bound)
    lost = interaction(
        workflow="execution", safety_constraints=free, success=False, in_doubt=True, failure=reason
    )
    inner = Answering(lost)

    answer = await FallbackGateway(inner, [SECOND]).ask(lost.envelope)

    assert isinstance(answer, LLMInteraction)
    assert kind_of(answer) is FailureKind.TIMEOUT
    assert inner.asked == [lost.envelope]


async def test_no_decision_and_events_pass_through() -> None:
    reason = FailureReason(category=FailureKind.UNDELIVERABLE, description="no worker")
    inner = Answering(NoDecision(reason=reason))
    fallback, fact, envelope = FallbackGateway(inner, [SECOND]), event(), asking().build()

    answer = await fallback.ask(envelope)
    await fallback.record(fact)

    assert (answer, inner.asked, inner.recorded) == (inner.answer, [envelope], [fact])


async def test_concurrent_calls_fall_back_independently() -> None:
    def line(request: ModelRequest) -> ScriptedReply:
        if request.envelope.model == SECOND.model:
            return f'{{"action":"buy","size":{request.envelope.context["n"]}}}'
        return failing(FailureKind.SERVER_ERROR)

    desk = gateway(line)
    async with running(desk) as client, asyncio.TaskGroup() as group:
        fallback = FallbackGateway(client, [SECOND])
        calls = [
            group.create_task(fallback.ask(asking(n=number).with_retry_policy(NO_RETRIES).build()))
            for number in range(10)
        ]

    answers = [call.result() for call in calls]
    assert [one.result.parsed_output["size"] for one in answers if isinstance(one, LLMInteraction)] == list(
        range(10)
    )
