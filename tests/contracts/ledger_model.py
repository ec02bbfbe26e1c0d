"""The simplest ledger there can be: calls in a dict, every sum made anew; the state machine holds real ones to it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache

from agentic_trading.governance.ledger import (
    Balance,
    Blocked,
    Declined,
    LedgerEntry,
    Reservation,
    ReservationRequest,
    ReservationState,
)
from agentic_trading.governance.limits import ANY, Ceiling, Limit, ScopeKind, Window, Windows
from agentic_trading.governance.prices import Amount
from tests.governance.asking import AT

IN_FLIGHT = (ReservationState.RESERVED, ReservationState.DISPATCHED)
CHARGED = (ReservationState.SETTLED, ReservationState.IN_DOUBT)

Counter = tuple[ScopeKind, str, Window, str]


@dataclass
class ModelCall:
    """`counts` is what it is good for now: its reservation, its charge or nothing; `mortal` if a sweep ends it; counted in `where`."""

    request: ReservationRequest
    state: ReservationState
    counts: Amount
    mortal: bool = True
    where: frozenset[Counter] = field(init=False)

    def __post_init__(self) -> None:
        self.where = frozenset(counters(self.request))


@dataclass
class Model:
    """What a ledger with these limits must know and answer, as long as nobody waits."""

    limits: Sequence[Limit]
    calls: dict[str, ModelCall] = field(default_factory=dict)

    def some(self, index: int, *states: ReservationState) -> str:
        """Choose a call in one of these states."""
        ids = [id_ for id_, call in self.calls.items() if call.state in states]
        return ids[index % len(ids)]

    def answer(self, ask: ReservationRequest) -> type[Reservation | Declined | Blocked]:
        """Say how a new ask must be answered."""
        answer: type[Reservation | Declined | Blocked] = Reservation
        for counter in counters(ask):
            spent, held = self.total(counter, CHARGED), self.total(counter, IN_FLIGHT)
            for most in (self.ceiling(counter), own_ceiling(ask, counter)):
                for limit, gone, back, asked in zip(most.units, spent, held, ask.amount.units, strict=True):
                    if limit is not None and gone + asked > limit:
                        return Declined
                    if limit is not None and gone + back + asked > limit:
                        answer = Blocked
        return answer

    def ceiling(self, counter: Counter) -> Ceiling:
        """Return the platform's ceiling on a counter; a name goes before everyone."""
        kind, id_, window, _ = counter
        named, everyone = (
            lowest(
                limit
                for limit in self.limits
                if (limit.scope, limit.id, limit.window) == (kind, name, window)
            )
            for name in (id_, ANY)
        )
        return Ceiling(
            everyone.nusd if named.nusd is None else named.nusd,
            everyone.tokens if named.tokens is None else named.tokens,
            everyone.calls if named.calls is None else named.calls,
        )

    def total(self, counter: Counter, states: Iterable[ReservationState]) -> tuple[int, int, int]:
        """Add up what calls in these states count for."""
        amounts = [
            call.counts.units
            for call in self.calls.values()
            if call.state in states and counter in call.where
        ]
        return sum(a[0] for a in amounts), sum(a[1] for a in amounts), sum(a[2] for a in amounts)

    def check(self, found: Balance) -> None:
        """Compare a counter of the ledger."""
        counter = (found.scope, found.id, found.window, found.window_id)
        assert found.ceiling == self.ceiling(counter), found
        assert found.held.units == self.total(counter, IN_FLIGHT), found
        assert found.spent.units == self.total(counter, CHARGED), found
        assert found.in_doubt.units == self.total(counter, (ReservationState.IN_DOUBT,)), found

    def entries(self, *, sent: bool) -> list[LedgerEntry]:
        """Return what a log would have kept of it: with `sent`, what was sent and has no answer, as in doubt."""
        for id_ in [id_ for id_, call in self.calls.items() if call.state is ReservationState.RELEASED]:
            del self.calls[id_]
        for call in self.calls.values():
            if sent and call.state is ReservationState.DISPATCHED:
                call.state = ReservationState.IN_DOUBT
        return [
            LedgerEntry(call.request, call.state, call.counts)
            for call in self.calls.values()
            if call.state in CHARGED
        ]


def counters(ask: ReservationRequest) -> list[Counter]:
    """Return every counter that an ask could be counted in."""
    spans = _spans(ask.at or AT)
    return [(kind, id_, window, spans[window]) for kind, id_ in ask.scope_ids.items() for window in Window]


def own_ceiling(ask: ReservationRequest, counter: Counter) -> Ceiling:
    """Return what an ask allows itself of a counter."""
    kind, _, window, _ = counter
    return lowest(limit for limit in ask.limits if (limit.scope, limit.window) == (kind, window))


def lowest(limits: Iterable[Limit]) -> Ceiling:
    """Return the lowest ceiling of each unit."""
    found = list(limits)
    return Ceiling(
        min((limit.nusd for limit in found if limit.nusd is not None), default=None),
        min((limit.tokens for limit in found if limit.tokens is not None), default=None),
        min((limit.calls for limit in found if limit.calls is not None), default=None),
    )


@cache
def _spans(at: datetime) -> dict[Window, str]:
    return {window: span.id for window, span in Windows(UTC).at(at).items()}
