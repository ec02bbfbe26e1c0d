"""A ledger over a server that can be taken away."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from agentic_trading.clock import SimClock
from agentic_trading.governance.errors import (
    LedgerUnavailableError,
)
from agentic_trading.governance.ledger import (
    Blocked,
    Declined,
    ExpiredReservation,
    LedgerCheckpoint,
    LedgerEntry,
    Reservation,
    ReservationRequest,
    Settlement,
)
from agentic_trading.governance.ledgers.degraded import DegradedModeLedger
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from tests.governance.asking import AT, ask, reserved, tenant

Answer = TypeVar("Answer")


class Wall(SimClock):
    """A clock whose monotonic time is its own."""

    def monotonic(self) -> float:
        return (self.now() - AT).total_seconds()


class Server(MemoryLedger):
    """A ledger that can be `away`, or be for the steps in `fails`; the answers to those in `loses` are lost.

    One that `is_full` has no room, not even for nothing. The answers to steps in `slow` come when their event is set.
    """

    away = False
    is_full = False

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.fails: set[str] = set()
        self.loses: set[str] = set()
        self.slow: dict[str, asyncio.Event] = {}

    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        if self.is_full:
            return Blocked(ScopeKind.TENANT, ask.tenant, Window.NONE, "calls", ask.amount.calls, 0)
        return await self._taken("reserve", super().reserve(ask))

    async def dispatch(self, reservation_id: str, *, lease_s: float = 60.0) -> None:
        await self._taken("dispatch", super().dispatch(reservation_id, lease_s=lease_s))

    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        return await self._taken("settle", super().settle(reservation_id, actual))

    async def release(self, reservation_id: str) -> None:
        await self._taken("release", super().release(reservation_id))

    async def in_doubt(self, reservation_id: str) -> Settlement:
        return await self._taken("in_doubt", super().in_doubt(reservation_id))

    async def expire_leases(self) -> Sequence[ExpiredReservation]:
        return await self._taken("sweep", super().expire_leases())

    async def checkpoint(self, tenant: str) -> LedgerCheckpoint:
        return await self._taken("position", super().checkpoint(tenant))

    async def _taken(self, name: str, step: Coroutine[Any, Any, Answer]) -> Answer:
        if self.away or name in self.fails:
            step.close()
            raise LedgerUnavailableError("connection refused")
        answer = await step
        if name in self.slow:
            await self.slow[name].wait()
        if name in self.loses:
            raise LedgerUnavailableError("connection reset")
        return answer


class Case:
    def __init__(self, *limits: Limit) -> None:
        self.clock = Wall(AT)
        self.server = Server(limits or (tenant(1000),), clock=self.clock)
        self.ledger = self.process()

    def process(self) -> DegradedModeLedger:
        """Return the ledger of one process more."""
        return DegradedModeLedger(self.server, clock=self.clock)

    async def begun(self, nusd: int = 60, **more: Any) -> str:
        id_ = await reserved(self.ledger, ask(nusd, **more))
        await self.ledger.dispatch(id_)
        return id_

    async def rebuilt(self, bookings: Iterable[LedgerEntry] = ()) -> None:
        """Have the server lose all that it knows, and be told a log instead, by some other process."""
        await self.lose()
        await self.server.restore("acme", bookings)

    async def lose(self) -> None:
        """Have the server go back: of the tenant it knows nothing that is true."""
        position = await self.server.checkpoint("acme")
        await self.server.require_at_least("acme", LedgerCheckpoint(position.epoch + 1, "lost", 1))

    async def begun_with(self, wanted: ReservationRequest) -> str:
        """Reserve and dispatch a call."""
        id_ = await reserved(self.ledger, wanted)
        await self.ledger.dispatch(id_)
        return id_

    async def remembers(self) -> int:
        """Return how many calls the process still remembers."""
        return len(self.ledger._in_flight)

    async def owes(self) -> int:
        """Return how many steps the process still owes."""
        return len(self.ledger._pending)
