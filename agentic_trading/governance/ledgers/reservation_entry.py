"""One attempt in the memory ledger: what it has booked, where, and until when it may be silent."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from agentic_trading.governance.estimate import NOTHING, Amount
from agentic_trading.governance.ledger import ReservationRequest, Balance, ReservationState, Settlement
from agentic_trading.governance.ledgers.counter_table import WindowCounter

# In Python 3.11 a member looked up in its class costs ten times a name of the module, and every call would pay for it.
DISPATCHED = ReservationState.DISPATCHED
SETTLED = ReservationState.SETTLED
IN_DOUBT = ReservationState.IN_DOUBT


@dataclass(slots=True, eq=False)
class ReservationEntry:
    """An ask that was reserved for the moment `at`, and `charged` once it was settled or came into doubt.

    It knows its accounts for as long as what it booked in them may change. Its lease runs for `lease_s` from `since`.
    """

    ask: ReservationRequest
    at: datetime
    accounts: Sequence[WindowCounter]
    since: datetime
    lease_s: float
    state: ReservationState = ReservationState.RESERVED
    charged: Amount | None = None
    is_late: bool = False

    @property
    def booked(self) -> Amount:
        """What it counts for now, held or spent."""
        if self.charged is not None:
            return self.charged
        return NOTHING if self.state is ReservationState.RELEASED else self.ask.amount

    def settlement(self, id_: str) -> Settlement:
        """Return what it was charged, as others see it."""
        charged, reserved = self.booked, self.ask.amount
        more = overrun_of(charged, reserved)
        return Settlement(id_, charged, reserved, more, self.is_late, self.state is IN_DOUBT)

    def is_silent(self, now: datetime) -> bool:
        """Whether its lease is over; one of 0 s is at once."""
        return now >= self.since + timedelta(seconds=self.lease_s)


def hold(accounts: Iterable[WindowCounter], amount: Amount) -> None:
    """Count `amount` as held in every account."""
    nusd, tokens, calls = amount.nusd, amount.tokens, amount.calls
    for account in accounts:
        account.left_nusd -= nusd
        account.left_tokens -= tokens
        account.left_calls -= calls


def release_hold(accounts: Iterable[WindowCounter], amount: Amount) -> None:
    """Count `amount` as held no more."""
    for account in accounts:
        account.left_nusd += amount.nusd
        account.left_tokens += amount.tokens
        account.left_calls += amount.calls


def post_charge(accounts: Sequence[WindowCounter], new: Amount, instead_of: Amount, spent: Amount) -> None:
    """Count `new` as spent, in place of what was counted before, of which `spent` was spent already."""
    back_nusd, back_tokens = instead_of.nusd - new.nusd, instead_of.tokens - new.tokens
    nusd, tokens, calls = new.nusd - spent.nusd, new.tokens - spent.tokens, new.calls - spent.calls
    for account in accounts:
        account.left_nusd += back_nusd
        account.left_tokens += back_tokens
        account.spent_nusd += nusd
        account.spent_tokens += tokens
        account.spent_calls += calls
    if back_calls := instead_of.calls - new.calls:  # hardly ever: a call is a call
        for account in accounts:
            account.left_calls += back_calls


def post_in_doubt(accounts: Iterable[WindowCounter], new: Amount, instead_of: Amount = NOTHING) -> None:
    """Count `new` as in doubt, in place of what was before."""
    for account in accounts:
        account.in_doubt = Amount(
            *(
                was + more - less
                for was, more, less in zip(account.in_doubt.units, new.units, instead_of.units, strict=True)
            )
        )


def overrun_of(actual: Amount, reserved: Amount) -> Amount:
    """Return by how much `actual` passes `reserved`, unit by unit."""
    if actual.nusd <= reserved.nusd and actual.tokens <= reserved.tokens and actual.calls <= reserved.calls:
        return NOTHING
    return Amount(*(max(0, used - kept) for used, kept in zip(actual.units, reserved.units, strict=True)))


def counter_balance(account: WindowCounter) -> Balance:
    """Return an account as others see it."""
    return Balance(
        tenant=account.table.tenant,
        scope=account.table.kind,
        id=account.id,
        window=account.table.window,
        window_id=account.span.id,
        ceiling=account.cap.ceiling,
        spent=account.spent,
        held=account.held,
        in_doubt=account.in_doubt,
    )
