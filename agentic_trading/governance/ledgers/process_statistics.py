"""What a ledger in this process has done since the start."""

from dataclasses import fields

from agentic_trading.governance.estimate import NOTHING
from agentic_trading.governance.ledger import ReservationState, ExpiredReservation, LedgerStatistics, Settlement


class StatisticsCounter:
    """The counts of `LedgerStatistics`; those of now are put in when it is asked for."""

    __slots__ = ("counts", "in_vain")

    def __init__(self) -> None:
        self.counts = {field.name: 0 for field in fields(LedgerStatistics)}
        self.in_vain = 0

    def refuse(self) -> None:
        """Count a refusal."""
        self.counts["refused"] += 1
        self.in_vain += 1

    def hold(self) -> None:
        """Count who was told to wait."""
        self.counts["held"] += 1
        self.in_vain += 1

    def charge(self, settlement: Settlement, before_nusd: int) -> None:
        """Count a charge; a late one is in place of one of `before_nusd`."""
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
        """Count how a call ended."""
        if is_released:
            self.counts["released"] += 1
        else:
            self.charge(settlement, settlement.reserved.nusd)

    def expire(self, expired: ExpiredReservation) -> None:
        """Count a call whose lease ran out."""
        amount = expired.amount
        doubtful = Settlement(expired.reservation_id, amount, amount, NOTHING, in_doubt=True)
        self.end(doubtful, is_released=expired.state is ReservationState.RELEASED)

    def statistics(self, *, in_flight: int, waiting: int) -> LedgerStatistics:
        """Return the counts, with those of now."""
        return LedgerStatistics(**{**self.counts, "in_flight": in_flight, "waiting": waiting})
