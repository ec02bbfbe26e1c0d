"""A ledger for when its server cannot be reached: nothing new begins, and what was paid is booked when the server is back."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from agentic_trading.clock import Clock
from agentic_trading.governance import ledger as ledger_api
from agentic_trading.governance.errors import (
    LedgerError,
    LedgerRolledBackError,
    LedgerUnavailableError,
    ReservationConflictError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledgers.reservation_table import overrun_of
from agentic_trading.governance.limits import Limit
from agentic_trading.governance.prices import NOTHING, Amount
from agentic_trading.logger import get_logger

log = get_logger()

REMEMBERED_S = 86_400.0
"""A call that has not ended for so long, a day, will not end any more."""

Write = Callable[[], Awaitable[ledger_api.Settlement | None]]


class DegradedModeLedger:
    """Keeps the promises of `Ledger` to the calls that have begun, while `ledger` is away.

    What cannot be booked now is booked by the first `expire_leases` that reaches the server; until then the answer is
    what will be booked, and the same call does not begin a second time. A new one is refused
    (`LedgerUnavailableError`). What a rebuilt ledger does not know is charged there all the same, perhaps twice, as the
    log may know it.
    """

    def __init__(self, ledger: ledger_api.Ledger, *, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._in_flight = InFlightCalls()
        self._pending = PendingWrites()

    async def reserve(
        self, request: ledger_api.ReservationRequest
    ) -> ledger_api.Reservation | ledger_api.Declined | ledger_api.Blocked:
        """Set the amount aside, once nothing of the call is pending; never wait."""
        await self._pending.flush(request.reservation_id)
        answer = await self._ledger.reserve(request)
        self._note(request, answer)
        return answer

    async def wait_for_reservation(
        self, request: ledger_api.ReservationRequest
    ) -> ledger_api.Reservation | ledger_api.Declined:
        """Wait until `request` can be answered for good; the queue is the server's."""
        await self._pending.flush(request.reservation_id)
        answer = await self._ledger.wait_for_reservation(request)
        self._note(request, answer)
        return answer

    async def dispatch(self, reservation_id: str, *, lease_s: float = ledger_api.LEASE_S) -> None:
        """Note that the request is about to be sent; what could not be noted must not be sent."""
        try:
            await self._ledger.dispatch(reservation_id, lease_s=lease_s)
        except LedgerUnavailableError:
            # Whether it was noted is not known, nor whether another run notes it next and sends: what is dispatched by
            # then is not ours to take back. Its lease ends it as in doubt.
            if reservation_id not in self._pending:
                self._pending.add(reservation_id, partial(self._release, reservation_id), None)
            raise
        except ReservationStateError:
            self._in_flight.end_unsent(reservation_id)
            raise
        self._in_flight.send(reservation_id)

    async def state_of(self, reservation_id: str) -> ledger_api.ReservationState | None:
        """Return how far a call has come."""
        return await self._ledger.state_of(reservation_id)

    async def settle(self, reservation_id: str, actual: Amount) -> ledger_api.Settlement:
        """Charge what a dispatched call used; without the server, as soon as it is back."""
        reserved = self._in_flight.reserved(reservation_id) or actual
        return await self._charged(
            ledger_api.Settlement(reservation_id, actual, reserved, overrun_of(actual, reserved))
        )

    async def release(self, reservation_id: str) -> None:
        """Give back what was never dispatched; without the server, as soon as it is back."""
        if self._pending.settlement(reservation_id) is not None:
            allowed = (ledger_api.ReservationState.RESERVED, ledger_api.ReservationState.RELEASED)
            raise ReservationStateError(
                reservation_id, "release", ledger_api.ReservationState.DISPATCHED, allowed
            )
        if reservation_id not in self._pending:
            self._pending.add(reservation_id, partial(self._release, reservation_id), None)
            await self._pending.write_now(reservation_id)

    async def in_doubt(self, reservation_id: str) -> ledger_api.Settlement:
        """Charge a dispatched call in full; without the server, as soon as it is back."""
        reserved = self._in_flight.reserved(reservation_id) or NOTHING
        return await self._charged(
            ledger_api.Settlement(reservation_id, reserved, reserved, NOTHING, in_doubt=True)
        )

    async def expire_leases(self) -> Sequence[ledger_api.ExpiredReservation]:
        """Book what could not be booked, and end the calls whose lease has run out."""
        await self._pending.flush_all()
        ended = await self._ledger.expire_leases()
        for one in ended:
            self._in_flight.end_unsent(one.reservation_id)
        self._in_flight.forget_old(self._clock.monotonic())
        return ended

    async def acknowledge_expired(self, reservation_id: str) -> None:
        """Return this one no more from `expire_leases`."""
        await self._ledger.acknowledge_expired(reservation_id)

    async def apply_limits(self, tenant: str, limits: Sequence[Limit], *, version: int) -> None:
        """Count against these limits from the next request on."""
        await self._ledger.apply_limits(tenant, limits, version=version)

    def awaited_limits(self, tenant: str) -> int:
        """Return a number other than 0 if limits are to be read and applied once more."""
        return self._ledger.awaited_limits(tenant)

    def confirm_limits(self, tenant: str, awaited: int) -> None:
        """Reserve again."""
        self._ledger.confirm_limits(tenant, awaited)

    async def fence(self, tenant: str) -> None:
        """Let nothing more begin until `restore`."""
        await self._ledger.fence(tenant)

    async def entries(self, tenant: str) -> Sequence[ledger_api.LedgerEntry]:
        """Return every call that was charged and is still known by itself."""
        return await self._ledger.entries(tenant)

    async def restore(
        self, tenant: str, entries: Iterable[ledger_api.LedgerEntry]
    ) -> ledger_api.LedgerCheckpoint:
        """Book a tenant's past calls once more, and open admission."""
        return await self._ledger.restore(tenant, entries)

    async def checkpoint(self, tenant: str) -> ledger_api.LedgerCheckpoint:
        """Return how far the tenant's ledger has come."""
        return await self._ledger.checkpoint(tenant)

    async def require_at_least(self, tenant: str, checkpoint: ledger_api.LedgerCheckpoint) -> None:
        """Take note of how far the ledger had come once."""
        await self._ledger.require_at_least(tenant, checkpoint)

    async def balances(
        self, tenant: str, *, limited: bool = False, at: datetime | None = None
    ) -> Sequence[ledger_api.Balance]:
        """Return every counter of a tenant, or those that can run out."""
        return await self._ledger.balances(tenant, limited=limited, at=at)

    async def waiting(self, tenant: str) -> Sequence[ledger_api.QueuedReservation]:
        """Return the requests of a tenant that wait for headroom."""
        return await self._ledger.waiting(tenant)

    def statistics(self) -> ledger_api.LedgerStatistics:
        """Return the counts of this process since the start."""
        return self._ledger.statistics()

    async def aclose(self) -> None:
        """Book what is pending and close the ledger; what cannot be reached runs out by its lease."""
        with suppress(LedgerError):
            await self._pending.flush_all()
        await self._ledger.aclose()

    def _note(
        self,
        request: ledger_api.ReservationRequest,
        answer: ledger_api.Reservation | ledger_api.Declined | ledger_api.Blocked,
    ) -> None:
        if (
            isinstance(answer, ledger_api.Reservation)
            and answer.state is ledger_api.ReservationState.RESERVED
        ):
            counted = replace(request, at=answer.counted_at or request.at)
            self._in_flight.add(counted, self._clock.monotonic())

    async def _charged(self, settlement: ledger_api.Settlement) -> ledger_api.Settlement:
        """Charge now or as soon as the server is back; a settlement replaces a pending doubt, else the first one counts."""
        id_ = settlement.reservation_id
        before = self._pending.settlement(id_)
        if before is None or (before.in_doubt and not settlement.in_doubt):
            self._pending.add(id_, partial(self._charge, settlement), settlement)
            return await self._pending.write_now(id_) or settlement
        return before

    async def _charge(self, settlement: ledger_api.Settlement) -> ledger_api.Settlement:
        id_ = settlement.reservation_id
        booked = await charge(self._ledger, settlement, self._in_flight.sent(id_))
        self._in_flight.end(id_)
        return booked

    async def _release(self, reservation_id: str) -> None:
        try:
            await self._ledger.release(reservation_id)
        except (ReservationStateError, UnknownReservationError):
            self._in_flight.end_unsent(reservation_id)
            raise
        self._in_flight.end_unsent(reservation_id)


@dataclass(slots=True)
class _Call:
    request: ledger_api.ReservationRequest
    noted_s: float
    is_sent: bool = False


@dataclass(slots=True)
class InFlightCalls:
    """The calls that were reserved here and have not ended here, oldest first."""

    _calls: dict[str, _Call] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, request: ledger_api.ReservationRequest, now_s: float) -> None:
        """Remember what was reserved; what was sent from here meanwhile stays sent."""
        id_ = request.reservation_id
        known = self._calls.get(id_)
        if known is None or not known.is_sent:
            self._calls.pop(id_, None)
            self._calls[id_] = _Call(request, now_s)

    def send(self, reservation_id: str) -> None:
        """Remember that this process sends the request."""
        call = self._calls.get(reservation_id)
        if call is not None:
            call.is_sent = True

    def reserved(self, reservation_id: str) -> Amount | None:
        """Return what was set aside for a call, if that was here."""
        call = self._calls.get(reservation_id)
        return None if call is None else call.request.amount

    def sent(self, reservation_id: str) -> ledger_api.ReservationRequest | None:
        """Return the request of a call that this process has sent."""
        call = self._calls.get(reservation_id)
        return call.request if call is not None and call.is_sent else None

    def end(self, reservation_id: str) -> None:
        """Forget a call that is settled."""
        self._calls.pop(reservation_id, None)

    def end_unsent(self, reservation_id: str) -> None:
        """Forget a call that will not be sent from here."""
        if self.sent(reservation_id) is None:
            self.end(reservation_id)

    def forget_old(self, now_s: float) -> None:
        """Forget the calls that were reserved long ago: their leases are over, and another process has ended them."""
        for id_ in [id_ for id_, call in self._calls.items() if call.noted_s + REMEMBERED_S <= now_s]:
            del self._calls[id_]


@dataclass(slots=True, eq=False)
class _Pending:
    write: Write
    settlement: ledger_api.Settlement | None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class PendingWrites:
    """The writes that the server has not confirmed, the newest one of each call; each is tried by one task at a time.

    A write that charges comes with the settlement that its caller gets; one that gives back with None.
    """

    _writes: dict[str, _Pending] = field(default_factory=dict)

    def __contains__(self, reservation_id: str) -> bool:
        return reservation_id in self._writes

    def __len__(self) -> int:
        return len(self._writes)

    def settlement(self, reservation_id: str) -> ledger_api.Settlement | None:
        """Return what will be charged; None if nothing is pending, or only to be given back."""
        pending = self._writes.get(reservation_id)
        return None if pending is None else pending.settlement

    def add(self, reservation_id: str, write: Write, settlement: ledger_api.Settlement | None) -> None:
        """Make this the pending write of the call, in place of the one before."""
        self._writes[reservation_id] = _Pending(write, settlement)

    async def write_now(self, reservation_id: str) -> ledger_api.Settlement | None:
        """Try the write that was just added; return what was booked, or what will be if the server is away."""
        pending = self._writes[reservation_id]
        try:
            return await self._write(reservation_id, pending)
        except LedgerUnavailableError:
            return pending.settlement

    async def flush(self, reservation_id: str) -> None:
        """Write what is pending of a call; raises `LedgerUnavailableError` if that cannot be."""
        while (pending := self._writes.get(reservation_id)) is not None:
            await self._write_late(reservation_id, pending)

    async def flush_all(self) -> None:
        """Write all that is pending and not being written; a tenant's ledger that has gone back delays no other's."""
        for id_, pending in list(self._writes.items()):
            if not pending.lock.locked():
                with suppress(LedgerRolledBackError):
                    await self._write_late(id_, pending)

    async def _write_late(self, id_: str, pending: _Pending) -> None:
        """Write after the caller has its answer: a charge that cannot be booked is at least logged."""
        try:
            await self._write(id_, pending)
        except LedgerUnavailableError:
            raise
        except LedgerError as e:
            if pending.settlement is not None:
                nusd = pending.settlement.charged.nusd
                log.error("charge_not_posted", reservation_id=id_, nusd=nusd, reason=str(e))  # noqa: TRY400 - one line

    async def _write(self, id_: str, pending: _Pending) -> ledger_api.Settlement | None:
        async with pending.lock:
            if self._writes.get(id_) is not pending:  # written, or replaced
                return pending.settlement
            try:
                booked = await pending.write()
            except LedgerUnavailableError:
                raise
            except LedgerError:
                self._forget(id_, pending)
                raise
            self._forget(id_, pending)
            return booked

    def _forget(self, id_: str, pending: _Pending) -> None:
        if self._writes.get(id_) is pending:
            del self._writes[id_]


async def charge(
    ledger: ledger_api.Ledger, settlement: ledger_api.Settlement, sent: ledger_api.ReservationRequest | None
) -> ledger_api.Settlement:
    """Charge a call; one that was `sent` from here is charged even if the ledger does not know it.

    A ledger that was rebuilt from a log may not know a call, or may have another run's reservation of it. Repeated
    after an outage, wherever that came, it charges once.
    """
    id_, charged = settlement.reservation_id, settlement.charged
    try:
        booked = await (ledger.in_doubt(id_) if settlement.in_doubt else ledger.settle(id_, charged))
    except (UnknownReservationError, ReservationStateError):
        if sent is None:
            raise
    else:
        if sent is None or not booked.in_doubt or booked.reserved == sent.amount:
            return booked
    with suppress(ReservationConflictError):  # another run has reserved it meanwhile
        made = await ledger.reserve(replace(sent, amount=NOTHING, limits=()))  # nothing always fits
        if not isinstance(made, ledger_api.Reservation):
            raise LedgerUnavailableError(f"it has no room for a charge of {id_!r} that was paid already")
    with suppress(ReservationStateError):  # dispatched here before the outage
        await ledger.dispatch(id_)
    return await ledger.settle(id_, charged)
