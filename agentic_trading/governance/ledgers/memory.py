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
    tenant_of,
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
from agentic_trading.llm.interaction import reservation_id

_FORGET_AFTER_UNSUCCESSFUL = 1000
"""Requests that are not reserved make counters too, and do not move time on: after so many of them idle ones go."""

_MAY_DISPATCH = (ReservationState.RESERVED,)
_MAY_RELEASE = (ReservationState.RESERVED, ReservationState.RELEASED)
_MAY_CHARGE = (ReservationState.DISPATCHED, ReservationState.IN_DOUBT, ReservationState.SETTLED)


class MemoryLedger:
    """Keeps the promise of `Ledger` within one event loop.

    `zone` is where days and months begin. A finished call is remembered for `keep` at least, by the newest moment that
    something was reserved for; so are the counters of ended windows, and of inactive calls and traces. A counter that a
    limit needs, one applied or a request's own, starts with the calls that are remembered; `counted` are counters kept
    where no limit needs them yet. `limits` hold for every tenant until others are
    applied for it. `clock` is the present, by which leases run; a call not dispatched within `reserved_lease_s` is
    refunded by the next `expire_leases`.
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
        self._limits = LimitSet(limits, counted)
        self._counted = counted
        self._horizon = RetentionHorizon(zone, keep)
        self._reserved_lease_s = reserved_lease_s
        self._began = self._clock.now().isoformat()
        self._ledgers: dict[str, TenantLedger] = {}
        self._statistics = StatisticsCounter()
        self._next_look = datetime.min.replace(tzinfo=UTC)
        self._unsuccessful_at_next_look = _FORGET_AFTER_UNSUCCESSFUL

    async def reserve(self, request: ReservationRequest) -> Reservation | Declined | Blocked:
        """Set the amount aside, or say why not; never wait."""
        id_ = request.reservation_id
        ledger = self._ledgers.get(_owner(id_)) or self._ledger_of(request.tenant)
        known = ledger.known(id_, request)
        if known is not None:
            return known
        now = self._clock.now()
        at = request.at or now
        counters = ledger.counters_of(request, at)
        answer, _ = ledger.decide(id_, request, at, now, counters)
        if not isinstance(answer, Reservation):
            ledger.counters.to_deactivate.append(counters)
            if isinstance(answer, Blocked):
                self._statistics.hold()
        self._forget(ledger)
        return answer

    async def wait_for_reservation(self, request: ReservationRequest) -> Reservation | Declined:
        """Wait until `request` can be answered for good: in order of arrival less priority."""
        id_ = request.reservation_id
        ledger = self._ledger_of(request.tenant)
        known = ledger.known(id_, request)
        if known is not None:
            return known
        now = self._clock.now()
        at = request.at or now
        counters = ledger.counters_of(request, at)
        answer, lacking = ledger.decide(id_, request, at, now, counters)
        if not isinstance(answer, Blocked):
            ledger.counters.to_deactivate.append(counters)
            self._forget(ledger)
            return answer
        future: asyncio.Future[Reservation | Declined] = asyncio.get_running_loop().create_future()
        queued = QueuedRequest(request, counters, answer, lacking, now, future)
        ledger.queue.add(queued)
        try:
            return await future
        except asyncio.CancelledError:
            ledger.leave(queued, self._clock.now())
            raise
        finally:
            ledger.counters.to_deactivate.append(queued.counters)
            self._forget(ledger)

    async def dispatch(self, reservation_id: str, *, lease_s: float = LEASE_S) -> None:
        """Note that the request is about to be sent; a second time raises `ReservationStateError`."""
        ledger, call = self._call(reservation_id, "dispatch", _MAY_DISPATCH)
        ledger.epoch.check()
        call.state = DISPATCHED
        call.since, call.lease_s = self._clock.now(), lease_s
        ledger.epoch.sequence += 1

    async def state_of(self, reservation_id: str) -> ReservationState | None:
        """Return how far a call has come; None for one never reserved, or forgotten."""
        ledger = self._ledgers.get(_owner(reservation_id))
        call = None if ledger is None else ledger.calls.get(reservation_id)
        return None if call is None else call.state

    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        """Charge what a dispatched call used and give back the rest; the second time changes nothing."""
        ledger, call = self._call(reservation_id, "settle", _MAY_CHARGE)
        if call.state is SETTLED:
            return call.settlement(reservation_id)
        settlement = ledger.settle(reservation_id, call, actual)
        if ledger.queue.requests:
            ledger.serve(self._clock.now())
        return settlement

    async def release(self, reservation_id: str) -> None:
        """Give back all of a reservation that was never dispatched; twice is harmless."""
        ledger, call = self._call(reservation_id, "release", _MAY_RELEASE)
        if call.state is ReservationState.RESERVED:
            ledger.give_back(reservation_id, call)
            if ledger.queue.requests:
                ledger.serve(self._clock.now())

    async def in_doubt(self, reservation_id: str) -> Settlement:
        """Charge a dispatched call in full; a later `settle` corrects it. Twice is harmless."""
        ledger, call = self._call(reservation_id, "doubt", _MAY_CHARGE)
        if call.charged is not None:
            return call.settlement(reservation_id)
        settlement = ledger.doubt(reservation_id, call)
        if ledger.queue.requests:
            ledger.serve(self._clock.now())
        return settlement

    async def expire_leases(self) -> Sequence[ExpiredReservation]:
        """End the calls whose lease has run out, then serve the queue."""
        now = self._clock.now()
        expired: list[ExpiredReservation] = []
        for ledger in self._ledgers.values():
            expired += ledger.expire(now)
            if ledger.queue.requests:
                ledger.serve(now)
        return expired

    async def acknowledge_expired(self, reservation_id: str) -> None:
        """Return this one no more from `expire_leases`."""
        self._ledger_of(tenant_of(reservation_id)).calls.expired.pop(reservation_id, None)

    async def apply_limits(self, tenant: str, limits: Sequence[Limit], *, version: int) -> None:
        """Count against these limits from the next request on; an older version, or the same, changes nothing."""
        ledger = self._ledger_of(tenant)
        if version > ledger.version:
            ledger.apply_limits(LimitSet(limits, self._counted), version)
            ledger.serve(self._clock.now())

    def awaited_limits(self, tenant: str) -> int:  # noqa: ARG002 - of the port
        """Return 0: this ledger is lost with its process, limits included."""
        return 0

    def confirm_limits(self, tenant: str, awaited: int) -> None:
        """Do nothing."""

    async def fence(self, tenant: str) -> None:
        """Let nothing more begin until `restore`; what is in flight may end."""
        self._ledger_of(tenant).fence()

    async def entries(self, tenant: str) -> list[LedgerEntry]:
        """Return every call that was charged and is still remembered."""
        ledger = self._ledger_of(tenant)
        return ledger.calls.entries(with_dispatched=ledger.epoch.has_gone_back)

    async def restore(self, tenant: str, entries: Iterable[LedgerEntry]) -> LedgerCheckpoint:
        """Forget all that is known of a tenant's calls, book these entries in their place, and open admission again.

        Of several entries of one call the last holds. Raises `ReservationRequestError` for one that is another tenant's,
        has no moment or is neither settled nor in doubt; nothing is then forgotten.
        """
        found = {entry.request.reservation_id: entry for entry in entries}
        checked = [(entry, _moment_of(tenant, entry)) for entry in found.values()]
        ledger = self._ledger_of(tenant)
        ledger.restore(checked)
        ledger.serve(self._clock.now())
        return ledger.epoch.checkpoint

    async def checkpoint(self, tenant: str) -> LedgerCheckpoint:
        """Return how far the tenant's ledger has come."""
        return self._ledger_of(tenant).epoch.checkpoint

    async def require_at_least(self, tenant: str, checkpoint: LedgerCheckpoint) -> None:
        """Take note of how far the ledger had come once; behind that, or in another epoch, nothing is reserved."""
        self._ledger_of(tenant).require_at_least(checkpoint)

    async def balances(
        self, tenant: str, *, limited: bool = False, at: datetime | None = None
    ) -> list[Balance]:
        """Return counters of a tenant; those of ended windows for as long as they are kept.

        Very many are read page by page, between which others go on.
        """
        ledger = self._ledger_of(tenant)
        found: list[Balance] = []
        for piece in ledger.counters.pages(limited=limited, at=at):
            if found:
                await asyncio.sleep(0)
            found += map(counter_balance, piece)
        return found

    async def waiting(self, tenant: str) -> list[QueuedReservation]:
        """Return a tenant's queued requests, in the order in which they will be served."""
        return self._ledger_of(tenant).queue.seen()

    def statistics(self) -> LedgerStatistics:
        """Return the counts since the start."""
        ledgers = self._ledgers.values()
        return self._statistics.snapshot(
            in_flight=sum(len(ledger.calls.in_flight) for ledger in ledgers),
            waiting=sum(len(list(ledger.queue)) for ledger in ledgers),
        )

    async def aclose(self) -> None:
        """Nothing was opened."""

    def _ledger_of(self, tenant: str) -> TenantLedger:
        owner = _owner(reservation_id(tenant, "", 1))
        ledger = self._ledgers.get(owner)
        if ledger is None:
            counters = TenantCounters(tenant, self._limits, self._horizon)
            epoch = LedgerEpoch(tenant, self._began)
            ledger = TenantLedger(counters, epoch, self._horizon, self._statistics, self._reserved_lease_s)
            self._ledgers[owner] = ledger
        return ledger

    def _call(
        self, reservation_id: str, step: str, allowed: Sequence[ReservationState]
    ) -> tuple[TenantLedger, ReservationEntry]:
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
        """Drop finished calls and idle counters; looks at all that is in use, and is therefore seldom done."""
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
    """Return the part of a reservation's id that names its tenant."""
    return reservation_id.partition(":")[0]


def _moment_of(tenant: str, entry: LedgerEntry) -> datetime:
    """Return the moment of a past call; raises `ReservationRequestError` for what cannot be one."""
    request = entry.request
    if request.tenant != tenant:
        raise ReservationRequestError(
            request.key, f"belongs to tenant {request.tenant!r}; allowed is {tenant!r}"
        )
    if entry.state not in {ReservationState.SETTLED, ReservationState.IN_DOUBT}:
        raise ReservationRequestError(
            request.key, f"is a ledger entry in state {entry.state}; allowed are settled and in_doubt"
        )
    if request.at is None:
        raise ReservationRequestError(
            request.key, "is a ledger entry without a moment; allowed are requests with `at`"
        )
    return request.at
