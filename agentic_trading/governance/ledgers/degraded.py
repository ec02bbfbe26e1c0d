"""A ledger wrapper for outages. New calls are refused, and charges are booked when the server is back."""

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
"""The time in seconds, a day, after which an open call is considered ended elsewhere."""

Write = Callable[[], Awaitable[ledger_api.Settlement | None]]


class DegradedModeLedger:
    """A `Ledger` that completes calls in flight while the server of `ledger` is unreachable.

    - Charges and releases that fail are pending. The first `expire_leases` that reaches the server writes
      them. Until then the caller gets the settlement that will be booked, and the same call cannot begin
      again.
    - New calls are refused with `LedgerUnavailableError`.
    - A call that a rebuilt ledger does not contain is charged there again. It may be charged twice, because
      the log may contain it.
    """

    def __init__(self, ledger: ledger_api.Ledger, *, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._in_flight = InFlightCalls()
        self._pending = PendingWrites()

    async def reserve(
        self, request: ledger_api.ReservationRequest
    ) -> ledger_api.Reservation | ledger_api.Declined | ledger_api.Blocked:
        """Reserve the amount, after writing the call's pending changes.

        Does not wait for headroom.
        """
        await self._pending.flush(request.reservation_id)
        answer = await self._ledger.reserve(request)
        self._note(request, answer)
        return answer

    async def wait_for_reservation(
        self, request: ledger_api.ReservationRequest
    ) -> ledger_api.Reservation | ledger_api.Declined:
        """Wait until the request is reserved or finally declined.

        The server keeps the queue.
        """
        await self._pending.flush(request.reservation_id)
        answer = await self._ledger.wait_for_reservation(request)
        self._note(request, answer)
        return answer

    async def dispatch(self, reservation_id: str, *, lease_s: float = ledger_api.LEASE_S) -> None:
        """Record that the request is about to be sent.

        If this raises, the request must not be sent.
        """
        try:
            await self._ledger.dispatch(reservation_id, lease_s=lease_s)
        except LedgerUnavailableError:
            # The server may have recorded this dispatch, or another run may dispatch the call next and send it. A
            # call in state dispatched must not be released here, because it may have been sent. Its lease ends it.
            if reservation_id not in self._pending:
                self._pending.add(reservation_id, partial(self._release, reservation_id), None)
            raise
        except ReservationStateError:
            self._in_flight.end_unsent(reservation_id)
            raise
        self._in_flight.send(reservation_id)

    async def state_of(self, reservation_id: str) -> ledger_api.ReservationState | None:
        """Return the state of a call."""
        return await self._ledger.state_of(reservation_id)

    async def settle(self, reservation_id: str, actual: Amount) -> ledger_api.Settlement:
        """Charge the usage of a dispatched call, during an outage as soon as the server is back."""
        reserved = self._in_flight.reserved(reservation_id) or actual
        return await self._charged(
            ledger_api.Settlement(reservation_id, actual, reserved, overrun_of(actual, reserved))
        )

    async def release(self, reservation_id: str) -> None:
        """Release a call that was never dispatched, during an outage as soon as the server is back."""
        if self._pending.settlement(reservation_id) is not None:
            allowed = (ledger_api.ReservationState.RESERVED, ledger_api.ReservationState.RELEASED)
            raise ReservationStateError(
                reservation_id, "release", ledger_api.ReservationState.DISPATCHED, allowed
            )
        if reservation_id not in self._pending:
            self._pending.add(reservation_id, partial(self._release, reservation_id), None)
            await self._pending.write_now(reservation_id)

    async def in_doubt(self, reservation_id: str) -> ledger_api.Settlement:
        """Charge a dispatched call in full, during an outage as soon as the server is back."""
        reserved = self._in_flight.reserved(reservation_id) or NOTHING
        return await self._charged(
            ledger_api.Settlement(reservation_id, reserved, reserved, NOTHING, in_doubt=True)
        )

    async def expire_leases(self) -> Sequence[ledger_api.ExpiredReservation]:
        """Write pending changes, then end the calls whose lease has run out."""
        await self._pending.flush_all()
        ended = await self._ledger.expire_leases()
        for one in ended:
            self._in_flight.end_unsent(one.reservation_id)
        self._in_flight.forget_old(self._clock.monotonic())
        return ended

    async def acknowledge_expired(self, reservation_id: str) -> None:
        """Stop returning this call from `expire_leases`."""
        await self._ledger.acknowledge_expired(reservation_id)

    async def apply_limits(self, tenant: str, limits: Sequence[Limit], *, version: int) -> None:
        """Replace the tenant's limits, from the next request on."""
        await self._ledger.apply_limits(tenant, limits, version=version)

    def awaited_limits(self, tenant: str) -> int:
        """Return a nonzero number if limits must be read and applied again."""
        return self._ledger.awaited_limits(tenant)

    def confirm_limits(self, tenant: str, awaited: int) -> None:
        """Resume reserving."""
        self._ledger.confirm_limits(tenant, awaited)

    async def fence(self, tenant: str) -> None:
        """Stop reserving and dispatching until `restore`."""
        await self._ledger.fence(tenant)

    async def entries(self, tenant: str) -> Sequence[ledger_api.LedgerEntry]:
        """Return every charged call that is still kept singly."""
        return await self._ledger.entries(tenant)

    async def restore(
        self, tenant: str, entries: Iterable[ledger_api.LedgerEntry]
    ) -> ledger_api.LedgerCheckpoint:
        """Replace the tenant's calls by these entries, and reopen the ledger."""
        return await self._ledger.restore(tenant, entries)

    async def checkpoint(self, tenant: str) -> ledger_api.LedgerCheckpoint:
        """Return how far the tenant's ledger has progressed."""
        return await self._ledger.checkpoint(tenant)

    async def require_at_least(self, tenant: str, checkpoint: ledger_api.LedgerCheckpoint) -> None:
        """Require that the ledger has reached this checkpoint."""
        await self._ledger.require_at_least(tenant, checkpoint)

    async def balances(
        self, tenant: str, *, limited: bool = False, at: datetime | None = None
    ) -> Sequence[ledger_api.Balance]:
        """Return every counter of a tenant, or those that can run out."""
        return await self._ledger.balances(tenant, limited=limited, at=at)

    async def waiting(self, tenant: str) -> Sequence[ledger_api.QueuedReservation]:
        """Return the tenant's queued requests."""
        return await self._ledger.waiting(tenant)

    def statistics(self) -> ledger_api.LedgerStatistics:
        """Return the counts of this process since its start."""
        return self._ledger.statistics()

    async def aclose(self) -> None:
        """Write pending changes and close the ledger.

        Calls that cannot be written end by their lease.
        """
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
        """Charge now or when the server is back.

        A settlement replaces a pending doubt, otherwise the first one wins.
        """
        id_ = settlement.reservation_id
        # An answer is more exact than a doubt. Otherwise the first charge wins, because a call is charged
        # once.
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
    """The calls that were reserved and have not ended in this process, oldest first."""

    _calls: dict[str, _Call] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, request: ledger_api.ReservationRequest, now_s: float) -> None:
        """Remember a reservation. A call that was sent in the meantime stays sent."""
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
        """Return the amount reserved for a call, or None if it was reserved elsewhere."""
        call = self._calls.get(reservation_id)
        return None if call is None else call.request.amount

    def sent(self, reservation_id: str) -> ledger_api.ReservationRequest | None:
        """Return the request of a call that this process has sent, otherwise None."""
        call = self._calls.get(reservation_id)
        return call.request if call is not None and call.is_sent else None

    def end(self, reservation_id: str) -> None:
        """Forget a settled call."""
        self._calls.pop(reservation_id, None)

    def end_unsent(self, reservation_id: str) -> None:
        """Forget a call unless this process has sent it."""
        if self.sent(reservation_id) is None:
            self.end(reservation_id)

    def forget_old(self, now_s: float) -> None:
        """Forget calls reserved long ago."""
        # Their leases are over, and another process has ended them. Without this the dictionary would grow.
        for id_ in [id_ for id_, call in self._calls.items() if call.noted_s + REMEMBERED_S <= now_s]:
            del self._calls[id_]


@dataclass(slots=True, eq=False)
class _Pending:
    write: Write
    settlement: ledger_api.Settlement | None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class PendingWrites:
    """Writes that the server has not confirmed, the newest of each call.

    One task at a time tries each of them. A charge is stored with the settlement that its caller gets, a
    release with None.
    """

    _writes: dict[str, _Pending] = field(default_factory=dict)

    def __contains__(self, reservation_id: str) -> bool:
        return reservation_id in self._writes

    def __len__(self) -> int:
        return len(self._writes)

    def settlement(self, reservation_id: str) -> ledger_api.Settlement | None:
        """Return the pending charge, or None if there is none or only a release."""
        pending = self._writes.get(reservation_id)
        return None if pending is None else pending.settlement

    def add(self, reservation_id: str, write: Write, settlement: ledger_api.Settlement | None) -> None:
        """Set the pending write of the call, replacing an earlier one."""
        self._writes[reservation_id] = _Pending(write, settlement)

    async def write_now(self, reservation_id: str) -> ledger_api.Settlement | None:
        """Try the write just added.

        Return the booked settlement, or during an outage the one to be booked.
        """
        pending = self._writes[reservation_id]
        try:
            return await self._write(reservation_id, pending)
        except LedgerUnavailableError:
            return pending.settlement

    async def flush(self, reservation_id: str) -> None:
        """Write a call's pending change. Raises `LedgerUnavailableError` if that fails."""
        while (pending := self._writes.get(reservation_id)) is not None:
            await self._write_late(reservation_id, pending)

    async def flush_all(self) -> None:
        """Write all pending changes that no other task is writing."""
        for id_, pending in list(self._writes.items()):
            if not pending.lock.locked():
                # Otherwise one tenant's closed ledger would delay the writes of all others.
                with suppress(LedgerRolledBackError):
                    await self._write_late(id_, pending)

    async def _write_late(self, id_: str, pending: _Pending) -> None:
        """Write after the caller has its answer. A charge that cannot be booked is logged."""
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
    """Charge a call.

    A call `sent` by this process is charged even if the ledger does not contain it. A ledger rebuilt from a
    log may lack the call, or contain another run's reservation of it. Repeating this after an outage at any
    point charges once.
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
    # The call was paid, so that it must be charged. If the log contains it too it counts twice, which is
    # dearer than the truth but never below it (decision 19).
    with suppress(ReservationConflictError):  # another run has reserved it meanwhile
        made = await ledger.reserve(replace(sent, amount=NOTHING, limits=()))  # nothing always fits
        if not isinstance(made, ledger_api.Reservation):
            raise LedgerUnavailableError(f"it has no room for a charge of {id_!r} that was paid already")
    with suppress(ReservationStateError):  # dispatched here before the outage
        await ledger.dispatch(id_)
    return await ledger.settle(id_, charged)
