"""What the broken ledgers of the suite have in common: a ledger that keeps its promises, with room to break one."""

from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import ClassVar

from agentic_trading.governance.ledger import Blocked, Declined, Ledger, Reservation, ReservationRequest
from agentic_trading.governance.ledgers.memory import MemoryLedger, TenantLedger
from agentic_trading.governance.limits import Limit
from tests.contracts.ledger_opening import Opens


class Whole(MemoryLedger):
    """A ledger that keeps its promises; each broken one below changes one thing."""

    ledger_class: ClassVar[type[TenantLedger]] = TenantLedger

    def __init__(self, limits: Sequence[Limit], zone: tzinfo, reserved_lease_s: float = 60.0) -> None:
        super().__init__(limits, zone=zone, reserved_lease_s=reserved_lease_s)

    def changed(self, ask: ReservationRequest) -> ReservationRequest:
        return ask

    def _ledger_of(self, tenant: str) -> TenantLedger:
        ledger = super()._ledger_of(tenant)
        ledger.__class__ = self.ledger_class
        return ledger

    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        return await super().reserve(self.changed(ask))

    async def wait_for_reservation(self, ask: ReservationRequest) -> Reservation | Declined:
        return await super().wait_for_reservation(self.changed(ask))


def opening(broken: type[Whole]) -> Opens:
    """Open ledgers that break one promise."""

    async def opens(*limits: Limit, zone: tzinfo | None = None, reserved_lease_s: float = 60.0) -> Ledger:
        return broken(limits, zone or UTC, reserved_lease_s)

    return opens
