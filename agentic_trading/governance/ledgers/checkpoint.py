"""Progress, fence and statistics of the memory ledger."""

from dataclasses import dataclass, field, fields

from agentic_trading.governance.errors import LedgerRolledBackError
from agentic_trading.governance.ledger import (
    ExpiredReservation,
    LedgerCheckpoint,
    LedgerStatistics,
    ReservationState,
    Settlement,
)
from agentic_trading.governance.ledgers.reservation_table import ReservationEntry
from agentic_trading.governance.prices import NOTHING


@dataclass(slots=True)
class Fence:
    """The reason why a ledger is closed, and the calls that have ended since."""

    why: str
    has_gone_back: bool
    ended: dict[str, ReservationEntry] = field(default_factory=dict)

    def note(self, id_: str, call: ReservationEntry) -> None:
        """Remember a call that has just ended, unless it was released."""
        # A rebuild keeps these, because their records may not be in the log that it has read.
        if call.state is not ReservationState.RELEASED:
            self.ended[id_] = call


class LedgerEpoch:
    """The steps of one tenant.

    `began` distinguishes this ledger from those of other or earlier processes.
    """

    __slots__ = ("_began", "_expected", "_number", "_tenant", "fence", "sequence")

    def __init__(self, tenant: str, began: str) -> None:
        self._tenant = tenant
        self._began = began
        self._number = self._expected = 1
        self.sequence = 0
        self.fence: Fence | None = None

    @property
    def is_none(self) -> bool:
        """Whether no step was taken and none is expected."""
        return self.sequence == 0 and self._expected == 1 and self.fence is None

    @property
    def checkpoint(self) -> LedgerCheckpoint:
        """The steps so far."""
        return LedgerCheckpoint(self._number, f"{self._began}/{self._number}", self.sequence)

    @property
    def has_gone_back(self) -> bool:
        """Whether the ledger was found to have lost steps, and is closed for that."""
        return self.fence is not None and self.fence.has_gone_back

    def check(self) -> None:
        """Raise `LedgerRolledBackError` if the ledger is closed."""
        if self.fence is not None:
            raise self.refusal(self.fence)

    def refusal(self, fence: Fence) -> LedgerRolledBackError:
        """Return the error for a step while the ledger is closed."""
        return LedgerRolledBackError(self._tenant, fence.why, str(self.checkpoint))

    def require_at_least(self, checkpoint: LedgerCheckpoint) -> Fence | None:
        """Note a checkpoint.

        Return a fence if the ledger has not reached it, otherwise None.
        """
        self._expected = max(self._expected, checkpoint.epoch)
        if not self.checkpoint.is_behind(checkpoint):
            return None
        ended = {} if self.fence is None else self.fence.ended
        return Fence(str(checkpoint), has_gone_back=True, ended=ended)

    def begin_again(self) -> None:
        """Begin the next epoch, open."""
        self._number = self._expected = max(self._number, self._expected) + 1
        self.sequence = 0
        self.fence = None


class StatisticsCounter:
    """The counts of `LedgerStatistics`."""

    __slots__ = ("counts", "unsuccessful")

    def __init__(self) -> None:
        self.counts = {field.name: 0 for field in fields(LedgerStatistics)}
        self.unsuccessful = 0

    def refuse(self) -> None:
        """Count a `Declined` answer."""
        self.counts["refused"] += 1
        self.unsuccessful += 1

    def hold(self) -> None:
        """Count a `Blocked` answer."""
        self.counts["held"] += 1
        self.unsuccessful += 1

    def charge(self, settlement: Settlement, before_nusd: int) -> None:
        """Count a charge. A late charge replaces one of `before_nusd`."""
        counts = self.counts
        counts["in_doubt" if settlement.in_doubt else "settled"] += 1
        counts["charged_nusd"] += settlement.charged.nusd
        if settlement.late:
            counts["late"] += 1
            counts["charged_nusd"] -= before_nusd
        else:
            counts["reserved_nusd"] += settlement.reserved.nusd
        overrun = settlement.overrun
        if overrun.nusd or overrun.tokens or overrun.calls:
            counts["overruns"] += 1
            counts["overrun_nusd"] += overrun.nusd

    def end(self, settlement: Settlement, *, is_released: bool) -> None:
        """Count an ended call."""
        if is_released:
            self.counts["released"] += 1
        else:
            self.charge(settlement, settlement.reserved.nusd)

    def expire(self, expired: ExpiredReservation) -> None:
        """Count a call whose lease ran out."""
        amount = expired.amount
        doubtful = Settlement(expired.reservation_id, amount, amount, NOTHING, in_doubt=True)
        self.end(doubtful, is_released=expired.state is ReservationState.RELEASED)

    def snapshot(self, *, in_flight: int, waiting: int) -> LedgerStatistics:
        """Return the counts with the current numbers in flight and waiting."""
        return LedgerStatistics(**{**self.counts, "in_flight": in_flight, "waiting": waiting})
