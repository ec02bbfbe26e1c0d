"""The arithmetic of rates, in whole milliseconds and without a clock: token bucket, sliding window, circuit breaker."""

from collections import deque
from dataclasses import dataclass, field

from agentic_trading.governance.limiter import CircuitBreakerConfig, CircuitState, PermitOutcome

MINUTE_MS = 60_000


@dataclass(slots=True)
class TokenBucket:
    """What is left of a minute's limit: full at first, filling evenly, below zero while it is overdrawn.

    The level counts `MINUTE_MS` to one, so that what a millisecond adds is a whole number (the limit itself).
    """

    per_minute: int
    at_ms: int
    level: int = field(init=False)

    def __post_init__(self) -> None:
        """Begin full."""
        self.level = self.full

    @property
    def full(self) -> int:
        """The highest level: one minute's limit."""
        return self.per_minute * MINUTE_MS

    @property
    def left(self) -> int:
        """What may be taken at once, whole ones only."""
        return max(0, self.level // MINUTE_MS)

    def fill(self, now_ms: int) -> None:
        """Fill up to the present; a clock that went back adds nothing."""
        if now_ms > self.at_ms:
            self.level = min(self.full, self.level + self.per_minute * (now_ms - self.at_ms))
        self.at_ms = now_ms

    def wait_ms(self, amount: int, ahead: int = 0) -> int:
        """Return after how long `amount` is there beyond what is `ahead`; more than a full bucket needs a full one."""
        short = min(amount * MINUTE_MS, self.full) + ahead * MINUTE_MS - self.level
        return -(-short // self.per_minute) if short > 0 else 0

    def take(self, amount: int) -> None:
        """Take `amount`, there or not; a negative one is given back, up to full."""
        self.level = min(self.full, self.level - amount * MINUTE_MS)


@dataclass(slots=True)
class SlidingWindowCounter:
    """Two counts over a window that moves slot by slot: all of the last `window_ms`, and up to one slot more."""

    slot_ms: int
    slots: int
    first: int = 0
    second: int = 0
    _kept: deque[list[int]] = field(default_factory=deque)

    @classmethod
    def over(cls, window_s: float, slots: int) -> "SlidingWindowCounter":
        """Return an empty counter of a window in so many slots."""
        return cls(slot_length_ms(window_s, slots), slots)

    def move_to(self, now_ms: int) -> None:
        """Forget what has passed, and what a clock that went back has not come to yet."""
        slot = now_ms // self.slot_ms
        while self._kept and self._kept[0][0] < slot - self.slots:
            self._forget(self._kept.popleft())
        while self._kept and self._kept[-1][0] > slot:
            self._forget(self._kept.pop())

    def add(self, now_ms: int, first: int, second: int) -> None:
        """Count at the present; `move_to` it first."""
        slot = now_ms // self.slot_ms
        if not self._kept or self._kept[-1][0] != slot:
            self._kept.append([slot, 0, 0])
        last = self._kept[-1]
        last[1] += first
        last[2] += second
        self.first += first
        self.second += second

    def take_back(self, at_ms: int, first: int, second: int) -> None:
        """Undo what was counted at `at_ms`, if it has not passed."""
        slot = at_ms // self.slot_ms
        for kept in self._kept:
            if kept[0] == slot:
                kept[1] -= first
                kept[2] -= second
                self.first -= first
                self.second -= second

    def next_ms(self, now_ms: int) -> int:
        """Return after how long the oldest of the second count passes; at least 1."""
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
"""In how many parts the window moves."""

PROBE_LOOK_MS = 1000
"""After how long it is worth trying again while probes are in flight."""


@dataclass(slots=True)
class CircuitBreaker:
    """One deployment's circuit. An `era` ends when it opens and when it closes.

    A call counts in the era that it was permitted in, and in no other: what was sent before the circuit changed says
    nothing of now. A call in an era that began by opening is a probe.
    """

    config: CircuitBreakerConfig
    era: int = 0
    open_until_ms: int = 0  # 0: closed
    probes: int = 0
    ended: SlidingWindowCounter = field(init=False)

    def __post_init__(self) -> None:
        """Begin closed, with nothing counted."""
        self.ended = SlidingWindowCounter.over(self.config.window_s, SLOTS)

    def state(self, now_ms: int) -> CircuitState:
        """Return how the circuit stands."""
        if not self.open_until_ms:
            return CircuitState.CLOSED
        return CircuitState.OPEN if now_ms < self.open_until_ms else CircuitState.HALF_OPEN

    def open_for_ms(self, now_ms: int) -> int:
        """Return for how long no call may go; 0 if one may, as a probe where it is half open.

        While it is open that is never longer than `wait_open_s`, wherever a clock has jumped to.
        """
        if not self.open_until_ms:
            return 0
        open_ms = round(self.config.wait_open_s * 1000)
        self.open_until_ms = min(self.open_until_ms, now_ms + open_ms)
        if now_ms < self.open_until_ms:
            return self.open_until_ms - now_ms
        return 0 if self.probes < self.config.half_open_calls else min(PROBE_LOOK_MS, open_ms)

    def acquire(self) -> int:
        """Count a call in, and return its era."""
        if self.open_until_ms:
            self.probes += 1
        return self.era

    def release(self, era: int, outcome: PermitOutcome, now_ms: int) -> None:
        """Count a call of `era` out; only what was answered or failed can change the state."""
        if era != self.era:
            return
        if self.open_until_ms:
            self.probes -= 1
        if outcome not in {PermitOutcome.ANSWERED, PermitOutcome.FAILED}:
            return
        failed = outcome is PermitOutcome.FAILED
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
