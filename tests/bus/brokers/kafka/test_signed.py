"""Principals on a real Kafka: what is forged is set aside or refused, its sender hears of it, and keys are exchanged in between."""

import asyncio
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest

from agentic_trading.bus.brokers.kafka.admin import create_topics, planned_topics
from agentic_trading.bus.codec import read_dead_letter, reply_head, reply_message
from agentic_trading.bus.signing import Signer, Verifier, read_keys, write_key
from agentic_trading.bus.topic import DEAD_LETTERS, REPLIES, Broker
from agentic_trading.client.gateway import GatewayClient, GatewayReply
from agentic_trading.governance.policy import Policy, Principal
from agentic_trading.llm import LLMInteraction, NoDecision
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.platform.signing_keys import PrincipalKeys
from agentic_trading.services.local import KafkaService
from tests import kafka_server
from tests.build import interaction
from tests.gateway import GOOD, asking, gateway
from tests.worker.running import running
from tests.worker.ticking import Slow, Steps, with_pool

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)

DESK, THIRD = Signer("desk-a", b"k" * 32), Signer("desk-b", b"o" * 32)
FORGER = Signer("desk-a", b"f" * 32)
VERIFIER = Verifier({"desk-a": (b"k" * 32,), "desk-b": (b"o" * 32,)})
MAY = Principal(
    tenants=("acme",), agents=("adviser-*",), workflows=(EnvelopeWorkflow.ANALYSIS,), models=("scripted/*",)
)
POLICY = Policy({"desk-a": MAY, "desk-b": MAY})


@pytest.fixture
def servers(own_kafka: KafkaService) -> str:
    """Return the address of a Kafka of the test's own."""
    return own_kafka.bootstrap_servers


@pytest.fixture
def keys(tmp_path: Path) -> PrincipalKeys:
    """Return the keys in a folder where desk-a has one."""
    folder = tmp_path / "principals"
    write_key(folder, "desk-a")
    return PrincipalKeys(folder, partial(read_keys, folder))


async def with_topics(servers: str) -> None:
    await create_topics(kafka_server.settings(servers), planned_topics(partitions=2))


async def asked(
    broker: Broker,
    signer: Signer,
    workflow: str = "analysis",
    *,
    tenant: str = "acme",
    agent: str = "adviser-1",
) -> GatewayReply:
    """Return the answer to an envelope of a client of its own."""
    envelope = asking(workflow).with_tenant(tenant).with_agent(agent).build()
    async with GatewayClient(broker, signer=signer, reply_timeout_s=30) as client:
        return await client.ask(envelope)


async def letters_of(broker: Broker) -> list[tuple[str, str, str]]:
    """Return the reason of each dead letter, and the ids that it names."""
    found = [read_dead_letter(delivery.message) async for delivery in broker.scan(DEAD_LETTERS)]
    return sorted((each.reason, each.envelope_id, each.trace_id) for each in found)


async def test_forged_messages_are_dead_lettered_or_refused(
    servers: str,
) -> None:
    await with_topics(servers)
    async with (
        asyncio.timeout(60),
        aclosing(kafka_server.broker(servers)) as broker,
        aclosing(kafka_server.broker(servers)) as other,
    ):
        desk = with_pool(
            gateway(lambda _request: GOOD, broker=broker, policy=POLICY), verifier=VERIFIER, policy=POLICY
        )
        async with running(desk):
            right = await asked(other, DESK)
            sender = await asked(other, FORGER)
            tenant = await asked(other, DESK, tenant="other")
            agent = await asked(other, DESK, agent="cmt-1")
            workflow = await asked(other, DESK, "planning")
        letters = await letters_of(broker)

    assert isinstance(right, LLMInteraction)
    assert right.result.actionable
    for answer, why in ((sender, "dead letter: signature: "), (tenant, "dead letter: not_allowed: ")):
        assert isinstance(answer, NoDecision)
        assert why in answer.reason.description
    assert letters == [("not_allowed", "", ""), ("signature", "", "")]
    for answer, why in (
        (agent, "agent 'cmt-1'; allowed: adviser-*"),
        (workflow, "workflow 'planning'; allowed: ana"),
    ):
        assert isinstance(answer, LLMInteraction)
        assert answer.result.failure is not None
        assert answer.result.failure.category == "not_allowed"
        assert why in answer.result.failure.description
        assert answer.result.cost_nusd == 0
    records = [entry.record async for entry in desk.store.scan()]
    tenants = {each.envelope.tenant_id for each in records if isinstance(each, LLMInteraction)}
    assert tenants == {"acme"}  # nothing of a forged one is on record
    assert desk.ledger.statistics().reserved == 1


async def test_reply_is_signed_and_forgeries_are_ignored(
    servers: str,
) -> None:
    await with_topics(servers)
    provider = Slow()
    async with (
        asyncio.timeout(60),
        aclosing(kafka_server.broker(servers)) as broker,
        aclosing(kafka_server.broker(servers)) as third,
        GatewayClient(broker, signer=DESK, reply_timeout_s=30) as client,
    ):
        desk = with_pool(gateway(provider, broker=broker), verifier=VERIFIER)
        heard = await third.replies(client.address)
        async with running(desk), asyncio.TaskGroup() as group:
            envelope = asking().build()
            answer = group.create_task(client.ask(envelope))
            await provider.started.wait()
            lie = reply_message(
                interaction(envelope=envelope, raw_output='{"action":"sell","size":9}'),
                client.address,
                final=True,
            )
            await third.publish_all(REPLIES, [lie, THIRD.sign(lie), FORGER.sign(lie)])
            forged = [(await heard.take()).message for _ in range(3)]
            provider.go.set()
        reply = (await heard.take()).message

    believed = answer.result()
    assert isinstance(believed, LLMInteraction)
    assert [DESK.has_signed(each) for each in forged] == [False] * 3
    assert (DESK.has_signed(reply), reply_head(reply).is_final) == (True, True)
    assert believed.result.raw_output == GOOD
    assert client.ignored_replies == {"signature": 3}


async def test_key_rotation_keeps_call_in_flight(servers: str, keys: PrincipalKeys, tmp_path: Path) -> None:
    await with_topics(servers)
    clock, provider, folder = Steps(), Slow(), tmp_path / "principals"
    old = next(iter(keys.secrets))
    desk_a = keys.signer("desk-a")
    async with (
        asyncio.timeout(60),
        aclosing(kafka_server.broker(servers)) as broker,
        keys.followed(clock, lambda: None),
        GatewayClient(broker, signer=desk_a, reply_timeout_s=30) as client,
    ):
        desk = with_pool(gateway(provider, broker=broker), verifier=keys.verifier)
        async with running(desk), asyncio.TaskGroup() as group:
            begun = group.create_task(client.ask(asking(n=1).build()))
            await provider.started.wait()
            new = await asyncio.to_thread(write_key, folder, "desk-a", add=True)
            await clock.step()
            (folder / "desk-a" / "1").rename(folder / "desk-a" / "3")  # behind the new one, which now signs
            await clock.step()
            provider.go.set()
            between = await client.ask(asking(n=2).build())
            await begun
            (folder / "desk-a" / "3").unlink()
            await clock.step()
            after = await client.ask(asking(n=3).build())
            removed = await asked(broker, Signer("desk-a", old), tenant="default")

    answers = [begun.result(), between, after]
    assert [isinstance(each, LLMInteraction) and each.result.actionable for each in answers] == [True] * 3
    assert isinstance(removed, NoDecision)
    assert "its signature does not match the keys of 'desk-a'" in removed.reason.description
    assert [*keys.secrets] == [new.read_bytes().strip()]
    assert client.ignored_replies == {}
