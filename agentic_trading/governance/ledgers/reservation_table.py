"""The calls of one tenant in the memory ledger: those that may still change, and those that are over, while remembered."""

from collections.abc import Iterator
from datetime import datetime
from itertools import chain, takewhile

from agentic_trading.governance.estimate import Amount
from agentic_trading.governance.ledger import ReservationRequest, ReservationState
from agentic_trading.governance.ledgers.reservation_entry import IN_DOUBT, SETTLED, ReservationEntry
from agentic_trading.governance.ledgers.counter_table import WindowCounter
from agentic_trading.governance.limit import Limit, ScopeKind

_CALL, _TRACE, _AGENT, _WORKFLOW, _TENANT = _KINDS = tuple(ScopeKind)

_Id = str | None
_Packed = tuple[
    datetime, str, int, _Id, _Id, _Id, _Id, _Id, int, int, int, tuple[Limit, ...], int, bool,
    int, int, int, bool,
]  # fmt: skip


class ReservationTable:
    """Each under the id of its reservation, in the order in which it came there."""

    __slots__ = ("in_doubt", "in_flight", "past")

    def __init__(self) -> None:
        self.in_flight: dict[str, ReservationEntry] = {}
        self.in_doubt: dict[str, ReservationEntry] = {}
        self.past = CompletedReservations()

    def get(self, id_: str) -> ReservationEntry | None:
        """Return a call if it is remembered; one that is over as a copy."""
        call = self.in_flight.get(id_) or self.in_doubt.get(id_)
        if call is None and id_ in self.past.calls:
            call = self.past.get(id_)
        return call

    def end(self, id_: str, call: ReservationEntry) -> bool:
        """Take a call out of flight; return whether it is over for good, not in doubt."""
        self.in_flight.pop(id_, None)
        if call.state is IN_DOUBT:
            self.in_doubt[id_] = call
            self.past.drop(id_)
            return False
        if self.in_doubt:
            self.in_doubt.pop(id_, None)
        self.past.add(id_, call)
        return True

    def accounts(self) -> set[WindowCounter]:
        """Return where those are counted that may still change what they booked."""
        still_open = chain(self.in_flight.values(), self.in_doubt.values())
        return {account for call in still_open for account in call.accounts}

    def forget(self, before: datetime) -> list[ReservationEntry]:
        """Drop what has ended and was for a moment before this one; return those that were in doubt."""
        self.past.forget(before)
        old = [id_ for id_, call in self.in_doubt.items() if call.at < before]
        return [self.in_doubt.pop(id_) for id_ in old]

    def __iter__(self) -> Iterator[ReservationEntry]:
        return chain(self.in_flight.values(), self.in_doubt.values(), self.past)


class CompletedReservations:
    """Oldest ends first. A call is kept as tuples of plain values, which the garbage collector does not walk through.

    As objects, a day's calls would cost every other call more than all the rest of the ledger.
    """

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: dict[str, _Packed] = {}

    def add(self, id_: str, call: ReservationEntry) -> None:
        """Keep a call that was settled or released, in place of what was known under its id."""
        ask, charged = call.ask, call.booked
        amount, ids = ask.amount, ask.scope_ids.get
        if id_ in self.calls:  # released, and begun again: now it is the youngest
            del self.calls[id_]
        self.calls[id_] = (
            call.at, ask.key, ask.attempt,
            ids(_CALL), ids(_TRACE), ids(_AGENT), ids(_WORKFLOW), ids(_TENANT),
            amount.nusd, amount.tokens, amount.calls, ask.limits, ask.priority,
            call.state is SETTLED, charged.nusd, charged.tokens, charged.calls, call.is_late,
        )  # fmt: skip

    def drop(self, id_: str) -> None:
        """Forget what was known under an id: it was released, and begun again."""
        self.calls.pop(id_, None)

    def get(self, id_: str) -> ReservationEntry:
        """Return a call as it ended, with the moment that it was counted at as its ask's."""
        return _unpacked(self.calls[id_])

    def forget(self, before: datetime) -> None:
        """Drop the calls of before a moment, up to the first that is not."""
        over = takewhile(lambda known: known[1][0] < before, self.calls.items())
        for id_ in [id_ for id_, _ in over]:
            del self.calls[id_]

    def __iter__(self) -> Iterator[ReservationEntry]:
        return map(_unpacked, self.calls.values())

    def __len__(self) -> int:
        return len(self.calls)


def _unpacked(packed: _Packed) -> ReservationEntry:
    at, key, attempt, *ids = packed[:8]
    scope_ids = {kind: id_ for kind, id_ in zip(_KINDS, ids, strict=True) if id_ is not None}
    nusd, tokens, calls, limits, priority, is_settled, *charged, is_late = packed[8:]
    ask = ReservationRequest(key, attempt, scope_ids, Amount(nusd, tokens, calls), at, limits, priority)
    if not is_settled:
        return ReservationEntry(ask, at, (), at, 0.0, ReservationState.RELEASED)
    return ReservationEntry(ask, at, (), at, 0.0, SETTLED, Amount(*charged), is_late)
