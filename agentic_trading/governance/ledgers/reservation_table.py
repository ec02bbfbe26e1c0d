"""The calls of one tenant in the memory ledger: open ones, and ended ones as long as they are remembered."""

import asyncio
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain, count, takewhile

from agentic_trading.governance import ledger as ledger_api
from agentic_trading.governance.errors import LedgerError, ReservationRequestError
from agentic_trading.governance.ledgers.counters import Denial, WindowCounter, behind, fits_own_limits
from agentic_trading.governance.limits import Limit, ScopeKind
from agentic_trading.governance.prices import NOTHING, Amount

# In Python 3.11 a member looked up in its class costs ten times a name of the module, and every call would pay for it.
RESERVED = ledger_api.ReservationState.RESERVED
DISPATCHED = ledger_api.ReservationState.DISPATCHED
SETTLED = ledger_api.ReservationState.SETTLED
IN_DOUBT = ledger_api.ReservationState.IN_DOUBT


@dataclass(slots=True, eq=False)
class ReservationEntry:
    """A reservation for the time `at`.

    `charged` is set when it is settled or in doubt. `counters` are kept as long as the booked amount may
    change. The lease runs for `lease_s` from `since`.
    """

    request: ledger_api.ReservationRequest
    at: datetime
    counters: Sequence[WindowCounter]
    since: datetime
    lease_s: float
    state: ledger_api.ReservationState = ledger_api.ReservationState.RESERVED
    charged: Amount | None = None
    is_late: bool = False

    @property
    def booked(self) -> Amount:
        """The amount that the call counts for now, held or spent."""
        if self.charged is not None:
            return self.charged
        return NOTHING if self.state is ledger_api.ReservationState.RELEASED else self.request.amount

    def settlement(self, id_: str) -> ledger_api.Settlement:
        """Return the charge as a `Settlement`."""
        charged, reserved = self.booked, self.request.amount
        more = overrun_of(charged, reserved)
        return ledger_api.Settlement(id_, charged, reserved, more, self.is_late, self.state is IN_DOUBT)

    def is_silent(self, now: datetime) -> bool:
        """Whether the lease is over. A lease of 0 s is over at once."""
        return now >= self.since + timedelta(seconds=self.lease_s)


def fits(request: ledger_api.ReservationRequest, counters: Sequence[WindowCounter]) -> bool:
    """Return whether `request` fits under every ceiling, the counters' and its own."""
    nusd, tokens, calls = request.amount.nusd, request.amount.tokens, request.amount.calls
    for counter in counters:
        if nusd > counter.left_nusd or tokens > counter.left_tokens or calls > counter.left_calls:
            return False
    return not request.limits or fits_own_limits(request, counters)


def hold(counters: Iterable[WindowCounter], amount: Amount) -> None:
    """Add `amount` to the held amount of every counter."""
    nusd, tokens, calls = amount.nusd, amount.tokens, amount.calls
    for counter in counters:
        counter.left_nusd -= nusd
        counter.left_tokens -= tokens
        counter.left_calls -= calls


def release_hold(counters: Iterable[WindowCounter], amount: Amount) -> None:
    """Subtract `amount` from the held amount of every counter."""
    for counter in counters:
        counter.left_nusd += amount.nusd
        counter.left_tokens += amount.tokens
        counter.left_calls += amount.calls


def post_charge(counters: Sequence[WindowCounter], new: Amount, instead_of: Amount, spent: Amount) -> None:
    """Book `new` as spent in place of `instead_of`, the earlier amount, of which `spent` was spent."""
    back_nusd, back_tokens = instead_of.nusd - new.nusd, instead_of.tokens - new.tokens
    nusd, tokens, calls = new.nusd - spent.nusd, new.tokens - spent.tokens, new.calls - spent.calls
    for counter in counters:
        counter.left_nusd += back_nusd
        counter.left_tokens += back_tokens
        counter.spent_nusd += nusd
        counter.spent_tokens += tokens
        counter.spent_calls += calls
    if back_calls := instead_of.calls - new.calls:  # hardly ever: a call is a call
        for counter in counters:
            counter.left_calls += back_calls


def post_in_doubt(counters: Iterable[WindowCounter], new: Amount, instead_of: Amount = NOTHING) -> None:
    """Book `new` as in doubt in place of `instead_of`."""
    for counter in counters:
        counter.in_doubt = Amount(
            *(
                was + more - less
                for was, more, less in zip(counter.in_doubt.units, new.units, instead_of.units, strict=True)
            )
        )


def overrun_of(actual: Amount, reserved: Amount) -> Amount:
    """Return by how much `actual` exceeds `reserved`, unit by unit."""
    if actual.nusd <= reserved.nusd and actual.tokens <= reserved.tokens and actual.calls <= reserved.calls:
        return NOTHING
    return Amount(*(max(0, used - kept) for used, kept in zip(actual.units, reserved.units, strict=True)))


def counter_balance(counter: WindowCounter) -> ledger_api.Balance:
    """Return the `Balance` of a counter."""
    return ledger_api.Balance(
        tenant=counter.table.tenant,
        scope=counter.table.kind,
        id=counter.id,
        window=counter.table.window,
        window_id=counter.time_window.id,
        ceiling=counter.cap.ceiling,
        spent=counter.spent,
        held=counter.held,
        in_doubt=counter.in_doubt,
    )


_CALL, _TRACE, _AGENT, _WORKFLOW, _PRINCIPAL, _TENANT = _KINDS = tuple(ScopeKind)

_Id = str | None
_Packed = tuple[
    datetime, str, int, _Id, _Id, _Id, _Id, _Id, _Id, int, int, int, tuple[Limit, ...], int, bool,
    int, int, int, bool,
]  # fmt: skip


class ReservationTable:
    """The calls of one tenant by reservation id, in the order in which they reached their state."""

    __slots__ = ("expired", "in_doubt", "in_flight", "past")

    def __init__(self) -> None:
        self.in_flight: dict[str, ReservationEntry] = {}
        self.in_doubt: dict[str, ReservationEntry] = {}
        self.past = CompletedReservations()
        self.expired: dict[str, datetime] = {}  # when those not acknowledged are returned again

    def get(self, id_: str) -> ReservationEntry | None:
        """Return a call if it is remembered. An ended call is returned as a copy."""
        call = self.in_flight.get(id_) or self.in_doubt.get(id_)
        if call is None and id_ in self.past.calls:
            call = self.past.get(id_)
        return call

    def end(self, id_: str, call: ReservationEntry) -> bool:
        """Take a call out of flight. Return whether its charge is final, so not in doubt."""
        self.in_flight.pop(id_, None)
        if call.state is IN_DOUBT:
            self.in_doubt[id_] = call
            self.past.drop(id_)
            return False
        if self.in_doubt:
            self.in_doubt.pop(id_, None)
        self.past.add(id_, call)
        return True

    def counters(self) -> set[WindowCounter]:
        """Return the counters of the calls whose booked amount may still change."""
        still_open = chain(self.in_flight.values(), self.in_doubt.values())
        return {counter for call in still_open for counter in call.counters}

    def entries(self, *, with_dispatched: bool) -> list[ledger_api.LedgerEntry]:
        """Return the charged calls, and dispatched ones if asked for, with the times they were counted at."""
        return [
            ledger_api.LedgerEntry(replace(call.request, at=call.at), call.state, call.booked)
            for call in self
            if call.charged is not None or (with_dispatched and call.state is DISPATCHED)
        ]

    def unrecorded(self, now: datetime, again_at: datetime) -> Iterator[ledger_api.ExpiredReservation]:
        """Yield the expired calls that are due and have not changed since.

        They are due again at `again_at`.
        """
        for id_ in [id_ for id_, due_at in self.expired.items() if due_at <= now]:
            call = self.get(id_)
            if call is not None and call.state in {ledger_api.ReservationState.RELEASED, IN_DOUBT}:
                self.expired[id_] = again_at
                request = call.request
                yield ledger_api.ExpiredReservation(
                    id_, call.state, request.amount, request.scope_ids, call.at
                )
            else:
                del self.expired[id_]

    def forget(self, before: datetime) -> list[ReservationEntry]:
        """Drop ended calls for times before this one. Return those that were in doubt."""
        self.past.forget(before)
        old = [id_ for id_, call in self.in_doubt.items() if call.at < before]
        return [self.in_doubt.pop(id_) for id_ in old]

    def __iter__(self) -> Iterator[ReservationEntry]:
        return chain(self.in_flight.values(), self.in_doubt.values(), self.past)


class CompletedReservations:
    """Ended calls, oldest end first. Each is kept as tuples of plain values."""

    # As objects, a day's calls would cost every other call more than the rest of the ledger, because the
    # garbage collector walks through objects but not through tuples of plain values (decision 18).
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: dict[str, _Packed] = {}

    def add(self, id_: str, call: ReservationEntry) -> None:
        """Keep a call that was settled or released.

        It replaces an earlier call with the same id.
        """
        request, charged = call.request, call.booked
        amount, ids = request.amount, request.scope_ids.get
        if id_ in self.calls:  # released, and begun again: now it is the youngest
            del self.calls[id_]
        self.calls[id_] = (
            call.at, request.key, request.attempt,
            ids(_CALL), ids(_TRACE), ids(_AGENT), ids(_WORKFLOW), ids(_PRINCIPAL), ids(_TENANT),
            amount.nusd, amount.tokens, amount.calls, request.limits, request.priority,
            call.state is SETTLED, charged.nusd, charged.tokens, charged.calls, call.is_late,
        )  # fmt: skip

    def drop(self, id_: str) -> None:
        """Forget an id, because its released call was reserved again."""
        self.calls.pop(id_, None)

    def get(self, id_: str) -> ReservationEntry:
        """Return an ended call. Its request's `at` is the time that it was counted at."""
        return _unpacked(self.calls[id_])

    def forget(self, before: datetime) -> None:
        """Drop the calls for times before this one, up to the first that is not."""
        over = takewhile(lambda known: known[1][0] < before, self.calls.items())
        for id_ in [id_ for id_, _ in over]:
            del self.calls[id_]

    def __iter__(self) -> Iterator[ReservationEntry]:
        return map(_unpacked, self.calls.values())

    def __len__(self) -> int:
        return len(self.calls)


def _unpacked(packed: _Packed) -> ReservationEntry:
    at, key, attempt, *ids = packed[:9]
    scope_ids = {kind: id_ for kind, id_ in zip(_KINDS, ids, strict=True) if id_ is not None}
    nusd, tokens, calls, limits, priority, is_settled, *charged, is_late = packed[9:]
    request = ledger_api.ReservationRequest(
        key, attempt, scope_ids, Amount(nusd, tokens, calls), at, limits, priority
    )
    if not is_settled:
        return ReservationEntry(request, at, (), at, 0.0, ledger_api.ReservationState.RELEASED)
    return ReservationEntry(request, at, (), at, 0.0, SETTLED, Amount(*charged), is_late)


ReserveAnswer = ledger_api.Reservation | ledger_api.Declined | ledger_api.Blocked


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A queued request.

    `held` and `lacking` are the reason and the counters without headroom at the last check.
    """

    request: ledger_api.ReservationRequest
    counters: Sequence[WindowCounter]
    held: ledger_api.Blocked
    lacking: Sequence[WindowCounter]
    since: datetime
    answer: asyncio.Future[ledger_api.Reservation | ledger_api.Declined]
    place: tuple[float, int] = (0.0, 0)


class WaitQueue:
    """The queued requests of one tenant by rank, then by arrival.

    Iteration leaves out cancelled ones.
    """

    __slots__ = ("_arrivals", "requests")

    def __init__(self) -> None:
        self.requests: list[QueuedRequest] = []
        self._arrivals = count()

    def add(self, queued: QueuedRequest) -> None:
        """Add a request behind the others of its rank."""
        queued.place = (_rank(queued.request, queued.since), next(self._arrivals))
        insort(self.requests, queued, key=_place)

    def denial(
        self, request: ledger_api.ReservationRequest, counters: Sequence[WindowCounter], now: datetime
    ) -> Denial | None:
        """Return a denial if an earlier request waits for a counter of this one, otherwise None."""
        # Only earlier ranks block. Without this a small newcomer would always take the headroom that a large
        # request waits for (decision 6).
        for queued in self.requests:
            if queued.place[0] > _rank(request, now):
                break
            for counter in queued.lacking:
                if counter in counters:
                    return behind(request, queued.held), [counter]
        return None

    def serve(self, look: Callable[[QueuedRequest], ReserveAnswer]) -> None:
        """Answer every request that can be answered, in order.

        Each is checked only against those before it.
        """
        # The queue is rebuilt while it is served, so that a request is only held behind earlier ones that
        # still wait.
        requests, self.requests = self.requests, []
        for queued in requests:
            if queued.answer.done():  # cancelled
                continue
            try:
                answer = look(queued)
            except ReservationRequestError as e:
                queued.answer.set_exception(e)
                continue
            if isinstance(answer, ledger_api.Blocked):
                queued.held = answer
                self.requests.append(queued)
            else:
                queued.answer.set_result(answer)

    def dismiss(self, error: Callable[[], LedgerError]) -> None:
        """Fail every queued request with this error."""
        for queued in self:
            queued.answer.set_exception(error())
        self.requests.clear()

    def counters(self) -> set[WindowCounter]:
        """Return the counters of the queued requests."""
        return {counter for queued in self for counter in queued.counters}

    def seen(self) -> list[ledger_api.QueuedReservation]:
        """Return the queue as the port shows it."""
        return [
            ledger_api.QueuedReservation(
                queued.request.reservation_id, queued.held, queued.request.priority, queued.since
            )
            for queued in self
        ]

    def __iter__(self) -> Iterator[QueuedRequest]:
        return (queued for queued in self.requests if not queued.answer.done())


def _place(queued: QueuedRequest) -> tuple[float, int]:
    return queued.place


def _rank(request: ledger_api.ReservationRequest, since: datetime) -> float:
    """Return the arrival time minus the priority in seconds.

    Because a rank never changes, a request is only overtaken by requests that arrive within their priority
    after it.
    """
    return since.timestamp() - request.priority
