"""The values of the Redis ledger in the words of the port: replies, limits, balances, and the state of a tenant."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from heapq import merge
from struct import Struct
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import orjson

from agentic_trading.governance.errors import (
    ClosedWindowError,
    LedgerRolledBackError,
    ReservationConflictError,
)
from agentic_trading.governance.ledger import (
    Balance,
    Blocked,
    Declined,
    ExpiredReservation,
    LedgerCheckpoint,
    LedgerEntry,
    QueuedReservation,
    Reservation,
    ReservationRequest,
    ReservationState,
    Settlement,
    parts_of,
)
from agentic_trading.governance.ledgers.limit_set import CountedWindows, LimitSet
from agentic_trading.governance.ledgers.redis_counters import CounterKey, ReservationPlanner
from agentic_trading.governance.ledgers.reservation_table import overrun_of
from agentic_trading.governance.ledgers.scripts.redis import ScriptServer
from agentic_trading.governance.limits import ANY, SHORT_LIVED, UNITS, UNLIMITED, Limit, ScopeKind, Window
from agentic_trading.governance.prices import NOTHING, Amount
from agentic_trading.governance.redis import LedgerKeys

_COUNTER = Struct("<12d")
_RANK_DIGITS = 10
_MIDDLE_RANK = 10**_RANK_DIGITS // 2


class ScriptReply(NamedTuple):
    """One answer: a word, where the ledger is now, its server's time in ms, what it is fenced by, and the rest.

    `own` is the sequence of the last step that this process took.
    """

    word: bytes
    epoch: int
    epoch_id: bytes
    sequence: int
    own: int
    now_ms: int
    closed: bytes
    rest: Sequence[Any]

    @property
    def checkpoint(self) -> LedgerCheckpoint:
        """How far the ledger has come."""
        return LedgerCheckpoint(self.epoch, self.epoch_id.decode(), self.sequence)


class TenantLimits(NamedTuple):
    """The limits of a tenant as they stand on the server; `revision` grows with each change, 0 for none so far."""

    revision: int
    version: int
    limits: tuple[Limit, ...]
    counted: tuple[tuple[ScopeKind, Window], ...]


def read_reply(raw: Sequence[Any]) -> ScriptReply:
    """Return an answer as the scripts give it."""
    word, epoch, epoch_id, sequence, own, now_ms, closed = raw[0].split(b" ", 6)
    return ScriptReply(word, int(epoch), epoch_id, int(sequence), int(own), int(now_ms), closed, raw[1:])


def read_limits(facts: Sequence[bytes]) -> TenantLimits:
    """Return limits as the server keeps them."""
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


def read_newest(facts: Sequence[bytes | None]) -> dict[Window, str]:
    """Return the ids of the newest windows that something was counted in, as `look.lua` returns them."""
    ending = (Window.MINUTE, Window.HOUR, Window.DAY, Window.MONTH)
    found = {
        window: fact.decode().partition(" ")[2]
        for window, fact in zip(ending, facts, strict=True)
        if fact is not None
    }
    return {Window.NONE: "", **found}


def limits_text(limits: Sequence[Limit]) -> bytes:
    """Return limits as the server keeps them."""
    return orjson.dumps([
        [one.scope, one.id, one.window, one.nusd, one.tokens, one.calls] for one in limits
    ])  # fmt: skip


def answer(
    request: ReservationRequest, reply: ScriptReply, planner: ReservationPlanner
) -> Reservation | Declined | Blocked:
    """Return the answer of `reserve.lua` to a request; raises what is wrong with the request."""
    rest = reply.rest
    match reply.word:
        case b"RESERVED" | b"KNOWN":
            state, counted_at = ReservationState.RESERVED, None
            if reply.word == b"KNOWN":
                state = ReservationState(rest[0].decode())
                counted_at = planner.other_moment_of(counters_of(rest[1]), request.at)
            elif request.at is None:
                counted_at = read_time(reply.now_ms)
            return Reservation(request.reservation_id, request.amount, state, counted_at)
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


def refusal(request: ReservationRequest, counter: bytes, unit: int, left: int) -> Declined:
    """Return the final answer; `unit` is counted from 1."""
    of = CounterKey.named(counter.decode())
    return Declined(of.kind, of.id, of.window, UNITS[unit - 1], request.amount.units[unit - 1], left)


def held(asked: int, counter: bytes, unit: int, left: int) -> Blocked:
    """Return the answer for now; `unit` is counted from 1."""
    of = CounterKey.named(counter.decode())
    return Blocked(of.kind, of.id, of.window, UNITS[unit - 1], asked, left)


def settlement(reservation_id: str, facts: Sequence[Any]) -> tuple[Settlement, bool]:
    """Return what a call was charged, and whether that was just now."""
    changed, state, late, *amounts = facts
    charged, reserved = _amount(amounts[:3]), _amount(amounts[3:])
    in_doubt = state == b"in_doubt"
    overrun = NOTHING if in_doubt else overrun_of(charged, reserved)
    return Settlement(reservation_id, charged, reserved, overrun, late == b"1", in_doubt), bool(changed)


def expired(facts: Sequence[Any], planner: ReservationPlanner) -> Iterator[tuple[ExpiredReservation, bool]]:
    """Return the calls that `expire.lua` names, each with whether it has just ended them."""
    for id_, state, names, *amount, is_new in _rows(facts, 7):
        counters = counters_of(names)
        scope_ids = {counter.kind: counter.id for counter in counters}
        ended, at = ReservationState(state.decode()), planner.moment_of(counters)
        yield ExpiredReservation(id_.decode(), ended, _amount(amount), scope_ids, at), bool(is_new)


def counters_of(names: bytes) -> list[CounterKey]:
    """Return the counters of a call, as the server keeps their names."""
    return [CounterKey.named(name) for name in names.decode().splitlines()]


def waiting(facts: Sequence[Any]) -> Iterator[QueuedReservation]:
    """Return the queued requests."""
    for place, id_, since_ms, counter, unit, asked, left in _rows(facts, 7):
        yield QueuedReservation(
            reservation_id=id_.decode(),
            held=held(int(asked), counter, unit, left),
            priority=_MIDDLE_RANK - int(place[:_RANK_DIGITS]),
            since=read_time(since_ms),
        )


def rank(priority: int) -> str:
    """Return what orders by priority, higher first, where text is compared; beyond ±10⁹ all are equal."""
    return f"{_MIDDLE_RANK - max(-(10**9), min(priority, 10**9)):0{_RANK_DIGITS}}"


def read_balance(tenant: str, name: bytes, packed: bytes, limits: LimitSet) -> Balance:
    """Return a counter as the server keeps it."""
    of = CounterKey.named(name.decode())
    numbers = [int(number) for number in _COUNTER.unpack(packed)[:9]]
    return Balance(
        tenant=tenant,
        scope=of.kind,
        id=of.id,
        window=of.window,
        window_id=of.window_id,
        ceiling=limits.of(of.kind, of.id).get(of.window, UNLIMITED),
        spent=Amount(*numbers[:3]),
        held=Amount(*numbers[3:6]),
        in_doubt=Amount(*numbers[6:]),
    )


def read_time(ms: float) -> datetime:
    """Return the moment so many ms after 1970."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def _amount(numbers: Sequence[bytes]) -> Amount:
    return Amount(*map(int, numbers))


def _rows(facts: Sequence[Any], width: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(facts), width):
        yield facts[start : start + width]


class RedisTenantState:
    """What a process knows of one tenant; it grows with each answer, and the server must not be behind it at the next."""

    def __init__(
        self,
        name: str,
        keys: LedgerKeys,
        planner: ReservationPlanner,
        limits: Sequence[Limit],
        counted: CountedWindows,
    ) -> None:
        self.name = name
        self.keys = keys
        self.planner = planner
        self.known = LedgerCheckpoint(0, "", 0)
        self.own = 0
        self.revision = 0
        self._limits = limits
        self._counted = tuple(counted)
        planner.apply_limits(LimitSet(limits, counted))

    @property
    def known_facts(self) -> tuple[int, str, int, int]:
        """The first arguments of every script: the checkpoint that is known, and the sequence of our last step."""
        return self.known.epoch, self.known.epoch_id, self.known.sequence, self.own

    def saw(self, reply: ScriptReply) -> None:
        """Take note of an answer; answers may come in another order than the steps were taken."""
        known, epoch = self.known, reply.epoch
        if epoch > known.epoch:
            self.known, self.own = reply.checkpoint, reply.own
        elif epoch == known.epoch and not self.is_behind(reply):
            self.own = max(self.own, reply.own)
            if reply.sequence > known.sequence:
                self.known = reply.checkpoint

    def is_behind(self, reply: ScriptReply) -> bool:
        """Whether an answer comes from a ledger that has lost what another one knew."""
        known = self.known
        return reply.epoch < known.epoch or (
            reply.epoch == known.epoch and reply.epoch_id.decode() != known.epoch_id
        )

    def require_at_least(self, checkpoint: LedgerCheckpoint) -> None:
        """Take note of how far the ledger had come in another process, if that is not what is known, or before it."""
        known = self.known
        if checkpoint.epoch > known.epoch or (
            checkpoint.epoch == known.epoch
            and (checkpoint.epoch_id != known.epoch_id or checkpoint.sequence > known.sequence)
        ):
            if (checkpoint.epoch, checkpoint.epoch_id) != (known.epoch, known.epoch_id):
                self.own = 0
            self.known = checkpoint

    def apply_limits(self, limits: TenantLimits) -> None:
        """Count by the server's limits from now on; before a first `apply_limits`, by those of this process."""
        self.revision = limits.revision
        self.planner.apply_limits(self.limit_set(limits))

    def limit_set(self, limits: TenantLimits) -> LimitSet:
        """Return the server's limits, merged."""
        held_to = limits.limits if limits.version > 0 else self._limits
        return LimitSet(held_to, (*self._counted, *limits.counted))

    def gone_back(self, reply: ScriptReply) -> LedgerRolledBackError:
        """Return the error for an answer from a fenced ledger."""
        return LedgerRolledBackError(self.name, reply.closed.decode(), str(reply.checkpoint))


class RedisTenants:
    """The tenants of one process: those whose ledger has taken a step, and others only while a step uses them."""

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
        self._others: WeakValueDictionary[str, RedisTenantState] = WeakValueDictionary()

    def of(self, name: str) -> RedisTenantState:
        """Return what is known of a tenant."""
        found = self._begun.get(name) or self._others.get(name)
        if found is None:
            keys = LedgerKeys.of(self._namespace, name)
            found = RedisTenantState(name, keys, self._new_planner(), self._limits, self._counted)
            self._others[name] = found
        return found

    def keep(self, tenant: RedisTenantState) -> None:
        """Keep what is known of a tenant for as long as the process lives."""
        self._begun[tenant.name] = tenant

    def begun(self) -> Sequence[RedisTenantState]:
        """Return the tenants that are kept."""
        return tuple(self._begun.values())


_AT_ONCE = 250


async def every_balance(server: ScriptServer, tenant: RedisTenantState, limits: LimitSet) -> list[Balance]:
    """Return all counters in the order of their names."""
    pages = [sorted(page) async for page in server.pages(tenant.keys.counters)]
    found: list[Balance] = []
    last = b""
    for number, (name, packed) in enumerate(merge(*pages), start=1):
        if name != last:
            found.append(read_balance(tenant.name, name, packed, limits))
        last = name
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return found


_REBUILDING = b"a log that is being booked again"  # as in ledger.lua
_CALL_FIELDS = (
    "mark", "state", "names", "nusd", "tokens", "calls", "charged_nusd", "charged_tokens", "charged_calls",
)  # fmt: skip


async def charged_calls(
    server: ScriptServer, tenant: RedisTenantState, look: ScriptReply
) -> list[LedgerEntry]:
    """Return the calls that were charged; those of a ledger that has gone back that were dispatched, too.

    While a rebuild is under way or has broken off, those of the epochs of before are among them.
    """
    has_gone_back = look.closed not in {b"", _REBUILDING}
    epoch_ids = {look.epoch_id}
    async for unbooked in server.values(tenant.keys.meta, ["unbooked"]):
        epoch_ids |= {id_ for _, ids in unbooked for id_ in ids.split()}
    found: dict[str, LedgerEntry] = {}
    async for page in server.hashes(tenant.keys.calls, _CALL_FIELDS):
        for id_, (mark, state, names, *amounts) in page:
            is_over = state in {b"settled", b"in_doubt"}
            is_lost = state == b"dispatched" and (has_gone_back or mark != look.epoch_id)
            if mark in epoch_ids and (is_over or is_lost):
                counters = counters_of(names)
                _, key, attempt = parts_of(id_)
                scope_ids = {counter.kind: counter.id for counter in counters} | {ScopeKind.CALL: key}
                at = tenant.planner.moment_of(counters) or read_time(look.now_ms)
                reserved, charged = _amount(amounts[:3]), _amount(amounts[3:] if is_over else amounts[:3])
                request = ReservationRequest(key, attempt, scope_ids, reserved, at)
                found[id_] = LedgerEntry(request, ReservationState(state.decode()), charged)
    return list(found.values())


async def limited_balances(
    server: ScriptServer, tenant: RedisTenantState, limits: LimitSet, newest: Mapping[Window, str]
) -> list[Balance]:
    """Return the counters of agents, workflows and the tenant that have a ceiling, in the newest windows; found by name."""
    names: set[str] = set()
    for kind in ScopeKind:
        if kind not in SHORT_LIVED:
            names |= await _names(server, tenant, kind, limits, newest)
    return [
        read_balance(tenant.name, name, packed, limits)
        async for page in server.values(tenant.keys.counters, sorted(names))
        for name, packed in page
    ]


async def _names(
    server: ScriptServer,
    tenant: RedisTenantState,
    kind: ScopeKind,
    limits: LimitSet,
    newest: Mapping[Window, str],
) -> set[str]:
    names: set[str] = set()
    for id_, window in limits.limited(kind):
        window_id = newest.get(window)
        if window_id is None:
            continue
        if id_ != ANY:
            names.add(CounterKey(kind, window, window_id, id_).name)
        else:
            prefix = f"{kind}/{window}/"
            members = await server.members(tenant.keys.index, prefix)
            names |= {f"{prefix}{window_id}/{member[len(prefix) :]}" for member in members}
    return names
