"""Whether a request fits under every ceiling of its counters, and where not: what is lacking, for good or for now."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from agentic_trading.governance.ledger import Blocked, Declined, ReservationRequest
from agentic_trading.governance.ledgers.counters import WindowCounter
from agentic_trading.governance.limits import UNITS, Ceiling, Unit
from agentic_trading.governance.prices import Amount

Denial = tuple[Declined | Blocked, Sequence[WindowCounter]]
"""Why nothing is reserved, and the counters that lack headroom."""


def fits_own_limits(request: ReservationRequest, counters: Sequence[WindowCounter]) -> bool:
    """Say whether `request` fits under the ceilings that it brings itself."""
    return not any(
        _over(request.amount, counter, ceiling) for counter, ceiling in _own_ceilings(request, counters)
    )


def denial(request: ReservationRequest, counters: Sequence[WindowCounter]) -> Denial | None:
    """Return why `request` does not fit, for good if that is so anywhere; None if it fits."""
    found = list(_shortages(request, counters))
    if not found:
        return None
    final = next((shortage for shortage in found if shortage.is_final), None)
    answer = found[0].blocked() if final is None else final.declined()
    return answer, [shortage.counter for shortage in found]


def behind(request: ReservationRequest, held: Blocked) -> Blocked:
    """Return the answer for a request that would fit, but comes behind one that is `held` on the same counter."""
    return replace(held, asked=request.amount.units[UNITS.index(held.unit)])


@dataclass(frozen=True, slots=True)
class InsufficientHeadroom:
    """A request does not fit into one counter: `used` is spent, held and in doubt together, `held` may come back."""

    counter: WindowCounter
    unit: Unit
    asked: int
    most: int
    used: int
    held: int

    @property
    def is_final(self) -> bool:
        """Whether the request would not fit even if all that is held came back."""
        return self.used - self.held + self.asked > self.most

    def declined(self) -> Declined:
        """Return the final answer."""
        table = self.counter.table
        left = max(0, self.most - self.used + self.held)
        return Declined(table.kind, self.counter.id, table.window, self.unit, self.asked, left)

    def blocked(self) -> Blocked:
        """Return the answer for now."""
        table = self.counter.table
        left = max(0, self.most - self.used)
        return Blocked(table.kind, self.counter.id, table.window, self.unit, self.asked, left)


def _shortages(
    request: ReservationRequest, counters: Sequence[WindowCounter]
) -> Iterator[InsufficientHeadroom]:
    """Yield every counter and unit in which `request` does not fit under a ceiling, the counter's or one of its own."""
    ceilings = [(counter, counter.cap.ceiling) for counter in counters]
    for counter, ceiling in [*ceilings, *_own_ceilings(request, counters)]:
        for unit, asked, most, used, back in zip(
            UNITS, request.amount.units, ceiling.units, counter.used, counter.held.units, strict=True
        ):
            if most is not None and used + asked > most:
                yield InsufficientHeadroom(counter, unit, asked, most, used, back)


def _own_ceilings(
    request: ReservationRequest, counters: Sequence[WindowCounter]
) -> Iterator[tuple[WindowCounter, Ceiling]]:
    for limit in request.limits:
        for counter in counters:
            if counter.table.window is limit.window and counter.table.kind is limit.scope:
                yield counter, limit.ceiling


def _over(amount: Amount, counter: WindowCounter, ceiling: Ceiling) -> bool:
    for asked, most, used in zip(amount.units, ceiling.units, counter.used, strict=True):
        if most is not None and used + asked > most:
            return True
    return False
