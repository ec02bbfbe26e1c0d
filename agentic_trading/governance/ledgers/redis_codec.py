"""Conversion between the Redis ledger and the port: replies, limits, tenant state and steps."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import orjson
from typing_extensions import override

from agentic_trading.clock import Clock
from agentic_trading.governance import ledger as ledger_api
from agentic_trading.governance.errors import (
    ClosedWindowError,
    LedgerRolledBackError,
    LedgerSettingsError,
    LedgerUnavailableError,
    ReservationConflictError,
)
from agentic_trading.governance.ledgers.counters import CountedWindows, LimitSet
from agentic_trading.governance.ledgers.redis_counters import CounterKey, ReservationPlanner
from agentic_trading.governance.ledgers.reservation_table import overrun_of
from agentic_trading.governance.ledgers.scripts.redis import ScriptServer
from agentic_trading.governance.limits import COUNTED_BY_CALL, UNITS, Limit, ScopeKind, Window
from agentic_trading.governance.prices import NOTHING, Amount
from agentic_trading.governance.redis import REBUILDING, LedgerKeys, ScriptReply, SequenceGuard
from agentic_trading.redis import within_time


class TenantLimits(NamedTuple):
    """A tenant's limits on the server.

    `revision` grows with each change and is 0 without limits.
    """

    revision: int
    version: int
    limits: tuple[Limit, ...]
    counted: tuple[tuple[ScopeKind, Window], ...]


def read_limits(facts: Sequence[bytes]) -> TenantLimits:
    """Parse limits from the server."""
    revision, version, limits, counted = facts[:4]
    rows = orjson.loads(limits) if limits else []
    pairs = (pair.split("/") for pair in counted.decode().split())
    return TenantLimits(
        revision=int(revision),
        version=int(version),
        limits=tuple(
            Limit(ScopeKind(scope), id_, Window(window), *most) for scope, id_, window, *most in rows
        ),
        counted=tuple((ScopeKind(kind), Window(window)) for kind, window in pairs),
    )


def read_newest(facts: Sequence[bytes | None], at: datetime | None = None) -> dict[Window, str]:
    """Return the ids of the newest counted windows, as returned by `look.lua`.

    With `at`, windows that are over at that time are left out.
    """
    found = {Window.NONE: ""}
    for window, fact in zip((Window.MINUTE, Window.HOUR, Window.DAY, Window.MONTH), facts, strict=True):
        if fact is not None:
            ends_ms, _, window_id = fact.decode().partition(" ")
            if at is None or at.timestamp() * 1000 < int(ends_ms):
                found[window] = window_id
    return found


def limits_text(limits: Sequence[Limit]) -> bytes:
    """Serialize limits for the server."""
    return orjson.dumps([
        [one.scope, one.id, one.window, one.nusd, one.tokens, one.calls] for one in limits
    ])  # fmt: skip


def answer(
    request: ledger_api.ReservationRequest, reply: ScriptReply, planner: ReservationPlanner
) -> ledger_api.Reservation | ledger_api.Declined | ledger_api.Blocked:
    """Parse the answer of `reserve.lua`.

    Raises `ReservationRequestError` for an invalid request.
    """
    rest = reply.rest
    match reply.word:
        case b"RESERVED" | b"KNOWN":
            state, counted_at = ledger_api.ReservationState.RESERVED, None
            if reply.word == b"KNOWN":
                state = ledger_api.ReservationState(rest[0].decode())
                counted_at = planner.other_moment_of(counters_of(rest[1]), request.at)
            elif request.at is None:
                counted_at = read_time(reply.now_ms)
            return ledger_api.Reservation(request.reservation_id, request.amount, state, counted_at)
        case b"REFUSED":
            return refusal(request, *rest)
        case b"HELD":
            return held(request.amount.units[rest[1] - 1], *rest[:3])
        case b"GONE":
            raise ClosedWindowError(
                request.key, request.at or read_time(reply.now_ms), read_time(float(rest[0]))
            )
        case _:
            raise ReservationConflictError(request.key, request.attempt)


def refusal(
    request: ledger_api.ReservationRequest, counter: bytes, unit: int, left: int
) -> ledger_api.Declined:
    """Return the final answer. `unit` is counted from 1."""
    of = CounterKey.named(counter.decode())
    return ledger_api.Declined(
        of.kind, of.id, of.window, UNITS[unit - 1], request.amount.units[unit - 1], left
    )


def held(asked: int, counter: bytes, unit: int, left: int) -> ledger_api.Blocked:
    """Return the answer for now. `unit` is counted from 1."""
    of = CounterKey.named(counter.decode())
    return ledger_api.Blocked(of.kind, of.id, of.window, UNITS[unit - 1], asked, left)


def settlement(reservation_id: str, facts: Sequence[Any]) -> tuple[ledger_api.Settlement, bool]:
    """Return the settlement of a call, and whether it was made by this step."""
    changed, state, late, *amounts = facts
    charged, reserved = _amount(amounts[:3]), _amount(amounts[3:])
    in_doubt = state == b"in_doubt"
    overrun = NOTHING if in_doubt else overrun_of(charged, reserved)
    return ledger_api.Settlement(reservation_id, charged, reserved, overrun, late == b"1", in_doubt), bool(
        changed
    )


def expired(
    facts: Sequence[Any], planner: ReservationPlanner
) -> Iterator[tuple[ledger_api.ExpiredReservation, bool]]:
    """Yield the calls that `expire.lua` returns, each with whether this step ended it."""
    for id_, state, names, *amount, is_new in _rows(facts, 7):
        counters = counters_of(names)
        scope_ids = {counter.kind: counter.id for counter in counters}
        ended, at = ledger_api.ReservationState(state.decode()), planner.moment_of(counters)
        yield ledger_api.ExpiredReservation(id_.decode(), ended, _amount(amount), scope_ids, at), bool(is_new)


def counters_of(names: bytes) -> list[CounterKey]:
    """Parse the counter names of a call."""
    return [CounterKey.named(name) for name in names.decode().splitlines()]


def waiting(facts: Sequence[Any]) -> Iterator[ledger_api.QueuedReservation]:
    """Yield the queued requests."""
    for priority, id_, since_ms, counter, unit, asked, left in _rows(facts, 7):
        yield ledger_api.QueuedReservation(
            reservation_id=id_.decode(),
            held=held(int(asked), counter, unit, left),
            priority=int(priority),
            since=read_time(since_ms),
        )


def read_time(ms: float) -> datetime:
    """Return the time from milliseconds since 1970."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def _amount(numbers: Sequence[bytes]) -> Amount:
    return Amount(*map(int, numbers))


def _rows(facts: Sequence[Any], width: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(facts), width):
        yield facts[start : start + width]


class LimitFreshness:
    """Whether the server's limits are at least as new as those that this process has counted by.

    They may be older after a server was set back or rebuilt. Requests then wait until housekeeping has read
    the controls, applied the limits and confirmed them.
    """

    def __init__(self) -> None:
        self._version = 0
        self._expiries = 1
        self._is_followed = False
        self._fresh = asyncio.Event()
        self._fresh.set()

    def awaited(self) -> int:
        """Return the number to confirm, or 0.

        A process that calls this must also call `confirm`.
        """
        # Requests only wait in a process that confirms, because each would otherwise wait until its time-out.
        self._is_followed = True
        return 0 if self._fresh.is_set() else self._expiries

    def confirm(self, awaited: int) -> None:
        """Resume requests, unless limits have expired again since."""
        if awaited == self._expiries:
            self._fresh.set()

    def applied(self, version: int) -> None:
        """Note limits that this process has applied."""
        self._version = max(self._version, version)

    def read(self, version: int) -> None:
        """Note limits read from the server. If they are older than before, they expire."""
        if version < self._version:
            self.expire()
        self._version = max(self._version, version)

    def expire(self) -> None:
        """Require that limits are read again."""
        if self._is_followed:
            self._expiries += 1
            self._fresh.clear()

    async def wait(self, tenant: str) -> None:
        """Wait until limits are fresh. Raises `LedgerUnavailableError` after two seconds."""
        if self._fresh.is_set():
            return
        try:
            async with within_time():
                await self._fresh.wait()
        except TimeoutError:
            why = (
                f"the limits of {tenant} on it are older than those read before, and were not read again yet"
            )
            raise LedgerUnavailableError(why) from None


class RedisTenantState(SequenceGuard):
    """A process's view of one tenant's ledger, updated by each answer."""

    def __init__(
        self,
        name: str,
        keys: LedgerKeys,
        planner: ReservationPlanner,
        limits: Sequence[Limit],
        counted: CountedWindows,
    ) -> None:
        super().__init__()
        self.name = name
        self.keys = keys
        self.planner = planner
        self.revision = 0
        self._limits = limits
        self._counted = tuple(counted)
        self.freshness = LimitFreshness()
        planner.apply_limits(LimitSet(limits, counted))

    def apply_limits(self, limits: TenantLimits) -> None:
        """Count by the server's limits.

        Before the first `apply_limits`, those of this process are used.
        """
        self.freshness.read(limits.version)
        self.revision = limits.revision
        self.planner.apply_limits(self.limit_set(limits))

    @override
    def read(self, raw: Sequence[Any]) -> ScriptReply:
        """Parse an answer. After a rebuild by another process, limits must be read again."""
        before = self.known.epoch
        reply = super().read(raw)
        if before and self.known.epoch > before:
            self.freshness.expire()
        return reply

    def limit_set(self, limits: TenantLimits) -> LimitSet:
        """Return the server's limits, merged."""
        held_to = limits.limits if limits.version > 0 else self._limits
        return LimitSet(held_to, (*self._counted, *limits.counted))

    def counts_elsewhere(self, reply: ScriptReply) -> LedgerSettingsError:
        """Return the error if the server counts this tenant in another zone than this process."""
        own, found = self.planner.zone, reply.rest[0].decode()
        how = "set AGENTIC_ZONE (`zone`) to that of the server, or begin another by `budget rebuild`"
        return LedgerSettingsError(f"zone of {self.name!r}", found, f"{own}, as in this process: {how}")

    def gone_back(self, reply: ScriptReply) -> LedgerRolledBackError:
        """Return the error for an answer from a closed ledger."""
        return LedgerRolledBackError(self.name, reply.closed.decode(), str(reply.checkpoint))


class RedisTenants:
    """The tenants of one process.

    Tenants whose ledger has taken a step are kept, others only while a step uses them.
    """

    def __init__(
        self,
        namespace: str,
        new_planner: Callable[[], ReservationPlanner],
        limits: Sequence[Limit],
        counted: CountedWindows,
    ) -> None:
        self._namespace = namespace
        self._new_planner = new_planner
        self._limits = limits
        self._counted = counted
        self._begun: dict[str, RedisTenantState] = {}
        # Weak, because a caller can ask for any tenant name and the process would otherwise keep them all.
        self._others: WeakValueDictionary[str, RedisTenantState] = WeakValueDictionary()

    def of(self, name: str) -> RedisTenantState:
        """Return the state of a tenant."""
        found = self._begun.get(name) or self._others.get(name)
        if found is None:
            keys = LedgerKeys.of(self._namespace, name)
            found = RedisTenantState(name, keys, self._new_planner(), self._limits, self._counted)
            self._others[name] = found
        return found

    def find(self, name: str) -> RedisTenantState | None:
        """Return the state of a tenant whose ledger has taken a step, otherwise None."""
        return self._begun.get(name)

    def keep(self, tenant: RedisTenantState) -> None:
        """Keep the state of a tenant as long as the process lives."""
        self._begun[tenant.name] = tenant

    def begun(self) -> Sequence[RedisTenantState]:
        """Return the tenants that are kept."""
        return tuple(self._begun.values())


class RedisSteps:
    """Runs the ledger's scripts for one process.

    Every answer contains the ledger's checkpoint.
    """

    def __init__(
        self, server: ScriptServer, tenants: RedisTenants, clock: Clock, process: str, *, is_checked: bool
    ) -> None:
        self._server = server
        self._tenants = tenants
        self._clock = clock
        self._process = process
        self._is_checked = is_checked
        self.server_ahead_s = 0.0
        """Seconds by which the server's clock is ahead of the local monotonic clock."""

    async def check(self) -> None:
        """Check once that the server keeps acknowledged writes."""
        if not self._is_checked:
            await self._server.check()
        self._is_checked = True

    async def run(
        self, tenant: RedisTenantState, script: str, *args: Any, calls: Sequence[str] = ()
    ) -> ScriptReply:
        """Run a script for a tenant and these calls.

        Raises `LedgerRolledBackError` for a closed ledger, and `LedgerSettingsError` for another zone.
        """
        if not self._is_checked:
            await self.check()
        facts = (*tenant.known_facts, self._process, *args)
        reply = tenant.read(await self._server.run(script, tenant.keys.with_calls(calls), facts))
        self.server_ahead_s = reply.now_ms / 1000 - self._clock.monotonic()
        if reply.epoch:
            self._tenants.keep(tenant)
        if reply.word == b"BACK":
            raise tenant.gone_back(reply)
        if reply.word == b"ZONE":
            raise tenant.counts_elsewhere(reply)
        return reply

    async def forget(self, tenant: RedisTenantState, at_once: int) -> None:
        """Drop counters whose time is over, `at_once` per step.

        The server needs to have the same limits.
        """
        dropped = at_once
        while dropped == at_once:
            reply = await self.run(
                tenant, "forget", at_once, tenant.revision, tenant.planner.limited_totals()
            )
            if reply.word == b"STALE":
                tenant.apply_limits(read_limits(reply.rest))
            else:
                dropped = reply.rest[0]

    async def ids(self, tenant: RedisTenantState, script: str, *args: int) -> list[str]:
        """Run a script that returns call ids."""
        return [id_.decode() for id_ in (await self.run(tenant, script, *args)).rest[0]]


_CALL_FIELDS = (
    "mark", "state", "names", "nusd", "tokens", "calls", "charged_nusd", "charged_tokens", "charged_calls",
)  # fmt: skip


async def charged_calls(
    server: ScriptServer, tenant: RedisTenantState, look: ScriptReply
) -> list[ledger_api.LedgerEntry]:
    """Return the charged calls. If the ledger has gone back, dispatched ones too.

    During a rebuild, or after one that was aborted, calls of the previous epochs are included.
    """
    has_gone_back = look.closed not in {b"", REBUILDING}
    epoch_ids = {look.epoch_id}
    async for unbooked in server.values(tenant.keys.meta, ["unbooked"]):
        epoch_ids |= {id_ for _, ids in unbooked for id_ in ids.split()}
    found: dict[str, ledger_api.LedgerEntry] = {}
    async for page in server.hashes(tenant.keys.calls, _CALL_FIELDS):
        for id_, (mark, state, names, *amounts) in page:
            is_over = state in {b"settled", b"in_doubt"}
            is_lost = state == b"dispatched" and (has_gone_back or mark != look.epoch_id)
            if mark in epoch_ids and (is_over or is_lost):
                counters = counters_of(names)
                _, key, attempt = ledger_api.parts_of(id_)
                scope_ids = {counter.kind: counter.id for counter in counters} | {ScopeKind.CALL: key}
                at = tenant.planner.moment_of(counters) or read_time(look.now_ms)
                reserved, charged = _amount(amounts[:3]), _amount(amounts[3:] if is_over else amounts[:3])
                is_limited = any(counter.kind is ScopeKind.CALL for counter in counters)
                # The server does not keep a request's own limits. Without one on the call its charge would
                # not be counted for the next attempt.
                own = (COUNTED_BY_CALL,) if is_limited else ()
                request = ledger_api.ReservationRequest(key, attempt, scope_ids, reserved, at, own)
                found[id_] = ledger_api.LedgerEntry(
                    request, ledger_api.ReservationState(state.decode()), charged
                )
    return list(found.values())
