"""One tenant in the memory ledger: its counters, its calls, its queue and its epoch."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar

from agentic_trading.governance.errors import ClosedWindowError, ReservationConflictError
from agentic_trading.governance.ledger import (
    Declined,
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
from agentic_trading.governance.ledgers.headroom import denial
from agentic_trading.governance.ledgers.limit_set import LimitSet
from agentic_trading.governance.ledgers.reservation_table import (
    DISPATCHED,
    IN_DOUBT,
    RESERVED,
    SETTLED,
    QueuedRequest,
    ReservationEntry,
    ReservationTable,
    ReserveAnswer,
    WaitQueue,
    fits,
    hold,
    post_charge,
    post_in_doubt,
    release_hold,
)
from agentic_trading.governance.prices import NOTHING, Amount


class TenantLedger:
    """Each step is taken whole and at once; only `serve` looks at the queue again."""

    tidy_after: ClassVar[int] = 64
    """After so many calls their counters are compacted."""

    __slots__ = (
        "_horizon", "_reserved_lease_s", "_statistics", "calls", "counters", "epoch", "queue", "version",
    )  # fmt: skip

    def __init__(
        self,
        counters: TenantCounters,
        epoch: LedgerEpoch,
        horizon: RetentionHorizon,
        statistics: StatisticsCounter,
        reserved_lease_s: float,
    ) -> None:
        self._horizon = horizon
        self._statistics = statistics
        self._reserved_lease_s = reserved_lease_s
        self.epoch = epoch
        self.counters = counters
        self.calls = ReservationTable()
        self.queue = WaitQueue()
        self.version = 0

    @property
    def is_blank(self) -> bool:
        """Whether nothing would be lost with it."""
        return self.epoch.is_none and not self.queue.requests

    def known(self, id_: str, request: ReservationRequest) -> Reservation | None:
        """Return the reservation that the same request got before, if it still has one."""
        self.epoch.check()
        call = self.calls.get(id_)
        if call is None or call.state is ReservationState.RELEASED:
            return None
        if call.request is not request and call.request.payload_hash != request.payload_hash:
            raise ReservationConflictError(request.key, request.attempt)
        return Reservation(
            id_, call.request.amount, call.state, _other_moment(call, request.at, self._horizon)
        )

    def counters_of(self, request: ReservationRequest, at: datetime) -> list[WindowCounter]:
        """Return the counters that `request` is counted in; raises `ClosedWindowError` for a moment too long ago."""
        if at < self._horizon.newest and at < self._horizon.oldest:
            raise ClosedWindowError(request.key, at, self._horizon.oldest)
        if request.limits:
            self._count_own(request)
        return self.counters.of(request, at)

    def decide(
        self,
        id_: str,
        request: ReservationRequest,
        at: datetime,
        now: datetime,
        counters: Sequence[WindowCounter],
    ) -> tuple[ReserveAnswer, Sequence[WindowCounter]]:
        """Reserve under `id_`, or say why not and which counters lack headroom; queued requests go first."""
        if (self.queue.requests or not fits(request, counters)) and not request.is_for_nothing:
            denied = denial(request, counters) or self.queue.denial(request, counters, now)
            if denied is not None:
                if isinstance(denied[0], Declined):
                    self._statistics.refuse()
                self.counters.take_back(counters)
                return denied
        hold(counters, request.amount)
        self.calls.in_flight[id_] = ReservationEntry(request, at, counters, now, self._reserved_lease_s)
        self.counters.move_to(at)
        self.epoch.sequence += 1
        self._statistics.counts["reserved"] += 1
        return Reservation(id_, request.amount, RESERVED, None if request.at else at), ()

    def give_back(self, id_: str, call: ReservationEntry) -> None:
        """Release a call that was not dispatched."""
        release_hold(call.counters, call.request.amount)
        self._statistics.counts["released"] += 1
        self._end(id_, call, ReservationState.RELEASED)

    def settle(self, id_: str, call: ReservationEntry, actual: Amount) -> Settlement:
        """Charge what a call used in place of what is booked so far: its reservation, in flight or in doubt."""
        reserved, doubtful = call.request.amount, call.charged
        if doubtful is None:
            post_charge(call.counters, actual, reserved, NOTHING)
            return self._charged(id_, call, actual, reserved, SETTLED)
        post_charge(call.counters, actual, doubtful, doubtful)
        post_in_doubt(call.counters, NOTHING, doubtful)
        call.is_late = True
        return self._charged(id_, call, actual, doubtful, SETTLED)

    def doubt(self, id_: str, call: ReservationEntry) -> Settlement:
        """Charge a dispatched call in full."""
        amount = call.request.amount
        post_charge(call.counters, amount, amount, NOTHING)
        post_in_doubt(call.counters, amount)
        return self._charged(id_, call, amount, amount, IN_DOUBT)

    def expire(self, now: datetime) -> list[ExpiredReservation]:
        """End the calls whose lease is over."""
        silent = [(id_, call) for id_, call in self.calls.in_flight.items() if call.is_silent(now)]
        for id_, call in silent:
            end = self.give_back if call.state is RESERVED else self.doubt
            end(id_, call)
            self.calls.expired[id_] = now
        return list(self.calls.unrecorded(now, again_at=now + timedelta(seconds=self._reserved_lease_s)))

    def apply_limits(self, limits: LimitSet, version: int) -> None:
        """Count against other limits; counters that they need and that were not kept start with the calls known."""
        self.version = version
        self.epoch.sequence += 1
        self.counters.tidy(self._active())
        before = self.counters.counted()
        self.counters.apply_limits(limits)
        self._count_calls(before)

    def fence(self) -> None:
        """Let nothing begin until `restore`."""
        if self.epoch.fence is None:
            _close(self, Fence("a log that is being booked again", has_gone_back=False))

    def restore(self, entries: Iterable[tuple[LedgerEntry, datetime]]) -> None:
        """Forget every call that was over when it was fenced, book these for their moments, begin the next epoch.

        What a ledger that was found to have gone back takes for calls in flight is forgotten too.
        """
        fence = self.epoch.fence or Fence("", has_gone_back=False)
        carried = fence.ended | ({} if fence.has_gone_back else self.calls.in_flight)
        booked = _booked(entries, fence.ended, carried)
        self.counters = self.counters.empty_copy()
        self.calls = ReservationTable()
        for id_, call in (carried | booked).items():
            self._carry(id_, call)
        for queued in self.queue:
            _look_up(self.counters, queued, queued.since)
            self._count_own(queued.request)
        self.epoch.begin_again()

    def require_at_least(self, checkpoint: LedgerCheckpoint) -> None:
        """Let nothing be reserved any more if this ledger has not come as far as `checkpoint`."""
        fence = self.epoch.require_at_least(checkpoint)
        if fence is not None:
            _close(self, fence)

    def serve(self, now: datetime) -> None:
        """Answer every queued request that can be answered, in order."""

        def look(queued: QueuedRequest) -> ReserveAnswer:
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

    def leave(self, queued: QueuedRequest, now: datetime) -> None:
        """Forget a cancelled request, with the reservation that it may just have got."""
        answer = queued.answer
        if not answer.cancelled() and answer.exception() is None:
            id_ = queued.request.reservation_id
            call = self.calls.in_flight.get(id_)
            if call is None or call.state is not RESERVED:
                return
            self.give_back(id_, call)
        self.serve(now)

    def tidy(self) -> None:
        """Compact the counters of ended calls, once these are more than those that may still change."""
        may_change = len(self.calls.in_flight) + len(self.calls.in_doubt) + len(self.queue.requests)
        if len(self.counters.to_deactivate) >= max(self.tidy_after, may_change):
            self.counters.tidy(self._active())

    def forget(self) -> None:
        """Drop finished calls and idle counters, as far back as the horizon says."""
        for call in self.calls.forget(self._horizon.oldest):
            post_in_doubt(call.counters, NOTHING, call.booked)
        self.counters.forget(self._active())

    def _active(self) -> set[WindowCounter]:
        """Return the counters that may still change by what is known."""
        return self.calls.counters() | self.queue.counters()

    def _charged(
        self, id_: str, call: ReservationEntry, charged: Amount, before: Amount, state: ReservationState
    ) -> Settlement:
        call.charged = charged
        self._end(id_, call, state)
        settlement = call.settlement(id_)
        self._statistics.charge(settlement, before.nusd)
        return settlement

    def _end(self, id_: str, call: ReservationEntry, state: ReservationState) -> None:
        """Take a call out of flight."""
        call.state = state
        self.epoch.sequence += 1
        self._keep(id_, call)
        if self.epoch.fence is not None:
            self.epoch.fence.note(id_, call)

    def _carry(self, id_: str, call: ReservationEntry) -> None:
        """Count a call of before in the counters of now."""
        self.counters.move_to(call.at)
        call.counters = self.counters.of(call.request, call.at)
        _count(call, call.counters)
        if call.state in {RESERVED, DISPATCHED}:
            self.calls.in_flight[id_] = call
        else:
            self._keep(id_, call)

    def _keep(self, id_: str, call: ReservationEntry) -> None:
        """Remember a call that has ended."""
        if self.calls.end(id_, call):
            self.counters.to_deactivate.append(call.counters)
            call.counters = ()

    def _count_own(self, request: ReservationRequest) -> None:
        """Have counted what a request's own limits are about: for every id, as another's may be about the same."""
        lacking = [limit for limit in request.limits if self.counters.lack(limit)]
        if lacking:
            before = self.counters.counted()
            for limit in lacking:
                self.counters.count_all(limit)
            self._count_calls(before)

    def _count_calls(self, before: CountedIds) -> None:
        """Count the remembered calls where they were not counted before; queued requests are counted there too."""
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


def _other_moment(call: ReservationEntry, at: datetime | None, horizon: RetentionHorizon) -> datetime | None:
    """Return the moment of a call, None if `at` is in all of its windows."""
    spans = None if at is None else horizon.windows.at(at)
    if spans is not None and all(spans[one.table.window] == one.time_window for one in call.counters):
        return None
    return call.at


def _close(ledger: TenantLedger, fence: Fence) -> None:
    ledger.epoch.fence = fence
    ledger.queue.dismiss(lambda: ledger.epoch.refusal(fence))


def _look_up(counters: TenantCounters, queued: QueuedRequest, present: datetime) -> None:
    """Find the counters of a queued request, after these may have changed."""
    found = counters.of(queued.request, queued.request.at or present)
    counters.take_back(found)
    if found != queued.counters:
        counters.to_deactivate.append(queued.counters)
        queued.counters = found


def _booked(
    entries: Iterable[tuple[LedgerEntry, datetime]],
    ended: Collection[str],
    carried: Mapping[str, ReservationEntry],
) -> dict[str, ReservationEntry]:
    """Return past calls; of those that have ended since, an entry in doubt is older than what is known.

    A call that is known goes to the windows of its reservation.
    """
    found = {}
    for entry, moment in entries:
        id_ = entry.request.reservation_id
        if entry.state is SETTLED or id_ not in ended:
            at = carried[id_].at if id_ in carried else moment
            found[id_] = ReservationEntry(entry.request, at, (), at, 0.0, entry.state, entry.charged)
    return found


def _count(call: ReservationEntry, counters: Sequence[WindowCounter]) -> None:
    """Count a call in counters that do not know it, as far as it has come."""
    if call.charged is None:
        hold(counters, call.booked)
    else:
        post_charge(counters, call.booked, NOTHING, NOTHING)
    if call.state is ReservationState.IN_DOUBT:
        post_in_doubt(counters, call.booked)
