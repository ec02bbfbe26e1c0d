"""Which replies a client believes: at its own address, signed as its envelopes are, to a call of its own."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import dead_letter_message, envelope_message, event_message, reply_message
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.signing import Signer, Verifier
from agentic_trading.bus.topic import ENVELOPES, REPLIES, DeadLetter
from agentic_trading.client.gateway import GatewayClient, GatewayReply
from agentic_trading.llm import LLMEnvelope, LLMInteraction, NoDecision
from agentic_trading.llm.providers.offline import ScriptedProvider
from tests.build import event, interaction
from tests.gateway import GOOD, START, MemoryGateway, asking, gateway
from tests.worker.running import running
from tests.worker.ticking import with_pool

SIGNER, OTHER = Signer("desk-a", b"k" * 32), Signer("desk-b", b"o" * 32)
ANOTHER_KEY = Signer("desk-a", b"x" * 32)
VERIFIER = Verifier({"desk-a": (b"x" * 32, b"k" * 32), "desk-b": (b"o" * 32,)})


def proving() -> MemoryGateway:
    """Return a gateway that wants a proof of who sends; desk-a has two keys."""
    return with_pool(gateway(lambda _request: GOOD), verifier=VERIFIER)


@asynccontextmanager
async def asked(
    envelope: LLMEnvelope, signer: Signer | None = SIGNER
) -> AsyncGenerator[tuple[GatewayClient, MemoryBroker, "asyncio.Task[GatewayReply]"]]:
    """Give a client whose call is pending; no worker takes it."""
    broker = MemoryBroker()
    async with GatewayClient(broker, signer=signer) as client, asyncio.TaskGroup() as group:
        task = group.create_task(client.ask(envelope))
        await asyncio.sleep(0)
        yield client, broker, task


async def test_same_name_clients_do_not_share_answers() -> None:
    provider = ScriptedProvider(lambda request: f'{{"action":"buy","size":{request.envelope.context["n"]}}}')
    desk = gateway(provider)

    async with (
        running(desk),
        GatewayClient(desk.broker, name="same") as one,
        GatewayClient(desk.broker, name="same") as other,
        asyncio.TaskGroup() as group,
    ):
        tasks = [group.create_task((one, other)[n % 2].ask(asking(n=n).build())) for n in range(8)]

    answers = [task.result() for task in tasks]
    assert [isinstance(each, LLMInteraction) and each.result.parsed_output["size"] for each in answers] == [
        *range(8)
    ]
    assert (one.ignored_replies, other.ignored_replies) == ({}, {})
    assert one.address != other.address


async def test_shared_envelope_runs_once_for_both_clients() -> None:
    provider = ScriptedProvider([GOOD])
    desk = gateway(provider)
    envelope = asking().build()

    async with running(desk) as one, GatewayClient(desk.broker) as other, asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.ask(envelope)) for client in (one, other)]

    first, second = (task.result() for task in tasks)
    assert isinstance(first, LLMInteraction)
    assert first == second
    assert len(provider.requests) == 1


async def test_kept_answer_reaches_next_client() -> None:
    provider = ScriptedProvider([GOOD])
    desk = gateway(provider)
    envelope = asking().build()

    async with GatewayClient(desk.broker, reply_timeout_s=0.01) as gone:
        unanswered = await gone.ask(envelope)
    async with running(desk) as client:
        answer = await client.ask(envelope)

    assert isinstance(unanswered, NoDecision)
    assert unanswered.reason.recoverable
    assert isinstance(answer, LLMInteraction)
    assert answer.result.actionable
    assert len(provider.requests) == 1


async def test_only_asked_envelope_is_replied_to() -> None:
    desk = gateway(["no json", GOOD, GOOD])

    async with running(desk) as client:
        await client.submit(asking(n=1).build())
        answer = await client.ask(asking(n=2).build())

    assert isinstance(answer, LLMInteraction)
    published = desk.broker.statistics().published
    assert published[REPLIES.name] == 1


@pytest.mark.parametrize("signer", [SIGNER, ANOTHER_KEY, OTHER], ids=["old key", "new key", "other"])
async def test_reply_is_signed_with_client_key(signer: Signer) -> None:
    desk = proving()

    async with (
        asyncio.timeout(5),
        running(desk),
        GatewayClient(desk.broker, name="signs", signer=signer) as client,
    ):
        heard = await desk.broker.replies(client.address)
        answer = await client.ask(asking().build())

    assert isinstance(answer, LLMInteraction)
    assert client.ignored_replies == {}
    assert signer.has_signed((await heard.take()).message)


@pytest.mark.parametrize(
    "forger", [None, OTHER, ANOTHER_KEY, Signer("desk-b", b"k" * 32)],
    ids=["unsigned", "another principal", "another key", "another name"],
)  # fmt: skip
async def test_wrongly_signed_reply_is_ignored_and_counted(
    forger: Signer | None,
) -> None:
    envelope = asking().build()
    forged, real = (interaction(envelope=envelope, raw_output=text) for text in ("forged", GOOD))

    async with asked(envelope) as (client, broker, task):
        message = reply_message(forged, client.address, final=True)
        await broker.publish(REPLIES, message if forger is None else forger.sign(message))
        letter = letter_of(envelope_message(envelope), "decode", envelope.envelope_id)
        message = dead_letter_message(letter, address=client.address)
        await broker.publish(REPLIES, message if forger is None else forger.sign(message))
        await broker.publish(REPLIES, SIGNER.sign(reply_message(real, client.address, final=True)))

    assert task.result() == real
    assert client.ignored_replies == {"signature": 2}


async def test_reply_signed_for_other_address_is_ignored() -> None:
    envelope = asking().build()
    real = interaction(envelope=envelope)

    async with asked(envelope) as (client, broker, task):
        stolen = SIGNER.sign(reply_message(real, "elsewhere", final=True))
        await broker.publish(REPLIES, Message(client.address, stolen.value, stolen.headers))
        await broker.publish(REPLIES, SIGNER.sign(reply_message(real, client.address, final=True)))

    assert task.result() == real
    assert client.ignored_replies == {"signature": 1}


async def test_unexpected_reply_is_ignored_and_counted() -> None:
    envelope = asking().build()
    other = envelope.model_copy(update={"instructions": "Advise otherwise."})  # under the same id
    real = interaction(envelope=envelope)

    async with asked(envelope, None) as (client, broker, task):
        address = client.address
        for foreign in (interaction(envelope=asking(n=2).build()), interaction(envelope=other)):
            await broker.publish(REPLIES, reply_message(foreign, address, final=True))
        claims = reply_message(real, address, final=True).headers  # its hash, over another envelope's answer
        await broker.publish(REPLIES, Message(address, interaction(envelope=other).wire, claims))
        fact = event_message(event())
        await broker.publish(REPLIES, Message(address, fact.value, fact.headers))
        letter = letter_of(envelope_message(other), "id_conflict", other.envelope_id)
        await broker.publish(REPLIES, dead_letter_message(letter, address=address))
        await broker.publish(REPLIES, reply_message(real, address, final=True))

    assert task.result() == real
    assert client.ignored_replies == {"unexpected": 4, "kind": 1}


async def test_reply_forced_by_other_principal_is_ignored() -> None:
    """Another principal sends what it can read of a call, and asks for the replies at that call's address."""
    desk = proving()
    envelope = asking().build()

    async with (
        asyncio.timeout(5),
        running(desk),
        GatewayClient(desk.broker, name="victim", signer=SIGNER, reply_timeout_s=0.2) as victim,
        asyncio.TaskGroup() as group,
    ):
        heard = await desk.broker.replies(victim.address)
        copied = envelope_message(envelope, reply_to=victim.address)
        await desk.broker.publish(ENVELOPES[envelope.workflow], OTHER.sign(copied))
        await heard.take()
        asked_ = group.create_task(victim.ask(envelope))

    assert isinstance(asked_.result(), LLMInteraction)
    assert victim.ignored_replies == {"signature": 1}


async def test_changed_reply_address_invalidates_signature() -> None:
    desk = proving()
    envelope = asking().build()
    signed = SIGNER.sign(envelope_message(envelope, reply_to="mine"))
    turned = Message(signed.key, signed.value, {**signed.headers, "at_reply_to": "thief"})
    thief = await desk.broker.replies("thief")
    await desk.broker.publish(ENVELOPES[envelope.workflow], turned)

    async with asyncio.timeout(5), running(desk):
        letter = (await thief.take()).message

    assert letter.headers["ce_subject"] == "signature"
    assert [entry async for entry in desk.store.scan()] == []


def letter_of(message: Message, reason: str, envelope_id: str) -> DeadLetter:
    delivery = Delivery("llm.envelopes.analysis", 7, message, 1)
    return DeadLetter.of(delivery, reason=reason, detail="", time=START, envelope_id=envelope_id)
