"""The port to the limiter: how fast, how many at once, and whether at all a model of a provider may be asked."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from agentic_trading.governance.errors import LimitError
from agentic_trading.llm.envelope import LLMProvider

LEASE_S = 120.0
"""For how long a permit counts as in flight, where nothing else is said."""

LONGEST_LEASE_S = 86_400.0

LONGEST_PAUSE_S = 3600.0
"""Who asks for a longer pause gets this one: an hour is looked at again."""

LOOK_AGAIN_S = 1.0
"""The longest wait before asking again where what comes back early may end it; a pause is told in full."""

MOST_TOKENS = 10**9
"""No call uses more."""

MOST_A_MINUTE = 10**10
"""No provider allows more; whole numbers stay exact on the way through Lua."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One model of one provider: what rates are for, shared by all tenants and processes."""

    provider: LLMProvider
    model: str


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What a lane takes: requests and tokens a minute, calls at once; None is no limit. Raises `LimitError`."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None

    def __post_init__(self) -> None:
        """Refuse what lets nobody through: to stop a model there are halts."""
        _check("requests_per_minute", self.requests_per_minute, least=1, most=MOST_A_MINUTE)
        _check("tokens_per_minute", self.tokens_per_minute, least=1, most=MOST_A_MINUTE)
        _check("concurrent", self.concurrent, least=1, most=MOST_A_MINUTE)


@dataclass(frozen=True, slots=True)
class CircuitBreakerConfig:
    """When a lane's circuit opens: of at least `least_calls` ended within `window_s`, `failure_share` failed.

    It stays open for `open_s`; then `probes` at once may try. The window moves in tenths of itself. Raises `LimitError`.
    """

    window_s: float = 30.0
    least_calls: int = 10
    failure_share: float = 0.5
    open_s: float = 30.0
    probes: int = 1

    def __post_init__(self) -> None:
        """Refuse rules that would open for nothing, or never close."""
        _check("window_s", self.window_s, least=0.001, most=86_400)
        _check("least_calls", self.least_calls, least=1, most=MOST_A_MINUTE)
        _check("failure_share", self.failure_share, least=0.001, most=1)
        _check("open_s", self.open_s, least=0.001, most=86_400)
        _check("probes", self.probes, least=1, most=MOST_A_MINUTE)


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How many retries a lane takes: `share` of the calls let in within `window_s`, but `least` in any case.

    The window moves in twelfths of itself. Raises `LimitError`.
    """

    share: float = 0.1
    least: int = 10
    window_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuse a share that is none."""
        _check("share", self.share, least=0, most=1)
        _check("least", self.least, least=0, most=MOST_A_MINUTE)
        _check("window_s", self.window_s, least=0.001, most=86_400)

    def left(self, calls: int, retries: int) -> int:
        """Return how many retries more may go after `retries` of `calls` in all."""
        return max(0, max(self.least, int(self.share * calls + 1e-9)) - retries)


@dataclass(frozen=True, slots=True)
class PermitRequest:
    """One attempt that wants to be sent.

    `id` is its reservation's; entering again with it is the same entry. `tokens` is the most it can use, input and
    output. Higher `priority` goes first. After `lease_s` without an end its place in flight is free again. Raises
    `ValueError`.
    """

    lane: Deployment
    id: str
    tokens: int = 0
    priority: int = 0
    lease_s: float = LEASE_S
    is_retry: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be counted."""
        if not self.id:
            raise ValueError("an entry without an id; allowed are ids that are not empty")
        if not 0 <= self.tokens <= MOST_TOKENS:
            raise ValueError(f"entry {self.id!r} has {self.tokens} tokens; allowed are 0 to {MOST_TOKENS}")
        if not 0 < self.lease_s <= LONGEST_LEASE_S:
            raise ValueError(
                f"entry {self.id!r} has a lease of {self.lease_s} s; allowed is more than 0, to {LONGEST_LEASE_S:.0f}"
            )


@dataclass(frozen=True, slots=True)
class Permit:
    """Go: the call may be sent. `tokens` were taken from the lane for it."""

    lane: Deployment
    id: str
    tokens: int


WaitReason = Literal["requests", "tokens", "concurrent", "line", "pause"]
ShutReason = Literal["circuit_open", "retry_budget"]


@dataclass(frozen=True, slots=True)
class Throttled:
    """Not yet: ask again after `seconds` (more than 0, and finite). Until some seconds later a place is kept.

    `requests`, `tokens`, `concurrent`: the lane has too little left; `line`: there is enough, but for those who have
    a better place; `pause`: the provider asked for one.
    """

    lane: Deployment
    reason: WaitReason
    seconds: float


@dataclass(frozen=True, slots=True)
class NotPermitted:
    """Do not try; no place is kept. Before `seconds` have passed (more than 0, and finite) it will hardly change."""

    lane: Deployment
    reason: ShutReason
    seconds: float


class PermitOutcome(StrEnum):
    """How a call ended, as far as its lane is concerned."""

    ANSWERED = "answered"
    FAILED = "failed"  # a server's error, a time-out, no connection
    UNUSED = "unused"  # never sent
    NEUTRAL = "neutral"  # rate limited, a refused request, cancelled: says nothing of the provider's health


class CircuitState(StrEnum):
    """`closed` → `open` (too many failed) → `half_open` (probes may try) → `closed` (answered) or `open` (failed)."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """A lane as it is now; what has no limit has None left, and what is owed is 0 left.

    `answered` and `failed` are those that the breaker counts, `paused_s` is the rest of a pause.
    """

    lane: Deployment
    limits: RateLimits
    breaker: CircuitState
    answered: int
    failed: int
    in_flight: int
    waiting: int
    requests_left: int | None
    tokens_left: int | None
    retries_left: int
    paused_s: float


class Limiter(Protocol):
    """Let calls into a lane no faster than its provider takes them, and not while it keeps failing.

    All that an entry needs is looked at and taken in one step, whoever asks at once; adapters that share a server
    share lanes. Each bucket holds one minute's limit, begins full and fills evenly: within any minute no more is let
    in than two minutes' limit, but for what is owed (a call larger than the bucket, or than was said). Nobody takes what somebody with a better place (higher priority, then came first)
    waits for; what is left beyond that may be taken, so that the place of a dead process delays its own share only.

    The breaker counts what was answered and failed among calls that entered since it last opened or closed.

    Every method but `aclose` raises `LimiterUnavailableError` if the limiter's server cannot be asked.
    """

    async def enter(self, entry: PermitRequest) -> Permit | Throttled | NotPermitted:
        """Let an attempt in, or say for how long not; nothing is taken then but a place in line.

        Entering again while the permit is in flight gives the same permit and begins its lease anew; after the end of
        the permit it is another entry. Asking again while waiting keeps the place. More tokens than the bucket can
        hold may go when it is full, and are owed to it. A retry counts when it is let in.
        """
        ...

    async def leave(
        self,
        permit: Permit,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        pause_s: float | None = None,
    ) -> None:
        """End a permit; harmless twice, and after its lease.

        `tokens` are those really used (None: all that were taken; fewer than 0 count as 0, more than `MOST_TOKENS` as
        that many): the bucket gets the difference back, or is owed it. `unused` gives everything back, as if it had
        never entered, whatever `tokens` says. `pause_s` is the wait that the provider asked for (up to
        `LONGEST_PAUSE_S`; what is no number or not above 0 is none): nobody enters the lane before, and a shorter one
        does not end a longer one.

        A permit whose lease ran out has left as `neutral` with all its tokens: whether it was answered is not known,
        and a crash of ours says nothing of the provider. Leaving it then changes nothing.
        """
        ...

    async def give_up(self, entry: PermitRequest) -> None:
        """Forget an attempt that does not want to enter any more and was not sent; harmless if nothing is known of it.

        It leaves the line; if it was let in meanwhile (its `enter` was cancelled), its permit leaves as `unused`.
        """
        ...

    async def status(self, lane: Deployment) -> DeploymentStatus:
        """Return how a lane stands."""
        ...

    async def aclose(self) -> None:
        """Let go of what is open; permits in flight end by their leases."""
        ...


def _check(subject: str, value: float | None, *, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise LimitError(subject, f"is {value}; allowed are {least} to {most}")
