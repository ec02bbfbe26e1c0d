"""The port to the ledger: money, tokens and calls reserved before a call, and charged after it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from typing_extensions import override

from agentic_trading.canonical import canonical_bytes, sha256_hex
from agentic_trading.governance.errors import ReservationRequestError
from agentic_trading.governance.limits import ANY, Ceiling, Limit, ScopeKind, Unit, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.llm.interaction import reservation_id

_PAYLOAD_TAG = b"agentic/ask/v1\0"
_TENANT = ScopeKind.TENANT

LEASE_S = 120.0
"""For how long a dispatched call counts as in flight by default."""

SENT_WITHIN: Final = timedelta(days=8)
"""The maximum age of an envelope. A worker refuses an older one, because the record of its payment may be deleted."""

CLOCKS_DIFFER: Final = timedelta(days=1)
"""How far the clocks of a sender and a worker may differ, and how long a call may take after its age was checked."""

CALL_KEEP: Final = SENT_WITHIN + CLOCKS_DIFFER
"""How long a ledger knows an ended call. Until then, the call's record alone prevents a second payment."""


class ReservationState(StrEnum):
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
class ReservationRequest:
    """An amount asked for one attempt.

    `key` and `attempt` identify it within its tenant, however often it comes. `at` chooses the windows and nothing
    else: the market's moment in a backtest; None is the present, by the ledger's own clock. `limits` are ceilings that
    the caller puts upon itself, on its own scopes. In the queue it goes before those that came
    up to `priority` seconds earlier. `tenant` is whose money it is, `reservation_id` what its reservation is known by.
    """

    key: str
    attempt: int
    scope_ids: Mapping[ScopeKind, str]
    amount: Amount
    at: datetime | None = None
    limits: tuple[Limit, ...] = ()
    priority: int = 0
    tenant: str = field(init=False, repr=False, compare=False)
    reservation_id: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise `ReservationRequestError` for a scope without an id, and for a limit on a scope that is not the request's."""
        tenant = self.scope_ids.get(_TENANT, "")
        object.__setattr__(self, "tenant", tenant)
        object.__setattr__(self, "reservation_id", reservation_id(tenant, self.key, self.attempt))
        if not all(self.scope_ids.values()):
            raise ReservationRequestError(
                self.key, "has a scope without an id; allowed are ids that are not empty"
            )
        for limit in self.limits:
            own = self.scope_ids.get(limit.scope)
            if own is None or limit.id not in {ANY, own}:
                raise ReservationRequestError(
                    self.key, f"limits {limit.scope} {limit.id!r}; allowed are its own scopes"
                )

    @property
    def is_for_nothing(self) -> bool:
        """Whether it is zeros without own limits, which always fit: so a charge is posted where there is no headroom."""
        return not (self.limits or any(self.amount.units))

    @property
    def payload_hash(self) -> str:
        """SHA-256 over scopes, amount and limits, without the moment: equal for every delivery of the same attempt."""
        payload = {
            "scopes": {str(kind): id_ for kind, id_ in self.scope_ids.items()},
            "amount": [self.amount.nusd, self.amount.tokens, self.amount.calls],
            "limits": [
                [str(limit.scope), limit.id, str(limit.window), limit.nusd, limit.tokens, limit.calls]
                for limit in self.limits
            ],
        }
        return sha256_hex(_PAYLOAD_TAG, canonical_bytes(payload))


class Reservation(NamedTuple):
    """An amount set aside; `state` is `reserved`, unless the same request was made before and has come further.

    `counted_at` is a moment in its windows, if the request names none, or came before with another.
    """

    id: str
    amount: Amount
    state: ReservationState = ReservationState.RESERVED
    counted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Declined:
    """The request does not fit, even if everything held by calls in flight came back; nothing is reserved.

    `left` is the ceiling less what is spent, never below zero.
    """

    scope: ScopeKind
    id: str
    window: Window
    unit: Unit
    asked: int
    left: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """The request would fit, but for what is held by calls in flight or queued before it; nothing is reserved.

    `left` is what could be had at once.
    """

    scope: ScopeKind
    id: str
    window: Window
    unit: Unit
    asked: int
    left: int


class Settlement(NamedTuple):
    """What a call was charged. `overrun` is what passed its reservation: charged all the same.

    `late` marks a charge that corrected one in doubt, `in_doubt` one that may still be corrected.
    """

    reservation_id: str
    charged: Amount
    reserved: Amount
    overrun: Amount
    late: bool = False
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class ExpiredReservation:
    """A call whose lease ran out: `released` and refunded, or `in_doubt` and charged in full.

    `scope_ids` are at least those that it was counted in, `counted_at` is a moment in its windows, if that is known.
    """

    reservation_id: str
    state: ReservationState
    amount: Amount
    scope_ids: Mapping[ScopeKind, str] = field(default_factory=dict, compare=False)
    counted_at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A past call, known to a log or a ledger: `settled` or `in_doubt`, and what it was charged.

    `request.at` chooses the windows and must be given. A ledger that has gone back names what it held as `dispatched`.
    """

    request: ReservationRequest
    state: ReservationState
    charged: Amount


@dataclass(frozen=True, slots=True)
class LedgerCheckpoint:
    """How far a tenant's ledger has come: `sequence` grows with every step within one `epoch`.

    An epoch begins when the ledger is made and each time it is rebuilt, with the next number and an `epoch_id` of its
    own. Before the first step it may be epoch 0, with an empty id.
    """

    epoch: int
    epoch_id: str
    sequence: int

    @override
    def __str__(self) -> str:
        return f"epoch {self.epoch}, step {self.sequence}"

    def is_behind(self, known: "LedgerCheckpoint") -> bool:
        """Whether a ledger found here has lost what was `known` of it; another epoch of the same number has."""
        return self.epoch < known.epoch or (
            self.epoch == known.epoch and (self.epoch_id != known.epoch_id or self.sequence < known.sequence)
        )


@dataclass(frozen=True, slots=True)
class QueuedReservation:
    """A queued request, as of the last look; `since` is when it came."""

    reservation_id: str
    held: Blocked
    priority: int
    since: datetime


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


class ReservationLedger(Protocol):
    """What the gate needs of a `Ledger`."""

    async def reserve(self, request: ReservationRequest) -> Reservation | Declined | Blocked:
        """Set the amount aside, or say why not; never wait.

        The same request again gives the same reservation; one that was released is made once more, with other facts if
        they are others now. While requests with a better place wait for the same counter, another is `Blocked` behind
        them, but for a request for nothing: that is always a `Reservation`. Raises `ReservationConflictError` for the
        same key and attempt with other facts while that is not released, `ClosedWindowError` for a moment too long ago.
        """

    async def wait_for_reservation(self, request: ReservationRequest) -> Reservation | Declined:
        """Wait until `request` can be answered for good: in order of arrival less priority.

        Waits without end; put a time limit around it. Cancelled, it leaves the queue and holds nothing.
        """

    async def dispatch(self, reservation_id: str, *, lease_s: float = LEASE_S) -> None:
        """Note that the request is about to be sent; from here on the call may have been billed.

        After `lease_s` seconds without a settlement it counts as in doubt.
        Goes once: a second one raises `ReservationStateError`, so that two workers cannot both send.
        """

    async def state_of(self, reservation_id: str) -> ReservationState | None:
        """Return how far a call has come; None for one never reserved, or released or finished, and forgotten."""

    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        """Charge what a dispatched call used and give back the rest.

        More than was reserved is charged too, and counted. A second settlement changes nothing and returns the first.
        """

    async def release(self, reservation_id: str) -> None:
        """Give back all of a reservation that was never dispatched. Twice is harmless."""

    async def in_doubt(self, reservation_id: str) -> Settlement:
        """Charge a dispatched call in full, as its answer is not known. A later `settle` corrects it."""


class OperableLedger(Protocol):
    """What housekeeping and displays need of a `Ledger`."""

    async def apply_limits(self, tenant: str, limits: Sequence[Limit], *, version: int) -> None:
        """Count against these limits from the next request on, in place of those before; an older version changes nothing.

        A limit below what is spent lets nothing more run; what is in flight goes on. The queue is served again.
        """

    def awaited_limits(self, tenant: str) -> int:
        """Return a number other than 0 if the limits of a tenant are to be read and applied once more.

        They are older than those that this process has counted by, or the ledger was rebuilt since. From the first call
        of this method on nothing is reserved meanwhile: requests wait for `confirm_limits` for a short time, and are then refused.
        """

    def confirm_limits(self, tenant: str, awaited: int) -> None:
        """Reserve again, if nothing has happened to the limits since `awaited_limits` returned this number."""

    async def expire_leases(self) -> Sequence[ExpiredReservation]:
        """End the calls whose lease has run out, of every tenant that this ledger has served and has calls of.

        Never dispatched: refunded. Dispatched: in doubt, charged in full, corrected by a late `settle`. Until it is
        acknowledged, it is returned again after a while, and by a ledger of another process too: the one that was to
        record it may have ended. One that was settled or reserved again meanwhile is not.
        """

    async def acknowledge_expired(self, reservation_id: str) -> None:
        """Return this one no more from `expire_leases`, of any process: it is on record. Twice is harmless."""

    async def checkpoint(self, tenant: str) -> LedgerCheckpoint:
        """Return how far the tenant's ledger has come."""

    async def balances(
        self, tenant: str, *, limited: bool = False, at: datetime | None = None
    ) -> Sequence[Balance]:
        """Return every counter of a tenant as it is now; each is exact by itself, others may go on between two of them.

        With `limited`, only those that can run out and are not over: of agents, workflows and the tenant, with a
        ceiling, in the newest windows that something of the tenant was reserved in. With `at`, windows that are over at
        that moment are left out too. That takes no longer where there are very many calls and traces.
        """

    async def waiting(self, tenant: str) -> Sequence[QueuedReservation]:
        """Return a tenant's queued requests, in the order in which they will be served."""

    def statistics(self) -> LedgerStatistics:
        """Return the counts of this process since the start."""


class RebuildableLedger(Protocol):
    """What a rebuild from the log needs of a `Ledger`."""

    async def fence(self, tenant: str) -> None:
        """Reserve and dispatch nothing more for a tenant until `restore`: `LedgerRolledBackError`.

        What is in flight may end, also after a log was read that does not know of it yet: `restore` does. Harmless twice.
        """

    async def entries(self, tenant: str) -> Sequence[LedgerEntry]:
        """Return the calls that were charged and are known singly; of a ledger that has gone back, dispatched ones too."""

    async def restore(self, tenant: str, entries: Iterable[LedgerEntry]) -> LedgerCheckpoint:
        """Forget all that is known of a tenant's calls, book these entries in their place, and open admission again.

        What no entry names stays as it is of calls that are reserved or dispatched now, and of those that were when
        the ledger was fenced, or found to have gone back, and have been settled or put in doubt since; of the latter a
        entry in doubt says nothing new. A ledger that has gone back forgets those in flight.
        """

    async def require_at_least(self, tenant: str, checkpoint: LedgerCheckpoint) -> None:
        """Take note of how far the ledger had come once; it must never be found before that again."""


class Ledger(ReservationLedger, OperableLedger, RebuildableLedger, Protocol):
    """Held plus spent never passes a ceiling, however many requests come at once.

    All scopes, windows and units of a request are checked and held in one step. A charge goes to the windows of its
    reservation, whenever it comes. Reserving, settling and releasing twice is harmless.

    Every method raises `LedgerUnavailableError` when the ledger cannot be reached: it is then not known whether the
    step was taken, and taking it again is harmless. `LedgerRolledBackError`, one of these, says that it has lost or
    forgotten steps; nothing is reserved any more until `restore`.
    """

    async def aclose(self) -> None:
        """Close what was opened; harmless twice."""


def parts_of(reservation_id: str) -> tuple[str, str, int]:
    """Return the tenant of a reservation, and the key and the attempt that it is for."""
    _, _, rest = reservation_id.partition(":")
    key, _, attempt = rest.rpartition(":")
    return tenant_of(reservation_id), key, int(attempt)


def tenant_of(reservation_id: str) -> str:
    """Return the tenant of a reservation."""
    return reservation_id.partition(":")[0].replace("%3A", ":").replace("%25", "%")


def _rest(ceiling: int | None, spent: int, held: int) -> int | None:
    return None if ceiling is None else max(0, ceiling - spent - held)
