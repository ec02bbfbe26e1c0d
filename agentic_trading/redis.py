"""How a Redis is reached: a server that is away is away at once, and one that may forget is found out."""

import asyncio
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

ANSWER_S = 2.0
"""What takes longer, from the wait for a connection to the answer, is given up."""

SAFE: Final[Mapping[str, str]] = MappingProxyType({
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",  # with yes, nothing is synced while the file is rewritten
    "maxmemory-policy": "noeviction",
})
"""The settings with which a server keeps what it has acknowledged."""


class UnsafeSetting(NamedTuple):
    """A setting with which a server may forget, its value, and the one that is safe."""

    setting: str
    value: str
    safe: str


_REFUSED: Final = re.compile(r"Error (.*?) ?connecting to (\S+)\.(?: (.*?)\.?)?", re.DOTALL)


def is_refused(error: Exception) -> bool:
    """Whether no connection was made: nothing was sent to the server then."""
    return _REFUSED.fullmatch(str(error)) is not None


def failure_text(error: Exception) -> str:
    """Return an error of the client as a message shows it: for a connection that was not made, where no server answers."""
    if found := _REFUSED.fullmatch(str(error)):
        number, address, why = found.groups(default="")
        why = why or number
        return f"no Redis answers at {address}" + (
            "" if not why or "Connect call failed" in why else f" ({why})"
        )
    return f"{type(error).__name__}: {error}".removesuffix(".").removesuffix(": ")


def within_time() -> asyncio.Timeout:
    """Return what is entered around a step on a server: it raises `TimeoutError`, an `OSError`, after `ANSWER_S`."""
    return asyncio.timeout(ANSWER_S)


def pool_of(
    url: str, *, connections: int = 8, connect_s: float = ANSWER_S, ca_file: str = ""
) -> BlockingConnectionPool:
    """Return connections to a server that is away if it takes none within `connect_s` seconds.

    `ca_file` holds the authorities that may have signed its certificate, where they are not those of the system.
    None is made before it is needed. Steps have no limit of time here: be `within_time`. The client's own limit for what
    is sent loses cancellations (it is `asyncio.wait_for`, in Python 3.11), so that a task could not be ended.
    """
    return BlockingConnectionPool.from_url(
        url,
        max_connections=connections,
        timeout=None,
        socket_connect_timeout=connect_s,
        socket_timeout=None,
        retry=Retry(NoBackoff(), 0),
        driver_info=None,  # it would be read from disk for each connection, on the loop
        **({"ssl_ca_certs": ca_file} if ca_file else {}),
    )


async def unsafe_setting(redis: Any) -> UnsafeSetting | None:
    """Return the first setting with which the server may forget what it has acknowledged, or None.

    Raises the client's errors, `ResponseError` where the settings may not be read.
    """
    found = await redis.config_get(*SAFE)
    for setting, safe in SAFE.items():
        value = found.get(setting) or found.get(setting.encode()) or b""
        value = value.decode() if isinstance(value, bytes) else value
        if value != safe:
            return UnsafeSetting(setting, value, safe)
    return None
