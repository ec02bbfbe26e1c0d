"""One tenant in the memory ledger: its counters, its calls, its line, and how far all that has come."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from agentic_trading.governance.allowance import KEY
from agentic_trading.governance.errors import LedgerRolledBackError, ReservationConflictError
from agentic_trading.governance.estimate import NOTHING, Amount
from agentic_trading.governance.ledger import (
    Ask,
    Booking,
    CallState,
    Expired,
    Position,
    Reservation,
    Settlement,
)
from agentic_trading.governance.ledgers.accounts import Account, Accounts, Horizon
from agentic_trading.governance.ledgers.call import (
    IN_DOUBT,
    SETTLED,
    Call,
    Closure,
    book_in,
    charge_in,
    doubt_in,
)
from agentic_trading.governance.ledgers.line import Answer, Line, Waiter
from agentic_trading.governance.ledgers.rules import Rules
from agentic_trading.governance.ledgers.shortage import behind, fits, shortages
from agentic_trading.governance.ledgers.tally import Tally


class Book:
    """Each step is taken whole and at once; only `serve` looks at the line again.

    `began` tells this book from those of the same tenant in other processes, or before.
    """

    __slots__ = (
        "_closure", "_horizon", "_reserved_lease_s", "_rules", "_tally", "accounts", "began", "calls", "expected",
        "generation", "in_flight", "line", "newest", "sequence", "tenant", "version",
    )  # fmt: skip

    def __init__(
        self,
        tenant: str,
        rules: Rules,
        horizon: Horizon,
        tally: Tally,
        *,
        began: str,
        reserved_lease_s: float,
    ) -> None:
        self._rules = rules
        self._horizon = horizon
        self._tally = tally
        self._reserved_lease_s = reserved_lease_s
        self._closure: Closure | None = None
        self.tenant = tenant
        self.accounts = Accounts(tenant, rules, horizon)
        self.calls: dict[str, Call] = {}
        self.in_flight: dict[str, Call] = {}
        self.line = Line()
        self.version = 0
        self.began = began
        self.generation = self.expected = 1
        self.sequence = 0
        self.newest: datetime | None = None

    @property
    def is_blank(self) -> bool:
        """Whether nothing would be lost with it."""
        no_step = self.sequence == 0 and self.expected == 1
        return no_step and self._closure is None and not self.line.waiters

    @property
    def position(self) -> Position:
        """How far it has come."""
        return Position(self.generation, f"{self.began}/{self.generation}", self.sequence)

    def check(self) -> None:
        """Raise `LedgerRolledBackError` if this book is shut, or was found to have forgotten steps."""
        if self._closure is not None:
            raise self._refusal(self._closure)

    def known(self, id_: str, ask: Ask) -> Reservation | None:
        """Return the reservation that the same ask got before, if it still has one."""
        self.check()
        call = self.calls.get(id_)
        if call is None or call.state is CallState.RELEASED:
            return None
        if call.ask is not ask and call.ask.payload_hash != ask.payload_hash:
            raise ReservationConflictError(ask.key, ask.attempt)
        return Reservation(id_, call.ask.amount, call.state)

    def decide(
        self, id_: str, ask: Ask, at: datetime, now: datetime, accounts: Sequence[Account]
    ) -> tuple[Answer, Sequence[Account]]:
        """Reserve under `id_`, or say why not and which accounts fall short; those who stand in the line go first."""
        if not fits(ask, accounts) and not ask.is_for_nothing:
            found = list(shortages(ask, accounts))
            final = [shortage for shortage in found if shortage.is_final]
            if final:
                self._tally.refuse()
            answer = final[0].refusal() if final else found[0].wait()
            return answer, [shortage.account for shortage in found]
        if self.line.waiters and not ask.is_for_nothing:
            ahead = self.line.before(ask, accounts)
            if ahead is not None:
                held, account = ahead
                return behind(ask, held), [account]
        book_in(accounts, ask.amount)
        self.calls[id_] = self.in_flight[id_] = Call(ask, at, accounts, now, self._reserved_lease_s)
        self._move_to(at)
        self.sequence += 1
        self._tally.counts["reserved"] += 1
        return Reservation(id_, ask.amount), ()

    def give_back(self, id_: str, call: Call) -> None:
        """Release a call that was not dispatched."""
        book_in(call.accounts, NOTHING, call.ask.amount)
        self._tally.counts["released"] += 1
        self._end(id_, call, CallState.RELEASED)

    def settle(self, id_: str, call: Call, actual: Amount) -> Settlement:
        """Charge what a call used in place of what is booked so far: its reservation, in flight or in doubt."""
        reserved, doubtful = call.ask.amount, call.charged
        if doubtful is None:
            charge_in(call.accounts, actual, reserved, NOTHING)
            return self._charged(id_, call, actual, reserved, SETTLED)
        charge_in(call.accounts, actual, doubtful, doubtful)
        doubt_in(call.accounts, NOTHING, doubtful)
        call.is_late = True
        return self._charged(id_, call, actual, doubtful, SETTLED)

    def doubt(self, id_: str, call: Call) -> Settlement:
        """Charge a dispatched call in full."""
        amount = call.ask.amount
        charge_in(call.accounts, amount, amount, NOTHING)
        doubt_in(call.accounts, amount)
        return self._charged(id_, call, amount, amount, IN_DOUBT)

    def expire(self, now: datetime) -> list[Expired]:
        """End the calls whose lease is over."""
        silent = [(id_, call) for id_, call in self.in_flight.items() if call.is_silent(now)]
        for id_, call in silent:
            if call.state is CallState.RESERVED:
                self.give_back(id_, call)
            else:
                self.doubt(id_, call)
        return [Expired(id_, call.state, call.ask.amount, call.ask.scope_ids) for id_, call in silent]

    def adopt(self, rules: Rules, version: int) -> None:
        """Count against other rules; counters that they need and that nobody kept start with the calls known."""
        self.version = version
        self._rules = rules
        self.sequence += 1
        kept = self.accounts.adopt(rules)
        for call in self.calls.values():
            accounts = self.accounts.kept(call.ask, call.at)
            new = [one for one in accounts if (one.scope.kind, one.scope.id, one.window) not in kept]
            _count(call, new)
            if call.accounts:
                call.accounts = [*call.accounts, *new]
        self._look_up_again()

    def shut(self) -> None:
        """Let nothing begin until `restore`."""
        if self._closure is None:
            self._close(Closure("a log that is being booked again", has_gone_back=False))

    def restore(self, bookings: Iterable[tuple[Booking, datetime]]) -> None:
        """Forget every call that was over when it was closed, book these for their moments, begin the next generation.

        What a book that was found to have gone back takes for calls in flight is forgotten too.
        """
        closure = self._closure or Closure("", has_gone_back=False)
        carried = closure.ended | ({} if closure.has_gone_back else self.in_flight)
        booked = _booked(bookings, closure.ended)
        self.accounts = Accounts(self.tenant, self._rules, self._horizon)
        self.calls, self.in_flight = {}, {}
        for id_, call in (carried | booked).items():
            self._carry(id_, call)
        self._look_up_again()
        self.generation = self.expected = max(self.generation, self.expected) + 1
        self.sequence = 0
        self._closure = None

    def expect(self, position: Position) -> None:
        """Let nothing be reserved any more if this book has not come as far as `position`."""
        self.expected = max(self.expected, position.generation)
        if _is_behind(self.position, position):
            ended = {} if self._closure is None else self._closure.ended
            self._close(Closure(_spelled(position), has_gone_back=True, ended=ended))

    def serve(self, now: datetime) -> None:
        """Answer everyone in the line who can be answered, in its order."""

        def look(waiter: Waiter) -> Answer:
            ask = waiter.ask
            id_ = ask.reservation_id
            known = self.known(id_, ask)
            if known is not None:
                return known
            if ask.at is None:  # the present has moved on, perhaps into another window
                waiter.accounts = self.accounts.kept(ask, now)
            answer, waiter.short_of = self.decide(id_, ask, ask.at or now, now, waiter.accounts)
            return answer

        self.line.serve(look)

    def leave(self, waiter: Waiter, now: datetime) -> None:
        """Forget somebody who waits no longer, with what they may just have been given."""
        answer = waiter.answer
        if not answer.cancelled() and answer.exception() is None:
            id_ = waiter.ask.reservation_id
            call = self.calls.get(id_)
            if call is None or call.state is not CallState.RESERVED:
                return
            self.give_back(id_, call)
        self.serve(now)

    def forget(self) -> None:
        """Drop finished calls and idle counters, as far back as the horizon says."""
        oldest = self._horizon.oldest
        for id_ in [
            id_ for id_, call in self.calls.items() if call.at < oldest and id_ not in self.in_flight
        ]:
            call = self.calls.pop(id_)
            if call.state is CallState.IN_DOUBT:
                doubt_in(call.accounts, NOTHING, call.booked)
        in_use = {account for call in self.calls.values() for account in call.accounts}
        in_use.update(account for waiter in self.line for account in waiter.accounts)
        self.accounts.forget(in_use)

    def _charged(self, id_: str, call: Call, charged: Amount, before: Amount, state: CallState) -> Settlement:
        call.charged = charged
        self._end(id_, call, state)
        settlement = call.settlement(id_)
        self._tally.charge(settlement, before.nusd)
        return settlement

    def _end(self, id_: str, call: Call, state: CallState) -> None:
        """Take a call out of flight."""
        call.state = state
        self.sequence += 1
        self.in_flight.pop(id_, None)
        if state is not IN_DOUBT:
            call.accounts = ()
        if self._closure is not None and _is_kept(call):
            self._closure.ended[id_] = call

    def _carry(self, id_: str, call: Call) -> None:
        """Count a call of before in the counters of now."""
        self._move_to(call.at)
        accounts = self.accounts.kept(call.ask, call.at)
        _count(call, accounts)
        self.calls[id_] = call
        if call.charged is None:
            self.in_flight[id_] = call
        if call.state is not SETTLED:
            call.accounts = accounts

    def _close(self, closure: Closure) -> None:
        self._closure = closure
        self.line.dismiss(lambda: self._refusal(closure))

    def _move_to(self, at: datetime) -> None:
        if self.newest is None or at > self.newest:
            self.newest = at
            self._horizon.move_to(at)

    def _look_up_again(self) -> None:
        """Find the accounts of those who wait, after these may have changed."""
        for waiter in self.line:
            waiter.accounts = self.accounts.kept(waiter.ask, waiter.ask.at or waiter.since)

    def _refusal(self, closure: Closure) -> LedgerRolledBackError:
        return LedgerRolledBackError(self.tenant, closure.why, _spelled(self.position))


def _is_kept(call: Call) -> bool:
    """Whether a call that has just ended stays; what was set aside paid for calls that a log knows for themselves."""
    return call.state is not CallState.RELEASED and not call.ask.key.startswith(KEY)


def _is_behind(mine: Position, known: Position) -> bool:
    return mine.generation < known.generation or (
        mine.generation == known.generation and (mine.mark != known.mark or mine.sequence < known.sequence)
    )


def _booked(bookings: Iterable[tuple[Booking, datetime]], ended: Collection[str]) -> dict[str, Call]:
    """Return calls of the past; of those that have ended since, a booking in doubt is older than what is known."""
    return {
        booking.ask.reservation_id: Call(booking.ask, at, (), at, 0.0, booking.state, booking.charged)
        for booking, at in bookings
        if booking.state is SETTLED or booking.ask.reservation_id not in ended
    }


def _count(call: Call, accounts: Iterable[Account]) -> None:
    """Count a call in accounts that do not know it, as far as it has come."""
    if call.charged is None:
        book_in(accounts, call.booked)
    else:
        charge_in(accounts, call.booked, NOTHING, NOTHING)
    if call.state is CallState.IN_DOUBT:
        doubt_in(accounts, call.booked)


def _spelled(position: Position) -> str:
    return f"step {position.sequence} of generation {position.generation} ({position.mark})"
