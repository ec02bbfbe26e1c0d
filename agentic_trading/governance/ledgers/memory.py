"""The ledger of one process: in memory, each step one piece that nothing interrupts."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance.errors import (
    ReservationRequestError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledger import (
    LEASE_S,
    Balance,
    Blocked,
    Declined,
    ExpiredReservation,
    LedgerCheckpoint,
    LedgerEntry,
    LedgerStatistics,
    QueuedReservation,
    Reservation,
    ReservationRequest,
    ReservationState,
    Settlement,
    reservation_id,
)
from agentic_trading.governance.ledgers.checkpoint import LedgerEpoch, StatisticsCounter
from agentic_trading.governance.ledgers.counters import RetentionHorizon, TenantCounters
from agentic_trading.governance.ledgers.limit_set import CountedWindows, LimitSet
from agentic_trading.governance.ledgers.reservation_table import (
    DISPATCHED,
    SETTLED,
    QueuedRequest,
    ReservationEntry,
    counter_balance,
)
from agentic_trading.governance.ledgers.tenant_ledger import TenantLedger
from agentic_trading.governance.limits import Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount

_FORGET_AFTER_IN_VAIN = 1000
"""Asks in vain make counters too, and do not move time on: after so many of them idle ones go."""

_MAY_DISPATCH = (ReservationState.RESERVED,)
_MAY_RELEASE = (ReservationState.RESERVED, ReservationState.RELEASED)
_MAY_CHARGE = (ReservationState.DISPATCHED, ReservationState.IN_DOUBT, ReservationState.SETTLED)


class MemoryLedger:
    """Keeps the whole promise of `Ledger` within one event loop.

    `zone` is where days and months begin. A finished call is remembered for `keep` at least, by the newest moment that
    something was reserved for; so are the counters of ended windows, and of calls and traces at rest. A counter that a
    limit needs, an adopted one or an ask's own, starts with the calls that are remembered; `counted` are counters kept
    where no limit needs them yet. `limits` hold for every tenant until others are
    adopted for it. `clock` is the present, by which leases run; a call not dispatched within `reserved_lease_s` is
    refunded by the next sweep.
    """

    def __init__(
        self,
        limits: Iterable[Limit] = (),
        *,
        zone: tzinfo = UTC,
        keep: timedelta = timedelta(days=1),
        counted: CountedWindows = ((ScopeKind.AGENT, Window.DAY),),
        clock: Clock | None = None,
        reserved_lease_s: float = 60.0,
    ) -> None:
        self._clock = clock or SystemClock()
        self._rules = LimitSet(limits, counted)
        self._counted = counted
        self._horizon = RetentionHorizon(zone, keep)
        self._reserved_lease_s = reserved_lease_s
        self._began = self._clock.now().isoformat()
        self._books: dict[str, TenantLedger] = {}
        self._tally = StatisticsCounter()
        self._next_look = datetime.min.replace(tzinfo=UTC)
        self._vain_at_next_look = _FORGET_AFTER_IN_VAIN

    async def reserve(self, ask: ReservationRequest) -> Reservation | Declined | Blocked:
        """Set the amount aside, or say why not; never wait."""
        id_ = ask.reservation_id
        book = self._books.get(_owner(id_)) or self._book(ask.tenant)
        known = book.known(id_, ask)
        if known is not None:
            return known
        now = self._clock.now()
        at = ask.at or now
        accounts = book.accounts_of(ask, at)
        answer, _ = book.decide(id_, ask, at, now, accounts)
        if not isinstance(answer, Reservation):
            book.accounts.let_go.append(accounts)
            if isinstance(answer, Blocked):
                self._tally.hold()
        self._forget(book)
        return answer

    async def wait_for_reservation(self, ask: ReservationRequest) -> Reservation | Declined:
        """Wait until `ask` can be answered for good: in order of arrival within a priority."""
        id_ = ask.reservation_id
        book = self._book(ask.tenant)
        known = book.known(id_, ask)
        if known is not None:
            return known
        now = self._clock.now()
        at = ask.at or now
        accounts = book.accounts_of(ask, at)
        answer, short_of = book.decide(id_, ask, at, now, accounts)
        if not isinstance(answer, Blocked):
            book.accounts.let_go.append(accounts)
            self._forget(book)
            return answer
        future: asyncio.Future[Reservation | Declined] = asyncio.get_running_loop().create_future()
        waiter = QueuedRequest(ask, accounts, answer, short_of, now, future)
        book.line.enter(waiter)
        try:
            return await future
        except asyncio.CancelledError:
            book.leave(waiter, self._clock.now())
            raise
        finally:
            book.accounts.let_go.append(waiter.accounts)
            self._forget(book)

    async def dispatch(self, reservation_id: str, *, lease_s: float = LEASE_S) -> None:
        """Note that the request is about to be sent; a second time raises `ReservationStateError`."""
        book, call = self._call(reservation_id, "dispatch", _MAY_DISPATCH)
        book.progress.check()
        call.state = DISPATCHED
        call.since, call.lease_s = self._clock.now(), lease_s
        book.progress.sequence += 1

    async def state_of(self, reservation_id: str) -> ReservationState | None:
        """Return how far a call has come; None for one never reserved, or forgotten."""
        book = self._books.get(_owner(reservation_id))
        call = None if book is None else book.calls.get(reservation_id)
        return None if call is None else call.state

    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        """Charge what a dispatched call used and give back the rest; the second time changes nothing."""
        book, call = self._call(reservation_id, "settle", _MAY_CHARGE)
        if call.state is SETTLED:
            return call.settlement(reservation_id)
        settlement = book.settle(reservation_id, call, actual)
        if book.line.waiters:
            book.serve(self._clock.now())
        return settlement

    async def release(self, reservation_id: str) -> None:
        """Give back all of a reservation that was never dispatched; twice is harmless."""
        book, call = self._call(reservation_id, "release", _MAY_RELEASE)
        if call.state is ReservationState.RESERVED:
            book.give_back(reservation_id, call)
            if book.line.waiters:
                book.serve(self._clock.now())

    async def in_doubt(self, reservation_id: str) -> Settlement:
        """Charge a dispatched call in full; a later `settle` corrects it. Twice is harmless."""
        book, call = self._call(reservation_id, "doubt", _MAY_CHARGE)
        if call.charged is not None:
            return call.settlement(reservation_id)
        settlement = book.doubt(reservation_id, call)
        if book.line.waiters:
            book.serve(self._clock.now())
        return settlement

    async def expire_leases(self) -> Sequence[ExpiredReservation]:
        """End the calls whose lease has run out, then serve those who wait."""
        now = self._clock.now()
        expired: list[ExpiredReservation] = []
        for book in self._books.values():
            expired += book.expire(now)
            if book.line.waiters:
                book.serve(now)
        return expired

    async def apply_limits(self, tenant: str, limits: Sequence[Limit], *, version: int) -> None:
        """Count against these limits from the next ask on; an older version, or the same, changes nothing."""
        book = self._book(tenant)
        if version > book.version:
            book.apply_limits(LimitSet(limits, self._counted), version)
            book.serve(self._clock.now())

    async def fence(self, tenant: str) -> None:
        """Let nothing more begin until `restore`; what is in flight may end."""
        self._book(tenant).fence()

    async def restore(self, tenant: str, bookings: Iterable[LedgerEntry]) -> LedgerCheckpoint:
        """Forget all that is known of a tenant's calls, book these in their place, and open admission again.

        Of several bookings of one call the last holds. Raises `AskError` for one that is another tenant's, has no
        moment or is neither settled nor in doubt; nothing is then forgotten.
        """
        found = {booking.ask.reservation_id: booking for booking in bookings}
        checked = [(booking, _moment_of(tenant, booking)) for booking in found.values()]
        book = self._book(tenant)
        book.restore(checked)
        book.serve(self._clock.now())
        return book.progress.position

    async def checkpoint(self, tenant: str) -> LedgerCheckpoint:
        """Return how far the tenant's ledger has come."""
        return self._book(tenant).progress.position

    async def require_at_least(self, tenant: str, position: LedgerCheckpoint) -> None:
        """Take note of how far the ledger had come once; behind that, or beside it, nothing is reserved."""
        self._book(tenant).require_at_least(position)

    async def balances(self, tenant: str, *, limited: bool = False) -> list[Balance]:
        """Return counters of a tenant; those of ended windows for as long as they are kept.

        Very many are looked at in pieces, between which others go on.
        """
        book = self._book(tenant)
        found: list[Balance] = []
        for piece in book.accounts.pieces(limited=limited):
            if found:
                await asyncio.sleep(0)
            found += map(counter_balance, piece)
        return found

    async def waiting(self, tenant: str) -> list[QueuedReservation]:
        """Return who of a tenant waits for headroom, in the order in which they will be served."""
        return self._book(tenant).line.seen()

    def statistics(self) -> LedgerStatistics:
        """Return the counts since the start."""
        books = self._books.values()
        return self._tally.statistics(
            in_flight=sum(len(book.calls.in_flight) for book in books),
            waiting=sum(len(list(book.line)) for book in books),
        )

    async def aclose(self) -> None:
        """Nothing was opened."""

    def _book(self, tenant: str) -> TenantLedger:
        owner = _owner(reservation_id(tenant, "", 1))
        book = self._books.get(owner)
        if book is None:
            accounts = TenantCounters(tenant, self._rules, self._horizon)
            progress = LedgerEpoch(tenant, self._began)
            book = TenantLedger(accounts, progress, self._horizon, self._tally, self._reserved_lease_s)
            self._books[owner] = book
        return book

    def _call(
        self, reservation_id: str, step: str, allowed: Sequence[ReservationState]
    ) -> tuple[TenantLedger, ReservationEntry]:
        book = self._books.get(_owner(reservation_id))
        if book is None:
            raise UnknownReservationError(reservation_id)
        call = book.calls.get(reservation_id)
        if call is None:
            book.progress.check()
            raise UnknownReservationError(reservation_id)
        if call.state not in allowed:
            raise ReservationStateError(reservation_id, step, call.state, allowed)
        return book, call

    def _forget(self, book: TenantLedger) -> None:
        """Drop finished calls and idle counters; looks at all that is in use, and is therefore seldom done."""
        if len(book.accounts.let_go) >= book.tidy_after:
            book.tidy()
        if self._horizon.newest < self._next_look and self._tally.in_vain < self._vain_at_next_look:
            return
        self._next_look = self._horizon.newest + self._horizon.keep / 8
        self._vain_at_next_look = self._tally.in_vain + _FORGET_AFTER_IN_VAIN
        for owner, book in list(self._books.items()):
            book.forget()
            if book.is_blank:
                del self._books[owner]


def _owner(reservation_id: str) -> str:
    """Return the part of a reservation's id that tells one tenant's from another's."""
    return reservation_id.partition(":")[0]


def _moment_of(tenant: str, booking: LedgerEntry) -> datetime:
    """Return when a call of the past was; raises `AskError` for what cannot be one."""
    ask = booking.ask
    if ask.tenant != tenant:
        raise ReservationRequestError(ask.key, f"belongs to tenant {ask.tenant!r}; allowed is {tenant!r}")
    if booking.state not in {ReservationState.SETTLED, ReservationState.IN_DOUBT}:
        raise ReservationRequestError(
            ask.key, f"is to be booked again as {booking.state}; allowed are settled and in_doubt"
        )
    if ask.at is None:
        raise ReservationRequestError(
            ask.key, "is to be booked again and has no moment; allowed are asks with `at`"
        )
    return ask.at
