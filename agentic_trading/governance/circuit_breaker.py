"""When a circuit opens and closes again: the state of one lane's breaker, in whole milliseconds, without a clock."""

from dataclasses import dataclass, field

from agentic_trading.governance.limiter import CircuitBreakerConfig, CircuitState, PermitOutcome
from agentic_trading.governance.rate_arithmetic import SlidingWindowCounter

SLOTS = 10
"""In how many parts the window moves."""

PROBE_LOOK_MS = 1000
"""After how long it is worth asking again while probes are under way."""


@dataclass(slots=True)
class CircuitBreaker:
    """One lane's circuit. An `era` ends when it opens and when it closes.

    A call counts in the era that it entered in, and in no other: what was sent before the circuit changed says nothing
    of now. Whoever enters in an era that began by opening is a probe.
    """

    rules: CircuitBreakerConfig
    era: int = 0
    open_until_ms: int = 0  # 0: closed
    probes: int = 0
    ended: SlidingWindowCounter = field(init=False)

    def __post_init__(self) -> None:
        """Begin closed, with nothing counted."""
        self.ended = SlidingWindowCounter.over(self.rules.window_s, SLOTS)

    def state(self, now_ms: int) -> CircuitState:
        """Return how the circuit stands."""
        if not self.open_until_ms:
            return CircuitState.CLOSED
        return CircuitState.OPEN if now_ms < self.open_until_ms else CircuitState.HALF_OPEN

    def shut_ms(self, now_ms: int) -> int:
        """Return for how long nobody may enter; 0 if one may, as a probe where it is half open.

        While it is open that is never longer than `open_s`, wherever a clock has jumped to.
        """
        if not self.open_until_ms:
            return 0
        open_ms = round(self.rules.open_s * 1000)
        self.open_until_ms = min(self.open_until_ms, now_ms + open_ms)
        if now_ms < self.open_until_ms:
            return self.open_until_ms - now_ms
        return 0 if self.probes < self.rules.probes else min(PROBE_LOOK_MS, open_ms)

    def enter(self) -> int:
        """Count a call in, and return its era."""
        if self.open_until_ms:
            self.probes += 1
        return self.era

    def leave(self, era: int, outcome: PermitOutcome, now_ms: int) -> None:
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
        if ended >= self.rules.least_calls and self.ended.second >= self.rules.failure_share * ended:
            self._change(now_ms, is_open=True)

    def _change(self, now_ms: int, *, is_open: bool) -> None:
        self.era += 1
        self.open_until_ms = now_ms + round(self.rules.open_s * 1000) if is_open else 0
        self.probes = 0
        self.ended.clear()
