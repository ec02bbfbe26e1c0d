"""How a suite opens the ledgers that it holds to a promise."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, tzinfo
from typing import Protocol

from agentic_trading.governance.ledger import Ledger
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import Limit


class Opens(Protocol):
    """Open an empty ledger with limits; days and months begin in `zone`, and `reserved_lease_s` may be 0.

    Whoever hands this out closes every ledger that was opened with it.
    """

    async def __call__(
        self, *limits: Limit, zone: tzinfo | None = None, reserved_lease_s: float = 60.0
    ) -> Ledger: ...


Promise = Callable[[Opens], Awaitable[None]]


@asynccontextmanager
async def memory() -> AsyncGenerator[Opens]:
    """Open ledgers in memory."""
    async with AsyncExitStack() as closing:

        async def opens(*limits: Limit, zone: tzinfo | None = None, reserved_lease_s: float = 60.0) -> Ledger:
            ledger = MemoryLedger(limits, zone=zone or UTC, reserved_lease_s=reserved_lease_s)
            closing.push_async_callback(ledger.aclose)
            return ledger

        yield opens


async def in_line(ledger: Ledger, waiting: int, *, tenant: str = "acme") -> None:
    """Let others run until so many of a tenant wait in the line."""
    found = await ledger.waiting(tenant)
    for _ in range(100_000):
        if len(found) == waiting:
            return
        await asyncio.sleep(0)
        found = await ledger.waiting(tenant)
    raise AssertionError(found)
