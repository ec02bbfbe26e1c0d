"""What the scripts of the Redis ledger answer, in the words of the port."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from struct import Struct
from typing import Any, NamedTuple

import orjson

from agentic_trading.governance.errors import ClosedWindowError, ReservationConflictError
from agentic_trading.governance.estimate import NOTHING, Amount
from agentic_trading.governance.ledger import (
    ReservationRequest,
    Balance,
    ReservationState,
    ExpiredReservation,
    Blocked,
    LedgerCheckpoint,
    Declined,
    Reservation,
    Settlement,
    QueuedReservation,
)
from agentic_trading.governance.ledgers.reservation_entry import overrun_of
from agentic_trading.governance.ledgers.redis_counters import CounterKey
from agentic_trading.governance.ledgers.limit_set import LimitSet
from agentic_trading.governance.limit import UNITS, Ceiling, Limit, ScopeKind
from agentic_trading.governance.windows import Window

_COUNTER = Struct("<12d")
_OPEN = Ceiling()
_RANK_DIGITS = 10
_MIDDLE_RANK = 10**_RANK_DIGITS // 2


class ScriptReply(NamedTuple):
    """One answer: a word, where the ledger is now, its server's time in ms, what it is closed by, and the rest.

    `own` is the sequence of the last step that this process took.
    """

    word: bytes
    generation: int
    mark: bytes
    sequence: int
    own: int
    now_ms: int
    closed: bytes
    rest: Sequence[Any]

    @property
    def position(self) -> LedgerCheckpoint:
        """How far the ledger has come."""
        return LedgerCheckpoint(self.generation, self.mark.decode(), self.sequence)


class TenantLimits(NamedTuple):
    """The limits of a tenant as they stand on the server; `revision` grows with each change, 0 for none so far."""

    revision: int
    version: int
    limits: tuple[Limit, ...]
    counted: tuple[tuple[ScopeKind, Window], ...]


def read_reply(raw: Sequence[Any]) -> ScriptReply:
    """Return an answer as the scripts give it."""
    word, generation, mark, sequence, own, now_ms, closed = raw[0].split(b" ", 6)
    return ScriptReply(word, int(generation), mark, int(sequence), int(own), int(now_ms), closed, raw[1:])


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
    """Return the ids of the newest windows that something was counted in, as `look.lua` tells them."""
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


def answer(ask: ReservationRequest, reply: ScriptReply) -> Reservation | Declined | Blocked:
    """Return what `reserve.lua` says to an ask; raises what is wrong with the ask."""
    rest = reply.rest
    match reply.word:
        case b"RESERVED":
            return Reservation(ask.reservation_id, ask.amount)
        case b"KNOWN":
            return Reservation(ask.reservation_id, ask.amount, ReservationState(rest[0].decode()))
        case b"REFUSED":
            return refusal(ask, *rest)
        case b"HELD":
            return held(ask.amount.units[rest[1] - 1], *rest[:3])
        case b"GONE":
            raise ClosedWindowError(ask.key, ask.at or read_time(reply.now_ms), read_time(float(rest[0])))
        case _:
            raise ReservationConflictError(ask.key, ask.attempt)


def refusal(ask: ReservationRequest, counter: bytes, unit: int, left: int) -> Declined:
    """Return the answer to who asked in vain; `unit` is counted from 1."""
    of = CounterKey.named(counter.decode())
    return Declined(of.kind, of.id, of.window, UNITS[unit - 1], ask.amount.units[unit - 1], left)


def held(asked: int, counter: bytes, unit: int, left: int) -> Blocked:
    """Return the answer to who may wait; `unit` is counted from 1."""
    of = CounterKey.named(counter.decode())
    return Blocked(of.kind, of.id, of.window, UNITS[unit - 1], asked, left)


def settlement(reservation_id: str, facts: Sequence[Any]) -> tuple[Settlement, bool]:
    """Return what a call was charged, and whether that was just now."""
    changed, state, late, *amounts = facts
    charged, reserved = _amount(amounts[:3]), _amount(amounts[3:])
    in_doubt = state == b"in_doubt"
    overrun = NOTHING if in_doubt else overrun_of(charged, reserved)
    return Settlement(reservation_id, charged, reserved, overrun, late == b"1", in_doubt), bool(changed)


def expired(facts: Sequence[bytes]) -> Iterator[ExpiredReservation]:
    """Return the calls that a sweep has ended."""
    for id_, state, names, *amount in _rows(facts, 6):
        counters = map(CounterKey.named, names.decode().splitlines())
        scope_ids = {counter.kind: counter.id for counter in counters}
        yield ExpiredReservation(id_.decode(), ReservationState(state.decode()), _amount(amount), scope_ids)


def waiting(facts: Sequence[Any]) -> Iterator[QueuedReservation]:
    """Return who waits."""
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


def read_balance(tenant: str, name: bytes, packed: bytes, rules: LimitSet) -> Balance:
    """Return a counter as the server keeps it."""
    of = CounterKey.named(name.decode())
    numbers = [int(number) for number in _COUNTER.unpack(packed)[:9]]
    return Balance(
        tenant=tenant,
        scope=of.kind,
        id=of.id,
        window=of.window,
        window_id=of.window_id,
        ceiling=rules.of(of.kind, of.id).get(of.window, _OPEN),
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
