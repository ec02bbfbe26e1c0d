"""The client: what goes out comes back, and a repeated request has an occurrence of its own."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal

import pytest
import structlog

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import (
    dead_letter_message,
    event_message,
    read_dead_letter,
    reply_message,
)
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import DEAD_LETTERS, EVENTS, REPLIES, DeadLetter
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.llm import FailureKind, LLMEnvelope, LLMInteraction, NoDecision, Stage
from agentic_trading.llm.errors import RecordError
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.offline import ScriptedProvider
from tests.build import event, interaction
from tests.gateway import GOOD, START, MemoryGateway, asking, attempts, gateway


@asynccontextmanager
async def client_of(desk: MemoryGateway) -> AsyncGenerator[GatewayClient]:
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.pool.run())
        async with GatewayClient(desk.broker) as client:
            yield client
        desk.pool.stop()


def to(client: GatewayClient, attempt: LLMInteraction, *, final: bool) -> Message:
    return reply_message(attempt, client.address, final=final)


def letter_headers(envelope: LLMEnvelope) -> Mapping[str, str]:
    """Return the headers of a dead letter that answers an envelope."""
    delivery = Delivery("llm.envelopes.analysis", 7, Message("k", b"junk", {}), 1)
    letter = DeadLetter.of(delivery, reason="decode", detail="", time=START, envelope_id=envelope.envelope_id)
    return dead_letter_message(letter).headers


async def test_answer_is_the_last_attempt() -> None:
    desk = gateway(["no json", GOOD])

    async with client_of(desk) as client:
        answer = await client.ask(asking().build())

    assert isinstance(answer, LLMInteraction)
    assert (answer.result.attempt_number, answer.result.actionable) == (2, True)
    assert str(answer.result.parsed_output["size"]) == "1.50"


async def test_answers_reach_the_matching_caller() -> None:
    desk = gateway(lambda request: f'{{"action":"buy","size":{request.envelope.context["n"]}}}', workers=8)

    async with client_of(desk) as client, asyncio.TaskGroup() as group:
        asked = [group.create_task(client.ask(asking(n=number).build())) for number in range(10)]

    sizes = [
        answer.result.parsed_output["size"]
        for task in asked
        if isinstance(answer := task.result(), LLMInteraction)
    ]
    assert sizes == list(range(10))


async def test_repeated_request_gets_next_occurrence() -> None:
    provider = ScriptedProvider(lambda _request: GOOD)
    desk = gateway(provider)

    async with client_of(desk) as client:
        for moment in (START, START, START - timedelta(minutes=5)):
            await client.ask(asking().with_as_of(moment).with_subject("BTCUSDT", step="cmt").build())
        await client.ask(asking().with_as_of(START).with_subject("BTCUSDT", step="other").build())

    asked = [request.envelope for request in provider.requests]
    assert [envelope.occurrence for envelope in asked] == [0, 1, 0, 0]
    assert asked[0].request_hash == asked[1].request_hash
    assert all(envelope.is_intact for envelope in asked)


async def test_occurrences_are_per_tenant_agent_and_step() -> None:
    places = [("acme", "a", "1"), ("acme", "a", "2"), ("acme", "b", "1"), ("other", "a", "1")]

    async with GatewayClient(MemoryBroker()) as client:
        published = [
            await client.submit(
                asking().with_tenant(tenant).with_agent(agent).with_subject("", step=step).build()
            )
            for tenant, agent, step in [*places, *places]
        ]

    assert [envelope.occurrence for envelope in published] == [0, 0, 0, 0, 1, 1, 1, 1]


async def test_occurrences_restart_at_each_as_of() -> None:
    provider = ScriptedProvider(lambda _request: GOOD)
    earlier = START - timedelta(minutes=5)

    async with client_of(gateway(provider)) as client:
        for moment in (START, START, earlier, START, START, earlier):
            await client.ask(asking().with_as_of(moment).with_subject("BTCUSDT", step="cmt").build())

    assert [request.envelope.occurrence for request in provider.requests] == [0, 1, 0, 0, 1, 0]


async def test_counted_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentic_trading.client.gateway._REMEMBERED", 3)

    async with GatewayClient(MemoryBroker()) as client:

        async def occurrence_of(context: int, step: str = "1") -> int:
            built = asking().with_subject("", step=step).with_context({"number": context}).build()
            return (await client.submit(built)).occurrence

        assert [await occurrence_of(number) for number in (0, 1, 2, 0)] == [0, 0, 0, 1]
        # 0 was asked last, so that 1 is the oldest, and is forgotten for 3.
        assert [await occurrence_of(number) for number in (3, 0, 1)] == [0, 2, 0]
        for number in range(10):
            await occurrence_of(number, step=str(number))

        kept = [getattr(client, name) for name in ("_counts", "_moments", "_occurrences")]
        assert [len(each) for each in kept] == [3, 3, 3]


async def test_untaken_call_is_no_decision() -> None:
    async with GatewayClient(MemoryBroker(), reply_timeout_s=0.01) as client:
        answer = await client.ask(asking().build())

    assert isinstance(answer, NoDecision)
    assert answer.reason.category is FailureKind.UNDELIVERABLE
    assert "within 0.01 s" in answer.reason.description


async def test_client_close_answers_pending_calls() -> None:
    broker = MemoryBroker()
    client = GatewayClient(broker)

    async with asyncio.TaskGroup() as group, client:
        waiting = group.create_task(client.ask(asking().build()))
        await asyncio.sleep(0)

    answer = waiting.result()
    assert isinstance(answer, NoDecision)
    assert "closed" in answer.reason.description


async def test_submit_does_not_wait() -> None:
    desk = gateway([GOOD])

    async with client_of(desk) as client:
        envelope = await client.submit(asking().build())

    assert await desk.store.get_by_envelope_id(envelope.envelope_id) is not None


async def test_recorded_event_is_in_log() -> None:
    desk = gateway([])
    fact = event()

    async with client_of(desk) as client:
        await client.record(fact)

    assert [entry.record async for entry in desk.store.scan()] == [fact]


async def test_clients_receive_only_own_answers() -> None:
    desk = gateway(lambda request: f'{{"action":"buy","size":{request.envelope.context["n"]}}}')

    async with client_of(desk) as one, GatewayClient(desk.broker, name="other") as other:
        first, second = await one.ask(asking(n=1).build()), await other.ask(asking(n=2).build())

    assert isinstance(first, LLMInteraction)
    assert isinstance(second, LLMInteraction)
    assert (first.result.parsed_output["size"], second.result.parsed_output["size"]) == (1, 2)


async def test_oversized_envelope_raises_to_caller() -> None:
    broker = MemoryBroker()
    async with GatewayClient(broker) as client:
        envelope = asking().build()
        with pytest.raises(ValueError, match="too large"):
            await client.ask(asking(text="x" * (1 << 20)).build())
        assert envelope.is_intact


@pytest.mark.parametrize("is_letter", [False, True], ids=["interaction", "dead letter"])
async def test_unreadable_answer_leaves_other_calls_intact(*, is_letter: bool) -> None:
    broken, sound = asking(n=1).build(), asking(n=2).build()
    headers = reply_message(interaction(envelope=broken), "", final=True).headers
    if is_letter:
        headers = letter_headers(broken)
    broker = MemoryBroker()

    async with GatewayClient(broker) as client, asyncio.TaskGroup() as group:
        first = group.create_task(client.ask(broken))
        second = group.create_task(client.ask(sound))
        await asyncio.sleep(0)
        await broker.publish(REPLIES, Message(client.address, b"no answer at all", headers))
        await broker.publish(REPLIES, to(client, interaction(envelope=sound), final=True))

    answer = first.result()
    assert isinstance(answer, NoDecision)
    assert answer.reason.category is FailureKind.UNDELIVERABLE
    assert "cannot be read" in answer.reason.description
    assert isinstance(second.result(), LLMInteraction)


@pytest.mark.parametrize("raw", [b"no letter at all", None], ids=["unreadable", "of nobody"])
async def test_letter_without_call_is_ignored(raw: bytes | None) -> None:
    envelope = asking().build()
    delivery = Delivery(
        "llm.envelopes.analysis", 7, Message("k", b"junk", {"ce_id": envelope.envelope_id}), 1
    )
    letter = DeadLetter.of(delivery, reason="signature", detail="missing", time=START)
    broker = MemoryBroker()

    async with GatewayClient(broker) as client, asyncio.TaskGroup() as group:
        message = dead_letter_message(letter, address=client.address)
        await broker.publish(REPLIES, message)  # while no call is pending
        asked = group.create_task(client.ask(envelope))
        await asyncio.sleep(0)
        await broker.publish(REPLIES, Message(client.address, raw or message.value, message.headers))
        await broker.publish(REPLIES, to(client, interaction(envelope=envelope), final=True))

    assert isinstance(asked.result(), LLMInteraction)


async def test_outcome_holds_object_and_all_attempts() -> None:
    desk = gateway(["no json", GOOD])
    envelope = asking().build()

    async with client_of(desk) as client:
        outcome = await client.ask_structured(envelope)

    assert (outcome.ok, outcome.json) == (True, {"action": "buy", "size": Decimal("1.50")})
    assert outcome.json_text == GOOD
    assert outcome.is_complete
    assert [attempt.trace and attempt.trace.verdict for attempt in outcome.attempts] == [
        Stage.JSON_PARSE,
        Stage.DONE,
    ]
    made = await attempts(desk, envelope)
    assert outcome.usage.cost_nusd == sum(one.result.cost_nusd for one in made)
    assert outcome.usage.output_tokens == sum(one.result.output_tokens for one in made)


async def test_failed_call_outcome_has_stage_and_usage() -> None:
    desk = gateway(["no json", '{"action":"buy","size":99}', '{"action":"hold","size":1}'])

    async with client_of(desk) as client:
        outcome = await client.ask_structured(asking("planning").build())

    assert (outcome.ok, outcome.json, outcome.json_text) == (False, None, "")
    assert outcome.error
    assert (outcome.error.category, outcome.stage) == (FailureKind.PARSING_ERROR, Stage.SCHEMA_VALIDATION)
    assert [attempt.number for attempt in outcome.attempts] == [1, 2, 3]
    assert outcome.usage.output_tokens == sum(attempt.usage.output_tokens for attempt in outcome.attempts)


async def test_repeated_envelope_returns_same_attempts() -> None:
    desk = gateway(["no json", GOOD])
    envelope = asking().build()

    async with client_of(desk) as client:
        first = await client.ask_structured(envelope)
        again = await client.ask_structured(envelope)

    assert again == first
    assert [attempt.number for attempt in again.attempts] == [1, 2]


async def test_concurrent_outcomes_keep_own_attempts() -> None:
    def of_its_own(request: ModelRequest) -> str:
        return (
            "no json"
            if request.attempt == 1
            else f'{{"action":"buy","size":{request.envelope.context["n"]}}}'
        )

    desk = gateway(of_its_own, workers=8)

    async with client_of(desk) as client, asyncio.TaskGroup() as group:
        asked = [group.create_task(client.ask_structured(asking(n=n).build())) for n in range(5)]

    outcomes = [task.result() for task in asked]
    assert [outcome.json and outcome.json["size"] for outcome in outcomes] == list(range(5))
    assert all(len(outcome.attempts) == 2 and outcome.is_complete for outcome in outcomes)


async def test_unanswered_outcome_keeps_received_attempts() -> None:
    envelope = asking().build()
    broker = MemoryBroker()

    async with GatewayClient(broker) as client, asyncio.TaskGroup() as group:
        plain = group.create_task(client.ask(envelope))
        asked = group.create_task(client.ask_structured(envelope))
        await asyncio.sleep(0)
        await broker.publish(REPLIES, to(client, interaction(envelope=envelope), final=False))
        await broker.publish(REPLIES, Message(client.address, b"no letter", letter_headers(envelope)))

    assert isinstance(plain.result(), NoDecision)
    outcome = asked.result()
    assert (outcome.ok, outcome.json, outcome.stage) == (False, None, None)
    assert outcome.error
    assert outcome.error.category is FailureKind.UNDELIVERABLE
    assert (len(outcome.attempts), outcome.usage.output_tokens) == (1, 20)


async def test_untaken_call_outcome_has_no_attempts() -> None:
    async with GatewayClient(MemoryBroker(), reply_timeout_s=0.01) as client:
        outcome = await client.ask_structured(asking().build())

    assert (outcome.ok, outcome.attempts) == (False, ())
    assert outcome.error
    assert "within 0.01 s" in outcome.error.description


async def test_unreadable_attempt_makes_outcome_incomplete() -> None:
    envelope = asking().build()
    headers = reply_message(interaction(envelope=envelope), "", final=False).headers
    last = interaction(envelope=envelope, attempt_number=2)
    broker = MemoryBroker()

    with structlog.testing.capture_logs() as logs:
        async with GatewayClient(broker) as client, asyncio.TaskGroup() as group:
            plain = group.create_task(client.ask(envelope))
            asked = group.create_task(client.ask_structured(envelope))
            await asyncio.sleep(0)
            await broker.publish(REPLIES, Message(client.address, b"no attempt", headers))
            await broker.publish(REPLIES, to(client, last, final=True))

    assert isinstance(plain.result(), LLMInteraction)
    assert (asked.result().ok, asked.result().is_complete) == (True, False)
    assert [(line["event"], line["envelope_id"]) for line in logs] == [
        ("attempt_unreadable", envelope.envelope_id)
    ]


async def test_attempts_of_other_envelope_are_ignored() -> None:
    mine = asking().build()
    other = mine.model_copy(update={"instructions": "Advise otherwise."})
    broker = MemoryBroker()

    async with GatewayClient(broker) as client, asyncio.TaskGroup() as group:
        asked = group.create_task(client.ask_structured(mine))
        await asyncio.sleep(0)
        await broker.publish(REPLIES, to(client, interaction(envelope=other), final=False))
        good = interaction(envelope=mine, attempt_number=1, raw_output=GOOD)
        await broker.publish(REPLIES, to(client, good, final=True))

    assert [attempt.interaction_id for attempt in asked.result().attempts] == [good.interaction_id]


async def test_event_with_long_id_is_refused() -> None:
    desk = gateway([])

    async with GatewayClient(desk.broker) as client:
        with pytest.raises(
            RecordError, match="trace_id has 257 bytes; allowed are up to 256: take a shorter one"
        ):
            await client.record(event(trace_id="é" * 128 + "x"))
        await client.record(event(trace_id="é" * 128))

    assert desk.broker.statistics().published[EVENTS.name] == 1


async def test_foreign_long_id_event_is_dead_lettered() -> None:
    desk = gateway([])
    letters = await desk.broker.subscribe([DEAD_LETTERS], "operators")
    refused, kept = event(causation_id="c" * 900), event()

    async with client_of(desk) as client:
        await desk.broker.publish(EVENTS, event_message(refused))
        letter = read_dead_letter((await letters.take()).message)
        await client.record(kept)

    assert (letter.reason, "causation_id has 900 bytes" in letter.detail) == ("unrecordable", True)


def test_client_name_is_limited_to_256_bytes() -> None:
    with pytest.raises(ValueError, match="name has 257 bytes; allowed are up to 256"):
        GatewayClient(MemoryBroker(), name="n" * 257)
