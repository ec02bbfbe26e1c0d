"""Rates and breakers of one process, in memory."""

from collections.abc import Mapping

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance.limiter import (
    BreakerRules,
    Entry,
    Lane,
    LaneStatus,
    Outcome,
    Permit,
    RateLimits,
    RetryBudget,
    Shut,
    Wait,
)
from agentic_trading.governance.limiters.lane import LaneBook
from agentic_trading.governance.limiters.line import PLACE_S


class MemoryLimiter:
    """Keep the port's promise among the tasks of one process; time is the clock's `monotonic`.

    `limits` are those of named lanes, `default` those of every other one by itself. `place_s` is how long after its
    wait a place in line is kept for who does not ask again.
    """

    def __init__(
        self,
        limits: Mapping[Lane, RateLimits] | None = None,
        *,
        default: RateLimits = RateLimits(),  # noqa: B008 - a frozen value
        breaker: BreakerRules = BreakerRules(),  # noqa: B008 - a frozen value
        retries: RetryBudget = RetryBudget(),  # noqa: B008 - a frozen value
        place_s: float = PLACE_S,
        clock: Clock | None = None,
    ) -> None:
        self._limits = dict(limits or {})
        self._default = default
        self._breaker = breaker
        self._retries = retries
        self._place_s = place_s
        self._clock = clock or SystemClock()
        self._books: dict[Lane, LaneBook] = {}

    async def enter(self, entry: Entry) -> Permit | Wait | Shut:
        """Let an attempt in, or say for how long not."""
        now_ms = self._now_ms()
        return self._book(entry.lane, now_ms).enter(entry, self._place_s, now_ms)

    async def leave(
        self, permit: Permit, outcome: Outcome, *, tokens: int | None = None, pause_s: float | None = None
    ) -> None:
        """End a permit; harmless twice, and after its lease."""
        now_ms = self._now_ms()
        self._book(permit.lane, now_ms).leave(permit.id, outcome, tokens, pause_s, now_ms)

    async def give_up(self, entry: Entry) -> None:
        """Forget an attempt that does not want to enter any more and was not sent."""
        now_ms = self._now_ms()
        self._book(entry.lane, now_ms).give_up(entry.id, now_ms)

    async def status(self, lane: Lane) -> LaneStatus:
        """Return how a lane stands."""
        now_ms = self._now_ms()
        return self._book(lane, now_ms).status(now_ms)

    async def aclose(self) -> None:
        """Nothing is open."""

    def _book(self, lane: Lane, now_ms: int) -> LaneBook:
        book = self._books.get(lane)
        if book is None:
            limits = self._limits.get(lane, self._default)
            book = self._books[lane] = LaneBook(lane, limits, self._breaker, self._retries, now_ms=now_ms)
        return book

    def _now_ms(self) -> int:
        return round(self._clock.monotonic() * 1000)
