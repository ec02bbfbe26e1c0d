"""The memory limiter, and the state of one deployment: buckets, queue, breaker and calls in flight."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance import limiter as limiter_api

MINUTE_MS = 60_000


@dataclass(slots=True)
class TokenBucket:
    """The rest of a minute's limit.

    It begins full, fills evenly, and is below zero while overdrawn. The level has `MINUTE_MS` units per call
    or token, so that each millisecond adds a whole number: the limit itself.
    """

    per_minute: int
    at_ms: int
    level: int = field(init=False)

    def __post_init__(self) -> None:
        """Begins full."""
        self.level = self.full

    @property
    def full(self) -> int:
        """The highest level: one minute's limit."""
        return self.per_minute * MINUTE_MS

    @property
    def left(self) -> int:
        """The whole units that can be taken now."""
        return max(0, self.level // MINUTE_MS)

    def fill(self, now_ms: int) -> None:
        """Fill up to the present. A clock that went back adds no units."""
        if now_ms > self.at_ms:
            self.level = min(self.full, self.level + self.per_minute * (now_ms - self.at_ms))
        self.at_ms = now_ms

    def wait_ms(self, amount: int, ahead: int = 0) -> int:
        """Return the wait until `amount` is available after `ahead` units.

        More than a full bucket waits for a full one.
        """
        short = min(amount * MINUTE_MS, self.full) + ahead * MINUTE_MS - self.level
        return -(-short // self.per_minute) if short > 0 else 0

    def take(self, amount: int) -> None:
        """Take `amount`, even if it is not available.

        A negative amount is given back, up to the full level.
        """
        self.level = min(self.full, self.level - amount * MINUTE_MS)


@dataclass(slots=True)
class SlidingWindowCounter:
    """Two counts over a window that moves slot by slot.

    It covers the last `window_ms` and up to one slot more.
    """

    slot_ms: int
    slots: int
    first: int = 0
    second: int = 0
    _kept: deque[list[int]] = field(default_factory=deque)

    @classmethod
    def over(cls, window_s: float, slots: int) -> "SlidingWindowCounter":
        """Return an empty counter of a window with this number of slots."""
        return cls(slot_length_ms(window_s, slots), slots)

    def move_to(self, now_ms: int) -> None:
        """Drop slots that are too old, and future slots after a clock went back."""
        slot = now_ms // self.slot_ms
        while self._kept and self._kept[0][0] < slot - self.slots:
            self._forget(self._kept.popleft())
        while self._kept and self._kept[-1][0] > slot:
            self._forget(self._kept.pop())

    def add(self, now_ms: int, first: int, second: int) -> None:
        """Add to the present slot. Call `move_to` before."""
        slot = now_ms // self.slot_ms
        if not self._kept or self._kept[-1][0] != slot:
            self._kept.append([slot, 0, 0])
        last = self._kept[-1]
        last[1] += first
        last[2] += second
        self.first += first
        self.second += second

    def take_back(self, at_ms: int, first: int, second: int) -> None:
        """Undo a count at `at_ms`, if it is still in the window."""
        slot = at_ms // self.slot_ms
        for kept in self._kept:
            if kept[0] == slot:
                kept[1] -= first
                kept[2] -= second
                self.first -= first
                self.second -= second

    def next_ms(self, now_ms: int) -> int:
        """Return the wait until the oldest slot with a second count leaves the window.

        At least 1.
        """
        oldest = next((slot for slot, _, second in self._kept if second), now_ms // self.slot_ms)
        return max(1, (oldest + self.slots + 1) * self.slot_ms - now_ms)

    def clear(self) -> None:
        """Forget all counts."""
        self._kept.clear()
        self.first = self.second = 0

    def _forget(self, kept: list[int]) -> None:
        self.first -= kept[1]
        self.second -= kept[2]


def slot_length_ms(window_s: float, slots: int) -> int:
    """Return the length of one of `slots` that cover a window, rounded up."""
    return max(1, -(-round(window_s * 1000) // slots))


SLOTS = 10
"""The number of slots of the breaker's window."""

PROBE_LOOK_MS = 1000
"""The wait before another try while probes are in flight."""


@dataclass(slots=True)
class CircuitBreaker:
    """One deployment's circuit. An `era` ends when it opens and when it closes.

    A call only counts in the era in which it was permitted. A call in an era that began by opening is a
    probe.
    """

    config: limiter_api.CircuitBreakerConfig
    era: int = 0
    open_until_ms: int = 0  # 0: closed
    probes: int = 0
    ended: SlidingWindowCounter = field(init=False)

    def __post_init__(self) -> None:
        """Begins closed, without counts."""
        self.ended = SlidingWindowCounter.over(self.config.window_s, SLOTS)

    def state(self, now_ms: int) -> limiter_api.CircuitState:
        """Return the state of the circuit."""
        if not self.open_until_ms:
            return limiter_api.CircuitState.CLOSED
        return (
            limiter_api.CircuitState.OPEN
            if now_ms < self.open_until_ms
            else limiter_api.CircuitState.HALF_OPEN
        )

    def open_for_ms(self, now_ms: int) -> int:
        """Return how long calls are stopped. 0 if a call may run, as a probe if half open."""
        if not self.open_until_ms:
            return 0
        open_ms = round(self.config.wait_open_s * 1000)
        # Otherwise a clock that jumped back would keep the circuit open for the length of the jump.
        self.open_until_ms = min(self.open_until_ms, now_ms + open_ms)
        if now_ms < self.open_until_ms:
            return self.open_until_ms - now_ms
        return 0 if self.probes < self.config.half_open_calls else min(PROBE_LOOK_MS, open_ms)

    def acquire(self) -> int:
        """Count a call in, and return its era."""
        if self.open_until_ms:
            self.probes += 1
        return self.era

    def release(self, era: int, outcome: limiter_api.PermitOutcome, now_ms: int) -> None:
        """Count a call of `era` out. Only answered and failed calls change the state."""
        # A call from an earlier era would count the provider's health before the circuit changed.
        if era != self.era:
            return
        if self.open_until_ms:
            self.probes -= 1
        if outcome not in {limiter_api.PermitOutcome.ANSWERED, limiter_api.PermitOutcome.FAILED}:
            return
        failed = outcome is limiter_api.PermitOutcome.FAILED
        if self.open_until_ms:
            self._change(now_ms, is_open=failed)
            return
        self.ended.move_to(now_ms)
        self.ended.add(now_ms, not failed, failed)
        ended = self.ended.first + self.ended.second
        if ended >= self.config.min_calls and self.ended.second >= self.config.failure_rate * ended:
            self._change(now_ms, is_open=True)

    def _change(self, now_ms: int, *, is_open: bool) -> None:
        self.era += 1
        self.open_until_ms = now_ms + round(self.config.wait_open_s * 1000) if is_open else 0
        self.probes = 0
        self.ended.clear()


LOOKED_AT = 64
"""The number of requests in front whose needs are reserved.

Requests behind them wait until these have moved.
"""

PLACE_S = 5.0
"""Seconds after its wait for which a place is kept without another `acquire`."""

KEPT_S = 172_800.0
"""Seconds after its last step until a deployment starts again: longer than any lease, cooldown and window."""


_Rank = tuple[int, int, str]
"""Arrival in ms minus priority in seconds, then ticket, then id. Smaller is better."""


@dataclass(slots=True)
class _Place:
    rank: _Rank
    came_ms: int
    tokens: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class QueueAhead:
    """The requests with a better place: their number, and the tokens that the first `LOOKED_AT` need."""

    count: int = 0
    tokens: int = 0


EMPTY_QUEUE = QueueAhead()


@dataclass(slots=True)
class DeploymentQueue:
    """The places of waiting requests. A place that is not renewed in time is dropped."""

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

    def ahead_of(self, request: limiter_api.PermitRequest, now_ms: int) -> QueueAhead:
        """Return the requests with a better place than `request` has or would get."""
        if not self._places:
            return EMPTY_QUEUE
        rank = self._rank(request, now_ms)
        count = bisect_left(self._order, rank)
        others = [id_ for _, _, id_ in self._order[: min(count, LOOKED_AT)] if id_ != request.id]
        place = self._places.get(request.id)
        is_moving_back = place is not None and place.rank < rank
        return QueueAhead(count - is_moving_back, sum(self._places[id_].tokens for id_ in others))

    def keep(self, request: limiter_api.PermitRequest, tokens: int, until_ms: int, now_ms: int) -> None:
        """Give or renew a place.

        Another priority moves it, but ticket and arrival time stay.
        """
        rank, known = self._rank(request, now_ms), self._places.get(request.id)
        self.remove(request.id)
        self._tickets = max(self._tickets, rank[1] + 1)
        self._places[request.id] = _Place(rank, now_ms if known is None else known.came_ms, tokens, until_ms)
        insort(self._order, rank)
        self._first_over_ms = min(self._first_over_ms, until_ms)

    def remove(self, id_: str) -> None:
        """Drop a place. Harmless without one."""
        place = self._places.pop(id_, None)
        if place is not None:
            del self._order[bisect_left(self._order, place.rank)]

    def _rank(self, request: limiter_api.PermitRequest, now_ms: int) -> _Rank:
        place = self._places.get(request.id)
        came_ms, ticket = (now_ms, self._tickets) if place is None else (place.came_ms, place.rank[1])
        return came_ms - 1000 * request.priority, ticket, request.id


RETRY_SLOTS = 12
"""The number of slots of the retry budget's window."""

SLOT_LOOK_MS = 50
"""The wait until the first in the queue checks again for a free permit. Those behind wait a little longer."""

SLOT_LOOK_MORE_MS = 5


@dataclass(slots=True)
class _InFlight:
    """A call in flight: the units taken for it, and when."""

    permit: limiter_api.Permit
    acquired_ms: int
    until_ms: int
    era: int
    is_retry: bool


class DeploymentLimiter:
    """The state of one deployment. Every method is one step, at `now_ms`."""

    def __init__(
        self,
        deployment: limiter_api.Deployment,
        limits: limiter_api.RateLimits,
        breaker: limiter_api.CircuitBreakerConfig,
        retries: limiter_api.RetryBudget,
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
        self, request: limiter_api.PermitRequest, place_s: float, now_ms: int
    ) -> limiter_api.Permit | limiter_api.Throttled | limiter_api.NotPermitted:
        """Permit, queue or refuse a request."""
        self._advance_to(now_ms)
        known = self._in_flight.get(request.id)
        if known is not None:
            known.until_ms = _after(request.lease_s, now_ms)
            self._first_over_ms = min(self._first_over_ms, known.until_ms)
            return known.permit
        answer = self._not_permitted(request, now_ms) or self._throttled(request, now_ms)
        if isinstance(answer, limiter_api.Throttled):
            tokens = min(request.tokens, self._limits.tokens_per_minute or 0)
            self._queue.keep(request, tokens, _after(answer.retry_after_s + place_s, now_ms), now_ms)
            return answer
        self._queue.remove(request.id)
        return answer or self._permit(request, now_ms)

    def release(
        self,
        id_: str,
        outcome: limiter_api.PermitOutcome,
        tokens: int | None,
        cooldown_s: float | None,
        now_ms: int,
    ) -> None:
        """End a call in flight. An unknown one is ignored."""
        self._advance_to(now_ms)
        call = self._in_flight.pop(id_, None)
        if call is None:
            return
        self._breaker.release(call.era, outcome, now_ms)
        taken = call.permit.tokens
        if outcome is limiter_api.PermitOutcome.UNUSED:
            tokens = 0
            self._traffic.take_back(call.acquired_ms, 1, call.is_retry)
            if self._requests is not None:
                self._requests.take(-1)
        if self._tokens is not None and tokens is not None:
            self._tokens.take(min(max(tokens, 0), limiter_api.MOST_TOKENS) - taken)
        if cooldown_s is not None and cooldown_s > 0:
            self._cooldown_until_ms = max(
                self._cooldown_until_ms, _after(min(cooldown_s, limiter_api.LONGEST_COOLDOWN_S), now_ms)
            )

    def cancel(self, id_: str, now_ms: int) -> None:
        """Forget a request."""
        self._queue.remove(id_)
        self.release(id_, limiter_api.PermitOutcome.UNUSED, None, None, now_ms)

    def status(self, now_ms: int) -> limiter_api.DeploymentStatus:
        """Return the state."""
        self._advance_to(now_ms)
        return limiter_api.DeploymentStatus(
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
        """Fill the buckets, and drop old counts, places and leases."""
        if self._requests is not None:
            self._requests.fill(now_ms)
        if self._tokens is not None:
            self._tokens.fill(now_ms)
        self._traffic.move_to(now_ms)
        self._breaker.ended.move_to(now_ms)
        self._queue.forget_over(now_ms)
        self._cooldown_until_ms = min(self._cooldown_until_ms, _after(limiter_api.LONGEST_COOLDOWN_S, now_ms))
        if now_ms >= self._first_over_ms:
            for id_ in [id_ for id_, call in self._in_flight.items() if call.until_ms <= now_ms]:
                # Neutral, because a crash of this process would otherwise count against the provider.
                self._breaker.release(self._in_flight.pop(id_).era, limiter_api.PermitOutcome.NEUTRAL, now_ms)
            self._first_over_ms = min((call.until_ms for call in self._in_flight.values()), default=inf)

    def _not_permitted(
        self, request: limiter_api.PermitRequest, now_ms: int
    ) -> limiter_api.NotPermitted | None:
        open_for_ms = self._breaker.open_for_ms(now_ms)
        if open_for_ms:
            return limiter_api.NotPermitted(self._deployment, "circuit_open", open_for_ms / 1000)
        if request.is_retry and not self._retries.left(self._traffic.first, self._traffic.second):
            return limiter_api.NotPermitted(
                self._deployment, "retry_budget", self._traffic.next_ms(now_ms) / 1000
            )
        return None

    def _throttled(self, request: limiter_api.PermitRequest, now_ms: int) -> limiter_api.Throttled | None:
        """Return the wait for a request, or None. Requests in front of it count as well."""
        if now_ms < self._cooldown_until_ms:
            return limiter_api.Throttled(
                self._deployment, "cooldown", (self._cooldown_until_ms - now_ms) / 1000
            )
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
        return limiter_api.Throttled(
            self._deployment, reason if alone_ms else "queue", min(wait_ms / 1000, limiter_api.LOOK_AGAIN_S)
        )

    def _waits(
        self, tokens: int, ahead: int, tokens_ahead: int
    ) -> list[tuple[int, limiter_api.ThrottleReason]]:
        """Return the wait in milliseconds by each limit, with `ahead` requests in front."""
        room = self._limits.concurrent
        is_full = room is not None and len(self._in_flight) + ahead >= room
        return [
            (SLOT_LOOK_MS + SLOT_LOOK_MORE_MS * ahead if is_full else 0, "concurrent"),
            (0 if self._requests is None else self._requests.wait_ms(1, ahead), "requests"),
            (0 if self._tokens is None else self._tokens.wait_ms(tokens, tokens_ahead), "tokens"),
        ]

    def _permit(self, request: limiter_api.PermitRequest, now_ms: int) -> limiter_api.Permit:
        if self._requests is not None:
            self._requests.take(1)
        if self._tokens is not None:
            self._tokens.take(request.tokens)
        self._traffic.add(now_ms, 1, request.is_retry)
        permit = limiter_api.Permit(self._deployment, request.id, request.tokens)
        until_ms = _after(request.lease_s, now_ms)
        self._in_flight[request.id] = _InFlight(
            permit, now_ms, until_ms, self._breaker.acquire(), request.is_retry
        )
        self._first_over_ms = min(self._first_over_ms, until_ms)
        return permit


_UNLIMITED = limiter_api.RateLimits()


def _first(pair: tuple[int, limiter_api.ThrottleReason]) -> int:
    return pair[0]


def _after(seconds: float, now_ms: int) -> int:
    """Return the time `seconds` after now in milliseconds, at least one later."""
    return now_ms + max(1, round(seconds * 1000))


def _bucket(per_minute: int | None, now_ms: int) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute, now_ms)


class MemoryLimiter:
    """A `Limiter` for the tasks of one process. Its time is the clock's `monotonic`.

    Args:
        limits: The limits of single deployments.
        default: The limits of every other deployment.
        breaker: When a circuit opens and closes.
        retries: How many retries are allowed.
        place_s: Seconds after its wait for which a place in the queue is kept without another `acquire`.
        clock: The clock.

    """

    def __init__(
        self,
        limits: Mapping[limiter_api.Deployment, limiter_api.RateLimits] | None = None,
        *,
        default: limiter_api.RateLimits = limiter_api.RateLimits(),  # noqa: B008 - a frozen value
        breaker: limiter_api.CircuitBreakerConfig = limiter_api.CircuitBreakerConfig(),  # noqa: B008 - a frozen value
        retries: limiter_api.RetryBudget = limiter_api.RetryBudget(),  # noqa: B008 - a frozen value
        place_s: float = PLACE_S,
        clock: Clock | None = None,
    ) -> None:
        self._limits = dict(limits or {})
        self._default = default
        self._breaker = breaker
        self._retries = retries
        self._place_s = place_s
        self._clock = clock or SystemClock()
        self._limiters: dict[
            limiter_api.Deployment, DeploymentLimiter
        ] = {}  # the longest without a step first
        self._stepped_ms: dict[limiter_api.Deployment, int] = {}

    async def acquire(
        self, request: limiter_api.PermitRequest
    ) -> limiter_api.Permit | limiter_api.Throttled | limiter_api.NotPermitted:
        """Return a permit, or how long to wait for one."""
        now_ms = self._now_ms()
        return self._limiter_of(request.deployment, now_ms).acquire(request, self._place_s, now_ms)

    async def release(
        self,
        permit: limiter_api.Permit,
        outcome: limiter_api.PermitOutcome,
        *,
        tokens: int | None = None,
        cooldown_s: float | None = None,
    ) -> None:
        """End a permit. Repeating is harmless, also after its lease."""
        now_ms = self._now_ms()
        self._limiter_of(permit.deployment, now_ms).release(permit.id, outcome, tokens, cooldown_s, now_ms)

    async def cancel(self, request: limiter_api.PermitRequest) -> None:
        """Forget an attempt that was not sent and will not be sent."""
        now_ms = self._now_ms()
        self._limiter_of(request.deployment, now_ms).cancel(request.id, now_ms)

    async def status(self, deployment: limiter_api.Deployment) -> limiter_api.DeploymentStatus:
        """Return the state of a deployment."""
        now_ms = self._now_ms()
        return self._limiter_of(deployment, now_ms).status(now_ms)

    async def aclose(self) -> None:
        """Do nothing, because no connection is open."""

    def _limiter_of(self, deployment: limiter_api.Deployment, now_ms: int) -> DeploymentLimiter:
        limiter = self._limiters.pop(deployment, None)
        if limiter is None:
            # Otherwise deployments that were used once would stay in memory until the process ends.
            self._forget(now_ms - round(KEPT_S * 1000))
            limits = self._limits.get(deployment, self._default)
            limiter = DeploymentLimiter(deployment, limits, self._breaker, self._retries, now_ms=now_ms)
        self._limiters[deployment] = limiter
        self._stepped_ms[deployment] = now_ms
        return limiter

    def _forget(self, before_ms: int) -> None:
        """Drop the deployments whose last step was before a time."""
        for deployment in list(self._limiters):
            if self._stepped_ms[deployment] > before_ms:
                break
            del self._limiters[deployment], self._stepped_ms[deployment]

    def _now_ms(self) -> int:
        return round(self._clock.monotonic() * 1000)
