"""Encrypted connections, users and passwords, with a real Redis and an authority of the test's own."""

import shutil
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from structlog.testing import capture_logs

from agentic_trading.bus.brokers.redis.redis import RedisBusSettings, redis_settings_of
from agentic_trading.bus.errors import BusAddressError, BusSettingsError, BusUnavailableError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import REPLIES, Topic
from agentic_trading.llm.event import Event
from agentic_trading.services.local import free_port
from tests import redis_bus
from tests.redis_server import SAFE, RealServer, own_server

PASSWORD = "a-password-that-nothing-shows"  # noqa: S105 - of a server that lives as long as a test
TOPIC = Topic("events", Event)


async def goes_through(url: str, **changes: Any) -> bytes:
    """Publish, read and finish a message, and a reply."""
    await redis_bus.make_topics(url, "agentic", [TOPIC, REPLIES], **changes)
    async with aclosing(redis_bus.broker(url, "agentic", **changes)) as broker:
        replies = await broker.replies("address")
        await broker.publish(REPLIES, Message("address", b"", {}))
        await replies.take()
        await broker.publish(TOPIC, Message("a", b"1", {}))
        reader = await broker.subscribe([TOPIC], "group")
        delivery = await reader.take()
        await reader.ack(delivery)
        await reader.aclose()
        assert [each async for each in broker.scan(TOPIC)] == []
        return delivery.message.value


@pytest.fixture
def with_user(own_redis: RealServer) -> str:
    """Return the address of a server for a user who has the keys of the bus, and no others."""
    with Redis.from_url(own_redis.url) as redis:
        redis.execute_command(
            "ACL", "SETUSER", "worker", "on", f">{PASSWORD}", "~{agentic:bus}*", "-@all", "+@connection", "+info",
            "+config|get", "+evalsha", "+eval", "+@stream", "+@hash", "+@sortedset", "+expire", "+time",
        )  # fmt: skip
        redis.execute_command("ACL", "SETUSER", "blind", "on", ">p", "~*", "+@all", "-config")
    return own_redis.url.replace("://", f"://worker:{PASSWORD}@")


async def test_user_limited_to_bus_keys_suffices(with_user: str) -> None:
    assert await goes_through(with_user) == b"1"
    with pytest.raises(BusUnavailableError, match="NoPermissionError"):
        await redis_bus.make_topics(with_user, "other", [TOPIC])


async def test_wrong_password_is_refused_and_hidden(with_user: str) -> None:
    wrong = with_user.replace(PASSWORD, f"{PASSWORD}-wrong")
    settings = redis_bus.settings(wrong, "agentic")
    with capture_logs() as logs, pytest.raises(BusUnavailableError, match="failed: AuthenticationError") as e:
        await goes_through(wrong)

    shown = f"{e.value} {settings} {logs}"
    assert PASSWORD not in shown
    assert settings.server in str(e.value)


async def test_unreadable_server_settings_are_refused(own_redis: RealServer, with_user: str) -> None:
    blind = with_user.replace(f"worker:{PASSWORD}", "blind:p")
    with pytest.raises(BusSettingsError, match="Allowed: a user that may run INFO and CONFIG GET"):
        await goes_through(blind)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://worker:{PASSWORD}@", f"redis://worker:{PASSWORD}@host:port", f"redis://:{PASSWORD}@host/0?timeout=1",
        f"redis://w:{PASSWORD}@host/bus", f"rediss://w:{PASSWORD}@host:0", f"http://w:{PASSWORD}@host", "unix://",
        f"redis://w:{PASSWORD}@@h@/0",
    ],
)  # fmt: skip
def test_invalid_redis_url_error_hides_password(url: str) -> None:
    with pytest.raises(BusAddressError, match=r"Allowed: kafka://HOST:PORT .*, redis://HOST:PORT/DB") as e:
        redis_settings_of(url)

    assert PASSWORD not in str(e.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("namespace", "a{b"), ("partitions", 0), ("max_backlog", 0), ("lease_s", 0.0), ("drain_s", -1.0)],
)
def test_invalid_bus_setting_names_allowed_values(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*\\. Allowed: "):
        RedisBusSettings("redis://host", **{name: value})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def encrypted(certificates: Path) -> Iterator[int]:
    """Give the port of a server that is spoken to over TLS."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not on PATH: the wheel with a server of its own has no TLS")
    files = {"cert-file": "server.pem", "key-file": "server.key", "ca-cert-file": "ca.pem"}
    options = [word for name, file in files.items() for word in (f"--tls-{name}", str(certificates / file))]
    port = free_port()
    with own_server("redis", options=(*SAFE, *options, "--tls-auth-clients", "no", "--tls-port", str(port))):
        yield port


async def test_tls_with_own_authority_delivers_messages(encrypted: int, certificates: Path) -> None:
    url = f"rediss://127.0.0.1:{encrypted}/0"

    assert await goes_through(url, ca_file=certificates / "ca.pem") == b"1"


@pytest.mark.parametrize(
    ("host", "authority", "why"),
    [
        ("127.0.0.1", "", "CERTIFICATE_VERIFY_FAILED"),
        ("localhost", "ca.pem", "CERTIFICATE_VERIFY_FAILED.*mismatch"),
    ],
    ids=["unknown authority", "other name"],
)
async def test_untrusted_server_certificate_is_refused(
    encrypted: int, certificates: Path, host: str, authority: str, why: str
) -> None:
    ca_file = certificates / authority if authority else None

    with pytest.raises(BusUnavailableError, match=why):
        await goes_through(f"rediss://{host}:{encrypted}/0", ca_file=ca_file)


async def test_unix_socket_delivers_messages(tmp_path: Path) -> None:
    socket = tmp_path / "redis.sock"
    with own_server("valkey", options=(*SAFE, "--unixsocket", str(socket))):
        assert await goes_through(f"unix://{socket}") == b"1"
