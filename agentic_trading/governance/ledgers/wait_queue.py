"""Who waits for headroom in the memory ledger, in the order in which they will be served."""

import asyncio
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count

from agentic_trading.governance.errors import ReservationRequestError, LedgerError
from agentic_trading.governance.ledger import ReservationRequest, Blocked, Declined, Reservation, QueuedReservation
from agentic_trading.governance.ledgers.counter_table import WindowCounter

ReserveAnswer = Reservation | Declined | Blocked


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """Somebody in the line; `held` and the accounts `short_of` headroom say why, as of the last look."""

    ask: ReservationRequest
    accounts: Sequence[WindowCounter]
    held: Blocked
    short_of: Sequence[WindowCounter]
    since: datetime
    answer: asyncio.Future[Reservation | Declined]
    place: tuple[int, int] = (0, 0)


class WaitQueue:
    """The waiters of one tenant, by priority and then by arrival; to go through it leaves out who is about to leave."""

    __slots__ = ("_arrivals", "waiters")

    def __init__(self) -> None:
        self.waiters: list[QueuedRequest] = []
        self._arrivals = count()

    def enter(self, waiter: QueuedRequest) -> None:
        """Take the last place within the priority."""
        waiter.place = (-waiter.ask.priority, next(self._arrivals))
        insort(self.waiters, waiter, key=_place)

    def before(self, ask: ReservationRequest, accounts: Sequence[WindowCounter]) -> tuple[Blocked, WindowCounter] | None:
        """Return why somebody waits who has to be served before `ask`, and for which of its accounts."""
        for waiter in self.waiters:
            if waiter.ask.priority < ask.priority:
                break
            for account in waiter.short_of:
                if account in accounts:
                    return waiter.held, account
        return None

    def serve(self, look: Callable[[QueuedRequest], ReserveAnswer]) -> None:
        """Answer everyone who can be answered, in order; who is looked at sees only those before it in the line."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter.answer.done():  # cancelled: it is about to leave
                continue
            try:
                answer = look(waiter)
            except ReservationRequestError as e:
                waiter.answer.set_exception(e)
                continue
            if isinstance(answer, Blocked):
                waiter.held = answer
                self.waiters.append(waiter)
            else:
                waiter.answer.set_result(answer)

    def dismiss(self, error: Callable[[], LedgerError]) -> None:
        """Tell everybody that there is nothing to wait for."""
        for waiter in self:
            waiter.answer.set_exception(error())
        self.waiters.clear()

    def accounts(self) -> set[WindowCounter]:
        """Return what those wait for who stand here."""
        return {account for waiter in self for account in waiter.accounts}

    def seen(self) -> list[QueuedReservation]:
        """Return the line as others see it."""
        return [
            QueuedReservation(waiter.ask.reservation_id, waiter.held, waiter.ask.priority, waiter.since)
            for waiter in self
        ]

    def __iter__(self) -> Iterator[QueuedRequest]:
        return (waiter for waiter in self.waiters if not waiter.answer.done())


def _place(waiter: QueuedRequest) -> tuple[int, int]:
    return waiter.place
