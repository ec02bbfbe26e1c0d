"""One deployment in the memory limiter: its buckets, its queue, its breaker, its calls in flight."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from math import inf

from agentic_trading.governance.limiter import (
    LONGEST_COOLDOWN_S,
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
    ThrottleReason,
)
from agentic_trading.governance.rate_arithmetic import CircuitBreaker, SlidingWindowCounter, TokenBucket

LOOKED_AT = 64
"""So many in front keep what they need; a request behind them waits until they have moved."""

PLACE_S = 5.0
"""For how long after its wait a place is kept without another `acquire`."""

KEPT_S = 172_800.0
"""A deployment without a step in two days starts over: longer than any lease, cooldown and window."""


_Rank = tuple[int, int, str]
"""When it came, in ms, less its priority in seconds; ticket; id: smaller is better."""


@dataclass(slots=True)
class _Place:
    rank: _Rank
    came_ms: int
    tokens: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class QueueAhead:
    """The requests with a better place: how many, and the tokens that the first `LOOKED_AT` of them need."""

    count: int = 0
    tokens: int = 0


EMPTY_QUEUE = QueueAhead()


@dataclass(slots=True)
class DeploymentQueue:
    """The places of waiting requests; one that is not renewed in time is gone."""

    _places: dict[str, _Place] = field(default_factory=dict)
    _order: list[_Rank] = field(default_factory=list)
    _tickets: int = 0
    _first_over_ms: float = inf

    def __len__(self) -> int:
        return len(self._places)

    def forget_over(self, now_ms: int) -> None:
        """Drop the places that were not renewed."""
        if now_ms < self._first_over_ms:
            return
        for id_ in [id_ for id_, place in self._places.items() if place.until_ms <= now_ms]:
            self.remove(id_)
        self._first_over_ms = min((place.until_ms for place in self._places.values()), default=inf)

    def ahead_of(self, request: PermitRequest, now_ms: int) -> QueueAhead:
        """Return what has a better place than `request` has, or would get."""
        if not self._places:
            return EMPTY_QUEUE
        rank = self._rank(request, now_ms)
        count = bisect_left(self._order, rank)
        others = [id_ for _, _, id_ in self._order[: min(count, LOOKED_AT)] if id_ != request.id]
        place = self._places.get(request.id)
        is_moving_back = place is not None and place.rank < rank
        return QueueAhead(count - is_moving_back, sum(self._places[id_].tokens for id_ in others))

    def keep(self, request: PermitRequest, tokens: int, until_ms: int, now_ms: int) -> None:
        """Give or renew a place; another priority moves it, its ticket and when it came stay."""
        rank, known = self._rank(request, now_ms), self._places.get(request.id)
        self.remove(request.id)
        self._tickets = max(self._tickets, rank[1] + 1)
        self._places[request.id] = _Place(rank, now_ms if known is None else known.came_ms, tokens, until_ms)
        insort(self._order, rank)
        self._first_over_ms = min(self._first_over_ms, until_ms)

    def remove(self, id_: str) -> None:
        """Drop a place; harmless without one."""
        place = self._places.pop(id_, None)
        if place is not None:
            del self._order[bisect_left(self._order, place.rank)]

    def _rank(self, request: PermitRequest, now_ms: int) -> _Rank:
        place = self._places.get(request.id)
        came_ms, ticket = (now_ms, self._tickets) if place is None else (place.came_ms, place.rank[1])
        return came_ms - 1000 * request.priority, ticket, request.id


RETRY_SLOTS = 12
"""In how many parts the window of the retry budget moves."""

SLOT_LOOK_MS = 50
"""After how long the first in the queue looks for a permit in flight to be free; those behind a little later."""

SLOT_LOOK_MORE_MS = 5


@dataclass(slots=True)
class _InFlight:
    """A call in flight: what was taken for it, and when."""

    permit: Permit
    acquired_ms: int
    until_ms: int
    era: int
    is_retry: bool


class DeploymentLimiter:
    """The state of one deployment; every method is one step, at `now_ms`."""

    def __init__(
        self,
        deployment: Deployment,
        limits: RateLimits,
        breaker: CircuitBreakerConfig,
        retries: RetryBudget,
        *,
        now_ms: int,
    ) -> None:
        self._deployment = deployment
        self._limits = limits
        self._retries = retries
        self._breaker = CircuitBreaker(breaker)
        self._traffic = SlidingWindowCounter.over(
            retries.window_s, RETRY_SLOTS
        )  # calls, and the retries among them
        self._requests = _bucket(limits.requests_per_minute, now_ms)
        self._tokens = _bucket(limits.tokens_per_minute, now_ms)
        self._queue = DeploymentQueue()
        self._in_flight: dict[str, _InFlight] = {}
        self._first_over_ms = inf
        self._cooldown_until_ms = 0

    def acquire(
        self, request: PermitRequest, place_s: float, now_ms: int
    ) -> Permit | Throttled | NotPermitted:
        """Permit, queue or deny."""
        self._advance_to(now_ms)
        known = self._in_flight.get(request.id)
        if known is not None:
            known.until_ms = _after(request.lease_s, now_ms)
            self._first_over_ms = min(self._first_over_ms, known.until_ms)
            return known.permit
        answer = self._not_permitted(request, now_ms) or self._throttled(request, now_ms)
        if isinstance(answer, Throttled):
            tokens = min(request.tokens, self._limits.tokens_per_minute or 0)
            self._queue.keep(request, tokens, _after(answer.retry_after_s + place_s, now_ms), now_ms)
            return answer
        self._queue.remove(request.id)
        return answer or self._permit(request, now_ms)

    def release(
        self, id_: str, outcome: PermitOutcome, tokens: int | None, cooldown_s: float | None, now_ms: int
    ) -> None:
        """End a call in flight; an unknown one is left alone."""
        self._advance_to(now_ms)
        call = self._in_flight.pop(id_, None)
        if call is None:
            return
        self._breaker.release(call.era, outcome, now_ms)
        taken = call.permit.tokens
        if outcome is PermitOutcome.UNUSED:
            tokens = 0
            self._traffic.take_back(call.acquired_ms, 1, call.is_retry)
            if self._requests is not None:
                self._requests.take(-1)
        if self._tokens is not None and tokens is not None:
            self._tokens.take(min(max(tokens, 0), MOST_TOKENS) - taken)
        if cooldown_s is not None and cooldown_s > 0:
            self._cooldown_until_ms = max(
                self._cooldown_until_ms, _after(min(cooldown_s, LONGEST_COOLDOWN_S), now_ms)
            )

    def cancel(self, id_: str, now_ms: int) -> None:
        """Forget a request that is withdrawn."""
        self._queue.remove(id_)
        self.release(id_, PermitOutcome.UNUSED, None, None, now_ms)

    def status(self, now_ms: int) -> DeploymentStatus:
        """Return the state."""
        self._advance_to(now_ms)
        return DeploymentStatus(
            deployment=self._deployment,
            limits=self._limits,
            breaker=self._breaker.state(now_ms),
            answered=self._breaker.ended.first,
            failed=self._breaker.ended.second,
            in_flight=len(self._in_flight),
            waiting=len(self._queue),
            requests_left=None if self._requests is None else self._requests.left,
            tokens_left=None if self._tokens is None else self._tokens.left,
            retries_left=self._retries.left(self._traffic.first, self._traffic.second),
            cooldown_s=max(0, self._cooldown_until_ms - now_ms) / 1000,
        )

    def _advance_to(self, now_ms: int) -> None:
        """Fill the buckets, and forget what has passed: counts, places, leases."""
        if self._requests is not None:
            self._requests.fill(now_ms)
        if self._tokens is not None:
            self._tokens.fill(now_ms)
        self._traffic.move_to(now_ms)
        self._breaker.ended.move_to(now_ms)
        self._queue.forget_over(now_ms)
        self._cooldown_until_ms = min(self._cooldown_until_ms, _after(LONGEST_COOLDOWN_S, now_ms))
        if now_ms >= self._first_over_ms:
            for id_ in [id_ for id_, call in self._in_flight.items() if call.until_ms <= now_ms]:
                self._breaker.release(self._in_flight.pop(id_).era, PermitOutcome.NEUTRAL, now_ms)
            self._first_over_ms = min((call.until_ms for call in self._in_flight.values()), default=inf)

    def _not_permitted(self, request: PermitRequest, now_ms: int) -> NotPermitted | None:
        open_for_ms = self._breaker.open_for_ms(now_ms)
        if open_for_ms:
            return NotPermitted(self._deployment, "circuit_open", open_for_ms / 1000)
        if request.is_retry and not self._retries.left(self._traffic.first, self._traffic.second):
            return NotPermitted(self._deployment, "retry_budget", self._traffic.next_ms(now_ms) / 1000)
        return None

    def _throttled(self, request: PermitRequest, now_ms: int) -> Throttled | None:
        """Return what is lacking, or None: first for the request alone, then beyond what those ahead of it need."""
        if now_ms < self._cooldown_until_ms:
            return Throttled(self._deployment, "cooldown", (self._cooldown_until_ms - now_ms) / 1000)
        ahead = self._queue.ahead_of(request, now_ms)
        alone_ms, reason = max(self._waits(request.tokens, 0, 0), key=_first)
        if not ahead.count:
            wait_ms = alone_ms
        elif self._limits == _UNLIMITED:
            wait_ms = 0
        else:
            wait_ms = max(self._waits(request.tokens, ahead.count, ahead.tokens), key=_first)[0]
            if ahead.count > LOOKED_AT:
                wait_ms = max(wait_ms, SLOT_LOOK_MS + SLOT_LOOK_MORE_MS * ahead.count)
        if not wait_ms:
            return None
        return Throttled(self._deployment, reason if alone_ms else "queue", min(wait_ms / 1000, LOOK_AGAIN_S))

    def _waits(self, tokens: int, ahead: int, tokens_ahead: int) -> list[tuple[int, ThrottleReason]]:
        """Return after how many milliseconds each limit would permit one, when `ahead` have gone before."""
        room = self._limits.concurrent
        is_full = room is not None and len(self._in_flight) + ahead >= room
        return [
            (SLOT_LOOK_MS + SLOT_LOOK_MORE_MS * ahead if is_full else 0, "concurrent"),
            (0 if self._requests is None else self._requests.wait_ms(1, ahead), "requests"),
            (0 if self._tokens is None else self._tokens.wait_ms(tokens, tokens_ahead), "tokens"),
        ]

    def _permit(self, request: PermitRequest, now_ms: int) -> Permit:
        if self._requests is not None:
            self._requests.take(1)
        if self._tokens is not None:
            self._tokens.take(request.tokens)
        self._traffic.add(now_ms, 1, request.is_retry)
        permit = Permit(self._deployment, request.id, request.tokens)
        until_ms = _after(request.lease_s, now_ms)
        self._in_flight[request.id] = _InFlight(
            permit, now_ms, until_ms, self._breaker.acquire(), request.is_retry
        )
        self._first_over_ms = min(self._first_over_ms, until_ms)
        return permit


_UNLIMITED = RateLimits()


def _first(pair: tuple[int, ThrottleReason]) -> int:
    return pair[0]


def _after(seconds: float, now_ms: int) -> int:
    """Return the millisecond that comes `seconds` after now, at least one later."""
    return now_ms + max(1, round(seconds * 1000))


def _bucket(per_minute: int | None, now_ms: int) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute, now_ms)
