"""Connections to Kafka: addresses, security, time limits, and the translation of client errors."""

import asyncio
import re
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import Any, Final, Literal

from aiokafka import codec
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.producer.message_accumulator import MessageAccumulator

from agentic_trading.bus.errors import BusAddressError, BusError, BusUnavailableError, TopicSetupError
from agentic_trading.bus.topic import CREATE, MAX_MESSAGE_BYTES
from agentic_trading.files import read_file

CLOSE_S: Final = 2.0
"""How long a Kafka client may take to close. Its own close waits without limit for a server that is gone."""

_ADDRESS: Final = re.compile(r"(?:[\w.-]+|\[[\da-fA-F:]+\]):\d{1,5}", re.ASCII)


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """Encryption and authentication. Creating an instance reads its files.

    Connections use TLS 1.2 or newer, and the server's name is checked. The repr does not show the password.

    Attributes:
        ca_file: The authorities for the servers' certificates. The default is the system's.
        certificate_file: This client's certificate (PEM).
        key_file: The key of the certificate (PEM).
        username: The user name. With it, the client logs in by `mechanism`.
        password: The password of the user.
        mechanism: The SASL mechanism.
        context: The TLS context that was created from the files.

    Raises:
        ValueError: If user name and password, or certificate and key, do not go together.
        OSError: If a file cannot be read.

    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = "SCRAM-SHA-512"
    context: SSLContext = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if bool(self.username) != bool(self.password):
            raise ValueError("username and password go together. Set both or neither.")
        if self.key_file is not None and self.certificate_file is None:
            raise ValueError("key_file is given without its certificate_file. Set both or neither.")
        for file in (self.ca_file, self.certificate_file, self.key_file):
            if file is not None:
                read_file(file)  # OpenSSL would wait for a FIFO without limit
        context = create_default_context(cafile=self.ca_file)
        if self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file)
        object.__setattr__(self, "context", context)

    def client_options(self) -> Mapping[str, Any]:
        """Return the security options of a Kafka client."""
        if not self.username:
            return {"security_protocol": "SSL", "ssl_context": self.context}
        return {
            "security_protocol": "SASL_SSL",
            "ssl_context": self.context,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
        }


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The settings of a broker on Kafka. Times are in seconds.

    Attributes:
        bootstrap_servers: `HOST:PORT`. Separate several servers by commas.
        namespace: The prefix of the bus's topics and groups, followed by a dot. Buses with different
            namespaces can share servers.
        client_id: The client's name in the servers' logs.
        member: A name that this process keeps across restarts, and that no other process has. A restart
            within `session_s` then moves no partition. Without it, a reader leaves its group when it closes.
        max_message_bytes: The size limit of a message value, on a topic whose `room` is 1.
        publish_s: How long publishing may take.
        connect_s: How long connecting and queries may take.
        session_s: How long a reader counts as alive after its last heartbeat.
        drain_s: How long deliveries in flight may take when partitions are given up. A reader that joins the
            group waits as long.
        commit_every_s: The interval in which finished messages are committed.
        buffer: The number of unfinished messages of a topic at which fetching pauses, until half of them are
            finished.
        security: Encryption and authentication. Without it, connections are not encrypted and there is no
            login.

    Raises:
        ValueError: If a setting is out of range.

    """

    bootstrap_servers: str
    namespace: str = ""
    client_id: str = "agentic-trading"
    member: str = ""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    publish_s: float = 10.0
    connect_s: float = 10.0
    session_s: float = 15.0
    drain_s: float = 10.0
    commit_every_s: float = 0.2
    buffer: int = 256
    security: KafkaSecurity | None = None

    def __post_init__(self) -> None:
        if not self.bootstrap_servers:
            raise ValueError("bootstrap_servers is empty. Allowed: HOST:PORT, several separated by commas.")
        for name in ("max_message_bytes", "buffer"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}. Allowed: 1 or more.")
        for name in ("publish_s", "connect_s", "session_s", "drain_s", "commit_every_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}. Allowed: more than 0.")

    def full_name(self, name: str) -> str:
        """Return the name of a topic or group on the servers."""
        return f"{self.namespace}.{name}" if self.namespace else name

    def plain_name(self, full: str) -> str:
        """Return the bus's name of a topic on the servers."""
        return full.removeprefix(f"{self.namespace}.") if self.namespace else full

    def client_options(self) -> Mapping[str, Any]:
        """Return the options of every Kafka client."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": self.client_id,
            "request_timeout_ms": round(1000 * max(self.publish_s, self.connect_s)),
            "metadata_max_age_ms": 60_000,  # new partitions are seen within a minute
            **(self.security.client_options() if self.security is not None else {}),
        }


def settings_of(url: str, **settings: Any) -> KafkaSettings:
    """Return the settings of the bus at `kafka://HOST:PORT`.

    Separate several servers by commas. Raises `BusAddressError` for any other URL.
    """
    scheme, _, servers = url.partition("://")
    if scheme != "kafka" or not all(_ADDRESS.fullmatch(server) for server in servers.split(",")):
        raise BusAddressError(url)
    return KafkaSettings(servers, **settings)


def installed_codec() -> str:
    """Return the best compression whose library is installed."""
    for name, is_here in (("zstd", codec.has_zstd), ("lz4", codec.has_lz4), ("snappy", codec.has_snappy)):
        if is_here():
            return name
    return "gzip"


def bus_error(e: Exception, settings: KafkaSettings, doing: str, topic: str = "") -> BusError:
    """Return the `BusError` for a client error that was raised while `doing` something, with `topic`."""
    match e:
        case UnknownTopicOrPartitionError():
            return TopicSetupError(topic, "does not exist", CREATE)
        case TopicAuthorizationFailedError():
            return TopicSetupError(topic, "may not be used by this client", "Allow it in the server's ACL")
        case TimeoutError():
            return BusUnavailableError(settings.bootstrap_servers, f"{doing} took too long")
        case KafkaConnectionError() if "bootstrap" in str(e):  # its text would show socket objects
            return BusUnavailableError(settings.bootstrap_servers, f"{doing} failed: no Kafka answers")
        case KafkaError():  # its text already begins with its class name
            return BusUnavailableError(settings.bootstrap_servers, f"{doing} failed: {e}")
        case _:
            return BusUnavailableError(settings.bootstrap_servers, f"{doing} failed: {type(e).__name__}: {e}")


async def start_within(client: Any, settings: KafkaSettings, *, doing: str) -> None:
    """Start a Kafka client. Raises `BusUnavailableError` if no server answers in time.

    After an error, the client is closed.
    """
    try:
        async with asyncio.timeout(settings.connect_s):
            await client.start()
    except (KafkaError, TimeoutError, OSError) as e:
        await close_within(client)
        raise bus_error(e, settings, doing) from e
    except BaseException:
        await close_within(client)
        raise


async def close_within(client: Any, seconds: float = CLOSE_S) -> None:
    """Close a Kafka client. After `seconds`, close its sockets and cancel its tasks.

    Otherwise a client would wait for a server that is gone, and a producer would keep sending messages that
    were given up. They could arrive after those of the next producer.
    """
    stop = client.close if isinstance(client, AIOKafkaAdminClient) else client.stop
    if await ended_within(stop(), seconds):
        return
    parts = [part for part in vars(client).values() if hasattr(part, "__dict__")]
    for part in parts:
        if isinstance(part, AIOKafkaClient):
            await ended_within(part.close(), 1.0)
        if isinstance(part, MessageAccumulator):
            part.fail_all(KafkaConnectionError("the producer was closed"))
    tasks = {each for part in parts for each in vars(part).values() if isinstance(each, asyncio.Task)}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=1.0)


async def ended_within(ending: Awaitable[Any], seconds: float) -> bool:
    """Return whether `ending` ended within `seconds`.

    Its errors and its own cancellation are suppressed.
    """

    async def quietly() -> None:
        with suppress(Exception):
            await ending

    # A separate task, because a client raises a cancellation of its own when its server is gone. Awaited in
    # place, it would look like a cancellation of the caller.
    async with asyncio.TaskGroup() as group:
        task = group.create_task(quietly(), name="kafka-close")
        done, _ = await asyncio.wait([task], timeout=seconds)
        task.cancel()
    return bool(done) and not task.cancelled()
