"""One lane of the memory limiter: its buckets, its line, its breaker, its calls in flight."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from math import inf

from agentic_trading.governance.limiter import (
    LONGEST_PAUSE_S,
    LOOK_AGAIN_S,
    MOST_TOKENS,
    CircuitBreakerConfig,
    Deployment,
    DeploymentStatus,
    NotPermitted,
    Permit,
    PermitOutcome,
    PermitRequest,
    RateLimits,
    RetryBudget,
    Throttled,
    WaitReason,
)
from agentic_trading.governance.rate_arithmetic import CircuitBreaker, SlidingWindowCounter, TokenBucket

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


RETRY_SLOTS = 12
"""In how many parts the window of the retry budget moves."""

SLOT_LOOK_MS = 50
"""After how long the first in line looks again for a free place among calls in flight; those behind a little later."""

SLOT_LOOK_MORE_MS = 5


@dataclass(slots=True)
class _Inside:
    """A call in flight: what was taken for it, and when."""

    permit: Permit
    entered_ms: int
    until_ms: int
    era: int
    is_retry: bool


class DeploymentLimiter:
    """What is known of one lane; every method is one step, at `now_ms`."""

    def __init__(
        self,
        lane: Deployment,
        limits: RateLimits,
        breaker: CircuitBreakerConfig,
        retries: RetryBudget,
        *,
        now_ms: int,
    ) -> None:
        self._lane = lane
        self._limits = limits
        self._retries = retries
        self._breaker = CircuitBreaker(breaker)
        self._traffic = SlidingWindowCounter.over(
            retries.window_s, RETRY_SLOTS
        )  # calls, and the retries among them
        self._requests = _bucket(limits.requests_per_minute, now_ms)
        self._tokens = _bucket(limits.tokens_per_minute, now_ms)
        self._line = DeploymentQueue()
        self._inside: dict[str, _Inside] = {}
        self._first_over_ms = inf
        self._paused_until_ms = 0

    def enter(self, entry: PermitRequest, place_s: float, now_ms: int) -> Permit | Throttled | NotPermitted:
        """Let in, keep waiting or turn away."""
        self._come_to(now_ms)
        known = self._inside.get(entry.id)
        if known is not None:
            known.until_ms = _after(entry.lease_s, now_ms)
            self._first_over_ms = min(self._first_over_ms, known.until_ms)
            return known.permit
        answer = self._shut(entry, now_ms) or self._wait(entry, now_ms)
        if isinstance(answer, Throttled):
            tokens = min(entry.tokens, self._limits.tokens_per_minute or 0)
            self._line.keep(entry, tokens, _after(answer.seconds + place_s, now_ms))
            return answer
        self._line.leave(entry.id)
        return answer or self._let_in(entry, now_ms)

    def leave(
        self, id_: str, outcome: PermitOutcome, tokens: int | None, pause_s: float | None, now_ms: int
    ) -> None:
        """End a call in flight; an unknown one is left alone."""
        self._come_to(now_ms)
        inside = self._inside.pop(id_, None)
        if inside is None:
            return
        self._breaker.leave(inside.era, outcome, now_ms)
        taken = inside.permit.tokens
        if outcome is PermitOutcome.UNUSED:
            tokens = 0
            self._traffic.take_back(inside.entered_ms, 1, inside.is_retry)
            if self._requests is not None:
                self._requests.take(-1)
        if self._tokens is not None and tokens is not None:
            self._tokens.take(min(max(tokens, 0), MOST_TOKENS) - taken)
        if pause_s is not None and pause_s > 0:
            self._paused_until_ms = max(self._paused_until_ms, _after(min(pause_s, LONGEST_PAUSE_S), now_ms))

    def give_up(self, id_: str, now_ms: int) -> None:
        """Forget who does not want to enter any more."""
        self._line.leave(id_)
        self.leave(id_, PermitOutcome.UNUSED, None, None, now_ms)

    def status(self, now_ms: int) -> DeploymentStatus:
        """Return how the lane stands."""
        self._come_to(now_ms)
        return DeploymentStatus(
            lane=self._lane,
            limits=self._limits,
            breaker=self._breaker.state(now_ms),
            answered=self._breaker.ended.first,
            failed=self._breaker.ended.second,
            in_flight=len(self._inside),
            waiting=len(self._line),
            requests_left=None if self._requests is None else self._requests.left,
            tokens_left=None if self._tokens is None else self._tokens.left,
            retries_left=self._retries.left(self._traffic.first, self._traffic.second),
            paused_s=max(0, self._paused_until_ms - now_ms) / 1000,
        )

    def _come_to(self, now_ms: int) -> None:
        """Fill the buckets, and forget what has passed: counts, places, leases."""
        if self._requests is not None:
            self._requests.fill(now_ms)
        if self._tokens is not None:
            self._tokens.fill(now_ms)
        self._traffic.move_to(now_ms)
        self._breaker.ended.move_to(now_ms)
        self._line.forget_over(now_ms)
        self._paused_until_ms = min(self._paused_until_ms, _after(LONGEST_PAUSE_S, now_ms))
        if now_ms >= self._first_over_ms:
            for id_ in [id_ for id_, inside in self._inside.items() if inside.until_ms <= now_ms]:
                self._breaker.leave(self._inside.pop(id_).era, PermitOutcome.NEUTRAL, now_ms)
            self._first_over_ms = min((inside.until_ms for inside in self._inside.values()), default=inf)

    def _shut(self, entry: PermitRequest, now_ms: int) -> NotPermitted | None:
        shut_ms = self._breaker.shut_ms(now_ms)
        if shut_ms:
            return NotPermitted(self._lane, "circuit_open", shut_ms / 1000)
        if entry.is_retry and not self._retries.left(self._traffic.first, self._traffic.second):
            return NotPermitted(self._lane, "retry_budget", self._traffic.next_ms(now_ms) / 1000)
        return None

    def _wait(self, entry: PermitRequest, now_ms: int) -> Throttled | None:
        """Return what is missing, or None: first for the entry alone, then beyond what those ahead of it need."""
        if now_ms < self._paused_until_ms:
            return Throttled(self._lane, "pause", (self._paused_until_ms - now_ms) / 1000)
        ahead = self._line.ahead_of(entry)
        alone_ms, reason = max(self._short(entry.tokens, 0, 0), key=_first)
        if not ahead.count:
            wait_ms = alone_ms
        elif self._limits == _UNLIMITED:
            wait_ms = 0
        else:
            wait_ms = max(self._short(entry.tokens, ahead.count, ahead.tokens), key=_first)[0]
            if ahead.count > LOOKED_AT:
                wait_ms = max(wait_ms, SLOT_LOOK_MS + SLOT_LOOK_MORE_MS * ahead.count)
        if not wait_ms:
            return None
        return Throttled(self._lane, reason if alone_ms else "line", min(wait_ms / 1000, LOOK_AGAIN_S))

    def _short(self, tokens: int, ahead: int, tokens_ahead: int) -> list[tuple[int, WaitReason]]:
        """Return after how many milliseconds each limit would let one in, when `ahead` have gone before."""
        room = self._limits.concurrent
        is_full = room is not None and len(self._inside) + ahead >= room
        return [
            (SLOT_LOOK_MS + SLOT_LOOK_MORE_MS * ahead if is_full else 0, "concurrent"),
            (0 if self._requests is None else self._requests.wait_ms(1, ahead), "requests"),
            (0 if self._tokens is None else self._tokens.wait_ms(tokens, tokens_ahead), "tokens"),
        ]

    def _let_in(self, entry: PermitRequest, now_ms: int) -> Permit:
        if self._requests is not None:
            self._requests.take(1)
        if self._tokens is not None:
            self._tokens.take(entry.tokens)
        self._traffic.add(now_ms, 1, entry.is_retry)
        permit = Permit(self._lane, entry.id, entry.tokens)
        until_ms = _after(entry.lease_s, now_ms)
        self._inside[entry.id] = _Inside(permit, now_ms, until_ms, self._breaker.enter(), entry.is_retry)
        self._first_over_ms = min(self._first_over_ms, until_ms)
        return permit


_UNLIMITED = RateLimits()


def _first(pair: tuple[int, WaitReason]) -> int:
    return pair[0]


def _after(seconds: float, now_ms: int) -> int:
    """Return the millisecond that comes `seconds` after now, at least one later."""
    return now_ms + max(1, round(seconds * 1000))


def _bucket(per_minute: int | None, now_ms: int) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute, now_ms)
