"""The port to the ledger: money, tokens and calls set aside before a call, and booked after it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol

from agentic_trading.canonical import canonical_bytes, sha256_hex
from agentic_trading.governance.errors import AskError, LimitError
from agentic_trading.governance.estimate import Amount
from agentic_trading.governance.windows import Window

Unit = Literal["nano-USD", "tokens", "calls"]

UNITS: tuple[Unit, Unit, Unit] = ("nano-USD", "tokens", "calls")
"""The order in which amounts and ceilings list theirs."""

ANY = "*"
"""As the id of a limit: every one of that kind, each by itself."""

_PAYLOAD_TAG = b"agentic/ask/v1\0"


class ScopeKind(StrEnum):
    """What spending is counted for. All of it is counted within the tenant: two tenants share no counter."""

    CALL = "call"
    TRACE = "trace"
    AGENT = "agent"
    WORKFLOW = "workflow"
    TENANT = "tenant"


class CallState(StrEnum):
    """How far a reserved call has come.

    `reserved` → `dispatched` → `settled`; `reserved` → `released` (never sent, nothing charged);
    `dispatched` → `in_doubt` (charged in full) → `settled` (by a late answer, in the window of the reservation).
    """

    RESERVED = "reserved"
    DISPATCHED = "dispatched"
    SETTLED = "settled"
    RELEASED = "released"
    IN_DOUBT = "in_doubt"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most of each unit, or what is left of it; None where there is no ceiling."""

    nusd: int | None = None
    tokens: int | None = None
    calls: int | None = None

    @property
    def units(self) -> tuple[int | None, int | None, int | None]:
        """In the order of `UNITS`."""
        return self.nusd, self.tokens, self.calls

    def tighter(self, other: "Ceiling") -> "Ceiling":
        """Return the lower of both ceilings, unit by unit."""
        return Ceiling(*map(_lower, self.units, other.units))

    def or_else(self, other: "Ceiling") -> "Ceiling":
        """Return this ceiling, with what it leaves open taken from `other`."""
        return Ceiling(*(
            mine if mine is not None else theirs for mine, theirs in zip(self.units, other.units, strict=True)
        ))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limit:
    """A ceiling on what a scope may use within each window: nano-dollars, tokens, calls; at least one of them.

    `id` names the scope; `*` is every one of the kind by itself. A named limit goes before the `*` one of the same
    kind and window, unit by unit. Raises `LimitError`.
    """

    scope: ScopeKind
    id: str
    window: Window
    nusd: int | None = None
    tokens: int | None = None
    calls: int | None = None

    def __post_init__(self) -> None:
        """Refuse a limit that names nothing, limits nothing or is below zero."""
        subject = f"{self.scope} {self.id!r} per {self.window}"
        given = {"nusd": self.nusd, "tokens": self.tokens, "calls": self.calls}
        if not self.id:
            raise LimitError(subject, "has no id; allowed are the id of a scope and '*'")
        if all(value is None for value in given.values()):
            raise LimitError(subject, "has no ceiling; allowed are nusd, tokens and calls, one at least")
        for unit, value in given.items():
            if value is not None and value < 0:
                raise LimitError(subject, f"{unit} is {value}; allowed is 0 (nothing may run) and more")

    @property
    def ceiling(self) -> Ceiling:
        """What this limit allows."""
        return Ceiling(self.nusd, self.tokens, self.calls)


@dataclass(frozen=True, slots=True)
class Ask:
    """One attempt that wants to run.

    `key` and `attempt` make it the same ask however often it comes. `at` chooses the windows and nothing else (the
    market's moment in a backtest, else the present). `limits` are ceilings that the caller puts upon itself, on its
    own scopes. `priority` orders those who wait; higher goes first.
    """

    key: str
    attempt: int
    scope_ids: Mapping[ScopeKind, str]
    amount: Amount
    at: datetime
    limits: tuple[Limit, ...] = ()
    priority: int = 0

    def __post_init__(self) -> None:
        """Raise `AskError` for a scope without an id, and for a limit on a scope that is not the asker's own."""
        if not all(self.scope_ids.values()):
            raise AskError(self.key, "has a scope without an id; allowed are ids that are not empty")
        for limit in self.limits:
            own = self.scope_ids.get(limit.scope)
            if own is None or limit.id not in {ANY, own}:
                raise AskError(self.key, f"limits {limit.scope} {limit.id!r}; allowed are its own scopes")

    @property
    def reservation_id(self) -> str:
        """The id of the reservation that this ask gets."""
        return f"{self.key}:{self.attempt}"

    @property
    def payload_hash(self) -> str:
        """SHA-256 over what the ask wants, without when it came: equal for every delivery of the same attempt."""
        payload = {
            "scopes": {str(kind): id_ for kind, id_ in self.scope_ids.items()},
            "amount": [self.amount.nusd, self.amount.tokens, self.amount.calls],
            "limits": [
                [str(limit.scope), limit.id, str(limit.window), limit.nusd, limit.tokens, limit.calls]
                for limit in self.limits
            ],
        }
        return sha256_hex(_PAYLOAD_TAG, canonical_bytes(payload))


@dataclass(frozen=True, slots=True)
class Reservation:
    """An amount set aside. `state` is `reserved`, unless the same ask was made before and has come further."""

    id: str
    amount: Amount
    state: CallState = CallState.RESERVED


@dataclass(frozen=True, slots=True)
class Refusal:
    """The ask does not fit, even if everything held by calls in flight came back; nothing is reserved.

    `left` is the ceiling less what is spent, never below zero.
    """

    scope: ScopeKind
    id: str
    window: Window
    unit: Unit
    asked: int
    left: int


@dataclass(frozen=True, slots=True)
class Held:
    """The ask would fit, but for what is held by calls in flight or asked for by who came before; nothing is reserved.

    `left` is what could be had at once.
    """

    scope: ScopeKind
    id: str
    window: Window
    unit: Unit
    asked: int
    left: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a call was charged. `overrun` is what passed its reservation: booked all the same.

    `late` marks a charge that corrected one in doubt, `in_doubt` one that may still be corrected.
    """

    reservation_id: str
    charged: Amount
    reserved: Amount
    overrun: Amount
    late: bool = False
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Balance:
    """One counter: what was spent in a window (with what is in doubt), what is held by calls in flight, what is left."""

    tenant: str
    scope: ScopeKind
    id: str
    window: Window
    window_id: str
    ceiling: Ceiling
    spent: Amount
    held: Amount
    in_doubt: Amount

    @property
    def left(self) -> Ceiling:
        """The ceiling less spent and held, never below zero; None where there is no ceiling."""
        return Ceiling(*map(_rest, self.ceiling.units, self.spent.units, self.held.units))


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    """Counts since the start: steps taken, answers given, nano-dollars reserved (of charged calls) and charged.

    `in_flight` and `waiting` are of now. `reserved_nusd` ÷ `charged_nusd` says how much the estimates hold back.
    """

    reserved: int = 0
    settled: int = 0
    released: int = 0
    in_doubt: int = 0
    late: int = 0
    refused: int = 0
    held: int = 0
    overruns: int = 0
    overrun_nusd: int = 0
    reserved_nusd: int = 0
    charged_nusd: int = 0
    in_flight: int = 0
    waiting: int = 0


class Ledger(Protocol):
    """Held plus spent never passes a ceiling, whoever asks at once.

    All scopes, windows and units of an ask are looked at and booked in one step. A charge goes to the windows of its
    reservation, whenever it comes. Asking, settling and releasing twice is harmless.
    """

    async def reserve(self, ask: Ask) -> Reservation | Refusal | Held:
        """Set the amount aside, or say why not; never wait.

        The same ask again gives the same reservation; one that was released is made anew. Whoever asks while others
        of no lower priority wait for the same counter is `Held` behind them. Raises `ReservationConflictError` for
        the same key and attempt with other facts, `ClosedWindowError` for a moment too long ago.
        """
        ...

    async def reserve_in_turn(self, ask: Ask) -> Reservation | Refusal:
        """Wait until `ask` can be answered for good: in order of arrival within a priority.

        Waits without end; put a time limit around it. Who is cancelled leaves the line, and holds nothing.
        """
        ...

    async def dispatch(self, reservation_id: str) -> None:
        """Note that the request is about to be sent; from here on the call may have been billed.

        Goes once: a second one raises `ReservationStateError`, so that two workers cannot both send.
        """
        ...

    async def state_of(self, reservation_id: str) -> CallState | None:
        """Return how far a call has come; None for one never reserved, or released or finished, and forgotten."""
        ...

    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        """Charge what a dispatched call used and give back the rest.

        More than was reserved is charged too, and counted. A second settlement changes nothing and returns the first.
        """
        ...

    async def release(self, reservation_id: str) -> None:
        """Give back all of a reservation that was never dispatched. Twice is harmless."""
        ...

    async def in_doubt(self, reservation_id: str) -> Settlement:
        """Charge a dispatched call in full, as its answer is not known. A later `settle` corrects it."""
        ...

    async def snapshot(self) -> Sequence[Balance]:
        """Return every counter as it is now."""
        ...

    def statistics(self) -> LedgerStatistics:
        """Return the counts since the start."""
        ...


def reservation_id(key: str, attempt: int) -> str:
    """Return the id of an attempt's reservation: its idempotency key and its number."""
    return f"{key}:{attempt}"


def _lower(one: int | None, other: int | None) -> int | None:
    given = [value for value in (one, other) if value is not None]
    return min(given, default=None)


def _rest(ceiling: int | None, spent: int, held: int) -> int | None:
    return None if ceiling is None else max(0, ceiling - spent - held)
