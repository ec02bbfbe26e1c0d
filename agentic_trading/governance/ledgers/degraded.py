"""A ledger that goes on for a while when its server cannot be reached, and never spends what is not booked."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import tzinfo
from functools import partial
from typing import TypeVar

from agentic_trading.clock import Clock
from agentic_trading.governance.allowance import AllowanceRules
from agentic_trading.governance.errors import (
    LedgerError,
    LedgerRolledBackError,
    LedgerUnavailableError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledger import (
    LEASE_S,
    Balance,
    Blocked,
    Declined,
    ExpiredReservation,
    Ledger,
    LedgerCheckpoint,
    LedgerEntry,
    LedgerStatistics,
    QueuedReservation,
    Reservation,
    ReservationRequest,
    ReservationState,
    Settlement,
)
from agentic_trading.governance.ledgers.allowances import Allowances
from agentic_trading.governance.ledgers.pending_writes import InFlightCalls, PendingWrites, charge
from agentic_trading.governance.ledgers.reservation_table import overrun_of
from agentic_trading.governance.limits import Limit, Windows
from agentic_trading.governance.prices import NOTHING, Amount
from agentic_trading.ids import NewId

DegradedAnswer = TypeVar("DegradedAnswer", Reservation | Declined | Blocked, Reservation | Declined)


class DegradedModeLedger:
    """Keeps the promises of `Ledger` to those who have begun, and to a few who begin, while `ledger` is away.

    What cannot be booked now is booked by the first `expire_leases` that reaches the server; until then callers are told what
    will be booked, and nobody begins the same call anew. Who wants to begin is refused (`LedgerUnavailableError`), but
    for the workflows of `rules`: they use what was set aside for their agent while the server was there
    (`Allowances` says how much, and when). That is booked as dispatched, so that a process that ends without a word
    leaves it charged in full. Without `rules` nobody begins, and a ledger that has gone back pays for nothing. What a
    rebuilt ledger does not know is charged there all the same, perhaps twice, as the log may know it. `zone` is where
    the ledger's days begin, `limits` are those that it began with.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Clock,
        new_id: NewId,
        zone: tzinfo,
        limits: Sequence[Limit] = (),
        rules: AllowanceRules | None = None,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._under_way = InFlightCalls()
        self._owed = PendingWrites()
        self._allowances = Allowances(
            ledger, clock=clock, new_id=new_id, windows=Windows(zone), limits=limits, rules=rules
        )
        self._local = self._allowances.calls

    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        """Set the amount aside, with the server or from an allowance; never wait."""
        id_ = ask.reservation_id
        if id_ in self._local:
            return Reservation(id_, ask.amount, self._local.state_of(id_))
        await self._owed.settle_up(id_)
        try:
            answer = await self._ledger.reserve(ask)
        except LedgerRolledBackError:
            self._allowances.close(ask.tenant)
            raise
        except LedgerUnavailableError:
            if id_ in self._under_way or not self._allowances.pay(ask):
                raise
            self._under_way.note(ask, self._clock.monotonic())
            return Reservation(id_, ask.amount)
        return await self._noted(ask, answer)

    async def wait_for_reservation(self, ask: ReservationRequest) -> Reservation | Declined:
        """Wait until `ask` can be answered for good; the line is the server's."""
        await self._owed.settle_up(ask.reservation_id)
        return await self._noted(ask, await self._ledger.wait_for_reservation(ask))

    async def dispatch(self, reservation_id: str, *, lease_s: float = LEASE_S) -> None:
        """Note that the request is about to be sent; what could not be noted must not be sent."""
        try:
            if reservation_id in self._local:
                self._local.dispatch(reservation_id)
            else:
                await self._ledger.dispatch(reservation_id, lease_s=lease_s)
        except LedgerUnavailableError:
            # Whether it was noted is not known, nor whether another run notes it next and sends: what is dispatched by
            # then is not ours to take back. Its lease ends it as in doubt.
            if reservation_id not in self._owed:
                self._owed.owe(reservation_id, partial(self._release, reservation_id), None)
            raise
        except ReservationStateError:
            self._under_way.end_unsent(reservation_id)
            raise
        self._under_way.send(reservation_id)

    async def state_of(self, reservation_id: str) -> ReservationState | None:
        """Return how far a call has come."""
        if reservation_id in self._local:
            return self._local.state_of(reservation_id)
        return await self._ledger.state_of(reservation_id)

    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        """Charge what a dispatched call used; without the server, as soon as it is back."""
        if reservation_id in self._local:
            settlement = self._local.settle(reservation_id, actual)
            self._under_way.end(reservation_id)
            return settlement
        reserved = self._under_way.reserved(reservation_id) or actual
        return await self._charged(Settlement(reservation_id, actual, reserved, overrun_of(actual, reserved)))

    async def release(self, reservation_id: str) -> None:
        """Give back what was never dispatched; without the server, as soon as it is back."""
        if reservation_id in self._local:
            self._local.release(reservation_id)
            self._under_way.end_unsent(reservation_id)
            return
        if self._owed.told(reservation_id) is not None:
            allowed = (ReservationState.RESERVED, ReservationState.RELEASED)
            raise ReservationStateError(reservation_id, "release", ReservationState.DISPATCHED, allowed)
        if reservation_id not in self._owed:
            self._owed.owe(reservation_id, partial(self._release, reservation_id), None)
            await self._owed.take_now(reservation_id)

    async def in_doubt(self, reservation_id: str) -> Settlement:
        """Charge a dispatched call in full; without the server, as soon as it is back."""
        if reservation_id in self._local:
            settlement = self._local.in_doubt(reservation_id)
            self._under_way.end(reservation_id)
            return settlement
        reserved = self._under_way.reserved(reservation_id) or NOTHING
        return await self._charged(Settlement(reservation_id, reserved, reserved, NOTHING, in_doubt=True))

    async def expire_leases(self) -> Sequence[ExpiredReservation]:
        """Book what could not be booked, renew allowances, and end the calls whose lease has run out."""
        await self._owed.settle_all()
        await self._allowances.tend()
        ended = await self._ledger.expire_leases()
        for one in ended:
            self._under_way.end_unsent(one.reservation_id)
        self._under_way.forget(self._clock.monotonic())
        return ended

    async def apply_limits(self, tenant: str, limits: Sequence[Limit], *, version: int) -> None:
        """Count against these limits from the next ask on."""
        await self._ledger.apply_limits(tenant, limits, version=version)
        self._allowances.apply_limits(tenant, limits)

    async def fence(self, tenant: str) -> None:
        """Let nothing more begin until `restore`."""
        await self._ledger.fence(tenant)

    async def restore(self, tenant: str, bookings: Iterable[LedgerEntry]) -> LedgerCheckpoint:
        """Book a tenant's calls again, and open admission; what was set aside is not spent any more."""
        self._allowances.close(tenant)
        return await self._ledger.restore(tenant, bookings)

    async def checkpoint(self, tenant: str) -> LedgerCheckpoint:
        """Return how far the tenant's ledger has come."""
        return await self._ledger.checkpoint(tenant)

    async def require_at_least(self, tenant: str, position: LedgerCheckpoint) -> None:
        """Take note of how far the ledger had come once."""
        await self._ledger.require_at_least(tenant, position)

    async def balances(self, tenant: str, *, limited: bool = False) -> Sequence[Balance]:
        """Return every counter of a tenant, or those that can run out; an allowance counts as held."""
        return await self._ledger.balances(tenant, limited=limited)

    async def waiting(self, tenant: str) -> Sequence[QueuedReservation]:
        """Return who of a tenant waits for headroom."""
        return await self._ledger.waiting(tenant)

    def statistics(self) -> LedgerStatistics:
        """Return the counts of this process since the start."""
        return self._ledger.statistics()

    async def aclose(self) -> None:
        """Book what is owed, give allowances back and close the ledger; what cannot be reached runs out by its lease."""
        self._allowances.end()
        with suppress(LedgerError):
            await self.expire_leases()
        await self._ledger.aclose()

    async def _noted(self, ask: ReservationRequest, answer: DegradedAnswer) -> DegradedAnswer:
        """Remember what is under way, and see that its payer has an allowance; who is cancelled meanwhile holds nothing."""
        if not isinstance(answer, Reservation):
            self._allowances.make_way(ask, answer)
        elif answer.state is ReservationState.RESERVED:
            self._under_way.note(ask, self._clock.monotonic())
            try:
                with suppress(LedgerUnavailableError):  # this call has its reservation
                    await self._allowances.set_aside(ask)
            except asyncio.CancelledError:
                with suppress(LedgerError):  # dispatched by another run of the same call
                    await self.release(answer.id)
                raise
        return answer

    async def _charged(self, told: Settlement) -> Settlement:
        """Charge now, or owe it; a settlement goes for what was owed before, but the first is the one that counts."""
        id_ = told.reservation_id
        before = self._owed.told(id_)
        if before is None or (before.in_doubt and not told.in_doubt):
            self._owed.owe(id_, partial(self._charge, told), told)
            return await self._owed.take_now(id_) or told
        return before

    async def _charge(self, told: Settlement) -> Settlement:
        id_ = told.reservation_id
        booked = await charge(self._ledger, told, self._under_way.sent(id_))
        self._under_way.end(id_)
        return booked

    async def _release(self, reservation_id: str) -> None:
        try:
            await self._ledger.release(reservation_id)
        except (ReservationStateError, UnknownReservationError):
            self._under_way.end_unsent(reservation_id)
            raise
        self._under_way.end_unsent(reservation_id)
