"""What one process has under way, and what it still owes to a ledger that it could not reach."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import structlog

from agentic_trading.governance.errors import (
    LedgerError,
    LedgerRolledBackError,
    LedgerUnavailableError,
    ReservationConflictError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledger import Ledger, Reservation, ReservationRequest, Settlement
from agentic_trading.governance.prices import NOTHING, Amount

log = structlog.get_logger()

LONG_OVER_S = 86_400.0
"""Who has not ended a call for so long, a day, will not end it any more."""

Step = Callable[[], Awaitable[Settlement | None]]


@dataclass(slots=True)
class _Call:
    ask: ReservationRequest
    noted_s: float
    is_sent: bool = False


@dataclass(slots=True)
class InFlightCalls:
    """The calls that were reserved here and have not ended here, oldest first."""

    _calls: dict[str, _Call] = field(default_factory=dict)

    def __contains__(self, reservation_id: str) -> bool:
        return reservation_id in self._calls

    def __len__(self) -> int:
        return len(self._calls)

    def note(self, ask: ReservationRequest, now_s: float) -> None:
        """Remember what was reserved; what was sent from here meanwhile stays sent."""
        id_ = ask.reservation_id
        known = self._calls.get(id_)
        if known is None or not known.is_sent:
            self._calls.pop(id_, None)
            self._calls[id_] = _Call(ask, now_s)

    def send(self, reservation_id: str) -> None:
        """Remember that this process sends the request."""
        call = self._calls.get(reservation_id)
        if call is not None:
            call.is_sent = True

    def reserved(self, reservation_id: str) -> Amount | None:
        """Return what was set aside for a call, if that was here."""
        call = self._calls.get(reservation_id)
        return None if call is None else call.ask.amount

    def sent(self, reservation_id: str) -> ReservationRequest | None:
        """Return what was asked for a call that this process has sent."""
        call = self._calls.get(reservation_id)
        return call.ask if call is not None and call.is_sent else None

    def end(self, reservation_id: str) -> None:
        """Forget a call that is settled."""
        self._calls.pop(reservation_id, None)

    def end_unsent(self, reservation_id: str) -> None:
        """Forget a call that will not be sent from here."""
        if self.sent(reservation_id) is None:
            self.end(reservation_id)

    def forget(self, now_s: float) -> None:
        """Forget the calls that were reserved long ago: their leases are over, and somebody else has ended them."""
        for id_ in [id_ for id_, call in self._calls.items() if call.noted_s + LONG_OVER_S <= now_s]:
            del self._calls[id_]


@dataclass(slots=True, eq=False)
class _Owed:
    take: Step
    told: Settlement | None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class PendingWrites:
    """The steps that are to be taken, the newest one of each call; each is taken by one at a time until it is known to be.

    A step that charges comes with what its caller was told; one that gives back with None.
    """

    _steps: dict[str, _Owed] = field(default_factory=dict)

    def __contains__(self, reservation_id: str) -> bool:
        return reservation_id in self._steps

    def __len__(self) -> int:
        return len(self._steps)

    def told(self, reservation_id: str) -> Settlement | None:
        """Return what the caller was told will be charged; None if nothing is owed, or only to be given back."""
        owed = self._steps.get(reservation_id)
        return None if owed is None else owed.told

    def owe(self, reservation_id: str, step: Step, told: Settlement | None) -> None:
        """Owe this step, in place of what was owed for the call."""
        self._steps[reservation_id] = _Owed(step, told)

    async def take_now(self, reservation_id: str) -> Settlement | None:
        """Take the step that was just owed; return what came of it, or what was told if it has to wait."""
        owed = self._steps[reservation_id]
        try:
            return await self._take(reservation_id, owed)
        except LedgerUnavailableError:
            return owed.told

    async def settle_up(self, reservation_id: str) -> None:
        """Take what is owed for a call; raises `LedgerUnavailableError` if that cannot be."""
        while (owed := self._steps.get(reservation_id)) is not None:
            await self._take_late(reservation_id, owed)

    async def settle_all(self) -> None:
        """Take all that is owed and that nobody is about to take; a ledger that has gone back keeps only its own waiting."""
        for id_, owed in list(self._steps.items()):
            if not owed.lock.locked():
                with suppress(LedgerRolledBackError):
                    await self._take_late(id_, owed)

    async def _take_late(self, id_: str, owed: _Owed) -> None:
        """Take a step of which nobody waits for the outcome; a charge that cannot be booked is at least said."""
        try:
            await self._take(id_, owed)
        except LedgerUnavailableError:
            raise
        except LedgerError as e:
            if owed.told is not None:
                nusd = owed.told.charged.nusd
                log.error("charge_unbooked", reservation_id=id_, nusd=nusd, reason=str(e))  # noqa: TRY400 - told in one line

    async def _take(self, id_: str, owed: _Owed) -> Settlement | None:
        async with owed.lock:
            if self._steps.get(id_) is not owed:  # taken, or not what is owed any more
                return owed.told
            try:
                outcome = await owed.take()
            except LedgerUnavailableError:
                raise
            except LedgerError:
                self._forget(id_, owed)
                raise
            self._forget(id_, owed)
            return outcome

    def _forget(self, id_: str, owed: _Owed) -> None:
        if self._steps.get(id_) is owed:
            del self._steps[id_]


async def charge(ledger: Ledger, told: Settlement, sent: ReservationRequest | None) -> Settlement:
    """Charge a call what was told; one that was `sent` from here is charged even if the ledger does not know it.

    A ledger that was booked again from a log may not know a call, or may have seen another run begin it anew. Taken
    again after an outage, wherever that came, it charges once.
    """
    id_ = told.reservation_id
    try:
        booked = await (ledger.in_doubt(id_) if told.in_doubt else ledger.settle(id_, told.charged))
    except (UnknownReservationError, ReservationStateError):
        if sent is None:
            raise
    else:
        if sent is None or not booked.in_doubt or booked.reserved == sent.amount:
            return booked
    return await charge_anew(ledger, sent, told.charged)


async def charge_anew(ledger: Ledger, ask: ReservationRequest, charged: Amount) -> Settlement:
    """Charge what is not reserved: its reservation is of nothing, which always fits, and all of it above that."""
    id_ = ask.reservation_id
    with suppress(ReservationConflictError):  # somebody has reserved it meanwhile
        made = await ledger.reserve(replace(ask, amount=NOTHING, limits=()))
        if not isinstance(made, Reservation):
            raise LedgerUnavailableError(f"it has no room for a charge of {id_!r} that was paid already")
    with suppress(ReservationStateError):  # begun here before the outage
        await ledger.dispatch(id_)
    return await ledger.settle(id_, charged)
