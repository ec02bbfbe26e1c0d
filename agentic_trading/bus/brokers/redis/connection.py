"""How a bus on Redis is set up: its address, its limits, and under which keys a topic stands there."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from zlib import crc32

from agentic_trading.bus.errors import BusAddressError
from agentic_trading.bus.topic import MAX_MESSAGE_BYTES

SCHEMES: Final = frozenset({"redis", "rediss", "unix"})


@dataclass(frozen=True, slots=True)
class RedisBusSettings:
    """How a broker on Redis behaves; times in seconds. Nothing shows the password of `url`.

    `url` is `redis://HOST:PORT/DB`, over TLS `rediss://…`, or `unix://PATH`; `USER:PASSWORD@` may stand before the host.
    `ca_file` holds the authorities that may have signed the server's certificate, else those of the system count.
    `partitions` is how many each topic was made with. A reader that is not heard for `lease_s` is taken for dead;
    `drain_s` is how long work under way may take to end when a partition goes to another reader. `max_backlog` is how many
    messages a partition may keep, `buffer` how many of a topic are here and not done before no more are fetched.
    """

    url: str = field(repr=False)
    namespace: str = "agentic"
    ca_file: Path | None = None
    partitions: int = 16
    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_backlog: int = 10_000
    publish_s: float = 10.0
    lease_s: float = 15.0
    drain_s: float = 10.0
    ack_every_s: float = 0.05
    buffer: int = 256

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            raise BusAddressError(self.url)
        if not self.namespace or "{" in self.namespace or "}" in self.namespace:
            raise ValueError(f"namespace is {self.namespace!r}; allowed is text without braces")
        for name in ("partitions", "max_message_bytes", "max_backlog", "buffer"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed is 1 and more")
        for name in ("publish_s", "lease_s", "drain_s", "ack_every_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed is more than 0")

    @property
    def server(self) -> str:
        """Where the server is, without the name and the password."""
        return self.url.rpartition("://")[2].rpartition("@")[2]

    def keys_of(self, topic: str) -> "TopicKeys":
        """Return the keys under which a topic stands."""
        return TopicKeys(f"{{{self.namespace}:bus}}:{topic}", self.partitions)


def redis_settings_of(url: str, **settings: Any) -> RedisBusSettings:
    """Return the settings for a bus at `redis://HOST:PORT/DB`, `rediss://…` or `unix://PATH`; raises `BusAddressError`."""
    return RedisBusSettings(url, **settings)


@dataclass(frozen=True, slots=True)
class TopicKeys:
    """The keys of a topic; all of a bus are in one slot of a cluster, and none begins as a ledger's or a claim's does."""

    prefix: str
    partitions: int

    @property
    def meta(self) -> str:
        """The hash with what the topic was made with."""
        return f"{self.prefix}:meta"

    def stream(self, partition: int) -> str:
        """The stream of a partition."""
        return f"{self.prefix}:{partition}"

    def partition_of(self, key: bytes) -> int:
        """Return the partition that has the messages of a key."""
        return crc32(key) % self.partitions

    def reply_stream(self, address: bytes) -> bytes:
        """The stream of the replies to an address."""
        return f"{self.prefix}:to:".encode() + address

    def group(self, group: str) -> tuple[str, str, str]:
        """The readers of a group, the owner of each partition, and its token."""
        prefix = f"{self.prefix}:group:{group}"
        return f"{prefix}:readers", f"{prefix}:owners", f"{prefix}:tokens"


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES or parts.query or parts.fragment:
            return False
        if parts.scheme == "unix":
            return bool(parts.path)
        return bool(parts.hostname) and parts.port != 0 and (parts.path.lstrip("/") or "0").isdecimal()
    except ValueError:  # a port that is no number
        return False
