"""Who waits before a lane, in order: priority first, then arrival."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from math import inf

from agentic_trading.governance.limiter import PermitRequest

LOOKED_AT = 64
"""So many in front keep what they need; whoever stands behind them waits until they have moved."""

PLACE_S = 5.0
"""For how long after its wait a place is kept for who does not ask again."""


_Rank = tuple[int, int, str]
"""Priority (negative), ticket, id: smaller is better."""


@dataclass(slots=True)
class _Place:
    rank: _Rank
    tokens: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class QueueAhead:
    """Those with a better place: how many, and the tokens that the first `LOOKED_AT` of them need."""

    count: int = 0
    tokens: int = 0


NOBODY = QueueAhead()


@dataclass(slots=True)
class DeploymentQueue:
    """Places of those who wait; one that is not renewed in time is gone."""

    _places: dict[str, _Place] = field(default_factory=dict)
    _order: list[_Rank] = field(default_factory=list)
    _tickets: int = 0
    _first_over_ms: float = inf

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._places)

    def forget_over(self, now_ms: int) -> None:
        """Drop the places that were not renewed."""
        if now_ms < self._first_over_ms:
            return
        for id_ in [id_ for id_, place in self._places.items() if place.until_ms <= now_ms]:
            self.leave(id_)
        self._first_over_ms = min((place.until_ms for place in self._places.values()), default=inf)

    def ahead_of(self, entry: PermitRequest) -> QueueAhead:
        """Return who has a better place than `entry` has, or would get."""
        if not self._places:
            return NOBODY
        rank = self._rank(entry)
        count = bisect_left(self._order, rank)
        others = [id_ for _, _, id_ in self._order[: min(count, LOOKED_AT)] if id_ != entry.id]
        place = self._places.get(entry.id)
        is_moving_back = place is not None and place.rank < rank
        return QueueAhead(count - is_moving_back, sum(self._places[id_].tokens for id_ in others))

    def keep(self, entry: PermitRequest, tokens: int, until_ms: int) -> None:
        """Give or renew a place; another priority moves it, its ticket stays."""
        rank = self._rank(entry)
        self.leave(entry.id)
        self._tickets = max(self._tickets, rank[1] + 1)
        self._places[entry.id] = _Place(rank, tokens, until_ms)
        insort(self._order, rank)
        self._first_over_ms = min(self._first_over_ms, until_ms)

    def leave(self, id_: str) -> None:
        """Give up a place; harmless without one."""
        place = self._places.pop(id_, None)
        if place is not None:
            del self._order[bisect_left(self._order, place.rank)]

    def _rank(self, entry: PermitRequest) -> _Rank:
        place = self._places.get(entry.id)
        return -entry.priority, self._tickets if place is None else place.rank[1], entry.id
