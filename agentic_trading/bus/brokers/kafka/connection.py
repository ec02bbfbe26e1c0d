"""How Kafka is reached: addresses, time limits, and what its client's errors mean here."""

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
"""How long a client of Kafka may take to close: its own close waits for ever for a server that is gone."""

_ADDRESS: Final = re.compile(r"(?:[\w.-]+|\[[\da-fA-F:]+\]):\d{1,5}", re.ASCII)


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """How servers prove who they are, and this process who it is; making one reads its files.

    Connections are encrypted (TLS 1.2 or newer), and the server's name is checked: with the authorities in `ca_file`,
    else with those of the system. `certificate_file` and `key_file` (PEM) are this client's own. With a `username` it
    logs in by `mechanism`. Nothing shows the password.
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
            raise ValueError("username and password go together; allowed are both or neither")
        if self.key_file is not None and self.certificate_file is None:
            raise ValueError("key_file is given without its certificate_file; allowed are both or neither")
        for file in (self.ca_file, self.certificate_file, self.key_file):
            if file is not None:
                read_file(file)  # OpenSSL would wait for a FIFO for ever
        context = create_default_context(cafile=self.ca_file)
        if self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file)
        object.__setattr__(self, "context", context)

    def client_options(self) -> Mapping[str, Any]:
        """Return what a client of Kafka takes of it."""
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
    """How a broker on Kafka behaves; times in seconds. Without `security` nothing is encrypted, and no one logs in.

    `bootstrap_servers` is `HOST:PORT`, several with commas between. A bus of another `namespace` on the same servers has
    topics and groups of its own: their names begin with it and a dot. `member` is a name that this process keeps over
    a restart, and no other process has: with it a restart within `session_s` moves no partition; without one a reader
    leaves its group when it closes. `drain_s` is how long work under way may take to end when partitions are given
    up: a reader that joins the group waits for as long. `buffer` is how many messages of a topic are fetched and not done
    before no more are fetched, until half of them are done.
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
            raise ValueError("bootstrap_servers is empty; allowed is HOST:PORT, several with commas between")
        for name in ("max_message_bytes", "buffer"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed is 1 and more")
        for name in ("publish_s", "connect_s", "session_s", "drain_s", "commit_every_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed is more than 0")

    def full_name(self, name: str) -> str:
        """Return the name that a topic or a group of the bus has on the servers."""
        return f"{self.namespace}.{name}" if self.namespace else name

    def plain_name(self, full: str) -> str:
        """Return the name that the bus has for a topic of these servers."""
        return full.removeprefix(f"{self.namespace}.") if self.namespace else full

    def client_options(self) -> Mapping[str, Any]:
        """Return what every client of Kafka is made with."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": self.client_id,
            "request_timeout_ms": round(1000 * max(self.publish_s, self.connect_s)),
            "metadata_max_age_ms": 60_000,  # new partitions are seen within a minute
            **(self.security.client_options() if self.security is not None else {}),
        }


def settings_of(url: str, **settings: Any) -> KafkaSettings:
    """Return the settings for a bus at `kafka://HOST:PORT`, several with commas between; raises `BusAddressError`."""
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
    """Return what an error of the client means: it was raised while `doing` something, with `topic` if one is meant."""
    match e:
        case UnknownTopicOrPartitionError():
            return TopicSetupError(topic, "is not there", CREATE)
        case TopicAuthorizationFailedError():
            return TopicSetupError(topic, "may not be used by this client", "allow it in the server's ACL")
        case TimeoutError():
            return BusUnavailableError(settings.bootstrap_servers, f"{doing} took too long")
        case KafkaConnectionError() if "bootstrap" in str(e):  # its text spells sockets
            return BusUnavailableError(settings.bootstrap_servers, f"{doing} failed: no Kafka answers")
        case KafkaError():  # its text begins with its name
            return BusUnavailableError(settings.bootstrap_servers, f"{doing} failed: {e}")
        case _:
            return BusUnavailableError(settings.bootstrap_servers, f"{doing} failed: {type(e).__name__}: {e}")


async def start_within(client: Any, settings: KafkaSettings, *, doing: str) -> None:
    """Start a client of Kafka; raises `BusUnavailableError` if no server is reached in time, and the client is closed."""
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
    """Close a client of Kafka, after `seconds` by force: its sockets are closed and its tasks cancelled.

    A client whose server is gone would wait for it, and a producer would go on sending what was given up: its messages
    could come after those of the next producer.
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
    """Return whether something ended within `seconds`; what it raises, a cancellation of its own too, ends here.

    It runs as a task: awaited in place, the cancellation that a client raises when its server is gone would be taken
    for one of ours.
    """

    async def quietly() -> None:
        with suppress(Exception):
            await ending

    async with asyncio.TaskGroup() as group:
        task = group.create_task(quietly(), name="kafka-close")
        done, _ = await asyncio.wait([task], timeout=seconds)
        task.cancel()
    return bool(done) and not task.cancelled()
