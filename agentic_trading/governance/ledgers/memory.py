"""The in-memory ledger of one process. Each step is atomic. There is one `TenantLedger` per tenant."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import ClassVar

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance import ledger as ledger_api
from agentic_trading.governance.errors import (
    ClosedWindowError,
    ReservationConflictError,
    ReservationRequestError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledgers import counters as counter_types
from agentic_trading.governance.ledgers import reservation_table
from agentic_trading.governance.ledgers.checkpoint import Fence, LedgerEpoch, StatisticsCounter
from agentic_trading.governance.limits import Limit, ScopeKind, Window
from agentic_trading.governance.prices import NOTHING, Amount
from agentic_trading.llm.interaction import reservation_id


class TenantLedger:
    """The ledger of one tenant.

    Each step is atomic, and only `serve` checks queued requests again.
    """

    tidy_after: ClassVar[int] = 64
    """The number of ended calls after which their counters are compacted."""

    __slots__ = (
        "_horizon", "_reserved_lease_s", "_statistics", "calls", "counters", "epoch", "queue", "version",
    )  # fmt: skip

    def __init__(
        self,
        counters: counter_types.TenantCounters,
        epoch: LedgerEpoch,
        horizon: counter_types.RetentionHorizon,
        statistics: StatisticsCounter,
        reserved_lease_s: float,
    ) -> None:
        self._horizon = horizon
        self._statistics = statistics
        self._reserved_lease_s = reserved_lease_s
        self.epoch = epoch
        self.counters = counters
        self.calls = reservation_table.ReservationTable()
        self.queue = reservation_table.WaitQueue()
        self.version = 0

    @property
    def is_blank(self) -> bool:
        """Whether this ledger can be dropped without loss."""
        return self.epoch.is_none and not self.queue.requests

    def known(self, id_: str, request: ledger_api.ReservationRequest) -> ledger_api.Reservation | None:
        """Return the current reservation of the same request, or None.

        Raises `ReservationConflictError` if it was reserved with other scopes, another amount or other
        limits.
        """
        self.epoch.check()
        call = self.calls.get(id_)
        if call is None or call.state is ledger_api.ReservationState.RELEASED:
            return None
        if call.request is not request and call.request.payload_hash != request.payload_hash:
            raise ReservationConflictError(request.key, request.attempt)
        return ledger_api.Reservation(
            id_, call.request.amount, call.state, _other_moment(call, request.at, self._horizon)
        )

    def counters_of(
        self, request: ledger_api.ReservationRequest, at: datetime
    ) -> list[counter_types.WindowCounter]:
        """Return the counters of a request.

        Raises `ClosedWindowError` if the time is too old.
        """
        if at < self._horizon.newest and at < self._horizon.oldest:
            raise ClosedWindowError(request.key, at, self._horizon.oldest)
        if request.limits:
            self._count_own(request)
        return self.counters.of(request, at)

    def decide(
        self,
        id_: str,
        request: ledger_api.ReservationRequest,
        at: datetime,
        now: datetime,
        counters: Sequence[counter_types.WindowCounter],
    ) -> tuple[reservation_table.ReserveAnswer, Sequence[counter_types.WindowCounter]]:
        """Reserve under `id_`, or return a denial and the counters without headroom.

        Queued requests go first.
        """
        if (
            self.queue.requests or not reservation_table.fits(request, counters)
        ) and not request.is_for_nothing:
            denied = counter_types.denial(request, counters) or self.queue.denial(request, counters, now)
            if denied is not None:
                if isinstance(denied[0], ledger_api.Declined):
                    self._statistics.refuse()
                self.counters.take_back(counters)
                return denied
        # The check above and this hold must stay without an await in between, because another task would pass
        # the ceiling.
        reservation_table.hold(counters, request.amount)
        self.calls.in_flight[id_] = reservation_table.ReservationEntry(
            request, at, counters, now, self._reserved_lease_s
        )
        self.counters.move_to(at)
        self.epoch.sequence += 1
        self._statistics.counts["reserved"] += 1
        return ledger_api.Reservation(
            id_, request.amount, reservation_table.RESERVED, None if request.at else at
        ), ()

    def give_back(self, id_: str, call: reservation_table.ReservationEntry) -> None:
        """Release a call that was not dispatched."""
        reservation_table.release_hold(call.counters, call.request.amount)
        self._statistics.counts["released"] += 1
        self._end(id_, call, ledger_api.ReservationState.RELEASED)

    def settle(
        self, id_: str, call: reservation_table.ReservationEntry, actual: Amount
    ) -> ledger_api.Settlement:
        """Charge the actual usage in place of the amount booked so far, in flight or in doubt."""
        reserved, doubtful = call.request.amount, call.charged
        if doubtful is None:
            reservation_table.post_charge(call.counters, actual, reserved, NOTHING)
            return self._charged(id_, call, actual, reserved, reservation_table.SETTLED)
        reservation_table.post_charge(call.counters, actual, doubtful, doubtful)
        reservation_table.post_in_doubt(call.counters, NOTHING, doubtful)
        call.is_late = True
        return self._charged(id_, call, actual, doubtful, reservation_table.SETTLED)

    def doubt(self, id_: str, call: reservation_table.ReservationEntry) -> ledger_api.Settlement:
        """Charge a dispatched call in full, in doubt."""
        amount = call.request.amount
        reservation_table.post_charge(call.counters, amount, amount, NOTHING)
        reservation_table.post_in_doubt(call.counters, amount)
        return self._charged(id_, call, amount, amount, reservation_table.IN_DOUBT)

    def expire(self, now: datetime) -> list[ledger_api.ExpiredReservation]:
        """End the calls whose lease is over."""
        silent = [(id_, call) for id_, call in self.calls.in_flight.items() if call.is_silent(now)]
        for id_, call in silent:
            end = self.give_back if call.state is reservation_table.RESERVED else self.doubt
            end(id_, call)
            self.calls.expired[id_] = now
        return list(self.calls.unrecorded(now, again_at=now + timedelta(seconds=self._reserved_lease_s)))

    def apply_limits(self, limits: counter_types.LimitSet, version: int) -> None:
        """Replace the limits. Counters that are new start with the remembered calls."""
        self.version = version
        self.epoch.sequence += 1
        self.counters.tidy(self._active())
        before = self.counters.counted()
        self.counters.apply_limits(limits)
        self._count_calls(before)

    def fence(self) -> None:
        """Stop reserving and dispatching until `restore`."""
        if self.epoch.fence is None:
            _close(self, Fence("a log that is being booked again", has_gone_back=False))

    def restore(self, entries: Iterable[tuple[ledger_api.LedgerEntry, datetime]]) -> None:
        """Replace all calls that had ended before the fence by these entries, and begin the next epoch.

        Calls in flight stay, unless the ledger was found to have gone back.
        """
        fence = self.epoch.fence or Fence("", has_gone_back=False)
        carried = fence.ended | ({} if fence.has_gone_back else self.calls.in_flight)
        booked = _booked(entries, fence.ended, carried)
        self.counters = self.counters.empty_copy()
        self.calls = reservation_table.ReservationTable()
        for id_, call in (carried | booked).items():
            self._carry(id_, call)
        for queued in self.queue:
            _look_up(self.counters, queued, queued.since)
            self._count_own(queued.request)
        self.epoch.begin_again()

    def require_at_least(self, checkpoint: ledger_api.LedgerCheckpoint) -> None:
        """Close the ledger if it has not reached `checkpoint`."""
        fence = self.epoch.require_at_least(checkpoint)
        if fence is not None:
            _close(self, fence)

    def serve(self, now: datetime) -> None:
        """Answer every queued request that can be answered, in order."""

        def look(queued: reservation_table.QueuedRequest) -> reservation_table.ReserveAnswer:
            request = queued.request
            id_ = request.reservation_id
            known = self.known(id_, request)
            if known is not None:
                return known
            if request.at is None:  # the present has moved on, perhaps into another window
                _look_up(self.counters, queued, now)
            answer, queued.lacking = self.decide(id_, request, request.at or now, now, queued.counters)
            return answer

        self.queue.serve(look)

    def leave(self, queued: reservation_table.QueuedRequest, now: datetime) -> None:
        """Remove a cancelled request. If it just got a reservation, release that."""
        answer = queued.answer
        if not answer.cancelled() and answer.exception() is None:
            id_ = queued.request.reservation_id
            call = self.calls.in_flight.get(id_)
            if call is None or call.state is not reservation_table.RESERVED:
                return
            self.give_back(id_, call)
        self.serve(now)

    def tidy(self) -> None:
        """Compact the counters of ended calls once they outnumber the calls that may still change."""
        may_change = len(self.calls.in_flight) + len(self.calls.in_doubt) + len(self.queue.requests)
        if len(self.counters.to_deactivate) >= max(self.tidy_after, may_change):
            self.counters.tidy(self._active())

    def forget(self) -> None:
        """Drop ended calls and idle counters that are older than the horizon."""
        for call in self.calls.forget(self._horizon.oldest):
            reservation_table.post_in_doubt(call.counters, NOTHING, call.booked)
        self.counters.forget(self._active())

    def _active(self) -> set[counter_types.WindowCounter]:
        """Return the counters that may still change."""
        return self.calls.counters() | self.queue.counters()

    def _charged(
        self,
        id_: str,
        call: reservation_table.ReservationEntry,
        charged: Amount,
        before: Amount,
        state: ledger_api.ReservationState,
    ) -> ledger_api.Settlement:
        call.charged = charged
        self._end(id_, call, state)
        settlement = call.settlement(id_)
        self._statistics.charge(settlement, before.nusd)
        return settlement

    def _end(
        self, id_: str, call: reservation_table.ReservationEntry, state: ledger_api.ReservationState
    ) -> None:
        call.state = state
        self.epoch.sequence += 1
        self._keep(id_, call)
        if self.epoch.fence is not None:
            self.epoch.fence.note(id_, call)

    def _carry(self, id_: str, call: reservation_table.ReservationEntry) -> None:
        """Count a call of an earlier epoch in the current counters."""
        self.counters.move_to(call.at)
        call.counters = self.counters.of(call.request, call.at)
        _count(call, call.counters)
        if call.state in {reservation_table.RESERVED, reservation_table.DISPATCHED}:
            self.calls.in_flight[id_] = call
        else:
            self._keep(id_, call)

    def _keep(self, id_: str, call: reservation_table.ReservationEntry) -> None:
        if self.calls.end(id_, call):
            self.counters.to_deactivate.append(call.counters)
            call.counters = ()

    def _count_own(self, request: ledger_api.ReservationRequest) -> None:
        """Count every id in the tables that the request's own limits need."""
        # Every id is counted, because another request may set a limit on the same scope.
        lacking = [limit for limit in request.limits if self.counters.lack(limit)]
        if lacking:
            before = self.counters.counted()
            for limit in lacking:
                self.counters.count_all(limit)
            self._count_calls(before)

    def _count_calls(self, before: counter_types.CountedIds) -> None:
        """Add the remembered calls and queued requests to counters that are new since `before`."""
        more = self.counters.new_since(before)
        for call in self.calls if more else ():
            found = self.counters.of(call.request, call.at, more)
            new = [counter for counter in found if counter.id not in more[counter.table]]
            _count(call, new)
            self.counters.to_deactivate.append(found)
            if call.counters:
                call.counters = [*call.counters, *new]
        for queued in self.queue:
            _look_up(self.counters, queued, queued.since)
        self.counters.tidy(self._active())


def _other_moment(
    call: reservation_table.ReservationEntry, at: datetime | None, horizon: counter_types.RetentionHorizon
) -> datetime | None:
    """Return the time of a call, or None if `at` is in all its windows."""
    spans = None if at is None else horizon.windows.at(at)
    if spans is not None and all(spans[one.table.window] == one.time_window for one in call.counters):
        return None
    return call.at


def _close(ledger: TenantLedger, fence: Fence) -> None:
    ledger.epoch.fence = fence
    ledger.queue.dismiss(lambda: ledger.epoch.refusal(fence))


def _look_up(
    counters: counter_types.TenantCounters, queued: reservation_table.QueuedRequest, present: datetime
) -> None:
    """Refresh the counters of a queued request after limits or time have changed."""
    found = counters.of(queued.request, queued.request.at or present)
    counters.take_back(found)
    if found != queued.counters:
        counters.to_deactivate.append(queued.counters)
        queued.counters = found


def _booked(
    entries: Iterable[tuple[ledger_api.LedgerEntry, datetime]],
    ended: Collection[str],
    carried: Mapping[str, reservation_table.ReservationEntry],
) -> dict[str, reservation_table.ReservationEntry]:
    """Return the past calls to book, by reservation id.

    An `in_doubt` entry of a call that has ended since the fence is left out, because the ledger's record is
    newer. A call that the ledger has is booked in the windows of its reservation.
    """
    found = {}
    for entry, moment in entries:
        id_ = entry.request.reservation_id
        if entry.state is reservation_table.SETTLED or id_ not in ended:
            at = carried[id_].at if id_ in carried else moment
            found[id_] = reservation_table.ReservationEntry(
                entry.request, at, (), at, 0.0, entry.state, entry.charged
            )
    return found


def _count(call: reservation_table.ReservationEntry, counters: Sequence[counter_types.WindowCounter]) -> None:
    """Add a call to counters that do not contain it yet, in its current state."""
    if call.charged is None:
        reservation_table.hold(counters, call.booked)
    else:
        reservation_table.post_charge(counters, call.booked, NOTHING, NOTHING)
    if call.state is ledger_api.ReservationState.IN_DOUBT:
        reservation_table.post_in_doubt(counters, call.booked)


_FORGET_AFTER_UNSUCCESSFUL = 1000
"""Denied requests create counters too, but do not advance the horizon.

After this many, idle counters are dropped.
"""

_MAY_DISPATCH = (ledger_api.ReservationState.RESERVED,)
_MAY_RELEASE = (ledger_api.ReservationState.RESERVED, ledger_api.ReservationState.RELEASED)
_MAY_CHARGE = (
    ledger_api.ReservationState.DISPATCHED,
    ledger_api.ReservationState.IN_DOUBT,
    ledger_api.ReservationState.SETTLED,
)


class MemoryLedger:
    """A `Ledger` within one event loop. It is lost when the process ends.

    Args:
        limits: The limits of every tenant, until others are applied for it.
        zone: The time zone in which days and months begin.
        keep: How long ended calls are kept at least, measured by the newest time that was reserved for.
            Counters of ended windows and of inactive calls and traces are kept as long.
        counted: Counters that are kept without a limit. Other counters start with the remembered calls when
            an applied limit or a request's own limit first needs them.
        clock: The present, used for leases.
        reserved_lease_s: Seconds until a reservation that was not dispatched is refunded by `expire_leases`.

    """

    def __init__(
        self,
        limits: Iterable[Limit] = (),
        *,
        zone: tzinfo = UTC,
        keep: timedelta = timedelta(days=1),
        counted: counter_types.CountedWindows = ((ScopeKind.AGENT, Window.DAY),),
        clock: Clock | None = None,
        reserved_lease_s: float = 60.0,
    ) -> None:
        self._clock = clock or SystemClock()
        self._limits = counter_types.LimitSet(limits, counted)
        self._counted = counted
        self._horizon = counter_types.RetentionHorizon(zone, keep)
        self._reserved_lease_s = reserved_lease_s
        self._began = self._clock.now().isoformat()
        self._ledgers: dict[str, TenantLedger] = {}
        self._statistics = StatisticsCounter()
        self._next_look = datetime.min.replace(tzinfo=UTC)
        self._unsuccessful_at_next_look = _FORGET_AFTER_UNSUCCESSFUL

    async def reserve(
        self, request: ledger_api.ReservationRequest
    ) -> ledger_api.Reservation | ledger_api.Declined | ledger_api.Blocked:
        """Reserve the amount, or return why that is not possible. Does not wait."""
        id_ = request.reservation_id
        ledger = self._ledgers.get(_owner(id_)) or self._ledger_of(request.tenant)
        known = ledger.known(id_, request)
        if known is not None:
            return known
        now = self._clock.now()
        at = request.at or now
        counters = ledger.counters_of(request, at)
        answer, _ = ledger.decide(id_, request, at, now, counters)
        if not isinstance(answer, ledger_api.Reservation):
            ledger.counters.to_deactivate.append(counters)
            if isinstance(answer, ledger_api.Blocked):
                self._statistics.hold()
        self._forget(ledger)
        return answer

    async def wait_for_reservation(
        self, request: ledger_api.ReservationRequest
    ) -> ledger_api.Reservation | ledger_api.Declined:
        """Wait until the request is reserved or finally declined, in order of arrival minus priority."""
        id_ = request.reservation_id
        ledger = self._ledger_of(request.tenant)
        known = ledger.known(id_, request)
        if known is not None:
            return known
        now = self._clock.now()
        at = request.at or now
        counters = ledger.counters_of(request, at)
        answer, lacking = ledger.decide(id_, request, at, now, counters)
        if not isinstance(answer, ledger_api.Blocked):
            ledger.counters.to_deactivate.append(counters)
            self._forget(ledger)
            return answer
        future: asyncio.Future[ledger_api.Reservation | ledger_api.Declined] = (
            asyncio.get_running_loop().create_future()
        )
        queued = reservation_table.QueuedRequest(request, counters, answer, lacking, now, future)
        ledger.queue.add(queued)
        try:
            return await future
        except asyncio.CancelledError:
            # Otherwise a reservation that was made in the same turn of the loop would hold money until its
            # lease ends.
            ledger.leave(queued, self._clock.now())
            raise
        finally:
            ledger.counters.to_deactivate.append(queued.counters)
            self._forget(ledger)

    async def dispatch(self, reservation_id: str, *, lease_s: float = ledger_api.LEASE_S) -> None:
        """Record that the request is about to be sent.

        Raises `ReservationStateError` the second time.
        """
        ledger, call = self._call(reservation_id, "dispatch", _MAY_DISPATCH)
        ledger.epoch.check()
        call.state = reservation_table.DISPATCHED
        call.since, call.lease_s = self._clock.now(), lease_s
        ledger.epoch.sequence += 1

    async def state_of(self, reservation_id: str) -> ledger_api.ReservationState | None:
        """Return the state of a call. None if it was never reserved or is forgotten."""
        ledger = self._ledgers.get(_owner(reservation_id))
        call = None if ledger is None else ledger.calls.get(reservation_id)
        return None if call is None else call.state

    async def settle(self, reservation_id: str, actual: Amount) -> ledger_api.Settlement:
        """Charge the actual usage of a dispatched call and return the rest.

        Repeating has no effect.
        """
        ledger, call = self._call(reservation_id, "settle", _MAY_CHARGE)
        if call.state is reservation_table.SETTLED:
            return call.settlement(reservation_id)
        settlement = ledger.settle(reservation_id, call, actual)
        if ledger.queue.requests:
            ledger.serve(self._clock.now())
        return settlement

    async def release(self, reservation_id: str) -> None:
        """Release a reservation that was never dispatched. Repeating is harmless."""
        ledger, call = self._call(reservation_id, "release", _MAY_RELEASE)
        if call.state is ledger_api.ReservationState.RESERVED:
            ledger.give_back(reservation_id, call)
            if ledger.queue.requests:
                ledger.serve(self._clock.now())

    async def in_doubt(self, reservation_id: str) -> ledger_api.Settlement:
        """Charge a dispatched call in full.

        A later `settle` corrects it. Repeating is harmless.
        """
        ledger, call = self._call(reservation_id, "doubt", _MAY_CHARGE)
        if call.charged is not None:
            return call.settlement(reservation_id)
        settlement = ledger.doubt(reservation_id, call)
        if ledger.queue.requests:
            ledger.serve(self._clock.now())
        return settlement

    async def expire_leases(self) -> Sequence[ledger_api.ExpiredReservation]:
        """End the calls whose lease has run out, then serve the queue."""
        now = self._clock.now()
        expired: list[ledger_api.ExpiredReservation] = []
        for ledger in self._ledgers.values():
            expired += ledger.expire(now)
            if ledger.queue.requests:
                ledger.serve(now)
        return expired

    async def acknowledge_expired(self, reservation_id: str) -> None:
        """Stop returning this call from `expire_leases`."""
        self._ledger_of(ledger_api.tenant_of(reservation_id)).calls.expired.pop(reservation_id, None)

    async def apply_limits(self, tenant: str, limits: Sequence[Limit], *, version: int) -> None:
        """Replace the tenant's limits, from the next request on.

        A version that is not newer is ignored.
        """
        ledger = self._ledger_of(tenant)
        if version > ledger.version:
            ledger.apply_limits(counter_types.LimitSet(limits, self._counted), version)
            ledger.serve(self._clock.now())

    def awaited_limits(self, tenant: str) -> int:  # noqa: ARG002 - of the port
        """Return 0, because this ledger is lost with its process, including its limits."""
        return 0

    def confirm_limits(self, tenant: str, awaited: int) -> None:
        """Do nothing."""

    async def fence(self, tenant: str) -> None:
        """Stop reserving and dispatching until `restore`. Calls in flight may end."""
        self._ledger_of(tenant).fence()

    async def entries(self, tenant: str) -> list[ledger_api.LedgerEntry]:
        """Return every charged call that is still remembered."""
        ledger = self._ledger_of(tenant)
        return ledger.calls.entries(with_dispatched=ledger.epoch.has_gone_back)

    async def restore(
        self, tenant: str, entries: Iterable[ledger_api.LedgerEntry]
    ) -> ledger_api.LedgerCheckpoint:
        """Replace the tenant's calls by these entries, and reopen the ledger.

        If a call has several entries, the last one is used.

        Raises:
            ReservationRequestError: If an entry is of another tenant, has no time, or is neither settled nor
                in doubt. The ledger is then unchanged.

        """
        found = {entry.request.reservation_id: entry for entry in entries}
        # All entries are checked before the first change, so that an invalid entry leaves the ledger as it
        # was.
        checked = [(entry, _moment_of(tenant, entry)) for entry in found.values()]
        ledger = self._ledger_of(tenant)
        ledger.restore(checked)
        ledger.serve(self._clock.now())
        return ledger.epoch.checkpoint

    async def checkpoint(self, tenant: str) -> ledger_api.LedgerCheckpoint:
        """Return how far the tenant's ledger has progressed."""
        return self._ledger_of(tenant).epoch.checkpoint

    async def require_at_least(self, tenant: str, checkpoint: ledger_api.LedgerCheckpoint) -> None:
        """Require that the ledger has reached this checkpoint.

        Otherwise it stops reserving until `restore`.
        """
        self._ledger_of(tenant).require_at_least(checkpoint)

    async def balances(
        self, tenant: str, *, limited: bool = False, at: datetime | None = None
    ) -> list[ledger_api.Balance]:
        """Return counters of a tenant, including those of ended windows that are still kept.

        Many counters are read page by page, and other tasks run in between.
        """
        ledger = self._ledger_of(tenant)
        found: list[ledger_api.Balance] = []
        for piece in ledger.counters.pages(limited=limited, at=at):
            if found:
                # Otherwise reading many counters would block all calls of the process.
                await asyncio.sleep(0)
            found += map(reservation_table.counter_balance, piece)
        return found

    async def waiting(self, tenant: str) -> list[ledger_api.QueuedReservation]:
        """Return a tenant's queued requests, in the order in which they will be served."""
        return self._ledger_of(tenant).queue.seen()

    def statistics(self) -> ledger_api.LedgerStatistics:
        """Return the counts since the start."""
        ledgers = self._ledgers.values()
        return self._statistics.snapshot(
            in_flight=sum(len(ledger.calls.in_flight) for ledger in ledgers),
            waiting=sum(len(list(ledger.queue)) for ledger in ledgers),
        )

    async def aclose(self) -> None:
        """Do nothing, because this ledger opens no connection."""

    def _ledger_of(self, tenant: str) -> TenantLedger:
        owner = _owner(reservation_id(tenant, "", 1))
        ledger = self._ledgers.get(owner)
        if ledger is None:
            counters = counter_types.TenantCounters(tenant, self._limits, self._horizon)
            epoch = LedgerEpoch(tenant, self._began)
            ledger = TenantLedger(counters, epoch, self._horizon, self._statistics, self._reserved_lease_s)
            self._ledgers[owner] = ledger
        return ledger

    def _call(
        self, reservation_id: str, step: str, allowed: Sequence[ledger_api.ReservationState]
    ) -> tuple[TenantLedger, reservation_table.ReservationEntry]:
        ledger = self._ledgers.get(_owner(reservation_id))
        if ledger is None:
            raise UnknownReservationError(reservation_id)
        call = ledger.calls.get(reservation_id)
        if call is None:
            ledger.epoch.check()
            raise UnknownReservationError(reservation_id)
        if call.state not in allowed:
            raise ReservationStateError(reservation_id, step, call.state, allowed)
        return ledger, call

    def _forget(self, ledger: TenantLedger) -> None:
        """Drop ended calls and idle counters, if it is time to."""
        if len(ledger.counters.to_deactivate) >= ledger.tidy_after:
            ledger.tidy()
        if (
            self._horizon.newest < self._next_look
            and self._statistics.unsuccessful < self._unsuccessful_at_next_look
        ):
            return
        self._next_look = self._horizon.newest + self._horizon.keep / 8
        self._unsuccessful_at_next_look = self._statistics.unsuccessful + _FORGET_AFTER_UNSUCCESSFUL
        for owner, ledger in list(self._ledgers.items()):
            ledger.forget()
            if ledger.is_blank:
                del self._ledgers[owner]


def _owner(reservation_id: str) -> str:
    """Return the tenant's part of a reservation id."""
    return reservation_id.partition(":")[0]


def _moment_of(tenant: str, entry: ledger_api.LedgerEntry) -> datetime:
    """Return the time of a past call. Raises `ReservationRequestError` for an invalid entry."""
    request = entry.request
    if request.tenant != tenant:
        raise ReservationRequestError(
            request.key, f"belongs to tenant {request.tenant!r}. Allowed: {tenant!r}"
        )
    if entry.state not in {ledger_api.ReservationState.SETTLED, ledger_api.ReservationState.IN_DOUBT}:
        raise ReservationRequestError(
            request.key, f"is a ledger entry in state {entry.state}. Allowed: settled, in_doubt"
        )
    if request.at is None:
        raise ReservationRequestError(
            request.key, "is a ledger entry without a time. Set `at` in its request"
        )
    return request.at
