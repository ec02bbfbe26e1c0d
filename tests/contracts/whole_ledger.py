"""What the broken ledgers of the suite have in common: a ledger that keeps its promises, with room to break one."""

from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import ClassVar

from agentic_trading.governance.ledger import Ask, Held, Ledger, Refusal, Reservation
from agentic_trading.governance.ledgers.book import Book
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limit import Limit
from tests.contracts.ledger_opening import Opens


class Whole(MemoryLedger):
    """A ledger that keeps its promises; each broken one below changes one thing."""

    book_class: ClassVar[type[Book]] = Book

    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__(limits, zone=zone, reserved_lease_s=reserved_lease_s)

    def changed(self, ask: Ask) -> Ask:
        return ask

    def _book(self, tenant: str) -> Book:
        book = super()._book(tenant)
        book.__class__ = self.book_class
        return book

    async def reserve(self, ask: Ask) -> Reservation | Refusal | Held:
        return await super().reserve(self.changed(ask))

    async def reserve_in_turn(self, ask: Ask) -> Reservation | Refusal:
        return await super().reserve_in_turn(self.changed(ask))


def opening(broken: type[Whole]) -> Opens:
    """Open ledgers that break one promise."""

    async def opens(*limits: Limit, zone: tzinfo | None = None, reserved_lease_s: float = 60.0) -> Ledger:
        return broken(limits, zone or UTC, reserved_lease_s)

    return opens
