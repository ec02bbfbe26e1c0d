"""How governance reaches a Redis: a server that is away is away at once, not after retries of the client."""

import asyncio

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

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
