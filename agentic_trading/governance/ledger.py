"""The ledger's interface. It reserves money, tokens and calls before a call, and charges them after it."""

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
"""The default time in seconds that a dispatched call counts as in flight."""

SENT_WITHIN: Final = timedelta(days=8)
"""The maximum age of an envelope.

A worker refuses an older one, because the record of its payment may be deleted.
"""

CLOCKS_DIFFER: Final = timedelta(days=1)
"""The maximum clock difference of senders and workers, and of a call's duration after the age check."""

CALL_KEEP: Final = SENT_WITHIN + CLOCKS_DIFFER
"""How long a ledger keeps an ended call. During this time, that record alone prevents a second payment."""


class ReservationState(StrEnum):
    """The state of a reserved call.

    `reserved` → `dispatched` → `settled`.
    `reserved` → `released`: the call was never sent and is not charged.
    `dispatched` → `in_doubt`: charged in full. A late answer changes it to `settled`, in the window of the
    reservation.
    """

    RESERVED = "reserved"
    DISPATCHED = "dispatched"
    SETTLED = "settled"
    RELEASED = "released"
    IN_DOUBT = "in_doubt"


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """A request to reserve an amount for one attempt.

    Attributes:
        key: The idempotency key. With `attempt` it identifies the request within its tenant, however often it
            is repeated.
        attempt: The number of the attempt.
        scope_ids: The ids of the scopes that the amount is counted for.
        amount: The amount to reserve.
        at: Selects the windows, and has no other effect. In a backtest it is the market's time. None is the
            present by the ledger's own clock.
        limits: Extra ceilings that the caller sets on its own scopes.
        priority: Seconds. The request goes before requests that were queued up to this many seconds earlier.
        tenant: The tenant that pays. Taken from `scope_ids`.
        reservation_id: The id that its reservation will have.

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
        """Raises `ReservationRequestError` for an empty scope id, or a limit on another scope."""
        tenant = self.scope_ids.get(_TENANT, "")
        object.__setattr__(self, "tenant", tenant)
        object.__setattr__(self, "reservation_id", reservation_id(tenant, self.key, self.attempt))
        if not all(self.scope_ids.values()):
            raise ReservationRequestError(
                self.key, "has a scope with an empty id. Set the id, or leave the scope out"
            )
        for limit in self.limits:
            own = self.scope_ids.get(limit.scope)
            # Otherwise a caller would put a ceiling on the spending of others.
            if own is None or limit.id not in {ANY, own}:
                raise ReservationRequestError(
                    self.key, f"limits {limit.scope} {limit.id!r}. Allowed: its own scopes"
                )

    @property
    def is_for_nothing(self) -> bool:
        """Whether the amount is zero and there are no own limits.

        A request like this always fits, so that a charge can be booked without headroom.
        """
        return not (self.limits or any(self.amount.units))

    @property
    def payload_hash(self) -> str:
        """SHA-256 over scopes, amount and limits, but not `at`.

        Equal for every delivery of the same attempt.
        """
        payload = {
            # Without `at` and `priority`, because a redelivery comes later and would conflict with its own
            # reservation.
            "scopes": {str(kind): id_ for kind, id_ in self.scope_ids.items()},
            "amount": [self.amount.nusd, self.amount.tokens, self.amount.calls],
            "limits": [
                [str(limit.scope), limit.id, str(limit.window), limit.nusd, limit.tokens, limit.calls]
                for limit in self.limits
            ],
        }
        return sha256_hex(_PAYLOAD_TAG, canonical_bytes(payload))


class Reservation(NamedTuple):
    """A reserved amount.

    Attributes:
        id: The reservation id.
        amount: The amount.
        state: `reserved`, unless an earlier identical request has already reached a later state.
        counted_at: A time in its windows. Set if the request has no `at`, or was first made with another
            `at`.

    """

    id: str
    amount: Amount
    state: ReservationState = ReservationState.RESERVED
    counted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Declined:
    """The request cannot fit, even if all held amounts were returned.

    The amount is not reserved. `left` is the ceiling minus the spent amount, never below zero.
    """

    scope: ScopeKind
    id: str
    window: Window
    unit: Unit
    asked: int
    left: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """The request would fit if calls in flight or earlier queued requests did not hold headroom.

    The amount is not reserved. `left` is the amount that is available now.
    """

    scope: ScopeKind
    id: str
    window: Window
    unit: Unit
    asked: int
    left: int


class Settlement(NamedTuple):
    """The charge of a call.

    Attributes:
        reservation_id: The reservation that was charged.
        charged: The amount charged.
        reserved: The amount that was reserved.
        overrun: The part of the charge above the reservation. It is charged too.
        late: Whether this charge corrected a charge in doubt.
        in_doubt: Whether this charge may still be corrected.

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

    `scope_ids` contains at least the scopes that the call was counted in. `counted_at` is a time in its
    windows, if known.
    """

    reservation_id: str
    state: ReservationState
    amount: Amount
    scope_ids: Mapping[ScopeKind, str] = field(default_factory=dict, compare=False)
    counted_at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A past call from a log or a ledger: `settled` or `in_doubt`, with its charge.

    `request.at` selects the windows and must be set. A ledger that has gone back also lists its `dispatched`
    calls.
    """

    request: ReservationRequest
    state: ReservationState
    charged: Amount


@dataclass(frozen=True, slots=True)
class LedgerCheckpoint:
    """How far a tenant's ledger has progressed.

    `sequence` grows by 1 with each step of an `epoch`. An epoch begins when the ledger is created and each
    time it is rebuilt. It gets the next number and a new `epoch_id`. Before the first step it may be epoch 0
    with an empty id.
    """

    epoch: int
    epoch_id: str
    sequence: int

    @override
    def __str__(self) -> str:
        return f"epoch {self.epoch}, step {self.sequence}"

    def is_behind(self, known: "LedgerCheckpoint") -> bool:
        """Whether a ledger found at this checkpoint has lost steps that were `known`.

        Another epoch with the same number has lost them too.
        """
        return self.epoch < known.epoch or (
            self.epoch == known.epoch and (self.epoch_id != known.epoch_id or self.sequence < known.sequence)
        )


@dataclass(frozen=True, slots=True)
class QueuedReservation:
    """A queued request, as it was last checked. `since` is its arrival time."""

    reservation_id: str
    held: Blocked
    priority: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Balance:
    """One counter of a scope in a window.

    Attributes:
        tenant: The tenant.
        scope: The kind of scope.
        id: The scope's id.
        window: The kind of window.
        window_id: The window, such as the date of a day.
        ceiling: The limits that apply.
        spent: The amount charged in the window, including charges in doubt.
        held: The amount reserved by calls in flight.
        in_doubt: The part of `spent` that may still be corrected.

    """

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
        """The ceiling minus spent and held, never below zero.

        None for a unit without a ceiling.
        """
        return Ceiling(*map(_rest, self.ceiling.units, self.spent.units, self.held.units))


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    """Counts of a process since its start.

    `reserved_nusd` and `charged_nusd` are the reserved and the charged nano-dollars of charged calls. Their
    quotient shows how far the estimates are above the charges. `in_flight` and `waiting` are current values.
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
    """The part of a `Ledger` that the gate uses."""

    async def reserve(self, request: ReservationRequest) -> Reservation | Declined | Blocked:
        """Reserve the amount, or return why that is not possible. Does not wait.

        Repeating a request returns the same reservation. If that reservation was released, it is made again,
        and its amount, scopes and limits may then differ. While requests with a better place wait for the
        same counter, the request is `Blocked` behind them. A request for a zero amount without limits always
        gets a `Reservation`.

        Raises:
            ReservationConflictError: If the same key and attempt have an unreleased reservation with other
                scopes, another amount or other limits.
            ClosedWindowError: If `request.at` is too old.

        """

    async def wait_for_reservation(self, request: ReservationRequest) -> Reservation | Declined:
        """Wait until the request is reserved or finally declined.

        Requests are served in order of arrival minus priority. There is no time limit: use a timeout of your
        own. If cancelled, the request leaves the queue and its reservation, if it just got one, is released.

        Raises:
            ReservationConflictError: As in `reserve`.
            ClosedWindowError: As in `reserve`.

        """

    async def dispatch(self, reservation_id: str, *, lease_s: float = LEASE_S) -> None:
        """Record that the request is about to be sent.

        From now on the call may have been billed. This succeeds once per reservation, so that two workers
        cannot both send.

        Args:
            reservation_id: The reservation.
            lease_s: Seconds until the call counts as in doubt if it is not settled.

        Raises:
            ReservationStateError: If the call was dispatched before, or has ended.
            UnknownReservationError: If there is no such reservation.

        """

    async def state_of(self, reservation_id: str) -> ReservationState | None:
        """Return the state of a call.

        None if it was never reserved, or has ended and was forgotten.
        """

    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        """Charge the actual usage of a dispatched call, and return the rest of the reservation.

        Usage above the reservation is charged too, and counted as overrun. Repeating this has no effect and
        returns the first settlement.

        Raises:
            ReservationStateError: If the call was not dispatched.
            UnknownReservationError: If there is no such reservation.

        """

    async def release(self, reservation_id: str) -> None:
        """Release a reservation that was never dispatched. Repeating this is harmless.

        Raises:
            ReservationStateError: If the call was dispatched.
            UnknownReservationError: If there is no such reservation.

        """

    async def in_doubt(self, reservation_id: str) -> Settlement:
        """Charge a dispatched call in full, because its outcome is unknown.

        A later `settle` corrects the charge.

        Raises:
            ReservationStateError: If the call was not dispatched.
            UnknownReservationError: If there is no such reservation.

        """


class OperableLedger(Protocol):
    """The part of a `Ledger` that housekeeping and displays use."""

    async def apply_limits(self, tenant: str, limits: Sequence[Limit], *, version: int) -> None:
        """Replace the tenant's limits, from the next request on.

        If a limit is below the spent amount, new requests are declined. Calls in flight continue. Queued
        requests are checked again.

        Args:
            tenant: The tenant.
            limits: All its limits.
            version: Grows with each change. A version that is not newer than the applied one is ignored.

        """

    def awaited_limits(self, tenant: str) -> int:
        """Return a nonzero number if a tenant's limits must be read and applied again, otherwise 0.

        This is so if the ledger's limits are older than limits that this process has counted by, or if the
        ledger was rebuilt. After the first call of this method, requests then wait a short time for
        `confirm_limits` before they are refused.
        """

    def confirm_limits(self, tenant: str, awaited: int) -> None:
        """Resume reserving, unless the limits changed after `awaited_limits` returned `awaited`."""

    async def expire_leases(self) -> Sequence[ExpiredReservation]:
        """End all calls whose lease has run out, of every tenant that this ledger has served.

        Calls that were never dispatched are refunded. Dispatched calls are charged in full, in doubt, and a
        late `settle` corrects the charge.

        Returns:
            The expired calls. A call is returned again after a while, also by other processes, until it is
            acknowledged, because the process that should record it may have ended. A call that was settled or
            reserved again in the meantime is not returned again.

        """

    async def acknowledge_expired(self, reservation_id: str) -> None:
        """Stop returning this call from `expire_leases` in all processes, because it is recorded.

        Repeating is harmless.
        """

    async def checkpoint(self, tenant: str) -> LedgerCheckpoint:
        """Return how far the tenant's ledger has progressed."""

    async def balances(
        self, tenant: str, *, limited: bool = False, at: datetime | None = None
    ) -> Sequence[Balance]:
        """Return a tenant's counters.

        Each counter is exact, but others may change while they are read.

        Args:
            tenant: The tenant.
            limited: Return only counters that have a ceiling, in the newest windows that the tenant reserved
                in, without calls and traces. The time for this does not grow with the number of calls and
                traces.
            at: With `limited`, leave out windows that are over at this time.

        """

    async def waiting(self, tenant: str) -> Sequence[QueuedReservation]:
        """Return a tenant's queued requests, in the order in which they will be served."""

    def statistics(self) -> LedgerStatistics:
        """Return the counts of this process since its start."""


class RebuildableLedger(Protocol):
    """The part of a `Ledger` that a rebuild from the log uses."""

    async def fence(self, tenant: str) -> None:
        """Stop reserving and dispatching for a tenant until `restore`.

        Both then raise `LedgerRolledBackError`. Calls in flight may end, also after the log was read:
        `restore` keeps their charges. Repeating this is harmless.
        """

    async def entries(self, tenant: str) -> Sequence[LedgerEntry]:
        """Return the calls that were charged and are still kept singly.

        If the ledger has gone back, dispatched ones too.
        """

    async def restore(self, tenant: str, entries: Iterable[LedgerEntry]) -> LedgerCheckpoint:
        """Replace all that is recorded of a tenant's calls by these entries, and reopen the ledger.

        Two groups of calls stay without an entry:

        - Calls in flight, unless the ledger has gone back.
        - Calls that were settled or put in doubt after the fence, or after the ledger was found to have gone
          back. An `in_doubt` entry of such a call is ignored, because the ledger's record is newer.
        """

    async def require_at_least(self, tenant: str, checkpoint: LedgerCheckpoint) -> None:
        """Require that the ledger has reached at least this checkpoint, now and later.

        If it has not, reserving and dispatching raise `LedgerRolledBackError` until `restore`.
        """


class Ledger(ReservationLedger, OperableLedger, RebuildableLedger, Protocol):
    """Budgets for calls.

    A reservation never makes the held plus the spent amount exceed a ceiling, however many requests run at
    once. All scopes, windows and units of a request are checked and held in one atomic step. A charge above its
    reservation is booked in full. A charge goes to the windows of its reservation, however late it arrives.
    Repeating a reservation, settlement or release is harmless.

    Every method raises `LedgerUnavailableError` if the ledger cannot be reached. The step may or may not have
    been taken, and repeating it is harmless. Its subclass `LedgerRolledBackError` means that the ledger has
    lost recorded steps. Reserving is then stopped until `restore`.

    Example:
        ```python
        answer = await ledger.reserve(request)
        if isinstance(answer, Reservation):
            await ledger.dispatch(answer.id)
            ...  # send the request
            await ledger.settle(answer.id, Amount(nusd=1_200_000, tokens=340))
        ```

    """

    async def aclose(self) -> None:
        """Close the connections that were opened. Repeating this is harmless."""


def parts_of(reservation_id: str) -> tuple[str, str, int]:
    """Return the tenant, the key and the attempt of a reservation."""
    _, _, rest = reservation_id.partition(":")
    key, _, attempt = rest.rpartition(":")
    return tenant_of(reservation_id), key, int(attempt)


def tenant_of(reservation_id: str) -> str:
    """Return the tenant of a reservation."""
    return reservation_id.partition(":")[0].replace("%3A", ":").replace("%25", "%")


def _rest(ceiling: int | None, spent: int, held: int) -> int | None:
    return None if ceiling is None else max(0, ceiling - spent - held)
