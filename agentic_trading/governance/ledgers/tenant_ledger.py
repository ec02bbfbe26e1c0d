"""One tenant in the memory ledger: its counters, its calls, its line, and how far all that has come."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import ClassVar

from agentic_trading.governance.errors import ClosedWindowError, ReservationConflictError
from agentic_trading.governance.ledger import (
    ExpiredReservation,
    LedgerCheckpoint,
    LedgerEntry,
    Reservation,
    ReservationRequest,
    ReservationState,
    Settlement,
)
from agentic_trading.governance.ledgers.checkpoint import Fence, LedgerEpoch, StatisticsCounter
from agentic_trading.governance.ledgers.counters import (
    CountedIds,
    RetentionHorizon,
    TenantCounters,
    WindowCounter,
)
from agentic_trading.governance.ledgers.headroom import behind, fits, shortages
from agentic_trading.governance.ledgers.limit_set import LimitSet
from agentic_trading.governance.ledgers.reservation_table import (
    DISPATCHED,
    IN_DOUBT,
    SETTLED,
    QueuedRequest,
    ReservationEntry,
    ReservationTable,
    ReserveAnswer,
    WaitQueue,
    hold,
    post_charge,
    post_in_doubt,
    release_hold,
)
from agentic_trading.governance.prices import NOTHING, Amount


class TenantLedger:
    """Each step is taken whole and at once; only `serve` looks at the line again."""

    tidy_after: ClassVar[int] = 64
    """After so many calls the counters that they are done with are laid aside."""

    __slots__ = (
        "_horizon", "_reserved_lease_s", "_tally", "accounts", "calls", "line", "progress", "version",
    )  # fmt: skip

    def __init__(
        self,
        accounts: TenantCounters,
        progress: LedgerEpoch,
        horizon: RetentionHorizon,
        tally: StatisticsCounter,
        reserved_lease_s: float,
    ) -> None:
        self._horizon = horizon
        self._tally = tally
        self._reserved_lease_s = reserved_lease_s
        self.progress = progress
        self.accounts = accounts
        self.calls = ReservationTable()
        self.line = WaitQueue()
        self.version = 0

    @property
    def is_blank(self) -> bool:
        """Whether nothing would be lost with it."""
        return self.progress.is_none and not self.line.waiters

    def known(self, id_: str, ask: ReservationRequest) -> Reservation | None:
        """Return the reservation that the same ask got before, if it still has one."""
        self.progress.check()
        call = self.calls.get(id_)
        if call is None or call.state is ReservationState.RELEASED:
            return None
        if call.ask is not ask and call.ask.payload_hash != ask.payload_hash:
            raise ReservationConflictError(ask.key, ask.attempt)
        return Reservation(id_, call.ask.amount, call.state)

    def accounts_of(self, ask: ReservationRequest, at: datetime) -> list[WindowCounter]:
        """Return the accounts that `ask` is counted in; raises `ClosedWindowError` for a moment too long ago."""
        if at < self._horizon.newest and at < self._horizon.oldest:
            raise ClosedWindowError(ask.key, at, self._horizon.oldest)
        if ask.limits:
            self._count_own(ask)
        return self.accounts.of(ask, at)

    def decide(
        self,
        id_: str,
        ask: ReservationRequest,
        at: datetime,
        now: datetime,
        accounts: Sequence[WindowCounter],
    ) -> tuple[ReserveAnswer, Sequence[WindowCounter]]:
        """Reserve under `id_`, or say why not and which accounts fall short; those who stand in the line go first."""
        if not fits(ask, accounts) and not ask.is_for_nothing:
            found = list(shortages(ask, accounts))
            final = [shortage for shortage in found if shortage.is_final]
            if final:
                self._tally.refuse()
            self.accounts.take_back(accounts)
            answer = final[0].refusal() if final else found[0].wait()
            return answer, [shortage.account for shortage in found]
        if self.line.waiters and not ask.is_for_nothing:
            ahead = self.line.before(ask, accounts)
            if ahead is not None:
                self.accounts.take_back(accounts)
                held, account = ahead
                return behind(ask, held), [account]
        hold(accounts, ask.amount)
        self.calls.in_flight[id_] = ReservationEntry(ask, at, accounts, now, self._reserved_lease_s)
        self.accounts.move_to(at)
        self.progress.sequence += 1
        self._tally.counts["reserved"] += 1
        return Reservation(id_, ask.amount), ()

    def give_back(self, id_: str, call: ReservationEntry) -> None:
        """Release a call that was not dispatched."""
        release_hold(call.accounts, call.ask.amount)
        self._tally.counts["released"] += 1
        self._end(id_, call, ReservationState.RELEASED)

    def settle(self, id_: str, call: ReservationEntry, actual: Amount) -> Settlement:
        """Charge what a call used in place of what is booked so far: its reservation, in flight or in doubt."""
        reserved, doubtful = call.ask.amount, call.charged
        if doubtful is None:
            post_charge(call.accounts, actual, reserved, NOTHING)
            return self._charged(id_, call, actual, reserved, SETTLED)
        post_charge(call.accounts, actual, doubtful, doubtful)
        post_in_doubt(call.accounts, NOTHING, doubtful)
        call.is_late = True
        return self._charged(id_, call, actual, doubtful, SETTLED)

    def doubt(self, id_: str, call: ReservationEntry) -> Settlement:
        """Charge a dispatched call in full."""
        amount = call.ask.amount
        post_charge(call.accounts, amount, amount, NOTHING)
        post_in_doubt(call.accounts, amount)
        return self._charged(id_, call, amount, amount, IN_DOUBT)

    def expire(self, now: datetime) -> list[ExpiredReservation]:
        """End the calls whose lease is over."""
        silent = [(id_, call) for id_, call in self.calls.in_flight.items() if call.is_silent(now)]
        for id_, call in silent:
            end = self.give_back if call.state is ReservationState.RESERVED else self.doubt
            end(id_, call)
        return [
            ExpiredReservation(id_, call.state, call.ask.amount, call.ask.scope_ids) for id_, call in silent
        ]

    def apply_limits(self, rules: LimitSet, version: int) -> None:
        """Count against other rules; counters that they need and that nobody kept start with the calls known."""
        self.version = version
        self.progress.sequence += 1
        self.accounts.tidy(self._in_use())
        before = self.accounts.counted()
        self.accounts.follow(rules)
        self._count_calls(before)

    def fence(self) -> None:
        """Let nothing begin until `restore`."""
        if self.progress.closure is None:
            _close(self, Fence("a log that is being booked again", has_gone_back=False))

    def restore(self, bookings: Iterable[tuple[LedgerEntry, datetime]]) -> None:
        """Forget every call that was over when it was closed, book these for their moments, begin the next generation.

        What a book that was found to have gone back takes for calls in flight is forgotten too.
        """
        closure = self.progress.closure or Fence("", has_gone_back=False)
        carried = closure.ended | ({} if closure.has_gone_back else self.calls.in_flight)
        booked = _booked(bookings, closure.ended)
        self.accounts = self.accounts.anew()
        self.calls = ReservationTable()
        for id_, call in (carried | booked).items():
            self._carry(id_, call)
        for waiter in self.line:
            _look_up(self.accounts, waiter, waiter.since)
            self._count_own(waiter.ask)
        self.progress.begin_again()

    def require_at_least(self, position: LedgerCheckpoint) -> None:
        """Let nothing be reserved any more if this book has not come as far as `position`."""
        closure = self.progress.require_at_least(position)
        if closure is not None:
            _close(self, closure)

    def serve(self, now: datetime) -> None:
        """Answer everyone in the line who can be answered, in its order."""

        def look(waiter: QueuedRequest) -> ReserveAnswer:
            ask = waiter.ask
            id_ = ask.reservation_id
            known = self.known(id_, ask)
            if known is not None:
                return known
            if ask.at is None:  # the present has moved on, perhaps into another window
                _look_up(self.accounts, waiter, now)
            answer, waiter.short_of = self.decide(id_, ask, ask.at or now, now, waiter.accounts)
            return answer

        self.line.serve(look)

    def leave(self, waiter: QueuedRequest, now: datetime) -> None:
        """Forget somebody who waits no longer, with what they may just have been given."""
        answer = waiter.answer
        if not answer.cancelled() and answer.exception() is None:
            id_ = waiter.ask.reservation_id
            call = self.calls.in_flight.get(id_)
            if call is None or call.state is not ReservationState.RESERVED:
                return
            self.give_back(id_, call)
        self.serve(now)

    def tidy(self) -> None:
        """Lay aside the counters that calls were done with, once these are more than those that may still change."""
        may_change = len(self.calls.in_flight) + len(self.calls.in_doubt) + len(self.line.waiters)
        if len(self.accounts.let_go) >= max(self.tidy_after, may_change):
            self.accounts.tidy(self._in_use())

    def forget(self) -> None:
        """Drop finished calls and idle counters, as far back as the horizon says."""
        for call in self.calls.forget(self._horizon.oldest):
            post_in_doubt(call.accounts, NOTHING, call.booked)
        self.accounts.forget(self._in_use())

    def _in_use(self) -> set[WindowCounter]:
        """Return the counters that may still change by what is known."""
        return self.calls.accounts() | self.line.accounts()

    def _charged(
        self, id_: str, call: ReservationEntry, charged: Amount, before: Amount, state: ReservationState
    ) -> Settlement:
        call.charged = charged
        self._end(id_, call, state)
        settlement = call.settlement(id_)
        self._tally.charge(settlement, before.nusd)
        return settlement

    def _end(self, id_: str, call: ReservationEntry, state: ReservationState) -> None:
        """Take a call out of flight."""
        call.state = state
        self.progress.sequence += 1
        self._keep(id_, call)
        if self.progress.closure is not None:
            self.progress.closure.note(id_, call)

    def _carry(self, id_: str, call: ReservationEntry) -> None:
        """Count a call of before in the counters of now."""
        self.accounts.move_to(call.at)
        call.accounts = self.accounts.of(call.ask, call.at)
        _count(call, call.accounts)
        if call.state in {ReservationState.RESERVED, DISPATCHED}:
            self.calls.in_flight[id_] = call
        else:
            self._keep(id_, call)

    def _keep(self, id_: str, call: ReservationEntry) -> None:
        """Remember a call that has ended."""
        if self.calls.end(id_, call):
            self.accounts.let_go.append(call.accounts)
            call.accounts = ()

    def _count_own(self, ask: ReservationRequest) -> None:
        """Have counted what an ask's own limits are about: for everyone, as another's may be about the same."""
        lacking = [limit for limit in ask.limits if self.accounts.lack(limit)]
        if lacking:
            before = self.accounts.counted()
            for limit in lacking:
                self.accounts.count_everyone(limit)
            self._count_calls(before)

    def _count_calls(self, before: CountedIds) -> None:
        """Count the calls that are remembered where they were not counted before; who waits is to be counted there too."""
        more = self.accounts.new_since(before)
        for call in self.calls if more else ():
            found = self.accounts.of(call.ask, call.at, more)
            new = [account for account in found if account.id not in more[account.table]]
            _count(call, new)
            self.accounts.let_go.append(found)
            if call.accounts:
                call.accounts = [*call.accounts, *new]
        for waiter in self.line:
            _look_up(self.accounts, waiter, waiter.since)
        self.accounts.tidy(self._in_use())


def _close(book: TenantLedger, closure: Fence) -> None:
    book.progress.closure = closure
    book.line.dismiss(lambda: book.progress.refusal(closure))


def _look_up(accounts: TenantCounters, waiter: QueuedRequest, present: datetime) -> None:
    """Find the accounts of somebody who waits, after these may have changed."""
    found = accounts.of(waiter.ask, waiter.ask.at or present)
    accounts.take_back(found)
    if found != waiter.accounts:
        accounts.let_go.append(waiter.accounts)
        waiter.accounts = found


def _booked(
    bookings: Iterable[tuple[LedgerEntry, datetime]], ended: Collection[str]
) -> dict[str, ReservationEntry]:
    """Return calls of the past; of those that have ended since, a booking in doubt is older than what is known."""
    return {
        booking.ask.reservation_id: ReservationEntry(
            booking.ask, at, (), at, 0.0, booking.state, booking.charged
        )
        for booking, at in bookings
        if booking.state is SETTLED or booking.ask.reservation_id not in ended
    }


def _count(call: ReservationEntry, accounts: Sequence[WindowCounter]) -> None:
    """Count a call in accounts that do not know it, as far as it has come."""
    if call.charged is None:
        hold(accounts, call.booked)
    else:
        post_charge(accounts, call.booked, NOTHING, NOTHING)
    if call.state is ReservationState.IN_DOUBT:
        post_in_doubt(accounts, call.booked)
