"""Connections to Redis. Unreachable servers fail fast, and servers that may lose data are detected."""

import asyncio
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

ANSWER_S = 2.0
"""Time limit of a step on a server in seconds, including the wait for a connection."""

SAFE: Final[Mapping[str, str]] = MappingProxyType({
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",  # with yes, writes would not be synced while the file is rewritten
    "maxmemory-policy": "noeviction",
})
"""The settings with which a server keeps all acknowledged writes."""


class UnsafeSetting(NamedTuple):
    """A setting with which a server may lose data, its value, and the safe value."""

    setting: str
    value: str
    safe: str


_REFUSED: Final = re.compile(r"Error (.*?) ?connecting to (\S+)\.(?: (.*?)\.?)?", re.DOTALL)


def is_refused(error: Exception) -> bool:
    """Whether no connection was made, so that the server received no request."""
    return _REFUSED.fullmatch(str(error)) is not None


def failure_text(error: Exception) -> str:
    """Return the text of a client error for a message.

    Without a connection, it contains the server's address.
    """
    if found := _REFUSED.fullmatch(str(error)):
        number, address, why = found.groups(default="")
        why = why or number
        return f"no Redis answers at {address}" + (
            "" if not why or "Connect call failed" in why else f" ({why})"
        )
    return f"{type(error).__name__}: {error}".removesuffix(".").removesuffix(": ")


def within_time() -> asyncio.Timeout:
    """Return a timeout of `ANSWER_S` seconds for a step on a server.

    It raises `TimeoutError`, an `OSError`.
    """
    return asyncio.timeout(ANSWER_S)


def pool_of(
    url: str, *, connections: int = 8, connect_s: float = ANSWER_S, ca_file: str = ""
) -> BlockingConnectionPool:
    """Return a connection pool. It does not connect until it is used.

    Steps have no time limit here. Put them into `within_time`.

    Args:
        url: The server.
        connections: The most connections.
        connect_s: Time limit of connecting, in seconds.
        ca_file: Trusted certificate authorities. Empty means those of the system.

    """
    return BlockingConnectionPool.from_url(
        url,
        max_connections=connections,
        timeout=None,
        socket_connect_timeout=connect_s,
        # The client's own limit for sending uses `asyncio.wait_for`, which would lose cancellations in Python 3.11.
        socket_timeout=None,
        retry=Retry(NoBackoff(), 0),
        driver_info=None,  # it would be read from disk for each connection, in the event loop
        **({"ssl_ca_certs": ca_file} if ca_file else {}),
    )


async def unsafe_setting(redis: Any) -> UnsafeSetting | None:
    """Return the first setting with which the server may lose acknowledged writes, or None.

    Raises the client's errors: `ResponseError` if the settings may not be read.
    """
    found = await redis.config_get(*SAFE)
    for setting, safe in SAFE.items():
        value = found.get(setting) or found.get(setting.encode()) or b""
        value = value.decode() if isinstance(value, bytes) else value
        if value != safe:
            return UnsafeSetting(setting, value, safe)
    return None
