"""How governance reaches a Redis: a server that is away is away at once, not after retries of the client."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from agentic_trading.governance.limiter import Deployment

ANSWER_S = 2.0
"""What takes longer, from the wait for a connection to the answer, is given up."""


def within_time() -> asyncio.Timeout:
    """Return what is entered around a step on a server: it raises `TimeoutError`, an `OSError`, after `ANSWER_S`."""
    return asyncio.timeout(ANSWER_S)


def pool_of(url: str, *, connections: int = 8, connect_s: float = ANSWER_S) -> BlockingConnectionPool:
    """Return connections to a server that is away if it takes none within `connect_s` seconds.

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
    )


def tag(namespace: str, tenant: str) -> str:
    """Return what all keys of a tenant begin with: `agentic:{acme}`, the braces being the cluster's hash tag.

    Raises `ValueError` for a namespace that holds a brace: it would be the tag.
    """
    name = tenant.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return _tagged(namespace, name or "%")


def limiter_keys(namespace: str, deployment: Deployment) -> list[str]:
    """Return the keys of a deployment in the order of the limiter's scripts; raises as `tag` does."""
    prefix = _tagged(namespace, f"{deployment.provider}/{quote(deployment.model, safe='')}")
    return [f"{prefix}:{name}" for name in ("lane", "inside", "permits", "line", "places")]


def _tagged(namespace: str, name: str) -> str:
    if not namespace or "{" in namespace or "}" in namespace:
        raise ValueError(f"namespace {namespace!r} cannot begin a key; allowed is text without braces")
    return f"{namespace}:{{{name}}}"


@dataclass(frozen=True, slots=True)
class LedgerKeys:
    """The keys of one tenant's ledger; `shared` are those that every script declares, in the scripts' order."""

    shared: tuple[str, ...]
    meta: str
    queue: str
    counters: str
    index: str
    calls: str

    @classmethod
    def of(cls, namespace: str, tenant: str) -> Self:
        """Name them."""
        prefix = f"{tag(namespace, tenant)}:ledger"
        names = (
            "meta",
            "limits",
            "counters",
            "ends",
            "leases",
            "line",
            "waiters",
            "index",
            "ended",
            "expired",
        )
        return cls(
            shared=tuple(f"{prefix}:{name}" for name in names),
            meta=f"{prefix}:meta",
            queue=f"{prefix}:line",
            counters=f"{prefix}:counters",
            index=f"{prefix}:index",
            calls=f"{prefix}:call:",
        )

    def with_calls(self, reservation_ids: Iterable[str]) -> tuple[str, ...]:
        """Return the shared keys, and those of these attempts."""
        return (*self.shared, *(self.calls + id_ for id_ in reservation_ids))
