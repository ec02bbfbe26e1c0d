"""Platforms and clients on a shared bus: what keeps them from it, who serves what, and that they find each other."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from agentic_trading.bus.brokers.kafka.admin import create_topics, planned_topics
from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import envelope_message, read_dead_letter, reply_head
from agentic_trading.bus.errors import BusUnavailableError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import ENVELOPES, RECORDS, Topic, lane_topic
from agentic_trading.clock import SystemClock
from agentic_trading.governance.ledger import SENT_WITHIN
from agentic_trading.ids import random_id
from agentic_trading.llm import LLMInteraction
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.platform import (
    BusConfig,
    ConfigError,
    FallbackConfig,
    LedgerConfig,
    Platform,
    PlatformConfig,
    Ports,
    ProviderConfig,
    remote_gateway,
)
from agentic_trading.platform.check import check_platform
from agentic_trading.platform.port_adapters import broker_of
from tests import kafka_server
from tests.platform.calls import ROW, envelope, scripted
from tests.redis_server import RealServer

ON_KAFKA = pytest.mark.timeout(kafka_server.FIRST_START_S)
NOWHERE = BusConfig(url="kafka://127.0.0.1:1")


async def bus_on(servers: str, *lanes: str) -> BusConfig:
    """Return a bus of the test's own, with its topics."""
    namespace = f"bus-{random_id()}"
    topics = planned_topics(partitions=2, lanes=lanes)
    await create_topics(kafka_server.settings(servers, namespace=namespace), topics, replicas=1)
    return BusConfig(url=f"kafka://{servers}", namespace=namespace)


def problems(refused: pytest.ExceptionInfo[ConfigError]) -> list[str]:
    return [problem.place for problem in refused.value.problems]


async def test_shared_bus_workers_need_shared_ledger(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the Redis with the ledger and claims of all workers") as refused:
        async with Platform(PlatformConfig(folder=tmp_path / "log", bus=NOWHERE)):
            pass

    assert problems(refused) == ["ledger.url"]
    assert not (tmp_path / "log").exists()


async def test_shared_bus_principals_need_keys(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[principals.desk]\ntenants = ["default"]\nagents = ["*"]\nworkflows = ["general"]\nmodels = ["rules/*"]\n',
        encoding="utf-8",
    )
    config = PlatformConfig(
        bus=NOWHERE, ledger=LedgerConfig(url="redis://127.0.0.1:1"), policy=policy, sign_as="desk"
    )

    with pytest.raises(ConfigError, match="a folder with the keys of these principals") as refused:
        async with Platform(config):
            pass

    assert problems(refused) == ["principals_folder"]


class Refusing(MemoryBroker):
    """A bus that takes no records until it is told to."""

    refuses = True

    async def publish_all(self, topic: Topic[Any], messages: Sequence[Message]) -> None:
        if self.refuses and topic is RECORDS:
            raise BusUnavailableError("bus:9092", "no answer")
        await super().publish_all(topic, messages)


@pytest.mark.parametrize("ack_after", ["stream", "store", None])
async def test_answer_waits_for_stream_or_store(
    ack_after: Literal["stream", "store"] | None, tmp_path: Path
) -> None:
    broker = Refusing()
    config = PlatformConfig(folder=tmp_path, bus=NOWHERE, ack_after=ack_after)

    async with (
        asyncio.timeout(5),
        Platform(config, Ports(providers={"scripted": scripted()}, broker=broker)) as it,
    ):
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(it.ask(envelope()))
            while not (found := await it.problems()) or asked.done() is (ack_after != "store"):  # noqa: ASYNC110 - health is asked for
                await asyncio.sleep(0.01)
            broker.refuses = False
        answer = asked.result()

    assert isinstance(answer, LLMInteraction)
    assert answer.result.success
    assert "no answer" in found["stream"]
    kinds = [each.message.headers.get("ce_subject") async for each in broker.scan(RECORDS)]
    assert (kinds[0], kinds[-1], it.outbox) == ("run.started", "run.ended", None)


@pytest.mark.parametrize(
    ("mode", "sent_at", "is_answered"),
    [
        ("paper", None, False),
        ("backtest", None, True),
        ("paper", timedelta(), True),
        ("paper", -SENT_WITHIN, False),
        ("backtest", -SENT_WITHIN, False),
    ],
)
async def test_worker_refuses_old_message_unless_simulated(
    mode: Literal["paper", "backtest"], sent_at: timedelta | None, *, is_answered: bool
) -> None:
    broker, provider, now = MemoryBroker(), scripted(), SystemClock().now()
    old = envelope().model_copy(update={"created_at": now - timedelta(days=9), "as_of": now})
    message = envelope_message(old, reply_to="a-1", sent_at=None if sent_at is None else now + sent_at)
    replies = await broker.replies("a-1")

    async with (
        asyncio.timeout(5),
        Platform(PlatformConfig(mode=mode), Ports(providers={"scripted": provider}, broker=broker)),
    ):
        await broker.publish(ENVELOPES[old.workflow], message)
        reply = (await replies.take()).message

    assert reply_head(reply).is_attempt is is_answered
    assert len(provider.requests) == is_answered
    if not is_answered:
        assert read_dead_letter(reply).reason == "too_old"


@pytest.mark.parametrize(("ack_after", "is_sent"), [(None, False), ("store", True)])
async def test_log_streams_to_redis_only_if_configured(
    ack_after: Literal["store"] | None, *, is_sent: bool, tmp_path: Path
) -> None:
    broker = MemoryBroker()
    config = PlatformConfig(folder=tmp_path, bus=BusConfig(url="redis://127.0.0.1:1"), ack_after=ack_after)

    async with Platform(config, Ports(providers={"scripted": scripted()}, broker=broker)) as platform:
        assert (await platform.ask(envelope())).actionable

    assert bool([each async for each in broker.scan(RECORDS)]) is is_sent


def test_ack_after_requires_bus_with_servers() -> None:
    with pytest.raises(ConfigError, match=r'"store", but bus\.url is not set') as refused:
        PlatformConfig(ack_after="store")

    assert problems(refused) == ["ack_after"]


async def test_remote_gateway_requires_bus_with_servers() -> None:
    with pytest.raises(ConfigError, match=r"bus\.url is not set"):
        async with remote_gateway(PlatformConfig()):
            pass


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"url": "kafka://broker"}, "bus.url"),
        ({"url": "amqp://broker:1"}, "bus.url"),
        ({"username": "desk"}, "bus.password_file"),
        ({"key_file": "k.pem"}, "bus.key_file"),
        ({"namespace": "-"}, "bus.namespace"),
        ({"max_message_bytes": 0}, "bus.max_message_bytes"),
    ],
)
def test_invalid_bus_field_is_refused(fields: Mapping[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PlatformConfig.model_validate({"bus": fields})

    assert problems(refused) == [place]


@pytest.mark.parametrize(
    ("table", "url", "found"),
    [
        ("bus", "kafka://desk:sesame@broker", "a URL without a port"),
        ("bus", "kafka://a:1,b", "a URL without a port"),
        ("bus", "amqp://desk:sesame@broker:1", "a URL with the scheme amqp"),
        ("bus", "redis://host/bus", "an invalid value, hidden because it may contain a secret"),
        ("ledger", "kafka://broker:1", "a URL with the scheme kafka"),
        ("ledger", "sesame@host://", "an invalid value, hidden because it may contain a secret"),
    ],
)
def test_invalid_url_error_hides_secrets(table: str, url: str, found: str) -> None:
    with pytest.raises(ConfigError, match=f"{table}.url is {found}. Allowed: ") as refused:
        PlatformConfig.model_validate({table: {"url": url}})

    assert "sesame" not in str(refused.value)


def test_unreadable_and_invalid_files_are_distinguished(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("sesame-open-up\n", encoding="utf-8")
    logged_in: dict[str, Any] = {
        "url": "kafka://127.0.0.1:1",
        "username": "desk",
        "password_file": tmp_path / "password",
    }
    config = PlatformConfig(bus=BusConfig(**logged_in))

    broker_of(config)
    for file, problem in (
        (
            "none.pem",
            "none.pem, which cannot be read (No such file or directory). Allowed: a readable file",
        ),
        ("password", "password, which cannot be used ("),
    ):
        wrong = PlatformConfig(bus=BusConfig(**logged_in, ca_file=tmp_path / file))
        with pytest.raises(ConfigError, match=re.escape(f"code: bus.ca_file is {tmp_path}/{problem}")):
            broker_of(wrong)
        assert [each.place for each in asyncio.run(check_platform(wrong))] == ["bus.ca_file"]
    with pytest.raises(ConfigError, match=r"bus\.certificate_file is .*/password, which cannot be used \("):
        broker_of(PlatformConfig(bus=BusConfig(**logged_in, certificate_file=tmp_path / "password")))

    assert config.redaction.text("it was sesame-open-up") != "it was sesame-open-up"


def test_lane_is_a_separate_topic() -> None:
    names = [plan.name for plan in planned_topics(lanes=["gpu"])]

    assert {lane_topic(workflow, "gpu").name for workflow in ENVELOPES} < set(names)
    assert [lane_topic(workflow, "") for workflow in ENVELOPES] == list(ENVELOPES.values())


@ON_KAFKA
async def test_shared_bus_worker_answers_remote_gateways(
    tmp_path: Path, kafka_servers: str, own_redis: RealServer
) -> None:
    bus = await bus_on(kafka_servers)
    config = PlatformConfig(
        name="worker-1",
        folder=tmp_path,
        bus=bus,
        ledger=LedgerConfig(url=own_redis.url),
        providers={"scripted": ProviderConfig()},
    )

    async with (
        Platform(config, Ports(providers={"scripted": scripted()})),
        remote_gateway(PlatformConfig(bus=bus)) as one,
        remote_gateway(PlatformConfig(bus=bus)) as other,
    ):
        answers = [await gateway.ask(envelope(n)) for n, gateway in enumerate((one, other, one))]

    assert all(isinstance(answer, LLMInteraction) and answer.result.success for answer in answers)
    assert (tmp_path / "worker-1" / "interactions.jsonl").read_text("utf-8").count('"next_step":"final"') == 3


@ON_KAFKA
async def test_provider_lanes_route_envelopes_and_fallbacks(
    tmp_path: Path, kafka_servers: str, own_redis: RealServer
) -> None:
    bus, ledger = await bus_on(kafka_servers, "house"), LedgerConfig(url=own_redis.url)
    house = ProviderConfig(adapter="scripted", lane="house", models=(ROW,), options={"answers": ["{}"] * 9})
    down = ProviderConfig(adapter="openai", base_url="http://127.0.0.1:1", models=(ROW,))
    fallback = {EnvelopeWorkflow.GENERAL: FallbackConfig(to=("house/quant-7b",))}

    def worker(name: str, **providers: ProviderConfig) -> Platform:
        return Platform(
            PlatformConfig(name=name, folder=tmp_path, bus=bus, ledger=ledger, providers=providers)
        )

    asking = PlatformConfig(bus=bus, providers={"down": down, "house": house}, fallback=fallback)
    async with (
        worker("at-down", down=down),
        worker("at-house", house=house),
        remote_gateway(asking) as gateway,
    ):
        direct = await gateway.ask(envelope(1, provider="house", model="quant-7b"))
        once = RetryPolicy(max_retries=0)
        fallen = await gateway.ask_structured(
            envelope(2, provider="down", model="quant-7b", retry_policy=once)
        )

    logs = {
        name: (tmp_path / name / "interactions.jsonl").read_text("utf-8") for name in ("at-down", "at-house")
    }
    assert isinstance(direct, LLMInteraction)
    assert direct.result.success
    assert fallen.json == {}
    assert [(each.provider, each.number) for each in fallen.attempts[-1:]] == [("house", 1)]
    assert {each.provider for each in fallen.attempts[:-1]} == {"down"}
    assert fallen.attempts[-1].cost_nusd > 0
    assert '"provider":"house"' not in logs["at-down"]
    assert '"provider":"down"' not in logs["at-house"]


class Hanging(ScriptedProvider):
    """A provider that takes a request and does not answer it."""

    def __init__(self) -> None:
        super().__init__([])
        self.has_request = asyncio.Event()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.has_request.set()
        await asyncio.Event().wait()
        return await super().complete(request)


async def test_calls_past_drain_are_recorded_in_doubt(tmp_path: Path) -> None:
    hanging = Hanging()
    platform = Platform(PlatformConfig(folder=tmp_path), Ports(providers={"scripted": hanging}), drain_s=0.05)

    async with asyncio.timeout(5), platform:
        await platform.submit(envelope())
        await hanging.has_request.wait()

    [line] = [
        line
        for line in (tmp_path / "interactions.jsonl").read_text("utf-8").splitlines()
        if '"result":' in line
    ]
    assert '"category":"shutdown"' in line
    assert '"in_doubt":true' in line
