"""The ledger of one process: in memory, each step one piece that nothing interrupts."""

import asyncio
from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count

from agentic_trading.governance.errors import (
    ReservationConflictError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.estimate import Amount
from agentic_trading.governance.ledger import (
    Ask,
    Balance,
    CallState,
    Held,
    LedgerStatistics,
    Limit,
    Refusal,
    Reservation,
    ScopeKind,
    Settlement,
)
from agentic_trading.governance.ledgers.accounts import Account, Accounts
from agentic_trading.governance.ledgers.call import NOTHING, Call, balance, booked_in, excess
from agentic_trading.governance.ledgers.shortage import behind, fits, shortages
from agentic_trading.governance.windows import Window

_SWEEP_AFTER_IN_VAIN = 1000
"""Asks in vain make counters too, and do not move time on: after so many of them, or as many as calls, idle ones go."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """Somebody in the line; `held` and the accounts `short_of` headroom say why, as of the last look."""

    ask: Ask
    accounts: Sequence[Account]
    place: tuple[int, int]
    held: Held
    short_of: Sequence[Account]
    answer: asyncio.Future[Reservation | Refusal]


class MemoryLedger:
    """Keeps the whole promise of `Ledger` within one event loop.

    `zone` is where days and months begin. A finished call is remembered for `keep`, by the newest moment that
    something was reserved for; so are the counters of ended windows, and of calls and traces at rest. `counted` are
    counters kept where no limit needs them, so that an ask's own limit knows what was before it.
    """

    def __init__(
        self,
        limits: Iterable[Limit] = (),
        *,
        zone: tzinfo = UTC,
        keep: timedelta = timedelta(days=1),
        counted: Collection[tuple[ScopeKind, Window]] = ((ScopeKind.AGENT, Window.DAY),),
    ) -> None:
        self._accounts = Accounts(tuple(limits), zone=zone, keep=keep, counted=counted)
        self._keep = keep
        self._next_sweep = datetime.min.replace(tzinfo=UTC)
        self._vain_at_next_sweep = _SWEEP_AFTER_IN_VAIN
        self._calls: dict[str, Call] = {}
        self._in_flight: dict[str, Call] = {}
        self._line: list[_Waiter] = []
        self._arrivals = count()
        self._counts = {field.name: 0 for field in fields(LedgerStatistics)}

    async def reserve(self, ask: Ask) -> Reservation | Refusal | Held:
        """Set the amount aside, or say why not; never wait."""
        known = self._known(ask)
        if known is not None:
            return known
        answer, _ = self._decide(ask, self._accounts.of(ask), self._line)
        if isinstance(answer, Held):
            self._counts["held"] += 1
        self._sweep()
        return answer

    async def reserve_in_turn(self, ask: Ask) -> Reservation | Refusal:
        """Wait until `ask` can be answered for good: in order of arrival within a priority."""
        known = self._known(ask)
        if known is not None:
            return known
        accounts = self._accounts.of(ask)
        answer, short_of = self._decide(ask, accounts, self._line)
        if not isinstance(answer, Held):
            self._sweep()
            return answer
        future: asyncio.Future[Reservation | Refusal] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(ask, accounts, (-ask.priority, next(self._arrivals)), answer, short_of, future)
        insort(self._line, waiter, key=_place)
        try:
            return await future
        except asyncio.CancelledError:
            self._leave(waiter)
            raise

    async def dispatch(self, reservation_id: str) -> None:
        """Note that the request is about to be sent; a second time raises `ReservationStateError`."""
        self._call(reservation_id, "dispatch", (CallState.RESERVED,)).state = CallState.DISPATCHED

    async def state_of(self, reservation_id: str) -> CallState | None:
        """Return how far a call has come; None for one never reserved, or forgotten."""
        call = self._calls.get(reservation_id)
        return None if call is None else call.state

    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        """Charge what a dispatched call used and give back the rest; the second time changes nothing."""
        call = self._call(
            reservation_id, "settle", (CallState.DISPATCHED, CallState.IN_DOUBT, CallState.SETTLED)
        )
        doubtful = call.settlement
        if doubtful is not None and not doubtful.in_doubt:
            return doubtful
        over = excess(actual, call.ask.amount)
        settlement = Settlement(reservation_id, actual, call.ask.amount, over, late=doubtful is not None)
        return self._charge(call, settlement, CallState.SETTLED)

    async def release(self, reservation_id: str) -> None:
        """Give back all of a reservation that was never dispatched; twice is harmless."""
        call = self._call(reservation_id, "release", (CallState.RESERVED, CallState.RELEASED))
        if call.state is CallState.RESERVED:
            self._give_back(reservation_id, call)

    async def in_doubt(self, reservation_id: str) -> Settlement:
        """Charge a dispatched call in full; a later `settle` corrects it. Twice is harmless."""
        call = self._call(
            reservation_id, "doubt", (CallState.DISPATCHED, CallState.IN_DOUBT, CallState.SETTLED)
        )
        if call.settlement is not None:
            return call.settlement
        amount = call.ask.amount
        settlement = Settlement(reservation_id, amount, amount, NOTHING, in_doubt=True)
        return self._charge(call, settlement, CallState.IN_DOUBT)

    async def snapshot(self) -> list[Balance]:
        """Return every counter as it is now; those of ended windows for as long as they are kept."""
        in_flight = self._in_flight.values()
        in_doubt = [call for call in self._calls.values() if call.state is CallState.IN_DOUBT]
        return [balance(account, in_flight, in_doubt) for account in self._accounts]

    def statistics(self) -> LedgerStatistics:
        """Return the counts since the start."""
        return LedgerStatistics(**{
            **self._counts,
            "in_flight": len(self._in_flight),
            "waiting": len(self._line),
        })

    def _known(self, ask: Ask) -> Reservation | None:
        call = self._calls.get(ask.reservation_id)
        if call is None:
            return None
        if call.ask is not ask and call.ask.payload_hash != ask.payload_hash:
            raise ReservationConflictError(ask.key, ask.attempt)
        if call.state is CallState.RELEASED:
            return None
        return Reservation(ask.reservation_id, call.ask.amount, call.state)

    def _call(self, reservation_id: str, step: str, allowed: Sequence[CallState]) -> Call:
        call = self._calls.get(reservation_id)
        if call is None:
            raise UnknownReservationError(reservation_id)
        if call.state not in allowed:
            raise ReservationStateError(reservation_id, step, call.state, allowed)
        return call

    def _decide(
        self, ask: Ask, accounts: Sequence[Account], line: Iterable[_Waiter]
    ) -> tuple[Reservation | Refusal | Held, Sequence[Account]]:
        """Reserve, or say why not and which accounts fall short; those who stand in `line` go first."""
        if not fits(ask, accounts):
            found = list(shortages(ask, accounts, self._held))
            final = [shortage for shortage in found if shortage.is_final]
            self._counts["refused"] += bool(final)
            answer = final[0].refusal() if final else found[0].wait()
            return answer, [shortage.account for shortage in found]
        for waiter in line:
            if waiter.ask.priority < ask.priority:
                break
            for account in waiter.short_of:
                if account in accounts:
                    return behind(ask, waiter.held), [account]
        return self._reserve(ask, accounts), ()

    def _reserve(self, ask: Ask, accounts: Sequence[Account]) -> Reservation:
        call = Call(ask, accounts)
        call.book(ask.amount)
        id_ = ask.reservation_id
        self._calls[id_] = self._in_flight[id_] = call
        self._accounts.move_to(ask.at)
        self._counts["reserved"] += 1
        return Reservation(id_, ask.amount)

    def _charge(self, call: Call, settlement: Settlement, state: CallState) -> Settlement:
        """Book what `settlement` charges in place of what is booked so far: the reservation, in flight or in doubt."""
        call.book(settlement.charged, instead_of=settlement.reserved)
        call.settlement = settlement
        self._count(settlement)
        self._end(settlement.reservation_id, call, state)
        return settlement

    def _count(self, settlement: Settlement) -> None:
        counts = self._counts
        counts["in_doubt" if settlement.in_doubt else "settled"] += 1
        counts["charged_nusd"] += settlement.charged.nusd
        if settlement.late:
            counts["late"] += 1
            counts["charged_nusd"] -= settlement.reserved.nusd
        else:
            counts["reserved_nusd"] += settlement.reserved.nusd
        if settlement.overrun is not NOTHING:
            counts["overruns"] += 1
            counts["overrun_nusd"] += settlement.overrun.nusd

    def _end(self, reservation_id: str, call: Call, state: CallState) -> None:
        """Take the call out of flight, and let those who wait have what came free."""
        call.state = state
        self._in_flight.pop(reservation_id, None)
        if state is not CallState.IN_DOUBT:
            call.accounts = ()
        if self._line:
            self._advance()

    def _give_back(self, reservation_id: str, call: Call) -> None:
        call.book(NOTHING, instead_of=call.ask.amount)
        self._counts["released"] += 1
        self._end(reservation_id, call, CallState.RELEASED)

    def _advance(self) -> None:
        """Answer everyone in the line who can be answered, in its order."""
        line, self._line = self._line, []
        for waiter in line:
            if waiter.answer.done():  # cancelled: it is about to leave
                continue
            try:
                answer = self._known(waiter.ask) or self._try_again(waiter)
            except ReservationConflictError as e:
                waiter.answer.set_exception(e)
                continue
            if isinstance(answer, Held):
                self._line.append(waiter)
            else:
                waiter.answer.set_result(answer)

    def _try_again(self, waiter: _Waiter) -> Reservation | Refusal | Held:
        answer, waiter.short_of = self._decide(waiter.ask, waiter.accounts, self._line)
        if isinstance(answer, Held):
            waiter.held = answer
        return answer

    def _leave(self, waiter: _Waiter) -> None:
        """Forget somebody who waits no longer, with what they may just have been given."""
        if waiter.answer.cancelled():
            self._advance()
            return
        id_ = waiter.ask.reservation_id
        call = self._calls.get(id_)
        if call is not None and call.state is CallState.RESERVED:
            self._give_back(id_, call)

    def _sweep(self) -> None:
        """Drop finished calls and idle counters; looks at all there are, and is therefore seldom done."""
        vain = self._counts["refused"] + self._counts["held"]
        if self._accounts.newest < self._next_sweep and vain < self._vain_at_next_sweep:
            return
        self._next_sweep = self._accounts.newest + self._keep / 8
        oldest = self._accounts.oldest
        over = [
            id_ for id_, call in self._calls.items() if call.ask.at < oldest and id_ not in self._in_flight
        ]
        for id_ in over:
            del self._calls[id_]
        self._vain_at_next_sweep = vain + max(_SWEEP_AFTER_IN_VAIN, len(self._calls))
        self._accounts.forget(self._in_use())

    def _in_use(self) -> set[Account]:
        """Return the accounts of who waits, is in flight or in doubt; what was settled or released has none."""
        waiting = (waiter.accounts for waiter in self._line)
        calls = (call.accounts for call in self._calls.values())
        return {account for accounts in (*waiting, *calls) for account in accounts}

    def _held(self, account: Account) -> Amount:
        return booked_in(account, self._in_flight.values())


def _place(waiter: _Waiter) -> tuple[int, int]:
    return waiter.place
