"""A pool proves who sends to it, and follows the orders of operators from its first delivery on."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agentic_trading.bus.codec import envelope_message, event_message, read_dead_letter
from agentic_trading.bus.message import Message
from agentic_trading.bus.signing import Signer, Verifier
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, EVENTS, Topic
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.clock import SystemClock
from agentic_trading.governance.commands import AddHalt, execute_command
from agentic_trading.governance.control_stores.file import MemoryControlStore
from agentic_trading.governance.controls_document import HaltScope, TenantControls, event_of
from agentic_trading.governance.errors import ControlsUnavailableError
from agentic_trading.governance.policy import Policy, Principal
from agentic_trading.governance.status_feed import MemoryStatusFeed
from agentic_trading.llm import Event, FailureKind, LLMInteraction, NoDecision, StoreError
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from tests.build import event
from tests.gateway import GOOD, START, MemoryGateway, asking, gateway
from tests.governance.asking import tenant
from tests.worker.running import running
from tests.worker.ticking import events, upkeep, with_pool

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
SIGNER = Signer("desk-a", KEY)
FORGER = Signer("desk-a", OTHER_KEY)
VERIFIER = Verifier({"desk-a": (KEY,)})


def proving() -> MemoryGateway:
    """Return a gateway that wants a proof of who sends."""
    return with_pool(gateway(ScriptedProvider(lambda _request: GOOD)), verifier=VERIFIER)


async def letters(desk: MemoryGateway) -> list[tuple[str, str]]:
    """Return why messages were buried."""
    reader = await desk.broker.subscribe([DEAD_LETTERS], "test")
    found = []
    for _ in range(desk.broker.statistics().published.get(DEAD_LETTERS.name, 0)):
        letter = read_dead_letter((await reader.take()).message)
        found.append((letter.reason, letter.detail))
    await reader.aclose()
    return found


@pytest.mark.parametrize(
    "signer", [None, FORGER, Signer("desk-b", KEY)], ids=["unsigned", "forged", "unknown"]
)
async def test_unproven_sender_gets_no_decision(signer: Signer | None) -> None:
    desk = proving()

    async with (
        asyncio.timeout(5),
        running(desk),
        GatewayClient(desk.broker, name="other", signer=signer) as client,
    ):
        answer = await client.ask(asking().build())

    assert isinstance(answer, NoDecision)
    assert "dead letter: signature" in answer.reason.description
    assert [reason for reason, _ in await letters(desk)] == ["signature"]
    assert desk.ledger.statistics().reserved == 0
    assert [entry async for entry in desk.store.scan()] == []


async def test_tampered_envelope_is_dead_lettered() -> None:
    desk = proving()
    signed = SIGNER.sign(envelope_message(asking().build()))
    changed = Message(signed.key, signed.value.replace(b"Advise.", b"Advice."), signed.headers)
    await desk.broker.publish(ENVELOPES[asking().build().workflow], changed)

    reader = await desk.broker.subscribe([DEAD_LETTERS], "test")

    async with asyncio.timeout(5), running(desk):
        letter = read_dead_letter((await reader.take()).message)

    assert letter.reason == "signature"


async def test_signed_sender_is_answered_and_recorded() -> None:
    desk = proving()
    fact = event()

    async with (
        asyncio.timeout(5),
        running(desk),
        GatewayClient(desk.broker, name="other", signer=SIGNER) as client,
    ):
        await client.record(fact)
        answer = await client.ask(asking().build())
        await client.submit(asking(n=2).build())

    assert isinstance(answer, LLMInteraction)
    assert answer.result.actionable
    assert [one for one in await events(desk) if one.kind != "attempt.dispatched"] == [fact]
    assert desk.pool.statistics().dead_letters == 0


async def test_unsigned_or_forged_event_is_rejected() -> None:
    desk = proving()
    await desk.broker.publish(EVENTS, event_message(event()))
    await desk.broker.publish(EVENTS, FORGER.sign(event_message(event())))

    async with running(desk):
        pass

    assert await events(desk) == []
    assert [reason for reason, _ in await letters(desk)] == ["signature", "signature"]


@pytest.mark.parametrize("principal", ["desk-a", "desk-b"])
async def test_policy_uses_the_signing_principal(principal: str) -> None:
    policy = Policy({"desk-a": Principal(tenants=("default",), models=("scripted/*",))})
    desk = gateway(lambda _request: GOOD, policy=policy)
    desk = with_pool(desk, verifier=Verifier({principal: (KEY,)}), principal="desk-a")

    async with (
        asyncio.timeout(5),
        running(desk),
        GatewayClient(desk.broker, name="other", signer=Signer(principal, KEY)) as client,
    ):
        answer = await client.ask(asking().build())

    assert isinstance(answer, LLMInteraction)
    assert answer.result.actionable is (principal == "desk-a")


@pytest.mark.parametrize("principal", ["desk-a", ""])
async def test_unsigned_pool_uses_configured_principal(principal: str) -> None:
    policy = Policy({"desk-a": Principal(tenants=("default",), models=("scripted/*",))})
    desk = with_pool(gateway(lambda _request: GOOD, policy=policy), principal=principal)

    async with asyncio.timeout(5), running(desk) as client:
        answer = await client.ask(asking().build())

    assert isinstance(answer, LLMInteraction)
    assert answer.result.actionable is bool(principal)


async def test_earlier_halt_stops_first_delivery() -> None:
    board = MemoryControlStore()
    await execute_command(
        board, "default", AddHalt(HaltScope.AGENT, "adviser-1"), by="ann", why="odd", at=START
    )
    provider = ScriptedProvider(lambda _request: GOOD)
    desk = gateway(provider)
    desk = with_pool(desk, upkeep=upkeep(desk, board=board))
    envelope = asking().build()
    message = envelope_message(envelope, reply_to="test")
    await desk.broker.publish(ENVELOPES[envelope.workflow], message)

    reader = await desk.broker.replies("test")

    async with asyncio.timeout(5), running(desk):
        await reader.take()

    kept = await desk.store.get_by_envelope_id(envelope.envelope_id)
    assert kept is not None
    assert kept.result.failure is not None
    assert kept.result.failure.category is FailureKind.HALTED
    assert provider.requests == []


async def test_halt_ends_call_within_a_second() -> None:
    board = MemoryControlStore()
    started = asyncio.Event()

    class Silent(ScriptedProvider):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            started.set()
            await asyncio.Event().wait()
            return await super().complete(request)

    desk = gateway(Silent([]))
    desk = with_pool(desk, upkeep=upkeep(desk, board=board, wall=SystemClock()))

    async with running(desk) as client, asyncio.TaskGroup() as group:
        asked = group.create_task(client.ask(asking().build()))
        await started.wait()
        wanted = AddHalt(HaltScope.AGENT, "adviser-1")
        await execute_command(board, "default", wanted, by="ann", why="odd", at=START)
        async with asyncio.timeout(1):
            answer = await asked

    assert isinstance(answer, LLMInteraction)
    assert answer.result.failure is not None
    assert (answer.result.failure.category, answer.result.in_doubt) == (FailureKind.HALTED, True)
    assert len(await events(desk, "operator.commanded")) == 1


async def test_last_status_reports_pool_end() -> None:
    statuses = MemoryStatusFeed()
    desk = gateway([GOOD], limits=[tenant(10**12)])
    desk = with_pool(desk, upkeep=upkeep(desk, statuses=statuses))

    async with asyncio.timeout(5), running(desk) as client:
        await client.ask(asking().build())

    (last,) = await statuses.read("default")
    assert (last.is_running, last.calls.admitted, last.calls.in_flight) == (False, 1, 0)


class FullForEvents(MemoryInteractionStore):
    """A log that has no room for events, from some moment on."""

    full = False

    async def record(self, event: Event) -> int:
        if self.full:
            raise StoreError(Path("log.jsonl"), "no space left on the device")
        return await super().record(event)


@pytest.mark.parametrize("when", ["at the start", "later"])
async def test_unrecordable_command_stops_the_pool(when: str) -> None:
    board, store = MemoryControlStore(), FullForEvents()
    desk = gateway([GOOD], store=store)
    desk = with_pool(desk, upkeep=upkeep(desk, board=board, wall=SystemClock()))
    wanted = AddHalt(HaltScope.AGENT, "adviser-1")
    store.full = True
    if when == "at the start":
        await execute_command(board, "default", wanted, by="ann", why="odd", at=START)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        run = group.create_task(_ends_with_the_log(desk))
        if when == "later":
            await asyncio.sleep(0)
            await execute_command(board, "default", wanted, by="ann", why="odd", at=START)

    assert run.result() == "no space left on the device"


async def _ends_with_the_log(desk: MemoryGateway) -> str:
    with pytest.raises(StoreError) as caught:
        await desk.pool.run()
    return caught.value.reason


async def test_housekeeping_error_is_logged_and_survived() -> None:
    class Broken(MemoryControlStore):
        looks = 0
        has_gone_on = asyncio.Event()

        async def read(self, tenant: str) -> TenantControls:
            self.looks += 1
            if self.looks > 8:
                self.has_gone_on.set()
            if self.looks > 2:
                raise RuntimeError("a bug in an adapter")
            return await super().read(tenant)

    board = Broken()
    desk = gateway([GOOD])
    desk = with_pool(desk, upkeep=upkeep(desk, board=board))

    with capture_logs() as said:
        async with asyncio.timeout(5), running(desk) as client:
            await board.has_gone_on.wait()
            answer = await client.ask(asking().build())

    assert isinstance(answer, LLMInteraction)
    assert answer.result.actionable
    errors = [one for one in said if one["log_level"] == "error"]
    assert {one["event"] for one in errors} == {"controls_not_read"}
    assert "a bug in an adapter" in errors[0]["error"]


async def test_record_conflict_does_not_end_pool() -> None:
    board = MemoryControlStore()
    ordered = await execute_command(
        board, "default", AddHalt(HaltScope.AGENT, "a"), by="ann", why="odd", at=START
    )
    desk = gateway([GOOD])
    await desk.store.record(event("note", id=event_of("default", ordered.actions[-1]).id))
    desk = with_pool(desk, upkeep=upkeep(desk, board=board))

    async with asyncio.timeout(5), running(desk) as client:
        answer = await client.ask(asking().build())

    assert isinstance(answer, LLMInteraction)
    assert answer.result.actionable


async def test_unread_controls_halt_all_calls() -> None:
    class Away(MemoryControlStore):
        is_away = True
        was_read = asyncio.Event()

        async def read(self, tenant: str) -> TenantControls:
            if self.is_away:
                raise ControlsUnavailableError("the board", "connection refused")
            if tenant == "default":
                self.was_read.set()
            return await super().read(tenant)

    board, provider = Away(), ScriptedProvider([GOOD])
    desk = gateway(provider)
    desk = with_pool(desk, upkeep=upkeep(desk, board=board, wall=SystemClock()))

    async with asyncio.timeout(5), running(desk) as client:
        early = await client.ask(asking(n=1).build())
        asked_early = len(provider.requests)
        board.is_away = False
        await board.was_read.wait()
        late = await client.ask(asking(n=2).build())

    assert isinstance(early, LLMInteraction)
    assert early.result.failure is not None
    assert early.result.failure.category is FailureKind.HALTED
    assert "connection refused" in early.result.failure.description
    assert asked_early == 0
    assert isinstance(late, LLMInteraction)
    assert late.result.actionable


KNOWING = Verifier({"desk-a": (KEY,), "mallory": (OTHER_KEY,)})
MALLORY = Signer("mallory", OTHER_KEY)
FORGED = [
    pytest.param(None, EVENTS, b"junk", id="unsigned junk among the events"),
    pytest.param(None, ENVELOPES[EnvelopeWorkflow.EXECUTION], b"junk", id="unsigned junk"),
    pytest.param(None, ENVELOPES[EnvelopeWorkflow.ANALYSIS], None, id="the envelope itself, unsigned"),
    pytest.param(MALLORY, EVENTS, b"junk", id="junk of another among the events"),
    pytest.param(MALLORY, ENVELOPES[EnvelopeWorkflow.EXECUTION], b"junk", id="junk of another"),
]


@pytest.mark.parametrize(("signer", "topic", "junk"), FORGED)
async def test_forged_message_does_not_answer_call(
    signer: Signer | None, topic: Topic[Any], junk: bytes | None
) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedProvider):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            started.set()
            await go.wait()
            return await super().complete(request)

    desk = with_pool(gateway(Slow([GOOD])), verifier=KNOWING)
    envelope = asking().build()
    real = envelope_message(envelope)
    forged = Message("k", junk or real.value, real.headers)
    reader = await desk.broker.subscribe([DEAD_LETTERS], "test")

    async with (
        asyncio.timeout(5),
        running(desk),
        GatewayClient(desk.broker, name="other", signer=SIGNER) as client,
        asyncio.TaskGroup() as group,
    ):
        asked = group.create_task(client.ask(envelope))
        await started.wait()
        await desk.broker.publish(topic, forged if signer is None else signer.sign(forged))
        letter = read_dead_letter((await reader.take()).message)
        go.set()

    assert isinstance(asked.result(), LLMInteraction)
    if signer is None:
        assert (letter.reason, letter.envelope_id, letter.trace_id) == ("signature", "", "")


async def test_refused_event_letter_names_no_call() -> None:
    desk = with_pool(gateway([]))
    refused = event_message(event("operator.commanded", id="the-id-of-a-call"))
    await desk.broker.publish(EVENTS, refused)
    reader = await desk.broker.subscribe([DEAD_LETTERS], "test")

    async with asyncio.timeout(5), running(desk):
        letter = read_dead_letter((await reader.take()).message)

    assert (letter.reason, letter.envelope_id, letter.trace_id) == ("not_allowed", "", "")
    assert letter.message() == refused
