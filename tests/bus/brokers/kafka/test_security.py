"""Encrypted connections and passwords, with a real Kafka and an authority of the test's own."""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from agentic_trading.bus.brokers.kafka.broker import KafkaBroker
from agentic_trading.bus.brokers.kafka.connection import KafkaSecurity
from agentic_trading.bus.errors import BusUnavailableError, TopicSetupError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, Topic
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.event import Event
from agentic_trading.services.local import KafkaService
from tests import kafka_server

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)
PASSWORD = "a-password-that-nothing-shows"  # noqa: S105 - of a server that lives as long as a test
TOPIC = Topic("events", Event)


@dataclass(frozen=True)
class Secured:
    """Where a server is that asks for TLS and a password, and one that asks for a client's certificate."""

    password: str
    certificate: str
    plain: str
    folder: Path


@pytest.fixture(scope="module")
def secured(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    with kafka_server.own_server(
        tmp_path_factory.mktemp("kafka"),
        listeners={"LOGIN": "SASL_SSL", "MUTUAL": "SSL"},
        users={"worker": PASSWORD},
        settings={
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": certificates / "server-store.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": certificates / "ca.pem",
            "listener.name.mutual.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.login.scram-sha-512.sasl.jaas.config": login,
        },
    ) as server:
        login_at, mutual_at = server.address_of("LOGIN"), server.address_of("MUTUAL")
        yield Secured(login_at, mutual_at, server.bootstrap_servers, certificates)


async def goes_through(servers: str, security: KafkaSecurity) -> bytes:
    """Publish and read a message."""
    async with aclosing(kafka_server.broker(servers, security=security, connect_s=5.0)) as broker:
        await broker.publish(TOPIC, Message("a", b"1", {}))
        reader = await broker.subscribe([TOPIC], f"group-{servers}")
        return (await reader.take()).message.value


async def test_tls_with_password_delivers_messages(secured: Secured) -> None:
    await kafka_server.make_topics(secured.plain, [TOPIC])
    security = KafkaSecurity(ca_file=secured.folder / "ca.pem", username="worker", password=PASSWORD)

    assert await goes_through(secured.password, security) == b"1"


async def test_tls_with_client_certificate_delivers_messages(secured: Secured) -> None:
    await kafka_server.make_topics(secured.plain, [TOPIC])
    folder = secured.folder
    security = KafkaSecurity(folder / "ca.pem", folder / "client.pem", folder / "client.key")

    assert await goes_through(secured.certificate, security) == b"1"


async def test_wrong_password_is_refused_and_hidden(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = f"{PASSWORD}-wrong"
    security = KafkaSecurity(ca_file=secured.folder / "ca.pem", username="worker", password=wrong)

    with pytest.raises(BusUnavailableError, match=r"took too long|failed") as refused:
        await goes_through(secured.password, security)

    shown = f"{refused.value} {security} {kafka_server.settings('a:1', security=security)} {caplog.text}"
    assert PASSWORD not in shown


async def test_unknown_certificate_authority_is_refused(secured: Secured) -> None:
    with pytest.raises(BusUnavailableError):
        await goes_through(secured.password, KafkaSecurity(username="worker", password=PASSWORD))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"username": "worker"}, "username and password go together"),
        ({"password": "secret"}, "username and password go together"),
        ({"key_file": Path("key.pem")}, "key_file is given without its certificate_file"),
    ],
)
def test_incomplete_credentials_are_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KafkaSecurity(**changes)  # type: ignore[arg-type]  # on purpose


def test_tls_context_verifies_hostname() -> None:
    context = KafkaSecurity().context

    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def allow(servers: str, *rights: tuple[str, ResourceType, str, AclOperation]) -> None:
    """Allow users something on topics and groups that begin so."""
    entries = [
        AclBinding(
            kind, name, ResourcePatternType.PREFIXED, f"User:{user}", "*", operation, AclPermissionType.ALLOW
        )
        for user, kind, name, operation in rights
    ]
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.create_acls(entries).values():
        done.result(10)


@pytest.fixture
def guarded(certificates: Path, tmp_path: Path) -> Iterator[KafkaService]:
    """Give a server that lets its users do what its ACL allows: `desk` asks, `worker` answers."""
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates / "server-store.pem",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.login.scram-sha-512.sasl.jaas.config": login,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # who comes by the port without a password, which only tests have
    }
    users = dict.fromkeys(("worker", "desk", "other"), PASSWORD)
    topic, group, read, write = ResourceType.TOPIC, ResourceType.GROUP, AclOperation.READ, AclOperation.WRITE
    with kafka_server.own_server(
        tmp_path, listeners={"LOGIN": "SASL_SSL"}, users=users, settings=settings
    ) as server:
        allow(
            server.bootstrap_servers,
            ("desk", topic, "llm.envelopes.", write), ("desk", topic, "llm.", AclOperation.DESCRIBE_CONFIGS),
            ("worker", topic, "llm.envelopes.", read), ("worker", group, "workers", read),
            ("worker", topic, "llm.dead-letters", write), ("worker", topic, "llm.", AclOperation.DESCRIBE_CONFIGS),
            ("other", topic, "llm.envelopes.", write),
        )  # fmt: skip
        yield server


async def test_acl_denial_names_the_remedy(guarded: KafkaService, certificates: Path) -> None:
    plain, login_at = await asyncio.to_thread(
        lambda: (guarded.bootstrap_servers, guarded.address_of("LOGIN"))
    )
    lane = ENVELOPES[EnvelopeWorkflow.GENERAL]
    await kafka_server.make_topics(plain, [lane, DEAD_LETTERS])

    def broker(user: str) -> KafkaBroker:
        security = KafkaSecurity(ca_file=certificates / "ca.pem", username=user, password=PASSWORD)
        return kafka_server.broker(login_at, security=security)

    async with (
        aclosing(broker("desk")) as desk,
        aclosing(broker("worker")) as worker,
        aclosing(broker("other")) as other,
    ):
        await desk.publish(lane, Message("trace", b"1", {}))
        taken = await (await worker.subscribe([lane], "workers")).take()
        await worker.publish(DEAD_LETTERS, Message("trace", b"2", {}))
        with pytest.raises(
            TopicSetupError, match=r"may not be used by this client\. Allow it in the server's ACL"
        ):
            await desk.publish(DEAD_LETTERS, Message("trace", b"3", {}))
        with pytest.raises(TopicSetupError, match="Allow DescribeConfigs in the server's ACL"):
            await other.publish(lane, Message("trace", b"4", {}))

    assert taken.message.value == b"1"
