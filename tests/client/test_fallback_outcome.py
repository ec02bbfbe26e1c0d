"""A chain of calls that fall back gives one outcome, with every attempt and what all of them took."""

from agentic_trading.client.fallback import Alternative, FallbackGateway
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.llm import FailureKind, LLMEnvelope, LLMProvider, RetryPolicy
from agentic_trading.llm.provider import Providers
from agentic_trading.llm.providers.offline import ScriptedProvider
from tests.client.test_fallback import NO_RETRIES, SECOND, TwoModels, failing
from tests.gateway import GOOD, PRICES, asking, gateway, timed_out
from tests.worker.running import running

PRICED = Alternative(LLMProvider.SCRIPTED, "scripted-1")


async def test_chain_outcome_has_all_attempts_and_usage() -> None:
    models = TwoModels([timed_out(), failing(FailureKind.SERVER_ERROR)], ["no json", GOOD])
    desk = gateway(models)
    envelope = asking().with_retry_policy(RetryPolicy(max_retries=1)).build()

    async with running(desk) as client:
        outcome = await FallbackGateway(client, [SECOND]).ask_structured(envelope)

    log = await desk.store.get_by_trace_id(envelope.trace_id)
    assert (outcome.ok, outcome.json_text, outcome.error, outcome.is_complete) == (True, GOOD, None, True)
    assert [attempt.interaction_id for attempt in outcome.attempts] == [one.interaction_id for one in log]
    assert [(attempt.number, attempt.model) for attempt in outcome.attempts] == [
        (1, "scripted-1"),
        (2, "scripted-1"),
        (1, SECOND.model),
        (2, SECOND.model),
    ]
    assert outcome.usage.cost_nusd == sum(one.result.cost_nusd for one in log) > 0
    assert outcome.usage.output_tokens == sum(one.result.output_tokens for one in log)


async def test_ask_structured_takes_the_same_fallback() -> None:
    envelope = asking().with_retry_policy(NO_RETRIES).build()
    chains: list[list[LLMEnvelope]] = []

    for _ in range(2):
        desk = gateway(TwoModels([failing(FailureKind.SERVER_ERROR)], [failing(FailureKind.SERVER_ERROR)]))
        async with running(desk) as client:
            fallback = FallbackGateway(client, [SECOND])
            await (fallback.ask_structured(envelope) if chains else fallback.ask(envelope))
        chains.append([one.envelope for one in await desk.store.get_by_trace_id(envelope.trace_id)])

    assert chains[0] == chains[1]
    assert len(chains[0]) == 2


async def test_outcome_explains_deterministic_restriction() -> None:
    models = TwoModels([failing(FailureKind.SERVER_ERROR)], [GOOD])
    envelope = asking().with_retry_policy(NO_RETRIES).with_safety(require_deterministic=True).build()

    async with running(gateway(models)) as client:
        outcome = await FallbackGateway(client, [SECOND]).ask_structured(envelope)
        alone = await FallbackGateway(client, []).ask_structured(envelope)

    assert outcome.error is not None
    assert outcome.error.category is FailureKind.SERVER_ERROR
    assert "require_deterministic allows the requested one only" in outcome.error.technical_details
    assert alone.error is not None
    assert alone.error.technical_details == ""
    assert (len(outcome.attempts), models.second.requests) == (1, [])


async def test_unanswered_call_outcome_does_not_fall_back() -> None:
    desk = gateway(TwoModels([], [GOOD]))

    async with GatewayClient(desk.broker, reply_timeout_s=0.01) as client:
        outcome = await FallbackGateway(client, [SECOND]).ask_structured(asking().build())

    assert outcome.error is not None
    assert (outcome.error.category, outcome.attempts) == (FailureKind.UNDELIVERABLE, ())


async def test_submitted_call_does_not_fall_back() -> None:
    models = TwoModels([failing(FailureKind.SERVER_ERROR)], [GOOD])
    desk = gateway(models)
    envelope = asking().with_retry_policy(NO_RETRIES).build()

    async with running(desk) as client:
        published = await FallbackGateway(client, [SECOND]).submit(envelope)
        await client.ask(envelope)  # the answer of the same call

    assert published == envelope
    assert [one.envelope for one in await desk.store.get_by_trace_id(envelope.trace_id)] == [envelope]
    assert (len(models.first.requests), models.second.requests) == (1, [])


async def test_fallback_is_charged_to_other_provider() -> None:
    rules, scripted = ScriptedProvider([failing(FailureKind.SERVER_ERROR)]), ScriptedProvider([GOOD])
    desk = gateway(Providers({"rules": rules, "scripted": scripted}))
    envelope = asking().with_retry_policy(NO_RETRIES).with_provider(LLMProvider.RULES, "rules-1").build()

    async with running(desk) as client:
        outcome = await FallbackGateway(client, [PRICED]).ask_structured(envelope)

    assert outcome.ok
    assert (len(rules.requests), len(scripted.requests)) == (1, 1)
    failed, answered = [one.result for one in await desk.store.get_by_trace_id(envelope.trace_id)]
    assert (failed.provider, failed.cost_nusd) == ("rules", 0)
    assert (answered.provider, answered.model) == ("scripted", "scripted-1")
    assert answered.cost_nusd == PRICES.cost_nusd(
        LLMProvider.SCRIPTED, "scripted-1", answered.usage, at=desk.clock.now()
    )
    assert answered.cost_nusd > 0
    assert [(one.provider, one.model, one.cost_nusd) for one in outcome.attempts] == [
        ("rules", "rules-1", 0),
        ("scripted", "scripted-1", answered.cost_nusd),
    ]


async def test_unserved_provider_falls_back_immediately() -> None:
    scripted = ScriptedProvider([GOOD])
    desk = gateway(Providers({"scripted": scripted}))
    envelope = asking().with_provider(LLMProvider.RULES, "rules-1").build()

    async with running(desk) as client:
        outcome = await FallbackGateway(client, [PRICED]).ask_structured(envelope)

    assert outcome.ok
    first, second = outcome.attempts
    assert first.failure is not None
    assert (first.failure.category, first.cost_nusd, first.next_step) == (FailureKind.NOT_SERVED, 0, "final")
    assert (second.provider, second.failure, len(scripted.requests)) == ("scripted", None, 1)
