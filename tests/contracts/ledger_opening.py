"""How a suite opens the ledgers that it holds to a promise."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import tzinfo
from typing import Protocol

from agentic_trading.governance.ledger import Ledger, Limit


class Opens(Protocol):
    """Open an empty ledger with limits; days and months begin in `zone`."""

    async def __call__(self, *limits: Limit, zone: tzinfo | None = None) -> Ledger: ...


Promise = Callable[[Opens], Awaitable[None]]


async def in_line(ledger: Ledger, waiting: int) -> None:
    """Let others run until so many wait in the line."""
    for _ in range(10_000):
        if ledger.statistics().waiting == waiting:
            return
        await asyncio.sleep(0)
    raise AssertionError(ledger.statistics())
