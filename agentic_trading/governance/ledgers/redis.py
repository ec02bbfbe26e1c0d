"""The ledger of many processes, on a Redis or Valkey server. Each step is one script.

Queued requests wait in their own process.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

from agentic_trading.cancellation import OwnedTasks, run_shielded
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance import ledger as ledger_api
from agentic_trading.governance.errors import (
    LedgerError,
    LedgerUnavailableError,
    ReservationRequestError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledgers import redis_codec as replies
from agentic_trading.governance.ledgers.checkpoint import StatisticsCounter
from agentic_trading.governance.ledgers.counters import CountedWindows
from agentic_trading.governance.ledgers.redis_codec import (
    RedisSteps,
    RedisTenants,
    RedisTenantState,
    charged_calls,
)
from agentic_trading.governance.ledgers.redis_counters import (
    ReservationPlanner,
    every_balance,
    limited_balances,
)
from agentic_trading.governance.ledgers.scripts.redis import ScriptServer
from agentic_trading.governance.limits import Limit, ScopeKind, Window
from agentic_trading.governance.prices import NOTHING, Amount
from agentic_trading.governance.redis import ScriptReply
from agentic_trading.ids import NewId, random_id

LOOK_S = 1.0
"""Seconds after which a queued request is checked again if it is not woken.

Longer if very many are queued.
"""

_LOOKS_A_SECOND = 200  # of all queued requests together
_LEASE_LOOKS = 3
_LISTENING_S = 0.5  # the longest wait until the process listens

WakeUps = AsyncGenerator[tuple[str, str]]
"""Wake-ups: a queue and the places in it, one per line. `*` means all, an empty text means no place."""


class LookResult(NamedTuple):
    """The answer to one check. `is_new`: this check made the reservation."""

    answer: ledger_api.Reservation | ledger_api.Declined | ledger_api.Blocked
    is_new: bool = False


@dataclass(slots=True, eq=False)
class RedisQueuedRequest:
    """A request in a queue on the server. `place` is empty until its first check."""

    queue: str
    place: str = ""
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class QueueCalls(Protocol):
    """The ledger's calls for one queued request."""

    async def look(self, queued: RedisQueuedRequest) -> LookResult:
        """Try to reserve. Otherwise take or keep the place."""
        ...

    async def give_back(self) -> None:
        """Release the new reservation."""
        ...

    async def leave(self, place: str) -> None:
        """Give up the place."""
        ...


class RedisWaitQueue:
    """Waits for blocked requests until they have a final answer.

    A request is checked again when the server wakes it, or after `look_s` seconds.
    """

    def __init__(self, wake_ups: Callable[[], WakeUps], look_s: float = LOOK_S) -> None:
        self._wake_ups = wake_ups
        self._look_s = look_s
        self._by_place: dict[tuple[str, str], RedisQueuedRequest] = {}
        self._tasks = OwnedTasks()
        self._listening: asyncio.Event | None = None
        self._listener: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._by_place)

    @property
    def look_s(self) -> float:
        """Seconds after which a queued request is checked again if it is not woken."""
        return max(self._look_s, len(self._by_place) / _LOOKS_A_SECOND)

    @property
    def lease_s(self) -> float:
        """Seconds for which a queued request keeps its place after a check."""
        return _LEASE_LOOKS * self.look_s

    async def wait(self, queue: str, calls: QueueCalls) -> ledger_api.Reservation | ledger_api.Declined:
        """Check until the answer is final.

        A cancelled wait gives up its place and a new reservation.
        """
        with self._joined(queue) as queued:
            try:
                while isinstance(answer := await self._look(queued, calls), ledger_api.Blocked):
                    await self._listen()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self.look_s):
                            await queued.woken.wait()
                    queued.woken.clear()
            except asyncio.CancelledError:
                if queued.place:
                    with suppress(LedgerError):  # the place has a lease
                        await calls.leave(queued.place)
                raise
            return answer

    def set_place(self, queued: RedisQueuedRequest, place: str) -> None:
        """Store the place from a check, and check once more."""
        # A wake-up for the new place may have come before its place was stored here, so that the request must
        # check again.
        if place != queued.place:
            queued.place = place
            self._by_place[queued.queue, place] = queued
            queued.woken.set()

    async def aclose(self) -> None:
        """Stop listening for wake-ups. Repeating is harmless."""
        if self._listener is not None:
            self._listener.cancel()
        await self._tasks.aclose()
        self._listening = self._listener = None

    @contextmanager
    def _joined(self, queue: str) -> Iterator[RedisQueuedRequest]:
        queued = RedisQueuedRequest(queue)
        try:
            yield queued
        finally:
            self._by_place.pop((queue, queued.place), None)

    async def _look(
        self, queued: RedisQueuedRequest, calls: QueueCalls
    ) -> ledger_api.Reservation | ledger_api.Declined | ledger_api.Blocked:
        """Finish a check even if cancelled."""
        # The check is shielded, because a check that is cut off would hide whether it made a reservation to
        # release.
        outcomes: list[LookResult | Exception] = []
        try:
            await run_shielded(_keep_outcome(outcomes, calls.look(queued)))
        except asyncio.CancelledError:
            if any(isinstance(outcome, LookResult) and outcome.is_new for outcome in outcomes):
                with suppress(LedgerError):  # the reservation has a lease
                    await calls.give_back()
            raise
        (outcome,) = outcomes
        if isinstance(outcome, Exception):
            raise outcome
        return outcome.answer

    async def _listen(self) -> None:
        """Start to listen for wake-ups, and wait until that has begun."""
        if self._listening is None:
            self._listening = asyncio.Event()
            self._listener = self._tasks.start(self._deliver_wake_ups(self._listening), name="wake-ups")
        # Requests are checked without wake-ups too, so that a lost subscription only delays them.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LISTENING_S):
                await self._listening.wait()

    async def _deliver_wake_ups(self, listening: asyncio.Event) -> None:
        async with aclosing(self._wake_ups()) as wake_ups:
            async for queue, places in wake_ups:
                listening.set()
                for queued in self._all_in(queue) if places == "*" else self._named(queue, places):
                    queued.woken.set()

    def _all_in(self, queue: str) -> Iterator[RedisQueuedRequest]:
        return (queued for (own_queue, _), queued in self._by_place.items() if queue in {own_queue, "*"})

    def _named(self, queue: str, places: str) -> Iterator[RedisQueuedRequest]:
        requests = (self._by_place.get((queue, place)) for place in places.split("\n"))
        return (queued for queued in requests if queued is not None)


async def _keep_outcome(
    outcomes: list[LookResult | Exception], look: Coroutine[Any, Any, LookResult]
) -> None:
    """Append the result or the error of a check."""
    try:
        # `run_shielded` would lose the result when the caller is cancelled.
        outcomes.append(await look)
    except Exception as e:  # noqa: BLE001 - raised again by the caller
        outcomes.append(e)


ALWAYS: Final[CountedWindows] = (
    *((kind, window) for kind in (ScopeKind.AGENT, ScopeKind.WORKFLOW, ScopeKind.PRINCIPAL, ScopeKind.TENANT)
      for window in (Window.NONE, Window.DAY, Window.MONTH)),
    (ScopeKind.TRACE, Window.NONE),
)  # fmt: skip
"""Windows that are counted even without a limit, for every id.

Other windows are counted from the time that a limit is applied to them, or that a request sets its own limit in
them. A limit on a minute or an hour that was not counted so far therefore begins at zero. Windows of calls are only
counted for requests with a limit on them.
"""

MOST_RECENT_S: Final = 10.0
"""How many seconds a fenced ledger can look back for ended calls."""

_TRIES: Final = 8
_BATCH: Final = 100
_BOOKED_AT_ONCE: Final = 512
_TIMES = Struct("<5d")


class RedisLedger:
    """A `Ledger` shared by all processes with the same server and namespace.

    Leases, and the windows of requests without `at`, follow the server's clock. A queued request loses its
    place after three times `look_s` without a check, because its process was killed. Sums are exact up to
    `LARGEST`. The first step opens the ledger. Create it outside of the event loop, because it reads files.

    Args:
        limits: The limits of tenants that have no applied limits on the server.
        zone: The time zone in which days and months begin, the same for all processes.
        keep: How long counters of ended windows are kept after their end and their last use. After that their
            time can no longer be reserved for. Totals of agents and principals that never had a ceiling are
            kept as long. Other totals are kept forever.
        call_keep: How long ended calls are kept. Must be longer than a worker accepts an envelope.
        reserved_lease_s: Seconds that a reservation may wait for its dispatch.
        look_s: Seconds after which a queued request is checked again if the server does not wake it.
        counted: Windows that are counted even without a limit (see `ALWAYS`).
        recorded_within_s: Seconds before a `fence` (at most 10). `restore` keeps calls that ended within
            them, because their records may not have reached the log yet.
        is_checked_elsewhere: Do not check the server's settings.

    Raises:
        ValueError: If `call_keep` is not above 0, or is longer than `keep`.
        LedgerSettingsError: By the first step if the server may lose acknowledged writes. By `reserve` and
            `checkpoint` if the tenant is counted in another zone.

    """

    def __init__(
        self,
        url: str,
        limits: Iterable[Limit] = (),
        *,
        namespace: str = "agentic",
        zone: tzinfo = UTC,
        keep: timedelta = timedelta(days=40),
        call_keep: timedelta = ledger_api.CALL_KEEP,
        reserved_lease_s: float = 60.0,
        look_s: float = LOOK_S,
        counted: CountedWindows = ALWAYS,
        recorded_within_s: float = 0.0,
        is_checked_elsewhere: bool = False,
        clock: Clock | None = None,
        new_id: NewId = random_id,
    ) -> None:
        if not timedelta(0) < call_keep <= keep:
            raise ValueError(f"call_keep is {call_keep}. Allowed: more than 0, up to {keep} (`keep`)")
        self._server = ScriptServer(url)
        self._call_keep_ms = call_keep // timedelta(milliseconds=1)
        self._reserved_lease_s = reserved_lease_s
        self._recorded_within_ms = _ms(min(recorded_within_s, MOST_RECENT_S))
        self._clock: Clock = clock or SystemClock()
        self._tenants = RedisTenants(
            namespace, partial(ReservationPlanner, zone, keep, call_keep), tuple(limits), tuple(counted)
        )
        self._steps = RedisSteps(
            self._server, self._tenants, self._clock, new_id(), is_checked=is_checked_elsewhere
        )
        self._queue = RedisWaitQueue(lambda: self._server.wake_ups(namespace, self._clock), look_s)
        self._statistics = StatisticsCounter()
        self._in_flight: set[str] = set()

    async def open(self) -> None:
        """Check that the server keeps acknowledged writes. Repeating is harmless."""
        await self._steps.check()

    async def reserve(
        self, request: ledger_api.ReservationRequest
    ) -> ledger_api.Reservation | ledger_api.Declined | ledger_api.Blocked:
        """Reserve the amount, or return why that is not possible. Does not wait."""
        answer = (await self.look(request, None)).answer
        self._statistics.counts["held"] += isinstance(answer, ledger_api.Blocked)
        return answer

    async def wait_for_reservation(
        self, request: ledger_api.ReservationRequest
    ) -> ledger_api.Reservation | ledger_api.Declined:
        """Wait until the request is reserved or finally declined, in order of arrival minus priority."""
        return await self._queue.wait(self._tenants.of(request.tenant).keys.queue, _QueueCalls(self, request))

    async def dispatch(self, reservation_id: str, *, lease_s: float = ledger_api.LEASE_S) -> None:
        """Record that the request is about to be sent. The second time raises `ReservationStateError`."""
        tenant = self._tenants.of(ledger_api.tenant_of(reservation_id))
        reply = await self._steps.run(
            tenant, "dispatch", reservation_id, _ms(lease_s), calls=(reservation_id,)
        )
        _check(tenant, reply, reservation_id, "dispatch", (ledger_api.ReservationState.RESERVED,))

    async def state_of(self, reservation_id: str) -> ledger_api.ReservationState | None:
        """Return the state of a call. None if it was never reserved or is forgotten."""
        tenant = self._tenants.of(ledger_api.tenant_of(reservation_id))
        reply = await self._steps.run(tenant, "look", calls=(reservation_id,))
        state = reply.rest[0]
        if not state and reply.closed:
            raise tenant.gone_back(reply)
        return ledger_api.ReservationState(state.decode()) if state else None

    async def settle(self, reservation_id: str, actual: Amount) -> ledger_api.Settlement:
        """Charge the usage of a dispatched call and return the rest. Repeating has no effect."""
        return await self._end(reservation_id, "settle", ledger_api.ReservationState.SETTLED, actual)

    async def release(self, reservation_id: str) -> None:
        """Release a reservation that was never dispatched. Repeating is harmless."""
        await self._end(reservation_id, "release", ledger_api.ReservationState.RELEASED, NOTHING)

    async def in_doubt(self, reservation_id: str) -> ledger_api.Settlement:
        """Charge a dispatched call in full. A later `settle` corrects it. Repeating is harmless."""
        return await self._end(reservation_id, "doubt", ledger_api.ReservationState.IN_DOUBT, NOTHING)

    async def expire_leases(self) -> Sequence[ledger_api.ExpiredReservation]:
        """End the calls whose lease has run out, and drop counters whose time is over."""
        ended: list[ledger_api.ExpiredReservation] = []
        for tenant in self._tenants.begun():
            looked_at: set[str] = set()
            while due := [
                id_ for id_ in await self._steps.ids(tenant, "due", _BATCH) if id_ not in looked_at
            ]:
                looked_at.update(due)
                ended += await self._expire(tenant, due)
            await self._steps.forget(tenant, _BATCH)
        return ended

    async def acknowledge_expired(self, reservation_id: str) -> None:
        """Stop returning this call from `expire_leases`, in all processes."""
        await self._steps.run(
            self._tenants.of(ledger_api.tenant_of(reservation_id)), "acknowledge", reservation_id
        )

    async def apply_limits(self, tenant: str, limits: Sequence[Limit], *, version: int) -> None:
        """Replace the limits on the server, for the next request of every process."""
        of = self._tenants.of(tenant)
        await self._steps.run(of, "apply_limits", version, replies.limits_text(limits))
        of.freshness.applied(version)

    def awaited_limits(self, tenant: str) -> int:
        """Return a nonzero number if the server's limits may be older than those used here."""
        of = self._tenants.find(tenant)
        return 0 if of is None else of.freshness.awaited()

    def confirm_limits(self, tenant: str, awaited: int) -> None:
        """Resume reserving."""
        self._tenants.of(tenant).freshness.confirm(awaited)

    async def fence(self, tenant: str) -> None:
        """Close the ledger for all processes until `restore`, which keeps calls that end from now on."""
        await self._steps.run(self._tenants.of(tenant), "fence", self._recorded_within_ms)

    async def entries(self, tenant: str) -> Sequence[ledger_api.LedgerEntry]:
        """Return every charged call until `call_keep` after its end. Scans all keys of the server."""
        of = self._tenants.of(tenant)
        for _ in range(_TRIES):
            before = await self._steps.run(of, "look")
            found = await charged_calls(self._server, of, before)
            # A rebuild in between would mix the calls of two epochs.
            if (await self._steps.run(of, "look")).epoch_id == before.epoch_id:
                return found
        raise LedgerUnavailableError("it is rebuilt faster than its calls can be read")

    async def restore(
        self, tenant: str, entries: Iterable[ledger_api.LedgerEntry]
    ) -> ledger_api.LedgerCheckpoint:
        """Begin the next epoch with the log's entries. Stays closed until all are booked."""
        of = self._tenants.of(tenant)
        # Calls may end meanwhile. The script then asks for a new list, because it would otherwise drop them.
        begun = None
        while begun is None or begun.word == b"AGAIN":  # what there is to be carried over has changed
            await self.fence(tenant)
            carried = await self._steps.ids(of, "carried")
            begun = await self._steps.run(of, "rebuild", *carried, calls=carried)
        of.apply_limits(replies.read_limits((await self._steps.run(of, "look")).rest[1:]))
        await self._book_all(of, entries)
        opened = await self._steps.run(of, "open", begun.epoch)
        stay = set(await self._steps.ids(of, "carried"))
        self._in_flight = {
            id_ for id_ in self._in_flight if ledger_api.tenant_of(id_) != tenant or id_ in stay
        }
        return opened.checkpoint

    async def checkpoint(self, tenant: str) -> ledger_api.LedgerCheckpoint:
        """Return how far the tenant's ledger has progressed, closed or not."""
        of = self._tenants.of(tenant)
        await self._server.require_room()  # because a full server still answers reads
        return (await self._steps.run(of, "look", of.planner.zone)).checkpoint

    async def require_at_least(self, tenant: str, checkpoint: ledger_api.LedgerCheckpoint) -> None:
        """Require that the ledger has reached this checkpoint. The next step checks it."""
        of = self._tenants.of(tenant)
        of.require_at_least(checkpoint)
        self._tenants.keep(of)

    async def balances(
        self, tenant: str, *, limited: bool = False, at: datetime | None = None
    ) -> Sequence[ledger_api.Balance]:
        """Return counters of a tenant. Each is exact, but others may change meanwhile."""
        of = self._tenants.of(tenant)
        _, *limits, newest = (await self._steps.run(of, "look")).rest
        limit_set = of.limit_set(replies.read_limits(limits))
        if limited:
            return await limited_balances(
                self._server, tenant, of.keys, limit_set, replies.read_newest(newest, at)
            )
        return await every_balance(self._server, tenant, of.keys, limit_set)

    async def waiting(self, tenant: str) -> Sequence[ledger_api.QueuedReservation]:
        """Return a tenant's queued requests of all processes, in the order in which they will be served."""
        return list(replies.waiting((await self._steps.run(self._tenants.of(tenant), "waiting")).rest[0]))

    def statistics(self) -> ledger_api.LedgerStatistics:
        """Return the counts of this process since its start."""
        return self._statistics.snapshot(in_flight=len(self._in_flight), waiting=len(self._queue))

    async def aclose(self) -> None:
        """Close the connections. Repeating is harmless."""
        await self._queue.aclose()
        await self._server.aclose()

    async def leave(self, tenant: str, place: str) -> None:
        """Give up a place in the queue."""
        await self._steps.run(self._tenants.of(tenant), "leave", place)

    async def look(
        self, request: ledger_api.ReservationRequest, queued: RedisQueuedRequest | None
    ) -> LookResult:
        """Reserve, or take or keep a place in the queue, by the server's limits and windows."""
        tenant = self._tenants.of(request.tenant)
        place = "" if queued is None else queued.place
        present_s = self._clock.monotonic() + self._steps.server_ahead_s
        leases_ms = _ms(self._reserved_lease_s), 0 if queued is None else _ms(self._queue.lease_s)
        for _ in range(_TRIES):
            await tenant.freshness.wait(tenant.name)
            await self._count_own(tenant, request)
            facts = _facts(tenant, request, place, present_s, leases_ms)
            reply = await self._steps.run(tenant, "reserve", *facts, calls=(request.reservation_id,))
            # The ceilings travel with the request, because the server does not merge limits (decision 57).
            if reply.word == b"STALE":
                tenant.apply_limits(replies.read_limits(reply.rest))
            # Its minute has passed on the server, so that its windows must be computed again.
            elif reply.word == b"MOVED":
                present_s = reply.now_ms / 1000
            else:
                self._note(request.reservation_id, reply, queued)
                answer = replies.answer(request, reply, tenant.planner)
                return LookResult(answer, is_new=reply.word == b"RESERVED")
        raise LedgerUnavailableError("its limits or its clock change faster than they can be read")

    def _note(self, id_: str, reply: ScriptReply, queued: RedisQueuedRequest | None) -> None:
        if reply.word == b"RESERVED":
            self._statistics.counts["reserved"] += 1
            self._in_flight.add(id_)
        elif reply.word == b"REFUSED":
            self._statistics.counts["refused"] += 1
        elif reply.word == b"HELD" and queued is not None:
            self._queue.set_place(queued, reply.rest[3].decode())

    async def _count_own(self, tenant: RedisTenantState, request: ledger_api.ReservationRequest) -> None:
        """Count every id, from now on, in the windows of the request's own limits."""
        missing = tenant.planner.missing(request) if request.limits else ()
        for kind, window in missing:
            await self._steps.run(tenant, "count", f"{kind}/{window}")
        if missing:
            tenant.apply_limits(replies.read_limits((await self._steps.run(tenant, "look")).rest[1:]))

    async def _end(
        self, id_: str, step: str, state: ledger_api.ReservationState, actual: Amount
    ) -> ledger_api.Settlement:
        tenant = self._tenants.of(ledger_api.tenant_of(id_))
        reply = await self._steps.run(
            tenant, "end", id_, state, self._call_keep_ms, *actual.units, calls=(id_,)
        )
        _check(tenant, reply, id_, step, _ALLOWED[state])
        self._in_flight.discard(id_)
        settlement, is_new = replies.settlement(id_, reply.rest)
        if is_new:
            self._statistics.end(settlement, is_released=state is ledger_api.ReservationState.RELEASED)
        return settlement

    async def _book_all(self, of: RedisTenantState, entries: Iterable[ledger_api.LedgerEntry]) -> None:
        """Book past calls, many at once."""
        # Many at once, because the server syncs its disk once per bundle.
        room = asyncio.Semaphore(_BOOKED_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                for entry in entries:
                    await room.acquire()
                    facts = _booked(of, entry, self._call_keep_ms)
                    step = self._steps.run(of, "book", *facts, calls=(entry.request.reservation_id,))
                    group.create_task(step, name="book").add_done_callback(lambda _: room.release())
        except ExceptionGroup as e:
            raise e.exceptions[0] from e

    async def _expire(
        self, tenant: RedisTenantState, due: Sequence[str]
    ) -> list[ledger_api.ExpiredReservation]:
        again_ms = _ms(self._reserved_lease_s)
        reply = await self._steps.run(tenant, "expire", self._call_keep_ms, again_ms, *due, calls=due)
        ended = list(replies.expired(reply.rest[0], tenant.planner))
        for one in (one for one, is_new in ended if is_new):
            self._in_flight.discard(one.reservation_id)
            self._statistics.expire(one)
        return [one for one, _ in ended]


def _facts(
    tenant: RedisTenantState,
    request: ledger_api.ReservationRequest,
    ticket: str,
    present_s: float,
    leases_ms: tuple[int, int],
) -> Iterator[Any]:
    """Yield the arguments of `reserve.lua`, in its order."""
    plan = tenant.planner.plan(request, replies.read_time(1000 * present_s))
    yield from (request.reservation_id, request.payload_hash, tenant.revision, request.priority, ticket)
    yield from request.amount.units
    yield _TIMES.pack(*plan.times, *leases_ms)
    yield from (plan.rules, plan.own, plan.names, tenant.planner.zone)


def _booked(tenant: RedisTenantState, entry: ledger_api.LedgerEntry, keep_ms: int) -> Iterator[Any]:
    """Yield the arguments of `book.lua`, in its order."""
    request = entry.request
    if request.at is None:
        raise ReservationRequestError(
            request.key, "is a ledger entry without a time. Set `at` in its request"
        )
    plan = tenant.planner.plan(request, request.at)
    yield from (request.reservation_id, request.payload_hash, entry.state, keep_ms)
    yield from (*request.amount.units, *entry.charged.units, plan.rules, plan.names)


class _QueueCalls:
    """The `QueueCalls` of one request."""

    def __init__(self, ledger: RedisLedger, request: ledger_api.ReservationRequest) -> None:
        self._ledger = ledger
        self._request = request

    async def look(self, queued: RedisQueuedRequest) -> LookResult:
        """Try to reserve. Otherwise take or keep the place."""
        return await self._ledger.look(self._request, queued)

    async def give_back(self) -> None:
        """Release the new reservation."""
        await self._ledger.release(self._request.reservation_id)

    async def leave(self, place: str) -> None:
        """Give up the place."""
        await self._ledger.leave(self._request.tenant, place)


_SENT: Final = (
    ledger_api.ReservationState.DISPATCHED,
    ledger_api.ReservationState.IN_DOUBT,
    ledger_api.ReservationState.SETTLED,
)
_ALLOWED: Final[Mapping[ledger_api.ReservationState, tuple[ledger_api.ReservationState, ...]]] = {
    ledger_api.ReservationState.SETTLED: _SENT,
    ledger_api.ReservationState.RELEASED: (
        ledger_api.ReservationState.RESERVED,
        ledger_api.ReservationState.RELEASED,
    ),
    ledger_api.ReservationState.IN_DOUBT: _SENT,
}


def _check(
    tenant: RedisTenantState,
    reply: ScriptReply,
    reservation_id: str,
    step: str,
    allowed: Sequence[ledger_api.ReservationState],
) -> None:
    """Raise the error of a failed step."""
    if reply.word == b"STATE":
        raise ReservationStateError(
            reservation_id, step, ledger_api.ReservationState(reply.rest[0].decode()), allowed
        )
    if reply.word == b"UNKNOWN":
        raise tenant.gone_back(reply) if reply.closed else UnknownReservationError(reservation_id)


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
